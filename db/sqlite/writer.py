"""The writer thread of the store. It commits all pending batches in one transaction and reports
them after the transaction is durable.

The order for every group: commit (synced), head file (synced), `head`, then one call of `deliver`.
A failed commit refuses the group and everything appended before `resume`. After an error that
leaves the disk state unknown, the writer is `dead`. Encoding and callbacks run in the owner's
thread. SQLite gets few large statements, because each one takes the interpreter's lock from the
event loop once.
"""

import contextlib
import queue
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from ...protocol.errors import Refusal
from ..events.events import SYSTEM
from ..store.contract import Appended, Deliver, Done, IndexRow, Stored
from ..store.disk_errors import describe, is_retryable
from ..store.group_commit import CommitGroup, Listener, PendingBatch, Point, notify_listeners
from .head_file import DurablePosition
from .log_exchange import Exchanged, LogExchange, PendingExchange
from .opening import Opened
from .receipt_retention import ReceiptRetention
from .schema import (
    INSERT_EVENTS,
    INSERT_JOBS,
    INSERT_KINDS,
    INSERT_NAMES,
    INSERT_RECEIPTS,
    checksum_at,
    insert,
)
from .usage_table import PeriodMerge, insert_usage

#: Maximum number of events in one transaction. Larger groups delay other batches and are hardly
#: faster.
GROUP = 2048
#: Number of cached stream versions; others are read from the file.
VERSIONS_KEPT = 20_000
#: Estimated WAL pages that trigger a checkpoint: when the queue is empty, and in any case.
CHECKPOINT_IDLE, CHECKPOINT_BUSY = 2000, 8000


