"""The event store in memory, for tests and the simulator: same contract, with faults on demand.

Nothing is durable before `commit`. `append` calls it unless the store was made with `hold`. `crash`
simulates kill -9.
"""

from collections.abc import Callable, Iterator, Sequence

from ...protocol.errors import Refusal
from ...protocol.jobs.status import ACTIVE, Status
from ..events.usage_row import UsageKey, UsageRow, add, day_of, limits, merged
from .checksum_chain import START, Row
from .contract import (
    Appended,
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
from .disk_errors import describe, is_retryable
from .group_commit import (
    CommitGroup,
    Listener,
    PendingBatch,
    Point,
    encode_batch,
    no_fault,
    notify_listeners,
)
from .job_index import fits


class MemoryStore:
    """An `EventStore` in memory. hold: batches wait until `commit` is called. point: fault hook, as
    in SqliteStore; an exception that it raises counts as a disk error.
    """

    def __init__(self, deliver: Deliver, *, hold: bool = False, point: Point = no_fault) -> None:
        self._deliver, self._hold, self._point = deliver, hold, point
        self._rows: list[Row] = []
        self._log: list[Stored] = []
        self._streams: dict[str, list[Stored]] = {}
        self._index: dict[str, IndexRow] = {}
        self._receipts: dict[tuple[str, str], Receipt] = {}
        self._names: set[Name] = set()
        self._usage: dict[UsageKey, UsageRow] = {}
        #: day of the newest usage for which old periods were merged
        self._merged = 0
        self._waiting: list[PendingBatch] = []
        self._listeners: list[Listener] = []
        self._failure: Refusal | None = None
        #: the group of a failed sync
        self._doubtful: CommitGroup | None = None
        self._dead = False
        self._closed = False

    # ---- the disk

    def commit(self) -> None:
        """Make all pending batches durable in one transaction, and report them in one call of
        `deliver`.
        """
        batches, self._waiting = self._waiting, []
        if not batches:
            return
        events: list[Stored] = []
        results: list[tuple[Done, Appended | Refusal]]
        if self._failure is None:
            events, results = self._written(batches)
        else:
            results = [(b.done, self._failure) for b in batches]
        self._deliver(lambda: notify_listeners(self._listeners, events, results))
        self._point("delivered")

    def crash(self, *, doubtful: bool = False) -> "MemoryStore":
        """Return the store as another process would find it: durable data only, without listeners.
        This store is closed.

        doubtful: the group of a failed sync turns out to be durable.
        """
        after = MemoryStore(self._deliver, hold=self._hold, point=self._point)
        after._rows, after._log = list(self._rows), list(self._log)
        after._streams = {name: list(events) for name, events in self._streams.items()}
        after._index, after._receipts, after._names = (
            dict(self._index),
            dict(self._receipts),
            set(self._names),
        )
        after._usage = dict(self._usage)
        if doubtful and self._doubtful is not None:
            after._keep(self._doubtful)
        self._closed = True
        return after

    def another(self, deliver: Deliver, point: Point) -> "MemoryStore":
        """Return the store of another process on the same tables. Whoever commits sees to it that only
        one process does.
        """
        other = MemoryStore(deliver, hold=self._hold, point=point)
        other._rows, other._log, other._streams = self._rows, self._log, self._streams
        other._index, other._receipts, other._names = self._index, self._receipts, self._names
        other._usage = self._usage
        return other

    @property
    def waiting(self) -> int:
        """Batches that are not durable yet."""
        return len(self._waiting)

    def _written(
        self, batches: list[PendingBatch]
    ) -> tuple[list[Stored], list[tuple[Done, Appended | Refusal]]]:
        group = CommitGroup(
            len(self._log),
            self._rows[-1].checksum if self._rows else START,
            lambda s: len(self._streams.get(s, ())),
        )
        for batch in batches:
            group.admit(batch)
        try:
            self._point("taken")
        except Exception as e:
            return [], group.refused(self._failed(e, fatal=not is_retryable(e)))
        index = {jid: self._index.get(jid) for jid in group.index}
        names = set(group.names) - self._names
        usage = {key: self._usage.get(key) for key in group.usage}
        self._keep(group)
        try:
            self._point("committed")
            self._point("witnessed")
        except Exception as e:
            # written, but not reliably durable: hide the group and stay closed for writing, like a
            # real store
            self._drop(group, index, names)
            self._usage |= {key: row for key, row in usage.items() if row is not None}
            for key, row in usage.items():
                if row is None:
                    del self._usage[key]
            return [], group.refused(self._failed(e, fatal=True))
        self._merge_periods(group)
        return group.events, group.results

    def _keep(self, group: CommitGroup) -> None:
        self._rows += group.rows
        self._log += group.events
        for s in group.events:
            self._streams.setdefault(s.stream, []).append(s)
        self._index.update(group.index)
        self._receipts.update({(r.uid, r.req_id): r for r in group.receipts})
        self._names.update(group.names)
        for key, row in group.usage.items():
            known = self._usage.get(key)
            self._usage[key] = row if known is None else add(known, row)

    def _merge_periods(self, group: CommitGroup) -> None:
        newest = max((key.start for key in group.usage), default=0)
        if day_of(newest) > self._merged:
            self._merged = day_of(newest)
            rows = merged(self._usage.values(), limits(newest))
            self._usage.clear()
            self._usage.update(rows)

    def _drop(
        self, group: CommitGroup, index: dict[str, IndexRow | None], names: set[Name]
    ) -> None:
        count = len(self._log) - len(group.events)
        del self._rows[count:], self._log[count:]
        self._names -= names
        for s in group.events:
            self._streams[s.stream] = [
                old for old in self._streams[s.stream] if old.position <= count
            ]
        for r in group.receipts:
            self._receipts.pop((r.uid, r.req_id), None)
        for jid, row in index.items():
            if row is None:
                del self._index[jid]
            else:
                self._index[jid] = row
        self._doubtful = group

    def _failed(self, error: Exception, *, fatal: bool) -> Refusal:
        self._dead = self._dead or fatal
        self._failure = Refusal(
            "storageUnavailable", f"the event store cannot be written: {describe(error)}"
        )
        return self._failure

    # ---- the contract

    def append(self, batch: Batch, done: Done) -> None:
        if self._closed:
            self._deliver(lambda: done(Refusal("storageUnavailable", "the event store is closed")))
            return
        self._waiting.append(encode_batch(batch, done, 0))
        if not self._hold:
            self.commit()

    def resume(self) -> None:
        if self._closed or self._dead:
            raise self._failure or Refusal("storageUnavailable", "the event store is closed")
        # everything appended before belongs to the failed commit
        if self._failure is not None:
            self.commit()
            self._failure = None

    def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[Stored]:
        self._check()
        return self._streams.get(stream, [])[max(after, 0) :][:limit]

    def read_streams(self, streams: Sequence[str]) -> Iterator[list[Stored]]:
        return (self.read(stream) for stream in streams)

    def version(self, stream: str) -> int:
        self._check()
        return len(self._streams.get(stream, []))

    def read_all(self, after: int = 0, limit: int = 1000) -> list[Stored]:
        self._check()
        return self._log[max(after, 0) : max(after, 0) + limit]

    def listen(self, listener: Callable[[Sequence[Stored]], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def head(self) -> int:
        return len(self._log)

    def stalled(self) -> bool:
        return False

    def failure(self) -> Refusal | None:
        return self._failure if self._dead else None

    def busy_jids(self) -> list[str]:
        self._check()
        return [r.jid for r in sorted(self._index.values(), key=lambda r: r.position) if r.busy]

    def jobs(
        self,
        *,
        uid: str | None = None,
        status: str | None = None,
        active: bool | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[IndexRow]:
        self._check()
        rows = [
            r
            for r in self._index.values()
            if (uid is None or r.uid == uid)
            and (status is None or r.status == status)
            and (before is None or r.position < before)
            and (active is None or (r.status in ACTIVE) == active)
        ]
        return sorted(rows, key=lambda r: -r.position)[:limit]

    def scan_jobs(
        self, wanted: RowFilter, *, before: int | None = None, window: int = 1000
    ) -> tuple[list[IndexRow], int | None]:
        self._check()
        rows = self.jobs(uid=wanted.uid, before=before, limit=window)
        return [r for r in rows if fits(r, wanted)], rows[-1].position if len(
            rows
        ) == window else None

    def find_jobs(self, prefix: str, limit: int = 20) -> list[IndexRow]:
        self._check()
        return sorted(
            (r for r in self._index.values() if r.jid.startswith(prefix)), key=lambda r: r.jid
        )[:limit]

    def tally(self, prefix: str) -> list[JobCount]:
        self._check()
        alike: dict[tuple[Status, str | None, bool], list[int]] = {}
        for r in self._index.values():
            if r.jid.startswith(prefix):
                alike.setdefault((r.status, r.reason, r.busy), []).append(r.position)
        return [
            JobCount(
                status=status,
                reason=reason,
                busy=busy,
                count=len(positions),
                position=max(positions),
            )
            for (status, reason, busy), positions in alike.items()
        ]

    def group(
        self,
        prefix: str,
        *,
        statuses: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[IndexRow]:
        self._check()
        rows = [
            r
            for r in self._index.values()
            if r.jid.startswith(prefix)
            and (statuses is None or r.status in statuses)
            and (after is None or (len(r.jid), r.jid) > (len(after), after))
        ]
        return sorted(rows, key=lambda r: (len(r.jid), r.jid))[:limit]

    def names(self, prefix: str, uid: str | None = None, limit: int = 100) -> list[Name]:
        self._check()
        return sorted(n for n in self._names if n.name.startswith(prefix) and uid in (None, n.uid))[
            :limit
        ]

    def jobs_named(
        self, name: str, what: str, uid: str | None = None, limit: int = 100
    ) -> list[str]:
        self._check()
        first = "job/" if uid is None else f"job/{uid}-"
        return sorted(
            n.stream.removeprefix("job/")
            for n in self._names
            if (n.name, n.what) == (name, what) and n.stream.startswith(first)
        )[:limit]

    def agents(self) -> list[str]:
        self._check()
        return sorted(
            stream.removeprefix("agent/")
            for stream, events in self._streams.items()
            if stream.startswith("agent/") and events
        )

    def receipt(self, uid: str, req_id: str) -> Receipt | None:
        self._check()
        return self._receipts.get((uid, req_id))

    def usage(self, since: float, until: float, uid: str | None = None) -> list[UsageRow]:
        self._check()
        return [
            row
            for key, row in sorted(self._usage.items())
            if since <= key.start < until and uid in (None, key.uid)
        ]

    def close(self) -> None:
        if not self._closed:
            self.commit()
            self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise Refusal("storageUnavailable", "the event store is closed")
