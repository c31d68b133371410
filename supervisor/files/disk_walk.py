"""Measures the size of a folder of a user. Blocks; call it in a thread.

It follows no link, stays on one file system, and opens every folder relative to its parent: users'
jobs may change the folders meanwhile. It rests as long as it works, so that it takes at most half of
a processor and of the disk's time.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from .safe_paths import open_folder, step

#: Deepest folder that is measured, below the first one: each level keeps two descriptors open.
MAX_DEPTH = 100
#: Hard links of one walk that are remembered, so that a file counts once.
MAX_LINKS = 100_000
#: Entries between two rests.
PIECE = 256
_BLOCK = 512


class Size(msgspec.Struct, frozen=True, array_like=True):
    """bytes: allocated on disk, so a sparse file counts what it takes. complete: everything was
    measured; False if a folder could not be read.
    """

    bytes: int = 0
    files: int = 0
    complete: bool = True

    def __add__(self, other: "Size") -> "Size":
        return Size(
            self.bytes + other.bytes, self.files + other.files, self.complete and other.complete
        )


class Stopped(Exception):
    """The walk was told to stop."""


class Walk:
    """One measurement. go_on: returns whether to continue."""

    def __init__(
        self,
        go_on: Callable[[], bool] = lambda: True,
        mono: Callable[[], float] = time.monotonic,
        rest: Callable[[float], object] = time.sleep,
    ) -> None:
        self._go_on, self._mono, self._rest = go_on, mono, rest
        self._entries, self._since = 0, mono()
        self._links: set[tuple[int, int]] = set()

    def size(self, base: str, parts: Sequence[str]) -> Size:
        """Return the size of the folder `parts` below `base`, which belongs to the operator; nothing
        if it is missing, or is no folder. Raises Stopped.
        """
        try:
            top = open_folder(base, parts)
        except FileNotFoundError:
            return Size()
        except NotADirectoryError:
            return Size()
        except OSError:
            return Size(complete=False)
        try:
            info = os.fstat(top)
            return Size(info.st_blocks * _BLOCK, 0) + self._inside(top, info.st_dev, 0)
        finally:
            os.close(top)

    def folders(self, base: str, parts: Sequence[str]) -> tuple[list[str], Size]:
        """Return the names of the folders in a folder, and the size of everything else in it with
        the folder itself.
        """
        names: list[str] = []
        total = Size()
        try:
            top = open_folder(base, parts)
        except OSError:
            return [], Size()
        try:
            total += Size(os.fstat(top).st_blocks * _BLOCK)
            with os.scandir(top) as entries:
                for entry in entries:
                    self._pace()
                    if entry.is_dir(follow_symlinks=False):
                        names.append(entry.name)
                    else:
                        total += self._file(entry)
        except OSError:
            total += Size(complete=False)
        finally:
            os.close(top)
        return sorted(names), total

    def _inside(self, folder: int, device: int, depth: int) -> Size:
        """Return the size of everything in an open folder. The recursion ends at MAX_DEPTH."""
        size, files, complete = 0, 0, True
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._pace()
                    inner = (
                        self._folder(folder, entry.name, device, depth + 1)
                        if entry.is_dir(follow_symlinks=False)
                        else self._file(entry)
                    )
                    size, files = size + inner.bytes, files + inner.files
                    complete = complete and inner.complete
        except OSError:
            complete = False
        return Size(size, files, complete)

    def _folder(self, parent: int, name: str, device: int, depth: int) -> Size:
        if depth > MAX_DEPTH:
            return Size(complete=False)
        try:
            with _opened(parent, name) as inner:
                info = os.fstat(inner)
                if info.st_dev != device:
                    return Size()  # another file system: it is not the users' disk
                return Size(info.st_blocks * _BLOCK) + self._inside(inner, device, depth)
        except (FileNotFoundError, NotADirectoryError):
            return Size()  # removed or replaced meanwhile
        except OSError:
            return Size(complete=False)

    def _file(self, entry: "os.DirEntry[str]") -> Size:
        try:
            info = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return Size()
        except OSError:
            return Size(complete=False)
        if info.st_nlink > 1 and stat.S_ISREG(info.st_mode):
            if (info.st_dev, info.st_ino) in self._links:
                return Size()
            if len(self._links) < MAX_LINKS:
                self._links.add((info.st_dev, info.st_ino))
        return Size(info.st_blocks * _BLOCK, 1)

    def _pace(self) -> None:
        self._entries += 1
        if self._entries % PIECE:
            return
        if not self._go_on():
            raise Stopped
        self._rest(min(1.0, max(0.0, self._mono() - self._since)))
        self._since = self._mono()


@contextmanager
def _opened(parent: int, name: str) -> Iterator[int]:
    fd = step(parent, name)
    try:
        yield fd
    finally:
        os.close(fd)
