"""The table `usage`: sums it from the log, merges its old periods, and compares it with the
log. `events/usage.py` defines what each event adds.

The events that a compaction removed are in the closing event of the compaction: the usage of a log
is that of the latest closing event, and of all events after the position that it names.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ...protocol.errors import Refusal
from ...protocol.ids import parse
from ..events.events import SYSTEM, Event, LogCompacted, decode
from ..events.job_fold import evolve
from ..events.state import Job
from ..events.usage import increment
from ..events.usage_row import (
    ALL_MONTHS,
    KEY,
    Limits,
    UsageKey,
    UsageRow,
    add,
    day_of,
    limits,
    longer,
    merged,
    summed,
)
from .statements import ALL, INSERT_USAGE, ROW_COLUMNS, USAGE_COLUMNS, SqlConnection, insert

#: Called at intervals with (activity, amount done, total amount).
Progress = Callable[[str, int, int], None]
EVERY = 5000
#: A merge of periods holds up commits for some 20 ms with this many rows.
MERGED_AT_ONCE = 1000
_KEY_COLUMNS = ", ".join(KEY)
#: A key before all others.
_NO_KEY: Sequence[Any] = (-1, *[""] * (len(KEY) - 1))


class LogUsage:
    """Sums the usage of all events up to a position, also of compacted ones, while the jobs of the
    log are folded.
    """

    def __init__(self, connection: SqlConnection, up_to: int) -> None:
        self._counted, rows = _compacted(connection, up_to)
        self.rows = summed(rows)

    def add(self, before: Job, position: int, event: Event) -> None:
        """Add what the event at this position adds to its job."""
        if position <= self._counted:
            return
        row = increment(before, event)  # type: ignore[arg-type]
        if row is not None:
            key = row.key
            known = self.rows.get(key)
            self.rows[key] = row if known is None else add(known, row)


def usage_of_log(connection: SqlConnection, progress: Progress) -> dict[UsageKey, UsageRow]:
    """Return the usage of the whole log. Events of a job after an unreadable one are skipped; the
    check of the log reports it.
    """
    usage = LogUsage(connection, 2**62)
    where = "stream >= 'job/' AND stream < 'job0'"
    (of,) = connection.execute(f"SELECT count(*) FROM events WHERE {where}").fetchone()
    rows = connection.execute(
        f"SELECT {ROW_COLUMNS} FROM events WHERE {where} ORDER BY events.stream, events.version"
    )
    done = 0
    for stream, group in itertools.groupby(rows, key=lambda raw: raw[1]):
        try:
            job = Job(jid=parse("computeJid", stream.decode().removeprefix("job/")))
            for position, _, _, type_, schema, _, body, _ in group:
                event = decode(type_.decode(), schema, body)
                usage.add(job, position, event)
                job = evolve(job, event)  # type: ignore[arg-type]
                done += 1
                if done % EVERY == 0:
                    progress("usage", done, of)
        except (Refusal, UnicodeDecodeError, AttributeError, TypeError):
            continue  # the log is damaged there
    return usage.rows


def write_usage(connection: SqlConnection, progress: Progress) -> None:
    """Fill the empty table from the log, within the caller's transaction."""
    usage = usage_of_log(connection, progress)
    newest = max((row.start for row in usage.values()), default=0)
    insert_usage(connection, merged(usage.values(), limits(newest)).values())


def insert_usage(connection: SqlConnection, rows: Iterable[UsageRow]) -> None:
    """Add these rows to the table, within the caller's transaction."""
    insert(connection, INSERT_USAGE, [msgspec.structs.astuple(row) for row in rows])


def read_usage(
    connection: SqlConnection,
    where: str = "1 = 1",
    values: Sequence[Any] = (),
    limit: int = ALL,
) -> list[UsageRow]:
    """Return at most `limit` rows in the order of their keys. Raises msgspec.ValidationError, the
    database's error.
    """
    query = f"SELECT {USAGE_COLUMNS} FROM usage WHERE {where} ORDER BY {_KEY_COLUMNS} LIMIT ?"
    return [usage_row(raw) for raw in connection.execute(query, (*values, limit)).fetchall()]


