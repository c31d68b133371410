"""Effects on the folder of an execution: what can go goes, and the token stays used. The functions
block; call them in a thread.

Executors take a token by creating the folder, so its name must stay. A removed folder leaves a hard
link to one empty file that all of them share: it takes no inode. Both are exchanged in one step.
Where the file system cannot do that, an empty folder stays.
"""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...protocol.jobs import profiling
from ...runtime import failpoints
from ...runtime.cores.report_file import CORES
from ...runtime.execution.folder import EXIT, EXIT_CODE, INPUT, SCRIPT, SIGNAL, START, STOP
from .safe_paths import FOLDER, open_folder, remove, step

#: Files of an ended execution whose content is in the log.
REDUCIBLE = (SCRIPT, EXIT, EXIT_CODE, INPUT, SIGNAL, START, STOP, "lock")
#: Empty file in the folder of an agent; and the prefix of a folder that is being removed.
USED, GOING = ".used", ".going-"
_EXCHANGE = 2
#: Folders of a run directory below the user root: `<uid>/<simulationType>/<simulationId>/<model>`.
_RUN_DIR_DEPTH = 4
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_libc = ctypes.CDLL(None, use_errno=True)


class ProfileFolder(NamedTuple):
    """name: of the execution. run_dir: absolute. places: possible paths below it, by components."""

    name: str
    run_dir: str
    places: tuple[tuple[str, ...], ...]


