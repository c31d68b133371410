"""The event store in a SQLite file, as the owner's thread uses it. `writer` writes, `reader` reads,
`opening` verifies.

Only the constructor, the read methods and `close` wait for the disk.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

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
)
from ..store.group_commit import Listener, Point, encode_batch, no_fault
from .log_exchange import LogExchange, PendingExchange
from .migrations import LogMessage, ignore_message
from .opening import open_store
from .reader import Reader
from .writer import Writer


class SqliteStore:
    """An `EventStore` at `path` (`<root>/db/events.sqlite`). Its folder also has the head file, and
    belongs to the store alone.

    deliver: like `loop.call_soon_threadsafe`, called from the writer's thread once for each group
    of batches. point: fault hook, called in the writer's thread at the places in
    `group_commit.POINTS`; an exception counts as a disk error. log: receives progress messages if
    opening takes long. Raises Refusal: rootBusy, storageUnavailable, storeDamaged, unknownEvent.
    """

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
