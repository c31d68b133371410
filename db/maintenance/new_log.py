"""The new log of a compaction: its rows are copied, chained again, closed and compared with the old
log. `compaction` decides what is folded.
"""

import itertools
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...protocol.errors import Refusal
from ..events.events import SYSTEM, LogCompacted, encode, schema_of, type_of
from ..events.usage_row import Limits, UsageRow, limits, merged
from ..sql.reader import index_row as read_index_row
from ..sql.statements import JOB_COLUMNS, rows_after
from ..sql.usage_table import usage_of_log
from ..store.checksum_chain import Broken, Row, row
from ..store.head_file import NOTHING, DurablePosition
from ..store.job_index import index_row
from . import derived_tables, file_replacement
from .log_source import open_file
from .verification import EVERY, Progress, folded, whole_rows

#: Checksum of rows that are not chained yet.
UNCHAINED = bytes(16)


class Compacted(msgspec.Struct, kw_only=True, rename="camel"):
    """Result of a compaction, or its estimate. If nothing can be folded, nothing is written, and
    events_after equals events_before.

    bytes_saved: text of events; the file shrinks by about as much. kept_aside: folder with the old
    log.
    """

    events_before: int
    events_after: int
    jobs: int
    jobs_folded: int = 0
    agents_folded: int = 0
    bytes_saved: int = 0
    kept_aside: str | None = None

    @property
    def changed(self) -> bool:
        return self.events_after != self.events_before or self.jobs_folded > 0


class Plan(msgspec.Struct):
    """up_to: the last version that the checkpoint of each folded stream replaces. trimmed: ids of
    jobs that are folded without some of their data.
    """

    up_to: dict[str, int]
    rows: list[Row]
    trimmed: list[str] = []
    jobs: int = 0
    jobs_folded: int = 0
    agents_folded: int = 0
    replaced: int = 0
    bytes_saved: int = 0

    def result(self, before: int, after: int) -> Compacted:
        """Return the result of a compaction with these numbers of events."""
        return Compacted(
            events_before=before,
            events_after=after,
            jobs=self.jobs,
            jobs_folded=self.jobs_folded,
            agents_folded=self.agents_folded,
            bytes_saved=self.bytes_saved,
        )


def text_row(raw: tuple[Any, ...]) -> Row:
    position, stream, version, type_, schema, at, body, checksum = raw
    return Row(
        position, stream.decode(), version, type_.decode(), schema, at, body.decode(), checksum
    )


def copy_kept(
    old: sqlite3.Connection, target: sqlite3.Connection, plan: Plan, of: int, progress: Progress
) -> None:
    """Copy the rows that no checkpoint replaces."""

    def kept() -> Iterator[Row]:
        for n, raw in enumerate(rows_after(old, 0), 1):
            row_ = text_row(raw)
            if row_.version > plan.up_to.get(row_.stream, 0):
                yield row_._replace(checksum=UNCHAINED)
            if n % EVERY == 0:
                progress("events copied", n, of)

    derived_tables.write_rows(target, kept())


def usage_by_day(old: sqlite3.Connection, progress: Progress) -> tuple[UsageRow, ...]:
    """Return the usage of the whole log, by days and months."""
    return merged_usage(usage_of_log(old, progress).values())


def merged_usage(usage: Collection[UsageRow]) -> tuple[UsageRow, ...]:
    """Return these rows by days and months, in the order of their keys."""
    newest = max((row_.start for row_ in usage), default=0)
    due = Limits(2**62, limits(newest).months)
    return tuple(row_ for _, row_ in sorted(merged(usage, due).items()))


class Chained(NamedTuple):
    """End of the rows that have their checksums, their number, and their types with schemas."""

    end: DurablePosition
    events: int
    kinds: frozenset[tuple[str, int]]


def chain(target: sqlite3.Connection) -> Chained:
    """Compute the checksums of all rows in order."""
    end, count, kinds = NOTHING, 0, set[tuple[str, int]]()
    while page := [
        text_row(raw) for raw in rows_after(target, end.position, None, derived_tables.BATCH)
    ]:
        page = rechained(page, end)
        kinds |= {(r.type, r.schema) for r in page}
        target.execute("BEGIN IMMEDIATE")
        target.executemany(
            "UPDATE events SET checksum = ? WHERE position = ?",
            [(r.checksum, r.position) for r in page],
        )
        target.execute("COMMIT")
        end, count = DurablePosition(page[-1].position, page[-1].checksum), count + len(page)
    return Chained(end, count, frozenset(kinds))


def rechained(rows: Iterable[Row], end: DurablePosition) -> list[Row]:
    """Return these rows with the checksums that they have after `end`."""
    out, previous = [], end.checksum
    for r in rows:
        new = row(
            previous, r.position, r.stream, r.version, r.type, r.schema, r.at, r.body.encode()
        )
        out.append(new)
        previous = new.checksum
    return out


def closing_row(target: sqlite3.Connection, end: DurablePosition, event: LogCompacted) -> Row:
    """Return the row that closes the log after `end`: one position after that of the old log."""
    (version,) = target.execute(
        "SELECT coalesce(max(version), 0) FROM events WHERE stream = ?", (SYSTEM,)
    ).fetchone()
    return row(
        end.checksum,
        event.position + 1,
        SYSTEM,
        version + 1,
        type_of(event),
        schema_of(event),
        event.at,
        encode(event),
    )


def same_jobs(target: sqlite3.Connection, progress: Progress) -> None:
    """Compare every job of the new log with the index of the old one. A difference is a bug, and
    raises Refusal.
    """
    listed = target.execute(f"SELECT {JOB_COLUMNS} FROM jobs ORDER BY 'job/' || jid")
    for count, (made, raw) in enumerate(itertools.zip_longest(folded(target, 2**62), listed), 1):
        right = (
            None
            if made is None
            else msgspec.structs.replace(index_row(made[0]), position=made[1].position)
        )
        if right is None or raw is None or read_index_row(raw) != right:
            which = raw[0] if made is None else made[0].jid
            raise Refusal(
                "internal",
                f"the compacted log differs from the log for job {which}; nothing was changed",
            )
        if count % EVERY == 0:
            progress("jobs compared", count, count)


def verify_new(new: Path) -> DurablePosition:
    """Verify the new file from its beginning and return its end."""
    connection = open_file(new)
    try:
        head = NOTHING
        for row_ in whole_rows(connection):
            head = DurablePosition(row_.position, row_.checksum)
        return head
    except Broken as e:
        raise Refusal(
            "storageUnavailable",
            f"{new} differs from what was written to it: {e}; nothing was changed",
        ) from None
    finally:
        connection.close()


def drop(new: Path) -> None:
    for leftover in (new, *file_replacement.companions(new)):
        leftover.unlink(missing_ok=True)
