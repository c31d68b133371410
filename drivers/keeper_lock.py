"""Check whether a keeper on this machine owns a given folder. A pid is not enough, because the
folder may be a copy of the keeper's folder.

A keeper holds a lock on a file in its folder from soon after its start until its end.
"""

import fcntl
import os
import time
from pathlib import Path

LOCK = "keeper.lock"
#: A keeper younger than this may not have locked its folder yet (seconds).
BEGINNING_SECS = 10.0


def owns(folder: Path, ticks: int, recorded: object = None) -> bool:
    """Return whether the live keeper that started at `ticks` (from /proc/pid/stat) owns this
    folder. recorded: the keeper's recorded folder path, if known.
    """
    if recorded not in (None, str(folder), os.path.realpath(folder)):
        return locked(folder)
    return locked(folder) or _age_secs(ticks) < BEGINNING_SECS


def locked(folder: Path) -> bool:
    """Return whether a process holds the lock of this folder's keeper."""
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


def _age_secs(ticks: int) -> float:
    """Return seconds since the process started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
