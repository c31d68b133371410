"""The thread that spawns inside cgroups of version 1, with folders that only look like cgroups, and
with real ones.
"""

import os
import signal
from pathlib import Path

import pytest

from jobscribe.agent.keeper.linux.cgroups import V1, Cgroups
from jobscribe.agent.keeper.linux.spawn import Program, Setting
from jobscribe.agent.keeper.linux.spawning_thread import SpawningThread
from jobscribe.runtime import processes

pytestmark = pytest.mark.process

SHOWS_ITS_CGROUPS = Program(b"/bin/cat", [b"cat", b"/proc/self/cgroup"], {})


def setting(output: int) -> Setting:
    return Setting("/", [(output, 1)], 0o077, 0, 0, [])


def entry(folder: Path, name: str) -> str:
    (folder / name).mkdir()
    (folder / name / "tasks").write_text("")
    return f"{folder}/{name}/tasks"


def threads() -> list[str]:
    return os.listdir("/proc/self/task")


@pytest.fixture
def v1(tmp_path: Path) -> Cgroups:
    cgroups = Cgroups(str(tmp_path), V1)
    if cgroups.own_entries is None:
        pytest.skip(f"no cgroup of version 1 can be made here: {cgroups.state}")
    return cgroups


def test_a_process_begins_inside_and_the_thread_is_back_at_once(
    v1: Cgroups, tmp_path: Path
) -> None:
    thread = SpawningThread(v1.own_entries or [])
    own = Path("/proc/self/cgroup").read_text()
    cgroup = v1.make("begins")
    assert cgroup is not None
    try:
        with (tmp_path / "out").open("wb") as out:
            pid = thread.spawn(cgroup.entries(), SHOWS_ITS_CGROUPS, setting(out.fileno()))
        assert os.getpid() not in cgroup.pids()
        os.waitpid(pid, 0)
        assert all(Path(f"/proc/self/task/{t}/cgroup").read_text() == own for t in threads())
    finally:
        assert cgroup.remove()
        v1.close()
    inside = [line for line in (tmp_path / "out").read_text().splitlines() if "job-begins" in line]
    assert len(inside) == len(cgroup.entries())


def test_an_error_of_the_spawn_reaches_the_caller_and_the_next_one_works(tmp_path: Path) -> None:
    thread = SpawningThread([entry(tmp_path, "own")])
    job = entry(tmp_path, "job")
    with pytest.raises(FileNotFoundError):
        thread.spawn([job], Program(b"/no/such/program", [b"x"], {}), setting(1))
    pid = thread.spawn([job], Program(b"/bin/true", [b"true"], {}), setting(1))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_cgroup_that_is_gone_does_not_keep_the_job_from_starting(tmp_path: Path) -> None:
    thread = SpawningThread([entry(tmp_path, "own")])
    pid = thread.spawn([f"{tmp_path}/gone/tasks"], Program(b"/bin/true", [b"true"], {}), setting(1))
    os.waitpid(pid, 0)


def test_a_thread_that_cannot_leave_ends_before_the_job_is_known(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    thread = SpawningThread([f"/proc/self/fd/{writer}"])
    before = set(threads())
    job = entry(tmp_path, "job")
    for _ in range(2):
        pid = thread.spawn([job], Program(b"/bin/true", [b"true"], {}), setting(1))
        assert set(threads()) <= before
        os.waitpid(pid, 0)


def test_children_of_the_thread_are_children_of_the_process(tmp_path: Path) -> None:
    thread = SpawningThread([entry(tmp_path, "own")])
    sleep = Program(b"/bin/sleep", [b"sleep", b"60"], {})
    pid = thread.spawn([entry(tmp_path, "job")], sleep, setting(1))
    try:
        assert pid in processes.children()
        assert pid in processes.children(os.getpid())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_cgroup_that_no_thread_can_return_to_is_found_before_any_start(tmp_path: Path) -> None:
    own, opened = entry(tmp_path, "own"), len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        SpawningThread([own, f"{tmp_path}/gone/tasks"])
    assert len(os.listdir("/proc/self/fd")) == opened
