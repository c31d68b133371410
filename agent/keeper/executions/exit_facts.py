"""Facts about a failed exit: whether memory ran out, and protocol.exits.ExitFacts (memory, lines of
the kernel log).

Facts that cannot be collected are left out: nothing here may prevent the report of an end.
"""

from __future__ import annotations

import os
import re
import resource

from ....runtime.execution.folder import SIGNAL, STDERR, tail
from ..linux import cgroup_memory
from ..linux.oom_detection import has_risen, out_of_memory, read_oom_counters, was_killed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..linux.kernel_log import KernelLogReader
    from .state import Execution

#: Same as protocol.exits.KERNEL_SIGNALS, which needs more than the standard library.
_KERNEL_SIGNALS = frozenset((4, 5, 6, 7, 8, 9, 11, 15, 31))
#: How bash reports a child killed by a signal. Other shells print no pid.
_SHELL_REPORT = re.compile(rb": line \d+: +(\d+) [A-Z]")
_WORDS_BYTES = 2048
MEMORY_OF_SOME = "memory ran out in its container while several executions ran; the kernel did not record whose process it killed"


def collect_exit_facts(
    e: Execution, exit_: dict[str, Any], around: str | None, kernel: KernelLogReader
) -> dict[str, Any]:
    """Return the facts. around: the cgroup that contains the keeper and all its processes."""
    out: dict[str, Any] = {
        "memoryPeakBytes": _peak(e, exit_),
        "memoryLimitBytes": _memory_limit(e, around),
        "memoryKills": _kills(e, exit_, around),
    }
    if e.samples.limits:
        out["ulimits"] = _limits(e)
    number = exit_.get("signal") or (exit_.get("code") or 0) - 128
    if (
        number in _KERNEL_SIGNALS
        and e.life.stop_reason is None
        and not e.life.kills
        and e.life.started_mono is not None
    ):
        killed = number == 9 and bool(out["memoryKills"] or exit_.get("outOfMemory"))
        lines, unread = kernel.lines_about(
            _process_ids(e), _cgroup(e), e.life.started_mono, expected=killed
        )
        out |= {"kernel": lines, "kernelUnread": unread}
    return out


def out_of_memory_fields(e: Execution, exit_: dict[str, Any], around: str | None) -> dict[str, Any]:
    """Return the exit info fields about a lack of memory."""
    own = e.cgroup.out_of_memory_kills() if e.cgroup is not None else None
    if own == 0:  # the usual case costs one read
        return {"outOfMemory": False}
    after = read_oom_counters(around)
    # as process 1 of a container: its cgroup holds only the keeper, the agent and executions
    in_container = os.getpid() == 1
    found = out_of_memory(
        e.oom_counters,
        after,
        own,
        killed=was_killed(exit_, by_us=e.life.kills > 0),
        alone=in_container and e.alone,
    )
    if found is None and in_container and has_risen(e.oom_counters, after, "around"):
        return {"detail": MEMORY_OF_SOME, **exit_, "outOfMemory": None}
    return {"outOfMemory": found}


def _peak(e: Execution, exit_: dict[str, Any]) -> int | None:
    """Return peak memory in bytes of the whole execution. Without a cgroup counter, return the
    sampled peak or the peak of its largest process.
    """
    own = cgroup_memory.peak(e.cgroup.memory) if e.cgroup is not None else None
    return (
        own
        if own is not None
        else max(e.samples.peak_memory, exit_.get("maxRssBytes") or 0) or None
    )


def _limits(e: Execution) -> list[str]:
    """Return the sampled process limits; a soft limit equal to the hard one is left out."""
    return [
        text
        for text in e.samples.limits
        if text.replace("-S ", "") == text or text.replace("-S ", "") not in e.samples.limits
    ]


def _memory_limit(e: Execution, around: str | None) -> int | None:
    folder = e.cgroup.memory if e.cgroup is not None and e.cgroup.memory is not None else around
    limits = [
        cgroup_memory.limit(folder),
        *(resource.getrlimit(what)[0] for what in (resource.RLIMIT_AS, resource.RLIMIT_DATA)),
    ]
    return min((n for n in limits if n is not None and n != resource.RLIM_INFINITY), default=None)


def _kills(e: Execution, exit_: dict[str, Any], around: str | None) -> int | None:
    """Return the number of out-of-memory kills in its cgroup.

    Without its own counter, return 0 if no process on the machine or in `around` was killed;
    otherwise the number is unknown.
    """
    own = e.cgroup.out_of_memory_kills() if e.cgroup is not None else None
    if own is not None or exit_.get("outOfMemory") is not False:
        return own
    after = read_oom_counters(around)
    return (
        0
        if any(has_risen(e.oom_counters, after, which) is False for which in ("machine", "around"))
        else None
    )


def _process_ids(e: Execution) -> set[int]:
    """Return the known process and thread ids of the execution."""
    texts = [(tail(f"{e.folder}/{name}", _WORDS_BYTES) or (0, b""))[1] for name in (SIGNAL, STDERR)]
    from_shell = {int(word) for text in texts for word in _SHELL_REPORT.findall(text)}
    return (
        from_shell
        | set(e.samples.ids)
        | {pid for pid, _, _ in e.terminated}
        | ({e.pid} if e.pid is not None else set())
    )


def _cgroup(e: Execution) -> str | None:
    """Return the end of its cgroup's path, the part that is equal in every cgroup namespace."""
    if e.cgroup is None:
        return None
    above, name = os.path.split(e.cgroup.folder)
    return f"/{os.path.basename(above)}/{name}"
