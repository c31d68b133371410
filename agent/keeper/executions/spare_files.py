"""Empty output files of ended executions, which become files of the next ones: to rename a file costs
less than to create one on some file systems, and an execution without output keeps no file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat

#: Limit of spare files.
_MOST = 64


class SpareFiles:
    """Empty files in a folder of its own. Only the keeper that holds the lock may use it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._paths: list[str] = []
        self._count = 0

    def open(self) -> None:
        """Remove the files that an earlier keeper left: another process may have opened one since.
        Raises OSError.
        """
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for name in os.listdir(self._folder):
            os.unlink(f"{self._folder}/{name}")

    def take(self, path: str) -> None:
        """Give a spare file this name, which does not exist, if there is one."""
        if self._paths:
            with contextlib.suppress(OSError):  # it was removed: the caller creates a file
                os.rename(self._paths.pop(), path)

    def give(self, path: str) -> None:
        """Make a file spare. Nothing changes if it is not empty, or if any other process has it
        open: that process could still write to it, or read what the next execution writes.
        """
        if len(self._paths) >= _MOST:
            return
        with contextlib.suppress(OSError):  # it stays where it is
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _is_ours(fd):
                    self._move(fd, path)
            finally:
                os.close(fd)

    def _move(self, fd: int, path: str) -> None:
        self._count += 1
        spare = f"{self._folder}/{self._count}"
        os.rename(path, spare)
        # another process may have begun to open it before the rename
        if fcntl.fcntl(fd, fcntl.F_GETLEASE) == fcntl.F_WRLCK:
            self._paths.append(spare)
        else:
            os.rename(spare, path)


def _is_ours(fd: int) -> bool:
    """Return whether this is an empty file, as it was created, that no other process has open. Until
    it is closed, others wait when they open it. Raises OSError if another process has it open, or if
    the file system cannot tell.
    """
    status = os.fstat(fd)
    if status.st_mode != stat.S_IFREG | 0o600 or status.st_size or status.st_nlink != 1:
        return False
    # the signal tells that another process waits; it is ignored by default
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return True
