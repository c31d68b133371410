"""Creation of an execution's shell: by posix_spawn, or directly inside a cgroup of version 2.

A process created inside a cgroup never runs outside of it, and need not be moved: a move would take
a lock of the whole machine. Not every C library offers this, so the system call is made by number,
and the child does by hand what posix_spawn does. No other code may run there before `execve`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    #: (descriptor, path, flags, mode) of a file open in the child
    Opened = tuple[int, str, int, int]

_SYS_CLONE3 = 435  # the same number on every architecture
_CLONE_VFORK, _CLONE_INTO_CGROUP = 0x4000, 0x2_0000_0000
_ARGUMENTS = struct.Struct("11Q")
_FAILED = 127

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc["syscall"]
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_size_t]


class NotInside(Exception):
    """The kernel or its policy does not allow creating a process inside a cgroup. No process was
    created.
    """


def spawn(
    program: str,
    arguments: list[str],
    environment: Mapping[bytes, bytes],
    opened: Sequence[Opened],
    lock_fd: int,
    lock_as: int,
    ignored: Sequence[int],
) -> int:
    """Spawn a session leader with these files and default signals; return its pid. Raises OSError."""
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, *file) for file in opened]
    actions.append((os.POSIX_SPAWN_DUP2, lock_fd, lock_as))
    return os.posix_spawn(
        program,
        arguments,
        environment,
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        setsigdef=ignored,
    )


def spawn_in_cgroup(
    cgroup: str,
    program: str,
    arguments: list[str],
    environment: Mapping[bytes, bytes],
    opened: Sequence[Opened],
    lock_fd: int,
    lock_as: int,
    ignored: Sequence[int],
) -> int:
    """Like `spawn`, but inside this cgroup folder. Raises OSError or NotInside."""
    folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    # a signal between here and execve would run the keeper's handlers in the child
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = _clone(folder)
        if pid == 0:
            _exec_child(
                write_end, program, arguments, environment, opened, lock_fd, lock_as, ignored
            )
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write_end)
        write_end = -1
        failure = os.read(read_end, 16)
        if failure:
            os.waitpid(pid, 0)
            raise OSError(int(failure), os.strerror(int(failure)), program)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for fd in (folder, read_end, write_end):
            if fd >= 0:
                os.close(fd)


def _clone(folder: int) -> int:
    arguments = _ARGUMENTS.pack(
        _CLONE_VFORK | _CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, folder
    )
    pid = int(_syscall(_SYS_CLONE3, arguments, len(arguments)))
    if pid >= 0:
        return pid
    number = ctypes.get_errno()
    error = OSError(number, os.strerror(number))
    # EAGAIN or ENOMEM, no processes or memory left: moving a process in would fail as well
    if isinstance(error, BlockingIOError) or number == 12:
        raise error
    raise NotInside(error.strerror)


def _exec_child(
    write_end: int,
    program: str,
    arguments: list[str],
    environment: Mapping[bytes, bytes],
    opened: Sequence[Opened],
    lock_fd: int,
    lock_as: int,
    ignored: Sequence[int],
) -> None:
    """Set up the child and execute the program. Never returns."""
    try:
        os.setsid()
        for fd, path, flags, mode in opened:
            opened_fd = os.open(path, flags, mode)
            if opened_fd != fd:
                os.dup2(opened_fd, fd)
                os.close(opened_fd)
            else:
                os.set_inheritable(fd, True)
        os.dup2(lock_fd, lock_as)
        signal.set_wakeup_fd(-1)
        for number in (*ignored, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(program, arguments, environment)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(write_end, str(error.errno or 5).encode())
    finally:
        os._exit(_FAILED)
