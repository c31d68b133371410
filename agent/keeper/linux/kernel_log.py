"""Reads the kernel's log beside everything else, so that nobody has to wait for it when a job ends.

It stays open while the keeper lives, and what is new in it is read a little at a time; only lines
that tell of some process's end are remembered. Many sites let nobody but root read it: then that is
said in every end where it would have been of use.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque

from ....runtime import processes
from . import kernel_log_parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

PATH = "/dev/kmsg"
#: What /dev/kmsg is, and nothing that a container puts in its place.
_DEVICE = os.makedev(1, 11)
#: A record has no more bytes. So many lines are remembered.
_RECORD_BYTES, _KEPT = 8192, 500
#: Seconds for what is read beside the rest, at first, and at an end; and how long a line may come
#: after the death that it tells of.
BESIDE_SECS, AT_FIRST_SECS, AT_END_SECS, _LATE_SECS = 0.003, 0.03, 0.012, 0.004

FORBIDDEN = "not permitted to read the kernel log"
ABSENT = "there is no kernel log to be seen here"
TOO_LONG = "the kernel log is too long to be read in time"


class KernelLogReader:
    """unread: why it cannot be read; None where it can."""

    def __init__(self, path: str = PATH, device: int = _DEVICE) -> None:
        self._fd = -1
        self.unread: str | None = None
        self._records: deque[kernel_log_parser.Record] = deque(maxlen=_KEPT)
        #: do its numbers of processes mean here what they mean to the kernel?
        self._same_pids = processes.in_first_namespace()
        try:
            self._fd = _opened(path, device)
        except OSError as error:
            self.unread = _sentence(error)

    def skip(self) -> None:
        """What was logged until now is of nobody's interest. Never raises."""
        if self._fd >= 0:
            try:
                os.lseek(self._fd, 0, os.SEEK_END)
            except OSError as error:
                self._lose(error)

    def read(self, secs: float = BESIDE_SECS) -> bool:
        """Take in what is new, for so long at most; False where more is left, or it cannot be read.
        Never raises.
        """
        until = time.monotonic() + secs
        while self._fd >= 0:
            try:
                found = kernel_log_parser.record(os.read(self._fd, _RECORD_BYTES))
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno not in (
                    errno.EPIPE,
                    errno.EINTR,
                    errno.EINVAL,
                ):  # overrun: it goes on with what is left
                    self._lose(error)
                found = None
            if found is not None:
                self._records.append(found)
            if time.monotonic() >= until:
                return False
        return False

    def about(
        self, pids: Collection[int], cgroup: str | None, since: float, *, expected: bool
    ) -> tuple[tuple[str, ...], str | None]:
        """(lines, why there may be more that was not read) of one that began at this moment and is
        over now. Never raises.

        expected: the kernel is known to have killed a process of it, so there is a line, if not
        yet.
        """
        complete = self.read(AT_END_SECS)
        lines = self._lines(pids, cgroup, since)
        if expected and not lines and complete:
            time.sleep(_LATE_SECS)  # it writes after it has killed
            complete = self.read(BESIDE_SECS)
            lines = self._lines(pids, cgroup, since)
        return lines, None if complete else self.unread or TOO_LONG

    def _lines(self, pids: Collection[int], cgroup: str | None, since: float) -> tuple[str, ...]:
        return kernel_log_parser.about(
            self._records, pids if self._same_pids else (), cgroup, since, time.monotonic()
        )

    def _lose(self, error: OSError) -> None:
        os.close(self._fd)
        self._fd, self.unread = -1, _sentence(error)


def _opened(path: str, device: int) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY)
    found = os.fstat(fd)
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != device:
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return fd


def _sentence(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return FORBIDDEN
    if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV):
        return ABSENT
    return f"the kernel log cannot be read: {error.strerror}"
