"""`jobscribe job metrics`: resource usage of a job's tasks, and their totals per role and job."""

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from ...protocol.jobs.status import ACTIVE
from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import amount, duration

#: Interval of --watch. Agents sample their jobs every few seconds.
INTERVAL_SECS = 5.0
#: Shown for an unknown value, which is not 0.
UNKNOWN = "n/a"

_CLEAR = "\x1b[H\x1b[2J"


@command()
@click.argument("name", metavar="JOB")
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help=f"Repeat every {INTERVAL_SECS:g} s until no task runs, or until Ctrl-C.",
)
@click.option("--sums", is_flag=True, help="Only totals, without the single tasks.")
@click.option("--series", is_flag=True, help="With the time series of each task (requires --json).")
@click.option(
    "--attempt", type=click.IntRange(1), metavar="N", help="Attempt number (default: the latest)."
)
def metrics(name: str, watch: bool, sums: bool, series: bool, attempt: int | None) -> None:
    """Show the resource usage of a job's tasks, with means and sums per role and for the job.

    100 % of CPU is one core. `n/a` means unknown, which is not 0; (2/3) means that two of three
    tasks have a known value.
    """
    s = session()
    jid = resolve_job(s, name)
    if series and not s.screen.json:
        raise click.UsageError("--series requires --json")
    if not watch:
        _show(s, _fetch(s, jid, series, attempt or 0), sums)
        return
    if attempt is not None:
        raise click.UsageError("--watch follows the latest attempt; omit --attempt")
    try:
        _watch(s, jid, sums, series)
    except KeyboardInterrupt:
        return  # the usual end of --watch


def _watch(s: Session, jid: str, sums: bool, series: bool) -> None:
    while True:
        answer = _fetch(s, jid, series, 0)
        if s.screen.json:
            s.screen.record({"schema": "jobscribe.job.metrics/1", **answer})
        else:
            if sys.stdout.isatty():
                click.echo(_CLEAR, nl=False)
            _show(s, answer, sums)
        if answer["state"] not in ACTIVE and not answer["job"]["running"]:
            return
        time.sleep(INTERVAL_SECS)


def _fetch(s: Session, jid: str, series: bool, attempt: int) -> dict[str, Any]:
    return s.client_for(jid).metrics(jid, series=series, attempt=attempt)


def _show(s: Session, answer: dict[str, Any], sums: bool) -> None:
    if s.screen.json:
        s.screen.value("jobscribe.job.metrics/1", answer)
        return
    job = answer["job"]
    again = f", attempt {answer['attempt']}" if answer["attempt"] > 1 else ""
    s.screen.line(
        f"{answer['computeJid']} {answer['state']}{again}: {job['running']} of {job['tasks']} tasks running"
    )
    rows = [*([] if sums else _tasks(answer)), *_totals(answer)]
    if rows:
        s.screen.table(("TASK", *(column.head for column in _COLUMNS)), rows)


# ---- the table


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _rate(value: float) -> str:
    return f"{amount(value)}/s"


def _count(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


class _Column(NamedTuple):
    head: str
    name: str
    format: Callable[[float], str]


_COLUMNS = (
    _Column("CPU", "cpuPercent", _percent),
    _Column("CPU TIME", "cpuSecs", duration),
    _Column("MEMORY", "memoryBytes", amount),
    _Column("PEAK", "peakMemoryBytes", amount),
    _Column("READ", "readBytesPerSec", _rate),
    _Column("WRITE", "writtenBytesPerSec", _rate),
    _Column("PROCS", "processes", _count),
    _Column("GPU", "gpuPercent", _percent),
    _Column("GPU MEM", "gpuMemoryBytes", amount),
    _Column("GPU PEAK", "peakGpuMemoryBytes", amount),
)


def _tasks(answer: dict[str, Any]) -> list[list[str]]:
    return [
        [
            f"{task['role']}/{task['index']}",
            *(UNKNOWN if task[c.name] is None else c.format(task[c.name]) for c in _COLUMNS),
        ]
        for task in answer["tasks"]
    ]


def _totals(answer: dict[str, Any]) -> list[list[str]]:
    """Return rows with mean and sum of each role and of the job, if it has several tasks."""
    levels = (
        [(level["role"], level) for level in answer["roles"] if level["tasks"] > 1]
        if len(answer["roles"]) > 1
        else []
    )
    levels += [("job", answer["job"])] if answer["job"]["tasks"] > 1 else []
    return [
        [f"{name} ({which})", *(_total(level[c.name], which, c.format) for c in _COLUMNS)]
        for name, level in levels
        for which in ("mean", "sum")
    ]


def _total(total: dict[str, Any], which: str, format_: Callable[[float], str]) -> str:
    if total[which] is None:
        return UNKNOWN
    return format_(total[which]) + (
        f" ({total['known']}/{total['of']})" if total["known"] < total["of"] else ""
    )
