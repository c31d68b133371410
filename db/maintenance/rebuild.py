"""Rebuild of everything derived from the log; the log itself stays unchanged. Only for a store that
is not in use.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ...protocol.errors import Refusal
from ..sql.statements import INSERT_KINDS, checksum_at, insert
from ..sqlite.opening import repair
from ..store.checksum_chain import Broken, Row, stored
from ..store.head_file import NOTHING, DurablePosition
from . import derived_tables, file_replacement
from .database.working_copy import changed
from .log_source import opened, store_path
from .verification import EVERY, Progress, durable_head, extent, no_progress, whole_rows


class Rebuilt(msgspec.Struct, kw_only=True, rename="camel"):
    """Result of a rebuild."""

    events: int
    jobs: int
    records_removed: int


class Copied(msgspec.Struct, frozen=True):
    """The end of a copied log and its number of events."""

    head: DurablePosition
    events: int


def rebuild(root: Path, progress: Progress = no_progress) -> Rebuilt:
    """Rebuild index, receipts and records from the log. Raises Refusal: rootBusy while the store is
    in use; storeDamaged if the log is incomplete.
    """
    done = changed(root, "rebuild it", lambda copy: rebuild(copy, progress), progress)
    if done is not None:
        return done
    path = store_path(root)
    opened(root).close()
    with file_replacement.exclusive(root, path, "rebuild it") as lock:
        old = opened(root)
        try:
            mark = trusted(old, lock.mark, path)
            new = path.with_name(path.name + ".rebuilt")
            with file_replacement.new_store(new) as target:
                copied = copy(old, target, progress)
                _check_head(target, copied.head, mark, path)
                derived_tables.receipts(old, target)
                derived_tables.names(target, progress)
                derived_tables.usage(target, progress)
                jobs = derived_tables.index(target, progress)
        finally:
            old.close()
        file_replacement.empty_wal(path)
        file_replacement.replace(root, path, new, lock, copied.head)
        removed = derived_tables.records(root, copied.head.position, progress)
    return Rebuilt(events=copied.events, jobs=jobs, records_removed=removed)


def trusted(
    connection: sqlite3.Connection, mark: DurablePosition | None, path: Path
) -> DurablePosition:
    """Return the position that the log must reach according to the head file. Raises
    Refusal("storeDamaged") without a head file.
    """
    if mark is None:
        (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()
        raise Refusal(
            "storeDamaged",
            f"the head file is missing or unreadable; the log ends at position {last}. {repair(path)}",
        )
    return durable_head(connection, mark)


def copy(old: sqlite3.Connection, target: sqlite3.Connection, progress: Progress) -> Copied:
    """Copy the log, verifying every row."""
    of, _ = extent(old)
    try:
        return store_rows(whole_rows(old), target, of, progress)
    except Broken as e:
        raise Refusal(
            "storeDamaged",
            f"the log is damaged at {e}; 'jobscribe db repair' keeps the intact events",
        ) from None


def store_rows(
    source: Iterable[Row], target: sqlite3.Connection, of: int, progress: Progress
) -> Copied:
    """Write these rows and the kinds of their events. of: estimated number of rows."""
    kinds: set[tuple[str, int]] = set()
    head, count = NOTHING, 0

    def rows() -> Iterator[Row]:
        nonlocal head, count
        for row in source:
            stored(row)
            kinds.add((row.type, row.schema))
            head, count = DurablePosition(row.position, row.checksum), count + 1
            if count % EVERY == 0:
                progress("events", count, of)
            yield row

    derived_tables.write_rows(target, rows())
    insert(target, INSERT_KINDS, sorted(kinds))
    return Copied(head, count)


def _check_head(
    target: sqlite3.Connection, head: DurablePosition, mark: DurablePosition, path: Path
) -> None:
    if head.position < mark.position:
        raise Refusal(
            "storeDamaged",
            f"the log ends at position {head.position}, but {mark.position} was durable. {repair(path)}",
        )
    if mark != NOTHING and checksum_at(target, mark.position) != mark.checksum:
        raise Refusal(
            "storeDamaged",
            f"position {mark.position} of the log differs from the head file. {repair(path)}",
        )
