"""Verification of the end of a log when a store is opened: that nothing durable is missing, and that
this version knows all its events. Reads only.
"""

from collections.abc import Callable
from typing import NamedTuple

from ...protocol.errors import Refusal
from ...protocol.version import VERSION
from ..events.events import SYSTEM, LogCompacted, LogSetBack, decode, known
from ..store.checksum_chain import START, Broken, follow, stored
from ..store.disk_errors import UNREADABLE
from ..store.head_file import DurablePosition
from .statements import ROW_COLUMNS, SqlConnection, last_before, rows_after

#: Rows before the durable head that are verified at every start.
TAIL = 500


class LogPlace(NamedTuple):
    """A log in messages. repair: the advice if it is damaged. downgrade: how to go back to an
    earlier version. errors: what the database raises.
    """

    name: str
    repair: Callable[[], str]
    downgrade: str
    errors: tuple[type[Exception], ...] = UNREADABLE

    def damaged(self, what: str) -> Refusal:
        return Refusal("storeDamaged", f"{self.name}: {what}. {self.repair()}")


def successor(
    connection: SqlConnection,
    mark: DurablePosition,
    errors: tuple[type[Exception], ...] = UNREADABLE,
) -> DurablePosition | None:
    """Return the end of a log that replaced the log with the durable head `mark`; None if it did
    not. Its last row names the replaced log.

    The log file is replaced before the head file. A crash between the two leaves the head file of
    the replaced log.
    """
    try:
        raw = connection.execute(
            f"SELECT {ROW_COLUMNS} FROM events ORDER BY position DESC LIMIT 1"
        ).fetchone()
        if raw is None or raw[3] not in (b"LogCompacted", b"LogSetBack"):
            return None
        event = decode(raw[3].decode(), raw[4], raw[6])
    except (Refusal, TypeError):
        return None  # a damaged row; reading the log reports it
    except errors:
        return None
    match event:
        case (
            LogCompacted(position=position, checksum=checksum)
            | LogSetBack(witnessed=position, checksum=checksum)
        ):
            names = checksum is not None and (position, checksum) == (
                mark.position,
                mark.checksum.hex(),
            )
            return DurablePosition(raw[0], raw[7]) if names else None
        case _:
            return None


def verify_tail(
    connection: SqlConnection, mark: DurablePosition, place: LogPlace
) -> DurablePosition:
    """Return the head of the log, after verifying the rows around and behind the durable head.
    Raises Refusal.
    """
    replacement = successor(connection, mark, place.errors)
    mark = replacement or mark
    start, previous = (0, START) if replacement else last_before(connection, mark.position, TAIL)
    head, reached = DurablePosition(start, previous), mark.position <= start
    try:
        for row in follow(rows_after(connection, start), previous, start):
            stored(row)
            head = DurablePosition(row.position, row.checksum)
            if row.position == mark.position:
                reached = True
                if row.checksum != mark.checksum:
                    raise _other_log(place, mark)
    except Broken as e:
        raise place.damaged(f"the log is damaged at {e}") from None
    except Refusal as e:
        if e.code != "unknownEvent":
            raise
        verify_kinds(connection, place)  # names the first such event
        raise _unreadable(connection, place, f"{place.name}: {e.sentence}") from None
    if not reached:
        (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()
        if last > mark.position:
            raise _other_log(place, mark)
        raise place.damaged(
            f"the log ends at position {last}, but {mark.position} was durable: it was cut, or is an older copy",
        )
    return head


def _other_log(place: LogPlace, mark: DurablePosition) -> Refusal:
    return place.damaged(
        f"position {mark.position} of the log has a checksum that differs from the head file: the log belongs to another root, or is a copy"
        " that was continued elsewhere; put the right file back if you have it",
    )


def verify_kinds(connection: SqlConnection, place: LogPlace) -> frozenset[tuple[str, int]]:
    """Return the types and schemas in the log, all of them known. Raises Refusal."""
    kinds = frozenset(connection.execute("SELECT type, schema FROM kinds").fetchall())
    for type_, schema in sorted(kinds, key=repr):
        if not known(type_, schema):
            row = connection.execute(
                "SELECT position FROM events WHERE type = ? AND schema = ? ORDER BY position LIMIT 1",
                (type_, schema),
            ).fetchone()
            first = "" if row is None else f" (the first at position {row[0]})"
            raise _unreadable(
                connection,
                place,
                f"{place.name} contains events {type_!r} version {schema}, which this version does not know{first}",
            )
    return kinds


def _unreadable(connection: SqlConnection, place: LogPlace, sentence: str) -> Refusal:
    """Return the refusal of a log with events of a later version, with the remedies."""
    try:
        row = connection.execute(
            "SELECT json_extract(body, '$.version') FROM events WHERE stream = ? AND type = ?"
            " ORDER BY version DESC LIMIT 1",
            (SYSTEM, "SupervisorStarted"),
        ).fetchone()
    except place.errors:
        row = None
    last = f"jobscribe {row[0]}" if row and isinstance(row[0], str) else "an unknown version"
    return Refusal(
        "unknownEvent",
        f"{sentence}; {last} ran here last, this is jobscribe {VERSION}. Nothing was changed. Start"
        " a version that knows them; " + place.downgrade,
    )
