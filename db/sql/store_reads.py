"""The reads of the stores in SQLite and PostgreSQL, for the owner's thread."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...protocol.errors import Refusal
from ..events.usage_row import UsageRow
from ..store.contract import IndexRow, JobCount, Name, Receipt, RowFilter, Stored
from ..store.group_commit import Listener
from .commit_thread import CommitThread
from .reader import SqlReader


class StoreReads(ABC):
    """The reading half of an `EventStore`: everything up to the durable head of its writer."""

    _writer: CommitThread[Any]
    _listeners: list[Listener]

    @abstractmethod
    def _open(self) -> SqlReader:
        """Return the reader of the log. Raises Refusal if the store is closed."""

    def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[Stored]:
        head = self._writer.head
        return self._open().stream(stream, after, head, limit)

    def read_streams(self, streams: Sequence[str]) -> Iterator[list[Stored]]:
        return self._open().streams(streams, self._writer.head)

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

    def stalled(self) -> bool:
        return False

    def failure(self) -> Refusal | None:
        return self._writer.dead

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
