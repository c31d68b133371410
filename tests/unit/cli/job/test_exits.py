"""`job exits` explains exits without a supervisor; `job why` shows what a run's exit means."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.job import why
from jobscribe.service.site import exit_table_file

Run = Callable[..., Any]


_load = exit_table_file.load
_shipped = functools.cache(lambda: _load(None))


@pytest.fixture
def offline(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line whose root never had a supervisor. The shipped table is read once for all
    tests.
    """
    monkeypatch.setattr(
        exit_table_file, "load", lambda also: _shipped() if also is None else _load(also)
    )
    return lambda *args: run("--root", str(tmp_path / "none"), *args)


@pytest.mark.parametrize(
    ("code", "first"),
    [
        ("137", "exit code 137: perhaps a signal (4128)"),
        ("124", "exit code 124: perhaps stopped by timeout (4125)"),
        ("255", "exit code 255: failed (9000)"),
        ("1", "exit code 1: failed (9000)"),
        ("127", "exit code 127: command not found (4127)"),
        ("SIGSEGV", "signal 11 (SIGSEGV): segmentation fault (3011)"),
        ("segv", "signal 11 (SIGSEGV): segmentation fault (3011)"),
        ("-11", "signal 11 (SIGSEGV): segmentation fault (3011)"),
        ("-64", "signal 64 (SIGRTMAX): ended by a signal (3099)"),
        ("2001", "row 2001: out of memory"),
        ("5001", "row 5001: GPU out of memory"),
        (
            "0",
            "exit code 0: completed, regardless of its output and of its child processes",
        ),
    ],
)
def test_an_exit_code_a_signal_or_a_row_is_explained(offline: Run, code: str, first: str) -> None:
    ended = offline("job", "exits", code)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == first


def test_what_is_told_of_one(offline: Run) -> None:
    out = offline("job", "exits", "137").out
    for text in (
        "  reason   Exit code 137. A shell returns it if SIGKILL",
        "  type     unknown: responsible side",
        "  try      Read the last",
        "explain-exit -9 ",
        "  may be   SIGKILL: lack of memory",
    ):
        assert text in out
    out = offline("job", "exits", "-9").out
    assert "  type     if so: platform: " in out and "  again    if so: a retry helps" in out, (
        "who sent it is not known"
    )
    assert (
        "explain-exit -9   (signal 9, SIGKILL, if you mean the signal)"
        in offline("explain-exit", "9").out
    )
    assert (
        "134 or 139, as from a script whose command was ended by SIGABRT or SIGSEGV"
        in offline("job", "exits", "4139").out
    )
    assert (
        "139, as from a script whose command was ended by SIGSEGV"
        in offline("job", "exits", "139").out
    )
    assert "a hint: it has no effect" in offline("job", "exits", "5001").out


@pytest.mark.parametrize("code", ["137", "SIGSEGV", "-11", "2001", "5001", "0", "255"])
def test_both_commands_explain_alike(offline: Run, code: str) -> None:
    assert offline("explain-exit", code).out == offline("job", "exits", code).out
    assert (
        offline("explain-exit", "--json", code).json()
        == offline("job", "exits", "--json", code).json()
    )


@pytest.mark.parametrize(
    ("code", "first", "cause"),
    [
        (
            "0:9",
            "signal 9 (SIGKILL): killed from outside (3009)",
            "killed (unknown, from this alone)",
        ),
        ("1:0", "exit code 1: failed (9000)", "exit (certain"),
        ("0:0", "exit code 0: completed", ""),
        ("127:0", "exit code 127: command not found (4127)", "notFound (likely"),
        ("-9", "signal 9 (SIGKILL)", "killed"),
        ("139", "exit code 139: child crashed (4139)", "crash (likely"),
        ("141", "exit code 141: ", "exit (possible"),
        ("0:125", "Slurm state OUT_OF_MEMORY: out of memory (2001)", "outOfMemory (certain"),
        (
            "OUT_OF_MEMORY",
            "Slurm state OUT_OF_MEMORY: out of memory (2001)",
            "outOfMemory (certain",
        ),
        ("timeout", "Slurm state TIMEOUT: time limit reached (1002)", "timeLimit (certain"),
        ("NODE_FAIL", "Slurm state NODE_FAIL: node failed (2041)", "nodeFail (certain"),
        ("255", "exit code 255: ", "launcher (possible"),
    ],
)
def test_slurms_two_numbers_and_the_cause_that_a_code_alone_is(
    offline: Run, code: str, first: str, cause: str
) -> None:
    ended = offline("explain-exit", code)
    assert (ended.code, ended.err) == (0, "") and ended.out.startswith(first)
    assert f"  cause    {cause}" in ended.out if cause else "cause" not in ended.out
    assert ("  find out jobscribe job why JOB" in ended.out) is (not code.startswith("0:0"))


def test_a_cause_is_explained_by_its_word(offline: Run) -> None:
    out = offline("explain-exit", "outofmemory").out
    assert (
        out.splitlines()[0]
        == "outOfMemory: Memory ran out, and the kernel killed a process of the job."
    )
    for text in (
        "  whose    caused by the job",
        "  not      canceled by anyone",
        "           a time limit",
        "  try      give it more memory",
    ):
        assert text in out
    value = offline("explain-exit", "--json", "host_down").json()["cause"]
    assert (
        (value["word"], value["whose"]) == ("host_down", "platform")
        and value["try"]
        and "fault of the job" in value["not"][0]
    )


