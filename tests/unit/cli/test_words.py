"""Formatting of amounts, text cleaning, and plain functions of the demo."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.cli.demo import computations
from jobscribe.cli.terminal import screen
from jobscribe.cli.terminal.quantities import BYTES, SECS, duration, moment
from jobscribe.cli.terminal.screen import REPEAT_SECS, Screen, clean
from jobscribe.client.local_site import child_processes


@pytest.mark.parametrize(
    ("text", "secs"),
    [
        ("30", 30.0),
        ("1.5", 1.5),
        ("10m", 600.0),
        ("2H", 7200.0),
        ("1d", 86400.0),
        ("0", 0.0),
        ("10:00", 600.0),
        ("1-00:00:00", 86400.0),
    ],
)
def test_durations(text: str, secs: float) -> None:
    assert SECS.convert(text, None, None) == secs


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("4096", 4096), ("1k", 1024), ("1.5M", 3 * 2**19), ("2G", 2**31)]
)
def test_sizes(text: str, count: int) -> None:
    assert BYTES.convert(text, None, None) == count


@pytest.mark.parametrize("text", ["", "-1", "1x", "1:5x", "m", "1e3", "inf", "nan", "١"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SECS.convert(text, None, None)


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (0.42, "0.42 s"),
        (12.34, "12.3 s"),
        (200, "3 m 20 s"),
        (7500, "2 h 5 m"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations_for_people(secs: float, text: str) -> None:
    assert duration(secs) == text


def test_moments_are_utc() -> None:
    assert moment(0.0) == "1970-01-01T00:00:00Z"
    assert moment(None) == "-"


@given(st.text())
def test_cleaned_text_moves_no_cursor(text: str) -> None:
    assert all(c == "\n" or (c.isprintable() or ord(c) > 0x9F) for c in clean(text))
    assert len(clean(text)) == len(text)


def test_cleaned_text_keeps_what_people_write() -> None:
    assert clean("Grüße, 世界\tok") == "Grüße, 世界 ok"
    assert clean("\x1b[2J\x9b2J\u202e") == "?[2J?2J?"


def test_a_log_gets_what_is_new_at_once_and_the_same_with_other_seconds_seldom(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said, now = Screen(json=False), 100.0
    monkeypatch.setattr(screen.time, "monotonic", lambda: now)
    for second in range(1, 26):
        now += 1.0
        said.progress(
            f"a1 waits for {duration(float(second))}: the {'agent' if second < 15 else 'slot'}",
            float(second),
        )
    lines = [line.partition(" waits for ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "2.00 s: the agent",
        f"{duration(2 + REPEAT_SECS)}: the agent",
        "15.0 s: the slot",
        f"{duration(15 + REPEAT_SECS)}: the slot",
    ]


@pytest.mark.parametrize(
    ("line", "permille"),
    [
        ("       0  0.065651733   -3.2595015", 0),
        ("    7500   0.1   -3.2", 500),
        ("   15000 0.1", 1000),
        ("99999 -1", 1000),
        ("Step Temp E_pair", None),
        ("302 atoms in group lower", None),
        ("", None),
        ("  12", None),
    ],
)
def test_the_progress_of_lammps_is_read_from_its_output(line: str, permille: int | None) -> None:
    assert computations.lammps().permille(line) == permille


def test_without_lammps_and_without_root_numpy_is_used_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computations, "LAMMPS", "/nowhere/lmp")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(computations.importlib.util, "find_spec", lambda name: object())
    said: list[str] = []
    chosen = computations.choose(said.append, tmp_path)
    assert chosen.result == "temperature.csv"
    assert "using numpy instead" in said[0]


@pytest.mark.process
def test_packages_that_cannot_be_installed_lead_to_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho E: no such package; exit 100\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(computations, "LAMMPS", "/nowhere/lmp")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(computations.importlib.util, "find_spec", lambda name: object())
    said: list[str] = []
    assert computations.choose(said.append, tmp_path).steps == 1000
    assert "apt-get exited with 100: E: no such package" in said[-1]


@pytest.mark.process
def test_neither_of_the_two_is_an_error_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computations, "LAMMPS", "/nowhere/lmp")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(computations.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="neither LAMMPS nor numpy"):
        computations.choose(lambda text: None, tmp_path)


@pytest.mark.process
def test_the_numpy_computation_reports_its_progress_and_leaves_a_result(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    heat = computations.heat(None)
    done = subprocess.run(
        [*heat.command[:-1], "0.3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    known = [p for p in map(heat.permille, done.stdout.splitlines()) if p is not None]
    assert known == sorted(known)
    assert known[-1] == 1000
    assert (tmp_path / "temperature.npy").stat().st_size > 600 * 600 * 8
    head, first, *_ = (tmp_path / heat.result).read_text().splitlines()
    assert (head, first.split(",")[0]) == ("step,mean temperature", "50")


@pytest.mark.process
def test_everything_that_was_started_is_stopped(tmp_path: Path) -> None:
    """Both a child that ignores SIGTERM and an orphan in its own session are stopped."""
    program = f"""
import subprocess, sys, time
from pathlib import Path
from jobscribe.client.local_site import child_processes as descendants
descendants.adopt()
subprocess.Popen(["sh", "-c", "trap '' TERM; echo $$ > {tmp_path}/deaf; while :; do sleep 1; done"])
subprocess.Popen(["sh", "-c", "setsid sh -c 'echo $$ > {tmp_path}/orphan; exec sleep 300' & exit"]).wait()
deadline = time.monotonic() + 20
while not all(Path("{tmp_path}", n).exists() and Path("{tmp_path}", n).read_text().strip() for n in ("deaf", "orphan")):
    assert time.monotonic() < deadline
    time.sleep(0.01)
print(descendants.stop_all(0.5))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) >= 1
    for name in ("deaf", "orphan"):
        pid = int((tmp_path / name).read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert child_processes._PR_SET_CHILD_SUBREAPER == 36
