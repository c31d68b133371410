"""The event store's contract, and the plain values that go in and out of it. Nothing here does any
I/O.

A store is used from one thread (an event loop's, or a simulator's). `append` returns at once; its
`done` is called later through the `deliver` that the store was made with, exactly once, in the
order of the appends.

Guarantees, for every store that passes tests/contracts/test_event_store.py:

* A batch is one transaction: all of it is durable or nothing of it.
* `done(Appended)` only after everything in the batch, and all before it, is durable.
* A wrong `expected_version` is a Conflict: that batch alone is refused.
* When a commit fails, every batch that was appended but not yet done is refused with
  `storageUnavailable` (it may have been decided on top of what failed), and so is every further one
  until `resume()`.
* After a failed fsync nothing is written any more: `resume()` raises Refusal("storageUnavailable").
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from ...protocol.errors import Refusal
from ..events.events import Event


class Write(msgspec.Struct, frozen=True):
    """Events for one stream, which must be at `expected_version` (its number of events) before
    them.
    """

    stream: str
    expected_version: int
    events: tuple[Event, ...]


class IndexRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What lists show of a job and what finds the live ones. Written in the same transaction as the
    events, and derived from them.
    """

    jid: str
    uid: str
    status: str
    serial: int
    simulation_type: str
    kind: str
    driver: str
    #: something is owed: the run is pending or running, or a process of it may live
    busy: bool
    queued_at: float
    started_at: float | None
    ended_at: float | None
    reason: str | None
    #: position of the last event; set by the store
    position: int = 0


class JobCount(msgspec.Struct, frozen=True, kw_only=True):
    """So many jobs that are alike in these. position: of the newest event of any of them."""

    status: str
    reason: str | None
    busy: bool
    count: int
    position: int


class Receipt(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a reqId led to, so that the same request again is answered by the same run."""

    uid: str
    req_id: str
    jid: str
    serial: int
    at: float


class Name(msgspec.Struct, frozen=True, order=True):
    """What a job or an agent is found by besides its own name. what: `op`, `request`, `slurm` or
    `container`. stream: whose it is.
    """

    name: str
    what: str
    stream: str

    @property
    def uid(self) -> str | None:
        """Whose it is; None where the stream is nobody's."""
        kind, _, rest = self.stream.partition("/")
        if kind == "agent":
            return rest.partition("@")[0].rpartition(".")[2]
        return rest.partition("-")[0] if kind == "job" else None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    writes: tuple[Write, ...]
    index: tuple[IndexRow, ...] = ()
    receipts: tuple[Receipt, ...] = ()


class Stored(msgspec.Struct, frozen=True):
    """An event in the log. Positions count from 1 over all streams, versions from 1 within a
    stream.
    """

    position: int
    stream: str
    version: int
    event: Event


class Appended(msgspec.Struct, frozen=True):
    """A durable batch; `first`..`last` are the positions of its events."""

    first: int
    last: int


class Conflict(Refusal):
    """The stream was not at the expected version."""

    def __init__(self, stream: str, expected: int, actual: int) -> None:
        super().__init__("conflict", f"{stream} is at version {actual}, expected {expected}")
        self.stream, self.expected, self.actual = stream, expected, actual


Done = Callable[[Appended | Refusal], None]
Deliver = Callable[[Callable[[], None]], None]


class EventStore(Protocol):
    def append(self, batch: Batch, done: Done) -> None:
        """Queue a transaction. Never blocks on the disk."""

    def resume(self) -> None:
        """Accept appends again after a failed commit; the caller has forgotten what was not
        durable. Raises Refusal.
        """

    def read(self, stream: str, after: int = 0) -> list[Stored]:
        """Durable events of a stream with version > `after`, oldest first. Raises Refusal."""

    def read_all(self, after: int = 0, limit: int = 1000) -> list[Stored]:
        """Durable events of all streams with position > `after`, oldest first, at most `limit`."""

    def listen(self, heard: Callable[[Sequence[Stored]], None]) -> Callable[[], None]:
        """Call `heard` with newly durable events in order, before the `done` of their batch;
        returns what ends it.
        """

    def head(self) -> int:
        """Position of the last durable event; 0 for none."""

    def busy_jids(self) -> list[str]:
        """Jobs for which something is owed, oldest last change first."""

    def jobs(
        self,
        *,
        uid: str | None = None,
        status: str | None = None,
        active: bool | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[IndexRow]:
        """Index rows, newest change first, with position < `before`. active: status pending or
        running (or not).
        """

    def find_jobs(self, prefix: str, limit: int = 20) -> list[IndexRow]:
        """Jobs whose jid begins with `prefix`."""

    def tally(self, prefix: str) -> list[JobCount]:
        """The jobs whose jid begins with `prefix`, counted by status, reason and busy; in no order."""

    def group(
        self,
        prefix: str,
        *,
        statuses: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[IndexRow]:
        """Jobs whose jid begins with `prefix`, shorter jids before longer ones, so that numbers at
        their ends are in order.

        after: only what comes behind this jid, which need not be there. statuses: only jobs with
        one of these.
        """

    def names(self, prefix: str, uid: str | None = None, limit: int = 100) -> list[Name]:
        """Names (of this user's jobs and agents) that begin with `prefix`, in their order.

        They are derived from the events and written in the same transaction.
        """

    def agents(self) -> list[str]:
        """The keys of all agents that the log knows, in order."""

    def receipt(self, uid: str, req_id: str) -> Receipt | None:
        """What this user's reqId led to, remembered for at least 24 hours."""

    def close(self) -> None:
        """Make durable what was appended, then give everything back."""
