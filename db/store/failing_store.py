"""Fault injection: `Faults` decides which commit fails and how; `FailingStore` runs any store with
it.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence

from ...protocol.errors import Refusal
from ..events.usage_row import UsageRow
from .contract import (
    Batch,
    Done,
    EventStore,
    IndexRow,
    JobCount,
    Name,
    Receipt,
    RowFilter,
    Stored,
)
from .group_commit import POINTS, Point


class Faults:
    """A fault hook (see `group_commit.POINTS`) that passes until `fail` is called."""

    def __init__(self) -> None:
        self._left = 0
        self._forever = False
        self._fatal = False
        self._at = ""
        #: number of failures so far
        self.failed = 0

    def fail(
        self, nth: int = 1, *, forever: bool = False, fatal: bool = False, at: str = "taken"
    ) -> None:
        """Fail the `nth` commit from now. forever: and all later ones. fatal: fail like a failed
        fsync; otherwise like a full disk.
        """
        if at not in POINTS or nth < 1:
            raise ValueError(f"no such fault: {nth} at {at!r}")
        self._left, self._forever, self._fatal, self._at = nth, forever, fatal, at

    def mend(self) -> None:
        """Remove the injected fault."""
        self._at = ""

    def __call__(self, point: str) -> None:
        if point != self._at:
            return
        self._left -= 1
        if self._left > 0:
            return
        if not self._forever:
            self._at = ""
        self.failed += 1
        number = errno.EIO if self._fatal else errno.ENOSPC
        raise OSError(number, os.strerror(number))


class FailingStore:
    """An `EventStore` made by `make`, with injected faults."""

    def __init__(self, make: Callable[[Point], EventStore], faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self._store = make(self.faults)

    def append(self, batch: Batch, done: Done) -> None:
        self._store.append(batch, done)

    def resume(self) -> None:
        self._store.resume()

    def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[Stored]:
        return self._store.read(stream, after, limit)

    def read_streams(self, streams: Sequence[str]) -> Iterator[list[Stored]]:
        return self._store.read_streams(streams)

    def version(self, stream: str) -> int:
        return self._store.version(stream)

    def read_all(self, after: int = 0, limit: int = 1000) -> list[Stored]:
        return self._store.read_all(after, limit)

    def listen(self, listener: Callable[[Sequence[Stored]], None]) -> Callable[[], None]:
        return self._store.listen(listener)

    def head(self) -> int:
        return self._store.head()

    def stalled(self) -> bool:
        return self._store.stalled()

    def failure(self) -> Refusal | None:
        return self._store.failure()

    def busy_jids(self) -> list[str]:
        return self._store.busy_jids()

    def jobs(
        self,
        *,
        uid: str | None = None,
        status: str | None = None,
        active: bool | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[IndexRow]:
        return self._store.jobs(uid=uid, status=status, active=active, before=before, limit=limit)

    def scan_jobs(
        self, wanted: RowFilter, *, before: int | None = None, window: int = 1000
    ) -> tuple[list[IndexRow], int | None]:
        return self._store.scan_jobs(wanted, before=before, window=window)

    def find_jobs(self, prefix: str, limit: int = 20) -> list[IndexRow]:
        return self._store.find_jobs(prefix, limit)

    def tally(self, prefix: str) -> list[JobCount]:
        return self._store.tally(prefix)

    def group(
        self,
        prefix: str,
        *,
        statuses: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[IndexRow]:
        return self._store.group(prefix, statuses=statuses, after=after, limit=limit)

    def names(self, prefix: str, uid: str | None = None, limit: int = 100) -> list[Name]:
        return self._store.names(prefix, uid, limit)

    def jobs_named(
        self, name: str, what: str, uid: str | None = None, limit: int = 100
    ) -> list[str]:
        return self._store.jobs_named(name, what, uid, limit)

    def agents(self) -> list[str]:
        return self._store.agents()

    def receipt(self, uid: str, req_id: str) -> Receipt | None:
        return self._store.receipt(uid, req_id)

    def usage(self, since: float, until: float, uid: str | None = None) -> list[UsageRow]:
        return self._store.usage(since, until, uid)

    def close(self) -> None:
        self._store.close()
