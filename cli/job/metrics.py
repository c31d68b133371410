"""`job metrics`: what the tasks of a job take, each for itself, and together for each role and the
whole job.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import duration

#: Agents look at their jobs every few seconds; to ask more often shows nothing new.
EVERY_SECS = 5.0
#: What stands for what is not known, which is not 0.
UNKNOWN = "n/a"

_CLEAR = "\x1b[H\x1b[2J"


@command()
@click.argument("name", metavar="JOB")
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help=f"Show it anew every {EVERY_SECS:g} s until nothing of it runs, or until Ctrl-C.",
)
@click.option("--sums", is_flag=True, help="Only what tasks take together, not each of them.")
@click.option("--series", is_flag=True, help="With what each task took over time (in JSON).")
def metrics(name: str, watch: bool, sums: bool, series: bool) -> None:
    """Show what the tasks of a job take, and their means and sums for each role and the whole job.

    100 % of CPU is one core. `n/a` is not known, which is not 0; (2/3) is known of two of three
    tasks.
    """
    s = session()
    jid = resolve_job(s, name)
    if series and not s.screen.json:
        raise click.UsageError("--series goes with --json")
    if not watch:
        _show(s, _asked(s, jid, series), sums)
        return
    try:
        _watch(s, jid, sums, series)
    except KeyboardInterrupt:
        return  # that is how one stops watching


def _watch(s: Session, jid: str, sums: bool, series: bool) -> None:
    while True:
        answer = _asked(s, jid, series)
        if s.screen.json:
            s.screen.record({"schema": "jobscribe.job.metrics/1", **answer})
        else:
            if sys.stdout.isatty():
                click.echo(_CLEAR, nl=False)
            _show(s, answer, sums)
        if answer["state"] not in ("pending", "running") and not answer["job"]["running"]:
            return
        time.sleep(EVERY_SECS)


def _asked(s: Session, jid: str, series: bool) -> dict[str, Any]:
    return s.client_for(jid).metrics(jid, series=series)


def _show(s: Session, answer: dict[str, Any], sums: bool) -> None:
    if s.screen.json:
        s.screen.value("jobscribe.job.metrics/1", answer)
        return
    job = answer["job"]
    again = f", attempt {answer['attempt']}" if answer["attempt"] > 1 else ""
    s.screen.line(
        f"{answer['computeJid']} {answer['state']}{again}: {job['running']} of {job['tasks']} tasks running"
    )
    rows = [*([] if sums else _tasks(answer)), *_together(answer)]
    if rows:
        s.screen.table(("TASK", *(column.head for column in _COLUMNS)), rows)


# ---- the table


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _rate(value: float) -> str:
    return f"{_bytes(value)}/s"


def _count(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


class _Column(NamedTuple):
    head: str
    name: str
    told: Callable[[float], str]


_COLUMNS = (
    _Column("CPU", "cpuPercent", _percent),
    _Column("CPU TIME", "cpuSecs", duration),
    _Column("MEMORY", "memoryBytes", _bytes),
    _Column("PEAK", "peakMemoryBytes", _bytes),
    _Column("READ", "readBytesPerSec", _rate),
    _Column("WRITE", "writtenBytesPerSec", _rate),
    _Column("PROCS", "processes", _count),
    _Column("GPU", "gpuPercent", _percent),
    _Column("GPU MEM", "gpuMemoryBytes", _bytes),
)


def _tasks(answer: dict[str, Any]) -> list[list[str]]:
    return [
        [
            f"{task['role']}/{task['index']}",
            *(UNKNOWN if task[c.name] is None else c.told(task[c.name]) for c in _COLUMNS),
        ]
        for task in answer["tasks"]
    ]


def _together(answer: dict[str, Any]) -> list[list[str]]:
    """Mean and sum of every role and of the job; of one task alone they would say nothing new."""
    levels = (
        [(level["role"], level) for level in answer["roles"] if level["tasks"] > 1]
        if len(answer["roles"]) > 1
        else []
    )
    levels += [("job", answer["job"])] if answer["job"]["tasks"] > 1 else []
    return [
        [f"{name} ({which})", *(_total(level[c.name], which, c.told) for c in _COLUMNS)]
        for name, level in levels
        for which in ("mean", "sum")
    ]


def _total(total: dict[str, Any], which: str, told: Callable[[float], str]) -> str:
    if total[which] is None:
        return UNKNOWN
    return told(total[which]) + (
        f" ({total['known']}/{total['of']})" if total["known"] < total["of"] else ""
    )
