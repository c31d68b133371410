"""Jobs have a lower scheduling priority than keepers and agents, and these may have a lower one than
their supervisor.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jobscribe.agent.keeper.linux import priority, spawn
from jobscribe.agent.keeper.linux.priority import NICE, Priorities
from jobscribe.agent.keeper.linux.spawn import Program, Setting

from ..conftest import Keeper, until

pytestmark = pytest.mark.process


def test_each_process_of_a_job_has_a_lower_priority(keeper: Keeper) -> None:
    # an absolute priority: the keeper may lower the shell before or after
    lower = "setsid /bin/sh -c 'renice -n 15 $$ >/dev/null; exec sleep NAP'"
    keeper.started(f"sleep NAP & setsid sleep NAP & {lower} & wait")
    own = os.getpriority(os.PRIO_PROCESS, 0)  # what the tests, and so the keeper, were started with
    # with the shell, which has the numbers in its arguments
    expected = [*[max(NICE, own)] * 3, max(15, own)]
    until(lambda: sorted(process.nice() for process in keeper.naps()) == expected)
    assert {os.sched_getscheduler(process.pid) for process in keeper.naps()} == {os.SCHED_BATCH}
    assert os.sched_getscheduler(keeper.agent_pid) == os.SCHED_OTHER


@pytest.mark.parametrize("fork", [False, True])
def test_a_job_begins_as_a_batch_process(fork: bool, tmp_path: Path) -> None:
    """Whoever creates it stays an ordinary one."""
    out = tmp_path / "out"
    fd = os.open(out, os.O_WRONLY | os.O_CREAT)
    shell = Program(b"/bin/sh", [b"sh", b"-c", b"cat /proc/self/sched"], dict(os.environb))
    setting = Setting("/", [(fd, 1)], 0o077, 0, 0, [])
    pid = spawn.spawn_in_cgroup(None, (), shell, setting) if fork else spawn.spawn(shell, setting)
    os.close(fd)
    assert os.waitpid(pid, 0)[1] == 0
    (line,) = (line for line in out.read_text().splitlines() if line.startswith("policy"))
    assert int(line.split()[-1]) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_policy_that_an_operator_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getscheduler", lambda pid: os.SCHED_IDLE)
    monkeypatch.setattr(os, "sched_setscheduler", _refuse(AssertionError()))
    with priority.batch_thread():
        pass


def test_a_system_that_refuses_policies_starts_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setscheduler", _refuse(PermissionError()))
    with priority.batch_thread():
        pass


def test_keeper_and_agents_have_the_nice_value_of_the_configuration(
    new_keeper: Callable[..., Keeper],
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    keeper = new_keeper(nice=own + 3)

    def lowered() -> bool:
        pids = keeper.process.pid, keeper.agent_pid
        return all(_priorities(pid) == {own + 3} for pid in pids)

    keeper.send(do="started")
    until(lowered)
    keeper.kill_agent()
    keeper.accept()
    keeper.send(do="started")
    until(lowered)
    keeper.started("exec sleep NAP")
    until(lambda: [p.nice() for p in keeper.naps()] == [max(NICE, own + 3)])


def test_a_keeper_without_a_session_of_its_own_lowers_no_session(kernel: "Kernel") -> None:
    kernel.leaders = {7}
    priorities = Priorities()
    priorities.lower_own(8, 5)
    assert kernel.sessions == [] and kernel.groups == []
    priorities.lower_own(7, 5)
    assert kernel.sessions == [7] and kernel.groups == [7]


def test_a_group_is_lowered_once(kernel: "Kernel") -> None:
    jobs = Priorities()
    lowered = jobs.lower([10, 11, 20], set())
    assert lowered == {1, 2} and kernel.groups == [1, 2] and kernel.sessions == [10, 20]
    assert jobs.lower([21, 30], lowered) == {2, 3} and kernel.groups == [1, 2, 3]
    assert not jobs.waiting()


def test_sessions_that_the_kernel_delays_are_lowered_in_their_order(kernel: "Kernel") -> None:
    jobs = Priorities()
    kernel.accepts = 1
    assert jobs.lower([10, 20, 30], set()) == {1, 2, 3} and kernel.groups == [1, 2, 3]
    assert kernel.sessions == [10]
    kernel.accepts = 0
    jobs.repeat()
    kernel.accepts = 1
    assert jobs.lower([40], set()) == {4}
    assert kernel.sessions == [10] and jobs.waiting(), "the ones before it go first"
    jobs.repeat()
    assert kernel.sessions == [10, 20]
    kernel.accepts = 9
    jobs.repeat()
    assert kernel.sessions == [10, 20, 30, 40] and not jobs.waiting()


def test_a_process_with_a_number_of_an_ended_one_is_left_alone(kernel: "Kernel") -> None:
    jobs = Priorities()
    kernel.accepts = 0
    jobs.lower([10, 20], set())
    kernel.accepts, kernel.moved = 9, {10: 7}
    jobs.repeat()
    assert kernel.sessions == [20] and not jobs.waiting()


class Kernel:
    """Process groups are pids divided by ten, each a session. accepts: changes of sessions that it
    accepts now. moved: pids with another group.
    """

    def __init__(self) -> None:
        self.accepts, self.groups, self.sessions = 99, list[int](), list[int]()
        self.moved: dict[int, int] = {}
        #: leaders of their sessions
        self.leaders = set[int]()

    def getsid(self, pid: int) -> int:
        return pid if pid in self.leaders else 1

    def getpgid(self, pid: int) -> int:
        return self.moved.get(pid, pid // 10)

    def lower_session(self, pid: int, nice: int) -> bool:
        self.accepts -= 1
        if self.accepts >= 0:
            self.sessions.append(pid)
        return self.accepts >= 0


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(os, "setpriority", lambda kind, group, nice: kernel.groups.append(group))
    monkeypatch.setattr(os, "getpriority", lambda kind, group: 0)
    monkeypatch.setattr(os, "getpgid", kernel.getpgid)
    monkeypatch.setattr(os, "getsid", kernel.getsid)
    monkeypatch.setattr(priority, "_lower_session", kernel.lower_session)
    return kernel


def _priorities(pid: int) -> set[int]:
    """Return the nice values of the threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {os.getpriority(os.PRIO_PROCESS, int(thread.name)) for thread in threads}


def _refuse(error: BaseException) -> Callable[..., None]:
    def refuse(*words: object, **more: object) -> None:
        raise error

    return refuse
