"""Files in folders that jobs can write to, read and written by somebody who may do more than they.

No link is followed, nobody is waited for at a pipe, and what is no file, or has another name
elsewhere (a hard link), is not there.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read(folder: Path, parts: Sequence[str], offset: int, limit: int) -> tuple[bytes, int]:
    """Bytes of a file below `folder`, and its size; (b"", 0) where there is none."""
    fd = -1
    try:
        fd = os.open(folder, _FOLDER)
        for part in parts[:-1]:
            fd = _instead(fd, os.open(part, _FOLDER, dir_fd=fd))
        fd = _instead(fd, os.open(parts[-1], os.O_RDONLY | _FILE, dir_fd=fd))
        status = os.fstat(fd)
        plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        return (os.pread(fd, limit, offset), status.st_size) if plain else (b"", 0)
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            raise
        return b"", 0
    finally:
        if fd >= 0:
            os.close(fd)


def append(folder: Path, name: str, line: bytes) -> None:
    """Add a line to a file in `folder`, which is made where there is none; whose folder it is can
    read it. Raises OSError.
    """
    above = os.open(folder, _FOLDER)
    try:
        fd = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FILE, 0o600, dir_fd=above)
    finally:
        os.close(above)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise OSError(
                errno.EEXIST, "it is something else than a file of its own", f"{folder}/{name}"
            )
        os.fchmod(fd, 0o644)  # whatever the umask
        os.write(fd, line)
    finally:
        os.close(fd)


def _instead(old: int, new: int) -> int:
    os.close(old)
    return new
