"""What the tasks of a run take, each for itself, and together for each role and the whole run:
means *and* sums, and of how many. Pure.

What is now (`NOW`) is counted over the tasks that run; what adds up (`ADDED`) and what was most
(`PEAK`) over all tasks of the attempt. What is not known is None, in no mean and in no sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ...db.events.state import Job, Task
from ...db.records import resource_usage
from ...protocol.ids import Token
from ...protocol.wire.messages import Sample
from .time_series import NAMES, Series

NOW = (
    "cpuPercent",
    "memoryBytes",
    "readBytesPerSec",
    "writtenBytesPerSec",
    "processes",
    "gpuPercent",
    "gpuMemoryBytes",
)
ADDED = ("cpuSecs", "readBytes", "writtenBytes")
PEAK = (
    "meanCpuPercent",
    "peakCpuPercent",
    "peakMemoryBytes",
    "peakProcesses",
    "peakGpuMemoryBytes",
)
#: Points of all series of one answer together: ten whole ones.
SERIES_POINTS = 3_600


class TaskUsage(msgspec.Struct, kw_only=True):
    """What samples said of one execution. newest: the last one, which came at `heard` on the
    monotonic clock; the others only grow.
    """

    newest: Sample
    heard: float
    series: Series
    read_rate: float | None = None
    write_rate: float | None = None
    cpu_secs: float | None = None
    read_bytes: float | None = None
    written_bytes: float | None = None
    peak_cpu: float | None = None
    peak_memory: float | None = None
    peak_processes: float | None = None
    peak_gpu_memory: float | None = None


def job_metrics(
    job: Job,
    taken: Mapping[Token, TaskUsage],
    heard_since: float,
    series: Callable[[Token], bool] = lambda token: False,
) -> dict[str, Any]:
    """Of the last attempt of the current run. heard_since: what was said before then is not what is
    now. series: of these the points.
    """
    run = job.run
    tasks = run.attempts[-1].tasks if run is not None and run.attempts else ()
    shown = {t.token for t in tasks if series(t.token)}
    each = SERIES_POINTS // max(1, len(shown))
    rows = [
        _row(t, taken.get(t.token), heard_since, each if t.token in shown else 0) for t in tasks
    ]
    roles = dict.fromkeys(row["role"] for row in rows)
    return {
        "computeJid": job.jid,
        "computeJobSerial": run.serial if run else None,
        "state": job.status,
        "attempt": run.attempts[-1].number if run is not None and run.attempts else 0,
        "job": _together(rows),
        "roles": [
            {"role": name, **_together([r for r in rows if r["role"] == name])} for name in roles
        ],
        "tasks": rows,
        **({"seriesFields": NAMES} if shown else {}),
    }


def _row(task: Task, taken: TaskUsage | None, heard_since: float, points: int) -> dict[str, Any]:
    running = task.live and task.exit is None and task.pid is not None
    fresh = taken if running and taken is not None and taken.heard >= heard_since else None
    row = {
        "role": task.token.role,
        "index": task.token.index,
        "running": running,
        "at": None if taken is None else taken.newest.at,
        **_now(fresh),
        **_ever(task, taken),
    }
    if points:
        row["series"] = [] if taken is None else taken.series.rows(points)
    return row


def _now(taken: TaskUsage | None) -> dict[str, Any]:
    if taken is None:
        return dict.fromkeys(NOW)
    s = taken.newest
    values = (
        s.cpu_percent,
        s.memory_bytes,
        taken.read_rate,
        taken.write_rate,
        s.processes,
        s.gpu_percent,
        s.gpu_memory_bytes,
    )
    return dict(zip(NOW, values, strict=True))


def _ever(task: Task, taken: TaskUsage | None) -> dict[str, Any]:
    """Samples and exit each know at least so much: the larger one is nearer to the truth."""
    sampled = (
        (None,) * 7
        if taken is None
        else (
            taken.cpu_secs,
            taken.read_bytes,
            taken.written_bytes,
            taken.peak_cpu,
            taken.peak_memory,
            taken.peak_processes,
            taken.peak_gpu_memory,
        )
    )
    cpu = resource_usage.largest(sampled[0], resource_usage.cpu_secs(task.exit))
    memory = resource_usage.largest(sampled[4], resource_usage.peak_memory_bytes(task.exit))
    values = (cpu, *sampled[1:3], _mean_cpu(task, taken, cpu), sampled[3], memory, *sampled[5:])
    return dict(zip((*ADDED, *PEAK), values, strict=True))


def _mean_cpu(task: Task, taken: TaskUsage | None, cpu: float | None) -> float | None:
    """Percent of a core since its start, by the clock of the machine where it runs."""
    exit_ = task.exit
    if exit_ is not None:
        began, until = exit_.started_at, exit_.ended_at
    else:
        began, until = task.started_at, None if taken is None else taken.newest.at
    if cpu is None or began is None or until is None or until <= began:
        return None
    return 100 * cpu / (until - began)


def _together(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    running = [r for r in rows if r["running"]]
    return {
        "tasks": len(rows),
        "running": len(running),
        **{name: resource_usage.total([r[name] for r in running]) for name in NOW},
        **{name: resource_usage.total([r[name] for r in rows]) for name in (*ADDED, *PEAK)},
    }
