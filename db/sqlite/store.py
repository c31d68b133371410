"""The event store in a SQLite file: the owner's side of it. Writing is in `writer`, reading in
`reading`, opening in `opening`.

No method waits for the disk but those that read, `close`, and making it.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ...protocol.errors import Refusal
from ..store.contract import Batch, Deliver, Done, IndexRow, JobCount, Name, Receipt, Stored
from ..store.group_commit import Heard, Point, nowhere, waiting
from .migrations import Say, quiet
from .opening import open_store
from .reader import Reader
from .writer import Writer


class SqliteStore:
    """An `EventStore`. `path` is the file (`<root>/db/events.sqlite`), whose folder is the store's
    own and holds the witness.

    deliver: as `loop.call_soon_threadsafe`, called from the writer's thread, once for each group of
    batches. point: called at the places named in `batches.POINTS`, in the writer's thread; what it
    raises counts as the disk's answer. say: told how far it is, should opening take long. Raises
    Refusal: rootBusy, storageUnavailable, storeDamaged, unknownEvent.
    """

    def __init__(
        self,
        path: Path,
        deliver: Deliver,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        point: Point = nowhere,
        say: Say = quiet,
    ) -> None:
        self.path = path
        self._deliver = deliver
        self._listeners: list[Heard] = []
        self._era = 0
        self._closed = False
        self._writer = Writer(open_store(path, say), deliver, self._listeners, monotonic, point)
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
            self._writer.put(waiting(batch, done, self._era))

    def resume(self) -> None:
        if self._closed:
            raise Refusal("storageUnavailable", "the event store is closed")
        self._era = self._writer.resumed(self._era)

    def read(self, stream: str, after: int = 0) -> list[Stored]:
        return self._open().stream(stream, after, self._writer.head)

    def read_all(self, after: int = 0, limit: int = 1000) -> list[Stored]:
        return self._open().log(after, limit, self._writer.head)

    def listen(self, heard: Callable[[Sequence[Stored]], None]) -> Callable[[], None]:
        self._listeners.append(heard)
        return lambda: self._listeners.remove(heard) if heard in self._listeners else None

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

    def agents(self) -> list[str]:
        return self._open().agents()

    def receipt(self, uid: str, req_id: str) -> Receipt | None:
        return self._open().receipt(uid, req_id)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._writer.stopped() is None:
            self._reader.close()
            self._writer.close()
        else:
            # The last one out copies the WAL into the file; after a failed sync nobody may, so the
            # reader, who cannot, is last.
            self._writer.close()
            self._reader.close()

    def _open(self) -> Reader:
        if self._closed:
            raise Refusal("storageUnavailable", "the event store is closed")
        return self._reader
