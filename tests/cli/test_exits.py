"""`job exits` explains exits without a supervisor; `job why` shows what a run's exit means."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def offline(run: Run, tmp_path: Path) -> Run:
    """A command line whose root has no supervisor and never had."""
    return lambda *args: run("--root", str(tmp_path / "none"), *args)


@pytest.mark.parametrize(("code", "first"), [
    ("137", "exit code 137: child killed from outside (4137)"), ("255", "exit code 255: failed (9000)"), ("1", "exit code 1: failed (9000)"),
    ("127", "exit code 127: command not found (4127)"), ("SIGSEGV", "signal 11 (SIGSEGV): segmentation fault (3011)"),
    ("segv", "signal 11 (SIGSEGV): segmentation fault (3011)"), ("-11", "signal 11 (SIGSEGV): segmentation fault (3011)"),
    ("-64", "signal 64 (SIGRTMAX): ended by a signal (3099)"), ("2001", "row 2001: out of memory"), ("5001", "row 5001: GPU out of memory"),
    ("0", "exit code 0: it completed, whatever it printed and whatever happened to its children"),
])
def test_an_exit_code_a_signal_or_a_row_is_explained(offline: Run, code: str, first: str) -> None:
    ended = offline("job", "exits", code)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == first


def test_what_is_told_of_one(offline: Run) -> None:
    out = offline("job", "exits", "137").out
    for text in ("  reason   It exited with 137", "  type     platform: of the platform", "  again    trying again helps", "  try      Submit", "exits -9 "):
        assert text in out
    assert "a hint: it decides nothing" in offline("job", "exits", "5001").out


def test_the_whole_table(offline: Run) -> None:
    lines = offline("job", "exits").out.splitlines()
    assert lines[0].split() == ["CODE", "PHRASE", "TYPE", "BEHAVIOR", "WHEN"]
    assert len(lines) > 40
    assert any(line.split()[0] == "3011" and line.endswith("signal SIGSEGV") for line in lines)
    assert any(line.split()[0] == "5001" and "(hint)" in line for line in lines)
    items = offline("job", "exits", "--json").json()["items"]
    assert len(items) == len(lines) - 1 and items[0]["code"] == 1001


def test_as_json(offline: Run) -> None:
    value = offline("job", "exits", "--json", "-9").json()
    assert (value["schema"], value["exitCode"], value["signal"]) == ("jobscribe.job.exits/1", None, 9)
    assert (value["row"]["code"], value["row"]["behavior"], value["row"]["hint"]) == (3009, "transient", False)
    assert offline("job", "exits", "--json", "0").json()["row"] is None


@pytest.mark.parametrize("code", ["300", "999", "-65", "-0", "7777", "SIGNOPE", "x", "--nosuch", "1.5", "", "²"])
def test_what_is_no_exit_is_wrong_usage(offline: Run, code: str) -> None:
    ended = offline("job", "exits", code)
    assert (ended.code, ended.out) == (2, "")
    assert "exit" in ended.err


def test_a_sites_own_table_is_checked_before_it_is_set(offline: Run, tmp_path: Path) -> None:
    path = tmp_path / "own.yml"
    path.write_text("rows:\n- code: 70001\n  phrase: licence\n  type: resource\n  behavior: conflict\n  when: {codes: [42]}\n  reason: None was free.\n")
    assert offline("job", "exits", "--table", str(path), "42").out.startswith("exit code 42: licence (70001)")
    path.write_text("rows:\n- code: 7\n")
    ended = offline("job", "exits", "--table", str(path))
    assert ended.code == 125
    assert "row 1 (line 2), code: must be" in ended.err and "row 1 (line 2), reason: is missing" in ended.err


def test_why_shows_what_the_exit_means_whose_it_is_and_the_line_that_hints_at_it(run: Run, fake: Any) -> None:
    run("job", "submit", "-q", "--", "x")
    (jid,) = fake.jobs
    assert "means" not in run("job", "why", jid).out
    fake.end(jid, code=3)
    lines = run("job", "why", jid).out.splitlines()
    assert lines[1:5] == [
        "  means    failed (9000) (task worker-1): It said so.", "           of the job; trying again does not help",
        "  hint     perhaps disk full, by this line of its output:", "             two ?[2J",
    ]
    assert "  try      Correct the input." in lines
    assert run("job", "why", "--json", jid).json()["diagnosis"]["matched"] == "two \x1b[2J"
