"""The copy of a whole log from a SQLite file into an empty schema, in one transaction. Positions and
checksums stay, and each row is verified against the row before it.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...protocol.errors import Refusal
from ..sql.statements import JOB_COLUMNS, USAGE_COLUMNS, SqlConnection, rows_after
from ..store.checksum_chain import START, Broken, follow
from ..store.head_file import DurablePosition
from .connection import Raw, connect, refusal
from .opening import ERRORS, Site, check_clock, create, has_tables
from .schema import (
    INSERT_EVENTS,
    INSERT_JOBS,
    INSERT_KINDS,
    INSERT_NAMES,
    INSERT_RECEIPTS,
    INSERT_USAGE,
)

PAGE = 2000
#: Called at intervals with (activity, amount done, total amount).
Progress = Callable[[str, int, int], None]
_DERIVED = (
    (INSERT_JOBS, f"SELECT {JOB_COLUMNS} FROM jobs"),
    (INSERT_RECEIPTS, "SELECT uid, req_id, jid, serial, at FROM receipts ORDER BY number"),
    (INSERT_NAMES, "SELECT name, what, stream FROM names"),
    (INSERT_USAGE, f"SELECT {USAGE_COLUMNS} FROM usage"),
    (INSERT_KINDS, "SELECT type, schema FROM kinds"),
)


def copy_log(site: Site, source: SqlConnection, head: DurablePosition, progress: Progress) -> int:
    """Copy the log that ends at `head`. Return the number of events. Raises Refusal; then the
    database is unchanged.
    """
    try:
        with connect(site.address, site.password_file) as raw:
            check_clock(site, raw)
            if has_tables(raw, site.address.schema):
                raise Refusal(
                    "badRequest",
                    f"{site.address.name} has an event store: choose another schema; or, if it is from a"
                    " move that was interrupted, drop the schema first",
                )
            with raw.transaction():
                create(site, raw)
                return _copy(raw, source, head, progress)
    except (*ERRORS, OSError) as e:
        raise refusal(e, site.address) from None
    except Broken as e:
        raise Refusal("storeDamaged", f"the log is damaged at {e}") from None


def _copy(raw: Raw, source: SqlConnection, head: DurablePosition, progress: Progress) -> int:
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
    raw.execute(statement, [list(column) for column in zip(*rows, strict=True)])
