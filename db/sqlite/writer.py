"""The writer thread of the SQLite store. It commits all pending batches in one transaction and
reports them after the transaction is durable.

The order for every group: commit (synced), head file, `head`, then one call of `deliver`. The head
file is synced later, off the path of the group (ADR 51).

SQLite gets few large statements, because each one takes the interpreter's lock from the event loop
once.
"""

import contextlib
import sqlite3
from collections.abc import Callable

import msgspec

from ...protocol.errors import Refusal
from ..events.events import SYSTEM
from ..sql.commit_thread import CommitThread
from ..sql.receipt_retention import ReceiptRetention
from ..sql.statements import (
    INSERT_EVENTS,
    INSERT_JOBS,
    INSERT_KINDS,
    INSERT_NAMES,
    INSERT_RECEIPTS,
    checksum_at,
    insert,
)
from ..sql.usage_table import PeriodMerge, insert_usage
from ..store.contract import Appended, Deliver, IndexRow, Stored
from ..store.disk_errors import describe, is_retryable
from ..store.group_commit import CommitGroup, Listener, Point
from ..store.head_file import DurablePosition
from .log_exchange import Exchanged, LogExchange, PendingExchange
from .opening import Opened

#: Estimated WAL pages that trigger a checkpoint: when the queue is empty, and in any case.
CHECKPOINT_IDLE, CHECKPOINT_BUSY = 2000, 8000
#: Seconds from the first unsynced write of the head file to its sync: when the queue is empty, and
#: in any case, before the next group.
HEAD_SYNC_IDLE, HEAD_SYNC_BUSY = 0.025, 0.05


class Writer(CommitThread[PendingExchange]):
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
        super().__init__(opened.head, deliver, listeners, point)
        self._connection, self._head_file = opened.connection, opened.head_file
        #: how often the file was exchanged; increased before `head` moves in the new file
        self.exchanges = 0
        self._kinds = set(opened.kinds)
        self._ages = ReceiptRetention(self._connection, opened.receipts, monotonic)
        self._periods = PeriodMerge(self._connection)
        self._pages = 0
        self._monotonic = monotonic
        #: when the head file was written first since its last sync (monotonic)
        self._noted: float | None = None
        self.start()

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

    def _look_up(self, streams: list[str]) -> list[tuple[str, int]]:
        # one query; streams without events cost nothing extra
        found = self._connection.execute(
            "SELECT e.stream, max(e.version) FROM json_each(?) AS s CROSS JOIN events AS e ON e.stream = s.value GROUP BY e.stream",
            (msgspec.json.encode(streams).decode(),),
        )
        return found.fetchall()

    def _witness(self, log: DurablePosition) -> None:
        self._head_file.note(*log)
        if self._noted is None:
            self._noted = self._monotonic()

    def _idle(self) -> float | None:
        if self._noted is None:
            return None
        age = self._monotonic() - self._noted
        if age >= (HEAD_SYNC_IDLE if self._queue.empty() else HEAD_SYNC_BUSY):
            self._sync_head()
            return None
        return max(0.0, HEAD_SYNC_IDLE - age)

    def _finish(self) -> None:
        self._sync_head()

    def _sync_head(self) -> None:
        if self._noted is None:
            return
        try:
            self._head_file.sync()
            self._noted = None
        except OSError as e:
            self._head_file_failed(e)

    def _described(self, error: Exception) -> str:
        return describe(error)

    def _store(self, group: CommitGroup) -> None:
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

    def _perform(self, task: PendingExchange) -> None:
        """Replace the file by another one with the same events, between two commits. Until the new
        file is complete, a failure leaves everything as it was.
        """
        self._sync_head()
        result, events = self._exchanged(task.exchange)
        self._report(events, [(task.done, result)])

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

    def _undone(self, error: Exception) -> bool:
        if not is_retryable(error):
            return False
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
