"""A collector of core files that hangs: the keeper kills it, and never waits for it."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.agent.keeper.executions import core_collection
from jobscribe.agent.keeper.executions.core_collection import CoreCollection

PID = 4711


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Replace the collector by one that no signal ends. Return the signals that it got."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(core_collection, "_spawn", lambda path: PID)
    monkeypatch.setattr(core_collection, "_reaped", lambda pid: (False, 0))
    monkeypatch.setattr(os, "killpg", lambda pid, number: found.append((pid, number)))
    monkeypatch.setattr(os, "waitpid", lambda pid, options: pytest.fail("it waits"))
    return found


def execution(tmp_path: Path) -> Any:
    life = SimpleNamespace(stop_reason=None, started_at=1.0)
    return SimpleNamespace(
        name="x",
        token="t",
        core_limit=1,
        folder=str(tmp_path),
        run_dir=str(tmp_path),
        pid=1,
        life=life,
        samples=SimpleNamespace(ids={}),
    )


def test_the_end_of_a_job_does_not_wait_for_a_collector_that_no_signal_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(core_collection, "_LONGEST_SECS", -1.0)
    cores, e = CoreCollection(), execution(tmp_path)
    assert cores.is_pending(e, None)
    (tmp_path / "cores" / ".core.1.part").write_bytes(b"x")
    assert not cores.is_pending(e, None) and killed == [(PID, signal.SIGKILL)]
    assert cores.fields(e) == {"core": {"state": "timeout"}}
    cores.reap()
    assert cores.pids == {PID}, "it is never taken for a process of a job"
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(core_collection, "_reaped", lambda pid: (True, 9))
    cores.reap()
    assert cores.pids == set()


def test_the_collector_of_a_job_that_is_stopped_meanwhile_is_killed(
    tmp_path: Path, killed: list[tuple[int, int]]
) -> None:
    cores, e = CoreCollection(), execution(tmp_path)
    assert cores.is_pending(e, None)
    e.life.stop_reason = "canceled"
    assert not cores.is_pending(e, None) and cores.fields(e) == {}
    assert killed == [(PID, signal.SIGKILL)] and os.listdir(tmp_path) == []
