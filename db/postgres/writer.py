"""The writer thread of the PostgreSQL store: each group is one statement, which begins with the fence
and is a transaction.

If the connection is lost in between, the outcome is unknown: `lease_protocol` decides what follows,
and batches wait meanwhile. Without a connection, a batch is refused before anything is sent.
"""

import contextlib
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, assert_never

import msgspec
import psycopg

from ...protocol.errors import Refusal
from ..events.events import SYSTEM
from ..sql.commit_thread import CommitThread
from ..sql.receipt_retention import ReceiptRetention
from ..sql.statements import Rows
from ..sql.usage_table import PeriodMerge
from ..store.checksum_chain import Broken
from ..store.contract import Appended, Deliver, Stored
from ..store.group_commit import CommitGroup, Listener, Point
from ..store.head_file import DurablePosition
from . import lease, server_identity
from .arrays import columns
from .connection import FENCED, Connection, Raw, connect, describe, is_lost, is_retryable
from .lease import FENCE
from .lease_protocol import (
    LEASE_SECS,
    RENEW_SECS,
    Answer,
    Commit,
    Connect,
    Find,
    Lease,
    LeaseHolder,
    Lost,
    Pause,
    Renew,
    Step,
    Steps,
    Take,
    TakeAgain,
    perform,
)
from .log_exchange import Exchanged, LogExchange, PendingExchange
from .opening import Opened, repair
from .schema import GROUP_COLUMNS, VERSIONS, group_statement

COMMIT_GROUP = group_statement(FENCE)
#: Wait between two tries to connect while nothing is written.
RECONNECT_SECS = 0.5
#: A commit of this time counts as stalled: its outcome may stay unknown until the database is back.
STALL_SECS = 5.0
#: A store that is closed waits this long for an unknown outcome.
CLOSE_SECS = 10.0
#: Interval in which the writer looks whether the root is served from another server, in seconds.
CHECK_SECS = 1.0


class _GaveUp(Exception):
    """The store is closed while an outcome is unknown."""


