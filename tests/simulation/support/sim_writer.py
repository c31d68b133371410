"""The writer of a supervisor in a site with several ones: the counterpart of db/postgres/writer.py on
virtual time. It performs the steps of the product's `lease_protocol` on the simulated database.
"""

import errno
import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from sim_database import Connection, Database
from sim_time import Cancel

from jobscribe.db.postgres.lease_protocol import (
    RENEW_SECS,
    Commit,
    Connect,
    Find,
    Lease,
    LeaseHolder,
    Lost,
    Pause,
    Renew,
    Take,
    TakeAgain,
)
from jobscribe.db.store.contract import StoreUnreachable
from jobscribe.db.store.disk_errors import is_retryable
from jobscribe.db.store.group_commit import CommitGroup, notify_listeners
from jobscribe.db.store.head_file import DurablePosition
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.errors import Refusal

if TYPE_CHECKING:
    from sim_supervisor import Supervisor

#: As in the product.
RECONNECT_SECS = 0.5
#: A sequence of steps that takes longer delays the answers of the supervisor.
LATE_SECS = 1.0
#: A stopping supervisor gives up after this time.
CLOSE_SECS = 10.0


def perform(
    steps: Generator[Any, Any, Any],
    act: Callable[[Any, Callable[[Any], None]], None],
    done: Callable[[Any], None],
) -> None:
    """Perform the steps one after the other; `act` gets a step and the callback for its answer."""

    def go(answer: Any) -> None:
        try:
            step = steps.send(answer)
        except StopIteration as e:
            done(e.value)
        else:
            act(step, go)

    go(None)


class LeasedStore:
    """The store of one process: reads are those of the shared tables; groups go to the writer."""

    def __init__(self, store: MemoryStore) -> None:
        self.inner = store
        self.writer: Writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self) -> None:
        self.writer.commit()

    def resume(self) -> None:
        self.inner.resume()
        if not self.writer.connection.open:
            raise StoreUnreachable("simulated: the database cannot be reached")


