"""Reader of the kernel log. It reads between other work, so that the end of a job does not wait for
it.

The log stays open while the keeper lives; new records are read in small portions. Only lines about
the death of a process are kept. On many sites only root may read it; exit facts then say so.
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
#: Device number of the real /dev/kmsg, to reject what a container puts in its place.
_DEVICE = os.makedev(1, 11)
#: Size limit of a record in bytes; number of lines kept.
_RECORD_BYTES, _KEPT = 8192, 500
#: Limits of processor time (seconds): reading between other work, the first reading, reading at the
#: end of a job. Elapsed time would make the log seem too long on a busy machine. The last value is
#: the maximum delay (elapsed seconds) of a line after the death that it reports.
BESIDE_SECS, AT_FIRST_SECS, AT_END_SECS, _LATE_SECS = 0.003, 0.03, 0.012, 0.004

FORBIDDEN = "not permitted to read the kernel log"
ABSENT = "no kernel log is visible here"
TOO_LONG = "the kernel log is too long to read in time"


class KernelLogReader:
    """Reads the kernel log. unread: why it cannot be read; None if it can."""

    def __init__(self, path: str = PATH, device: int = _DEVICE) -> None:
        self._fd = -1
        self.unread: str | None = None
        self._records: deque[kernel_log_parser.Record] = deque(maxlen=_KEPT)
        #: process ids in the log are valid in this pid namespace
        self._same_pids = processes.in_first_namespace()
        try:
            self._fd = _open(path, device)
        except OSError as error:
            self.unread = _describe_error(error)

    def skip(self) -> None:
        """Skip all records logged until now. Never raises."""
        if self._fd >= 0:
            try:
                os.lseek(self._fd, 0, os.SEEK_END)
            except OSError as error:
                self._close_failed(error)

    def read(self, secs: float = BESIDE_SECS) -> bool:
        """Read new records for at most `secs` of processor time. Never raises.

        Returns False if more records are left or the log cannot be read.
        """
        until = time.thread_time() + secs
        while self._fd >= 0:
            try:
                found = kernel_log_parser.parse_record(os.read(self._fd, _RECORD_BYTES))
            except BlockingIOError:
                return True
            except OSError as error:
                # EPIPE, EINTR and EINVAL mean an overrun: reading continues with the oldest record
                # left
                if error.errno not in (errno.EPIPE, errno.EINTR, errno.EINVAL):
                    self._close_failed(error)
                found = None
            if found is not None:
                self._records.append(found)
            if time.thread_time() >= until:
                return False
        return False

    def lines_about(
        self, pids: Collection[int], cgroup: str | None, since: float, *, expected: bool
    ) -> tuple[tuple[str, ...], str | None]:
        """Return (lines, why more lines may be missing) about an execution that started at `since`
        (monotonic) and has ended. Never raises.

        expected: the kernel has certainly killed one of its processes, so a line exists or follows.
        """
        complete = self.read(AT_END_SECS)
        lines = self._lines(pids, cgroup, since)
        if expected and not lines and complete:
            time.sleep(_LATE_SECS)  # the kernel logs after it has killed
            complete = self.read(BESIDE_SECS)
            lines = self._lines(pids, cgroup, since)
        return lines, None if complete else self.unread or TOO_LONG

    def _lines(self, pids: Collection[int], cgroup: str | None, since: float) -> tuple[str, ...]:
        return kernel_log_parser.lines_about(
            self._records, pids if self._same_pids else (), cgroup, since, time.monotonic()
        )

    def _close_failed(self, error: OSError) -> None:
        os.close(self._fd)
        self._fd, self.unread = -1, _describe_error(error)


def _open(path: str, device: int) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY)
    found = os.fstat(fd)
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != device:
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return fd


def _describe_error(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return FORBIDDEN
    if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV):
        return ABSENT
    return f"cannot read the kernel log: {error.strerror}"
