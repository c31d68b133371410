"""Users' libraries on this machine: files that users upload for an app, in `<user
root>/<uid>/<simulationType>/lib`.

The functions block; call them in a thread. Users' jobs can write to these folders. So nothing here
follows a symbolic link, and files are opened relative to a folder descriptor. If a user's folder
belongs to a separate unix user, new files are given to that user. Files that this unix user cannot
read are not read: a name may be a hard link to another user's file.
"""

import errno
import hashlib
import os
import secrets
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...protocol.errors import Refusal
from ...protocol.ids import parse
from ...runtime import failpoints
from ...runtime.filesystems import make_folder
from .safe_paths import give_to, step

#: Maximum files in one library.
MAX_FILES = 1_000
#: Digests to cache, so that a listing does not read the whole library each time.
DIGESTS_KEPT = 10_000
#: Maximum bytes to hash in one listing. Jobs can create sparse files of any size here.
DIGESTED_AT_ONCE = 4 * 1024**3
#: Age at which temporary files of interrupted uploads are removed.
LEFTOVER_SECS = 24 * 3600.0
_TEMPORARY = ".upload-"
#: In place of an ETag: there is no file.
NO_FILE = "none"
_PIECE = 1024 * 1024
#: Maximum names to inspect in one library.
SEEN_AT_MOST = 50_000
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

#: Errors that mean: removed meanwhile, or not readable for an app.
_UNREADABLE = (errno.ENOENT, errno.EACCES, errno.ENXIO)

_Identity = tuple[int, int, int, int, int]


