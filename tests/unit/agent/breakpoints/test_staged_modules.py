"""Modules that jobs import: names on several nodes, ranks, and messages of an IDE."""

import os
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
