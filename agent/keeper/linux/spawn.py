"""Creation of an execution's process: by posix_spawn, or directly inside a cgroup.

A process created inside a cgroup of version 2 never runs outside of it, and need not be moved: a
move would take a lock of the whole machine. Not every C library offers this, so the system call is
made by number. Then, and with version 1, the child does by hand what posix_spawn does. No other
code may run there before `execve`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import signal
import struct

from ....runtime import processes
from .priority import batch_thread, begin_batch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SYS_CLONE3 = 435  # the same number on every architecture
_CLONE_VFORK, _CLONE_INTO_CGROUP = 0x4000, 0x2_0000_0000
_ARGUMENTS = struct.Struct("11Q")
_FAILED = 127
#: Children of a new process are confined until this number of processes is known: it may create
#: them faster than they are found.
_FAMILY = 1000

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc["syscall"]
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_size_t]


class NotInside(Exception):
    """The kernel or its policy does not allow creating a process inside a cgroup. No process was
    created.
    """


class Program:
    """A program to execute: its path, its arguments with argv[0], and its environment."""

    __slots__ = ("arguments", "environment", "path")

    def __init__(
        self, path: bytes, arguments: list[bytes], environment: dict[bytes, bytes]
    ) -> None:
        self.path, self.arguments, self.environment = path, arguments, environment


class Setting:
    """The settings of a new process.

    descriptors: (descriptor here, descriptor in the process). umask; core: the limit of core dumps
    in bytes. oom_score: least score of the out-of-memory killer. ignored: signals that this process
    ignores and the new one must not.
    """

    __slots__ = ("core", "descriptors", "directory", "ignored", "oom_score", "umask")

    def __init__(
        self,
        directory: str,
        descriptors: list[tuple[int, int]],
        umask: int,
        core: int,
        oom_score: int,
        ignored: Sequence[int],
    ) -> None:
        self.directory, self.descriptors, self.umask = directory, descriptors, umask
        self.core, self.oom_score, self.ignored = core, oom_score, ignored


def spawn(program: Program, setting: Setting) -> int:
    """Spawn a session leader with this setting, default signals and the policy of batch processes;
    return its pid. Raises OSError.

    This process changes its own directory, umask and core limit for the moment of the call: it has
    one thread. The hard core limit and the score follow right after the start, because this process
    could not change its own back.
    """
    hard = _core_limit(setting.core)[1]
    before = os.umask(setting.umask)
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        if limits[0] != hard:
            resource.setrlimit(resource.RLIMIT_CORE, (hard, limits[1]))
        os.chdir(setting.directory)
        with batch_thread():
            pid = os.posix_spawn(
                program.path,
                program.arguments,
                program.environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, *pair) for pair in setting.descriptors],
                setsid=True,
                setsigmask=(),
                setsigdef=setting.ignored,
            )
    finally:
        os.chdir("/")
        os.umask(before)
        if limits[0] != hard:
            resource.setrlimit(resource.RLIMIT_CORE, limits)
    _confine(pid, None if limits[1] == hard else hard, setting.oom_score)
    return pid


def spawn_in_cgroup(
    cgroup: str | None, enter: Sequence[str], program: Program, setting: Setting
) -> int:
    """Like `spawn`, but inside this cgroup folder, or (None) after an entry into the cgroups that
    these files control. Raises OSError or NotInside.
    """
    folder = -1 if cgroup is None else os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    # a signal between here and execve would run the keeper's handlers in the child
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork() if cgroup is None else _clone(folder)
        if pid == 0:
            _exec_child(write_end, enter, program, setting)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write_end)
        write_end = -1
        failure = os.read(read_end, 16)
        if failure:
            os.waitpid(pid, 0)
            raise OSError(int(failure), os.strerror(int(failure)), os.fsdecode(program.path))
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for fd in (folder, read_end, write_end):
            if fd >= 0:
                os.close(fd)


def _core_limit(size: int) -> tuple[int, int]:
    """Return the requested core limit, or the highest that is allowed, as soft and hard limit."""
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    size = size if most == resource.RLIM_INFINITY else min(size, most)
    return size, size


def _confine(pid: int, core: int | None, oom_score: int) -> None:
    """Give a running process its hard core limit (None: it has it) and its score.

    It may have created children before: on a busy machine a shell starts its first command sooner.
    Each process is confined before its children are listed, so later children inherit both.
    """
    if core is None and oom_score <= own_oom_score():
        return
    family = [pid]
    for each in family:  # grows during the loop
        with contextlib.suppress(OSError):  # it has ended, or runs as another user
            if core is not None:
                resource.prlimit(each, resource.RLIMIT_CORE, (core, core))
            _raise_oom_score(each, oom_score)
            if len(family) < _FAMILY:
                family += processes.children(each)


def _raise_oom_score(pid: int, least: int) -> None:
    """Make the kernel kill this process and its children before others when memory runs out."""
    if least > own_oom_score():
        _write(f"/proc/{pid}/oom_score_adj", str(least).encode())


@functools.cache
def own_oom_score() -> int:
    """Return the score adjustment of this process, which its children inherit."""
    try:
        with open("/proc/self/oom_score_adj", "rb") as f:
            return int(f.read())
    except OSError:
        return 1000  # there is nothing to raise


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


def _exec_child(write_end: int, enter: Sequence[str], program: Program, setting: Setting) -> None:
    """Set up the child and execute the program. Never returns."""
    try:
        for path in enter:
            with contextlib.suppress(OSError):  # the cgroup is gone
                _write(path, b"0")
        os.setsid()
        begin_batch()
        for here, there in setting.descriptors:
            os.dup2(here, there)
        with contextlib.suppress(OSError):
            _raise_oom_score(os.getpid(), setting.oom_score)
        resource.setrlimit(resource.RLIMIT_CORE, _core_limit(setting.core))
        os.umask(setting.umask)
        os.chdir(setting.directory)
        signal.set_wakeup_fd(-1)
        for number in (*setting.ignored, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(program.path, program.arguments, program.environment)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(write_end, str(error.errno or 5).encode())
    finally:
        os._exit(_FAILED)


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
