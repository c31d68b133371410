"""Resource usage of runs, computed from the exits of their tasks; durable and reproducible. Pure.

After an execution the kernel reports the processor time of its main process and of all waited-for
descendants, and the largest resident set of any single process. Samples (see
`supervisor.job_metrics`) also include the sum over processes and processes that were not waited
for.
"""

from collections.abc import Sequence
from typing import Any

from ...protocol.jobs.exit_info import ExitInfo


def cpu_secs(exit_: ExitInfo | None) -> float | None:
    """Return user plus system time in seconds; None if unknown, 0 for an execution that never
    started.
    """
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
    """Return the largest known value. Each value is a lower bound of the same quantity."""
    known = [v for v in values if v is not None]
    return max(known) if known else None


def total(values: Sequence[float | None]) -> dict[str, Any]:
    """Return mean, sum and max of the known values, their number (`known`) and the number of all
    (`of`). Without known values they are None, never 0.
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
    """Return the usage for the result of a run. exits: of all tasks of its last attempt; None for a
    task without exit.

    cpuSecs: sum over all tasks as far as known. peakMemoryBytes: of the largest task. cpuKnown,
    memoryKnown: number of `tasks` with a known value. sampled_peaks: sampled peak of each task, if
    available.
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
