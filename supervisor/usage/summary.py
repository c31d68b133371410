"""Resource usage of the tasks of a run: for each task, each role and the whole run, with means,
sums and the number of known values. Pure.

Current values (`NOW`) cover running tasks. Cumulative values (`ADDED`) and peaks (`PEAK`) cover all
tasks of the attempt. An unknown value is None and excluded from mean and sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ...db.events.state import Job, Task
from ...db.records import resource_usage
from ...protocol.errors import Refusal
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
ADDED = ("cpuSecs", "readBytes", "writtenBytes", "receivedBytes", "sentBytes")
PEAK = (
    "meanCpuPercent",
    "peakCpuPercent",
    "peakMemoryBytes",
    "peakProcesses",
    "peakGpuMemoryBytes",
)
#: Maximum points of all series in one reply: ten full series.
SERIES_POINTS = 3_600


class TaskUsage(msgspec.Struct, kw_only=True):
    """Usage of one execution. newest: the last sample. heard: its arrival time (monotonic). The
    cumulative values only grow.
    """

    newest: Sample
    heard: float
    series: Series
    read_rate: float | None = None
    write_rate: float | None = None
    cpu_secs: float | None = None
    read_bytes: float | None = None
    written_bytes: float | None = None
    received_bytes: float | None = None
    sent_bytes: float | None = None
    peak_cpu: float | None = None
    peak_memory: float | None = None
    peak_processes: float | None = None
    peak_gpu_memory: float | None = None


def job_metrics(
    job: Job,
    usage: Mapping[Token, TaskUsage],
    heard_since: float,
    series: Callable[[Token], bool] = lambda token: False,
    attempt: int = 0,
) -> dict[str, Any]:
    """Return the usage of an attempt of the current run. heard_since: older samples are not
    current. series: selects tasks whose points are included. attempt: 0 is the latest.

    Raises Refusal("notFound").
    """
    run = job.run
    wanted = attempt or (run.attempt if run is not None else 0)
    found = [a for a in run.attempts if a.number == wanted] if run is not None else []
    if attempt and not found:
        advice = {"advice": "'jobscribe job tasks JOB' lists the attempts"}
        raise Refusal("notFound", f"the run has no attempt {attempt}", advice)
    tasks = found[0].tasks if found else ()
    shown = {t.token for t in tasks if series(t.token)}
    each = SERIES_POINTS // max(1, len(shown))
    rows = [
        _row(t, usage.get(t.token), heard_since, each if t.token in shown else 0) for t in tasks
    ]
    roles = dict.fromkeys(row["role"] for row in rows)
    return {
        "computeJid": job.jid,
        "computeJobSerial": run.serial if run else None,
        "state": job.status,
        "attempt": wanted,
        "job": _together(rows),
        "roles": [
            {"role": name, **_together([r for r in rows if r["role"] == name])} for name in roles
        ],
        "tasks": rows,
        **({"seriesFields": NAMES} if shown else {}),
    }


def _row(task: Task, usage: TaskUsage | None, heard_since: float, points: int) -> dict[str, Any]:
    running = task.live and task.exit is None and task.pid is not None
    fresh = usage if running and usage is not None and usage.heard >= heard_since else None
    row = {
        "role": task.token.role,
        "index": task.token.index,
        "running": running,
        "at": None if usage is None else usage.newest.at,
        **_now(fresh),
        **_ever(task, usage),
    }
    if points:
        row["series"] = [] if usage is None else usage.series.rows(points)
    return row


def _now(usage: TaskUsage | None) -> dict[str, Any]:
    if usage is None:
        return dict.fromkeys(NOW)
    s = usage.newest
    values = (
        s.cpu_percent,
        s.memory_bytes,
        usage.read_rate,
        usage.write_rate,
        s.processes,
        s.gpu_percent,
        s.gpu_memory_bytes,
    )
    return dict(zip(NOW, values, strict=True))


def _ever(task: Task, usage: TaskUsage | None) -> dict[str, Any]:
    """Return cumulative values and peaks. Samples and exit are both lower bounds, so take the
    larger value.
    """
    sampled = (
        (None,) * 9
        if usage is None
        else (
            usage.cpu_secs,
            usage.read_bytes,
            usage.written_bytes,
            usage.received_bytes,
            usage.sent_bytes,
            usage.peak_cpu,
            usage.peak_memory,
            usage.peak_processes,
            usage.peak_gpu_memory,
        )
    )
    cpu = resource_usage.largest(sampled[0], resource_usage.cpu_secs(task.exit))
    memory = resource_usage.largest(sampled[6], resource_usage.peak_memory_bytes(task.exit))
    values = (cpu, *sampled[1:5], _mean_cpu(task, usage, cpu), sampled[5], memory, *sampled[7:])
    return dict(zip((*ADDED, *PEAK), values, strict=True))


def _mean_cpu(task: Task, usage: TaskUsage | None, cpu: float | None) -> float | None:
    """Return the mean percentage of one core since the start, by the clock of the task's machine."""
    exit_ = task.exit
    if exit_ is not None:
        began, until = exit_.started_at, exit_.ended_at
    else:
        began, until = task.started_at, None if usage is None else usage.newest.at
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
