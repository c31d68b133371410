"""The closed table of causes: each cause is reachable and has advice, and output never outweighs
stronger evidence.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from jobscribe.diagnosis import output_patterns
from jobscribe.diagnosis.causes import BY_REASON, BY_SLURM, BY_STOP, CAUSES, WHOSE, QueueState
from jobscribe.diagnosis.classification import classify_by_facts, classify_exit, classify_run
from jobscribe.diagnosis.exit_table import Table, agrees, diagnose
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.jobs.exit_info import FAULTS, SCHEDULER_END_STATES, ExitFacts, ExitInfo
from jobscribe.protocol.jobs.status import EndReason, Status, StopReason
from jobscribe.service.site.exit_table_file import load

SHELL, NO_SHELL = ExitFacts(via_shell=True), ExitFacts(via_shell=False)
TRACEBACK = 'Traceback (most recent call last):\n  File "solve.py", line 12, in main\n    step(n)\n  File "solve.py", line 3, in step\nValueError: negative volume'
FAULT = (
    'Fatal Python error: Segmentation fault\n\nThread 0x00007f0000000001 (most recent call first):\n  File "/usr/lib/q.py", line 9 in wait\n\n'
    'Current thread 0x00007f0000000000 (most recent call first):\n  File "solve.py", line 7 in inner\n  File "solve.py", line 9 in <module>\n'
)


def said(code: int, line: str, **fields: Any) -> ExitInfo:
    return ExitInfo(code=code, last_lines=f"begins\n{line}\n", **fields)


def killed(limit: str = "ulimit -t 1", **fields: Any) -> ExitInfo:
    """Return an exit by SIGKILL under this ulimit."""
    fields |= {} if "code" in fields else {"signal": 9}
    return ExitInfo(facts=ExitFacts(ulimits=(limit,), via_shell=True, memory_kills=0), **fields)


ENDS: list[tuple[ExitInfo, str, str]] = [
    (ExitInfo(code=3), "exit", "certain"),
    (ExitInfo(code=137), "exit", "possible"),
    (ExitInfo(code=137, facts=NO_SHELL), "exit", "certain"),
    (ExitInfo(code=139, facts=NO_SHELL), "exit", "certain"),
    (ExitInfo(code=0, out_of_memory=True), "completed", "certain"),
    (ExitInfo(code=127), "notFound", "likely"),
    (said(127, "sh: 1: solvr: not found"), "notFound", "likely"),
    (said(127, "./a: error while loading shared libraries: libx.so"), "libraryMissing", "likely"),
    (ExitInfo(code=126), "notExecutable", "likely"),
    (said(126, "sh: 1: ./a: Exec format error"), "wrongArchitecture", "likely"),
    (said(1, "OSError: [Errno 8] Exec format error: './a'"), "wrongArchitecture", "likely"),
    (ExitInfo(source="start", detail="Exec format error: /x/a"), "wrongArchitecture", "certain"),
    (
        ExitInfo(
            source="start", detail="the disk is full: No space left on device", fault="diskFull"
        ),
        "diskFull",
        "certain",
    ),
    (
        ExitInfo(source="start", detail="the user's disk quota is used up", fault="diskFull"),
        "quota",
        "certain",
    ),
    (
        ExitInfo(source="start", detail="no such image", fault="imageMissing"),
        "startFailed",
        "certain",
    ),
    (ExitInfo(signal=13), "brokenPipe", "certain"),
    (ExitInfo(code=141), "exit", "possible"),
    (ExitInfo(code=141, facts=SHELL), "brokenPipe", "certain"),
    (said(141, "tee: write error: Broken pipe"), "brokenPipe", "likely"),
    (
        said(130, TRACEBACK.replace("ValueError: negative volume", "KeyboardInterrupt")),
        "interrupted",
        "likely",
    ),
    (ExitInfo(code=129, facts=NO_SHELL), "exit", "certain"),
    (ExitInfo(code=131), "exit", "possible"),
    (ExitInfo(code=124), "commandTimeout", "possible"),
    (ExitInfo(code=124, facts=ExitFacts(calls_timeout=True)), "commandTimeout", "likely"),
    (said(1, "MemoryError"), "memoryRefused", "likely"),
    (said(1, "x: Cannot allocate memory"), "memoryRefused", "likely"),
    (killed(user_secs=0.9, system_secs=0.08), "cpuLimit", "likely"),
    (killed(code=137, user_secs=1.5, system_secs=0.0), "cpuLimit", "likely"),
    (killed(user_secs=0.4, system_secs=0.1), "killed", "unknown"),
    (killed("ulimit -t 100", user_secs=80.0, system_secs=0.1), "killed", "unknown"),
    (killed(started_at=1.0, ended_at=2.0), "cpuLimit", "possible"),
    (killed(started_at=1.0, ended_at=1.4), "killed", "unknown"),
    (killed("ulimit -S -t 1", user_secs=2.0, system_secs=0.0), "killed", "unknown"),
    *((ExitInfo(signal=n), "crash", "certain") for n in (4, 6, 7, 8, 11)),
    *((ExitInfo(code=128 + n), "crash", "likely") for n in (4, 6, 7, 8, 11)),
    (ExitInfo(signal=24), "cpuLimit", "certain"),
    (ExitInfo(code=152), "cpuLimit", "likely"),
    (said(1, "CPU time limit exceeded"), "cpuLimit", "likely"),
    (ExitInfo(signal=25), "fileSizeLimit", "certain"),
    (said(1, "OSError: [Errno 27] File too large"), "fileSizeLimit", "likely"),
    (ExitInfo(signal=1), "hangup", "certain"),
    (ExitInfo(code=129), "exit", "possible"),
    (ExitInfo(signal=2), "interrupted", "certain"),
    (ExitInfo(code=130), "exit", "possible"),
    (ExitInfo(signal=12), "signal", "certain"),
    (ExitInfo(signal=15), "terminated", "unknown"),
    (ExitInfo(code=143, facts=SHELL), "terminated", "unknown"),
    (ExitInfo(code=255), "launcher", "possible"),
    (said(255, "ssh: connect to host n1 port 22: Connection refused"), "launcher", "likely"),
    (said(1, "cp: error writing 'x': No space left on device"), "diskFull", "likely"),
    (said(1, "write: Disk quota exceeded"), "quota", "likely"),
    (said(1, "OSError: [Errno 28] No space left on device"), "diskFull", "likely"),
    (said(1, TRACEBACK), "traceback", "likely"),
    (said(7, TRACEBACK), "traceback", "possible"),
    (said(95, "jobscribe: this module cannot be loaded: nosuch/1.0"), "setupFailed", "likely"),
    (
        said(
            5, "cat: x: No such file or directory\njobscribe: the set-up on the node ended with 5"
        ),
        "setupFailed",
        "likely",
    ),
    (said(2, "usage: solve [-h] MESH"), "usage", "likely"),
    (said(2, "make: *** stop"), "exit", "certain"),
    (ExitInfo(source="lost", detail="gone"), "lost", "unknown"),
    (ExitInfo(source="lost", detail="gone", out_of_memory=True), "outOfMemory", "possible"),
    (ExitInfo(code=0, stop_reason="decided"), "decided", "certain"),
    (ExitInfo(), "exit", "unknown"),
]


@pytest.mark.parametrize(("exit_", "cause", "confidence"), ENDS)
def test_an_end_and_its_cause(exit_: ExitInfo, cause: str, confidence: str) -> None:
    found = classify_exit(exit_)
    assert (found.cause, found.confidence) == (cause, confidence)


def test_each_cause_can_be_reached() -> None:
    reached = {classify_exit(exit_).cause for exit_, _, _ in ENDS} | {
        "killed",
        "outOfMemory",
    }  # test_kill_attribution covers these causes
    reached |= {classify_by_facts(in_slurm(mine)).cause for mine in (True, False)}
    reached |= (
        set(BY_SLURM.values())
        | set(BY_STOP.values())
        | {classify_run("canceled", reason, None).cause for reason in BY_REASON}
    )
    reached |= {
        classify_run("job_run_purged", "exit", ExitInfo(code=0)).cause,
        classify_run("completed", "exit", None).cause,
        classify_run("error", None, None).cause,
    }
    assert set(CAUSES) - reached == {*get_args(QueueState), "running", "missing"} - {
        "dependency"
    }, "those stand in the status of what waits"


def test_every_word_of_status_scheduler_and_stop_is_in_the_table() -> None:
    assert set(get_args(QueueState)) <= set(CAUSES)
    assert set(BY_SLURM) == SCHEDULER_END_STATES and set(BY_STOP) == set(get_args(StopReason))
    # for these causes, the exit has more detail
    assert set(get_args(EndReason)) - set(BY_REASON) == {
        "exit",
        "signal",
        "startFailed",
        "scheduler",
    }
    assert {*BY_REASON.values(), *BY_SLURM.values(), *BY_STOP.values()} <= set(CAUSES)


#: Advice begins with one of these words, or with a condition.
_VERBS = (
    "Ask",
    "Build",
    "Cancel",
    "Check",
    "Compare",
    "Enter",
    "Fetch",
    "Find",
    "Fix",
    "Follow",
    "Give",
    "Have",
    "Leave",
    "List",
    "Load",
    "Look",
    "Make",
    "Raise",
    "Read",
    "Release",
    "Remove",
    "Sign",
    "Submit",
    "Tell",
    "Wait",
    "Write",
    "give",
    "submit",
)
_INTERNAL = re.compile(
    r"_|\bjid\b|ExitInfo|\bop\b|run_dir|supervisor's|None\b|\bladder\b|keeper's|[A-Z]\w+Error"
)


@pytest.mark.parametrize("word", list(CAUSES))
def test_each_cause_tells_a_reader_what_it_means_and_what_to_do(word: str) -> None:
    cause = CAUSES[word]
    assert (
        cause.word == word and cause.whose in WHOSE and re.fullmatch(r"[a-z][A-Za-z_]{2,20}", word)
    )
    assert (
        cause.sentence[0].isupper()
        and cause.sentence.endswith(".")
        and 10 < len(cause.sentence) <= 140
    )
    assert cause.todo, "nothing to try"
    for line in cause.todo:
        assert line.split()[0].rstrip(":;,") in _VERBS, line
        assert len(line) <= 160
    for text in (cause.sentence, *cause.todo, *cause.excludes):
        bare = re.sub(r"'[^']*'|kernel\.core_pattern|LD_LIBRARY_PATH", "", text)
        assert not _INTERNAL.search(bare), text


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 28] No space left on device",
        "Disk quota exceeded",
        "Exec format error",
        TRACEBACK,
        "usage: x",
        "command not found",
        "Broken pipe",
    ],
)
@pytest.mark.parametrize(
    "exit_",
    [
        ExitInfo(code=0),
        ExitInfo(signal=9),
        ExitInfo(signal=11),
        ExitInfo(code=1),
        ExitInfo(code=137),
        ExitInfo(code=0, stop_reason="cancel"),
        ExitInfo(source="lost", detail="gone"),
        ExitInfo(code=3, out_of_memory=True),
    ],
)
def test_output_is_never_more_than_likely_and_changes_no_class(exit_: ExitInfo, line: str) -> None:
    spoke = ExitInfo(
        **{
            name: getattr(exit_, name)
            for name in ("code", "signal", "source", "stop_reason", "detail", "out_of_memory")
        },
        last_lines=line,
    )
    silent, found = classify_exit(exit_), classify_exit(spoke)
    assert found == silent or (
        found.confidence in ("likely", "possible") and silent.cause == "exit"
    )
    of_it, of_silence = diagnose(spoke, Table()), diagnose(exit_, Table())
    assert (of_it and (of_it.code, of_it.type, of_it.behavior)) == (
        of_silence and (of_silence.code, of_silence.type, of_silence.behavior)
    )


def in_slurm(mine: bool | None, state: str = "CANCELLED") -> ExitInfo:
    """Return an exit caused by Slurm. mine: whether the job's user canceled it in Slurm; None:
    unknown.
    """
    said = BatchState(cluster="hpc", job_id="7", state=state)
    return ExitInfo(
        signal=15,
        batch=said,
        facts=ExitFacts() if mine is None else ExitFacts(canceled_by_user=mine),
    )


def every_end() -> Iterator[ExitInfo]:
    """Yield all exits with a cause, and all codes and signals with each known fact about shells."""
    yield from (exit_ for exit_, _, _ in ENDS)
    yield from (
        ExitInfo(signal=n, facts=f)
        for n in range(1, 65)
        for f in (
            ExitFacts(),
            ExitFacts(memory_kills=1),
            ExitFacts(memory_peak_bytes=99, memory_limit_bytes=100),
        )
    )
    yield from (
        ExitInfo(code=n, facts=f)
        for n in range(1, 256)
        for f in (ExitFacts(), SHELL, NO_SHELL, ExitFacts(calls_timeout=True))
    )
    yield from (
        in_slurm(mine, state) for mine in (None, True, False) for state in SCHEDULER_END_STATES
    )
    yield from (ExitInfo(code=0, stop_reason=word) for word in get_args(StopReason))
    yield from (
        ExitInfo(source="start", fault=f, detail=d)
        for f in (None, *FAULTS)
        for d in ("", "Exec format error", "quota", "No space left", "executable file not found")
    )


@pytest.mark.parametrize("table", [Table(), load(None)], ids=["built in", "shipped"])
def test_the_class_and_the_advice_of_each_end_are_those_of_its_cause(table: Table) -> None:
    """Class and cause never contradict each other; a merely possible cause blames nobody and does
    not decide about a retry.
    """
    decided: set[str] = set()
    for exit_ in every_end():
        found, diagnosis = classify_by_facts(exit_), diagnose(exit_, table)
        if diagnosis is None:
            continue
        whose = CAUSES[found.cause].whose
        assert agrees(found, diagnosis), (exit_, found, diagnosis)
        if found.confidence == "possible" and not exit_.out_of_memory:
            assert (diagnosis.type, diagnosis.behavior) == ("unknown", "unknown"), (
                exit_,
                found,
                diagnosis,
            )
        elif whose not in ("unknown", "nobody") and diagnosis.type != "unknown":
            decided.add(found.cause)
        if whose == "user" and diagnosis.type == "user":
            assert diagnosis.behavior != "transient", (exit_, found, diagnosis)
            assert not any(line.startswith("Submit it again.") for line in diagnosis.solutions), (
                exit_,
                found,
                diagnosis,
            )
    assert decided >= {
        "cpuLimit",
        "fileSizeLimit",
        "outOfMemory",
        "commandTimeout",
        "slurmCanceledByOther",
        "slurmCanceledByUser",
        "crash",
        "notFound",
        "quota",
    }


def test_retries_go_by_the_cause() -> None:
    """The kernel killed the run at its CPU limit, so a platform retry would fail again. A kill by
    another sender may be retried.
    """
    of_limit, of_nobody = (
        diagnose(killed(user_secs=0.9, system_secs=0.1), load(None)),
        diagnose(ExitInfo(signal=9), load(None)),
    )
    assert (
        of_limit is not None
        and (of_limit.type, of_limit.behavior) == ("user", "permanent")
        and any("ulimit -t" in line for line in of_limit.solutions)
    )
    assert of_nobody is not None and of_nobody.behavior == "transient"
    by_root = diagnose(in_slurm(mine=False), load(None))
    assert by_root is not None and (by_root.type, by_root.behavior) == ("platform", "permanent")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (134, "134, as from a script whose command was ended by SIGABRT"),
        (139, "139, as from a script whose command was ended by SIGSEGV"),
    ],
)
def test_a_reason_names_the_code_and_the_signal_of_this_exit(code: int, told: str) -> None:
    found = diagnose(ExitInfo(code=code), load(None))
    assert (
        found is not None
        and told in found.reason
        and " or " not in found.reason.partition(" - ")[0]
    )


# ---- lines of output


WARNED = "warning: cache: No space left on device, going on without\n"
STEPS, FINAL = (
    "".join(f"step {n} ok\n" for n in range(1, 6)),
    "Error: input file missing: mesh.inp\n",
)


@pytest.mark.parametrize(
    ("text", "cause", "confidence"),
    [
        (WARNED + STEPS + FINAL, "exit", "certain"),
        (WARNED + "done\n", "exit", "certain"),
        (WARNED, "diskFull", "likely"),
        ("cache: No space left on device\n" + STEPS + FINAL, "exit", "certain"),
        ("cache: No space left on device\nERROR: step 3 failed\n", "diskFull", "possible"),
        (
            "dd: error writing 'x': No space left on device\n9+0 records in\n9+0 records out\n",
            "diskFull",
            "likely",
        ),
        ("cp: x: No space left on device\nmake: *** [all] Error 1\n", "diskFull", "likely"),
        ("cp: x: No space left on device\n" + "step ok\n" * 9, "diskFull", "possible"),
        ("write: Broken pipe\ncp: x: Disk quota exceeded\n", "quota", "likely"),
        ("cp: x: Disk quota exceeded\nwrite: Broken pipe\n", "brokenPipe", "likely"),
    ],
)
def test_the_last_error_counts_and_not_what_the_program_survived(
    text: str, cause: str, confidence: str
) -> None:
    exit_ = ExitInfo(code=1, last_lines=text)
    found, diagnosis = classify_exit(exit_), diagnose(exit_, load(None))
    assert (found.cause, found.confidence) == (cause, confidence)
    assert diagnosis is not None and (cause != "exit" or diagnosis.hint is None), "nor as a hint"


def test_the_newest_exception_is_read_with_its_frames() -> None:
    lines = output_patterns.newest(
        "x\n" + TRACEBACK.replace("negative", "old") + "\n\nDuring handling:\n\n" + TRACEBACK + "\n"
    )
    assert output_patterns.traceback_of(lines) == {
        "last": "ValueError: negative volume",
        "frames": ["solve.py:12 in main", "solve.py:3 in step"],
    }
    cut = TRACEBACK.partition("\n")[2]
    assert output_patterns.traceback_of(output_patterns.newest(cut)) is not None, (
        "its head may be cut off"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ValueError: nothing above it",
        TRACEBACK + "\n" + "goes on\n" * 6,
        'Traceback (most recent call last):\n  File "a", line 1, in b',
    ],
)
def test_what_is_no_exception_at_the_end_is_none(text: str) -> None:
    assert output_patterns.traceback_of(output_patterns.newest(text)) is None


def test_faulthandlers_frames_are_those_of_the_thread_that_it_happened_in() -> None:
    assert output_patterns.faulthandler_of(output_patterns.newest(FAULT)) == [
        "Fatal Python error: Segmentation fault",
        "solve.py:7 in inner",
        "solve.py:9 in <module>",
    ]
    assert output_patterns.faulthandler_of(output_patterns.newest(TRACEBACK)) is None


def test_a_complaint_of_long_ago_is_none() -> None:
    assert (
        classify_exit(
            ExitInfo(code=1, last_lines="No space left on device\n" + "goes on\n" * 20)
        ).cause
        == "exit"
    )


def test_long_lines_and_many_lines_cost_little() -> None:
    lines = output_patterns.newest(("x" * 100_000 + "\n") * 300)
    assert len(lines) == 200 and max(map(len, lines)) == 400


def test_the_page_explains_each_state_reason_and_cause_as_the_program_does() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    page, roles = (
        (docs / name).read_text(encoding="utf-8")
        for name in ("debugging-the-system.md", "roles.md")
    )
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for c in CAUSES.values():
        tried = " ".join(t if t.endswith(".") else t + "." for t in c.todo)
        assert f"| `{c.word}` | {c.sentence} | {tried} |" in rows
    for heading, words in (
        ("state", get_args(Status)),
        ("reason", get_args(EndReason)),
        ("queueState", get_args(QueueState)),
    ):
        _, _, table = page.partition(f"\n| {heading} | ")
        table = table.partition("\n\n")[0]
        assert [w for w in words if f"\n| `{w}` |" not in table] == [], heading
    assert [word for word in get_args(QueueState) if f"`{word}`" not in roles] == []
