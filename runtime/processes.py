"""Processes of this machine as /proc shows them: who is alive, whose child, what marks it carries;
and how to end them.

A process is named by its pid *and* its start time (field 22 of /proc/pid/stat): a pid alone is used
again sooner or later. Standard library only, and only its small modules, because the keeper lives
on this one. Nothing here knows what a job is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: The number of the first pid namespace of every machine; all others are given to one after the
#: other again and again.
_FIRST_NAMESPACE = 0xEFFF_FFFC
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
#: States of /proc/pid/stat in which a process runs no more code: zombie and dead.
_OVER = "ZXx"
#: Stopped by a signal.
STOPPED = "T"
#: What is read of another process's environment at most.
_ENVIRON_BYTES = 8 << 20
#: The process is gone, or it is another user's.
_NOT_TO_SEE = (FileNotFoundError, ProcessLookupError, PermissionError)

_libc = ctypes.CDLL(None, use_errno=True)
#: A function object of its own, which knows its types: converting each argument by hand costs a
#: fresh fork more than the call does.
_set = _libc["prctl"]
_set.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


class Process:
    """One line of the process table. `ticks` is its start time in clock ticks since boot."""

    __slots__ = ("group", "parent", "pid", "session", "state", "ticks")

    def __init__(
        self, pid: int, state: str, parent: int, group: int, session: int, ticks: int
    ) -> None:
        self.pid, self.state, self.parent, self.group, self.session, self.ticks = (
            pid,
            state,
            parent,
            group,
            session,
            ticks,
        )

    @property
    def over(self) -> bool:
        """A zombie is over: it only waits for somebody to read its exit."""
        return self.state in _OVER


# ---- looking


def boot_id() -> str:
    """Names the current boot of this machine."""
    return _read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()


def life_id() -> str:
    """Names what pids mean here: the boot of this machine and, in a container, the life of that.

    Without the start of its first process a container that has an earlier one's number would be
    taken for it.
    """
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return boot_id()
    return (
        boot_id() if namespace == _FIRST_NAMESPACE else f"{boot_id()}/{namespace}-{start_ticks(1)}"
    )


def in_first_namespace() -> bool:
    """Are pids here those that the kernel writes into its log?"""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE
    except OSError:
        return False


def find(pid: int) -> Process | None:
    """The process with this pid now, zombies included."""
    raw = _read(f"/proc/{pid}/stat")
    name_end = raw.rfind(b")")
    if name_end < 0:
        return None
    f = raw[name_end + 2 :].split(None, 20)
    return Process(pid, chr(f[0][0]), int(f[1]), int(f[2]), int(f[3]), int(f[19]))


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/pid/stat; None where there is no such process."""
    found = find(pid)
    return None if found is None else found.ticks


def alive(pid: int, ticks: int) -> bool:
    """Does exactly this process still run? A zombie does not, nor does another process with its
    pid.
    """
    found = find(pid)
    return found is not None and found.ticks == ticks and not found.over


def image(pid: int) -> int:
    """A number that changes when the process executes another program (where its stack began); 0
    where that is not to be seen.
    """
    raw = _read(f"/proc/{pid}/stat")
    f = raw[raw.rfind(b")") + 2 :].split(None, 26)
    return int(f[25]) if len(f) > 25 else 0


