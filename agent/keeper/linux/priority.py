"""The scheduling of keepers, agents and jobs, behind their supervisor on the same machine.

A job begins as a batch process (SCHED_BATCH): when it wakes up, it does not interrupt what runs.
Soon after its start, its nice value is raised. Keeper and agent get the nice value of their
configuration, which is between that of the supervisor and that of jobs.
"""

from __future__ import annotations

import contextlib
import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The nice value of jobs: jobs that occupy all processors do not delay the answers of the site.
NICE = 10
#: The kernel accepts a change of a session's nice value by an ordinary user after this time
#: (seconds).
REPEAT_SECS = 0.1
#: Sessions that wait for their change, at most.
_MOST = 1000


@contextlib.contextmanager
def batch_thread() -> Iterator[None]:
    """Run this thread as a batch process meanwhile, so that a process that it creates begins as
    one. Without effect where the kernel or a policy of its own does not allow it.
    """
    changed = begin_batch()
    try:
        yield
    finally:
        if changed:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def begin_batch() -> bool:
    """Make this thread a batch process. Return whether it was an ordinary one before."""
    try:
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return False
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # a filter of system calls
        return False
    return True


class Priorities:
    """Lowers the priority of process groups: of jobs, of the keeper and of its agents.

    The kernel may share the processors between sessions first, and between processes of a session
    afterwards: then the value of the session counts. It accepts ten changes per second from ordinary
    users, so the sessions of jobs that start together wait for their turn.
    """

    def __init__(self) -> None:
        #: process group -> a process of it whose session waits, and the nice value, oldest first
        self._waiting: dict[int, tuple[int, int]] = {}

    def lower(self, pids: Iterable[int], before: set[int]) -> set[int]:
        """Lower the priority of the process groups of these processes, and return the groups.
        Groups in `before` have been lowered; their new processes inherit it. Never raises OSError.
        """
        lowered = set()
        for pid in pids:
            try:
                group = os.getpgid(pid)
                if group in lowered:
                    continue
                # the job may have lowered it further
                if (
                    group in before
                    or os.getpriority(os.PRIO_PGRP, group) >= NICE
                    or self._lower(group, pid)
                ):
                    lowered.add(group)
            except OSError:  # it has ended, or runs as another user
                continue
        return lowered

    def lower_own(self, pid: int, nice: int) -> None:
        """Lower the priority of this keeper or of one of its agents. Never raises OSError."""
        with contextlib.suppress(OSError):
            # a session may also have other processes: of a terminal, or of whoever began it
            if os.getsid(pid) == pid and os.getpriority(os.PRIO_PGRP, pid) <= nice:
                self._lower(pid, pid, nice)

    def waiting(self) -> bool:
        """Return whether `repeat` is due after REPEAT_SECS."""
        return bool(self._waiting)

    def repeat(self) -> None:
        """Lower the priority of waiting sessions, as far as the kernel accepts it now."""
        for group, (pid, nice) in list(self._waiting.items()):
            # another process may have the number by now
            if _is_in(pid, group) and not _lower_session(pid, nice):
                return
            del self._waiting[group]

    def _lower(self, group: int, pid: int, nice: int = NICE) -> bool:
        """Return whether it is done, or will be."""
        if len(self._waiting) >= _MOST:
            return False
        # one that waits goes first
        if self._waiting or not _lower_session(pid, nice):
            self._waiting[group] = pid, nice
        os.setpriority(os.PRIO_PGRP, group, nice)
        return True


def _is_in(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except OSError:
        return False


def _lower_session(pid: int, nice: int) -> bool:
    """Return False if the kernel accepts the change later."""
    try:
        with open(f"/proc/{pid}/autogroup", "wb", buffering=0) as f:
            f.write(str(nice).encode())
    except OSError as error:
        # other errors last: the files of keepers and agents that are not root belong to root
        return error.errno != errno.EAGAIN
    return True
