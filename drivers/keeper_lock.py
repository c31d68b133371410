"""Whether a keeper on this machine keeps a given folder. A pid alone does not say so: the folder
may be a copy of the keeper's own.

A keeper holds a lock on a file in its folder as long as it lives, from the first moments on.
"""

import fcntl
import os
import time
from pathlib import Path

LOCK = "keeper.lock"
#: A keeper that began so many seconds ago may not have locked its folder yet.
BEGINNING_SECS = 10.0


def keeps(folder: Path, ticks: int, said: object = None) -> bool:
    """Does the live keeper that started at `ticks` (of /proc/pid/stat) keep this very folder? said:
    the path of its own, where known.
    """
    if said not in (None, str(folder), os.path.realpath(folder)):
        return locked(folder)
    return locked(folder) or _age(ticks) < BEGINNING_SECS


def locked(folder: Path) -> bool:
    """Does a process hold the lock of this folder's keeper?"""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _age(ticks: int) -> float:
    """Seconds since a process began."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
