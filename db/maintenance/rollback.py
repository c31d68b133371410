"""The event that records a rollback of the log: to a restored backup, or to the intact part of a
damaged log.

Positions and serials assigned after the rollback point must not be assigned again. So the event's
position lies behind all used positions, and it names a serial above all serials of lost runs. If
the replaced log is unreadable, serials depend on the clock alone (see `runs.submission`).
"""

import contextlib
import sqlite3
from pathlib import Path

import msgspec

from ..events.events import SYSTEM, LogSetBack, encode, schema_of, type_of
from ..sql.statements import INSERT_KINDS, insert
from ..sqlite.schema import open_for_reading
from ..store.checksum_chain import row
from ..store.disk_errors import UNREADABLE
from ..store.head_file import DurablePosition
from .derived_tables import write_rows


class HighestUsed(msgspec.Struct, frozen=True):
    """The highest position and serial that a log has assigned, as far as readable. mark: its
    durable head.
    """

    position: int = 0
    serial: int = 0
    mark: DurablePosition | None = None


def highest_used(path: Path, mark: DurablePosition | None) -> HighestUsed:
    """Return the highest position and serial of the log at `path`, whatever its state. Never
    raises.
    """
    position, serial = mark.position if mark else 0, 0
    with (
        contextlib.suppress(*UNREADABLE, OSError),
        contextlib.closing(open_for_reading(path)) as connection,
    ):
        # separate queries: one of the tables may be damaged
        for query in ("SELECT max(position) FROM events", "SELECT max(position) FROM jobs"):
            position = max(position, _number(connection, query))
        serial = _number(connection, "SELECT max(serial) FROM jobs")
        serial = max(
            serial,
            _number(
                connection,
                "SELECT max(json_extract(body, '$.serial')) FROM events WHERE type = 'RunRequested'",
            ),
        )
    return HighestUsed(position, serial, mark)


def _number(connection: sqlite3.Connection, query: str) -> int:
    try:
        (found,) = connection.execute(query).fetchone()
    except UNREADABLE:
        return 0
    return found if isinstance(found, int) and 0 < found < 2**53 else 0


def record_rollback(
    target: sqlite3.Connection,
    head: DurablePosition,
    lost: HighestUsed,
    reason: str,
    now: float,
    *,
    whole: int | None = None,
) -> DurablePosition:
    """Append LogSetBack to the log in `target`, which ends at `head`; return its new end. whole:
    nothing is lost up to this position; default `head`.
    """
    (version,) = target.execute(
        "SELECT coalesce(max(version), 0) FROM events WHERE stream = ?", (SYSTEM,)
    ).fetchone()
    lost_up_to = max(lost.position, head.position)
    event = LogSetBack(
        at=now,
        position=head.position if whole is None else whole,
        lost_up_to=lost_up_to,
        serial_floor=lost.serial + 1,
        reason=reason,
        witnessed=lost.mark.position if lost.mark else None,
        checksum=lost.mark.checksum.hex() if lost.mark else None,
    )
    closing = row(
        head.checksum,
        lost_up_to + 1,
        SYSTEM,
        version + 1,
        type_of(event),
        schema_of(event),
        now,
        encode(event),
    )
    write_rows(target, [closing])
    insert(target, INSERT_KINDS, [(closing.type, closing.schema)])
    return DurablePosition(closing.position, closing.checksum)
