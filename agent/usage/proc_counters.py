"""Counters of processes in /proc, and counts that are lost when a process ends. Reads only.

A reaped process leaves its counts to its parent; if the parent is not of the same job, they are
lost for the job. `lost` compares two samples to find these, and never counts anything twice.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

TICK_SECS = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")
#: States of /proc/pid/stat of an ended process: it has counts, but no memory.
_OVER = b"ZXx"
#: The process has ended, or belongs to another user.
_NOT_TO_READ = (FileNotFoundError, ProcessLookupError, PermissionError)


class Process(NamedTuple):
    """Counters of one process. ticks: start time, which identifies it together with its pid. cpu:
    CPU seconds, including those of reaped children; waited: the children's part.
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
    """Bytes read from and written to disks by a process and its reaped children."""

    read: int
    written: int


def process(pid: int) -> Process | None:
    """Return the process, or None if it does not exist."""
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
    """Return the pids of its children, or None if this kernel does not list them. A child that
    starts or ends meanwhile may be missed.
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
    """Return CPU seconds of all processes that ever were in this cgroup.

    None if they are not counted there (version 1 counts elsewhere).
    """
    words = (_read(f"{folder}/cpu.stat") or b"").split()
    return int(words[words.index(b"usage_usec") + 1]) / 1e6 if b"usage_usec" in words else None


def traffic(pid: int) -> Traffic | None:
    """Return the process's disk traffic. None if it runs as another user, has ended, or the kernel
    does not count.
    """
    raw = _read(f"/proc/{pid}/io")
    fields = dict(line.split(b": ", 1) for line in (raw or b"").splitlines())
    return (
        Traffic(int(fields[b"read_bytes"]), int(fields[b"write_bytes"]))
        if b"write_bytes" in fields
        else None
    )


def memory(p: Process) -> int | None:
    """Return the process's memory in bytes, with its share of shared memory; None if it has ended.

    If the shares are unknown (another user's process, an old kernel), shared memory counts in full.
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
    """Return a lower bound of the earlier counts that no live process has inherited.

    total: earlier counts of each process. handed: how much live processes may have inherited from
    reaped children.
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
    """Return None if it has ended or may not be read. Raises OSError if this process lacks a
    resource.
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