def children() -> list[int]:
    """Pids of this process's own children, zombies included. Exact for a process without other
    threads that reaps by itself.
    """
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb", buffering=0) as f:
            return [int(pid) for pid in f.read(1 << 20).split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [p.pid for p in table().values() if p.parent == me]


def table() -> dict[int, Process]:
    """All processes by pid, zombies included. Not a snapshot: what comes and goes meanwhile may be
    missed, so look again.
    """
    out = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            found = find(int(entry))
            if found is not None:
                out[found.pid] = found
    return out


def with_descendants(roots: Iterable[int], processes: dict[int, Process]) -> list[int]:
    """These pids and everything below them in the table, as far as it is in there; parents before
    their children.
    """
    below: dict[int, list[int]] = {}
    for p in processes.values():
        below.setdefault(p.parent, []).append(p.pid)
    out = dict.fromkeys(pid for pid in roots if pid in processes)
    todo = list(out)
    for pid in todo:  # grows while it is walked
        new = [child for child in below.get(pid, ()) if child not in out]
        out.update(dict.fromkeys(new))
        todo.extend(new)
    return todo


def environment(pid: int, *names: bytes) -> list[bytes | None]:
    """Values of these variables in the environment a process was started with; None for what is not
    there or not readable.
    """
    entries = b"\0" + _read(f"/proc/{pid}/environ")
    out: list[bytes | None] = []
    for name in names:
        begin = entries.find(b"\0" + name + b"=")
        if begin < 0:
            out.append(None)
        else:
            begin += len(name) + 2
            end = entries.find(b"\0", begin)
            out.append(entries[begin:] if end < 0 else entries[begin:end])
    return out


def marked(entries: Iterable[bytes], processes: Iterable[Process]) -> list[Process]:
    """Those (but not this process itself) that still run and were started with all of these
    `NAME=value` entries.
    """
    wanted = [e.split(b"=", 1) for e in entries]
    names, values = [w[0] for w in wanted], [w[1] for w in wanted]
    me = os.getpid()
    return [
        p for p in processes if p.pid != me and not p.over and environment(p.pid, *names) == values
    ]


def holds(pid: int, path: str) -> bool:
    """Has this process opened this file (an absolute path without symbolic links)?"""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except _NOT_TO_SEE:
        return False
    for fd in descriptors:
        with contextlib.suppress(*_NOT_TO_SEE):  # closed in the meantime
            if os.readlink(f"/proc/{pid}/fd/{fd}") == path:
                return True
    return False


def _read(path: str) -> bytes:
    """The whole of a /proc file; empty where it is gone or not ours to read.

    Raises OSError for any other reason (no descriptors, no memory): that nobody is seen must not
    look like nobody is there.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except _NOT_TO_SEE:
        return b""
    try:
        data = os.read(fd, 65536)
        if len(data) < 4096:  # one read gives all of a short one
            return data
        while len(data) < _ENVIRON_BYTES:
            more = os.read(fd, 1 << 20)
            if not more:
                break
            data += more
        return data
    except _NOT_TO_SEE:  # the process ended meanwhile
        return b""
    finally:
        os.close(fd)


# ---- ending


def wake(pid: int, ticks: int, child_title: bytes) -> str:
    """Let exactly this process go on where a signal has stopped it, and its stopped children with
    this title.

    Returns what was done, to be put behind a sentence; empty where it was not stopped.
    """
    found = find(pid)
    if found is None or found.ticks != ticks or found.state != STOPPED:
        return ""
    stopped = [p for p in table().values() if p.parent == pid and p.state == STOPPED]
    named = [p for p in stopped if _read(f"/proc/{p.pid}/cmdline").startswith(child_title)]
    woken = [str(p.pid) for p in (found, *named) if send_signal(p.pid, p.ticks, signal.SIGCONT)]
    return f"; SIGCONT sent to {', '.join(woken)}, which a signal had stopped"


def send_signal(pid: int, ticks: int, number: int) -> bool:
    """Signal exactly this process; False where it is gone or not ours to signal. Never hits another
    one with the same pid.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except (
        OSError,
        AttributeError,
    ):  # a kernel or C library before pidfd: a small window stays open
        return _kill_by_pid(pid, ticks, number)
    try:
        if start_ticks(pid) != ticks:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)


def _kill_by_pid(pid: int, ticks: int, number: int) -> bool:
    if start_ticks(pid) != ticks:
        return False
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_until_gone(look: Callable[[], list[Process]], timeout_secs: float) -> int:
    """SIGKILL whatever `look` finds, again and again until it finds nothing or the time is over.
    Returns how many were left.

    Blocks. A process that forks while it is killed is met in the next round.
    """
    until = time.monotonic() + timeout_secs
    pause = 0.001
    while True:
        left = [p for p in look() if not p.over]
        if not left or time.monotonic() > until:
            return len(left)
        for p in left:
            send_signal(p.pid, p.ticks, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


# ---- this process itself


def become_subreaper() -> bool:
    """Orphans below this process become its children from now on, as far as the kernel can do that."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int) -> bool:
    """Get this signal when the parent (exactly: the thread of it that made this process) ends; 0:
    none any more.

    A parent that is over already sends nothing: compare `os.getppid()` afterwards.
    """
    return _prctl(_PR_SET_PDEATHSIG, number)


def set_dumpable(on: bool) -> bool:
    """Off: no core dump, and other processes of the same user cannot read this one's memory,
    environment or descriptors.
    """
    return _prctl(_PR_SET_DUMPABLE, int(on))


def set_title(name: str, root: str) -> bool:
    """Show this process in `ps` as `<name> <root>`, written over its own arguments. False where
    that cannot be done.
    """
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)
    raw = _read("/proc/self/stat")
    f = raw[raw.rfind(b")") + 2 :].split()
    if len(f) < 47:
        return False
    begin, end = int(f[45]), int(f[46])
    room = end - begin
    # the very bytes that /proc shows must lie there, or this is not the memory it seems to be
    if (
        begin <= 0
        or room <= 1
        or ctypes.string_at(begin, room) != _read("/proc/self/cmdline")[:room]
    ):
        return False
    title = f"{name} {root}".encode("utf-8", "surrogateescape")[: room - 1]
    ctypes.memmove(begin, title.ljust(room, b"\0"), room)
    return True


def _prctl(option: int, value: int) -> bool:
    return int(_set(option, value, 0, 0, 0)) == 0
