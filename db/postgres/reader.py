"""Reads of the PostgreSQL store, on a read-only connection of their own."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from ..sql.reader import SqlReader
from ..sql.statements import Rows
from .connection import Connection, connect, is_lost, refusal
from .opening import ERRORS, Site, repair

#: In place of NUL, which no text in PostgreSQL has: a noncharacter.
_NUL = "\ufffe"
#: After a failed try to connect, reads are refused at once for this time.
PAUSE_SECS = 1.0


class _Connection(Connection):
    """Opens a lost connection again, once for each read: nothing that was read depends on it.
    reachable: whether the writer, whose waits delay nobody, has a connection.
    """

    def __init__(self, site: Site, reachable: Callable[[], bool]) -> None:
        super().__init__(connect(site.address, site.password_file, reads=True))
        self._site, self._failed_at = site, -PAUSE_SECS
        self._reachable = reachable

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Rows:
        values = [v.replace("\0", _NUL) if isinstance(v, str) else v for v in values]
        if not self.raw.closed:
            try:
                return super().execute(query, values)
            except psycopg.Error as e:
                if not is_lost(self.raw, e):
                    raise
                self.raw.close()
        if not self._reachable() or time.monotonic() < self._failed_at + PAUSE_SECS:
            raise psycopg.OperationalError("there is no connection")
        try:
            self.raw = connect(self._site.address, self._site.password_file, reads=True)
        except (psycopg.Error, OSError) as e:
            self._failed_at = time.monotonic()
            raise psycopg.OperationalError(str(e)) from None
        return super().execute(query, values)


class Reader(SqlReader):
    """Used in the thread that created it. Raises Refusal."""

    def __init__(self, site: Site, reachable: Callable[[], bool]) -> None:
        try:
            self._own = _Connection(site, reachable)
        except (psycopg.Error, OSError) as e:
            raise refusal(e, site.address) from None
        super().__init__(
            self._own,
            site.address.name,
            lambda: repair(site),
            ERRORS,
            lambda e: refusal(e, site.address),
        )

    def close(self) -> None:
        self._own.close()
