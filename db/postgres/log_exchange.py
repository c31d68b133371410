"""The exchange of the log for a shorter one while a supervisor writes: the new log is in tables beside the
log (`events_new`, `names_new`), which take its place in one transaction of the writer.

`maintenance.database.compaction` decides what the new log has.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from ..store.contract import Done, Stored
from ..store.head_file import DurablePosition
from .arrays import columns
from .connection import Connection, Raw
from .schema import INSERT_EVENTS, INSERT_KINDS, INSERT_NAMES

#: Longest wait for readers of the log, in milliseconds: commits wait behind it.
LOCK_MS = 300
_TABLES = ("events", "names")


class Exchanged(NamedTuple):
    """The new log. closing: its last event, at `head`."""

    head: DurablePosition
    closing: Stored
    kinds: frozenset[tuple[str, int]]


class LogExchange(Protocol):
    def replace(
        self, connection: Connection, log: DurablePosition, fence: Callable[[DurablePosition], None]
    ) -> Exchanged:
        """Put the new log into the place of the log, which ends at `log`, within the writer's
        transaction. fence: moves the head, before anything is changed. Raises Refusal, psycopg.Error.
        """


class PendingExchange(NamedTuple):
    exchange: LogExchange
    done: Done


def make_tables(raw: Raw) -> None:
    """Make the tables of a new log, empty, and the one with its note."""
    drop_tables(raw)
    for name in _TABLES:
        raw.execute(f"CREATE TABLE {name}_new (LIKE {name} INCLUDING ALL)".encode())
    raw.execute("CREATE TABLE compaction (note text NOT NULL)")


def drop_tables(raw: Raw) -> None:
    raw.execute("DROP TABLE IF EXISTS compaction, events_new, names_new")


def note(raw: Raw) -> str | None:
    """Return the note of a new log; None if there is none."""
    row = raw.execute("SELECT to_regclass('compaction') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return None
    row = raw.execute("SELECT note FROM compaction").fetchone()
    return None if row is None else str(row[0])


def write_note(raw: Raw, text: str) -> None:
    raw.execute("DELETE FROM compaction")
    raw.execute("INSERT INTO compaction VALUES (%s)", (text,))


def add_rows(raw: Raw, rows: Sequence[Sequence[Any]], names: Iterable[Sequence[Any]]) -> None:
    """Append rows to the new log, with the names of their events."""
    for statement, added in (
        (INSERT_EVENTS.replace(b"INTO events", b"INTO events_new"), rows),
        (INSERT_NAMES.replace(b"INTO names", b"INTO names_new"), list(names)),
    ):
        if added:
            raw.execute(statement, columns(added, 0))


def lock_log(raw: Raw) -> None:
    """Wait a moment for readers of the log. Raises psycopg.errors.LockNotAvailable."""
    raw.execute(f"SET LOCAL lock_timeout = {LOCK_MS}".encode())
    raw.execute("LOCK TABLE events, names IN ACCESS EXCLUSIVE MODE")


def put_in_place(raw: Raw, kinds: Iterable[tuple[str, int]]) -> None:
    """Replace the log by the new one, with these kinds of events."""
    for name in _TABLES:
        raw.execute(f"DROP TABLE {name}".encode())
        raw.execute(f"ALTER TABLE {name}_new RENAME TO {name}".encode())
    raw.execute("DROP TABLE compaction")
    raw.execute("DELETE FROM kinds")
    raw.execute(INSERT_KINDS, columns(sorted(kinds), 0))
