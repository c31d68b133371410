"""Lives with several supervisors of one site: they share a database, one has the lease and serves, and
the others stand by.

`LeaseDeadline` and `lease_protocol` are the product's own. The checks compare what each supervisor
does with the row of the lease, and the statuses that clients are told with earlier ones.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sim_database import Connection, Database, Route
from sim_supervisor import Killed
from sim_writer import LeasedStore, Writer, perform

from jobscribe.db.postgres.lease_protocol import (
    LEASE_SECS,
    MARGIN_SECS,
    Lease,
    Lost,
    Take,
    take,
)
from jobscribe.db.store.group_commit import CommitGroup
from jobscribe.db.store.head_file import DurablePosition
from jobscribe.protocol.errors import Refusal
from jobscribe.runtime.lease_deadline import CHECK_SECS, LeaseDeadline

if TYPE_CHECKING:
    from sim_supervisor import Supervisor
    from simulator import Simulator

#: Interval of the looks of a standby, as in supervisor/standby/lookout.py.
LOOK_SECS = 0.5
#: Checks of a deadline are left out for up to this time, because the machine may be suspended.
LONGEST_SECS = 1.0
#: An agent on the machine of the supervisors follows the root to the next one within this time.
FOLLOW_SECS = 2.0
#: A takeover takes up to this time, in the steady state.
FAILOVER_SECS = 7.0
#: Additional time for the queues in the calm phase: with takeovers, less is done during the faults.
QUEUE_SECS = 200.0
#: Questions of clients for a status in a life, and after each disaster.
LOOKS = 20
#: Seeds of lives with several supervisors, modulo 11: those of no planted bug in test_planted_bugs.
SEEDS, MODULO = (9, 10), 11
#: Numbers of supervisors in these lives, each as likely.
NUMBERS = (2, 3, 4, 5, 5)
#: Faults of single messages, besides those of `sim_faults`: probability per message.
SHARES = {
    "a message to the database was lost": 0.02,
    "an answer of the database was lost": 0.02,
    "a message to the database was late": 0.02,
    "a standby was frozen while it took the lease": 0.05,
}
DISASTERS: dict[str, float] = {
    "the holder was frozen until its lease had ended": 8,
    "the holder was frozen for a moment": 2,
    "the holder was cut off from the database": 4,
    "the holder was cut off while an answer was late": 6,
    "all supervisors were cut off from the database": 2,
    "the database was slow": 3,
    "the holder was killed": 4,
    "a standby was killed": 2,
    "a standby was frozen": 3,
    "the holder was told to stop": 2,
}
COINCIDENCES = (
    *SHARES,
    *DISASTERS,
    "another supervisor took over",
    "a lease was taken before its end, for its holder was dead",
    "a lease was taken after its end",
    "a supervisor ended, for its lease had ended",
    "a commit was fenced",
    "a connection was lost during a commit that is in the log",
    "a connection was lost during a commit that is not in the log",
    "an earlier holder was asked for a status",
    "a status was told again",
)


def wanted(seed: int) -> bool:
    return seed % MODULO in SEEDS


class Site:
    """The supervisors of a life and their lease."""

    def __init__(self, sim: "Simulator", supervisors: "list[Supervisor]") -> None:
        self.sim, self.time, self.supervisors = sim, sim.time, supervisors
        r = self.time.random
        #: seconds for which the machine of the supervisors was suspended, beside the database
        self.suspended = 0.0
        self.database = Database(lambda: self.time.now + self.suspended, supervisors[0].store)
        #: a standby sees at once that the process of the holder has ended
        self.sees_ends = r.random() < 0.5
        self.rates = {s: r.uniform(0.95, 1.05) for s in supervisors}
        self.routes = {s: Route() for s in supervisors}
        self.time.rates |= {
            name: rate * 10 ** (r.random() - 0.6)
            for name, rate in SHARES.items()
            if r.random() < 0.6
        }
        self.sessions = self._processes = 0
        #: the running code is that of this supervisor
        self.acting: Supervisor | None = None
        #: holders that are to be frozen: at which point, and for how long
        self._freezes: dict[Supervisor, tuple[str, float]] = {}
        #: processes that have ended, by name, with their boot
        self._ended: dict[str, str] = {}
        #: position of the last status that a client was told, by computeJid
        self.told: dict[str, int] = {}

    # ---- processes

    def begins(self, supervisor: "Supervisor") -> None:
        """A process begins, and stands by."""
        self._processes += 1
        supervisor.name = f"supervisor {self._processes}"
        rate = self.rates[supervisor]
        supervisor.deadline = LeaseDeadline(
            LEASE_SECS,
            MARGIN_SECS,
            lambda late: self._lease_ended(supervisor),
            lambda: (self.time.now + self.suspended) * rate,
        )
        connection = Connection(self.time, supervisor.life, self.routes[supervisor])
        self._look_later(supervisor, connection, self.time.random.random() * LOOK_SECS)

    def ends(self, supervisor: "Supervisor") -> None:
        self._ended[supervisor.name] = self.sim.machine.home.boot_id

    def _lease_ended(self, supervisor: "Supervisor") -> None:
        self.time.saw("a supervisor ended, for its lease had ended")
        raise Killed

    def _watch(self, supervisor: "Supervisor") -> None:
        """Check the deadline as a thread of the process does, within CHECK_SECS after it and after a
        thaw. Checks before the deadline have no effect, and are left out.
        """
        life, deadline = supervisor.life, supervisor.deadline
        assert deadline is not None

        def check() -> None:
            if life.over:
                return
            secs = CHECK_SECS
            if not life.frozen:
                supervisor.guarded(deadline.check)
                secs = max(secs, min(deadline.left / self.rates[supervisor], LONGEST_SECS))
            self.time.after(secs, check)

        self.time.after(CHECK_SECS * self.time.random.random(), check)

    # ---- standing by

    def _look_later(self, s: "Supervisor", connection: Connection, secs: float) -> None:
        s.life.after(secs, lambda: s.guarded(lambda: self._look(s, connection)))

    def _look(self, s: "Supervisor", connection: Connection) -> None:
        again = lambda: self._look_later(s, connection, LOOK_SECS)
        database = self.database

        def looked(seen: Any) -> None:
            if isinstance(seen, Lost):
                again()
                return
            free, holder = seen
            dead = holder if self._has_ended(holder) else None
            if not free and dead is None:
                again()
                return
            perform(
                take(s.deadline),
                lambda step, go: self._take(step, go, s, connection, dead),
                lambda taken: s.serve(taken, connection) if isinstance(taken, Lease) else again(),
            )

        idle = not database.free and not self._has_ended(database.holder)
        if idle and connection.open and not self.routes[s].cut:
            again()  # nothing would follow
            return
        if not connection.open:
            connection.connect(lambda _: s.guarded(again))
            return
        connection.ask(
            lambda: (database.free, database.holder), lambda seen: s.guarded(lambda: looked(seen))
        )

    def _take(
        self,
        step: Any,
        go: Callable[[Any], None],
        s: "Supervisor",
        connection: Connection,
        dead: str | None,
    ) -> None:
        assert isinstance(step, Take)
        database = self.database

        def act() -> Lease | None:
            free, before = database.free, database.holder
            taken = database.take(s.name, dead)
            if self.time.strikes("a standby was frozen while it took the lease"):
                s.freeze(20.0 * self.time.random.random())
            if taken is not None and before:
                if before == s.name:
                    self.time.saw("a supervisor took its own lease again")
                elif not free:
                    self.time.saw("a lease was taken before its end, for its holder was dead")
                elif not database.released:
                    self.time.saw("a lease was taken after its end")
            return taken

        connection.ask(act, lambda taken: s.guarded(lambda: go(taken)))

    def _has_ended(self, holder: str) -> bool:
        """Return whether a standby knows that this process has ended: it sees processes of this boot."""
        return self.sees_ends and self._ended.get(holder) == self.sim.machine.home.boot_id

    # ---- serving

    def serves(self, s: "Supervisor", taken: Lease, connection: Connection) -> None:
        """Make this supervisor the one that serves; the agents and clients of the last one follow."""
        sim, last = self.sim, self.sim.serving
        s.fence("wrote its address to the root")
        self.sessions += 1
        s.sessions = self.sessions
        inner = self.database.tables.another(s.deliver, s.point)
        s.store = store = LeasedStore(inner)
        store.writer = s.writer = Writer(s, inner, self.database, connection, taken)
        self._watch(s)
        sim.serving = s
        if last is not s and last.sessions:
            self.time.saw("another supervisor took over")
            sim.clients.calls.clear()
            sim.sign_ins.forget()
        r = self.time.random
        for other in self.supervisors:
            for link in list(other.sockets.values()) if other is not s else ():
                # the root names the new one, or the agent's pings are not answered
                late = FOLLOW_SECS * r.random() if r.random() < 0.8 else r.uniform(10.0, 30.0)
                link.agent.life.after(late, link.agent_gives_up)

    def connect(self, agent: Any) -> Any:
        """Connect an agent to the supervisor that serves, sometimes to an earlier one."""
        earlier = [s for s in self.supervisors if s.serving and s is not self.sim.serving]
        if earlier and self.time.random.random() < 0.2:
            return self.time.random.choice(earlier).connect(agent)
        return self.sim.serving.connect(agent)

    # ---- checks

    def did(self, s: "Supervisor", what: str) -> None:
        """Check an answer or an action of a supervisor against the lease."""
        if self.database.holder != s.name:
            self.sim.broken(f"{s.name} {what}, and {self.database.holder} has the lease")

    def commit(
        self, s: "Supervisor", epoch: int, head: DurablePosition, group: CommitGroup
    ) -> bool:
        """Commit in the database. Every commit that it accepts is by the holder."""
        done = self.database.commit(epoch, head, group)
        if done and self.database.epoch != epoch:
            self.sim.broken(
                f"{s.name} wrote to the log in epoch {epoch}, and {self.database.holder} has"
                f" epoch {self.database.epoch}"
            )
        if done:
            self.at(s, "committed")
        else:
            self.time.saw("a commit was fenced")
        return done

    def look_up(self) -> None:
        """Let a client ask for the status of a job, perhaps at the address of an earlier holder."""
        r, clients = self.time.random, self.sim.clients
        known = [a for a in clients.runs if a.serial is not None]
        serving = [s for s in self.supervisors if s.serving]
        if not known or not serving:
            return
        target = r.choice(serving)
        if target is not self.sim.serving:
            self.time.saw("an earlier holder was asked for a status")
        jid = r.choice(known).jid
        serial = max(a.serial or 0 for a in known if a.jid == jid)
        before = self.told.get(jid, 0)
        target.life.meet(
            lambda: target.guarded(lambda: self._looked_up(target, jid, serial, before))
        )

    def _looked_up(self, s: "Supervisor", jid: str, serial: int, before: int) -> None:
        """Answer. serial, before: what clients had been told when the request was sent."""
        try:
            entry = s.engine.durable(jid)
        except Refusal:
            return
        if not s.answers():
            return
        run = None if entry is None else entry.job.run
        if entry is None or run is None or run.serial < serial or entry.position < before:
            self.sim.broken(
                f"{s.name} tells that {jid} is {entry}; serial {serial} and position {before} were told before"
            )
            return
        if before:
            self.time.saw("a status was told again")
        if (jid, run.serial) in self.sim.clients.canceled and run.status in ("pending", "running"):
            self.sim.broken(f"{s.name} tells that {jid} is {run.status} after its cancel")
        self.told[jid] = max(self.told.get(jid, 0), entry.position)

    # ---- disasters

    def plan(self, secs: float) -> None:
        """Plan the disasters and the questions of clients of a life."""
        r = self.time.random
        names, weights = list(DISASTERS), list(DISASTERS.values())
        for _ in range(r.choice((2, 5, 10))):
            what = r.choices(names, weights)[0]
            self.time.after(r.random() * secs, lambda what=what: self._strike(what))
        for _ in range(LOOKS):
            self.time.after(r.random() * secs, self.look_up)

    def _strike(self, what: str) -> None:
        if self.time.calm:
            return
        r, time, holder = self.time.random, self.time, self.sim.serving
        standbys = [s for s in self.supervisors if not s.life.over and not s.serving]
        match what:
            case "the holder was frozen until its lease had ended" if holder.awake:
                self._freeze(holder, r.uniform(LEASE_SECS, 20.0))
            case "the holder was frozen for a moment" if holder.awake:
                holder.freeze(r.uniform(0.0, LEASE_SECS))
            case "the holder was cut off from the database" if holder.awake:
                self._cut([holder], r.uniform(0.5, 20.0))
            case "the holder was cut off while an answer was late" if holder.awake:
                self.routes[holder].late, holder.commit_secs = 4.0, 0.5
                self.time.after(r.uniform(2.0, 8.0), lambda: self._cut([holder], 15.0))
            case "all supervisors were cut off from the database":
                self._cut(self.supervisors, r.uniform(0.5, 15.0))
            case "the database was slow":
                self.slow(r.choice((0.1, 0.5, 1.5)), 15.0 * r.random())
            case "the holder was killed" if holder.awake:
                holder.crash()
            case "a standby was killed" if standbys:
                r.choice(standbys).crash()
            case "a standby was frozen" if standbys:
                r.choice(standbys).freeze(20.0 * r.random())
            case "the holder was told to stop" if holder.awake:
                holder.stop()
            case _:
                return
        time.saw(what)
        for _ in range(LOOKS):
            time.after(r.random() * 20.0, self.look_up)

    def _freeze(self, holder: "Supervisor", secs: float) -> None:
        """Freeze the holder: now; or after its next commit, before its answer or before what follows;
        or without one after a while.
        """
        point = self.time.random.choice(("now", "committed", "answered", "answered"))
        self._freezes[holder] = point, secs
        self.time.after(0.0 if point == "now" else 3.0, lambda: self.at(holder, point))

    def at(self, holder: "Supervisor", point: str) -> None:
        """Freeze the holder if that is planned for this point."""
        planned = self._freezes.get(holder)
        if planned is not None and planned[0] == point:
            del self._freezes[holder]
            if holder.awake and not self.time.calm:
                holder.freeze(planned[1])

    def _cut(self, some: "list[Supervisor]", secs: float) -> None:
        for s in () if self.time.calm else some:
            self.routes[s].cut, s.commit_secs = True, 0.5
        self.time.after(secs, lambda: self._heal(some))

    def slow(self, mean: float, secs: float) -> None:
        for s in self.supervisors:
            self.routes[s].secs, s.commit_secs = mean, 0.5
        self.time.after(secs, lambda: self._heal(self.supervisors))

    def _heal(self, some: "list[Supervisor]") -> None:
        for s in some:
            self.routes[s].mend()
            s.commit_secs, s.well_since = 0.002, self.time.now

    def mend(self) -> None:
        self._heal(self.supervisors)
