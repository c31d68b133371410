"""Lives of a site with shards that share one limit: supervisors decide, commit and exchange grants over
slow and lossy links; they are killed, frozen and replaced.

`protocol.grants` is the product's own. A supervisor is a small model of the engine: what it decides is
durable later, in order, and only what is durable starts. The checks compare what is durable and what
runs with the rows after every step.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from sim_database import Connection, Database, Route
from sim_time import BEGIN, Life, Time

from jobscribe.db.postgres.lease_protocol import LEASE_SECS, RENEW_SECS, Lease, Lost
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.grants import Answer, Holder, Row, Rows, Step, Table, Tell, Use, Write, part

LIMIT = "slots.local_sequential"
#: Numbers of shards, and of supervisors that serve at once; each as likely.
NUMBERS = (2, 3, 4, 5, 5)
#: As in supervisor/runs/site_grants.py.
LOOK_SECS, READ_SECS, ANSWER_SECS = 0.25, 0.5, 2.0
#: Interval in which a supervisor looks for ended runs; and the longest run.
TICK_SECS, RUN_SECS = 0.05, 4.0
#: A shard has its part this long after the end of the longest run: the lender reads the row of the
#: borrower, lowers its own, and the borrower looks again; and the time of messages.
EXCHANGE_SECS = 1.5
#: Time of faults, and of the calm phase after them.
WILD_SECS, CALM_SECS = 40.0, 30.0
FAULTS = {
    "a message to the database was lost": 0.03,
    "an answer of the database was lost": 0.03,
    "a message to the database was late": 0.05,
}
COINCIDENCES = (
    *FAULTS,
    "a supervisor was killed",
    "a supervisor was frozen",
    "another supervisor took over",
    "a write was fenced",
    "a commit was fenced",
    "a write came too late",
    "a shard used more than its part",
    "a shard waited for its part",
)


class Violation(AssertionError):
    """A guarantee was broken."""


class GrantRows:
    """The table of grants. Each method is one atomic statement, as in db/postgres/site_tables/statements.py."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.turn = 0
        self.rows: dict[str, dict[int, tuple[Row, float]]] = {}

    def read(self) -> Table:
        now = self._now()
        found = {
            name: {n: row._replace(age=now - at) for n, (row, at) in rows.items()}
            for name, rows in self.rows.items()
        }
        return Table(self.turn, found)

    def write(self, step: Write, shard: int, lease: Database, epoch: int) -> bool:
        if lease.epoch != epoch or lease.released or self.turn != step.turn:
            return False
        self.turn += 1
        for name, row in step.rows.items():
            self.rows.setdefault(name, {})[shard] = (row, self._now())
        return True

    def of(self, name: str) -> Rows:
        return {n: row for n, (row, _) in self.rows.get(name, {}).items()}


class Group:
    """A commit: runs that start, and runs that have ended."""

    def __init__(self, starts: list[int], ends: list[int]) -> None:
        self.starts, self.ends = starts, ends


class ShardLog:
    """One shard: its log and lease, its users' runs, and its supervisors."""

    def __init__(self, sim: "Grants", number: int) -> None:
        self.sim, self.number = sim, number
        self.lease = Database(lambda: sim.time.now, MemoryStore(lambda call: call()))
        #: runs that the log says are placed, and groups in the log
        self.placed: set[int] = set()
        self.groups: set[Group] = set()
        #: runs that have ended by themselves, at which the agent reports them; and that wait
        self.ends_at: dict[int, float] = {}
        self.waiting: list[int] = []
        self.supervisors: list[Supervisor] = []

    @property
    def running(self) -> int:
        """Return how many runs run."""
        return sum(at > self.sim.time.now for at in self.ends_at.values())

    def commit(self, epoch: int, group: Group) -> bool:
        if epoch != self.lease.epoch or self.lease.released:
            self.sim.time.saw("a commit was fenced")
            return False
        self.lease.renew(epoch)
        self.groups.add(group)
        self.placed.update(group.starts)
        self.placed.difference_update(group.ends)
        self.waiting = [run for run in self.waiting if run not in self.placed]
        for run in group.ends:
            del self.ends_at[run]
        self.sim.check(self)
        return True


