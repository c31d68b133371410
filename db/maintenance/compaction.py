"""Compaction: shortens the log by folding finished streams into one checkpoint each, without
changing its meaning.

The log is rewritten into a new file. Kept rows keep position and version; a checkpoint has those of
the last row it replaces. All rows get new checksums, so the row after a gap in positions proves
that nothing is missing there. A closing event names the end of the replaced log. Before the new
file replaces the old one, every job in it is compared with the old log.
"""

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...protocol.errors import Refusal
from ..events.events import SYSTEM, LogCompacted, encode, schema_of, type_of
from ..events.usage_row import Limits, UsageRow, limits, merged
from ..sqlite.head_file import NOTHING, DurablePosition
from ..sqlite.opening import repair
from ..sqlite.reader import index_row as read_index_row
from ..sqlite.schema import INSERT_JOBS, INSERT_KINDS, JOB_COLUMNS, ROW_COLUMNS, insert, rows_after
from ..sqlite.usage_table import usage_of_log
from ..store.checksum_chain import START, Broken, Row, row, stored
from ..store.contract import IndexRow, Stored
from ..store.job_index import index_row
from . import derived_tables, file_replacement
from .checkpoints import Rules, checkpoint, job_of
from .rebuild import trusted
from .verification import (
    EVERY,
    Progress,
    folded,
    no_progress,
    open_file,
    opened,
    store_path,
    whole_rows,
)

DAY = 86_400.0
#: Default age of the last event of a folded job, and earlier runs kept in it.
OLDER_THAN_SECS = 30 * DAY
HISTORY = 10

_UNCHAINED = bytes(16)
#: Bytes of a row in addition to its text: its numbers, and its part of the two indexes.
_ROW_BYTES = 60


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


class _Plan(msgspec.Struct):
    """up_to: the last version that the checkpoint of each folded stream replaces."""

    up_to: dict[str, int]
    rows: list[Row]
    jobs: int = 0
    jobs_folded: int = 0
    agents_folded: int = 0
    replaced: int = 0
    bytes_saved: int = 0


def compact(
    root: Path,
    *,
    older_than_secs: float = OLDER_THAN_SECS,
    history: int = HISTORY,
    keep: bool = True,
    now: float | None = None,
    progress: Progress = no_progress,
) -> Compacted:
    """Fold finished streams older than `older_than_secs`. Raises Refusal: rootBusy while the store
    is in use; storeDamaged.
    """
    path = store_path(root)
    opened(root).close()
    rules = _rules(older_than_secs, history, now)
    with file_replacement.exclusive(root, path, "compact it") as lock:
        old = opened(root)
        try:
            mark = trusted(old, lock.mark, path)
            head, events = _verified(old, mark, path, progress)
            new = path.with_name(path.name + ".compacted")
            with contextlib.ExitStack() as unfinished:
                target = unfinished.enter_context(file_replacement.new_store(new))
                plan = _plan(old, target, rules, events, progress)
                if not plan.up_to:
                    unfinished.pop_all().close()
                    _drop(new)
                    return Compacted(events_before=events, events_after=events, jobs=plan.jobs)
                _copy(old, target, plan, events, progress)
                usage = _usage(old, progress)
                done = _chain(target, plan, head, events, usage, rules.at)
                derived_tables.receipts(old, target)
                derived_tables.names(target, progress)
                derived_tables.usage(target, progress)
                _same_jobs(target, progress)
        finally:
            old.close()
        end = _verify_new(new)
        # from here on the head file names exactly the log that the closing event names
        file_replacement.empty_wal(path)
        lock.reset(head.position, head.checksum)
        aside = file_replacement.keep_aside(path, "before-compaction", copy=False) if keep else None
        file_replacement.replace(root, path, new, lock, end)
        derived_tables.records(root, end.position, progress)
    done.kept_aside = str(aside) if aside else None
    return done