class Freed(NamedTuple):
    """files: inodes, folders included. bytes: as allocated on the disk."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: object) -> "Freed":
        assert isinstance(other, Freed)
        return Freed(self.files + other.files, self.bytes + other.bytes)


def measure(runs: int, name: str, *, reducible: bool) -> Freed:
    """Return what the folder takes; reducible: only what `reduce` would remove. Raises OSError."""
    inner = step(runs, name)
    try:
        own = os.fstat(inner)
        out = Freed() if reducible else Freed(1, own.st_blocks * 512)
        for entry in _entries(inner):
            if reducible and entry.name not in REDUCIBLE:
                continue
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if found.st_nlink == 1 or stat.S_ISDIR(found.st_mode):
                    out += Freed(1, found.st_blocks * 512)
        return out
    finally:
        os.close(inner)


def has_cores(runs: int, name: str) -> bool:
    try:
        os.close(_cores(runs, name))
    except OSError:
        return False
    return True


def measure_cores(runs: int, name: str) -> Freed:
    """Return what the core files in the folder `name` take. Raises OSError."""
    cores = _cores(runs, name)
    try:
        out = Freed(1, os.fstat(cores).st_blocks * 512)
        for entry in _entries(cores):
            with contextlib.suppress(OSError):
                out += Freed(1, entry.stat(follow_symlinks=False).st_blocks * 512)
        return out
    finally:
        os.close(cores)


def remove_cores(runs: int, name: str, go_on: Callable[[], bool]) -> bool:
    """Remove the core files in the folder `name`. Return whether nothing is left. Raises OSError."""
    inner = step(runs, name)
    try:
        with _unchanged_time(inner):
            return remove(inner, CORES, go_on)
    finally:
        os.close(inner)


def _cores(runs: int, name: str) -> int:
    inner = step(runs, name)
    try:
        return step(inner, CORES)
    finally:
        os.close(inner)


def _entries(folder: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries


def reduce(runs: int, name: str) -> Freed:
    """Remove the reducible files of the folder `name` in the folder `runs`. Raises OSError."""
    inner = step(runs, name)
    freed = Freed()
    try:
        with _unchanged_time(inner):
            for file in REDUCIBLE:
                with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                    found = os.stat(file, dir_fd=inner, follow_symlinks=False)
                    os.unlink(file, dir_fd=inner)
                    freed += Freed(1, found.st_blocks * 512)
    finally:
        os.close(inner)
    return freed


def remove_evidence(runs: int, name: str, go_on: Callable[[], bool]) -> bool:
    """Remove the folder `name` in the folder `runs`, and leave its name. Return whether nothing is
    left of it. Raises OSError: FileNotFoundError if it does not exist.
    """
    found = os.stat(name, dir_fd=runs, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode):
        return True  # its name was left before
    going = GOING + name
    _link_used(runs, going)
    failpoints.reached("evidence.marked")
    try:
        _exchange(runs, going, name)
    except OSError as e:
        os.unlink(going, dir_fd=runs)
        if e.errno not in _UNSUPPORTED:
            raise
        return _empty(runs, name, go_on)
    failpoints.reached("evidence.exchanged")
    return remove(runs, going, go_on)


def strip(runs: int, name: str, go_on: Callable[[], bool], *, dry_run: bool) -> tuple[Freed, bool]:
    """Remove everything in the folder `name` but the mark of its profiles. Return what that frees,
    and whether nothing else is left. Raises OSError.
    """
    inner = step(runs, name)
    freed, done = Freed(), True
    try:
        with _unchanged_time(inner):
            for entry in [e for e in _entries(inner) if e.name != profiling.MARKER]:
                found = entry.stat(follow_symlinks=False)
                freed += Freed(1, found.st_blocks * 512)
                done &= dry_run or remove(inner, entry.name, go_on)
    finally:
        os.close(inner)
    return freed, done


def is_marked(runs: int, name: str) -> bool:
    """Return whether the folder `name` has a mark of profiles."""
    try:
        os.stat(f"{name}/{profiling.MARKER}", dir_fd=runs, follow_symlinks=False)
    except OSError:
        return False
    return True


def remove_profiles(
    runs: int, folder: ProfileFolder, go_on: Callable[[], bool], *, dry_run: bool
) -> Freed:
    """Remove a folder of profiles, then the mark in the evidence. Return what they took. A folder
    that the user removed is no error. Raises OSError.
    """
    freed = Freed()
    for place in folder.places:
        freed += _remove_place(folder.run_dir, place, go_on, dry_run=dry_run)
    if not dry_run:
        evidence = step(runs, folder.name)
        try:
            with _unchanged_time(evidence):
                os.unlink(profiling.MARKER, dir_fd=evidence)
        finally:
            os.close(evidence)
    return freed


def _remove_place(
    run_dir: str, inside: tuple[str, ...], go_on: Callable[[], bool], *, dry_run: bool
) -> Freed:
    base = run_dir.split("/")
    try:
        above = open_folder(
            "/".join(base[:-_RUN_DIR_DEPTH]) or "/", [*base[-_RUN_DIR_DEPTH:], *inside[:-1]]
        )
    except (FileNotFoundError, NotADirectoryError):
        return Freed()
    try:
        freed = measure(above, inside[-1], reducible=False)
        if not dry_run and not remove(above, inside[-1], go_on):
            raise OSError(errno.EBUSY, "something is left of them")
    except (FileNotFoundError, NotADirectoryError):
        return Freed()
    finally:
        os.close(above)
    return freed


@contextlib.contextmanager
def _unchanged_time(folder: int) -> Iterator[None]:
    """Keep the time of the last change in an evidence folder. The age of earlier runs counts from it."""
    found = os.fstat(folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.utime(folder, ns=(found.st_atime_ns, found.st_mtime_ns))


def clear_leftover(runs: int, name: str, go_on: Callable[[], bool]) -> bool:
    """Complete a removal that was interrupted; name: begins with `GOING`."""
    return remove(runs, name, go_on)


def _link_used(runs: int, name: str) -> None:
    """Create a link to the shared empty file. Raises OSError."""
    for _ in range(2):
        try:
            os.link(USED, name, src_dir_fd=runs, dst_dir_fd=runs, follow_symlinks=False)
            return
        except FileExistsError:  # a crash left it, or the folder it was exchanged for
            if not remove(runs, name, lambda: True):
                raise
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.EMLINK):
                raise
            with contextlib.suppress(FileNotFoundError):  # as many names as the kernel allows
                os.unlink(USED, dir_fd=runs)
            os.close(
                os.open(
                    USED, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=runs
                )
            )
    os.link(USED, name, src_dir_fd=runs, dst_dir_fd=runs, follow_symlinks=False)


def _exchange(runs: int, one: str, other: str) -> None:
    """Exchange two names in one step. Raises OSError."""
    call = getattr(_libc, "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if call(runs, os.fsencode(one), runs, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), other)


def _empty(runs: int, name: str, go_on: Callable[[], bool]) -> bool:
    """Remove everything in a folder, which stays."""
    inner = os.open(name, FOLDER, dir_fd=runs)
    try:
        left = [entry for entry in os.listdir(inner) if not remove(inner, entry, go_on)]
        return not left
    finally:
        os.close(inner)
