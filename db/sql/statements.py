"""The statements that all SQL stores share, and the connection that they are executed on.

They are written as SQLite understands them. The connection of another database replaces the few
constructs that differ (`postgres.connection`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from ..events.usage_row import KEY, LARGEST, MOST, SUMS, UsageRow
from ..store.checksum_chain import START

#: A limit that limits nothing, and a position behind every other one.
ALL = 2**62
USAGE_FIELDS = UsageRow.__struct_fields__


class Rows(Protocol):
    """The result of a statement."""

    def fetchall(self) -> list[Any]: ...

    def fetchone(self) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class SqlConnection(Protocol):
    """A connection in autocommit mode: transactions are statements. Places of values are `?`."""

    def execute(self, query: str, values: Sequence[Any] = ..., /) -> Rows: ...

    @property
    def in_transaction(self) -> bool: ...


#: Text as bytes: a damaged file may contain invalid UTF-8.
ROW_COLUMNS = "position, CAST(stream AS BLOB), version, CAST(type AS BLOB), schema, at, CAST(body AS BLOB), checksum"
JOB_COLUMNS = "jid, uid, status, serial, simulation_type, kind, driver, busy, queued_at, started_at, ended_at, reason, position"

USAGE_COLUMNS = ", ".join(USAGE_FIELDS)

Inserts = dict[int, str]


def _lesser(column: str, one: str, other: str) -> str:
    """Return the assignment of the lesser one."""
    return f"{column} = CASE WHEN {one} > {other} THEN {other} ELSE {one} END"


def _inserts(head: str, columns: int, tail: str = "") -> Inserts:
    """Return statements for 64, 16, 4 and 1 rows. Each execution releases the interpreter's lock
    once, so few large statements are cheaper.
    """
    places = "(" + ",".join("?" * columns) + ")"
    return {n: head + " VALUES " + ",".join([places] * n) + tail for n in (64, 16, 4, 1)}


INSERT_EVENTS = _inserts("INSERT INTO events", 8)
INSERT_JOBS = _inserts("INSERT OR REPLACE INTO jobs", 13)
INSERT_RECEIPTS = _inserts("INSERT OR REPLACE INTO receipts (uid, req_id, jid, serial, at)", 5)
INSERT_KINDS = _inserts("INSERT INTO kinds", 2, " ON CONFLICT DO NOTHING")
INSERT_NAMES = _inserts("INSERT INTO names", 3, " ON CONFLICT DO NOTHING")
#: Adds to the row with the same key.
INSERT_USAGE = _inserts(
    f"INSERT INTO usage ({USAGE_COLUMNS})",
    len(USAGE_FIELDS),
    f" ON CONFLICT ({', '.join(KEY)}) DO UPDATE SET "
    + ", ".join(
        [_lesser(c, f"usage.{c} + excluded.{c}", str(MOST)) for c in SUMS]
        + [
            f"{c} = CASE WHEN usage.{c} > excluded.{c} THEN usage.{c} ELSE excluded.{c} END"
            for c in LARGEST
        ]
    ),
)


def insert(connection: SqlConnection, statements: Inserts, rows: Sequence[Sequence[Any]]) -> None:
    """Insert all rows with as few statements as possible."""
    start = 0
    for count, statement in statements.items():
        while len(rows) - start >= count:
            connection.execute(
                statement, [value for row in rows[start : start + count] for value in row]
            )
            start += count


def rows_after(
    connection: SqlConnection, after: int, up_to: int | None = None, limit: int = ALL
) -> Iterable[tuple[Any, ...]]:
    """Return raw rows of the log in order of position, at most `limit`."""
    last = ALL if up_to is None else up_to
    query = f"SELECT {ROW_COLUMNS} FROM events WHERE position > ? AND position <= ? ORDER BY position LIMIT ?"
    return connection.execute(query, (after, last, limit))


def checksum_at(connection: SqlConnection, position: int) -> Any:
    """Return the checksum of the row at `position`; None without a row."""
    row = connection.execute(
        "SELECT checksum FROM events WHERE position = ?", (position,)
    ).fetchall()
    return row[0][0] if row else None


def last_before(connection: SqlConnection, position: int, back: int = 0) -> tuple[int, Any]:
    """Return position and checksum of the row `back` rows before the last row up to `position`; the
    start of the log without such a row.
    """
    query = "SELECT position, checksum FROM events WHERE position <= ? ORDER BY position DESC LIMIT 1 OFFSET ?"
    rows = connection.execute(query, (position, back)).fetchall()
    return (rows[0][0], rows[0][1]) if rows else (0, START)