class Writer(CommitThread[PendingExchange]):
    """The owner's thread calls `put`, `resumed`, `stopped` and `close`."""

    def __init__(
        self,
        opened: Opened,
        deliver: Deliver,
        listeners: list[Listener],
        monotonic: Callable[[], float],
        point: Point,
    ) -> None:
        super().__init__(opened.head, deliver, listeners, point)
        self._site, self._holder = opened.site, opened.holder
        self._head_file, self._raw = opened.head_file, opened.raw
        #: of the latest connection; at first the one that opening has recorded
        self._server = server_identity.known(opened.site.folder)
        self._recorded = self._server
        self._checked = time.monotonic()
        self._deadline = None if opened.site.claim is None else opened.site.claim.deadline
        self._lease = LeaseHolder(opened.epoch, self._deadline)
        #: why the last commit, and the last other step, lost its connection
        self._commit_error: Exception
        self._error: Exception
        self._kinds = set(opened.kinds)
        fenced = _Fenced(self._raw, self._fence)
        self._ages = ReceiptRetention(fenced, opened.receipts, monotonic)
        self._periods = PeriodMerge(fenced)
        self._closing = threading.Event()
        #: when a store that is closed stops waiting (monotonic)
        self._give_up: float | None = None
        #: when the present commit began (monotonic)
        self._storing: float | None = None
        self._renewed = time.monotonic()
        self.start()

    # ---- the owner's thread

    @property
    def connected(self) -> bool:
        return not self._raw.closed

    @property
    def epoch(self) -> int:
        return self._lease.epoch

    @property
    def stalled(self) -> bool:
        began = self._storing
        return began is not None and time.monotonic() - began > STALL_SECS

    def closing(self) -> None:
        """Limit the wait for an unknown outcome from now on."""
        self._closing.set()

    def close(self) -> None:
        """Release the lease of a stopped writer, and close the connection and the head file."""
        try:
            if not self._raw.closed:
                if self._deadline is not None:
                    self._deadline.release()
                with contextlib.suppress(psycopg.Error):  # it expires
                    lease.release(self._raw, self._lease.epoch)
                self._raw.close()
        finally:
            self._head_file.close()
        if self._undelivered is not None:
            raise self._undelivered

    # ---- its own thread

    def _look_up(self, streams: list[str]) -> list[tuple[str, int]]:
        raw = self._connected()
        try:
            return raw.execute(VERSIONS, (streams,)).fetchall()
        except psycopg.Error as e:
            self._reset(raw, e)
            raise

    def _store(self, group: CommitGroup) -> None:
        self._storing = time.monotonic()
        try:
            self._commit_group(group)
        finally:
            self._storing = None

    def _commit_group(self, group: CommitGroup) -> None:
        raw = self._connected()
        kinds = {(r.type, r.schema) for r in group.rows} - self._kinds
        committed = self._settled(
            self._lease.commit(self._log),
            lambda: self._has(group),
            lambda: self._send(raw, group, sorted(kinds)),
        )
        if not committed:
            raise self._commit_error
        self._renewed = time.monotonic()
        self._kinds |= kinds
        self._ages.seen(group.receipts)
        self._periods.seen(group.usage.values())

    def _fence(self, raw: Raw, head: DurablePosition | None = None) -> None:
        """Move the head, in a transaction, if the lease is this writer's."""
        head = head or self._log
        raw.execute(FENCE, (*head, LEASE_SECS, self._lease.epoch, *self._log))

    def _send(self, raw: Raw, group: CommitGroup, kinds: list[tuple[str, int]]) -> None:
        """Commit the group: one statement is one transaction with one round trip."""
        receipts = {(r.uid, r.req_id): r for r in group.receipts}
        rows: tuple[Sequence[Sequence[Any]], ...] = (
            group.rows,
            [msgspec.structs.astuple(r) for r in group.index.values()],
            [(r.uid, r.req_id, r.jid, r.serial, r.at) for r in receipts.values()],
            [(n.name, n.what, n.stream) for n in group.names],
            [msgspec.structs.astuple(r) for r in group.usage.values()],
            kinds,
        )
        head = (group.position, group.checksum)
        values = [*head, LEASE_SECS, self._lease.epoch, *self._log]
        for table, count in zip(rows, GROUP_COLUMNS, strict=True):
            values += columns(table, count)
        raw.execute(COMMIT_GROUP, values, prepare=True)

    def _witness(self, log: DurablePosition) -> None:
        if self._deadline is not None:
            self._deadline.check()  # the head file may be the next holder's by now
        self._head_file.write(*log)

    def _described(self, error: Exception) -> str:
        return describe(error)

    def _undone(self, error: Exception) -> bool:
        # `_store` raises only for a group that is not in the log
        return is_retryable(error)

    # ---- exchange of the log

    def _perform(self, task: PendingExchange) -> None:
        """Replace the log by another one with the same jobs, between two commits."""
        self._storing = time.monotonic()
        try:
            result, events = self._exchanged(task.exchange)
        finally:
            self._storing = None
        self._report(events, [(task.done, result)])

    def _exchanged(self, exchange: LogExchange) -> tuple[Appended | Refusal, list[Stored]]:
        if self.dead is not None:
            return self.dead, []
        new: Exchanged | None = None
        raw = self._raw
        try:
            raw = self._connected()
            with raw.transaction():
                new = exchange.replace(
                    Connection(raw), self._log, lambda head: self._fence(raw, head)
                )
        except Refusal as e:
            return e, []
        except (psycopg.Error, Broken, OSError) as e:
            failed = self._exchange_failed(raw, new, e)
            if failed is not None:
                return failed, []
        assert new is not None
        self._log, self._kinds = new.head, set(new.kinds)
        self._versions[SYSTEM] = new.closing.version
        try:
            self._witness(self._log)
        except Exception as e:
            self._head_file_failed(e)
            return self.dead or Refusal("storageUnavailable", ""), []
        self.head = self._log.position
        return Appended(self.head, self.head), [new.closing]

    def _exchange_failed(self, raw: Raw, new: Exchanged | None, error: Exception) -> Refusal | None:
        """Return the refusal of an exchange; None if it is in the log all the same."""
        if isinstance(error, psycopg.errors.LockNotAvailable):
            return Refusal("conflict", "the log is being read, for example by a backup")
        if isinstance(error, psycopg.Error) and error.sqlstate == FENCED:
            return self._fenced(raw)
        if is_lost(raw, error):
            raw.close()
            outcome = self._lease.outcome()
            if new is not None and self._settled(outcome, lambda: self._ends_at(new.head)):
                return None
        return self.dead or Refusal(
            "storageUnavailable", f"the log cannot be exchanged: {describe(error)}"
        )

    def _ends_at(self, head: DurablePosition) -> bool:
        row = self._raw.execute("SELECT position, checksum FROM lease").fetchone()
        return row is not None and (row[0], bytes(row[1])) == head

    # ---- the connection

    def _connected(self) -> Raw:
        """Return a connection that has the lease. Raises psycopg.Error, OSError, before anything
        was sent.
        """
        if not self._raw.closed and _has_news(self._raw):
            try:  # the server has closed it, or says something that nobody asked for
                self._raw.execute(b"SELECT 1")
            except psycopg.Error:
                self._raw.close()
        if self._raw.closed:
            taken = perform(self._lease.take_again(), self._answer)
            if self._lease.lost:
                raise self._fenced()
            if not isinstance(taken, Lease):
                raise self._error
            if taken.head != self._log:
                self._die_of(taken.head)
                raise self.dead or AssertionError
            self._record_server()
        return self._raw

    def _die_of(self, head: DurablePosition) -> None:
        """Fail for good: the log in the database does not end as this writer's."""
        if head.position < self._log.position:
            self._die(
                f"the log in the database lacks commits: it ends at position {head.position}, but"
                f" {self._log.position} was durable. {repair(self._site)}",
                "storeDamaged",
            )
        else:
            self._die("the log in the database was changed by another program")

    def _connect(self) -> bool:
        """Replace the connection by a new one. Raises psycopg.Error, OSError."""
        raw = connect(self._site.address, self._site.password_file)
        try:
            self._server = server_identity.read(raw)
            fault = server_identity.fault(self._site.folder, self._server, self._site.address.name)
            if fault is not None:
                raise OSError(fault)
        except BaseException:
            raw.close()
            raise
        self._raw.close()
        self._raw = raw
        fenced = _Fenced(raw, self._fence)
        self._ages.use(fenced)
        self._periods.use(fenced)
        return True

    def _renew(self, epoch: int) -> bool:
        """Renew the lease. Raises psycopg.Error, Refusal."""
        self._check_server()
        return lease.renew(self._raw, epoch)

    def _check_server(self) -> None:
        """Fail for good if another supervisor serves the root from the primary that replaced this one. Reads a
        file, at most once in CHECK_SECS. Raises Refusal.
        """
        now = time.monotonic()
        if now - self._checked < CHECK_SECS:
            return
        self._checked = now
        fault = server_identity.fault(self._site.folder, self._server, self._site.address.name)
        if fault is not None:
            self._die(fault)
            assert self.dead is not None
            raise self.dead

    def _record_server(self) -> None:
        """Record the server of this connection, whose log is known to end as this writer's."""
        if self._server != self._recorded:
            with contextlib.suppress(OSError):  # the next commit tries again
                server_identity.record(self._site.folder, self._server)
                self._recorded = self._server

    def _take_again(self) -> Lease | None:
        """Take the next epoch on the new connection. Raises psycopg.Error, and closes it then."""
        try:
            taken = lease.take_again(self._raw, self._holder, self._site.address.schema)
        except BaseException:
            self._raw.close()
            raise
        self._renewed = time.monotonic()
        return taken

    def _reset(self, raw: Raw, error: psycopg.Error) -> None:
        """Undo the transaction of a failed statement. Raises Refusal if the lease is lost."""
        if error.sqlstate == FENCED:
            raise self._fenced(raw)
        try:
            if Connection(raw).in_transaction:
                raw.execute(b"ROLLBACK")
        except psycopg.Error:
            raw.close()

    def _fenced(self, raw: Raw | None = None) -> Refusal:
        """Return the refusal after which the writer is dead. raw: tells a lost lease from a log that
        is not what the writer wrote, as on a replica that lost commits.
        """
        head = None if raw is None else _head_of(raw, self._lease.epoch)
        if head is not None:
            self._die_of(head)
        else:
            self._die("another supervisor serves this site")
        assert self.dead is not None
        return self.dead

    def _settled(
        self,
        steps: Steps[bool],
        find: Callable[[], bool],
        send: Callable[[], object] | None = None,
    ) -> bool:
        """Return whether a transaction is in the log. Waits for the database if its connection is lost.
        If the lease is lost, the writer is dead, but the log can be read.
        """
        try:
            known = perform(steps, lambda step: self._answer(step, find, send))
        except _GaveUp:
            self._die(
                "the connection was lost during a commit, and it is unknown whether it is in the log"
                f" ({describe(self._error)})"
            )
            return False
        if self._lease.lost:
            self._fenced()
        return known

    def _answer(
        self,
        step: Step,
        find: Callable[[], bool] | None = None,
        send: Callable[[], object] | None = None,
    ) -> Answer:
        match step:
            case Connect():
                return self._tried(self._connect)
            case TakeAgain():
                return self._tried(self._take_again)
            case Renew(epoch=epoch):
                return self._tried(lambda: self._renew(epoch))
            case Commit():
                assert send is not None
                return self._sent(send)
            case Find():
                assert find is not None
                return self._tried(find)
            case Pause(secs=secs):
                self._pause(secs)
                return None
            case Take():
                raise AssertionError("a writer has taken the lease")
            case _:
                assert_never(step)

    def _tried(self, act: Callable[[], Answer]) -> Answer:
        try:
            return act()
        except (psycopg.Error, OSError) as e:
            self._error = e
            if is_lost(self._raw, e):
                self._raw.close()
            return Lost()

    def _sent(self, send: Callable[[], object]) -> Answer:
        raw = self._raw
        self._check_server()
        try:
            send()
        except psycopg.Error as e:
            if not is_lost(raw, e):
                self._reset(raw, e)
                raise
            raw.close()
            self._error = self._commit_error = e
            return Lost()
        self._record_server()
        return True

    def _pause(self, secs: float) -> None:
        """Wait until the next try. Raises _GaveUp some time after the store was closed."""
        if not self._closing.is_set():
            self._closing.wait(secs)
            return
        if self._give_up is None:
            self._give_up = time.monotonic() + CLOSE_SECS
        if time.monotonic() > self._give_up:
            raise _GaveUp
        time.sleep(secs)

    def _has(self, group: CommitGroup) -> bool:
        if group.rows:
            last = group.rows[-1]
            row = self._raw.execute(
                "SELECT checksum FROM events WHERE position = %s", (last.position,)
            ).fetchone()
            return row is not None and bytes(row[0]) == last.checksum
        r = group.receipts[-1]
        row = self._raw.execute(
            "SELECT 1 FROM receipts WHERE uid = %s AND req_id = %s AND jid = %s AND serial = %s AND at = %s",
            (r.uid, r.req_id, r.jid, r.serial, r.at),
        ).fetchone()
        return row is not None

    def _idle(self) -> float | None:
        every = RECONNECT_SECS if self._raw.closed else RENEW_SECS
        if time.monotonic() - self._renewed >= every:
            self._renewed = time.monotonic()
            try:
                self._connected()
                perform(self._lease.renew(), self._answer)
                if self._lease.lost:
                    self._fenced()
            except (psycopg.Error, OSError) as e:
                if is_lost(self._raw, e):
                    self._raw.close()
            except Refusal:
                pass  # dead: the next batch gets the refusal
        if self._raw.closed:
            return RECONNECT_SECS
        return max(0.01, self._renewed + RENEW_SECS - time.monotonic())

    def _maintain(self) -> None:
        try:
            if not self._raw.closed:
                self._ages.prune()
                self._periods.merge()
        except psycopg.Error as e:
            if is_lost(self._raw, e):
                self._raw.close()
            elif e.sqlstate == FENCED:
                self._fenced(self._raw)
            else:
                self._reset(self._raw, e)
                if not is_retryable(e):
                    self._die(f"the event store cannot be written: {describe(e)}")


class _Fenced(Connection):
    """A connection for maintenance: its transactions begin with the fence, and a removal by itself is
    a transaction.
    """

    def __init__(self, raw: Raw, fence: Callable[[Raw], None]) -> None:
        super().__init__(raw)
        self._fence = fence

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Rows:
        if query.startswith("DELETE") and not self.in_transaction:
            with self.raw.transaction():
                self._fence(self.raw)
                return super().execute(query, values)
        rows = super().execute(query, values)
        if query.startswith("BEGIN"):
            self._fence(self.raw)
        return rows


def _head_of(raw: Raw, epoch: int) -> DurablePosition | None:
    """Return the head in the lease if it still has this epoch, and end the connection."""
    with raw, contextlib.suppress(psycopg.Error):
        raw.execute(b"ROLLBACK")
        row = raw.execute("SELECT epoch, position, checksum FROM lease").fetchone()
        if row is not None and row[0] == epoch:
            return DurablePosition(row[1], bytes(row[2]))
    return None


def _has_news(raw: Raw) -> bool:
    """Return whether the server sent something while nothing was asked, as when it closes."""
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))