class Library:
    """All libraries. One per process. limit: bytes of one file. owner: returns the unix uid and gid
    for a new folder of a user.
    """

    def __init__(
        self,
        user_root: str,
        *,
        limit: int,
        owner: Callable[[str], tuple[int, int] | None] = lambda uid: None,
    ) -> None:
        self._user_root, self.limit, self._owner = user_root, limit, owner
        self._digests: OrderedDict[_Identity, str] = OrderedDict()
        #: held while an upload looks at the file that it replaces, and replaces it
        self.replacing = threading.Lock()

    def upload(
        self, uid: str, simulation_type: str, name: str, over: str | None = None
    ) -> "Upload":
        """Start an upload. over: ETag of the file that it may replace, `none` for no file; None: any.
        Raises Refusal.
        """
        parse("name", name)
        with _as_refusal():
            folder, owner = self._folder(uid, simulation_type, make=True)
            try:
                there = self._names(folder, clear=True)
                if name not in there and len(there) >= MAX_FILES:
                    raise Refusal(
                        "tooLarge",
                        f"the library has {MAX_FILES} files, which is the limit; delete some first",
                    )
                return Upload(self, folder, name, owner, over)
            except BaseException:
                os.close(folder)
                raise

    def delete(self, uid: str, simulation_type: str, name: str) -> None:
        """Delete a file. Raises Refusal("notFound")."""
        parse("name", name)
        gone = Refusal("notFound", f"there is no file {name!r} in this library")
        with _as_refusal(), self._opened(uid, simulation_type) as (folder, _):
            if folder is None:
                raise gone
            try:
                if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise gone
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                raise gone from None

    def open(self, uid: str, simulation_type: str, name: str) -> tuple[int, os.stat_result]:
        """Return a read descriptor and the status of a file. Raises Refusal("notFound")."""
        parse("name", name)
        gone = Refusal("notFound", f"there is no file {name!r} in this library")
        with _as_refusal(), self._opened(uid, simulation_type) as (folder, owner):
            fd = None if folder is None else _readable(folder, name, owner)
            if fd is None:
                raise gone
            return fd, os.fstat(fd)

    def files(self, uid: str, simulation_type: str) -> list[dict[str, Any]]:
        """Return [{"name", "size", "sha256", "mtime"}], sorted by name. Links, folders and files
        above the upload limit are omitted.

        Raises Refusal("conflict") if one listing cannot hash all new files. The computed digests
        are cached, so a retry continues.
        """
        with _as_refusal(), self._opened(uid, simulation_type) as (folder, owner):
            if folder is None:
                return []
            budget = [self._size_limit()]
            found = (
                self._file(folder, name, owner, budget)
                for name in sorted(self._names(folder, clear=False))[:MAX_FILES]
            )
            return [f for f in found if f is not None]

    def remember(self, info: os.stat_result, sha256: str) -> None:
        self._digests[_identity(info)] = sha256
        while len(self._digests) > DIGESTS_KEPT:
            self._digests.popitem(last=False)

    def _size_limit(self) -> int:
        return max(DIGESTED_AT_ONCE, self.limit)

    def _file(
        self, folder: int, name: str, owner: tuple[int, int], budget: list[int]
    ) -> dict[str, Any] | None:
        fd = _readable(folder, name, owner)
        if fd is None:
            return None
        try:
            info = os.fstat(fd)
            if info.st_size > self._size_limit():
                return None
            return {
                "name": name,
                "size": info.st_size,
                "sha256": self._digest(fd, info, budget),
                "mtime": info.st_mtime,
            }
        finally:
            os.close(fd)

    def _digest(self, fd: int, info: os.stat_result, budget: list[int]) -> str:
        known = self._digests.get(_identity(info))
        if known is not None:
            return known
        budget[0] -= info.st_size
        if budget[0] < 0:
            raise Refusal(
                "conflict",
                "this library has many new files that are not hashed yet; list it again",
            )
        digest, offset = hashlib.sha256(), 0
        # Read only up to the known size: the file may grow as fast as it is read.
        while offset < info.st_size and (
            piece := os.pread(fd, min(_PIECE, info.st_size - offset), offset)
        ):
            digest.update(piece)
            offset += len(piece)
        if _identity(os.fstat(fd)) == _identity(info):
            self.remember(info, digest.hexdigest())
        return digest.hexdigest()

    @contextmanager
    def _opened(
        self, uid: str, simulation_type: str
    ) -> Iterator[tuple[int | None, tuple[int, int]]]:
        try:
            folder, owner = self._folder(uid, simulation_type, make=False)
        except FileNotFoundError:
            yield None, (0, 0)
            return
        try:
            yield folder, owner
        finally:
            os.close(folder)

    def _folder(self, uid: str, simulation_type: str, *, make: bool) -> tuple[int, tuple[int, int]]:
        """Return a descriptor of the library, opened step by step without links, and the owner of
        the user's folder.
        """
        if make:
            make_folder(self._user_root)
        # The user root belongs to the operator and may be a link.
        fd = os.open(self._user_root, _ROOT)
        owner: tuple[int, int] | None = None
        for part in (uid, simulation_type, "lib"):
            try:
                if make:
                    _make(part, fd)
                    os.fsync(fd)  # even if it existed: files in it must be durable
                inner = step(fd, part)
            finally:
                os.close(fd)
            fd = inner
            try:
                owner = self._settle_owner(fd, uid, owner, make=make)
            except BaseException:
                os.close(fd)
                raise
        assert owner is not None
        return fd, owner

    def _settle_owner(
        self, fd: int, uid: str, owner: tuple[int, int] | None, *, make: bool
    ) -> tuple[int, int]:
        """Return the owner of the user's folder. make: give a folder that this process created to
        the owner (also after a crash), because the user's jobs write to it.
        """
        wanted = self._owner(uid) if owner is None and make else owner
        if make and wanted is not None:
            give_to(fd, wanted)
        if owner is not None:
            return owner
        info = os.fstat(fd)
        return info.st_uid, info.st_gid

    def _names(self, folder: int, *, clear: bool) -> set[str]:
        """Return the names of regular files in the library. clear: remove temporary files of
        interrupted uploads.
        """
        names = set()
        with os.scandir(folder) as entries:
            for seen, entry in enumerate(entries):
                if seen >= SEEN_AT_MOST:
                    raise Refusal(
                        "conflict",
                        f"the library's folder has more than {SEEN_AT_MOST} names, probably created by a job; remove some",
                    )
                if entry.name.startswith(_TEMPORARY):
                    if clear:
                        _clear(folder, entry.name)
                elif _is_name(entry.name) and entry.is_file(follow_symlinks=False):
                    names.add(entry.name)
        return names


