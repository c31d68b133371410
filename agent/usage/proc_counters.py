"""What processes have taken so far, as /proc counts it, and what is not lost when one of them ends.
Reads only.

A process that is waited for leaves its counts to the one that waited; one that nobody of the same
job waits for takes them along. `lost` finds out which, from two looks, and never counts anything
twice.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

TICK_SECS = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")
#: States of /proc/pid/stat of a process that is over: it has counts, and no memory.
_OVER = b"ZXx"
#: The process is gone, or it is another user's.
_NOT_TO_READ = (FileNotFoundError, ProcessLookupError, PermissionError)


class Process(NamedTuple):
    """ticks: its start, which names it together with its pid. cpu: seconds of it and of the
    children it waited for; waited: of these.
    """

    pid: int
    ticks: int
    parent: int
    session: int
    threads: int
    over: bool
    cpu: float
    waited: float


class Traffic(NamedTuple):
    """Bytes from and to disks, of a process and of the children it waited for."""

    read: int
    written: int


def process(pid: int) -> Process | None:
    """None where there is no such process."""
    raw = _read(f"/proc/{pid}/stat")
    end = 0 if raw is None else raw.rfind(b")")
    if raw is None or end < 0:
        return None
    f = raw[end + 2 :].split(None, 20)
    own, waited = int(f[11]) + int(f[12]), int(f[13]) + int(f[14])
    return Process(
        pid,
        int(f[19]),
        int(f[1]),
        int(f[3]),
        int(f[17]),
        f[0] in _OVER,
        (own + waited) * TICK_SECS,
        waited * TICK_SECS,
    )


def children(p: Process) -> list[int] | None:
    """Pids of its children; None where this kernel does not tell. One that comes or goes meanwhile
    may be missed.
    """
    out: list[int] = []
    try:
        threads = [str(p.pid)] if p.threads <= 1 else os.listdir(f"/proc/{p.pid}/task")
    except _NOT_TO_READ:
        return out
    for thread in threads:
        raw = _read(f"/proc/{p.pid}/task/{thread}/children")
        if raw is not None:
            out += [int(pid) for pid in raw.split()]
        elif os.path.exists(f"/proc/{p.pid}/task/{thread}/stat"):
            return None
    return out


def cgroup_cpu_secs(folder: str) -> float | None:
    """Seconds of processors that all who ever were in this cgroup took; None where nobody counts
    that (version 1 does it elsewhere).
    """
    words = (_read(f"{folder}/cpu.stat") or b"").split()
    return int(words[words.index(b"usage_usec") + 1]) / 1e6 if b"usage_usec" in words else None


def traffic(pid: int) -> Traffic | None:
    """None where it is not to be read: it runs as somebody else, this kernel does not count, or it
    is gone.
    """
    raw = _read(f"/proc/{pid}/io")
    said = dict(line.split(b": ", 1) for line in (raw or b"").splitlines())
    return (
        Traffic(int(said[b"read_bytes"]), int(said[b"write_bytes"]))
        if b"write_bytes" in said
        else None
    )


def memory(p: Process) -> int | None:
    """Bytes of it in memory, what it shares divided among those who share it; None where it is
    gone.

    Where it does not show that (it runs as somebody else; an old kernel), all of what it shares is
    counted.
    """
    if p.over:
        return 0
    raw = _read(f"/proc/{p.pid}/smaps_rollup")
    begin = -1 if raw is None else raw.find(b"\nPss:")
    if raw is not None and begin >= 0:
        return int(raw[begin + 5 :].split(None, 1)[0]) * 1024
    resident = _read(f"/proc/{p.pid}/statm")
    return None if resident is None else int(resident.split()[1]) * _PAGE


def lost(
    before: Mapping[int, Process],
    now: Mapping[int, Process],
    total: Mapping[int, float],
    handed: Mapping[int, float],
) -> float:
    """Of the counts that were there before, so much is in nobody's counts now: at least, never
    more.

    total: counts of each process before. handed: by how much those who are still there may have
    grown by waiting for others.
    """
    gone = {pid for pid, p in before.items() if pid not in now or now[pid].ticks != p.ticks}
    owed: dict[int, float] = {}
    for pid in gone:
        above = before[pid].parent
        while above in gone:
            above = before[above].parent
        heir = above if above in before else 0
        owed[heir] = owed.get(heir, 0.0) + total.get(pid, 0.0)
    return sum(
        max(0.0, amount - (handed.get(heir, 0.0) if heir else 0.0)) for heir, amount in owed.items()
    )


def _read(path: str) -> bytes | None:
    """None where it is gone, or not ours to read. Raises OSError where this process is short of
    something.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while data := os.read(fd, 65536):
                parts.append(data)
            return b"".join(parts)
        finally:
            os.close(fd)
    except _NOT_TO_READ:
        return None
