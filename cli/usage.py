"""`jobscribe usage`: the usage of ended runs, summed by user, group, queue, app or time; with --disk
the disk usage of users.
"""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_args

import click
import msgspec

from ..protocol.api.requests import UsageDate, UsageGroup
from .session.session import Session, command, session
from .terminal.quantities import amount, duration

#: Largest folders of a user in the table.
_LARGEST_SHOWN = 3
_STATES = {"ok": "ok", "soft": "over soft", "hard": "at hard"}
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
@click.option(
    "--disk", is_flag=True, help="Disk usage and quotas now, with the largest folders of each user."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: all values, unrounded.")
def usage(
    all_users: bool,
    since: str | None,
    until: str | None,
    by: tuple[UsageGroup, ...],
    disk: bool,
    as_csv: bool,
) -> None:
    """Show the usage of ended runs: times, memory, GPUs and output, summed.

    A value that is known for some of the executions only is marked with `+`: it is a lower bound.
    """
    s = session()
    if as_csv and s.screen.json:
        raise click.UsageError("choose --csv or --json")
    if disk:
        if since is not None or until is not None or by != ("user",):
            raise click.UsageError("--disk shows the present usage: it takes no time and no groups")
        _disk(s, s.client().disk_usage(all_users=all_users), as_csv)
        return
    answer = s.client().usage(since=since, until=until, by=by, all_users=all_users)
    if s.screen.json:
        s.screen.value("jobscribe.usage/1", answer)
        return
    if as_csv:
        for line in _csv(answer):
            s.screen.line(line)
        return
    heads = [*(name.upper() for name in by), *(column.head for column in _COLUMNS)]
    rows = [[*(row[name] for name in by), *_cells(row)] for row in answer["rows"]]
    if by and len(rows) > 1:
        rows.append(["total", *[""] * (len(by) - 1), *_cells(answer["total"])])
    s.screen.table(heads, rows)


def _disk(s: Session, answer: dict[str, Any], as_csv: bool) -> None:
    """Print the disk usage of users, with the largest folders of each."""
    if s.screen.json:
        s.screen.value("jobscribe.usage.disk/1", answer)
        return
    if as_csv:
        heads = ("user", "state", "usedBytes", "files", "softBytes", "hardBytes", "complete")
        for line in _lines(heads, ({h: u[h] for h in heads} for u in answer["users"])):
            s.screen.line(line)
        return
    rows = []
    for user in answer["users"]:
        limits = ["-" if user[q] is None else amount(user[q]) for q in ("softBytes", "hardBytes")]
        used = amount(user["usedBytes"]) + ("" if user["complete"] else "+")
        first, *others = [f"{e['name']} {amount(e['bytes'])}" for e in user["largest"]] or ["-"]
        rows.append(
            [user["user"], used, str(user["files"]), *limits, _STATES[user["state"]], first]
        )
        rows.extend([*[""] * 6, other] for other in others[: _LARGEST_SHOWN - 1])
    if len(answer["users"]) > 1:
        total = answer["total"]
        rows.append(["total", amount(total["usedBytes"]), str(total["files"]), "", "", "", ""])
    s.screen.table(["USER", "USED", "FILES", "SOFT", "HARD", "QUOTA", "LARGEST"], rows)


def _lines(heads: Sequence[str], rows: Iterable[dict[str, Any]]) -> list[str]:
    out = io.StringIO()
    writer = csv.DictWriter(out, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().splitlines()


def _csv(answer: dict[str, Any]) -> list[str]:
    """Return the rows without the total, with the names of the JSON answer as heads."""
    return _lines([*answer["by"], *answer["total"]], answer["rows"])


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
