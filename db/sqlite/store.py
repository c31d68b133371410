"""The event store in a SQLite file, as the owner's thread uses it. `writer` writes, `reader` reads,
`opening` verifies.

Only the constructor, the read methods and `close` wait for the disk.
"""

import time
from collections.abc import Callable
from pathlib import Path

from ...protocol.errors import Refusal
from ..sql.store_reads import StoreReads
from ..store.contract import (
    Batch,
    Deliver,
    Done,
)
from ..store.group_commit import Listener, Point, encode_batch, no_fault
from .log_exchange import LogExchange, PendingExchange
from .migrations import LogMessage, ignore_message
from .opening import open_store
from .reader import Reader
from .writer import Writer


class SqliteStore(StoreReads):
    """An `EventStore` at `path` (`<root>/db/events.sqlite`). Its folder also has the head file, and
    belongs to the store alone.

    deliver: like `loop.call_soon_threadsafe`, called from the writer's thread once for each group
    of batches. point: fault hook, called in the writer's thread at the places in
    `group_commit.POINTS`; an exception counts as a disk error. log: receives progress messages if
    opening takes long. Raises Refusal: rootBusy, storageUnavailable, storeDamaged, unknownEvent.
    """

    _writer: Writer

    def __init__(
        self,
        path: Path,
        deliver: Deliver,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        point: Point = no_fault,
        log: LogMessage = ignore_message,
    ) -> None:
        self.path = path
        self._deliver = deliver
        self._listeners: list[Listener] = []
        self._era = 0
        self._closed = False
        self._writer = Writer(open_store(path, log), deliver, self._listeners, monotonic, point)
        self._exchanges = 0
        try:
            self._reader = Reader(path)
        except BaseException:
            self._writer.stopped()
            self._writer.close()
            raise

    def append(self, batch: Batch, done: Done) -> None:
        if self._closed:
            self._deliver(lambda: done(Refusal("storageUnavailable", "the event store is closed")))
        else:
            self._writer.put(encode_batch(batch, done, self._era))

    def exchange(self, exchange: LogExchange, done: Done) -> None:
        """Replace the file between two commits by one with the same events, for example a
        compacted one. `done` gets the position of its closing event.
        """
        if self._closed:
            self._deliver(lambda: done(Refusal("storageUnavailable", "the event store is closed")))
        else:
            self._writer.put(PendingExchange(exchange, done))

    def resume(self) -> None:
        if self._closed:
            raise Refusal("storageUnavailable", "the event store is closed")
        self._era = self._writer.resumed(self._era)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._writer.stopped() is None:
            self._reader.close()
            self._writer.close()
        else:
            # The last connection to close copies the WAL into the file. After a failed sync that is
            # forbidden, so the read-only connection closes last.
            self._writer.close()
            self._reader.close()

    def _open(self) -> Reader:
        if self._closed:
            raise Refusal("storageUnavailable", "the event store is closed")
        # The caller reads `head` first: a newer file has everything up to an older head, but an
        # older file does not have everything up to a newer head.
        if self._exchanges != self._writer.exchanges:
            exchanges = self._writer.exchanges
            reader = Reader(self.path)
            self._reader.close()
            self._reader, self._exchanges = reader, exchanges
        return self._reader