def estimate(
    root: Path,
    *,
    older_than_secs: float = OLDER_THAN_SECS,
    history: int = HISTORY,
    now: float | None = None,
    progress: Progress = no_progress,
) -> Compacted:
    """Return what `compact` would do now. Writes nothing; the store may be in use. Raises Refusal."""
    connection = opened(root)
    try:
        connection.execute("BEGIN")
        (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
        plan = _plan(connection, None, _rules(older_than_secs, history, now), events, progress)
    finally:
        connection.close()
    after = events - plan.replaced + len(plan.up_to) + 1 if plan.up_to else events
    return Compacted(
        events_before=events,
        events_after=after,
        jobs=plan.jobs,
        jobs_folded=plan.jobs_folded,
        agents_folded=plan.agents_folded,
        bytes_saved=plan.bytes_saved,
    )


def _rules(older_than_secs: float, history: int, now: float | None) -> Rules:
    at = time.time() if now is None else now
    return Rules(before=at - older_than_secs, history=history, at=at)


def _verified(
    connection: sqlite3.Connection, mark: DurablePosition, path: Path, progress: Progress
) -> tuple[DurablePosition, int]:
    """Verify the whole log; return its end and its number of events."""
    (of,) = connection.execute("SELECT count(*) FROM events").fetchone()
    head, count, seen = NOTHING, 0, mark == NOTHING
    try:
        for row_ in whole_rows(connection):
            stored(row_)
            head, count = DurablePosition(row_.position, row_.checksum), count + 1
            seen = seen or head == mark
            if count % EVERY == 0:
                progress("events verified", count, of)
    except Broken as e:
        raise Refusal(
            "storeDamaged", f"{path}: the log is damaged at {e}. {repair(path)}"
        ) from None
    if not seen:
        raise Refusal(
            "storeDamaged",
            f"{path}: position {mark.position} of the log differs from the head file. {repair(path)}",
        )
    return head, count


# ---- selection of events


def _plan(
    old: sqlite3.Connection,
    target: sqlite3.Connection | None,
    rules: Rules,
    of: int,
    progress: Progress,
) -> _Plan:
    """Find the streams that can be folded. target: gets the checkpoints, without checksums, and the
    index of jobs of the old log.
    """
    plan, index, done = _Plan({}, []), list[IndexRow](), 0
    rows = old.execute(f"SELECT {ROW_COLUMNS} FROM events ORDER BY events.stream, events.version")
    for stream, group in itertools.groupby((_row(raw) for raw in rows), key=lambda r: r.stream):
        own = list(group)
        events = [stored(r) for r in own]
        job = job_of(stream, events)
        if job is not None:
            plan.jobs += 1
            index.append(msgspec.structs.replace(index_row(job), position=own[-1].position))
        _fold(plan, stream, own, events, rules)
        if target is not None and len(plan.rows) + len(index) >= derived_tables.BATCH:
            _flush(target, plan, index)
        if (done + len(own)) // EVERY > done // EVERY:
            progress("events folded", done + len(own), of)
        done += len(own)
    if target is not None:
        _flush(target, plan, index)
    if not (plan.jobs_folded or plan.agents_folded) and plan.replaced <= 2:
        # two events of the system would become a checkpoint and a closing event
        plan.up_to.clear()
    return plan


def _fold(plan: _Plan, stream: str, own: list[Row], events: list[Stored], rules: Rules) -> None:
    folded_ = checkpoint(stream, events, rules)
    if folded_ is None:
        return
    new = _unchained(folded_.row)
    plan.up_to[stream] = new.version
    plan.rows.append(new)
    plan.replaced += folded_.count
    plan.jobs_folded += stream.startswith("job/")
    plan.agents_folded += stream.startswith("agent/")
    plan.bytes_saved += sum(_size(r) for r in own[: folded_.count]) - _size(new)


def _flush(target: sqlite3.Connection, plan: _Plan, index: list[IndexRow]) -> None:
    derived_tables.write_rows(target, plan.rows)
    target.execute("BEGIN IMMEDIATE")
    insert(target, INSERT_JOBS, [msgspec.structs.astuple(r) for r in index])
    target.execute("COMMIT")
    plan.rows.clear()
    index.clear()


def _row(raw: tuple[Any, ...]) -> Row:
    position, stream, version, type_, schema, at, body, checksum = raw
    return Row(
        position, stream.decode(), version, type_.decode(), schema, at, body.decode(), checksum
    )


def _unchained(s: Stored) -> Row:
    event = s.event
    return Row(
        s.position,
        s.stream,
        s.version,
        type_of(event),
        schema_of(event),
        event.at,
        encode(event).decode(),
        _UNCHAINED,
    )


def _size(row_: Row) -> int:
    return len(row_.body) + 2 * len(row_.stream) + len(row_.type) + _ROW_BYTES


# ---- the new log


def _copy(
    old: sqlite3.Connection, target: sqlite3.Connection, plan: _Plan, of: int, progress: Progress
) -> None:
    """Copy the rows that no checkpoint replaces."""

    def kept() -> Iterator[Row]:
        for n, raw in enumerate(rows_after(old, 0), 1):
            row_ = _row(raw)
            if row_.version > plan.up_to.get(row_.stream, 0):
                yield row_._replace(checksum=_UNCHAINED)
            if n % EVERY == 0:
                progress("events copied", n, of)

    derived_tables.write_rows(target, kept())


def _usage(old: sqlite3.Connection, progress: Progress) -> tuple[UsageRow, ...]:
    """Return the usage of the whole log, by days and months."""
    usage = usage_of_log(old, progress)
    newest = max((row_.start for row_ in usage.values()), default=0)
    due = Limits(2**62, limits(newest).months)
    return tuple(row_ for _, row_ in sorted(merged(usage.values(), due).items()))


def _chain(
    target: sqlite3.Connection,
    plan: _Plan,
    head: DurablePosition,
    events: int,
    usage: tuple[UsageRow, ...],
    now: float,
) -> Compacted:
    """Compute the checksums of all rows in order, and append the closing event."""
    previous, last, count = START, 0, 0
    kinds: set[tuple[str, int]] = set()
    while page := [_row(raw) for raw in rows_after(target, last, None, derived_tables.BATCH)]:
        changes = []
        for r in page:
            previous = row(
                previous, r.position, r.stream, r.version, r.type, r.schema, r.at, r.body.encode()
            ).checksum
            kinds.add((r.type, r.schema))
            changes.append((previous, r.position))
        target.execute("BEGIN IMMEDIATE")
        target.executemany("UPDATE events SET checksum = ? WHERE position = ?", changes)
        target.execute("COMMIT")
        last, count = page[-1].position, count + len(page)
    (version,) = target.execute(
        "SELECT coalesce(max(version), 0) FROM events WHERE stream = ?", (SYSTEM,)
    ).fetchone()
    event = LogCompacted(
        at=now,
        position=head.position,
        checksum=head.checksum.hex(),
        events_before=events,
        events_after=count + 1,
        jobs_folded=plan.jobs_folded,
        usage=usage,
    )
    closing = row(
        previous,
        head.position + 1,
        SYSTEM,
        version + 1,
        type_of(event),
        schema_of(event),
        now,
        encode(event),
    )
    derived_tables.write_rows(target, [closing])
    insert(target, INSERT_KINDS, sorted(kinds | {(closing.type, closing.schema)}))
    return Compacted(
        events_before=events,
        events_after=count + 1,
        jobs=plan.jobs,
        jobs_folded=plan.jobs_folded,
        agents_folded=plan.agents_folded,
        bytes_saved=plan.bytes_saved,
    )


def _same_jobs(target: sqlite3.Connection, progress: Progress) -> None:
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


def _verify_new(new: Path) -> DurablePosition:
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


def _drop(new: Path) -> None:
    for leftover in (new, *file_replacement.companions(new)):
        leftover.unlink(missing_ok=True)
