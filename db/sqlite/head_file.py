"""The second witness of what is durable: a small file with the last position and its checksum,
written after every commit.

Two slots are written in place by turns, each with its own checksum, so that a torn write leaves the
one before it. The file is also what an open store holds locked. Nothing here knows SQLite.
"""

import errno
import fcntl
import os
import struct
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ...protocol.errors import Refusal
from ..store.checksum_chain import START

NAME = "head"
_MAGIC = b"jscrhd01"
_SLOT = struct.Struct(">8sQ16s")
_SIZE = _SLOT.size + 16
#: `struct flock`: type, whence, start, length, pid
_FLOCK = struct.Struct("hhqqi4x")
#: Far enough apart that no device tears both at once.
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


def look(folder: Path) -> DurablePosition | None:
    """The newest mark on file; None when there is no file or no slot of it is whole. Raises
    OSError.
    """
    try:
        fd = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return max((m for m in _marks(fd) if m is not None), default=None)
    finally:
        os.close(fd)


def held(folder: Path) -> bool:
    """Is the store open in some process now? Asks without taking the lock, so nobody who opens it
    is disturbed. Raises OSError.
    """
    try:
        fd = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(
            fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        )
    finally:
        os.close(fd)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


class HeadFile:
    """The file, open and locked by this process. `new`: it was empty, so nothing was ever durable
    here.
    """

    def __init__(self, folder: Path) -> None:
        """Raises Refusal("rootBusy") while another one holds it, OSError when it cannot be opened."""
        # O_DSYNC: a write returns when it is on the disk
        self._fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DSYNC, 0o600)
        try:
            fcntl.fcntl(
                self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            )
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

    def write(self, position: int, checksum: bytes) -> None:
        """Durable when it returns. Raises OSError: then nobody knows, and it must not be tried
        again.
        """
        data = _packed(DurablePosition(position, checksum))
        if os.pwrite(self._fd, data, _OFFSETS[self._turn]) != _SIZE:
            raise OSError(errno.EIO, "the witness was written in part")
        self._turn = 1 - self._turn

    def reset(self, position: int, checksum: bytes) -> None:
        """Both slots: for a new file, and after the log was cut."""
        self.write(position, checksum)
        self.write(position, checksum)
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
