"""Accounted usage: sums for one period, user, queue, driver, kind and app. Values and their
arithmetic; `usage` makes them from events. Pure.

Sums are integers that stop at `MOST`, so they are equal in whatever order they are added. A period
is an hour, a UTC day or a UTC calendar month; `merged` makes old periods longer, so that the number
of rows stays small.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

Span = Literal["hour", "day", "month"]

HOUR, DAY = 3_600, 86_400
#: Age from which hours are merged into days, and days into months.
DAYS_AFTER_SECS, MONTHS_AFTER_SECS = 8 * DAY, 92 * DAY
#: Largest sum. The sum of two of them fits into an integer of SQLite.
MOST = 2**61


class UsageKey(NamedTuple):
    """start: of the period, in unix seconds."""

    start: int
    span: Span
    uid: str
    queue: str
    driver: str
    kind: str
    simulation_type: str


class UsageRow(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False
):
    """Usage of one key. Core, GPU and wall time in milliseconds, memory in MiB times milliseconds.

    completed, canceled, failed: ended runs by their status. executions: ended tasks. peak_bytes:
    the largest peak of one execution. *_unknown: executions that the sum of this name does not
    contain, because their value is unknown; wall_unknown also for core_ms and gpu_ms.
    """

    start: int
    span: Span
    uid: str
    queue: str
    driver: str
    kind: str
    simulation_type: str
    completed: int = 0
    canceled: int = 0
    failed: int = 0
    executions: int = 0
    wall_ms: int = 0
    wall_unknown: int = 0
    core_ms: int = 0
    gpu_ms: int = 0
    cpu_ms: int = 0
    cpu_unknown: int = 0
    memory_mib_ms: int = 0
    memory_unknown: int = 0
    peak_bytes: int = 0
    output_bytes: int = 0
    output_unknown: int = 0

    @property
    def key(self) -> UsageKey:
        return UsageKey(
            self.start,
            self.span,
            self.uid,
            self.queue,
            self.driver,
            self.kind,
            self.simulation_type,
        )


#: Fields of a row: its key, its sums and its maxima. A table has them in this order.
KEY = UsageKey._fields
LARGEST = ("peak_bytes",)
SUMS = tuple(f for f in UsageRow.__struct_fields__ if f not in (*KEY, *LARGEST))


def limited(value: float) -> int:
    """Return the value as a sum: an integer from 0 to MOST."""
    return min(MOST, max(0, round(value)))


def add(a: UsageRow, b: UsageRow) -> UsageRow:
    """Return the sum of two rows, with the key of `a`."""
    return msgspec.structs.replace(
        a,
        peak_bytes=max(a.peak_bytes, b.peak_bytes),
        **{
            name: min(MOST, getattr(a, name) + value)
            for name in SUMS
            if (value := getattr(b, name))
        },
    )


def summed(rows: Iterable[UsageRow]) -> dict[UsageKey, UsageRow]:
    """Return one row for each key."""
    out: dict[UsageKey, UsageRow] = {}
    for row in rows:
        key = row.key
        known = out.get(key)
        out[key] = row if known is None else add(known, row)
    return out


def hour_of(at: float) -> int:
    return int(at // HOUR) * HOUR


def day_of(at: float) -> int:
    return int(at // DAY) * DAY


def month_of(at: float) -> int:
    """Return the start of the UTC calendar month."""
    day = datetime.fromtimestamp(at, UTC)
    return int(datetime(day.year, day.month, 1, tzinfo=UTC).timestamp())


def end_of(row: UsageRow) -> int:
    """Return the end of the period."""
    match row.span:
        case "hour":
            return row.start + HOUR
        case "day":
            return row.start + DAY
        case "month":
            return month_of(row.start + 32 * DAY)


class Limits(NamedTuple):
    """Hours that begin before `days` are merged into days; hours and days that begin before
    `months`, into months.
    """

    days: int
    months: int


def limits(newest: float) -> Limits:
    """Return the limits for rows whose newest one begins at `newest`."""
    return Limits(
        day_of(max(0.0, newest - DAYS_AFTER_SECS)), month_of(max(0.0, newest - MONTHS_AFTER_SECS))
    )


#: Limits that merge everything into months.
ALL_MONTHS = Limits(2**62, 2**62)


def longer(row: UsageRow, limits: Limits) -> UsageRow:
    """Return the row with the period that its age requires."""
    if row.span != "month" and row.start < limits.months:
        return msgspec.structs.replace(row, span="month", start=month_of(row.start))
    if row.span == "hour" and row.start < limits.days:
        return msgspec.structs.replace(row, span="day", start=day_of(row.start))
    return row


def merged(rows: Iterable[UsageRow], limits: Limits) -> dict[UsageKey, UsageRow]:
    """Return the rows with old periods merged."""
    return summed(longer(row, limits) for row in rows)
