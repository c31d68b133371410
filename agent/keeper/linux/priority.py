"""The scheduling priority of jobs, below that of the supervisor, agents and keepers of the machine."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: The nice value of jobs: jobs that occupy all processors do not delay the answers of the site.
NICE = 10


def lower_priority(pids: Iterable[int], before: set[int]) -> set[int]:
    """Lower the priority of the process groups of these processes, and return the groups. Groups in
    `before` have been lowered; their new processes inherit it. Never raises OSError.
    """
    lowered = set()
    for pid in pids:
        try:
            group = os.getpgid(pid)
            if group in lowered:
                continue
            # the job may have lowered it further
            if group in before or os.getpriority(os.PRIO_PGRP, group) >= NICE or _lower(group, pid):
                lowered.add(group)
        except OSError:  # it has ended, or runs as another user
            continue
    return lowered


def _lower(group: int, pid: int) -> bool:
    """Return whether the kernel did it."""
    # The kernel may share the processors between sessions first, and between processes of a session
    # afterwards: then the value of the session counts. It accepts ten changes per second.
    try:
        with open(f"/proc/{pid}/autogroup", "wb", buffering=0) as f:
            f.write(str(NICE).encode())
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return False
    os.setpriority(os.PRIO_PGRP, group, NICE)
    return True
