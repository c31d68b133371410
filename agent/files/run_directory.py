"""Reader of files in a run directory: regular files only, never through a symbolic link, never
outside.

A file with another name outside of the run directory (a hard link) is refused, because it may
belong to another user.

Every path component is opened relative to its parent, so a rename by a job cannot lead elsewhere.
The file is first opened with O_PATH, so a request for a pipe or device has no effect on it.
"""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from ...protocol.errors import Refusal
from ...protocol.wire.messages import DigestFile, FileDigest
from ...runtime.hard_links import all_below

#: Our own folder in a run directory: links to evidence, which `output_reader` serves.
OWN = ".jobscribe"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_SHOWN = 100
_HASHED_AT_ONCE = 1024 * 1024


class Piece(NamedTuple):
    """size, mtime_ns: of the whole file at the time of the read."""

    data: bytes
    size: int
    mtime_ns: int


def read(run_dir: str, name: str, offset: int, limit: int) -> Piece:
    """Return up to `limit` bytes from `offset`; fewer only at the end of the file. Blocks.

    name "" checks that the run directory exists. Raises Refusal: badRequest, notFound, forbidden,
    agentUnavailable.
    """
    if not name:
        fd = open_run_dir(run_dir)
        try:
            return Piece(b"", 0, os.fstat(fd).st_mtime_ns)
        finally:
            os.close(fd)
    with open_file(run_dir, name) as fd:
        data = read_all(fd, offset, limit)
        status = os.fstat(fd)
        return Piece(data, status.st_size, status.st_mtime_ns)


def digest(op: DigestFile) -> FileDigest:
    """Return the SHA-256 of a part of a file. Blocks. Raises Refusal, as `read`."""
    with open_file(op.run_dir, op.name) as fd:
        hashed, length = hash_part(fd, op.offset, op.length)
        status = os.fstat(fd)
        return FileDigest(
            op_id=op.op_id,
            sha256=hashed,
            length=length,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
        )


def hash_part(fd: int, offset: int, length: int) -> tuple[str, int]:
    """Return the SHA-256 of up to `length` bytes, and their number."""
    hashed, end, at = hashlib.sha256(), offset + length, offset
    while at < end and (data := os.pread(fd, min(_HASHED_AT_ONCE, end - at), at)):
        hashed.update(data)
        at += len(data)
    return hashed.hexdigest(), at - offset


@contextlib.contextmanager
def open_file(run_dir: str, name: str) -> Iterator[int]:
    """Open this regular file for the duration of the block. Raises Refusal."""
    parts = check_name(name)
    top = open_run_dir(run_dir)
    fd = os.dup(top)
    try:
        for i, part in enumerate(parts[:-1]):
            fd = _replace(fd, _open(part, _FOLDER, fd, "/".join(parts[: i + 1])))
        fd = _replace(fd, _open(parts[-1], _LOOK, fd, name))
        _check_kind(fd, name)
        _check_names(top, fd, name)
        fd = _replace(fd, _open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC, None, name))
        yield fd
    except OSError as e:
        raise refusal(e, name) from e
    finally:
        os.close(fd)
        os.close(top)


def read_all(fd: int, offset: int, limit: int) -> bytes:
    """Return up to `limit` bytes; fewer only at the end of the file."""
    first = os.pread(fd, limit, offset)
    if len(first) == limit or not first:
        return first
    data = bytearray(first)
    while len(data) < limit and (more := os.pread(fd, limit - len(data), offset + len(data))):
        data += more
    return bytes(data)


def check_name(name: str) -> list[str]:
    """Return the components of a name inside the run directory. Raises Refusal("badRequest")."""
    parts = name.split("/")
    if "\0" in name:
        raise Refusal("badRequest", "a file name cannot contain a NUL character")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise Refusal("badRequest", f"{shown(name)} cannot be a file name") from None
    if name.startswith("/"):
        raise Refusal("badRequest", f"{shown(name)} must be relative to the run directory")
    if any(p in ("", ".", "..") for p in parts):
        raise Refusal(
            "badRequest",
            f"{shown(name)} is not the plain name of a file in the run directory: no '..', no '.', no '//'",
        )
    if OWN in parts:
        raise Refusal(
            "badRequest",
            f"{shown(name)} is in {OWN}, which is not part of the run; read its output as the run's log",
        )
    return parts


def open_run_dir(path: str) -> int:
    """Return a descriptor of the folder, which the caller closes. Raises Refusal."""
    if not path.startswith("/") or "\0" in path:
        raise Refusal("badRequest", "a run directory must be an absolute path")
    try:
        return os.open(path, _FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        raise Refusal("notFound", "the run directory is gone") from None
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise Refusal(
                "notFound",
                "the run directory is gone; a symbolic link is in its place",
            ) from None
        raise refusal(e, "the run directory") from e


def _open(part: str, flags: int, folder: int | None, shown: str) -> int:
    try:
        return os.open(part, flags, dir_fd=folder)
    except OSError as e:
        raise refusal(e, shown) from e


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new


def _check_kind(fd: int, name: str) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISLNK(mode):
        raise Refusal("notFound", f"{shown(name)} is a symbolic link; links are not followed")
    if stat.S_ISDIR(mode):
        raise Refusal(
            "notFound", f"{shown(name)} is a folder; request a file in it by its full name"
        )
    raise Refusal("notFound", f"{shown(name)} is not a regular file")


def _check_names(top: int, fd: int, name: str) -> None:
    if not all_below(top, os.fstat(fd)):
        what = f"{shown(name)} has another name outside of the run directory (a hard link), so it is not served"
        raise Refusal(
            "forbidden", f"{what}; let the run copy the file (cp) instead of linking it (ln, cp -l)"
        )


def refusal(error: OSError, name: str, verb: str = "read") -> Refusal:
    match error.errno:
        case errno.ENOENT | errno.ENAMETOOLONG:
            return Refusal("notFound", f"there is no file {shown(name)} in the run directory")
        case errno.ENOTDIR | errno.ELOOP:
            return Refusal(
                "notFound", f"{shown(name)} is not a folder (symbolic links are not followed)"
            )
        case errno.EACCES | errno.EPERM:
            return Refusal("forbidden", f"the agent may not {verb} {shown(name)}")
        case _:
            return Refusal("agentUnavailable", f"cannot {verb} {shown(name)}: {error.strerror}")


def shown(name: str) -> str:
    return ascii(name if len(name) <= _SHOWN else name[:_SHOWN] + "...")
