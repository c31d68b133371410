"""The one thread that writes the store. Whatever waits goes into one transaction; it is told when
all of it is durable.

The order for every group: commit (synced), witness (synced), head, then one call of `deliver`. A
failed commit refuses the group and all that was appended before `resume`; where the disk's word is
not to be trusted any more, the writer is `dead`. Encoding is done before and telling after, in the
owner's thread; SQLite gets few large statements, since each one takes the interpreter's lock from
the event loop once.
"""

import contextlib
import queue
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from ...protocol.errors import Refusal
from ..store.contract import Appended, Deliver, Done, IndexRow, Stored
from ..store.disk_errors import describe, passing
from ..store.group_commit import CommitGroup, Heard, PendingBatch, Point, tell
from .head_file import DurablePosition
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

#: Events in one transaction: more would make others wait, and hardly be faster.
GROUP = 2048
#: Streams whose version is remembered; of others it is looked up.
VERSIONS_KEPT = 20_000
#: Estimated pages in the WAL from which it is copied into the file: when nothing waits, and in any
#: case.
CHECKPOINT_IDLE, CHECKPOINT_BUSY = 2000, 8000


class Writer:
    """Started by the owner's thread, which calls `put`, `resumed`, `stopped` and `close`; the rest
    happens in the thread of its own.
    """

    def __init__(
        self,
        opened: Opened,
        deliver: Deliver,
        listeners: list[Heard],
        monotonic: Callable[[], float],
        point: Point,
    ) -> None:
        self._connection, self._witness = opened.connection, opened.witness
        self._deliver, self._listeners, self._point = deliver, listeners, point
        self._log = opened.head
        #: position up to which everything is durable
        self.head = opened.head.position
        self._kinds = set(opened.kinds)
        self._versions: OrderedDict[str, int] = OrderedDict()
        self._ages = ReceiptRetention(self._connection, opened.receipts, monotonic)
        self._queue: queue.SimpleQueue[PendingBatch | None] = queue.SimpleQueue()
        self._pages = 0
        #: batches of this era and before are refused
        self._failed_era = -1
        self._failure = Refusal("storageUnavailable", "")
        self.dead: Refusal | None = None
        self._undelivered: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="event store", daemon=True)
        self._thread.start()

    # ---- the owner's thread

    def put(self, batch: PendingBatch) -> None:
        self._queue.put(batch)

    def resumed(self, era: int) -> int:
        """The era from which batches are accepted again: the same one when nothing failed in it.
        Raises Refusal.
        """
        if self.dead is not None:
            raise self.dead
        return max(era, self._failed_era + 1)

    def stopped(self) -> Refusal | None:
        """Write what waits and end the thread; returns why the file must not be touched any more,
        if so.
        """
        self._queue.put(None)
        self._thread.join()
        return self.dead

    def close(self) -> None:
        """Give back file and witness of a writer that stopped. Raises what `deliver` raised, if it
        did.
        """
        try:
            with contextlib.closing(self._connection):
                if self.dead is None:
                    # what is in the WAL is durable already; this only makes the next start shorter
                    with contextlib.suppress(sqlite3.OperationalError):
                        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._witness.close()
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

    def _next(self) -> tuple[list[PendingBatch], bool]:
        """Everything that waits, up to the size of a group; False when it was the last."""
        batches: list[PendingBatch] = []
        size = 0
        try:
            while size < GROUP:
                item = self._queue.get(block=not batches)
                if item is None:
                    return batches, False
                batches.append(item)
                size += max(1, item.size)
        except queue.Empty:
            pass
        return batches, True

    def _write(self, batches: list[PendingBatch]) -> None:
        late = [b for b in batches if b.era <= self._failed_era]
        results: list[tuple[Done, Appended | Refusal]] = [(b.done, self._failure) for b in late]
        heard: list[Stored] = []
        fresh = batches[len(late) :]
        if fresh:
            try:
                group = self._commit(fresh)
                results, heard = results + group.results, group.heard
            except Exception as e:
                self._failed(e, max(b.era for b in fresh))
                results += [(b.done, self._failure) for b in fresh]
        try:
            self._deliver(lambda: tell(self._listeners, heard, results))
            self._point("delivered")
        except Exception as e:
            # nobody is there to be told (the loop is gone); what waits is written all the same
            self._undelivered = e

    def _commit(self, batches: list[PendingBatch]) -> CommitGroup:
        """The batches, durable, or refused alone in what is returned; raises whatever kept the disk
        from taking them.
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
                self._witness.write(*self._log)
            self._point("witnessed")
        except Exception as e:
            self._die(f"the witness of the event store cannot be written: {describe(e)}")
            raise
        self.head = self._log.position
        return group

    def _look_up(self, batches: list[PendingBatch]) -> None:
        """Versions of streams that are not at hand, in one query: streams that are not there cost
        nothing more.
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
        insert(c, INSERT_KINDS, sorted(kinds))
        c.execute("COMMIT")
        self._kinds |= kinds
        self._ages.seen(group.receipts)
        self._pages += 4 + len(group.rows) + len(group.index) + len(group.names)

    # ---- when it fails

    def _failed(self, error: Exception, era: int) -> None:
        if self.dead is None:
            if not passing(error) or not self._undone():
                self._die(f"the event store cannot be written: {describe(error)}")
            else:
                self._failure = Refusal(
                    "storageUnavailable", f"the event store cannot be written: {describe(error)}"
                )
        if self.dead is not None:
            self._failure = self.dead
        # last, since `resumed` is read in another thread
        self._failed_era = max(era, self._failed_era)

    def _die(self, sentence: str) -> None:
        self.dead = Refusal(
            "storageUnavailable",
            sentence + "; nothing is written until the supervisor has been started again",
        )

    def _undone(self) -> bool:
        """Is the log again as it was before the transaction that failed?"""
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

    # ---- housekeeping, after everybody was told

    def _maintain(self) -> None:
        if self.dead is not None:
            return
        try:
            if self._pages >= (CHECKPOINT_IDLE if self._queue.empty() else CHECKPOINT_BUSY):
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                self._pages = 0
            self._ages.prune()
        except sqlite3.Error as e:
            # No room for it now: the WAL holds everything, and it is tried again. A failed sync is
            # the end, as everywhere.
            if not passing(e):
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
