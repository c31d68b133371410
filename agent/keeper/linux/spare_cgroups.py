"""Cgroups of version 1 that short executions use in turn: to create and remove one takes 0.1 ms of the
keeper, and as much of kernel threads.

A cgroup is used again only if no process is in it, no setting differs from those of a new one, no
process in it was killed for lack of memory, and it holds little memory. Its folders are renamed, so
that a folder `job-<execution>` is always that of this execution. Its files stay open meanwhile.
"""

from __future__ import annotations

import contextlib
import os

from .cgroup_mounts import read

#: Limit of cgroups with open files; the others are created and removed.
_MOST = 8
#: Memory (bytes) of an ended execution that may count for the next one: caches of the kernel.
_LEFT_BYTES = 1 << 20
#: Files that a job may have written, and the counter of kills. Not every kernel has all of them.
_COMPARED = (
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "memory.kmem.limit_in_bytes",
    "memory.swappiness",
    "memory.oom_control",
)
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class CgroupFiles:
    """Open files of a new cgroup, and their contents. folder: of the freezer. tasks: descriptors
    through which a thread enters it.
    """

    __slots__ = ("_compared", "_fds", "_fresh", "_peak", "_places", "_usage", "tasks")

    def __init__(self, folder: str, memory: str) -> None:
        """Raises OSError."""
        self._fds: list[int] = []
        try:
            self.tasks = [self._open(f"{place}/tasks", os.O_WRONLY) for place in (memory, folder)]
            self._places = [self._open(place, os.O_DIRECTORY) for place in (memory, folder)]
            self._peak = self._open(f"{memory}/memory.max_usage_in_bytes", os.O_WRONLY)
            self._usage = self._open(f"{memory}/memory.usage_in_bytes", os.O_RDONLY)
            self._compared = [self._open(f"{folder}/freezer.state", os.O_RDONLY)]
            for name in _COMPARED:
                with contextlib.suppress(FileNotFoundError):
                    self._compared.append(self._open(f"{memory}/{name}", os.O_RDONLY))
            self._fresh = self._state()
        except OSError:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return not self._fds

    def close(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def is_as_new(self) -> bool:
        """Return whether it differs from a new cgroup by little memory at most; then the highest
        memory is counted anew. Raises OSError.
        """
        if self._state() != self._fresh or int(os.pread(self._usage, 64, 0)) > _LEFT_BYTES:
            return False
        os.write(self._peak, b"0")
        return True

    def _open(self, path: str, flags: int) -> int:
        fd = os.open(path, flags | _FLAGS)
        self._fds.append(fd)
        return fd

    def _state(self) -> tuple[list[bytes], list[tuple[int, int, int]]]:
        """Return the settings and, of both folders, mode, owner and number of links, which counts
        child cgroups.
        """
        places = [os.fstat(fd) for fd in self._places]
        return (
            [os.pread(fd, 4096, 0) for fd in self._compared],
            [(at.st_mode, at.st_uid, at.st_nlink) for at in places],
        )


class SpareCgroups:
    """Folders of cgroups for the next executions. name: of their first folder, before its number."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name, 0
        self._files: list[CgroupFiles] = []
        self._free: list[tuple[str, str, CgroupFiles]] = []

    def opened(self, folder: str, memory: str) -> CgroupFiles | None:
        """Return the open files of a new cgroup that may be used again, or None if enough may be."""
        self._files = [files for files in self._files if not files.closed]
        if len(self._files) >= _MOST:
            return None
        try:
            files = CgroupFiles(folder, memory)
        except OSError:  # for example no descriptors
            return None
        self._files.append(files)
        return files

    def take(self, folder: str, memory: str) -> CgroupFiles | None:
        """Give a spare cgroup these folders, which do not exist; None if there is none."""
        while self._free:
            old_folder, old_memory, files = self._free.pop()
            if _rename(((old_memory, memory), (old_folder, folder))):
                return files
            files.close()
        return None

    def give(self, folder: str, memory: str, files: CgroupFiles) -> bool:
        """Keep the cgroup of an ended execution, without processes in the freezer. Returns False if
        it must not be used again; then nothing has changed.
        """
        self._count += 1
        new = [f"{os.path.dirname(at)}/{self._name}{self._count}" for at in (folder, memory)]
        try:
            # not from a file that stays open: the kernel would repeat an earlier answer
            if read(f"{memory}/cgroup.procs") or not files.is_as_new():
                return False
        except OSError:  # it was removed
            return False
        if not _rename(((memory, new[1]), (folder, new[0]))):
            return False
        self._free.append((new[0], new[1], files))
        return True


def _rename(pairs: tuple[tuple[str, str], ...]) -> bool:
    """Rename all folders, or none of them."""
    done: list[tuple[str, str]] = []
    try:
        for old, new in pairs:
            os.rename(old, new)
            done.append((old, new))
    except OSError:
        for old, new in done:
            with contextlib.suppress(OSError):
                os.rename(new, old)
        return False
    return True
