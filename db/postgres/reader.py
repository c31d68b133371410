"""Reads of the PostgreSQL store, on a read-only connection of their own."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from ...runtime.store_address import StoreAddress
from ..sql.reader import SqlReader
from ..sql.statements import Rows
from .connection import Connection, Raw, connect, describe, is_lost, refusal
from .opening import ERRORS, Site, repair

#: In place of NUL, which no text in PostgreSQL has: a noncharacter.
_NUL = "\ufffe"
#: After a failed try to connect, reads are refused at once for this time.
PAUSE_SECS = 1.0
#: Longest wait for a new connection, which another thread makes.
REOPEN_SECS = 0.25


class _Connection(Connection):
    """Opens a lost connection again, once for each read: nothing that was read depends on it.
    reachable: whether the writer, whose waits delay nobody, has a connection.
    """

    def __init__(self, site: Site, reachable: Callable[[], bool]) -> None:
        super().__init__(connect(site.address, site.password_file, reads=True))
        self._site, self._failed_at = site, -PAUSE_SECS
        self._reachable = reachable
        self._opening: _Opening | None = None

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Rows:
        values = [v.replace("\0", _NUL) if isinstance(v, str) else v for v in values]
        if not self.raw.closed:
            try:
                return super().execute(query, values)
            except psycopg.Error as e:
                if not is_lost(self.raw, e):
                    raise
                self.raw.close()
        self.raw = self._reopened()
        return super().execute(query, values)

    def _reopened(self) -> Raw:
        """Return a new connection. Raises psycopg.OperationalError if there is none yet."""
        opening = self._opening
        if opening is None:
            if not self._reachable() or time.monotonic() < self._failed_at + PAUSE_SECS:
                raise psycopg.OperationalError("there is no connection")
            opening = self._opening = _Opening(self._site)
            opening.ended.wait(REOPEN_SECS)
        if not opening.ended.is_set():
            raise psycopg.OperationalError("there is no connection; a new one is being made")
        self._opening = None
        if opening.raw is None:
            self._failed_at = time.monotonic()
            raise psycopg.OperationalError(opening.error)
        return opening.raw

    def close(self) -> None:
        super().close()
        if self._opening is not None:
            self._opening.abandon()


class _Opening:
    """A connection that a thread of its own makes."""

    def __init__(self, site: Site) -> None:
        self.raw: Raw | None = None
        self.error = ""
        self.ended = threading.Event()
        self._site, self._lock, self._abandoned = site, threading.Lock(), False
        threading.Thread(target=self._run, name="event store reads", daemon=True).start()

    def abandon(self) -> None:
        """Close the connection, now or when it is made."""
        with self._lock:
            self._abandoned = True
            if self.raw is not None:
                self.raw.close()

    def _run(self) -> None:
        try:
            raw = connect(self._site.address, self._site.password_file, reads=True)
        except Exception as e:
            self.error = str(e)
        else:
            with self._lock:
                if self._abandoned:
                    raw.close()
                self.raw = raw
        self.ended.set()


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


def measured(
    address: StoreAddress, password_file: str | None
) -> tuple[list[tuple[str, str, str, int]], int]:
    """Return numbers of jobs by driver, kind and status, and the bytes of all tables, on a connection of
    its own. Raises OSError.
    """
    try:
        with connect(address, password_file, reads=True) as raw:
            jobs = raw.execute(
                "SELECT driver, kind, status, count(*) FROM jobs GROUP BY driver, kind, status"
            ).fetchall()
            ((size,),) = raw.execute(
                "SELECT coalesce(sum(pg_total_relation_size(format('%%I.%%I', schemaname, tablename)::regclass)), 0)::bigint"
                " FROM pg_tables WHERE schemaname = %s",
                (address.schema,),
            ).fetchall()
    except psycopg.Error as e:
        raise OSError(describe(e)) from None
    return [(str(d), str(k), str(s), int(n)) for d, k, s, n in jobs], int(size)