def test_the_whole_table(offline: Run) -> None:
    lines = offline("job", "exits").out.splitlines()
    assert lines[0].split() == ["CODE", "PHRASE", "TYPE", "BEHAVIOR", "WHEN"]
    assert len(lines) > 40
    assert any(line.split()[0] == "3011" and line.endswith("signal SIGSEGV") for line in lines)
    assert any(line.split()[0] == "5001" and "(hint)" in line for line in lines)
    value = offline("job", "exits", "--json").json()
    assert {"outOfMemory", "killed", "slurm"} <= {c["word"] for c in value["causes"]}
    items = value["items"]
    assert len(items) == len(lines) - 1 and items[0]["code"] == 1001


def test_as_json(offline: Run) -> None:
    value = offline("job", "exits", "--json", "-9").json()
    assert (value["schema"], value["exitCode"], value["signal"]) == (
        "jobscribe.job.exits/1",
        None,
        9,
    )
    assert (value["row"]["code"], value["row"]["behavior"], value["row"]["hint"]) == (
        3009,
        "transient",
        False,
    )
    assert offline("job", "exits", "--json", "0").json()["row"] is None


@pytest.mark.parametrize(
    "code",
    [
        "300",
        "999",
        "-65",
        "-0",
        "7777",
        "SIGNOPE",
        "x",
        "--nosuch",
        "1.5",
        "",
        "²",
        "0:65",
        "256:0",
        "1:2:3",
        "a:9",
        ":",
        "exit:",
    ],
)
def test_what_is_no_exit_is_wrong_usage(offline: Run, code: str) -> None:
    ended = offline("job", "exits", code)
    assert (ended.code, ended.out) == (2, "")
    assert "exit" in ended.err


def test_a_sites_own_table_is_checked_before_it_is_set(offline: Run, tmp_path: Path) -> None:
    path = tmp_path / "own.yml"
    path.write_text(
        "rows:\n- code: 70001\n  phrase: licence\n  type: resource\n  behavior: conflict\n  when: {codes: [42]}\n  reason: None was free.\n"
    )
    assert offline("job", "exits", "--table", str(path), "42").out.startswith(
        "exit code 42: licence (70001)"
    )
    path.write_text("rows:\n- code: 7\n")
    ended = offline("job", "exits", "--table", str(path))
    assert ended.code == 125
    assert (
        "own.yml:2: rows[0].code: it is 7; right: a whole number" in ended.err
        and "own.yml:2: rows[0].reason: it is missing" in ended.err
    )


def test_why_shows_what_the_exit_means_whose_it_is_and_the_line_that_hints_at_it(
    run: Run, fake: Any
) -> None:
    run("job", "submit", "-q", "--", "x")
    (jid,) = fake.jobs
    assert "means" not in run("job", "why", jid).out
    fake.end(jid, code=3)
    lines = run("job", "why", jid).out.splitlines()
    assert lines[1:5] == [
        "  means    failed (9000) (task worker-1): It said so.",
        "           of the job; trying again does not help",
        "  hint     perhaps disk full, from this line of its output:",
        "             two ?[2J",
    ]
    assert "  try      Correct the input." in lines
    assert run("job", "why", "--json", jid).json()["diagnosis"]["matched"] == "two \x1b[2J"


@pytest.mark.parametrize(
    ("changes", "head"),
    [
        ({"cause": "outOfMemory", "confidence": "likely"}, "error (outOfMemory, likely): failed"),
        (
            {"cause": "killed", "confidence": "unknown"},
            "error (killed, actor unknown): failed",
        ),
        ({"cause": "lost", "confidence": "unknown"}, "error (lost): failed"),
        ({"attempt": 3}, "attempt 3 error (exit): failed"),
        ({"cause": "error"}, "error: failed"),
    ],
)
def test_the_first_line_has_the_cause_and_how_sure_it_is(
    run: Run, fake: Any, changes: dict[str, Any], head: str
) -> None:
    run("job", "submit", "-q", "--", "x")
    (jid,) = fake.jobs
    fake.end(jid, code=3)
    fake.why = changes
    assert run("job", "why", jid).out.splitlines()[0].startswith(f"job {jid} {head}")


def test_an_exception_is_told_with_where_it_came_from_and_what_a_fault_handler_saw(
    run: Run, fake: Any
) -> None:
    run("job", "submit", "-q", "--", "x")
    (jid,) = fake.jobs
    fake.end(jid, code=3)
    fake.why = {
        "traceback": {"last": "ValueError: x\x1b[2J", "frames": ["a.py:3 in f", "b.py:1 in g"]}
    }
    out = run("job", "why", jid).out
    assert (
        "  python   ValueError: x ?[2J\n             b.py:1 in g\n             a.py:3 in f\n"
        in out.replace("x?", "x ?")
        and "\x1b" not in out
    )
    fake.why = {"faulthandler": ["Fatal Python error: Aborted", "a.py:3 in f"]}
    assert (
        "  python   Fatal Python error: Aborted\n             a.py:3 in f\n"
        in run("job", "why", jid).out
    )


def test_a_cause_that_is_written_nearly_right_is_named(run: Any) -> None:
    ended = run("explain-exit", "outofmemoryy")
    assert ended.code == 2 and "near it: outOfMemory" in ended.err
    assert "near it" not in run("explain-exit", "qqqqqq").err


@pytest.mark.parametrize(
    ("confidence", "sure"),
    [("certain", True), ("likely", True), ("possible", False), ("unknown", False)],
)
def test_whose_it_is_is_no_more_sure_than_what_it_was(confidence: str, sure: bool) -> None:
    told = list(
        why.lines(
            "j",
            {
                "state": "error",
                "cause": "killed",
                "confidence": confidence,
                "sentence": "s",
                "diagnosis": {
                    "code": 1,
                    "phrase": "p",
                    "reason": "r",
                    "type": "platform",
                    "behavior": "transient",
                    "whose": "of the platform",
                    "again": "helps",
                },
            },
        )
    )
    assert any("if so: of the platform; helps" in line for line in told) is not sure
