"""Creation of processes inside cgroups of version 1, by a thread that enters the cgroups.

With version 1, a thread can be in other cgroups than its process, and a new process begins in those
of the thread that creates it. So `posix_spawn` creates the job inside, for 0.7 ms of CPU time. A
fork of this process that moves itself before it executes the job takes 2.3 ms.

The memory of this process is not charged to the job meanwhile: the kernel charges the cgroup of the
main thread. The thread is back in its own cgroups before `spawn` returns, so that no list of a
job's processes has this process.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import time

from .spawn import Program, Setting, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PAUSE_SECS = 0.0005
_WRITE = os.O_WRONLY | os.O_CLOEXEC


class SpawningThread:
    """A thread that spawns one process at a time, while its caller waits. own: files through which
    a thread enters the cgroups of this process.
    """

    def __init__(self, own: Sequence[str]) -> None:
        """Raises OSError."""
        self._own: list[int] = []
        try:
            for path in own:
                self._own.append(os.open(path, _WRITE))
        except OSError:
            for fd in self._own:
                os.close(fd)
            raise
        self._wanted, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        self._wanted.acquire()
        self._done.acquire()
        self._request: tuple[Sequence[str | int], Program, Setting] | None = None
        self._result: int | BaseException = 0
        #: id of the thread while it runs; and whether it is about to end
        self._id, self._ends = 0, False

    def spawn(self, entries: Sequence[str | int], program: Program, setting: Setting) -> int:
        """Like `spawn.spawn`, in the cgroups that these files control: paths or descriptors. Raises
        OSError.
        """
        if not self._id:
            try:
                _thread.start_new_thread(self._run, ())
            except RuntimeError:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
        self._request = (entries, program, setting)
        self._wanted.release()
        self._done.acquire()
        if self._ends:
            self._wait_for_end()
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result

    def _run(self) -> None:
        self._id = _thread.get_native_id()
        while not self._ends:
            self._wanted.acquire()
            assert self._request is not None
            entries, program, setting = self._request
            for entry in entries:
                if isinstance(entry, int):
                    _enter(entry)
                    continue
                with contextlib.suppress(OSError):  # the cgroup is gone
                    fd = os.open(entry, _WRITE)
                    _enter(fd)
                    os.close(fd)
            try:
                self._result = spawn(program, setting)
            except BaseException as error:
                self._result = error
            # a thread that cannot leave ends
            self._ends = sum(map(_enter, self._own)) < len(self._own)
            self._done.release()

    def _wait_for_end(self) -> None:
        """Wait until the thread has ended. (The caller waits: a thread that it creates would begin
        in the job's cgroups, too.)
        """
        while os.path.exists(f"/proc/self/task/{self._id}"):
            time.sleep(_PAUSE_SECS)
        self._id, self._ends = 0, False


def _enter(tasks: int) -> bool:
    """Move this thread to the cgroup of this file. Return whether that worked."""
    try:
        return os.write(tasks, b"0") == 1
    except OSError:
        return False
