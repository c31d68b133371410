"""Processes of this machine from /proc: liveness, parents, marks in the environment; and signals to
them.

A process is identified by its pid *and* its start time (field 22 of /proc/pid/stat), because pids
are reused. Uses only small modules of the standard library, because the keeper depends on this one.
Nothing here knows jobs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: The inode of every machine's first pid namespace; all other numbers are reused.
_FIRST_NAMESPACE = 0xEFFF_FFFC
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
#: States of /proc/pid/stat in which a process runs no more code: zombie and dead.
_OVER = "ZXx"
#: Stopped by a signal.
STOPPED = "T"
#: Limit of bytes read of another process's environment.
_ENVIRON_BYTES = 8 << 20
#: The process is gone, or belongs to another user.
_NOT_READABLE = (FileNotFoundError, ProcessLookupError, PermissionError)

_libc = ctypes.CDLL(None, use_errno=True)
#: A function object with declared types: in a new fork, converting each argument takes longer than
#: the call itself.
_set = _libc["prctl"]
_set.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


class Process:
    """One entry of the process table. `ticks` is its start time in clock ticks since boot."""

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
        """Whether the process has ended. A zombie has ended: it only waits for its parent to read
        its exit.
        """
        return self.state in _OVER


# ---- looking


def boot_id() -> str:
    """Return the id of the machine's current boot."""
    return _read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()


def life_id() -> str:
    """Return an id of the scope in which pids are valid: the machine's boot and, in a container,
    the container's life.

    It contains the start time of the container's first process, because namespace numbers are
    reused.
    """
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return boot_id()
    return (
        boot_id() if namespace == _FIRST_NAMESPACE else f"{boot_id()}/{namespace}-{start_ticks(1)}"
    )


def in_first_namespace() -> bool:
    """Return whether pids here are those of the kernel log."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE
    except OSError:
        return False


def find(pid: int) -> Process | None:
    """Return the process with this pid, zombies included, or None."""
    raw = _read(f"/proc/{pid}/stat")
    name_end = raw.rfind(b")")
    if name_end < 0:
        return None
    f = raw[name_end + 2 :].split(None, 20)
    return Process(pid, chr(f[0][0]), int(f[1]), int(f[2]), int(f[3]), int(f[19]))


def start_ticks(pid: int) -> int | None:
    """Return field 22 of /proc/pid/stat, or None if there is no such process."""
    found = find(pid)
    return None if found is None else found.ticks


def alive(pid: int, ticks: int) -> bool:
    """Return whether exactly this process still runs. False for a zombie and for another process
    with its pid.
    """
    found = find(pid)
    return found is not None and found.ticks == ticks and not found.over


def image(pid: int) -> int:
    """Return a number that changes when the process executes another program (the start of its
    stack); 0 if not readable.
    """
    raw = _read(f"/proc/{pid}/stat")
    f = raw[raw.rfind(b")") + 2 :].split(None, 26)
    return int(f[25]) if len(f) > 25 else 0


def children(of: int | None = None) -> list[int]:
    """Return the pids of the children of this process, or of another one, zombies included. Exact
    for a process that reaps its children itself, or is stopped.
    """
    parent = os.getpid() if of is None else of
    folder, out = f"/proc/{parent}/task", b""
    # a process is a child of the thread that created it
    for thread in os.listdir(folder):
        try:
            with open(f"{folder}/{thread}/children", "rb", buffering=0) as f:
                out += f.read() + b" "
        except (FileNotFoundError, ProcessLookupError):
            if thread == str(parent):  # a kernel without CONFIG_PROC_CHILDREN
                return [p.pid for p in table().values() if p.parent == parent]
    return [int(pid) for pid in out.split()]


def table() -> dict[int, Process]:
    """Return all processes by pid, zombies included. Not a snapshot: processes that start or end
    meanwhile may be missing.
    """
    out = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            found = find(int(entry))
            if found is not None:
                out[found.pid] = found
    return out


def with_descendants(roots: Iterable[int], processes: dict[int, Process]) -> list[int]:
    """Return these pids and all their descendants in the table, parents before children."""
    below: dict[int, list[int]] = {}
    for p in processes.values():
        below.setdefault(p.parent, []).append(p.pid)
    out = dict.fromkeys(pid for pid in roots if pid in processes)
    todo = list(out)
    for pid in todo:  # grows during the loop
        new = [child for child in below.get(pid, ()) if child not in out]
        out.update(dict.fromkeys(new))
        todo.extend(new)
    return todo


def environment(pid: int, *names: bytes) -> list[bytes | None]:
    """Return values of these variables in the environment that a process was started with; None for
    missing or unreadable ones.
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
    """Return the running processes (except this one) that were started with all of these
    `NAME=value` entries.
    """
    wanted = [e.split(b"=", 1) for e in entries]
    names, values = [w[0] for w in wanted], [w[1] for w in wanted]
    me = os.getpid()
    return [
        p for p in processes if p.pid != me and not p.over and environment(p.pid, *names) == values
    ]


