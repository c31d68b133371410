"""Local files of transfers. Below the target folder no step follows a symbolic link, so nothing is
written outside of it.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence

from ..api.errors import refused

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PART = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ANY = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
#: Bytes to read at once.
_AT_ONCE = 1024 * 1024
#: Characters of the name of a file in the name of its part.
_NAME_CHARS = 40


@contextlib.contextmanager
def folder(target: str, parts: Sequence[str]) -> Iterator[int]:
    """Create and open the folder `parts` below `target`, for the duration of the block. `target`
    itself may be a link. Raises OSError, ELOOP or ENOTDIR for a link below it.
    """
    os.makedirs(target, exist_ok=True)
    fd = os.open(target, _FOLDER)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=fd)
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def opened(path: str, folder: int | None = None) -> Iterator[int]:
    """Open a regular file for reading. folder: then it must not be a link. Raises ClientError,
    OSError.
    """
    fd = os.open(path, _ANY | (0 if folder is None else os.O_NOFOLLOW), dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise refused("badRequest", f"{path} is not a regular file")
        yield fd
    finally:
        os.close(fd)


def size(fd: int) -> int:
    return os.fstat(fd).st_size


def digest(fd: int, offset: int, length: int) -> str:
    """Return the SHA-256 of a part of a file."""
    hashed, end = hashlib.sha256(), offset + length
    while offset < end and (data := os.pread(fd, min(_AT_ONCE, end - offset), offset)):
        hashed.update(data)
        offset += len(data)
    return hashed.hexdigest()


def pieces(fd: int, offset: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file; fewer if it has become shorter."""
    while offset < end and (data := os.pread(fd, min(_AT_ONCE, end - offset), offset)):
        offset += len(data)
        yield data


class PartFile:
    """An incomplete file under a temporary name beside its place, locked. `close` keeps it."""

    def __init__(self, folder: int, name: str) -> None:
        """Open the part of this file, or create it. Raises ClientError, OSError."""
        self._folder, self._name = folder, name
        self._part = part_name(name)
        while True:
            self.fd = os.open(self._part, _PART, 0o666, dir_fd=folder)
            try:
                if self._locked():
                    return
            except BaseException:
                os.close(self.fd)
                raise
            os.close(self.fd)

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def write(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self.fd, view, offset)
            view, offset = view[written:], offset + written

    def publish(self, *, replace: bool) -> None:
        """Give the file its name. Raises FileExistsError, unless it may replace a file."""
        if replace:
            os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            return
        try:
            os.link(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if exists(self._folder, self._name):
                raise FileExistsError from None
            os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            return
        os.unlink(self._part, dir_fd=self._folder)

    def remove_if_empty(self) -> None:
        if not self.size:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._part, dir_fd=self._folder)

    def close(self) -> None:
        os.close(self.fd)

    def _locked(self) -> bool:
        """Lock the part. Return False if it has got its name or was removed meanwhile."""
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise refused("conflict", f"{self._part} is not a file of an interrupted copy")
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refused(
                "conflict", f"another process copies {ascii(self._name)[:100]} to this folder"
            ) from None
        try:
            here = os.stat(self._part, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (here.st_dev, here.st_ino) == (status.st_dev, status.st_ino)


def part_name(name: str) -> str:
    """Return the temporary name of a file. No two files have the same one."""
    id_ = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    return f".{name[:_NAME_CHARS]}.{id_}.part"