class Supervisor:
    """One process of a shard: takes the lease, then decides, commits and exchanges."""

    def __init__(self, log: ShardLog) -> None:
        self.log, self.time = log, log.sim.time
        self.life = Life(self.time)
        self.name = f"{log.number}/{len(log.supervisors)}"
        log.supervisors.append(self)
        self.commits = Connection(self.time, self.life, log.sim.routes[log.number])
        self.grants = Connection(self.time, self.life, log.sim.routes[log.number + log.sim.total])
        self.epoch = 0
        self.holder = Holder(log.number, log.sim.total, {LIMIT: log.sim.capacity})
        self.limit = 0
        #: decided: placed or about to be. pending: groups and answers behind them, in order
        self.decided: set[int] = set()
        self.pending: list[Group | Callable[[], None]] = []
        self.committing = False
        #: is to be frozen just before it sends something about grants
        self.freezes = False
        self.life.after(0.0, self._take)

    # ---- the lease

    def _take(self) -> None:
        def taken(lease: Any) -> None:
            if not isinstance(lease, Lease):
                self.life.after(RENEW_SECS * self.time.random.random(), self._reconnect_and_take)
                return
            if self.log.lease.epoch > 1:
                self.time.saw("another supervisor took over")
            self.epoch = lease.epoch
            self._fold()
            self._tick()
            self._exchange_later(0.0)
            self._renew()

        self.commits.ask(lambda: self.log.lease.take(self.name), taken)

    def _reconnect_and_take(self) -> None:
        self.commits.connect(
            lambda result: (
                self.life.after(0.2, self._reconnect_and_take)
                if isinstance(result, Lost)
                else self._take()
            )
        )

    def _renew(self) -> None:
        if not self.committing:
            epoch = self.epoch
            self.commits.ask(lambda: self.log.lease.renew(epoch), self._renewed)
        self.life.after(RENEW_SECS, self._renew)

    def _renewed(self, kept: Any) -> None:
        if kept is False:
            self.end()
        elif isinstance(kept, Lost) and not self.committing:
            self.committing = True
            self._take_again(None)

    def end(self) -> None:
        if not self.life.over:
            self.life.end()
            self.log.sim.replace(self.log)

    def _fold(self) -> None:
        self.decided, self.pending = set(self.log.placed), []
        self._launch(sorted(self.log.placed))

    # ---- decisions and commits

    def _tick(self) -> None:
        now = self.time.now
        ends = [run for run in sorted(self.decided) if self.log.ends_at.get(run, now + 1) <= now]
        self.decided.difference_update(ends)
        starts = []
        for run in self.log.waiting:
            if len(self.decided) >= self.limit:
                break
            if run not in self.decided and run not in self.log.ends_at:
                starts.append(run)
                self.decided.add(run)
        if starts or ends:
            self.pending.append(Group(starts, ends))
            self._advance()
        self.life.after(TICK_SECS, self._tick)

    def _advance(self) -> None:
        while self.pending and not self.committing:
            first = self.pending[0]
            if not isinstance(first, Group):
                self.pending.pop(0)
                first()
                continue
            self.committing = True
            epoch = self.epoch
            self.commits.ask(lambda: self.log.commit(epoch, first), self._committed)

    def _committed(self, done: Any) -> None:
        group = self.pending[0]
        assert isinstance(group, Group)
        if done is False:
            self.end()
        elif isinstance(done, Lost):
            self._take_again(group)
        else:
            self._durable(group)

    def _take_again(self, group: Group | None) -> None:
        """Connect again and take the next epoch: then the outcome of the lost commit is known."""

        def taken(lease: Any) -> None:
            if lease is None:
                self.end()
            elif isinstance(lease, Lost):
                self.life.after(0.2, lambda: self._take_again(group))
            else:
                self.epoch, self.committing = lease.epoch, False
                if group is None or group in self.log.groups:
                    if group is not None:
                        self._durable(group)
                else:
                    self._fold()  # answers behind it are never given

        def connected(result: Any) -> None:
            if isinstance(result, Lost):
                self.life.after(0.2, lambda: self._take_again(group))
            else:
                self.commits.ask(lambda: self.log.lease.take_again(self.name), taken)

        self.commits.connect(connected)

    def _durable(self, group: Group) -> None:
        self.committing = False
        self.pending.pop(0)
        self._launch(group.starts)
        self._advance()

    def _launch(self, runs: list[int]) -> None:
        """Start runs that are durable. A token starts once."""
        for run in runs:
            if run in self.log.placed and run not in self.log.ends_at:
                secs = self.time.random.choice((0.3, 1.0, RUN_SECS)) * self.time.random.random()
                self.log.ends_at[run] = self.time.now + secs

    # ---- grants

    def _use(self) -> dict[str, Use]:
        waiting = sum(run not in self.decided for run in self.log.waiting)
        return {LIMIT: Use(len(self.decided), len(self.decided) + waiting)}

    def _exchange_later(self, secs: float) -> None:
        self.life.after(secs, lambda: self._step(self.holder.turn(), None, self.time.now))

    def _step(self, steps: Any, answer: Answer, begun: float) -> None:
        try:
            step: Step = steps.send(answer)
        except StopIteration:
            self._look(begun)
            return
        once = [True]

        def answered(answer: Any) -> None:
            if once:
                once.clear()
                self._step(steps, None if isinstance(answer, Lost) else answer, begun)

        match step:
            case Tell(limits=limits):
                self.limit = limits[LIMIT]
                use = self._use()
                self.pending.append(lambda: answered(use))
                self.life.after(ANSWER_SECS, lambda: answered(None))
                self._advance()
            case Write():
                self._asked(lambda: self._write(step), answered)
            case _:
                self._asked(self.log.sim.table.read, answered)

    def _write(self, step: Write) -> bool:
        # the epoch is that of the sender, which may have been replaced since
        return self.log.sim.write(step, self.log, self._sent_epoch)

    def _asked(self, act: Callable[[], Any], answered: Callable[[Any], None]) -> None:
        sim, epoch = self.log.sim, self.epoch
        if not self.grants.open:
            self.grants.connect(lambda result: answered(Lost()))
            return

        def acted() -> Any:
            self._sent_epoch = epoch
            return act()

        if self.freezes:
            self.freezes = False
            sim.freeze(self)
        self.life.meet(lambda: self.grants.ask(acted, answered))

    def _look(self, begun: float) -> None:
        def look() -> None:
            if self.holder.is_due(self._use()) or self.time.now - begun >= READ_SECS:
                self._exchange_later(0.0)
            else:
                self._look(begun)

        self.life.after(LOOK_SECS, look)


