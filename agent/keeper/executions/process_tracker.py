"""Which process belongs to which execution.

The keeper is a subreaper: whatever a job leaves behind becomes the keeper's child, or hangs below
one that did. So once the main process of its own child is over, everything that is left of a job is
found below the adopted children. Whose they are is told by cgroup, where jobs have one; else by
environment mark, session, held lock, by a parent that was known, or because only one job can have
made them. What an earlier keeper started was adopted by somebody else; it is looked for in the
whole process table.
"""

from __future__ import annotations

import os
import signal

from ....runtime import processes
from ....runtime.execution.folder import LOCK
from ..loop.log import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ....runtime.processes import Process
    from ..linux.cgroups import Cgroups
    from .state import Execution


#: Looks in a row at children that end as fast as they are buried.
_PASSES = 100
#: Stands for the agent where the name of an execution is expected; no execution can be called so.
AGENT = "/agent"


class ProcessTracker:
    """`adopted`: the keeper's adopted children by pid, each with its start time and the execution's
    name (None: nobody knows).
    """

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self.adopted: dict[int, tuple[int, str | None]] = {}
        #: the agent's pid, and session, for as long as it runs
        self.agent_pid: int | None = None
        #: (pid, ticks) of what may not be signalled
        self._beyond: set[tuple[int, int]] = set()
        #: who was seen below an execution, so that an orphan is known by its lineage: pid ->
        #: (ticks, name)
        self._lineage: dict[int, tuple[int, str]] = {}

    def look(self, known: Collection[int], live: Collection[Execution]) -> None:
        """Meet new adopted children and reap those that are over. known: main processes that are
        children. live: not over.
        """
        for _ in range(_PASSES):
            if not self._look_once(
                known, live
            ):  # what was just buried may have left us children that are not in the list yet
                return

    def _look_once(self, known: Collection[int], live: Collection[Execution]) -> bool:
        """True where one was over and is buried now."""
        buried = False
        there = processes.children()
        for pid in [p for p in self.adopted if p not in there]:
            self._beyond.discard((pid, self.adopted.pop(pid)[0]))
        for pid in there:
            if pid in known or pid == self.agent_pid:
                continue
            if self._reaped(pid):
                buried = True
            elif pid not in self.adopted:
                met = processes.find(pid)
                if met is not None:
                    self.adopted[pid] = (met.ticks, self._owner(met, live))
        return buried

    def _reaped(self, pid: int) -> bool:
        try:
            done = os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            done = True
        if done:
            self.adopted.pop(pid, None)
        return done

    def _owner(self, p: Process, live: Collection[Execution]) -> str | None:
        by_cgroup = self._cgroups.name_of(p.pid)
        if by_cgroup is not None:  # the kernel says so
            return by_cgroup
        by_lineage = self._lineage.get(p.pid)
        if by_lineage is not None and by_lineage[0] == p.ticks:
            return by_lineage[1]
        if p.session == self.agent_pid:
            return AGENT
        for e in live:
            # a session is named by its leader's pid, which cannot be used again while a member is
            # left
            if e.own and p.session == e.pid:
                return e.name
        token = processes.environment(p.pid, b"JOBSCRIBE_TOKEN")[0]
        for e in live:
            if e.own and token == e.token.encode():
                return e.name
        for e in live:
            if e.own and processes.holds(p.pid, f"{e.folder}/{LOCK}"):
                return e.name
        own = [e.name for e in live if e.own]
        return own[0] if len(own) == 1 else None

    def orphans(self, name: str | None) -> list[int]:
        """Adopted children of this execution (None: of nobody known)."""
        return [
            pid
            for pid, (ticks, owner) in self.adopted.items()
            if owner == name and (pid, ticks) not in self._beyond
        ]

    def kill_child(self, pid: int) -> None:
        """SIGKILL an adopted child: it was not waited for, so no other can have its pid."""
        try:
            os.kill(pid, signal.SIGKILL)
        except PermissionError:
            self.check_reach(pid, self.adopted[pid][0])

    def check_reach(self, pid: int, ticks: int) -> None:
        """A process that runs as somebody else now (a set-user-id program) cannot be ended from
        here; say so and let it be.
        """
        try:
            os.kill(pid, 0)
        except PermissionError:
            if processes.alive(pid, ticks) and (pid, ticks) not in self._beyond:
                say(
                    f"process {pid} runs as another user and cannot be killed from here; it is left alone"
                )
                self._beyond.add((pid, ticks))
        except ProcessLookupError:
            return

    def members(self, e: Execution, *, with_unknown: bool) -> list[Process]:
        """Every process of this execution that still runs, its main process included.

        with_unknown: also the adopted ones that belong to nobody, for when it is the last execution
        that can have made them.
        """
        found = processes.table()
        if e.own:
            roots = [e.pid] if e.pid is not None else []
            roots += self.orphans(e.name) + (self.orphans(None) if with_unknown else [])
        else:
            roots = [p.pid for p in _anywhere(e, found)]
        if e.cgroup is not None:
            roots += e.cgroup.pids()
        family = [
            found[pid] for pid in processes.with_descendants(roots, found) if not found[pid].over
        ]
        for p in family:
            self._lineage[p.pid] = (p.ticks, e.name)
        return [p for p in family if p.pid != os.getpid() and (p.pid, p.ticks) not in self._beyond]

    def forget(self, name: str) -> None:
        """The execution is over."""
        self._lineage = {
            pid: (ticks, owner) for pid, (ticks, owner) in self._lineage.items() if owner != name
        }


def _anywhere(e: Execution, found: dict[int, Process]) -> list[Process]:
    """Processes of an execution that an earlier keeper started, wherever they hang now.

    Its session counts only while its main process lives: afterwards the number may have become
    another's.
    """
    out = marked(e, found.values())
    seen = {p.pid for p in out}
    main = found.get(e.pid) if e.pid is not None else None
    main_lives = main is not None and main.ticks == e.ticks and not main.over
    for p in found.values():
        if p.pid in seen or p.over or p.pid == os.getpid():
            continue
        if (main_lives and p.session == e.pid) or processes.holds(p.pid, f"{e.folder}/{LOCK}"):
            out.append(p)
    return out


def marked(e: Execution, candidates: Iterable[Process]) -> list[Process]:
    """Those of the candidates that carry its mark, main process first."""
    out = processes.marked([k + b"=" + v for k, v in e.mark().items()], candidates)
    return sorted(out, key=lambda p: (p.session != p.pid, p.ticks))
