"""The head file: the last durable position of the log and its checksum, written after every commit.

Two slots, each with its own checksum, take turns per sync: the slot that was synced last is not
written before the other one is synced, so a torn write leaves a durable slot intact. An open store
keeps this file locked. This module does not use SQLite.
"""

import errno
import fcntl
import os
import struct
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ...protocol.errors import Refusal
from .checksum_chain import START

NAME = "head"
_MAGIC = b"jscrhd01"
_SLOT = struct.Struct(">8sQ16s")
_SIZE = _SLOT.size + 16
#: Fields of `struct flock`: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
#: Offsets of the two slots, far enough apart that no device tears both at once.
_OFFSETS = (0, 4096)


class DurablePosition(NamedTuple):
    """The log was durable up to `position`, whose row had `checksum`."""

    position: int
    checksum: bytes


NOTHING = DurablePosition(0, START)


def _packed(mark: DurablePosition) -> bytes:
    slot = _SLOT.pack(_MAGIC, mark.position, mark.checksum)
    return slot + blake2b(slot, digest_size=16).digest()


def _unpacked(data: bytes) -> DurablePosition | None:
    if (
        len(data) != _SIZE
        or blake2b(data[: _SLOT.size], digest_size=16).digest() != data[_SLOT.size :]
    ):
        return None
    magic, position, checksum = _SLOT.unpack(data[: _SLOT.size])
    return DurablePosition(position, checksum) if magic == _MAGIC else None


def _marks(fd: int) -> list[DurablePosition | None]:
    return [_unpacked(os.pread(fd, _SIZE, offset)) for offset in _OFFSETS]


def read_head(folder: Path) -> DurablePosition | None:
    """Return the newest slot; None without a file or a valid slot. Raises OSError."""
    try:
        fd = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return max((m for m in _marks(fd) if m is not None), default=None)
    finally:
        os.close(fd)


def is_locked(folder: Path) -> bool:
    """Return whether a process has the store open. Tests the lock without taking it, so that a
    process that opens the store is not disturbed. Raises OSError.
    """
    try:
        fd = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(
            fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        )
    finally:
        os.close(fd)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


class HeadFile:
    """The head file, open and locked by this process. `new`: the file was empty, so nothing was
    ever durable here.
    """

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        """Raises Refusal("rootBusy") while another process holds the lock, OSError if the file
        cannot be opened. shared: with processes of which a lease selects the one that writes.
        """
        self._fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
            # a killed process may have left the newest slot in the page cache
            os.fdatasync(self._fd)
        except OSError as e:
            self.close()
            if e.errno in (errno.EAGAIN, errno.EACCES):
                raise Refusal(
                    "rootBusy", f"the store in {folder} is open in another process"
                ) from None
            raise
        self.new = os.fstat(self._fd).st_size == 0
        marks = _marks(self._fd)
        self.mark = max((m for m in marks if m is not None), default=None)
        self._turn = 1 if self.mark is not None and marks[0] == self.mark else 0
        self._unsynced = False

    def note(self, position: int, checksum: bytes) -> None:
        """Write a slot without a sync: other processes see it on return, and it survives the end of
        this one. After OSError its state is unknown, so do not retry.
        """
        data = _packed(DurablePosition(position, checksum))
        if os.pwrite(self._fd, data, _OFFSETS[self._turn]) != _SIZE:
            raise OSError(errno.EIO, "the head file was written only in part")
        self._unsynced = True

    def sync(self) -> None:
        """Make the position that was noted last durable. After OSError its state is unknown, so do
        not retry.
        """
        if self._unsynced:
            os.fdatasync(self._fd)
            self._unsynced = False
            self._turn = 1 - self._turn

    def write(self, position: int, checksum: bytes) -> None:
        """Write a slot; it is durable on return. After OSError its state is unknown, so do not
        retry.
        """
        self.note(position, checksum)
        self.sync()

    def reset(self, position: int, checksum: bytes) -> None:
        """Write both slots: for a new file, and after the log was replaced."""
        self.write(position, checksum)
        self.write(position, checksum)
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
