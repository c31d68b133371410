"""The database of a site with several supervisors: the tables, the row of the lease, and connections
that are slow, cut or lost.

`Database` behaves like db/postgres/lease.py on PostgreSQL; tests/contracts/test_lease.py compares
them.
"""

from collections.abc import Callable
from typing import Any

from sim_time import Action, Life, Time

from jobscribe.db.postgres.lease_protocol import (
    LEASE_SECS,
    Lease,
    Lost,
    may_take,
    may_take_again,
)
from jobscribe.db.store.checksum_chain import START
from jobscribe.db.store.group_commit import CommitGroup
from jobscribe.db.store.head_file import DurablePosition
from jobscribe.db.store.memory_store import MemoryStore

#: Mean time of a message in one direction, usually, in seconds.
MESSAGE_SECS = 0.0005
#: Maximum time until the end of a lost connection is noticed, in seconds.
NOTICE_SECS = 4.0


class Database:
    """The simulated database, which survives all supervisors. Each method is one atomic statement."""

    def __init__(self, now: Callable[[], float], tables: MemoryStore) -> None:
        """now: its own clock."""
        self.now, self.tables = now, tables
        self.epoch, self.holder = 0, ""
        self.released, self.expires = True, 0.0

    @property
    def head(self) -> DurablePosition:
        rows = self.tables._rows
        return DurablePosition(len(rows), rows[-1].checksum if rows else START)

    @property
    def free(self) -> bool:
        return self.released or self.expires <= self.now()

    def take(self, by: str, dead: str | None = None) -> Lease | None:
        expired = self.expires <= self.now()
        if not may_take(
            by, self.holder, released=self.released, expired=expired, gone=False, dead=dead
        ):
            return None
        return self._next(by)

    def take_again(self, by: str) -> Lease | None:
        mine = may_take_again(by, self.holder, released=self.released)
        return self._next(by) if mine else None

    def _next(self, by: str) -> Lease:
        self.epoch, self.holder, self.released = self.epoch + 1, by, False
        self.expires = self.now() + LEASE_SECS
        return Lease(self.epoch, self.head)

    def renew(self, epoch: int) -> bool:
        if epoch != self.epoch:
            return False
        self.expires = self.now() + LEASE_SECS
        return True

    def release(self, epoch: int) -> None:
        if epoch == self.epoch:
            self.released = True

    def may_commit(self, epoch: int, head: DurablePosition) -> bool:
        """Return what the fence of a commit decides (`FENCE`)."""
        return epoch == self.epoch and head == self.head

    def commit(self, epoch: int, head: DurablePosition, group: CommitGroup) -> bool:
        """Commit the group, or return False: it is fenced."""
        if not self.may_commit(epoch, head):
            return False
        self.expires = self.now() + LEASE_SECS
        self.tables._keep(group)
        self.tables._merge_periods(group)
        return True

    def has(self, group: CommitGroup) -> bool:
        rows = self.tables._rows
        if not group.rows:
            r = group.receipts[-1]
            return self.tables._receipts.get((r.uid, r.req_id)) == r
        last = group.rows[-1]
        at = last.position - 1
        return at < len(rows) and rows[at].checksum == last.checksum


class Connection:
    """A connection of one process to the database. life: of the process."""

    def __init__(self, time: Time, life: Life, route: "Route") -> None:
        self.time, self.life, self.route = time, life, route
        #: the connection works; after its loss a new one has to be made
        self.open = True

    def connect(self, answer: Callable[[Any], None]) -> None:
        def connected(result: Any) -> None:
            self.open = not isinstance(result, Lost)
            answer(result)

        self._send(lambda: True, connected)

    def ask(self, act: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        """Have the database do something; the process gets the result, or Lost."""
        if not self.open:
            self._later(0.0, lambda: answer(Lost()))
            return

        def answered(result: Any) -> None:
            self.open = self.open and not isinstance(result, Lost)
            answer(result)

        self._send(act, answered)

    def _send(self, act: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        r = self.time.random
        there, back = (r.expovariate(1 / self.route.secs) for _ in range(2))
        back += self.route.late * r.uniform(0.6, 1.0)
        ended = given_up = False
        if self.time.strikes("a message to the database was late"):
            there += r.choice((1.0, 8.0)) * r.random()
            # a lost connection does not take back what was sent
            given_up = r.random() < 0.7

        def end(result: Any) -> None:
            nonlocal ended
            if not ended:
                ended = True
                answer(result)

        def lost(within: float = NOTICE_SECS) -> None:
            self._later(within * r.random(), lambda: end(Lost()))

        def arrive() -> None:
            if self.route.cut:
                lost()
                return
            result = act()
            if self.route.cut or self.time.strikes("an answer of the database was lost"):
                lost()
            else:
                self._later(back, lambda: end(result))

        if self.route.cut or self.time.strikes("a message to the database was lost"):
            lost()
            return
        self.time.after(there, arrive)
        if given_up:
            lost(there)

    def _later(self, secs: float, action: Action) -> None:
        self.life.after(secs, action)


class Route:
    """The network between one machine's supervisor and the database."""

    def __init__(self) -> None:
        #: cut: what is sent is lost. secs: mean time of a message. late: of an answer, additionally
        self.cut, self.secs, self.late = False, MESSAGE_SECS, 0.0

    @property
    def well(self) -> bool:
        return not self.cut and self.secs == MESSAGE_SECS and not self.late

    def mend(self) -> None:
        self.cut, self.secs, self.late = False, MESSAGE_SECS, 0.0
