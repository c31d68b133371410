"""Samples of live executions: their process ids and, without a cgroup counter, their memory. A
sample also lowers the priority of new process groups.

Ended processes cannot be examined: the ids seen before tell whether a kernel log line is about a
job. A sample costs some microseconds. An execution is sampled soon after its start, then with
growing pauses.
"""

from __future__ import annotations

import os
import resource
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..linux.priority import Priorities
    from .state import Execution

#: Pauses between two samples of one execution (seconds): the first and the longest; and the time
#: limit of one round.
_FIRST_PAUSE, _LONGEST_PAUSE, _ROUND_SECS = 0.25, 2.0, 0.001
#: Limits per execution: processes walked through, and ids remembered.
_WALKED, _REMEMBERED = 200, 512
_PAGE = os.sysconf("SC_PAGESIZE")
#: Limits are read of this many processes of an execution, the newest; and this many distinct limits
#: are remembered.
_LIMITED, _LIMITS = 8, 5
#: Names of process limits in /proc; for each the option of `ulimit`, its unit (seconds, bytes), and
#: its number for getrlimit.
_ULIMITS = {
    b"Max cpu time": ("-t {}", 1, resource.RLIMIT_CPU),
    b"Max file size": ("-f ({} bytes)", 1, resource.RLIMIT_FSIZE),
    b"Max address space": ("-v {}", 1024, resource.RLIMIT_AS),
}


def sample_executions(running: Iterable[Execution], priority: Priorities) -> None:
    """Sample the executions that are due, longest waiting first. Never raises."""
    now = time.monotonic()
    for e in sorted(
        (e for e in running if e.samples.next_at <= now and not e.life.exiting),
        key=lambda e: e.samples.next_at,
    ):
        e.samples.pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * e.samples.pause))
        e.samples.next_at = now + e.samples.pause
        try:
            _sample(e, priority)
        except (OSError, ValueError, IndexError):  # it is ending, or descriptors are exhausted
            continue
        if time.monotonic() - now > _ROUND_SECS:
            return


def _sample(e: Execution, priority: Priorities) -> None:
    if e.cgroup is not None:
        _record_ids(e, e.cgroup.threads())
        family = e.cgroup.pids()[:_WALKED]
        e.samples.lowered = priority.lower(family, e.samples.lowered)
        _record_limits(e, family)
        if e.cgroup.memory is None:
            _record_memory(e, family)
        return
    family = _descendants(e)
    e.samples.lowered = priority.lower(family, e.samples.lowered)
    _record_limits(e, family)
    _record_memory(e, family)
    _record_ids(e, [*family, *(thread for pid in family for thread in _threads(pid))])


def _record_ids(e: Execution, numbers: list[int]) -> None:
    """Remember the newest ids."""
    for number in numbers[-_REMEMBERED:]:
        e.samples.ids.pop(number, None)
        e.samples.ids[number] = None
    while len(e.samples.ids) > _REMEMBERED:
        del e.samples.ids[next(iter(e.samples.ids))]


def _record_memory(e: Execution, family: list[int]) -> None:
    """Record the sum of private memory: shared memory would count several times."""
    e.samples.peak_memory = max(e.samples.peak_memory, sum(map(_private_bytes, family)))


def _record_limits(e: Execution, family: list[int]) -> None:
    """Record process limits lower than the keeper's: the job has set them itself."""
    for pid in family[-_LIMITED:]:
        try:
            with open(f"/proc/{pid}/limits", "rb") as f:
                lines = f.read(4096).splitlines()
        except OSError:  # the process has ended
            continue
        for line in lines:
            if (known := _ULIMITS.get(line[:26].rstrip())) is None or len(
                e.samples.limits
            ) >= _LIMITS:
                continue
            option, unit, number = known
            for hard, (word, own) in enumerate(
                zip(line[26:].split()[:2], resource.getrlimit(number), strict=False)
            ):
                if word.isdigit() and (own == resource.RLIM_INFINITY or int(word) < own):
                    e.samples.limits[
                        f"ulimit {'' if hard else '-S '}{option.format(int(word) // unit)}"
                    ] = None


def _descendants(e: Execution) -> list[int]:
    """Return the pids of the main process and its descendants, as far as the kernel shows them."""
    out = [] if e.pid is None else [e.pid]
    for pid in out:  # grows while it is walked
        if len(out) < _WALKED:
            out += [q for q in _children(pid) if q not in out]
    return out[:_WALKED]


def _children(pid: int) -> list[int]:
    """Return the child pids of all threads of a process.

    `agent/usage/proc_counters` reads them too, with libraries that a keeper must not load.
    """
    out: list[int] = []
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as f:
                out += map(int, f.read().split())
        except OSError:  # the thread has ended, or this kernel has no such file
            continue
    return out


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _private_bytes(pid: int) -> int:
    try:
        fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        words = os.read(fd, 256).split()
    finally:
        os.close(fd)
    return (int(words[1]) - int(words[2])) * _PAGE