class Upload:
    """A file that is being received. It appears under its name only in `finish`, complete and
    durable.
    """

    def __init__(
        self,
        library: Library,
        folder: int,
        name: str,
        owner: tuple[int, int],
        over: str | None = None,
    ) -> None:
        self._library, self._folder, self._name, self._owner = library, folder, name, owner
        self._over = over
        self._temporary = _TEMPORARY + secrets.token_hex(8)
        self._digest = hashlib.sha256()
        self._size = 0
        self._file = os.open(
            self._temporary,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=folder,
        )
        self._open = True

    def write(self, data: bytes) -> None:
        """Append data. Raises Refusal (tooLarge, storageUnavailable)."""
        self._size += len(data)
        if self._size > self._library.limit:
            raise too_large(self._library.limit)
        with _as_refusal():
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        self._digest.update(data)

    def finish(self) -> dict[str, Any]:
        """Make the file visible. Return {"name", "size", "sha256", "etag"}. Raises Refusal: conflict for
        another file than the one that this upload may replace.
        """
        with _as_refusal():
            give_to(self._file, self._owner)  # only after data and digest are final
            os.fsync(self._file)
            failpoints.reached("upload.written")
            with self._library.replacing:
                self._check_replaced()
                folders = {"src_dir_fd": self._folder, "dst_dir_fd": self._folder}
                os.rename(self._temporary, self._name, **folders)
            failpoints.reached("upload.renamed")
            os.fsync(self._folder)
            info, digest = os.fstat(self._file), self._digest.hexdigest()
            self._library.remember(info, digest)
        tag = etag(info.st_size, info.st_mtime_ns)
        return {"name": self._name, "size": self._size, "sha256": digest, "etag": tag}

    def _check_replaced(self) -> None:
        if self._over is None:
            return
        try:
            info = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            found = etag(info.st_size, info.st_mtime_ns)
        except FileNotFoundError:
            found = NO_FILE
        if found != self._over:
            raise Refusal(
                "conflict",
                f"the file {self._name} has changed since it was read",
                {"advice": "read it again, then store it with the new ETag"},
            )

    def close(self) -> None:
        """Release all resources. An unfinished file is removed."""
        if not self._open:
            return
        self._open = False
        try:
            os.unlink(self._temporary, dir_fd=self._folder)
        except FileNotFoundError:
            pass  # already renamed by finish()
        finally:
            os.close(self._file)
            os.close(self._folder)


def etag(size: int, mtime_ns: int) -> str:
    """Return the ETag of a file, which changes with it."""
    return f'"{size:x}-{mtime_ns:x}"'


def _is_name(name: str) -> bool:
    try:
        parse("name", name)
    except Refusal:
        return False
    return True


def too_large(limit: int) -> Refusal:
    return Refusal("tooLarge", f"a file of a library may have at most {limit} bytes")


def _identity(info: os.stat_result) -> _Identity:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _readable(folder: int, name: str, owner: tuple[int, int]) -> int | None:
    """Return a read descriptor, or None if the owner could not read the file. Opens nothing else,
    not even briefly.
    """
    look = fd = None
    try:
        look = os.open(name, _LOOK, dir_fd=folder)
        info = os.fstat(look)
        if stat.S_ISREG(info.st_mode) and _may_read(info, owner):
            fd = os.open(f"/proc/self/fd/{look}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        if e.errno not in _UNREADABLE:
            raise
    finally:
        if look is not None:
            os.close(look)
    return fd


def _may_read(info: os.stat_result, owner: tuple[int, int]) -> bool:
    """Return whether the owner of the library may read this file. The kernel checks only the
    supervisor's permissions, and a hard link may name any file.

    If users' jobs run as the supervisor's unix user, permissions do not separate their files from
    the supervisor's. In this case a file must have exactly one hard link.
    """
    if owner[0] == os.geteuid():
        return info.st_nlink == 1
    if owner[0] == info.st_uid:
        return True
    return bool(info.st_mode & (stat.S_IRGRP if info.st_gid == owner[1] else stat.S_IROTH))


def _make(name: str, folder: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        return


def _clear(folder: int, name: str) -> None:
    try:
        if (
            os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
            < time.time() - LEFTOVER_SECS
        ):
            os.unlink(name, dir_fd=folder)
    except (FileNotFoundError, IsADirectoryError):
        return


@contextmanager
def _as_refusal() -> Iterator[None]:
    """Convert file system errors to a Refusal."""
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Refusal(
                "notFound",
                "the path of this user's library contains a link or a file instead of a folder",
            ) from None
        if e.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EROFS,
            errno.EIO,
            errno.EMFILE,
            errno.ENFILE,
        ):
            raise Refusal(
                "storageUnavailable", f"the file cannot be stored now: {e.strerror}"
            ) from None
        if e.errno == errno.ENOENT:
            raise Refusal(
                "conflict", "the library's folder was removed or replaced meanwhile; try again"
            ) from None
        if e.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise Refusal(
                "conflict",
                f"this name belongs to something that is not a regular file: {e.strerror}",
            ) from None
        raise
