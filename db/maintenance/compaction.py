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
from pathlib import Path

import msgspec

from ...protocol.errors import Refusal
from ..events.events import JobFolded, LogCompacted, encode, schema_of, type_of
from ..events.usage_row import UsageRow
from ..sql.statements import INSERT_JOBS, INSERT_KINDS, ROW_COLUMNS, SqlConnection, insert
from ..sqlite.opening import repair
from ..store.checksum_chain import Broken, Row, stored
from ..store.contract import IndexRow, Stored
from ..store.head_file import NOTHING, DurablePosition
from ..store.job_index import index_row
from . import derived_tables, file_replacement
from .checkpoints import Rules, checkpoint, job_of
from .database.working_copy import changed
from .log_source import log_source, opened, store_path
from .new_log import (
    UNCHAINED,
    Compacted,
    Plan,
    chain,
    closing_row,
    copy_kept,
    drop,
    same_jobs,
    text_row,
    usage_by_day,
    verify_new,
)
from .rebuild import trusted
from .verification import EVERY, Progress, no_progress, whole_rows

DAY = 86_400.0
#: Default age of the last event of a folded job, and earlier runs kept in it.
OLDER_THAN_SECS = 30 * DAY
HISTORY = 10

#: Bytes of a row in addition to its text: its numbers, and its part of the two indexes.
_ROW_BYTES = 60


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
    rewritten = changed(
        root,
        "compact it",
        lambda copy: compact(
            copy,
            older_than_secs=older_than_secs,
            history=history,
            keep=keep,
            now=now,
            progress=progress,
        ),
        progress,
        unless=lambda r: not r.changed,
    )
    if rewritten is not None:
        return rewritten
    path = store_path(root)
    opened(root).close()
    rules = rules_of(older_than_secs, history, now)
    with file_replacement.exclusive(root, path, "compact it") as lock:
        old = opened(root)
        try:
            mark = trusted(old, lock.mark, path)
            head, events = verified(old, mark, path, progress)
            new = path.with_name(path.name + ".compacted")
            with contextlib.ExitStack() as unfinished:
                target = unfinished.enter_context(file_replacement.new_store(new))
                plan = fold_streams(old, target, rules, events, progress)
                if not plan.up_to:
                    unfinished.pop_all().close()
                    drop(new)
                    return Compacted(events_before=events, events_after=events, jobs=plan.jobs)
                copy_kept(old, target, plan, events, progress)
                usage = usage_by_day(old, progress)
                done = _close(target, plan, head, events, usage, rules.at)
                derived_tables.receipts(old, target)
                derived_tables.names(target, progress)
                derived_tables.usage(target, progress)
                same_jobs(target, progress)
        finally:
            old.close()
        end = verify_new(new)
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
    with log_source(root).snapshot() as connection:
        (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
        plan = fold_streams(
            connection, None, rules_of(older_than_secs, history, now), events, progress
        )
    after = events - plan.replaced + len(plan.up_to) + 1 if plan.up_to else events
    return plan.result(events, after)


def rules_of(older_than_secs: float, history: int | None, now: float | None) -> Rules:
    at = time.time() if now is None else now
    return Rules(before=at - older_than_secs, history=history, at=at)


def verified(
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


def fold_streams(
    old: SqlConnection,
    target: sqlite3.Connection | None,
    rules: Rules,
    of: int,
    progress: Progress,
) -> Plan:
    """Find the streams that can be folded. target: gets the checkpoints, without checksums, and the
    index of jobs of the old log.
    """
    plan, index, done = Plan({}, []), list[IndexRow](), 0
    rows = old.execute(f"SELECT {ROW_COLUMNS} FROM events ORDER BY events.stream, events.version")
    for stream, group in itertools.groupby((text_row(raw) for raw in rows), key=lambda r: r.stream):
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


def _fold(plan: Plan, stream: str, own: list[Row], events: list[Stored], rules: Rules) -> None:
    folded_ = checkpoint(stream, events, rules)
    if folded_ is None:
        return
    new = _unchained(folded_.row)
    event = folded_.row.event
    if isinstance(event, JobFolded) and event.trimmed:
        plan.trimmed.append(event.job.jid)
    plan.up_to[stream] = new.version
    plan.rows.append(new)
    plan.replaced += folded_.count
    plan.jobs_folded += stream.startswith("job/")
    plan.agents_folded += stream.startswith("agent/")
    plan.bytes_saved += sum(_size(r) for r in own[: folded_.count]) - _size(new)


def _flush(target: sqlite3.Connection, plan: Plan, index: list[IndexRow]) -> None:
    derived_tables.write_rows(target, plan.rows)
    target.execute("BEGIN IMMEDIATE")
    insert(target, INSERT_JOBS, [msgspec.structs.astuple(r) for r in index])
    target.execute("COMMIT")
    plan.rows.clear()
    index.clear()


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
        UNCHAINED,
    )


def _size(row_: Row) -> int:
    return len(row_.body) + 2 * len(row_.stream) + len(row_.type) + _ROW_BYTES


def _close(
    target: sqlite3.Connection,
    plan: Plan,
    head: DurablePosition,
    events: int,
    usage: tuple[UsageRow, ...],
    now: float,
) -> Compacted:
    """Chain all rows, and append the closing event."""
    chained = chain(target)
    event = LogCompacted(
        at=now,
        position=head.position,
        checksum=head.checksum.hex(),
        events_before=events,
        events_after=chained.events + 1,
        jobs_folded=plan.jobs_folded,
        usage=usage,
    )
    closing = closing_row(target, chained.end, event)
    derived_tables.write_rows(target, [closing])
    insert(target, INSERT_KINDS, sorted(chained.kinds | {(closing.type, closing.schema)}))
    return plan.result(events, event.events_after)
