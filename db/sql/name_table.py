"""The table `names`: fills it from the log and compares it with the log. `name_index`
defines the names of each event.
"""

import itertools
from collections.abc import Callable, Iterator

import msgspec

from ...protocol.errors import Refusal
from ..events.events import Event, decode
from ..store.name_index import NAMED_EVENTS, secondary_names
from .statements import INSERT_NAMES, ROW_COLUMNS, SqlConnection, insert

#: Called at intervals with (activity, amount done, total amount).
Progress = Callable[[str, int, int], None]
BATCH = 5000
_EXISTS = "SELECT 1 FROM names WHERE name = ? AND what = ? AND stream = ?"
_NAMED_TYPES = ", ".join(f"'{t}'" for t in NAMED_EVENTS)


def write_names(connection: SqlConnection, progress: Progress) -> None:
    """Fill the empty table from the log, within the caller's transaction. Unreadable rows are
    skipped; the check of the log reports them.
    """
    (total,) = connection.execute(
        f"SELECT count(*) FROM events WHERE type IN ({_NAMED_TYPES})"
    ).fetchone()
    names: list[tuple[str, str, str]] = []
    for count, (stream, event, _) in enumerate(_events(connection, "position", 2**62), 1):
        names += (msgspec.structs.astuple(n) for n in secondary_names(stream, event))
        if len(names) >= BATCH:
            insert(connection, INSERT_NAMES, names)
            names.clear()
        if count % BATCH == 0:
            progress("names", count, total)
    insert(connection, INSERT_NAMES, names)


def differences(connection: SqlConnection, up_to: int) -> Iterator[tuple[str, int | None]]:
    """Yield (sentence, position) for each difference between the table and the events up to
    `up_to`.
    """
    expected = 0
    events = _events(connection, "stream, version", up_to)
    for stream, group in itertools.groupby(events, key=lambda e: e[0]):
        seen = {
            name: position
            for _, event, position in group
            for name in secondary_names(stream, event)
        }
        expected += len(seen)
        for name, position in seen.items():
            if connection.execute(_EXISTS, msgspec.structs.astuple(name)).fetchone() is None:
                yield f"the index lacks the {name.what} name {name.name} of {stream}", position
                expected -= 1
    (found,) = connection.execute("SELECT count(*) FROM names").fetchone()
    if found != expected:
        yield f"{found - expected} names in the index belong to no event", None


def _events(connection: SqlConnection, order: str, up_to: int) -> Iterator[tuple[str, Event, int]]:
    rows = connection.execute(
        f"SELECT {ROW_COLUMNS} FROM events WHERE position <= ? AND type IN ({_NAMED_TYPES})"
        f" ORDER BY {', '.join('events.' + column for column in order.split(', '))}",
        (up_to,),
    )
    for position, stream, _, type_, schema, _, body, _ in rows:
        try:
            yield stream.decode(), decode(type_.decode(), schema, body), position
        except (Refusal, UnicodeDecodeError, AttributeError, TypeError):
            continue  # the log is damaged there
