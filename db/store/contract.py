"""Contract of the event store, and its input and output values. No I/O.

One thread uses a store (the thread of an event loop or of a simulator). `append` returns at once.
The store calls `done` later through its `deliver` function, exactly once, in the order of the
appends.

Guarantees of every store, tested by tests/contracts/test_event_store.py:

* A batch is one transaction: it becomes durable as a whole or not at all.
* `done(Appended)` comes only after the batch, and everything before it, is durable.
* A wrong `expected_version` is a Conflict: the store refuses that batch alone.
* When a commit fails, the store refuses every pending batch with `storageUnavailable`, because such
a batch may depend on the failed one. It refuses further batches until `resume()`.
* After a failed fsync the store writes nothing any more: `resume()` raises
Refusal("storageUnavailable").
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from ...protocol.errors import Refusal
from ...protocol.jobs.status import Status
from ..events.events import Event
from ..events.usage_row import UsageRow


class Write(msgspec.Struct, frozen=True):
    """Events for one stream, which must be at `expected_version` (its number of events) before
    them.
    """

    stream: str
    expected_version: int
    events: tuple[Event, ...]


class IndexRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Fields of a job for lists, and for finding live jobs. Derived from the events and written in
    the same transaction.
    """

    jid: str
    uid: str
    status: Status
    serial: int
    simulation_type: str
    kind: str
    driver: str
    #: the run is pending or running, or one of its processes may live
    busy: bool
    queued_at: float
    started_at: float | None
    ended_at: float | None
    reason: str | None
    #: position of the last event; set by the store
    position: int = 0


class RowFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on index rows; an empty tuple does not restrict. users: jobs of one of these.
    since, until: `queued_at`.

    words, queues: rows whose jid and request do not have all of these words, or whose request has
    none of these queues, may be left out. Letters of words match in either case; only ASCII letters
    need to.
    """

    uid: str | None = None
    users: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    words: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()


class JobCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of jobs with the same status, reason and busy flag. position: of the newest event of
    any of them.
    """

    status: Status
    reason: str | None
    busy: bool
    count: int
    position: int


class Receipt(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The run that a reqId led to, so that a repeated request gets the same run."""

    uid: str
    req_id: str
    jid: str
    serial: int
    at: float


class Name(msgspec.Struct, frozen=True, order=True):
    """A secondary name of a job or an agent. what: kind of the name: `op`, `request`, `slurm`,
    `container` or `tag`. stream: stream of the job or agent.
    """

    name: str
    what: str
    stream: str

    @property
    def uid(self) -> str | None:
        """Return the owner's uid; None for a stream without owner."""
        kind, _, rest = self.stream.partition("/")
        if kind == "agent":
            return rest.partition("@")[0].rpartition(".")[2]
        return rest.partition("-")[0] if kind == "job" else None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    writes: tuple[Write, ...]
    index: tuple[IndexRow, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    #: what the events of this batch add to the usage
    usage: tuple[UsageRow, ...] = ()


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


class StoreUnreachable(Refusal):
    """The store cannot be resumed yet; a later `resume` may work."""

    def __init__(self, sentence: str) -> None:
        super().__init__("storageUnavailable", sentence)


Done = Callable[[Appended | Refusal], None]
Deliver = Callable[[Callable[[], None]], None]


class EventStore(Protocol):
    def append(self, batch: Batch, done: Done) -> None:
        """Queue a transaction. Never blocks on the disk."""

    def resume(self) -> None:
        """Accept appends again after a failed commit. The caller must have dropped everything that
        was not durable. Raises StoreUnreachable if that may work later, other Refusals for good.
        """

    def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[Stored]:
        """Return durable events of a stream with version > `after`, oldest first, at most `limit`.
        Raises Refusal.
        """

    def read_streams(self, streams: Sequence[str]) -> Iterator[list[Stored]]:
        """Yield the durable events of each of these different streams, in their order, as `read` returns
        them. Many streams cost few round trips. Raises Refusal.
        """

    def version(self, stream: str) -> int:
        """Return the version of the last durable event of a stream; 0 without events."""

    def read_all(self, after: int = 0, limit: int = 1000) -> list[Stored]:
        """Return durable events of all streams with position > `after`, oldest first, at most
        `limit`.
        """

    def listen(self, listener: Callable[[Sequence[Stored]], None]) -> Callable[[], None]:
        """Call `listener` with newly durable events in order, before the `done` of their batch.
        Returns a function that removes the listener.
        """

    def head(self) -> int:
        """Return the position of the last durable event; 0 for none."""

    def stalled(self) -> bool:
        """Return whether a commit has run for so long that its outcome may stay unknown: appends wait
        behind it.
        """

    def failure(self) -> Refusal | None:
        """Return why nothing can be appended any more in this process; None while that may work."""

    def busy_jids(self) -> list[str]:
        """Return jobs that need a status or have a live process, oldest last change first."""

    def jobs(
        self,
        *,
        uid: str | None = None,
        status: str | None = None,
        active: bool | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[IndexRow]:
        """Return index rows, newest change first, with position < `before`. active: whether the
        status is pending or running.
        """

    def scan_jobs(
        self, wanted: RowFilter, *, before: int | None = None, window: int = 1000
    ) -> tuple[list[IndexRow], int | None]:
        """Return the rows that fit among the `window` rows (of the user) with the newest change
        before position `before`, and the position where the next window begins; None at the end.
        """

    def find_jobs(self, prefix: str, limit: int = 20) -> list[IndexRow]:
        """Return jobs whose jid begins with `prefix`."""

    def tally(self, prefix: str) -> list[JobCount]:
        """Count the jobs whose jid begins with `prefix` by status, reason and busy. Unordered."""

    def group(
        self,
        prefix: str,
        *,
        statuses: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[IndexRow]:
        """Return jobs whose jid begins with `prefix`, shorter jids first, so that numbers at their
        ends are in order.

        after: only jids behind this jid, which need not exist. statuses: only jobs with one of
        these.
        """

    def names(self, prefix: str, uid: str | None = None, limit: int = 100) -> list[Name]:
        """Return names (of this user's jobs and agents) that begin with `prefix`, sorted.

        Names are derived from the events and written in the same transaction.
        """

    def jobs_named(
        self, name: str, what: str, uid: str | None = None, limit: int = 100
    ) -> list[str]:
        """Return the jids of the jobs (of this user) with exactly this name of this kind, sorted.
        Reads no names of other users.
        """

    def agents(self) -> list[str]:
        """Return the keys of all agents in the log, sorted."""

    def receipt(self, uid: str, req_id: str) -> Receipt | None:
        """Return the receipt of this user's reqId, kept for at least 24 hours."""

    def usage(self, since: float, until: float, uid: str | None = None) -> list[UsageRow]:
        """Return the usage (of this user) in the periods that begin at `since` or later and before
        `until`, in the order of the keys.

        Derived from the events and written in the same transaction. Old periods are longer (see
        `usage_row`).
        """

    def close(self) -> None:
        """Make pending batches durable, then release all resources."""
