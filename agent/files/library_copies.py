"""Copies of a user's library files, for machines that do not see the supervisor's files. The
supervisor sends them before a run or call that may read them.

A file arrives in pieces, in order, under a temporary name. The last piece sets the modification
time of the original and renames the file. Until then no file has the final name, so an old file is
never used in place of a new one.
"""

import contextlib
import os

from ...protocol.errors import Refusal
from .run_directory import Piece

_TEMPORARY = ".copy-"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ON = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def store_piece(
    lib_dir: str, name: str, offset: int, data: bytes, size: int, mtime_ns: int
) -> Piece:
    """Store one piece; blocks. Raises Refusal (badRequest, conflict, agentUnavailable)."""
    if (
        not lib_dir.startswith("/")
        or "\0" in lib_dir + name
        or "/" in name
        or name.startswith(".")
        or not name
    ):
        raise Refusal("badRequest", f"{ascii(name)[:100]} is not a valid library file name")
    path, temporary = f"{lib_dir}/{name}", f"{lib_dir}/{_TEMPORARY}{name}"
    try:
        if offset == 0:
            os.makedirs(lib_dir, 0o700, exist_ok=True)
            for old in (temporary, path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(old)
        fd = os.open(temporary, _NEW if offset == 0 else _ON, 0o600)
        try:
            if os.fstat(fd).st_size != offset:
                raise Refusal(
                    "conflict", f"{name!r} is being sent twice, or a piece of it is missing"
                )
            os.pwrite(fd, data, offset)
            if offset + len(data) == size:
                os.utime(fd, ns=(mtime_ns, mtime_ns))
                os.rename(temporary, path)
        finally:
            os.close(fd)
    except OSError as e:
        raise Refusal(
            "agentUnavailable",
            f"cannot store the library file {name!r} on the cluster: {e.strerror}",
        ) from None
    return Piece(b"", min(size, offset + len(data)), mtime_ns)
