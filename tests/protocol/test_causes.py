"""The closed table of causes: each can be reached, each says what to do, and output is never believed more than it may be."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from jobscribe.protocol import last_words
from jobscribe.protocol.causes import BY_REASON, BY_SLURM, BY_STOP, CAUSES, WHOSE
from jobscribe.protocol.diagnosis import Table, diagnose
from jobscribe.protocol.exits import BY_SCHEDULER, ExitFacts, ExitInfo
from jobscribe.protocol.refining import of_exit, refined
from jobscribe.protocol.status import EndReason, QueueState, Status, StopReason

SHELL, NO_SHELL = ExitFacts(via_shell=True), ExitFacts(via_shell=False)
TRACEBACK = 'Traceback (most recent call last):\n  File "solve.py", line 12, in main\n    step(n)\n  File "solve.py", line 3, in step\nValueError: negative volume'
FAULT = (
    "Fatal Python error: Segmentation fault\n\nThread 0x00007f0000000001 (most recent call first):\n  File \"/usr/lib/q.py\", line 9 in wait\n\n"
    "Current thread 0x00007f0000000000 (most recent call first):\n  File \"solve.py\", line 7 in inner\n  File \"solve.py\", line 9 in <module>\n"
)


def said(code: int, line: str, **fields: Any) -> ExitInfo:
    return ExitInfo(code=code, last_lines=f"begins\n{line}\n", **fields)


ENDS: list[tuple[ExitInfo, str, str]] = [
    (ExitInfo(code=3), "exit", "certain"), (ExitInfo(code=137), "exit", "possible"), (ExitInfo(code=137, facts=NO_SHELL), "exit", "certain"),
    (ExitInfo(code=139, facts=NO_SHELL), "exit", "certain"), (ExitInfo(code=0, out_of_memory=True), "completed", "certain"),
    (ExitInfo(code=127), "notFound", "likely"), (said(127, "sh: 1: solvr: not found"), "notFound", "likely"),
    (said(127, "./a: error while loading shared libraries: libx.so"), "libraryMissing", "likely"),
    (ExitInfo(code=126), "notExecutable", "likely"), (said(126, "sh: 1: ./a: Exec format error"), "wrongArchitecture", "likely"),
    (said(1, "OSError: [Errno 8] Exec format error: './a'"), "wrongArchitecture", "likely"),
    (ExitInfo(source="start", detail="Exec format error: /x/a"), "wrongArchitecture", "certain"),
    (ExitInfo(source="start", detail="the disk is full: No space left on device", fault="diskFull"), "diskFull", "certain"),
    (ExitInfo(source="start", detail="the user's disk quota is used up", fault="diskFull"), "quota", "certain"),
    (ExitInfo(source="start", detail="no such image", fault="imageMissing"), "startFailed", "certain"),
    (ExitInfo(signal=13), "brokenPipe", "certain"), (ExitInfo(code=141), "brokenPipe", "likely"), (ExitInfo(code=141, facts=SHELL), "brokenPipe", "certain"),
    *((ExitInfo(signal=n), "crash", "certain") for n in (4, 6, 7, 8, 11)), *((ExitInfo(code=128 + n), "crash", "likely") for n in (4, 6, 7, 8, 11)),
    (ExitInfo(signal=24), "cpuLimit", "certain"), (ExitInfo(code=152), "cpuLimit", "likely"), (said(1, "CPU time limit exceeded"), "cpuLimit", "likely"),
    (ExitInfo(signal=25), "fileSizeLimit", "certain"), (said(1, "OSError: [Errno 27] File too large"), "fileSizeLimit", "likely"),
    (ExitInfo(signal=1), "hangup", "certain"), (ExitInfo(code=129), "hangup", "likely"), (ExitInfo(signal=2), "interrupted", "certain"),
    (ExitInfo(code=130), "interrupted", "likely"), (ExitInfo(signal=12), "signal", "certain"), (ExitInfo(signal=15), "terminated", "unknown"),
    (ExitInfo(code=143, facts=SHELL), "terminated", "unknown"), (ExitInfo(code=255), "launcher", "possible"),
    (said(255, "ssh: connect to host n1 port 22: Connection refused"), "launcher", "likely"),
    (said(1, "cp: error writing 'x': No space left on device"), "diskFull", "likely"), (said(1, "write: Disk quota exceeded"), "quota", "likely"),
    (said(1, "OSError: [Errno 28] No space left on device"), "diskFull", "likely"), (said(1, TRACEBACK), "traceback", "likely"),
    (said(7, TRACEBACK), "traceback", "possible"), (said(95, "jobscribe: this module cannot be loaded: nosuch/1.0"), "setupFailed", "likely"),
    (said(5, "cat: x: No such file or directory\njobscribe: the set-up on the node ended with 5"), "setupFailed", "likely"), (said(2, "usage: solve [-h] MESH"), "usage", "likely"), (said(2, "make: *** stop"), "exit", "certain"),
    (ExitInfo(source="lost", detail="gone"), "lost", "unknown"), (ExitInfo(source="lost", detail="gone", out_of_memory=True), "outOfMemory", "possible"),
    (ExitInfo(code=0, stop_reason="decided"), "decided", "certain"), (ExitInfo(), "exit", "unknown"),
]


@pytest.mark.parametrize(("exit_", "cause", "confidence"), ENDS)
def test_an_end_and_its_cause(exit_: ExitInfo, cause: str, confidence: str) -> None:
    found = of_exit(exit_)
    assert (found.cause, found.confidence) == (cause, confidence)


def test_each_cause_can_be_reached() -> None:
    reached = {of_exit(exit_).cause for exit_, _, _ in ENDS} | {"killed", "outOfMemory"}  # these by the ladder, see test_ladder
    reached |= set(BY_SLURM.values()) | set(BY_STOP.values()) | {refined("canceled", reason, None).cause for reason in BY_REASON}
    reached |= {refined("job_run_purged", "exit", ExitInfo(code=0)).cause, refined("completed", "exit", None).cause, refined("error", None, None).cause}
    assert set(CAUSES) - reached == {*get_args(QueueState), "running", "missing"} - {"dependency"}, "those stand in the status of what waits"


def test_every_word_of_status_scheduler_and_stop_is_in_the_table() -> None:
    assert set(get_args(QueueState)) <= set(CAUSES)
    assert set(BY_SLURM) == BY_SCHEDULER and set(BY_STOP) == set(get_args(StopReason))
    # of these the exit says more
    assert set(get_args(EndReason)) - set(BY_REASON) == {"exit", "signal", "startFailed", "scheduler"}
    assert {*BY_REASON.values(), *BY_SLURM.values(), *BY_STOP.values()} <= set(CAUSES)


#: A sentence of advice begins with one of these, or says what to do if something is so.
_VERBS = (
    "Ask", "Build", "Cancel", "Check", "Compare", "Enter", "Fetch", "Find", "Follow", "Give", "Have", "Leave", "Load", "Look", "Make", "Mend", "Raise",
    "Read", "Remove", "Sign", "Submit", "Tell", "Wait", "Write", "give", "submit",
)
_INTERNAL = re.compile(r"_|\bjid\b|ExitInfo|\bop\b|run_dir|supervisor's|None\b|\bladder\b|keeper's|[A-Z]\w+Error")


@pytest.mark.parametrize("word", list(CAUSES))
def test_each_cause_tells_a_reader_what_it_means_and_what_to_do(word: str) -> None:
    cause = CAUSES[word]
    assert cause.word == word and cause.whose in WHOSE and re.fullmatch(r"[a-z][A-Za-z_]{2,20}", word)
    assert cause.sentence[0].isupper() and cause.sentence.endswith(".") and 10 < len(cause.sentence) <= 140
    assert cause.todo, "nothing to try"
    for line in cause.todo:
        assert line.split()[0].rstrip(":;,") in _VERBS, line
        assert len(line) <= 160
    for text in (cause.sentence, *cause.todo, *cause.excludes):
        bare = re.sub(r"'[^']*'|kernel\.core_pattern|LD_LIBRARY_PATH", "", text)
        assert not _INTERNAL.search(bare), text


@pytest.mark.parametrize("line", [
    "OSError: [Errno 28] No space left on device", "Disk quota exceeded", "Exec format error", TRACEBACK, "usage: x", "command not found", "Broken pipe",
])
@pytest.mark.parametrize("exit_", [
    ExitInfo(code=0), ExitInfo(signal=9), ExitInfo(signal=11), ExitInfo(code=1), ExitInfo(code=137), ExitInfo(code=0, stop_reason="cancel"),
    ExitInfo(source="lost", detail="gone"), ExitInfo(code=3, out_of_memory=True),
])
def test_output_is_never_more_than_likely_and_changes_no_class(exit_: ExitInfo, line: str) -> None:
    spoke = ExitInfo(**{name: getattr(exit_, name) for name in ("code", "signal", "source", "stop_reason", "detail", "out_of_memory")}, last_lines=line)
    silent, found = of_exit(exit_), of_exit(spoke)
    assert found == silent or (found.confidence in ("likely", "possible") and silent.cause == "exit")
    of_it, of_silence = diagnose(spoke, Table()), diagnose(exit_, Table())
    assert (of_it and (of_it.code, of_it.type, of_it.behavior)) == (of_silence and (of_silence.code, of_silence.type, of_silence.behavior))


# ---- lines of output


def test_the_newest_exception_is_read_with_its_frames() -> None:
    lines = last_words.newest("x\n" + TRACEBACK.replace("negative", "old") + "\n\nDuring handling:\n\n" + TRACEBACK + "\n")
    assert last_words.traceback_of(lines) == {"last": "ValueError: negative volume", "frames": ["solve.py:12 in main", "solve.py:3 in step"]}
    cut = TRACEBACK.partition("\n")[2]
    assert last_words.traceback_of(last_words.newest(cut)) is not None, "its head may be cut off"


@pytest.mark.parametrize("text", ["", "ValueError: nothing above it", TRACEBACK + "\n" + "goes on\n" * 6, 'Traceback (most recent call last):\n  File "a", line 1, in b'])
def test_what_is_no_exception_at_the_end_is_none(text: str) -> None:
    assert last_words.traceback_of(last_words.newest(text)) is None


def test_faulthandlers_frames_are_those_of_the_thread_that_it_happened_in() -> None:
    assert last_words.faulthandler_of(last_words.newest(FAULT)) == [
        "Fatal Python error: Segmentation fault", "solve.py:7 in inner", "solve.py:9 in <module>",
    ]
    assert last_words.faulthandler_of(last_words.newest(TRACEBACK)) is None


def test_a_complaint_of_long_ago_is_none() -> None:
    assert of_exit(ExitInfo(code=1, last_lines="No space left on device\n" + "goes on\n" * 20)).cause == "exit"


def test_long_lines_and_many_lines_cost_little() -> None:
    lines = last_words.newest(("x" * 100_000 + "\n") * 300)
    assert len(lines) == 200 and max(map(len, lines)) == 400


def test_the_page_explains_each_state_reason_and_cause_as_the_program_does() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    page, roles = ((docs / name).read_text(encoding="utf-8") for name in ("debugging-the-system.md", "roles.md"))
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for c in CAUSES.values():
        tried = " ".join(t if t.endswith(".") else t + "." for t in c.todo)
        assert f"| `{c.word}` | {c.sentence} | {tried} |" in rows
    for heading, words in (("state", get_args(Status)), ("reason", get_args(EndReason)), ("queueState", get_args(QueueState))):
        _, _, table = page.partition(f"\n| {heading} | ")
        table = table.partition("\n\n")[0]
        assert [w for w in words if f"\n| `{w}` |" not in table] == [], heading
    assert [word for word in get_args(QueueState) if f"`{word}`" not in roles] == []
