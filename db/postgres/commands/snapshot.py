"""Reads of a whole log by commands, also while a supervisor serves it: one read-only transaction, which
sees one state, and whose long results come in parts.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from ....protocol.errors import Refusal
from ...sql.statements import Rows
from ...store.head_file import NOTHING, read_head
from ..connection import Connection, connect, refusal, translated
from ..opening import ERRORS, Site, check_site, has_tables, place

#: Rows of a part.
PART = 2000


class Snapshot(Connection):
    """Results in an order come in parts, which are read as they are needed."""

    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        self._numbers = itertools.count(1)

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Rows:
        if "ORDER BY" not in query or query.endswith("LIMIT 1"):
            return super().execute(query, values)
        cursor = self.raw.cursor(f"part{next(self._numbers)}")
        cursor.itersize = PART
        return _Parts(cursor.execute(translated(query), tuple(values)))


class _Parts:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def fetchall(self) -> list[Any]:
        return list(self)

    def fetchone(self) -> Any:
        return next(iter(self), None)

    def __iter__(self) -> Iterator[Any]:
        with self._cursor:
            yield from self._cursor


@contextlib.contextmanager
def snapshot(site: Site, *, moved: bool = False) -> Iterator[Snapshot]:
    """Open the log for reading. moved: also one that was moved away. Raises Refusal: notFound,
    storeDamaged, storageUnavailable, ...
    """
    try:
        raw = connect(site.address, site.password_file, reads=True, bounded=False)
    except (psycopg.Error, OSError) as e:
        raise refusal(e, site.address) from None
    try:
        _refuse_missing(site, raw, moved)
        raw.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield Snapshot(raw)
    except ERRORS as e:
        raise refusal(e, site.address) from None
    finally:
        raw.close()


def _refuse_missing(site: Site, raw: Any, moved: bool) -> None:
    """Raise Refusal without tables of this root."""
    if has_tables(raw, site.address.schema):
        return check_site(site, raw, moved=moved)
    mark = read_head(site.folder)
    if mark is not None and mark != NOTHING:
        raise place(site).damaged(
            f"the schema has no event store, but position {mark.position} was durable"
        )
    raise Refusal("notFound", f"there is no event store in {site.address.name}")


def faults(connection: Connection, head: tuple[int, bytes]) -> Iterator[str]:
    """Yield sentences about what the database has beside the log that ends at `head`."""
    ((position, checksum),) = connection.raw.execute(
        "SELECT position, checksum FROM lease"
    ).fetchall()
    if (position, bytes(checksum)) != head:
        yield f"the lease names position {position}, but the log ends at {head[0]}"
