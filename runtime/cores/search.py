"""Search for the core files of one execution: where the kernel's pattern puts them, newer than its
start, of its user, and really core files. No symbolic link is followed.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from . import core_pattern, elf_core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from .core_pattern import Component, Target
    from .elf_core import CoreFacts

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: How deep a process may have changed its directory below the run directory. Limits of a search:
#: entries of all folders, and core files, each of which holds two descriptors.
_DEPTH, _ENTRIES, _MOST = 3, 100_000, 64
#: File times come from a coarser clock (seconds).
_COARSE_SECS = 1.0


class Found:
    """A core file. folder, fd: descriptors that the holder closes; name: in the folder. size, disk:
    its length, and the bytes of it that are no holes.
    """

    __slots__ = ("disk", "facts", "fd", "folder", "mtime", "name", "size")

    def __init__(self, folder: int, name: str, fd: int, facts: CoreFacts) -> None:
        self.folder, self.name, self.fd, self.facts = folder, name, fd, facts
        status = os.fstat(fd)
        self.size, self.mtime = status.st_size, status.st_mtime
        self.disk = status.st_blocks * 512

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.folder)


class Limits:
    """The time and the entries that a search may still use. until: monotonic time."""

    def __init__(self, until: float = float("inf")) -> None:
        self._until, self._entries = until, _ENTRIES

    def each(self, entries: Iterable[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        """Yield entries until the search has to end."""
        for entry in entries:
            self._entries -= 1
            if self._entries < 0 or time.monotonic() > self._until:
                return
            yield entry


def find(
    target: Target,
    run_dir: str,
    since: float,
    pids: Collection[int],
    base: str | None = None,
    until: float = float("inf"),
) -> list[Found]:
    """Return the core files of the execution, the oldest first; at most 64. until: monotonic time.

    base: a folder above the run directory; below it, users may have put links. The execution then
    had another root directory, where an absolute pattern leads. since: unix time of its start.
    pids: its processes: in a folder outside of the run directory, only cores with one of these pids
    count, because other jobs put theirs there too.
    """
    if target.absolute and base is not None:
        return []
    limits = Limits(until)
    out: list[Found] = []
    owners = () if base is None else _owners(run_dir, base)
    folders = (
        _absolute(target, limits) if target.absolute else _below(target, run_dir, base, limits)
    )
    for folder in folders:
        for found in _cores_in(folder, target, since, owners, limits):
            if len(out) >= _MOST or (target.absolute and found.facts.pid not in pids):
                found.close()
            else:
                out.append(found)
    return sorted(out, key=lambda found: found.mtime)


def open_core(
    folder: int, name: str, since: float = 0.0, owners: Collection[int] = ()
) -> Found | None:
    """Open a file if it is a core file of this user or of `owners` with one name, changed after
    `since`.
    """
    try:
        fd = os.open(name, FILE, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        mine = status.st_uid in (os.geteuid(), *owners) and status.st_nlink == 1
        if stat.S_ISREG(status.st_mode) and mine and status.st_mtime >= since - _COARSE_SECS:
            facts = elf_core.read(fd)
            if facts is not None:
                found = Found(os.dup(folder), name, fd, facts)
                fd = -1
                return found
    except OSError:
        return None
    finally:
        if fd >= 0:
            os.close(fd)
    return None


def _owners(run_dir: str, base: str) -> tuple[int, ...]:
    """Return the user of a run directory."""
    try:
        folder = _opened(run_dir, base)
    except OSError:
        return ()
    try:
        return (os.fstat(folder).st_uid,)
    finally:
        os.close(folder)


def _cores_in(
    folder: int, target: Target, since: float, owners: Collection[int], limits: Limits
) -> Iterator[Found]:
    """Yield the cores in a folder, and close its descriptor."""
    try:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in limits.each(entries):
                if core_pattern.matches(target, entry.name):
                    found = open_core(folder, entry.name, since, owners)
                    if found is not None:
                        yield found
    finally:
        os.close(folder)


def _absolute(target: Target, limits: Limits) -> Iterator[int]:
    yield from _inner(os.open("/", FOLDER), list(target.folder), limits)


def _below(target: Target, run_dir: str, base: str | None, limits: Limits) -> Iterator[int]:
    """Yield the folder that the pattern names in the run directory and in the folders below it."""
    with contextlib.suppress(OSError):
        for folder in _folders(_opened(run_dir, base), 0, limits):
            yield from _inner(folder, list(target.folder), limits)


def _opened(path: str, base: str | None) -> int:
    """Open a folder; below `base`, without following a link. Raises OSError."""
    if base is None:
        return os.open(path, FOLDER)
    if not path.startswith(f"{base}/"):
        raise FileNotFoundError(path)
    fd = os.open(base, FOLDER & ~os.O_NOFOLLOW)
    for part in path.removeprefix(f"{base}/").split("/"):
        try:
            inner = os.open(part, FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def _folders(folder: int, depth: int, limits: Limits) -> Iterator[int]:
    """Yield this folder and those below it, as descriptors that the caller closes."""
    own = os.dup(folder)
    yield folder
    try:
        if depth < _DEPTH:
            with os.scandir(own) as entries:
                for entry in limits.each(entries):
                    if entry.is_dir(follow_symlinks=False) and entry.name != ".jobscribe":
                        with contextlib.suppress(OSError):
                            inner = os.open(entry.name, FOLDER, dir_fd=own)
                            yield from _folders(inner, depth + 1, limits)
    finally:
        os.close(own)


def _inner(folder: int, parts: list[Component], limits: Limits) -> Iterator[int]:
    """Yield the folders whose path below `folder` matches `parts`. Closes `folder`, or yields it."""
    if not parts:
        yield folder
        return
    try:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in limits.each(entries):
                if parts[0].matches(entry.name):
                    with contextlib.suppress(OSError):
                        inner = os.open(entry.name, FOLDER, dir_fd=folder)
                        yield from _inner(inner, parts[1:], limits)
    finally:
        os.close(folder)