class Grants:
    """A site with shards. seed: of all that happens."""

    def __init__(self, seed: int) -> None:
        self.time = Time(seed)
        r = self.time.random
        self.total = r.choice(NUMBERS)
        self.capacity = r.choice((self.total, 5, 8, 13))
        self.table = GrantRows(lambda: self.time.now)
        #: of commits, then of grants
        self.routes = [Route() for _ in range(2 * self.total)]
        self.logs = [ShardLog(self, n) for n in range(self.total)]
        self.time.rates |= {name: rate * r.random() * 2 for name, rate in FAULTS.items()}
        self._runs = 0
        #: seconds for which a shard has had less than its part, in the calm phase
        self._short_since: dict[int, float] = {}

    # ---- the checks

    def write(self, step: Write, log: ShardLog, epoch: int) -> bool:
        written = self.table.write(step, log.number, log.lease, epoch)
        if not written:
            late = self.table.turn != step.turn
            self.time.saw("a write came too late" if late else "a write was fenced")
        self.check(*self.logs)
        return written

    def check(self, *logs: ShardLog) -> None:
        rows = self.table.of(LIMIT)
        total = sum(row.granted for row in rows.values())
        if total > self.capacity:
            raise Violation(f"{total} of {self.capacity} are granted: {rows}")
        if sum(each.running for each in self.logs) > self.capacity:
            raise Violation("more runs than the site may run")
        for log in logs:
            granted = rows[log.number].granted if log.number in rows else 0
            if len(log.placed) > granted:
                raise Violation(f"shard {log.number} has placed {len(log.placed)} of {granted}")
            if granted > part(self.capacity, log.number, self.total):
                self.time.saw("a shard used more than its part")

    def _check_fairness(self) -> None:
        """A shard that wants its part has it one run and one exchange later; and nothing is idle while
        somebody waits.
        """
        for log in self.logs:
            own = part(self.capacity, log.number, self.total)
            wants = len(log.placed) + len(log.waiting)
            if len(log.placed) >= min(own, wants) or self.time.now < self._calm_at:
                self._short_since.pop(log.number, None)
                continue
            since = self._short_since.setdefault(log.number, self.time.now)
            self.time.saw("a shard waited for its part")
            if self.time.now - since > RUN_SECS + EXCHANGE_SECS:
                raise Violation(
                    f"shard {log.number} runs {len(log.placed)} of {own} for {self.time.now - since:.1f} s"
                )

    # ---- what happens

    def replace(self, log: ShardLog) -> None:
        if all(s.life.over or s.life.frozen for s in log.supervisors):
            self.time.after(self.time.random.random(), lambda: self._start(log))

    def _start(self, log: ShardLog) -> None:
        if all(s.life.over or s.life.frozen for s in log.supervisors):
            Supervisor(log)

    def _submit(self) -> None:
        """Users submit in bursts, so that the load moves between shards."""
        r = self.time.random
        log = r.choice(self.logs)
        count = r.choice((1, 2, 3 * self.capacity)) if len(log.waiting) < 40 else 0
        for _ in range(count):
            self._runs += 1
            log.waiting.append(self._runs)
        self.time.after(r.expovariate(2.0), self._submit)

    def _disaster(self) -> None:
        r = self.time.random
        if self.time.calm:
            return
        log = r.choice(self.logs)
        there = [s for s in log.supervisors if s.life.awake]
        if there:
            victim = r.choice(there)
            if r.random() < 0.5:
                self.time.saw("a supervisor was killed")
                victim.end()
            else:
                victim.freezes = r.random() < 0.7
                if not victim.freezes:
                    self.freeze(victim)
        route = r.choice(self.routes)
        route.secs = r.choice((0.0005, 0.05, 0.3))
        self.time.after(r.expovariate(0.3), self._disaster)

    def freeze(self, supervisor: Supervisor) -> None:
        if self.time.calm:
            return
        self.time.saw("a supervisor was frozen")
        supervisor.life.freeze()
        self.time.after(self.time.random.random() * 4 * LEASE_SECS, supervisor.life.thaw)
        self.replace(supervisor.log)

    def _calm(self) -> None:
        self.time.calm = True
        for route in self.routes:
            route.mend()
        for log in self.logs:
            for supervisor in log.supervisors:
                supervisor.life.thaw()
        #: earlier runs, leases and lost messages are over by then
        self._calm_at = self.time.now + LEASE_SECS + 2 * RUN_SECS + 4.0

    def run(self) -> Counter[str]:
        """Live, and return what happened. Raises Violation."""
        self._calm_at = float("inf")
        for log in self.logs:
            Supervisor(log)
        self._submit()
        self.time.after(1.0, self._disaster)
        self.time.after(WILD_SECS, self._calm)
        while self.time.now < BEGIN + WILD_SECS + CALM_SECS:
            self.time.step()
            self.check(*self.logs)
            self._check_fairness()
        for log in self.logs:
            if all(s.life.over for s in log.supervisors):
                raise Violation(f"nobody serves shard {log.number}")
        return self.time.happened


def run(seed: int) -> Counter[str]:
    return Grants(seed).run()