class Writer:
    """The owner's thread calls `put`, `resumed`, `stopped` and `close`; everything else runs in the
    writer's own thread.
    """

    def __init__(
        self,
        opened: Opened,
        deliver: Deliver,
        listeners: list[Listener],
        monotonic: Callable[[], float],
        point: Point,
    ) -> None:
        self._connection, self._head_file = opened.connection, opened.head_file
        self._deliver, self._listeners, self._point = deliver, listeners, point
        self._log = opened.head
        #: position up to which everything is durable
        self.head = opened.head.position
        #: how often the file was exchanged; increased before `head` moves in the new file
        self.exchanges = 0
        self._kinds = set(opened.kinds)
        self._versions: OrderedDict[str, int] = OrderedDict()
        self._ages = ReceiptRetention(self._connection, opened.receipts, monotonic)
        self._periods = PeriodMerge(self._connection)
        self._queue: queue.SimpleQueue[PendingBatch | PendingExchange | None] = queue.SimpleQueue()
        self._exchange_next: PendingExchange | None = None
        self._pages = 0
        #: batches of this era and earlier ones are refused
        self._failed_era = -1
        self._failure = Refusal("storageUnavailable", "")
        self.dead: Refusal | None = None
        self._undelivered: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="event store", daemon=True)
        self._thread.start()

    # ---- the owner's thread

    def put(self, item: PendingBatch | PendingExchange) -> None:
        self._queue.put(item)

    def resumed(self, era: int) -> int:
        """Return the era from which batches are accepted again, which is `era` if nothing failed in
        it. Raises Refusal.
        """
        if self.dead is not None:
            raise self.dead
        return max(era, self._failed_era + 1)

    def stopped(self) -> Refusal | None:
        """Write pending batches and end the thread. Returns the refusal if the file must not be
        touched any more.
        """
        self._queue.put(None)
        self._thread.join()
        return self.dead

    def close(self) -> None:
        """Close file and head file of a stopped writer. Re-raises an exception of `deliver`."""
        try:
            with contextlib.closing(self._connection):
                if self.dead is None:
                    # the WAL is durable already; a checkpoint shortens the next start
                    with contextlib.suppress(sqlite3.OperationalError):
                        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._head_file.close()
        if self._undelivered is not None:
            raise self._undelivered

    # ---- its own thread

    def _run(self) -> None:
        going = True
        while going:
            batches, going = self._next()
            if batches:
                self._write(batches)
                self._maintain()
            if self._exchange_next is not None:
                pending, self._exchange_next = self._exchange_next, None
                self._exchange(pending)

    def _next(self) -> tuple[list[PendingBatch], bool]:
        """Return pending batches up to the group size; False after the last one."""
        batches: list[PendingBatch] = []
        size = 0
        try:
            while size < GROUP:
                item = self._queue.get(block=not batches)
                if item is None:
                    return batches, False
                if isinstance(item, PendingExchange):
                    self._exchange_next = item
                    return batches, True
                batches.append(item)
                size += max(1, item.size)
        except queue.Empty:
            pass
        return batches, True

    def _write(self, batches: list[PendingBatch]) -> None:
        late = [b for b in batches if b.era <= self._failed_era]
        results: list[tuple[Done, Appended | Refusal]] = [(b.done, self._failure) for b in late]
        events: list[Stored] = []
        fresh = batches[len(late) :]
        if fresh:
            try:
                group = self._commit(fresh)
                results, events = results + group.results, group.events
            except Exception as e:
                self._failed(e, max(b.era for b in fresh))
                results += [(b.done, self._failure) for b in fresh]
        try:
            self._deliver(lambda: notify_listeners(self._listeners, events, results))
            self._point("delivered")
        except Exception as e:
            # the owner's event loop is gone; still write the pending batches
            self._undelivered = e

    def _commit(self, batches: list[PendingBatch]) -> CommitGroup:
        """Commit the batches and return the group with its results. Raises any disk error; a
        conflict refuses only its own batch.
        """
        if self.dead is not None:
            raise self.dead
        self._point("taken")
        self._look_up(batches)
        group = CommitGroup(
            self._log.position, self._log.checksum, lambda stream: self._versions.get(stream, 0)
        )
        for batch in batches:
            group.admit(batch)
        if group.empty:
            return group
        self._transaction(group)
        self._log = DurablePosition(group.position, group.checksum)
        self._versions.update(group.versions)
        for stream in group.versions:
            self._versions.move_to_end(stream)
        while len(self._versions) > VERSIONS_KEPT:
            self._versions.popitem(last=False)
        try:
            self._point("committed")
            if group.rows:
                self._head_file.write(*self._log)
            self._point("witnessed")
        except Exception as e:
            self._die(f"the head file of the event store cannot be written: {describe(e)}")
            raise
        self.head = self._log.position
        return group

    def _look_up(self, batches: list[PendingBatch]) -> None:
        """Read versions of streams that are not cached, in one query. Streams without events cost
        nothing extra.
        """
        streams = {w[0] for b in batches for w in b.writes if w[0] not in self._versions}
        if streams:
            found = self._connection.execute(
                "SELECT e.stream, max(e.version) FROM json_each(?) AS s CROSS JOIN events AS e ON e.stream = s.value GROUP BY e.stream",
                (msgspec.json.encode(sorted(streams)).decode(),),
            )
            self._versions.update(found.fetchall())

    def _transaction(self, group: CommitGroup) -> None:
        kinds = {(r.type, r.schema) for r in group.rows} - self._kinds
        c = self._connection
        c.execute("BEGIN IMMEDIATE")
        insert(c, INSERT_EVENTS, group.rows)
        insert(c, INSERT_JOBS, [_columns(r) for r in group.index.values()])
        insert(
            c, INSERT_RECEIPTS, [(r.uid, r.req_id, r.jid, r.serial, r.at) for r in group.receipts]
        )
        insert(c, INSERT_NAMES, [(n.name, n.what, n.stream) for n in group.names])
        insert_usage(c, group.usage.values())
        insert(c, INSERT_KINDS, sorted(kinds))
        c.execute("COMMIT")
        self._kinds |= kinds
        self._ages.seen(group.receipts)
        self._periods.seen(group.usage.values())
        self._pages += 4 + len(group.rows) + len(group.index) + len(group.names) + len(group.usage)

    # ---- exchange of the file

    def _exchange(self, pending: PendingExchange) -> None:
        """Replace the file by another one with the same events, between two commits. Until the new
        file is complete, a failure leaves everything as it was.
        """
        result, events = self._exchanged(pending.exchange)
        try:
            self._deliver(
                lambda: notify_listeners(self._listeners, events, [(pending.done, result)])
            )
        except Exception as e:
            self._undelivered = e

    def _exchanged(self, exchange: LogExchange) -> tuple[Appended | Refusal, list[Stored]]:
        if self.dead is not None:
            return self.dead, []
        try:
            exchange.complete(self._connection, self._log)
        except Refusal as e:
            return e, []
        except Exception as e:
            return Refusal(
                "storageUnavailable", f"the new log cannot be written: {describe(e)}"
            ), []
        try:
            new = exchange.replace(self._connection, self._head_file, self._log)
        except Exception as e:
            self._die(f"the log file cannot be replaced: {describe(e)}")
            return self.dead or Refusal("storageUnavailable", ""), []
        self._use(new)
        return Appended(self.head, self.head), [new.closing]

    def _use(self, new: Exchanged) -> None:
        self._connection, self._log, self._pages = new.connection, new.head, 0
        self._ages.use(new.connection)
        self._periods.use(new.connection)
        self._kinds = set(new.kinds)  # fewer: folded events are of no kind any more
        self._versions[SYSTEM] = new.closing.version
        self.exchanges += 1
        self.head = new.head.position

    # ---- failures

    def _failed(self, error: Exception, era: int) -> None:
        if self.dead is None:
            if not is_retryable(error) or not self._undone():
                self._die(f"the event store cannot be written: {describe(error)}")
            else:
                self._failure = Refusal(
                    "storageUnavailable", f"the event store cannot be written: {describe(error)}"
                )
        if self.dead is not None:
            self._failure = self.dead
        #: set last, because another thread reads it in `resumed`
        self._failed_era = max(era, self._failed_era)

    def _die(self, sentence: str) -> None:
        self.dead = Refusal(
            "storageUnavailable",
            sentence + "; nothing is written until you restart the supervisor",
        )

    def _undone(self) -> bool:
        """Return whether the log is as it was before the failed transaction."""
        c = self._connection
        try:
            if c.in_transaction:
                c.execute("ROLLBACK")
            ((last,),) = c.execute("SELECT coalesce(max(position), 0) FROM events").fetchall()
            return bool(
                last == self._log.position
                and (last == 0 or checksum_at(c, last) == self._log.checksum)
            )
        except sqlite3.Error:
            return False

    # ---- maintenance, after the callbacks

    def _maintain(self) -> None:
        if self.dead is not None:
            return
        try:
            if self._pages >= (CHECKPOINT_IDLE if self._queue.empty() else CHECKPOINT_BUSY):
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                self._pages = 0
            self._ages.prune()
            self._periods.merge()
        except sqlite3.Error as e:
            # The disk is full: the WAL still has everything, so retry later. A failed sync is
            # fatal, as everywhere.
            if not is_retryable(e):
                self._die(f"the event store cannot be written: {describe(e)}")


def _columns(r: IndexRow) -> tuple[object, ...]:
    return (
        r.jid,
        r.uid,
        r.status,
        r.serial,
        r.simulation_type,
        r.kind,
        r.driver,
        r.busy,
        r.queued_at,
        r.started_at,
        r.ended_at,
        r.reason,
        r.position,
    )
