"""Assignment of processes to executions.

The keeper is a subreaper: it adopts orphans of its jobs. So when a main process that the keeper
started has ended, all remaining processes of the job are adopted children or their descendants.
Their owner is determined by cgroup, if jobs have one; else by environment mark, session, held lock,
known parent, or because only one job runs. Orphans of an earlier keeper were adopted by another
process; the keeper finds them in the whole process table.
"""

from __future__ import annotations

import os
import signal

from ....runtime import processes
from ....runtime.execution.folder import LOCK_FD, lock_paths
from ..loop.log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ....runtime.processes import Process
    from ..linux.cgroups import Cgroups
    from .state import Execution


#: Limit of successive rounds that reap children.
_PASSES = 100
#: The owner name of the agent's processes; no execution can have this name.
AGENT = "/agent"


class ProcessTracker:
    """Tracks orphans. `adopted`: the keeper's adopted children by pid, each with its start time and
    the name of its execution (None: unknown).
    """

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self.adopted: dict[int, tuple[int, str | None]] = {}
        #: pid (and session) of the agent while it runs
        self.agent_pid: int | None = None
        #: (pid, ticks) of processes that may not be signalled
        self._unkillable: set[tuple[int, int]] = set()
        #: processes seen below an execution, to identify them as orphans: pid -> (ticks, name)
        self._lineage: dict[int, tuple[int, str]] = {}

    def reap_children(self, known: Collection[int], live: Collection[Execution]) -> None:
        """Adopt new children and reap ended ones.

        known: pids of main processes that are children. live: executions that have not ended.
        """
        for _ in range(_PASSES):
            # reaping may have left us children that are not in the list yet
            if not self._reap_once(known, live):
                return

    def _reap_once(self, known: Collection[int], live: Collection[Execution]) -> bool:
        """Return True if a child was reaped."""
        reaped = False
        there = processes.children()
        for pid in [p for p in self.adopted if p not in there]:
            self._unkillable.discard((pid, self.adopted.pop(pid)[0]))
        for pid in there:
            if pid in known or pid == self.agent_pid:
                continue
            if self._reap(pid):
                reaped = True
            elif pid not in self.adopted:
                met = processes.find(pid)
                if met is not None:
                    self.adopted[pid] = (met.ticks, self._owner_of(met, live))
        return reaped

    def _reap(self, pid: int) -> bool:
        try:
            done = os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            done = True
        if done:
            self.adopted.pop(pid, None)
        return done

    def _owner_of(self, p: Process, live: Collection[Execution]) -> str | None:
        by_cgroup = self._cgroups.execution_of(p.pid)
        if by_cgroup is not None:  # certain: the kernel reports it
            return by_cgroup
        by_lineage = self._lineage.get(p.pid)
        if by_lineage is not None and by_lineage[0] == p.ticks:
            return by_lineage[1]
        if p.session == self.agent_pid:
            return AGENT
        for e in live:
            # a session is named by its leader's pid, which is not reused while a member is left
            if e.own and p.session == e.pid:
                return e.name
        token = processes.environment(p.pid, b"JOBSCRIBE_TOKEN")[0]
        for e in live:
            if e.own and token == e.token.encode():
                return e.name
        for e in live:
            if e.own and processes.holds(p.pid, LOCK_FD, lock_paths(e.folder)):
                return e.name
        own = [e.name for e in live if e.own]
        return own[0] if len(own) == 1 else None

    def adopted_of(self, name: str | None) -> list[int]:
        """Return the adopted children of this execution (None: of unknown owner)."""
        return [
            pid
            for pid, (ticks, owner) in self.adopted.items()
            if owner == name and (pid, ticks) not in self._unkillable
        ]

    def kill_adopted(self, pid: int) -> None:
        """Send SIGKILL to an adopted child. It has not been reaped, so its pid is not reused."""
        try:
            os.kill(pid, signal.SIGKILL)
        except PermissionError:
            self.ignore_if_foreign(pid, self.adopted[pid][0])

    def ignore_if_foreign(self, pid: int, ticks: int) -> None:
        """Log and ignore a process that runs as another user (a set-user-id program): the keeper
        cannot kill it.
        """
        try:
            os.kill(pid, 0)
        except PermissionError:
            if processes.alive(pid, ticks) and (pid, ticks) not in self._unkillable:
                log(f"process {pid} runs as another user; the keeper cannot kill it and ignores it")
                self._unkillable.add((pid, ticks))
        except ProcessLookupError:
            return

    def members(self, e: Execution, *, with_unknown: bool) -> list[Process]:
        """Return every live process of this execution, its main process included.

        with_unknown: include adopted children of unknown owner, if this is the last execution that
        can have left them.
        """
        found = processes.table()
        if e.own:
            roots = [e.pid] if e.pid is not None else []
            roots += self.adopted_of(e.name) + (self.adopted_of(None) if with_unknown else [])
        else:
            roots = [p.pid for p in _search_table(e, found)]
        if e.cgroup is not None:
            roots += e.cgroup.pids()
        family = [
            found[pid] for pid in processes.with_descendants(roots, found) if not found[pid].over
        ]
        for p in family:
            self._lineage[p.pid] = (p.ticks, e.name)
        return [
            p for p in family if p.pid != os.getpid() and (p.pid, p.ticks) not in self._unkillable
        ]

    def forget(self, name: str) -> None:
        """Drop the lineage of an ended execution."""
        self._lineage = {
            pid: (ticks, owner) for pid, (ticks, owner) in self._lineage.items() if owner != name
        }


def _search_table(e: Execution, found: dict[int, Process]) -> list[Process]:
    """Return the processes of an execution that an earlier keeper started, from the whole table.

    Its session counts only while its main process lives: afterwards the number may be reused.
    """
    out = with_mark(e, found.values())
    seen = {p.pid for p in out}
    main = found.get(e.pid) if e.pid is not None else None
    main_lives = main is not None and main.ticks == e.ticks and not main.over
    for p in found.values():
        if p.pid in seen or p.over or p.pid == os.getpid():
            continue
        if (main_lives and p.session == e.pid) or processes.holds(
            p.pid, LOCK_FD, lock_paths(e.folder)
        ):
            out.append(p)
    return out


def with_mark(e: Execution, candidates: Iterable[Process]) -> list[Process]:
    """Return the candidates that carry its mark, the main process first."""
    out = processes.marked([k + b"=" + v for k, v in e.environment_mark().items()], candidates)
    return sorted(out, key=lambda p: (p.session != p.pid, p.ticks))
