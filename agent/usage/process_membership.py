"""Assignment of processes to executions, for usage counts. (`keeper.executions.process_tracker`
assigns processes in order to end executions.)

By cgroup, if the execution has one: the kernel reports it. Otherwise: descendants of the main
process; former descendants; and the keeper's adopted children by session, environment mark or held
lock. Only processes of jobs are examined, not the whole machine: agents of many users do this
often. A process that dropped all marks and was never seen below its job is found by cgroup only.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence

from ...runtime import processes
from ...runtime.execution.folder import LOCK_FD, MESSAGE, lock_paths
from ..keeper.linux.cgroups import Cgroup, cgroup_of_process
from . import proc_counters
from .proc_counters import Process

#: Reads of all counters of one execution per sample. With more ends of processes, one of them may
#: be counted twice or not at all.
READS = 10


class Execution:
    """An execution to count. folder: its evidence. pid, ticks: its main process.

    seen, before: its processes by pid in the last sample and in the one before.
    """

    def __init__(self, name: str, token: str, folder: str, pid: int, ticks: int) -> None:
        self.name, self.token, self.folder, self.pid, self.ticks = name, token, folder, pid, ticks
        self.cgroup: Cgroup | None = None
        self.seen: dict[int, Process] = {}
        self.before: dict[int, Process] = {}

    def marks(self) -> list[bytes]:
        """Return the environment entries that its processes inherit; see `Execution.mark` in the
        keeper.
        """
        return [
            b"JOBSCRIBE_TOKEN=" + self.token.encode(),
            b"JOBSCRIBE_TERMINATION_MESSAGE=" + os.fsencode(f"{self.folder}/{MESSAGE}"),
        ]


class ProcessMembership:
    """Finds the processes below one keeper."""

    def __init__(self, keeper_pid: int) -> None:
        self._keeper_pid = keeper_pid
        #: adopted children of the keeper without an owner (pid: ticks), so that each is examined
        #: once
        self._unowned: dict[int, int] = {}
        self._table: dict[int, processes.Process] | None = None

    def update(self, executions: Sequence[Execution]) -> None:
        """Update `seen` of all executions."""
        self._table = None
        keeper = proc_counters.process(self._keeper_pid)
        adopted = [] if keeper is None else self._children(keeper)
        owned = self._owned(adopted, executions)
        for e in executions:
            e.before, e.seen = e.seen, self._members(e, owned.get(e.name, []))

    def _children(self, p: Process) -> list[int]:
        below = proc_counters.children(p)
        return (
            [q.pid for q in self._process_table().values() if q.parent == p.pid]
            if below is None
            else below
        )

    def _process_table(self) -> dict[int, processes.Process]:
        """Return the whole process table: for kernels that do not list children, and for orphans of
        an earlier keeper's executions.
        """
        if self._table is None:
            self._table = processes.table()
        return self._table

    def _members(self, e: Execution, adopted: list[Process]) -> dict[int, Process]:
        found: dict[int, Process] = {p.pid: p for p in adopted}
        for pid, known in e.seen.items():
            p = proc_counters.process(pid)
            if p is not None and p.ticks == known.ticks:
                found[pid] = p
        main = found.get(e.pid) or proc_counters.process(e.pid)
        if main is not None and main.ticks == e.ticks:
            found[e.pid] = main
            # the job moves itself into the cgroup, a moment after its start
            if not main.over and e.cgroup is None:
                e.cgroup = cgroup_of_process(e.pid, e.name)
            if main.parent != self._keeper_pid:  # started by an earlier keeper
                _add(found, (p.pid for p in self._process_table().values() if p.session == e.pid))
        if e.cgroup is not None:
            with contextlib.suppress(OSError):  # it is being removed
                _add(found, e.cgroup.pids())
        todo = list(found.values())
        for p in todo:  # grows while it is walked
            for pid in self._children(p):
                child = None if pid in found else proc_counters.process(pid)
                if child is not None and child.parent == p.pid:
                    found[pid] = child
                    todo.append(child)
        for beyond in (self._keeper_pid, os.getpid()):
            found.pop(beyond, None)
        return _read_consistently(found)

    def _owned(
        self, adopted: list[int], executions: Sequence[Execution]
    ) -> dict[str, list[Process]]:
        """Return new children of the keeper that are no main process, by execution name."""
        known = {pid for e in executions for pid in (e.pid, *e.seen)} | {os.getpid()}
        strangers, self._unowned = self._unowned, {}
        out: dict[str, list[Process]] = {}
        for pid in adopted:
            p = None if pid in known else proc_counters.process(pid)
            if p is None or p.over:
                continue
            owner = None if strangers.get(pid) == p.ticks else _owner(p, executions)
            if owner is None:
                self._unowned[pid] = p.ticks
            else:
                out.setdefault(owner, []).append(p)
        return out


def _owner(p: Process, executions: Sequence[Execution]) -> str | None:
    for e in executions:
        # a session is named by its leader's pid, which is not reused while a member is left
        if p.session == e.pid:
            return e.name
    names = [m.partition(b"=")[0] for m in executions[0].marks()] if executions else []
    carried = [
        n + b"=" + (v or b"")
        for n, v in zip(names, processes.environment(p.pid, *names), strict=True)
    ]
    for e in executions:
        if carried == e.marks() or processes.holds(p.pid, LOCK_FD, lock_paths(e.folder)):
            return e.name
    return None


def _read_consistently(found: dict[int, Process]) -> dict[int, Process]:
    """Read all counters again, each parent before its children: the counts of a child that still
    exists are not among its parent's. If a process ended meanwhile, its parent may or may not have
    its counts, and all are read once more.
    """
    for _ in range(READS):
        again: dict[int, Process] = {}
        # a parent starts before its children
        for known in sorted(found.values(), key=lambda p: (p.ticks, p.pid)):
            p = proc_counters.process(known.pid)
            if p is not None and p.ticks == known.ticks:
                again[p.pid] = p
        ended, found = len(found) - len(again), again
        if not ended:
            break
    return found


def _add(found: dict[int, Process], pids: Iterable[int]) -> None:
    for pid in pids:
        p = None if pid in found else proc_counters.process(pid)
        if p is not None:
            found[pid] = p
