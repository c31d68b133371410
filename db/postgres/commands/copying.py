"""Copies of a whole log between a SQLite file and a schema. Into the schema each is one transaction,
which replaces the log or does nothing. Positions and checksums stay.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg

from ....protocol.errors import Refusal
from ...sql import statements
from ...sql.statements import JOB_COLUMNS, USAGE_COLUMNS, Inserts, SqlConnection, insert, rows_after
from ...store.checksum_chain import START, Broken, follow
from ...store.head_file import DurablePosition
from ..arrays import columns
from ..connection import FENCED, Raw, connect, is_lost, refusal
from ..lease import FENCE
from ..lease_protocol import LEASE_SECS
from ..opening import ERRORS, MOVED, Site, check_clock, create, has_tables
from ..schema import (
    INSERT_EVENTS,
    INSERT_JOBS,
    INSERT_KINDS,
    INSERT_NAMES,
    INSERT_RECEIPTS,
    INSERT_USAGE,
)
from .holding import Held

PAGE = 2000
#: Called at intervals with (activity, amount done, total amount).
Progress = Callable[[str, int, int], None]
_EVENTS = "SELECT position, stream, version, type, schema, at, body, checksum FROM events ORDER BY position"
#: Every table of a log in a file: its statement, and the rows.
_TO_FILE: tuple[tuple[str, Inserts, str], ...] = (
    ("events", statements.INSERT_EVENTS, _EVENTS),
    ("jobs", statements.INSERT_JOBS, f"SELECT {JOB_COLUMNS} FROM jobs ORDER BY jid"),
    (
        "receipts",
        statements.INSERT_RECEIPTS,
        "SELECT uid, req_id, jid, serial, at FROM receipts ORDER BY number",
    ),
    ("names", statements.INSERT_NAMES, "SELECT name, what, stream FROM names ORDER BY name"),
    ("usage", statements.INSERT_USAGE, f"SELECT {USAGE_COLUMNS} FROM usage ORDER BY start"),
    ("kinds", statements.INSERT_KINDS, "SELECT type, schema FROM kinds ORDER BY type"),
)
_DERIVED = (
    (INSERT_JOBS, f"SELECT {JOB_COLUMNS} FROM jobs"),
    (INSERT_RECEIPTS, "SELECT uid, req_id, jid, serial, at FROM receipts ORDER BY number"),
    (INSERT_NAMES, "SELECT name, what, stream FROM names"),
    (INSERT_USAGE, f"SELECT {USAGE_COLUMNS} FROM usage"),
    (INSERT_KINDS, "SELECT type, schema FROM kinds"),
)


def copy_log(site: Site, source: SqlConnection, head: DurablePosition, progress: Progress) -> int:
    """Copy the log that ends at `head` into a schema without one. Return the number of events. Raises
    Refusal; then the database is unchanged.
    """
    try:
        with connect(site.address, site.password_file, bounded=False) as raw:
            check_clock(site, raw)
            with raw.transaction():
                if has_tables(raw, site.address.schema):
                    _drop_moved(site, raw)
                create(site, raw)
                return _copy(raw, source, head, progress)
    except (*ERRORS, OSError) as e:
        raise refusal(e, site.address) from None
    except Broken as e:
        raise Refusal("storeDamaged", f"the log is damaged at {e}") from None


def _drop_moved(site: Site, raw: Raw) -> None:
    """Drop the tables of a log of this root that was moved out of them, or that a move which was
    interrupted left: no supervisor has used them since. Raises Refusal for other tables.
    """
    try:
        with raw.transaction():
            ((root_id, epoch),) = raw.execute("SELECT root_id, epoch FROM site, lease").fetchall()
    except (psycopg.Error, ValueError):
        root_id, epoch = None, None
    if not (root_id == MOVED + site.root_id or (root_id, epoch) == (site.root_id, 0)):
        raise Refusal(
            "badRequest",
            f"{site.address.name} has an event store: choose another schema, or drop this one",
        )
    raw.execute(
        b"DROP TABLE IF EXISTS site, lease, events, jobs, receipts, kinds, names, usage, supervisors, shard"
    )


def copy_to_file(source: SqlConnection, target: SqlConnection, progress: Progress) -> None:
    """Copy all tables as they are into the empty tables of a file. The caller verifies them."""
    for name, statement, query in _TO_FILE:
        ((total,),) = source.execute(f"SELECT count(*) FROM {name}").fetchall()
        done = 0
        target.execute("BEGIN IMMEDIATE")
        for page in _pages(source.execute(query)):
            insert(target, statement, page)
            done += len(page)
            progress(name, done, total)
        target.execute("COMMIT")


def replace_log(
    held: Held, source: SqlConnection, head: DurablePosition, progress: Progress
) -> None:
    """Replace the log of a held site by the one in a file that ends at `head`. Raises Refusal: then the
    log is unchanged, or the outcome is not known, which the sentence says.
    """
    raw = held.raw
    try:
        with raw.transaction():
            raw.execute(FENCE, (*head, LEASE_SECS, held.epoch, *held.head))
            raw.execute(b"TRUNCATE events, jobs, receipts, kinds, names, usage")
            _copy(raw, source, head, progress)
    except Broken as e:
        raise Refusal(
            "storeDamaged", f"the new log is damaged at {e}; nothing was changed"
        ) from None
    except psycopg.Error as e:
        if e.sqlstate == FENCED:
            raise Refusal(
                "rootBusy", f"another supervisor took {held.site.address.name}; nothing was changed"
            ) from None
        if is_lost(raw, e):
            raise Refusal(
                "storageUnavailable",
                f"the connection to {held.site.address.name} was lost, and it is not known whether the log was"
                " replaced: it is the old or the new one, complete; 'jobscribe db check' says which",
            ) from None
        raise refusal(e, held.site.address) from None


def _copy(raw: Raw, source: SqlConnection, head: DurablePosition, progress: Progress) -> int:
    """Copy a file into empty tables. Each row is verified against the row before it."""
    ((total,),) = source.execute("SELECT count(*) FROM events").fetchall()
    end, count = DurablePosition(0, START), 0
    for page in _pages(follow(rows_after(source, 0), START, 0)):
        _insert(raw, INSERT_EVENTS, page)
        end, count = DurablePosition(page[-1][0], page[-1][-1]), count + len(page)
        progress("events", count, total)
    if end != head:
        raise Refusal(
            "storeDamaged",
            f"the log ends at position {end.position}, but {head.position} was durable",
        )
    for statement, query in _DERIVED:
        for page in _pages(source.execute(query)):
            _insert(raw, statement, page)
    raw.execute("UPDATE lease SET position = %s, checksum = %s", end)
    return count


def _pages(rows: Iterable[Sequence[Any]]) -> Iterable[list[Sequence[Any]]]:
    iterator = iter(rows)
    while page := list(itertools.islice(iterator, PAGE)):
        yield page


def _insert(raw: Raw, statement: bytes, rows: list[Sequence[Any]]) -> None:
    raw.execute(statement, columns(rows, 0))
