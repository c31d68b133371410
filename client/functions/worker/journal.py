"""The files that a warm worker writes: durable groups of outcomes, and private files and folders."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading

from . import call_files


class Journal:
    """Appends groups to the outcome file. A thread syncs them, so that calls go on meanwhile.

    wake: readable when a group is durable.
    """

    def __init__(self, path: str) -> None:
        self._fd = open_private(path, os.O_WRONLY | os.O_APPEND)
        self.wake, self._done = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._work: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.busy = False
        self.failed: OSError | None = None
        threading.Thread(target=self._sync, daemon=True).start()

    def repair(self, size: int, committed: bool) -> None:
        """Continue after the first bytes of the file, whose last group has a commit line or not.
        Raises OSError.
        """
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)
        if not committed:  # clients wait for the line
            write_all(self._fd, call_files.COMMIT)

    def begin(self, data: bytes) -> None:
        self.busy = True
        self._work.put(data)

    def finished(self) -> bool:
        """Return whether the group became durable meanwhile. Raises OSError."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 64)
        if self.failed is not None:
            raise self.failed
        return not self.busy

    def append(self, data: bytes) -> None:
        """Store a group and wait for it. Raises OSError."""
        self._store(data)

    def _sync(self) -> None:
        while True:
            data = self._work.get()
            try:
                self._store(data)
            except OSError as e:
                self.failed = e
            self.busy = False
            os.write(self._done, b"x")

    def _store(self, data: bytes) -> None:
        write_all(self._fd, data)
        os.fsync(self._fd)
        write_all(self._fd, call_files.COMMIT)


def open_private(path: str, flags: int) -> int:
    """Open a file that its owner alone can read. Raises OSError."""
    fd = os.open(
        path,
        flags
        | (os.O_CREAT if flags & (os.O_WRONLY | os.O_RDWR) else 0)
        | os.O_CLOEXEC
        | os.O_NOFOLLOW,
        0o600,
    )
    with contextlib.suppress(PermissionError):  # of another user
        os.fchmod(fd, 0o600)
    return fd


def private_folder(path: str) -> None:
    """Create a folder that its owner alone can read. Raises OSError."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    with contextlib.suppress(PermissionError):  # of another user
        os.chmod(path, 0o700)


def sync_folder(path: str) -> None:
    """Make the names of a folder durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno != errno.EINVAL:  # some network file systems store names at once
            raise
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