def usage_row(raw: tuple[Any, ...]) -> UsageRow:
    """Raises msgspec.ValidationError for a column of the wrong type."""
    return msgspec.convert(dict(zip(UsageRow.__struct_encode_fields__, raw, strict=True)), UsageRow)


class PeriodMerge:
    """Merges old hours into days and old days into months, once for each day of the newest row. Used
    in the writer's thread.
    """

    def __init__(self, connection: SqlConnection) -> None:
        self._connection = connection
        self._newest = 0
        #: the day whose merge has begun, and the key up to which it is done; None: to the end
        self._day = 0
        self._after: Sequence[Any] | None = None

    def use(self, connection: SqlConnection) -> None:
        """Use another file with the same usage."""
        self._connection = connection

    def seen(self, rows: Iterable[UsageRow]) -> None:
        """Note that these rows were written."""
        self._newest = max(self._newest, *(row.start for row in rows), 0)

    def merge(self) -> None:
        """Merge at most MERGED_AT_ONCE rows if rows are due, so that commits wait only for a moment.
        Raises the database's error without changes.
        """
        day = day_of(self._newest)
        if day != self._day:
            self._day, self._after = day, _NO_KEY
        if self._after is None:
            return
        c = self._connection
        c.execute("BEGIN IMMEDIATE")
        try:
            after = merge_periods(c, limits(self._newest), self._after)
            c.execute("COMMIT")
        except BaseException:
            if c.in_transaction:
                c.execute("ROLLBACK")
            raise
        self._after = after


def merge_periods(
    connection: SqlConnection, due: Limits, after: Sequence[Any]
) -> Sequence[Any] | None:
    """Merge the next MERGED_AT_ONCE periods after this key, within the caller's transaction. Return
    the last key; None if there are no more.
    """
    where = f"""start < ? AND (span = 'hour' AND start < ? OR span <> 'month' AND start < ?)
        AND ({_KEY_COLUMNS}) > ({", ".join("?" * len(KEY))})"""
    values = (max(due), *due, *after)
    old = read_usage(connection, where, values, MERGED_AT_ONCE)
    if not old:
        return None
    last = old[-1].key
    connection.execute(
        f"DELETE FROM usage WHERE {where} AND ({_KEY_COLUMNS}) <= ({', '.join('?' * len(KEY))})",
        (*values, *last),
    )
    insert_usage(connection, summed(longer(row, due) for row in old).values())
    return last if len(old) == MERGED_AT_ONCE else None


def differences(
    connection: SqlConnection, usage: Iterable[UsageRow]
) -> Iterator[tuple[str, int | None]]:
    """Yield (sentence, position) for each sum of a month that differs between the table and
    `usage`, that of the log.
    """
    right = merged(usage, ALL_MONTHS)
    try:
        found = merged(read_usage(connection), ALL_MONTHS)
    except msgspec.ValidationError as e:
        yield f"a row of the usage is damaged ({e})", None
        return
    for key in sorted(right.keys() | found.keys()):
        if right.get(key) != found.get(key):
            which = "/".join(key[2:])
            yield (
                f"the usage of {which} in the month from {key.start} differs from the events",
                None,
            )


def _compacted(connection: SqlConnection, up_to: int) -> tuple[int, Sequence[UsageRow]]:
    """Return the usage in the latest closing event of a compaction, and the position it is for."""
    rows = connection.execute(
        "SELECT CAST(type AS BLOB), schema, CAST(body AS BLOB) FROM events"
        " WHERE stream = ? AND type = 'LogCompacted' AND position <= ? ORDER BY version DESC",
        (SYSTEM, up_to),
    )
    for type_, schema, body in rows.fetchall():
        try:
            event = decode(type_.decode(), schema, body)
        except (Refusal, TypeError):
            continue
        if isinstance(event, LogCompacted) and event.usage is not None:
            return event.position, event.usage
    return 0, ()
