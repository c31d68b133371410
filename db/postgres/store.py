"""The event store in PostgreSQL, as the owner's thread uses it. `writer` writes, `reader` reads,
`opening` verifies.

Only the constructor, the read methods and `close` wait for the database.
"""

import time
from collections.abc import Callable

from ...protocol.errors import Refusal
from ..sql.store_reads import StoreReads
from ..store.contract import (
    Batch,
    Deliver,
    Done,
    StoreUnreachable,
)
from ..store.group_commit import Listener, PendingBatch, Point, encode_batch, no_fault
from .log_exchange import LogExchange, PendingExchange
from .opening import Site, open_site
from .reader import Reader
from .writer import Writer


class PostgresStore(StoreReads):
    """An `EventStore` in the schema of `site`. Arguments and hooks as in `SqliteStore`. Raises
    Refusal: see `opening.open_site`.
    """

    _writer: Writer

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

    @property
    def epoch(self) -> int:
        """Return the epoch of the lease."""
        return self._writer.epoch

    def stalled(self) -> bool:
        return self._writer.stalled

    def exchange(self, exchange: LogExchange, done: Done) -> None:
        """Replace the log between two commits by one with the same jobs. `done` gets the position of
        its closing event.
        """
        if self._closed:
            self._deliver(lambda: done(Refusal("storageUnavailable", "the event store is closed")))
        else:
            self._writer.put(PendingExchange(exchange, done))

    def resume(self) -> None:
        if self._closed:
            raise Refusal("storageUnavailable", "the event store is closed")
        era = self._writer.resumed(self._era)
        if not self._writer.connected:
            raise StoreUnreachable(f"{self.site.address.name} cannot be reached")
        self._era = era

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