def opened(pid: int, fd: int) -> str | None:
    """Return the path of the file that this process has opened as this descriptor, or None."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except _NOT_READABLE:
        return None


def holds(pid: int, fd: int, paths: Sequence[str]) -> bool:
    """Return whether a process has one of these files open as this descriptor; the first of them
    counts only if it is open to append to it, not to read it.
    """
    path = opened(pid, fd)
    if path != paths[0]:
        return path in paths
    words = _read(f"/proc/{pid}/fdinfo/{fd}").split()
    return b"flags:" in words and bool(int(words[words.index(b"flags:") + 1], 8) & os.O_APPEND)


def _read(path: str) -> bytes:
    """Return the content of a /proc file; empty if it is gone or not readable for this user.

    Raise OSError for any other reason (no descriptors, no memory), so that a failed read is not
    taken for a missing process.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except _NOT_READABLE:
        return b""
    try:
        data = os.read(fd, 65536)
        if len(data) < 4096:  # one read returns all of a short file
            return data
        while len(data) < _ENVIRON_BYTES:
            more = os.read(fd, 1 << 20)
            if not more:
                break
            data += more
        return data
    except _NOT_READABLE:  # the process ended meanwhile
        return b""
    finally:
        os.close(fd)


# ---- ending


def wake(pid: int, ticks: int, child_title: bytes) -> str:
    """Continue exactly this process if a signal has stopped it, and its stopped children with this
    title.

    Return a clause about it to append to a sentence; empty if it was not stopped.
    """
    found = find(pid)
    if found is None or found.ticks != ticks or found.state != STOPPED:
        return ""
    stopped = [p for p in table().values() if p.parent == pid and p.state == STOPPED]
    named = [p for p in stopped if _read(f"/proc/{p.pid}/cmdline").startswith(child_title)]
    woken = [str(p.pid) for p in (found, *named) if send_signal(p.pid, p.ticks, signal.SIGCONT)]
    return f"; SIGCONT sent to {', '.join(woken)}, which a signal had stopped"


def send_signal(pid: int, ticks: int, number: int) -> bool:
    """Signal exactly this process, never another one with the same pid. Return False if it is gone
    or belongs to another user.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):
        # a kernel or C library without pidfd: a small race remains
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
    """Send SIGKILL to all processes that `look` returns, until it returns none or the time has
    elapsed. Return the number of remaining processes.

    Blocks. Processes forked meanwhile are found in the next round.
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
    """Make orphans below this process its children from now on. Return whether the kernel supports
    this.
    """
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int) -> bool:
    """Get this signal when the parent ends (exactly: the thread that created this process); 0: no
    signal.

    A parent that has already ended sends nothing: compare `os.getppid()` afterwards.
    """
    return _prctl(_PR_SET_PDEATHSIG, number)


def set_dumpable(on: bool) -> bool:
    """False: no core dump, and other processes of the same user cannot read this one's memory,
    environment or descriptors.
    """
    return _prctl(_PR_SET_DUMPABLE, int(on))


def set_title(name: str, root: str) -> bool:
    """Show this process in `ps` as `<name> <root>`, by overwriting its arguments. Return False if
    that is not possible.
    """
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)
    raw = _read("/proc/self/stat")
    f = raw[raw.rfind(b")") + 2 :].split()
    if len(f) < 47:
        return False
    begin, end = int(f[45]), int(f[46])
    length = end - begin
    # compare with /proc to be sure that this is the memory of the arguments
    if (
        begin <= 0
        or length <= 1
        or ctypes.string_at(begin, length) != _read("/proc/self/cmdline")[:length]
    ):
        return False
    title = f"{name} {root}".encode("utf-8", "surrogateescape")[: length - 1]
    ctypes.memmove(begin, title.ljust(length, b"\0"), length)
    return True


def _prctl(option: int, value: int) -> bool:
    return int(_set(option, value, 0, 0, 0)) == 0
