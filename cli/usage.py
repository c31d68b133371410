"""`jobscribe usage`: the usage of ended runs, summed by user, queue, app or time."""

import csv
import io
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import click
import msgspec

from ..protocol.api.requests import UsageDate, UsageGroup
from .session.session import command, session
from .terminal.quantities import amount, duration

_GROUPS: tuple[UsageGroup, ...] = get_args(UsageGroup)


def _groups(ctx: click.Context, param: click.Parameter, value: str) -> tuple[UsageGroup, ...]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    wrong = [name for name in names if name not in _GROUPS]
    if wrong or len(set(names)) != len(names):
        raise click.BadParameter(f"write different ones of {', '.join(_GROUPS)}, with commas")
    return tuple(g for name in names for g in _GROUPS if g == name)


def _date(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    try:
        return msgspec.convert(value, UsageDate | None)
    except msgspec.ValidationError:
        raise click.BadParameter(
            f"{value!r} is not a month or day; write 2026-01 or 2026-01-15"
        ) from None


@command()
@click.option(
    "--all-users",
    is_flag=True,
    help="Usage of all users whose data you may see: for a group admin, those of the groups.",
)
@click.option(
    "--since",
    metavar="MONTH|DAY",
    callback=_date,
    help="First month or day (UTC): 2026-01, 2026-01-15.",
)
@click.option("--until", metavar="MONTH|DAY", callback=_date, help="Last month or day.")
@click.option(
    "--by",
    metavar="GROUPS",
    default="user",
    show_default=True,
    callback=_groups,
    help=f"Sum by these, with commas: {', '.join(_GROUPS)}.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: all values, unrounded.")
def usage(
    all_users: bool, since: str | None, until: str | None, by: tuple[UsageGroup, ...], as_csv: bool
) -> None:
    """Show the usage of ended runs: times, memory, GPUs and output, summed.

    A value that is known for some of the executions only is marked with `+`: it is a lower bound.
    """
    s = session()
    if as_csv and s.screen.json:
        raise click.UsageError("choose --csv or --json")
    answer = s.client().usage(since=since, until=until, by=by, all_users=all_users)
    if s.screen.json:
        s.screen.value("jobscribe.usage/1", answer)
        return
    if as_csv:
        for line in _csv(answer).splitlines():
            s.screen.line(line)
        return
    heads = [*(name.upper() for name in by), *(column.head for column in _COLUMNS)]
    rows = [[*(row[name] for name in by), *_cells(row)] for row in answer["rows"]]
    if by and len(rows) > 1:
        rows.append(["total", *[""] * (len(by) - 1), *_cells(answer["total"])])
    s.screen.table(heads, rows)


def _csv(answer: dict[str, Any]) -> str:
    """Return the rows without the total, with the names of the JSON answer as heads."""
    out = io.StringIO()
    heads = [*answer["by"], *answer["total"]]
    writer = csv.DictWriter(out, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(answer["rows"])
    return out.getvalue()


class _Column(NamedTuple):
    """unknown: field with the number of executions that the value does not contain."""

    head: str
    name: str
    format: Callable[[float], str]
    unknown: str = ""


def _count(value: float) -> str:
    return str(int(value))


def _hours(secs: float) -> str:
    return duration(secs) if secs < 3600 else f"{secs / 3600:.1f} h"


def _gib_hours(gib_secs: float) -> str:
    return f"{gib_secs / 3600:.2f} GiB h"


_COLUMNS = (
    _Column("RUNS", "runs", _count),
    _Column("OK", "completed", _count),
    _Column("CANCELED", "canceled", _count),
    _Column("ERROR", "error", _count),
    _Column("WALL", "wallSecs", _hours, "wallUnknown"),
    _Column("CORES", "coreSecs", _hours, "wallUnknown"),
    _Column("CPU", "cpuSecs", _hours, "cpuUnknown"),
    _Column("GPU", "gpuSecs", _hours, "wallUnknown"),
    _Column("MEMORY", "memoryGibSecs", _gib_hours, "memoryUnknown"),
    _Column("PEAK", "peakMemoryBytes", amount),
    _Column("OUTPUT", "outputBytes", amount, "outputUnknown"),
)


def _cells(row: dict[str, Any]) -> list[str]:
    return [c.format(row[c.name]) + ("+" if c.unknown and row[c.unknown] else "") for c in _COLUMNS]
