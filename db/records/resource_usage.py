"""What runs took, from the exits of their tasks: durable, the same for whoever asks and whenever.
Pure.

Of an execution the kernel tells, when it is over, the processor time of its main process and of
everything that was waited for below it, and the largest resident set that any single one of these
processes had. Samples, while there are any, know more (see `supervisor.job_metrics`): all processes
together, and those that nobody waited for.
"""

from collections.abc import Sequence
from typing import Any

from ...protocol.jobs.exit_info import ExitInfo


def cpu_secs(exit_: ExitInfo | None) -> float | None:
    """User and system time; None where nobody counted it. What never started took none."""
    if exit_ is None:
        return None
    if exit_.source == "start":
        return 0.0
    return (
        None
        if exit_.user_secs is None or exit_.system_secs is None
        else exit_.user_secs + exit_.system_secs
    )


def peak_memory_bytes(exit_: ExitInfo | None) -> int | None:
    if exit_ is None:
        return None
    return 0 if exit_.source == "start" else exit_.max_rss_bytes


def largest(*values: float | None) -> float | None:
    """Of several counts that are each at least so much, the best one that is known."""
    known = [v for v in values if v is not None]
    return max(known) if known else None


def total(values: Sequence[float | None]) -> dict[str, Any]:
    """mean, sum and max of what is known, and of how many it is known, out of how many. Where
    nothing is known they are None, never 0.
    """
    known = [v for v in values if v is not None]
    if not known:
        return {"mean": None, "sum": None, "max": None, "known": 0, "of": len(values)}
    whole = sum(known)
    return {
        "mean": whole / len(known),
        "sum": whole,
        "max": max(known),
        "known": len(known),
        "of": len(values),
    }


def result_usage(
    exits: Sequence[ExitInfo | None], sampled_peaks: Sequence[int | None] = ()
) -> dict[str, Any]:
    """What goes with the result of a run, from the exits of all tasks of its last attempt (None:
    one that has no exit).

    cpuSecs: of all tasks together, as far as it is known; peakMemoryBytes: of the one that took
    most. cpuKnown and memoryKnown say of how many of the `tasks` that is known. sampled_peaks: what
    samples saw of each task, where somebody has them.
    """
    peaks = [*sampled_peaks, *[None] * len(exits)][: len(exits)]
    cpu = total([cpu_secs(e) for e in exits])
    memory = total(
        [largest(peak_memory_bytes(e), peak) for e, peak in zip(exits, peaks, strict=True)]
    )
    return {
        "tasks": len(exits),
        "cpuSecs": None if cpu["sum"] is None else round(cpu["sum"], 3),
        "cpuKnown": cpu["known"],
        "peakMemoryBytes": memory["max"],
        "memoryKnown": memory["known"],
    }
