"""Retries of tests that fail while the machine stands still. A test that fails on a running machine
or uses no process fails at once. Only a test with the marker `process` may use one.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import rerun_count

TESTS = Path(__file__).resolve().parent.parent
HEAD = """
import os, signal, sys, time
import scheduling_noise
import pytest

pytestmark = pytest.mark.process
tried = []
if "PYTEST_XDIST_WORKER" not in os.environ:
    scheduling_noise.NoiseMeter.wait_until_it_runs = lambda *_: None  # no test of these but one has to wait for it

def stand_still():
    "Who is late by this is the idle process, as it would be on a machine that stood still."
    floor = scheduling_noise.floor()
    pid = floor.pid
    while not floor.measures():
        time.sleep(0.01)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.6)
    os.kill(pid, signal.SIGCONT)
"""
Tried = Callable[..., str]


@pytest.fixture
def tried(tmp_path: Path) -> Tried:
    """Return a function that runs pytest on a file with the given text and returns its output and
    exit status.
    """
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "integration", "support"):
        (tmp_path / "tests" / name).symlink_to(TESTS / name)
    (tmp_path / "pyproject.toml").write_text((TESTS.parent / "pyproject.toml").read_text())

    def run(text: str, *args: str) -> str:
        file = tmp_path / "tests" / "test_it.py"
        file.write_text(HEAD + text)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "--color=no",
                *args,
                str(file),
            ],
            cwd=tmp_path,
            env=os.environ | {rerun_count.VARIABLE: str(tmp_path / "reruns")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
        )
        return f"{done.stdout}{done.stderr}ended with {done.returncode}"

    return run


def test_what_failed_beside_a_standstill_is_repeated_and_told(tried: Tried, tmp_path: Path) -> None:
    """All workers read the records of one idle process."""
    said = tried(
        f"""
def test_it(worker_id):
    with open("{tmp_path}/idle", "a") as file:
        file.write(f"{{worker_id}} {{scheduling_noise.floor().pid}}\\n")

test_other = test_it

def test_once():
    tried.append(1)
    if len(tried) == 1:
        stand_still()
        assert "too late" == "in time"
""",
        "-n2",
    )
    (counted,) = (tmp_path / "reruns").read_text().splitlines()
    assert counted.startswith("tests/test_it.py::test_once (call): in ")
    assert "3 passed, 1 rerun in" in said and "ended with 0" in said, said
    assert (
        "repeated, because the machine stood still" in said
        and "tests/test_it.py::test_once (call): in " in said
    ), said
    assert (
        "a process that does nothing waited for a processor, at once 0." in said
        and "'too late' == 'in time'" in said
    ), said
    rows = [line.split() for line in (tmp_path / "idle").read_text().splitlines()]
    assert {row[0] for row in rows} == {"gw0", "gw1"} and len({row[1] for row in rows}) == 1, said


#: What a test without the marker `process` must not call.
CALLS = {
    "child": "subprocess.run(['true'])",
    "shell": "os.system('true')",
    "fork": "os.waitpid(os.fork() or os._exit(0), 0)",
    "port": "socket.create_server(('127.0.0.1', 20_001))",
}


def test_what_the_machine_does_not_excuse_has_failed(tried: Tried) -> None:
    """A failure while the machine runs, one in each try, and one of a test that uses no process.
    Such a test may start none and take no port.
    """
    starts = "".join(
        f"""
def test_{name}():
    with contextlib.suppress(Exception):
        {call}
"""
        for name, call in CALLS.items()
    )
    said = tried(
        f"""
import contextlib, socket, subprocess
pytestmark = []

@pytest.mark.process
def test_on_a_machine_that_runs():
    tried.append(1)
    assert tried == "the first time"

def test_was_tried_once(tmp_path):
    assert tried == [1]
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(tmp_path / "s"))

@pytest.mark.process
def test_whenever():
    tried.append(1)
    stand_still()
    assert False, f"try {{len(tried) - 1}}"

def test_without_process():
    stand_still()
    assert False
{starts}"""
    )
    failed = {"on_a_machine_that_runs", "whenever", "without_process", *CALLS}
    assert f"{len(failed)} failed, 1 passed, 2 rerun in" in said and "ended with 1" in said, said
    assert "try 3" in said
    for name in failed:
        assert f"FAILED tests/test_it.py::test_{name} - " in said, (name, said)
    assert said.count("without the marker `process`, this test calls ") >= len(CALLS), said


def test_each_try_has_the_whole_time_and_what_a_file_shares_lives_on(tried: Tried) -> None:
    said = tried("""
@pytest.fixture(scope="module")
def shared():
    made.append(1)
    yield made
    print("the end of the file")
made = []

@pytest.mark.timeout(6)
def test_times_out_once(shared):
    tried.append(1)
    stand_still()
    if len(tried) == 1:
        time.sleep(60)
    time.sleep(2.5)
    assert made == [1]

def test_next(shared):
    assert made == [1]
""")
    assert (
        "2 passed, 1 rerun in" in said and "ended with 0" in said and "Timeout (>6.0s)" in said
    ), said


def test_what_a_repeated_test_left_open_fails_no_other(tried: Tried) -> None:
    said = tried("""
import gc, socket

def test_once():
    tried.append(1)
    if len(tried) == 1:
        left = [socket.socket()]
        left.append(left)
        stand_still()
        assert False

def test_next():
    pass

def test_collects():
    gc.collect()
""")
    assert "3 passed, 1 rerun in" in said and "ended with 0" in said, said


def test_a_standstill_of_the_file_counts_for_what_its_end_says(tried: Tried) -> None:
    said = tried("""
@pytest.fixture(scope="module")
def shared():
    made.append(1)
    yield
    assert len(made) == 2, "a loop was held"
made = []

def test_first(shared):
    stand_still()

def test_last(shared):
    tried.append(1)
""")
    assert (
        "1 rerun in" in said and "ended with 0" in said and "test_last (teardown): in " in said
    ), said


@pytest.mark.parametrize("count", [0, rerun_count.AT_MOST, rerun_count.AT_MOST + 1])
def test_a_whole_run_allows_a_few_repeats(tmp_path: Path, count: int) -> None:
    """`make test` runs several pytest processes, and one program counts for all."""
    file = tmp_path / "reruns"
    env = os.environ | {rerun_count.VARIABLE: str(file)}
    for number in range(count):
        code = f"import rerun_count; rerun_count.add('test {number}\\nfailed')"
        subprocess.run(
            [sys.executable, "-c", code], cwd=TESTS / "support", env=env, check=True, timeout=60
        )
    done = subprocess.run(
        [sys.executable, TESTS / "support" / "rerun_count.py", file],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == (count > rerun_count.AT_MOST), done
    first, *rest = done.stdout.splitlines()
    assert first.startswith(f"{count} repeats") and rest == [
        f"  test {number} failed" for number in range(count)
    ]
