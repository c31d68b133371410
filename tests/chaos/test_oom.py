"""A real kernel kills for lack of memory: every interface says so, an exit 0 stays an exit 0, and
the slot is free again.

The supervisor and its fork server are moved into a new memory cgroup with a limit; `tail /dev/zero`
keeps all data it reads. tests/unit/agent/keeper/test_oom.py tests the keeper alone.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from supervisor_process import PYTHON_PATH, UID, SupervisorProcess, jid_of, shell, until

from jobscribe.agent.keeper.linux import cgroup_mounts

#: More than all of jobscribe's own processes need together.
LIMIT = 768 << 20
EATS = "tail /dev/zero"


def _place(name: str) -> Path | None:
    """Create a memory cgroup with the limit; return None if that is impossible."""
    own = cgroup_mounts.own_paths()
    for m in cgroup_mounts.mounts():
        controllers = ("memory",) if m.version == 2 else m.controllers
        folder = (
            m.folder(own.get("memory" if m.version == 1 else ""))
            if "memory" in controllers
            else None
        )
        if folder is None or (
            m.version == 2 and "memory" not in Path(folder, "cgroup.subtree_control").read_text()
        ):
            continue
        with contextlib.suppress(OSError):
            Path(folder, name).mkdir()
            Path(
                folder, name, "memory.limit_in_bytes" if m.version == 1 else "memory.max"
            ).write_text(str(LIMIT))
            return Path(folder, name)
    return None


def _emptied(place: Path) -> bool:
    for below in (*sorted((p for p in place.rglob("*") if p.is_dir()), reverse=True), place):
        with contextlib.suppress(OSError):
            below.rmdir()
    return not place.exists()


@pytest.fixture
def small() -> Iterator[Path]:
    place = _place(f"jobscribe-test-{os.getpid()}")
    if place is None:
        pytest.skip(
            "no memory cgroup with a limit can be made here: run the tests as root where cgroups may be written (or under Delegate=yes)"
        )
    yield place
    until(lambda: _emptied(place), "the cgroup is gone")


@pytest.fixture
def site(small: Path, make_site: Callable[..., SupervisorProcess]) -> Iterator[SupervisorProcess]:
    site = make_site(None)
    site.start()
    for pid in (site.pid, *site.titled("template")):
        (small / "cgroup.procs").write_text(str(pid))
    yield site
    assert site.end() == {}, "processes outlived their keeper"


def _cli(site: SupervisorProcess, *arguments: str) -> str:
    done = site.command(*arguments, COLUMNS="200")
    return done.stdout + done.stderr


def test_every_door_says_that_memory_ran_out(site: SupervisorProcess) -> None:
    run = shell(f"echo begins >&2; exec {EATS}")
    said = site.finished(run)
    assert (said["state"], said["reason"], said["exit"]["signal"], said["exit"]["outOfMemory"]) == (
        "error",
        "signal",
        9,
        True,
    )
    assert "memory ran out" in said["error"] and said["exit"]["lastLines"] == "begins"
    why = site.post("job-why", uid=UID, computeJid=jid_of(run))
    assert why["sentence"].endswith(
        "memory ran out, so the kernel killed one of its processes"
    ) and any("memory" in t for t in why["try"])
    assert "memory ran out" in _cli(site, "job", "why", jid_of(run)) and "memory ran out" in _cli(
        site, "job", "status", jid_of(run)
    )
    record = site.root / "supervisor-job" / f"{jid_of(run)}.json"
    until(
        lambda: record.exists() and '"outOfMemory": true' in record.read_text(),
        "its record, which may lag, says so",
    )
    assert site.finished(shell("exit 0"))["exit"]["outOfMemory"] is False


def test_an_exit_0_whose_child_was_killed_by_the_kernel_is_told(site: SupervisorProcess) -> None:
    run = shell(f"{EATS}; exit 0")
    said = site.finished(run)
    assert (said["state"], said["reason"], said["exit"]["code"]) == ("completed", "exit", 0)
    counts = "v1\n" in (log := _agent_log(site)) or "v2\n" in log
    assert said["exit"]["outOfMemory"] is (True if counts else None)
    why = site.post("job-why", uid=UID, computeJid=jid_of(run))["sentence"]
    assert why == "completed with exit code 0" + (
        ", but memory ran out, so the kernel killed one of its processes" if counts else ""
    )


def _agent_log(site: SupervisorProcess) -> str:
    return (site.root / "agent" / str(site.agent_key()) / "agent.log").read_text()


def test_one_that_is_killed_by_somebody_did_not_run_out_of_memory(site: SupervisorProcess) -> None:
    run = shell("kill -KILL $$")
    said = site.finished(run)
    assert (said["exit"]["signal"], said["exit"]["outOfMemory"]) == (9, False)
    why = site.post("job-why", uid=UID, computeJid=jid_of(run))
    assert "out of memory: the kernel killed no process for that" in why["not"]