class Writer:
    """Everything runs guarded in the life of its supervisor."""

    def __init__(
        self,
        supervisor: "Supervisor",
        store: MemoryStore,
        database: Database,
        connection: Connection,
        taken: Lease,
    ) -> None:
        self.supervisor, self.time, self.life = supervisor, supervisor.time, supervisor.life
        self.store, self.database, self.connection = store, database, connection
        self.lease = LeaseHolder(taken.epoch, supervisor.deadline)
        self.log: DurablePosition = taken.head
        #: a sequence of steps is in progress
        self.busy, self._sequences = False, 0
        self._renewed = self.time.now
        self._tick_later()

    # ---- commits

    def commit(self) -> None:
        if self.busy:
            return
        batches, self.store._waiting = self.store._waiting, []
        if not batches:
            return
        group = CommitGroup(
            self.log.position, self.log.checksum, lambda s: len(self.store._streams.get(s, ()))
        )
        for batch in batches:
            group.admit(batch)
        if self.store._failure is not None:
            self._report(group, self.store._failure)
            return
        try:
            self.store._point("taken")
        except OSError as e:
            self._report(group, self.store._failed(e, fatal=not is_retryable(e)))
            return
        if group.empty:
            self._report(group, None)
            return
        self._begin()
        self._connected(lambda: self._commit(group), lambda: self._refused(group))

    def _commit(self, group: CommitGroup) -> None:
        act = lambda step, go: self._act(step, go, group)
        perform(self.lease.commit(self.log), act, lambda known: self._settled(group, known))

    def _settled(self, group: CommitGroup, known: bool) -> None:
        if self.lease.lost:
            self._die("another supervisor serves this site")
        if not known:
            self._refused(group)
            return
        self._renewed = self.time.now
        self.log = DurablePosition(group.position, group.checksum)
        try:
            self.store._point("committed")
            if group.rows:
                self.supervisor.fence("wrote the head file")
            self.store._point("witnessed")
        except OSError as e:
            # the group is in the log, and its clients are refused
            self._report(group, self.store._failed(e, fatal=True))
            return
        self._report(group, None)

    def _refused(self, group: CommitGroup) -> None:
        if not self.store._dead:
            self.store._failed(OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN)), fatal=False)
        self._report(group, self.store._failure)

    def _begin(self) -> None:
        """Begin a sequence of steps. No answer is expected in time if it takes long."""
        self.busy, self._sequences = True, self._sequences + 1
        number = self._sequences

        def late() -> None:
            if self.busy and self._sequences == number:
                self.supervisor.commit_secs = 0.5

        self.life.after(LATE_SECS, late)

    def _over(self) -> None:
        self.busy = False
        if self.supervisor.commit_secs > 0.01 and self.connection.route.well:
            self.supervisor.commit_secs, self.supervisor.well_since = 0.002, self.time.now

    def _report(self, group: CommitGroup, refusal: Refusal | None) -> None:
        if self.busy:
            self._over()
        events, results = (
            (group.events, group.results) if refusal is None else ([], group.refused(refusal))
        )
        store = self.store
        if refusal is None:
            self.supervisor.site.at(self.supervisor, "answered")
        store._deliver(lambda: notify_listeners(store._listeners, events, results))
        store._point("delivered")
        self.supervisor.soon()

    def _die(self, sentence: str) -> None:
        if not self.store._dead:
            self.time.say("writer of", self.supervisor.name, "is dead:", sentence)
            self.time.saw("a supervisor found that it had lost its lease")
        self.store._dead = True
        self.store._failure = Refusal("storageUnavailable", sentence)

    # ---- the connection

    def _connected(self, then: Callable[[], None], refused: Callable[[], None]) -> None:
        if self.connection.open:
            then()
            return

        def taken(lease: Any) -> None:
            if isinstance(lease, Lost):
                refused()
            elif lease is None:
                self._die("another supervisor serves this site")
                refused()
            else:
                if lease.head != self.log:
                    self.supervisor.site.sim.broken(
                        f"the log of {self.supervisor.name} was changed by another one"
                    )
                self._renewed = self.time.now
                then()

        perform(self.lease.take_again(), self._act, taken)

    def _act(self, step: Any, go: Callable[[Any], None], group: CommitGroup | None = None) -> None:
        answer = lambda result: self.supervisor.guarded(lambda: self._answered(result, go))
        database, name = self.database, self.supervisor.name
        match step:
            case Connect():
                self.connection.connect(answer)
            case TakeAgain():
                self.connection.ask(lambda: database.take_again(name), answer)
            case Renew(epoch=epoch):
                self.connection.ask(lambda: database.renew(epoch), answer)
            case Commit(epoch=epoch, head=head):
                assert group is not None
                self.connection.ask(
                    lambda: self.supervisor.site.commit(self.supervisor, epoch, head, group),
                    lambda result: self.supervisor.guarded(
                        lambda: self._committed(result, go, group)
                    ),
                )
            case Find():
                assert group is not None
                self.connection.ask(lambda: database.has(group), lambda found: answer(found))
            case Pause(secs=secs):
                self.life.after(secs, lambda: answer(None))
            case Take():
                raise AssertionError("a writer has taken the lease")

    def _answered(self, result: Any, go: Callable[[Any], None]) -> None:
        if isinstance(result, Lost):
            self.supervisor.well_since = self.time.now
        go(result)

    def _committed(self, result: Any, go: Callable[[Any], None], group: CommitGroup) -> None:
        if result is False:
            if self.database.epoch == self.lease.epoch:
                self.supervisor.site.sim.broken(
                    f"the log of {self.supervisor.name} was changed by another one"
                )
            self._die("another supervisor serves this site")
            self._refused(group)
            return
        if isinstance(result, Lost):
            here = "is" if self.database.has(group) else "is not"
            self.time.saw(f"a connection was lost during a commit that {here} in the log")
        self._answered(result, go)

    # ---- renewals

    def _tick_later(self) -> Cancel:
        every = RENEW_SECS if self.connection.open else RECONNECT_SECS
        secs = max(0.01, self._renewed + every - self.time.now)
        return self.life.after(secs, lambda: self.supervisor.guarded(self._tick))

    def _tick(self) -> None:
        every = RENEW_SECS if self.connection.open else RECONNECT_SECS
        if not self.busy and not self.store._dead and self.time.now - self._renewed >= every - 1e-6:
            self._renewed = self.time.now
            self._begin()
            self._connected(
                lambda: perform(self.lease.renew(), self._act, lambda _: self._renewal_over()),
                self._renewal_over,
            )
        self._tick_later()

    def _renewal_over(self) -> None:
        self._over()
        if self.lease.lost:
            self._die("another supervisor serves this site")
        self.supervisor.soon()

    # ---- the end

    def close(self, then: Callable[[], None], until: float | None = None) -> None:
        """Commit what waits, release the lease, and call `then`."""
        until = self.time.now + CLOSE_SECS if until is None else until
        if (self.busy or self.store._waiting) and self.time.now < until and not self.store._dead:
            self.commit()
            self.life.after(0.05, lambda: self.supervisor.guarded(lambda: self.close(then, until)))
            return
        if self.connection.open:
            epoch, database = self.lease.epoch, self.database
            self.lease.deadline.release()  # type: ignore[union-attr]
            self.connection.ask(lambda: database.release(epoch), lambda _: None)
        then()
