"""The folder `cores/` in the evidence of one execution: cores move or are copied into it, within its
limits. No search, and no frames.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time

from . import search
from .report_file import CORES, MOST, REPORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .search import Found

_BLOCK = 1 << 20
#: Bytes that a core of the largest size takes on its file system besides its content.
_SLACK = 1 << 16
#: Files that a report is made from; the job may have put more there.
_CANDIDATES = 64
#: States of a report after an error; other errors are "notMoved".
_PROBLEMS = {errno.ENOSPC: "diskFull", errno.EDQUOT: "diskFull", errno.ETIMEDOUT: "timeout"}
#: Pause between attempts to lock the folder (seconds).
_LOCK_SECS = 0.1


def order(cores: Iterable[Found], main: int | None) -> list[Found]:
    """Return the cores in order of importance: the main process first, then the oldest."""
    return sorted(cores, key=lambda found: (found.facts.pid != main, found.mtime))


class CoreFolder:
    """The folder of collected cores, locked. The job may own it, so each file in it is opened
    relative to its descriptor. until: monotonic time.
    """

    def __init__(self, folder: str, limit: int, until: float) -> None:
        path = f"{folder}/{CORES}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        self.path, self.fd = path, os.open(path, search.FOLDER)
        self.limit, self.left, self.detail, self.problem = limit, 0, "", ""
        self._until = until
        try:
            self._lock()
        except BaseException:
            self.close()
            raise
        #: users of the files that were added, besides this one
        self.owners: set[int] = set()

    def close(self) -> None:
        os.close(self.fd)

    def _lock(self) -> None:
        """Wait for the lock until the time is over. Raises OSError."""
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > self._until:
                    raise
                time.sleep(_LOCK_SECS)

    def _create(self, name: str) -> int:
        """Create a file, 0600. What the job has put there is removed, not opened. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self.fd)

    def write_report(self, data: bytes) -> None:
        """Replace the report in one step. Raises OSError."""
        temporary = f".{REPORT}.part"
        with open(self._create(temporary), "wb") as file:
            file.write(data)
        os.rename(temporary, REPORT, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def add(self, found: Found) -> None:
        """Move or copy a core into the folder, unless that would exceed the limits."""
        self.owners.add(os.fstat(found.fd).st_uid)
        own = self._sizes()
        if len(own) >= MOST or sum(own) + found.disk > self.limit + _SLACK:
            self.left += 1
            return
        name = self._free_name(f"core.{found.facts.pid or 0}")
        try:
            try:
                os.rename(found.name, name, src_dir_fd=found.folder, dst_dir_fd=self.fd)
                if not os.path.samestat(
                    os.stat(name, dir_fd=self.fd, follow_symlinks=False), os.fstat(found.fd)
                ):  # the job exchanged it
                    os.unlink(name, dir_fd=self.fd)
                    return
                os.fchmod(found.fd, 0o600)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EACCES, errno.EPERM):
                    raise
                self._copy(found, name)
        except OSError as error:
            self.left += 1
            if error.errno != errno.EFBIG:
                self.problem = _PROBLEMS.get(error.errno or 0, "notMoved")
                self.detail = error.strerror or str(error)

    def _copy(self, found: Found, name: str) -> None:
        temporary = f".{name}.part"
        out = self._create(temporary)
        try:
            copy_data(found.fd, out, found.size, self.limit + _SLACK, self._until)
            os.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self.fd)
            raise
        finally:
            os.close(out)
        with contextlib.suppress(OSError):  # a folder of somebody else
            os.unlink(found.name, dir_fd=found.folder)

    def report(self, main: int | None, until: float) -> dict[str, Any]:
        """Return the part of the report about the files in the folder. main: the main process."""
        owners = (os.fstat(self.fd).st_uid, *self.owners)
        there = [
            search.open_core(self.fd, n, 0.0, owners) for n in sorted(self.names())[:_CANDIDATES]
        ]
        cores = order([found for found in there if found is not None], main)[:MOST]
        try:
            return {"files": [_described(found, until) for found in cores], "left": self.left}
        finally:
            for found in there:
                if found is not None:
                    found.close()

    def names(self) -> list[str]:
        """Return the names of the cores."""
        return [name for name in os.listdir(self.fd) if name.startswith("core.") and name != REPORT]

    def _sizes(self) -> list[int]:
        return [
            os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_blocks * 512
            for name in self.names()
        ]

    def _free_name(self, name: str) -> str:
        there = set(self.names())
        return next(n for n in (name, *(f"{name}.{i}" for i in range(2, 99))) if n not in there)


def copy_data(source: int, to: int, size: int, most: int, until: float) -> None:
    """Copy a file of this size, whose holes stay holes. Raises OSError: EFBIG for more than `most`
    bytes, as on file systems that do not tell their holes; ETIMEDOUT after `until` (monotonic).
    """
    at = copied = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
            end = min(os.lseek(source, at, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                break
            raise
        while at < end:
            data = os.pread(source, min(_BLOCK, end - at), at)
            if not data:
                return
            copied += len(data)
            for number, exceeded in (
                (errno.EFBIG, copied > most),
                (errno.ETIMEDOUT, time.monotonic() > until),
            ):
                if exceeded:
                    raise OSError(number, os.strerror(number))
            at += os.pwrite(to, data, at)
    os.ftruncate(to, size)


def _described(found: Found, until: float) -> dict[str, Any]:
    facts = found.facts
    return {
        "name": found.name,
        "pid": facts.pid,
        "program": facts.program,
        "signal": facts.signal,
        "size": found.size,
        "completeBytes": facts.complete_bytes,
        "sha256": _hashed(found.fd, until),
    }


def _hashed(fd: int, until: float) -> str | None:
    """Return the SHA-256; None if the time is over before."""
    hashed, at = hashlib.sha256(), 0
    while data := os.pread(fd, _BLOCK, at):
        if time.monotonic() > until:
            return None
        hashed.update(data)
        at += len(data)
    return hashed.hexdigest()
