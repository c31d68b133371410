"""Writer of new files in a run directory: regular files only, never through a symbolic link, never
outside.

A file grows under a temporary name beside its place. That name depends on the digest of the whole
file, so an interrupted transfer continues only with the same content. Only a complete file with
this digest gets its name.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from ...protocol.errors import Refusal
from ...protocol.wire.messages import StoreFile
from .run_directory import Piece, check_name, hash_part, open_run_dir, refusal, shown

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PART = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Characters of the digest in the name of a part, and longest name of a file.
_DIGEST_CHARS, _NAME_BYTES = 16, 200


def store(op: StoreFile) -> Piece:
    """Perform one step of a transfer. Blocks. Raises Refusal: badRequest, notFound, forbidden,
    conflict, agentUnavailable.
    """
    *folders, name = check_name(op.name)
    if len(os.fsencode(name)) > _NAME_BYTES:
        raise Refusal("badRequest", f"{shown(op.name)} has a name of over {_NAME_BYTES} bytes")
    part = f".{name}.{op.sha256[:_DIGEST_CHARS]}.part"
    writes = op.data is not None or op.finish
    try:
        with _folder(op.run_dir, folders, create=writes) as folder:
            if folder is None:
                return Piece(b"", 0, 0)
            return _step(op, folder, name, part) if writes else _found(folder, part)
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Refusal("agentUnavailable", f"the disk of {shown(op.name)} is full") from e
        if e.errno in (errno.EISDIR, errno.ENOTEMPTY):
            raise Refusal("conflict", f"{shown(op.name)} is a folder in the run directory") from e
        raise refusal(e, op.name, "write") from e


def _step(op: StoreFile, folder: int, name: str, part: str) -> Piece:
    if not op.replace and _exists(folder, name):
        raise _taken(op)
    fd = os.open(part, _PART | os.O_CREAT, 0o666, dir_fd=folder)
    try:
        size = _checked(fd, op)
        if op.data is not None:
            if op.offset != size or size + len(op.data) > op.size:
                raise Refusal(
                    "conflict",
                    f"{size} bytes of {shown(op.name)} are stored, so {len(op.data)} bytes at {op.offset} do not continue it",
                )
            _write(fd, op.data, size)
            size += len(op.data)
        if op.finish:
            _finish(op, folder, name, part, fd)
        return Piece(b"", size, os.fstat(fd).st_mtime_ns)
    finally:
        os.close(fd)


def _finish(op: StoreFile, folder: int, name: str, part: str, fd: int) -> None:
    size = os.fstat(fd).st_size
    if size < op.size:
        raise Refusal("conflict", f"only {size} of {op.size} bytes of {shown(op.name)} arrived")
    if hash_part(fd, 0, op.size)[0] != op.sha256:
        os.unlink(part, dir_fd=folder)
        raise Refusal(
            "conflict",
            f"{shown(op.name)} arrived damaged (another SHA-256) and was removed; send it again",
        )
    os.fsync(fd)
    if op.replace:
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    try:
        os.link(part, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise _taken(op) from None
    os.unlink(part, dir_fd=folder)


def _found(folder: int, part: str) -> Piece:
    """Return the size of a part; 0 if there is none."""
    try:
        status = os.stat(part, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return Piece(b"", 0, 0)
    return Piece(b"", status.st_size, status.st_mtime_ns)


def _checked(fd: int, op: StoreFile) -> int:
    """Return the size of a part. Raises Refusal if it is not a file of this transfer."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > op.size:
        raise Refusal(
            "forbidden", f"the temporary file of {shown(op.name)} is in use for something else"
        )
    return status.st_size


def _write(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _taken(op: StoreFile) -> Refusal:
    return Refusal("conflict", f"{shown(op.name)} exists in the run directory already")


@contextlib.contextmanager
def _folder(run_dir: str, parts: list[str], *, create: bool) -> Iterator[int | None]:
    """Open the folder of a file for the duration of the block; None if it does not exist."""
    fd = open_run_dir(run_dir)
    try:
        for part in parts:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
            try:
                inner = os.open(part, _FOLDER, dir_fd=fd)
            except FileNotFoundError:
                if create:
                    raise
                yield None
                return
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)
