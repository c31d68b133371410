"""Modules that jobs import: names on several nodes, ranks, and messages of an IDE."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobscribe.agent.breakpoints.environment import STAGED


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(STAGED))
    monkeypatch.setenv("JOBSCRIBE_DEBUG_DIR", str(tmp_path / "debug"))
    import jobscribe_pdb  # type: ignore[import-not-found]

    monkeypatch.setattr(jobscribe_pdb, "_numbers", {})
    found: ModuleType = sys.modules["jobscribe_pdb"]
    return found


def test_processes_of_two_nodes_with_one_pid_have_different_names(
    staged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = staged.Place()
    here.write(line=1)
    monkeypatch.setattr(staged, "_numbers", {})  # as another process sees it
    there = staged.Place()
    there.write(line=2)
    assert (here.name, there.name) == (f"{os.getpid()}-1", f"{os.getpid()}-2")
    here.write(line=3)
    assert here.name == f"{os.getpid()}-1"
    here.close()
    assert {p.name for p in Path(there.folder).iterdir()} == {
        f"{there.name}.json",
        f"{there.name}.taken",
    }
    there.close()
    there.close()
    assert not list(Path(there.folder).iterdir())


def test_a_process_of_a_parallel_program_has_a_rank(staged: Any) -> None:
    ompi = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    assert staged._rank({**ompi, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}) == 3
    assert staged._rank({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}) == 1
    for without in ({}, {"SLURM_PROCID": "0"}, {**ompi, "OMPI_COMM_WORLD_SIZE": "1"}):
        assert staged._rank(without) == -1
    assert staged._rank({**ompi, "OMPI_COMM_WORLD_RANK": "x"}) == -1


def test_messages_of_an_ide_have_a_limit_before_debugpy_collects_them(staged: Any) -> None:
    import jobscribe_dap  # type: ignore[import-not-found]

    def message(size: int) -> bytes:
        return b"Content-Length: %d\r\n\r\n" % size + b"x" * size

    for step in (1, 7, 10_000):
        sizes, data = jobscribe_dap._Sizes(), message(3) + message(0) + message(5000)
        for at in range(0, len(data), step):
            sizes.check(data[at : at + step])
        assert sizes._left == 0 and sizes._head == b""
    for wrong, said in (
        (b"Content-Length: 17000000\r\n\r\n", "17000000 bytes"),
        (b"x" * 5000, "no message"),
        (b"Type: x\r\n\r\n", "no message"),
    ):
        with pytest.raises(ValueError, match=said):
            jobscribe_dap._Sizes().check(wrong)


#: A thread stops first, and its debugger is imported slowly while the program forks.
FORKS = """
import os, sys, threading, time
import jobscribe_debugger
class Slow:
    def find_spec(name, *_):
        if name == "pdb":
            began.set()
            time.sleep(0.3)
began = threading.Event()
sys.meta_path.insert(0, Slow)
thread = threading.Thread(target=jobscribe_debugger.set_trace)
thread.start()
began.wait()
child = os.fork()
if not child:
    jobscribe_debugger.set_trace()
    os._exit(7)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.process
def test_a_child_that_is_forked_during_the_first_stop_of_a_thread_stops_too(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(STAGED),
        "JOBSCRIBE_DEBUG_DIR": str(tmp_path / "debug"),
        "JOBSCRIBE_DEBUG_SECS": "0",
    }
    program = [sys.executable, "-c", FORKS]
    # a child that waits for ever holds the pipe; the group of both is ended then
    with subprocess.Popen(program, env=env, stderr=subprocess.PIPE, process_group=0) as process:
        try:
            _, said = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
    assert process.returncode == 7, said
