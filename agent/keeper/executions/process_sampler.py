"""Looks at live executions now and then: which processes they have, and how much memory, where no
cgroup counts that.

What has ended cannot be asked any more: whether a line of the kernel's log is about a job is told
by the numbers seen before. A look costs some microseconds; an execution is looked at soon after it
began, and then ever more seldom.
"""

from __future__ import annotations

import os
import resource
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .state import Execution

#: Pauses between two looks at one execution (seconds): at first, and at last, if there is time; and
#: how long one round may take.
_FIRST_PAUSE, _LONGEST_PAUSE, _ROUND_SECS = 0.25, 2.0, 0.001
#: Processes of one that are walked through, and numbers that are remembered of it.
_WALKED, _REMEMBERED = 200, 512
_PAGE = os.sysconf("SC_PAGESIZE")
#: Of so many processes of one execution, the newest, limits are read; of its limits so many are
#: remembered.
_LIMITED, _LIMITS = 8, 5
#: How /proc calls limits of one process; for each the option of `ulimit`, its unit (seconds,
#: bytes), and its number for getrlimit.
_ULIMITS = {
    b"Max cpu time": ("-t {}", 1, resource.RLIMIT_CPU),
    b"Max file size": ("-f ({} bytes)", 1, resource.RLIMIT_FSIZE),
    b"Max address space": ("-v {}", 1024, resource.RLIMIT_AS),
}


def look_around(running: Iterable[Execution]) -> None:
    """Look at those whose turn it is, who waited longest first. Never raises."""
    now = time.monotonic()
    for e in sorted(
        (e for e in running if e.sight.again <= now and not e.main_over),
        key=lambda e: e.sight.again,
    ):
        e.sight.pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * e.sight.pause))
        e.sight.again = now + e.sight.pause
        try:
            _look(e)
        except (
            OSError,
            ValueError,
            IndexError,
        ):  # it is ending; or the keeper is short of something, and the next look tells more
            continue
        if time.monotonic() - now > _ROUND_SECS:
            return


def _look(e: Execution) -> None:
    if e.cgroup is not None:
        _remember(e, e.cgroup.threads())
        family = e.cgroup.pids()[:_WALKED]
        _limit(e, family)
        if e.cgroup.memory is None:
            _weigh(e, family)
        return
    family = _below(e)
    _limit(e, family)
    _weigh(e, family)
    _remember(e, [*family, *(thread for pid in family for thread in _threads(pid))])


def _remember(e: Execution, numbers: list[int]) -> None:
    """The newest are kept."""
    for number in numbers[-_REMEMBERED:]:
        e.sight.numbers.pop(number, None)
        e.sight.numbers[number] = None
    while len(e.sight.numbers) > _REMEMBERED:
        del e.sight.numbers[next(iter(e.sight.numbers))]


def _weigh(e: Execution, family: list[int]) -> None:
    """What only they have: memory that several share would be counted several times."""
    e.sight.weighed = max(e.sight.weighed, sum(map(_private, family)))


def _limit(e: Execution, family: list[int]) -> None:
    """Note limits that a process of it has, and its keeper has not: the job has set them itself."""
    for pid in family[-_LIMITED:]:
        try:
            with open(f"/proc/{pid}/limits", "rb") as f:
                lines = f.read(4096).splitlines()
        except OSError:  # it is gone
            continue
        for line in lines:
            if (known := _ULIMITS.get(line[:26].rstrip())) is None or len(
                e.sight.limits
            ) >= _LIMITS:
                continue
            option, unit, number = known
            for hard, (word, own) in enumerate(
                zip(line[26:].split()[:2], resource.getrlimit(number), strict=False)
            ):
                if word.isdigit() and (own == resource.RLIM_INFINITY or int(word) < own):
                    e.sight.limits[
                        f"ulimit {'' if hard else '-S '}{option.format(int(word) // unit)}"
                    ] = None


def _below(e: Execution) -> list[int]:
    """It and its descendants, as far as this kernel tells who they are."""
    out = [] if e.pid is None else [e.pid]
    for pid in out:  # grows while it is walked
        if len(out) < _WALKED:
            out += [q for q in _children(pid) if q not in out]
    return out[:_WALKED]


def _children(pid: int) -> list[int]:
    """Of all its threads: each has its own. (agent/counters reads them, too, with what a keeper
    must not load.)
    """
    out: list[int] = []
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as f:
                out += map(int, f.read().split())
        except OSError:  # it is gone, or this kernel does not tell
            continue
    return out


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _private(pid: int) -> int:
    try:
        fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        words = os.read(fd, 256).split()
    finally:
        os.close(fd)
    return (int(words[1]) - int(words[2])) * _PAGE
