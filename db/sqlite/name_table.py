"""The SQLite table `names`: fill it from the log, and compare it with the log. `naming` says which
names an event has.
"""

import itertools
import sqlite3
from collections.abc import Callable, Iterator

import msgspec

from ...protocol.errors import Refusal
from ..events.events import Event, decode
from ..store.name_index import NAMED_EVENTS, names_of
from .schema import INSERT_NAMES, ROW_COLUMNS, insert

#: Called at times with (activity, amount done, total amount).
Progress = Callable[[str, int, int], None]
BATCH = 5000
_THERE = "SELECT 1 FROM names WHERE name = ? AND what = ? AND stream = ?"
_AMONG = ", ".join(f"'{t}'" for t in NAMED_EVENTS)


def write_names(connection: sqlite3.Connection, progress: Progress) -> None:
    """Fill the empty table from the log, within the caller's transaction. What cannot be read of
    the log, its check tells of.
    """
    (of,) = connection.execute(f"SELECT count(*) FROM events WHERE type IN ({_AMONG})").fetchone()
    made: list[tuple[str, str, str]] = []
    for count, (stream, event, _) in enumerate(_events(connection, "position", 2**62), 1):
        made += (msgspec.structs.astuple(n) for n in names_of(stream, event))
        if len(made) >= BATCH:
            insert(connection, INSERT_NAMES, made)
            made.clear()
        if count % BATCH == 0:
            progress("names", count, of)
    insert(connection, INSERT_NAMES, made)


def differences(connection: sqlite3.Connection, up_to: int) -> Iterator[tuple[str, int | None]]:
    """Where the table is not what the events up to there say: (a sentence, the position it is
    about).
    """
    right = 0
    events = _events(connection, "stream, version", up_to)
    for stream, group in itertools.groupby(events, key=lambda e: e[0]):
        seen = {name: position for _, event, position in group for name in names_of(stream, event)}
        right += len(seen)
        for name, position in seen.items():
            if connection.execute(_THERE, msgspec.structs.astuple(name)).fetchone() is None:
                yield (
                    f"the {name.what} {name.name} of {stream} cannot be found by its name",
                    position,
                )
                right -= 1
    (there,) = connection.execute("SELECT count(*) FROM names").fetchone()
    if there != right:
        yield f"{there - right} names lead to what no event says", None


def _events(
    connection: sqlite3.Connection, order: str, up_to: int
) -> Iterator[tuple[str, Event, int]]:
    rows = connection.execute(
        f"SELECT {ROW_COLUMNS} FROM events WHERE position <= ? AND type IN ({_AMONG})"
        f" ORDER BY {', '.join('events.' + column for column in order.split(', '))}",
        (up_to,),
    )
    for position, stream, _, type_, schema, _, body, _ in rows:
        try:
            yield stream.decode(), decode(type_.decode(), schema, body), position
        except (Refusal, UnicodeDecodeError, AttributeError, TypeError):
            continue  # the log is damaged there
