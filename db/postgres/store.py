"""The event store in PostgreSQL, as the owner's thread uses it. `writer` writes, `reader` reads,
`opening` verifies.

Only the constructor, the read methods and `close` wait for the database.
"""

import time
from collections.abc import Callable, Sequence

from ...protocol.errors import Refusal
from ..events.usage_row import UsageRow
from ..store.contract import (
    Batch,
    Deliver,
    Done,
    IndexRow,
    JobCount,
    Name,
    Receipt,
    RowFilter,
    Stored,
    StoreUnreachable,
)
from ..store.group_commit import Listener, PendingBatch, Point, encode_batch, no_fault
from .opening import Site, open_site
from .reader import Reader
from .writer import Writer


class PostgresStore:
    """An `EventStore` in the schema of `site`. Arguments and hooks as in `SqliteStore`. Raises
    Refusal: see `opening.open_site`.
    """

    def __init__(
        self,
        site: Site,
        deliver: Deliver,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        point: Point = no_fault,
    ) -> None:
        self.site = site
        self._deliver = deliver
        self._listeners: list[Listener] = []
        self._era = 0
        self._closed = False
        self._writer = Writer(open_site(site), deliver, self._listeners, monotonic, point)
        try:
            self._reader = Reader(site, lambda: self._writer.connected)
        except BaseException:
            self._writer.stopped()
            self._writer.close()
            raise

    def append(self, batch: Batch, done: Done) -> None:
        if self._closed:
            self._deliver(lambda: done(Refusal("storageUnavailable", "the event store is closed")))
        else:
            self._writer.put(_storable(encode_batch(batch, done, self._era)))

    def resume(self) -> None:
        if self._closed:
            raise Refusal("storageUnavailable", "the event store is closed")
        era = self._writer.resumed(self._era)
        if not self._writer.connected:
            raise StoreUnreachable(f"{self.site.address.name} cannot be reached")
        self._era = era

    def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[Stored]:
        head = self._writer.head
        return self._open().stream(stream, after, head, limit)

    def version(self, stream: str) -> int:
        head = self._writer.head
        return self._open().version(stream, head)

    def read_all(self, after: int = 0, limit: int = 1000) -> list[Stored]:
        head = self._writer.head
        return self._open().log(after, limit, head)

    def listen(self, listener: Callable[[Sequence[Stored]], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def head(self) -> int:
        return self._writer.head

    def busy_jids(self) -> list[str]:
        return self._open().busy_jids()

    def jobs(
        self,
        *,
        uid: str | None = None,
        status: str | None = None,
        active: bool | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[IndexRow]:
        return self._open().jobs(uid, status, active, before, limit)

    def scan_jobs(
        self, wanted: RowFilter, *, before: int | None = None, window: int = 1000
    ) -> tuple[list[IndexRow], int | None]:
        return self._open().scan_jobs(wanted, before, window)

    def find_jobs(self, prefix: str, limit: int = 20) -> list[IndexRow]:
        return self._open().find_jobs(prefix, limit)

    def tally(self, prefix: str) -> list[JobCount]:
        return self._open().tally(prefix)

    def group(
        self,
        prefix: str,
        *,
        statuses: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[IndexRow]:
        return self._open().group(prefix, statuses, after, limit)

    def names(self, prefix: str, uid: str | None = None, limit: int = 100) -> list[Name]:
        return self._open().names(prefix, uid, limit)

    def jobs_named(
        self, name: str, what: str, uid: str | None = None, limit: int = 100
    ) -> list[str]:
        return self._open().jobs_named(name, what, uid, limit)

    def agents(self) -> list[str]:
        return self._open().agents()

    def receipt(self, uid: str, req_id: str) -> Receipt | None:
        return self._open().receipt(uid, req_id)

    def usage(self, since: float, until: float, uid: str | None = None) -> list[UsageRow]:
        return self._open().usage(since, until, uid)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._writer.closing()
        self._writer.stopped()
        self._reader.close()
        self._writer.close()

    def _open(self) -> Reader:
        if self._closed:
            raise Refusal("storageUnavailable", "the event store is closed")
        return self._reader


def _storable(batch: PendingBatch) -> PendingBatch:
    """Return the batch, refused alone if PostgreSQL cannot store its texts."""
    texts = [
        *(stream for stream, _, _ in batch.writes),
        *(text for r in batch.index_rows for text in (r.jid, r.uid, r.simulation_type, r.reason)),
        *(text for r in batch.receipts for text in (r.uid, r.req_id, r.jid)),
        *(text for r in batch.usage for text in r.key if isinstance(text, str)),
    ]
    if any(text is not None and "\0" in text for text in texts):
        refusal = Refusal("internal", "an event cannot be stored: a name has the character NUL")
        return batch._replace(writes=(), index_rows=(), receipts=(), usage=(), refusal=refusal)
    return batch
