"""Access to files in folders that jobs can write to, by a process with more privileges than the
jobs.

No symbolic link is followed, and no named pipe blocks. A file counts only if it is a regular file
with a single hard link.
"""

import errno
import itertools
import os
import stat
from collections.abc import Sequence
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read(folder: Path, parts: Sequence[str], offset: int, limit: int) -> tuple[bytes, int]:
    """Return at most `limit` bytes of a file below `folder`, and its size; (b"", 0) if there is
    none.
    """
    fd = -1
    try:
        fd = os.open(folder, _FOLDER)
        for part in parts[:-1]:
            fd = _replace_fd(fd, os.open(part, _FOLDER, dir_fd=fd))
        fd = _replace_fd(fd, os.open(parts[-1], os.O_RDONLY | _FILE, dir_fd=fd))
        status = os.fstat(fd)
        regular = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        return (os.pread(fd, limit, offset), status.st_size) if regular else (b"", 0)
    except OSError as e:
        # EAGAIN: a keeper has a lease on the file, which is empty
        if e.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EAGAIN):
            raise
        return b"", 0
    finally:
        if fd >= 0:
            os.close(fd)


def names(folder: Path, parts: Sequence[str], limit: int) -> list[str]:
    """Return the names of at most `limit` entries of a folder below `folder`; none if it is missing."""
    fd = -1
    try:
        fd = os.open(folder, _FOLDER)
        for part in parts:
            fd = _replace_fd(fd, os.open(part, _FOLDER, dir_fd=fd))
        with os.scandir(fd) as entries:
            return [entry.name for entry in itertools.islice(entries, limit)]
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return []
    finally:
        if fd >= 0:
            os.close(fd)


def append(folder: Path, name: str, line: bytes) -> None:
    """Append a line to a file in `folder`, and create it if needed. The folder's owner can read the
    file. Raises OSError.
    """
    folder_fd = os.open(folder, _FOLDER)
    try:
        fd = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FILE, 0o600, dir_fd=folder_fd)
    finally:
        os.close(folder_fd)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise OSError(
                errno.EEXIST, "not a regular file with a single hard link", f"{folder}/{name}"
            )
        os.fchmod(fd, 0o644)  # whatever the umask
        os.write(fd, line)
    finally:
        os.close(fd)


def _replace_fd(old: int, new: int) -> int:
    os.close(old)
    return new
