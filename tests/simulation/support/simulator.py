"""One seeded life of the whole system: clients, supervisor, agents and machine, with faults; then a
calm phase and the final checks.

`run(seed)` returns the events of the life and the digest of the log. It raises `Violation` with the
command that reproduces the failure.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import sim_fairness
import sim_hosts
import sim_hours
import sim_site
import sim_slurm
from sim_agent import Agent
from sim_checks import Checks
from sim_clients import Clients
from sim_crashes import strike
from sim_faults import CALM_SECS, STORM_SECS, Swarm
from sim_front_end import FrontEnd
from sim_machine import Machine
from sim_recipes import nodes
from sim_reference_model import ReferenceModel
from sim_site import Site
from sim_steady_state import SteadyState
from sim_supervisor import Supervisor
from sim_time import BEGIN, Time

from jobscribe.agent.session import state_machine
from jobscribe.db.events.state import Job
from jobscribe.protocol.wire.codec import MAX_FRAME
from jobscribe.runtime import failpoints
from jobscribe.supervisor.core.scheduling import placement
from jobscribe.supervisor.core.state.configuration import CoreConfig

#: A disaster is delayed by up to this number of steps, so that it strikes between two related
#: steps.
CLOSE_STEPS = 12


class Violation(AssertionError):
    """A guarantee was broken."""


class Lived(NamedTuple):
    happened: Counter[str]
    #: digest of the whole event log
    digest: str
    steps: int


class Simulator:
    def __init__(
        self,
        seed: int,
        trace: Callable[[str], None] | None = None,
        *,
        several: bool | None = None,
        number: int | None = None,
    ) -> None:
        """several: whether the site has several supervisors; number: of several ones. By default the
        seed says.
        """
        self.seed, self.several, self.number = seed, several, number
        self.time = Time(seed, trace)
        r = self.time.random
        self.swarm = Swarm(r)
        self.time.rates = self.swarm.shares
        what = r.random()
        hosts = sim_hosts.settings(r) if what < 0.3 else {"nodes": {"local": nodes(r)}}
        if what > 0.8:
            hosts |= sim_slurm.settings(r)
        runs = {
            "op_run_slots": {
                ("local", "sequential"): r.choice((1, 2, 3)),
                ("local", "container"): r.choice((1, 2, 3)),
            }
        } | hosts
        policy = CoreConfig(
            cpu_slots={
                ("local", "sequential"): r.choice((1, 2, 4)),
                ("local", "parallel"): r.choice((1, 2)),
            },
            agent_return_secs=1.0,
            op_reply_secs=5.0,
            agent_start_secs=r.choice((3.0, 10.0)),
            **runs,
            hold_secs=r.choice((6.0, 60.0)),
            hold_again_secs=3.0,
            debug_secs=20.0,
            ahead_secs=50.0 if seed % 2 else 0.1,
            queues=sim_fairness.SITES[seed // 2 % len(sim_fairness.SITES)],
        )
        #: small frames, pages and queues: everything arrives in pieces
        self.small = r.random() < 0.3
        self.policy = policy
        self.machine = Machine(self.time, self.broken, Agent)
        processes = 1
        if sim_site.wanted(seed) if several is None else several:
            drawn = r.choice(sim_site.NUMBERS)
            processes = number or drawn
        self.supervisors = [
            Supervisor(self.time, self.machine, policy, 640 if self.small else MAX_FRAME)
            for _ in range(processes)
        ]
        #: the supervisor that serves, or was the last one to do so
        self.serving = self.supervisors[0]
        self.site: Site | None = None if processes == 1 else Site(self, self.supervisors)
        for supervisor in self.supervisors:
            supervisor.site = self.site
            supervisor.deferral = random.Random(seed) if seed % 3 == 2 else None
        self.machine.connect = self.serving.connect if self.site is None else self.site.connect
        self.machine.slurms = sim_slurm.clusters(self)
        self.sign_ins = sim_slurm.SignIns(self)
        self.hosts = sim_hosts.Hosts(self)
        self.fairness = sim_fairness.FairnessChecks(self)
        self.clients = Clients(self)
        self.ledger = ReferenceModel(self)
        self.machine.on_spawn = self.ledger.spawned
        self.checks = Checks(self)
        self.seen: set[object] = set()
        self.front_end = FrontEnd(self)
        for supervisor in self.supervisors:
            supervisor.on_decision, supervisor.on_start = self._decided, self.hosts.tell_all
            supervisor.driver.sign_ins = self.sign_ins
            supervisor.driver.on_dismissal = self.hosts.dismissed
            supervisor.on_engine = self.front_end.follow
            supervisor.on_projected = self._projected
            supervisor.on_removed = self._removed
            # waiting callers are disconnected
            supervisor.on_death = self.clients.calls.clear

    @property
    def supervisor(self) -> Supervisor:
        return self.serving

    def reached(self, point: str) -> None:
        """Pass a crash point to the supervisor whose code runs."""
        supervisor = self.serving if self.site is None else self.site.acting
        assert supervisor is not None
        supervisor.reached(point)

    def run(self) -> Lived:
        r = self.time.random
        for supervisor in self.supervisors:
            supervisor.start()
        busy = STORM_SECS * 0.8
        for many, act in (
            (r.randint(4, 40), self.clients.submit),
            (r.choice((0, 0, 1, 3)), self.clients.submit_many),
            (r.randint(0, 15), self.clients.cancel_one),
            (r.choice((0, 0, 1, 2)), self.clients.submit_array),
            (r.choice((0, 0, 1, 2)), self.clients.submit_chain),
            (r.choice((0, 0, 5)), self.clients.release_one),
            (r.choice((0, 0, 4, 20)), self._stranger),
            (r.choice((0, 2, 10)), self.clients.call),
            (r.choice((0, 0, 3)), self.clients.begin_session),
            (r.choice((0, 0, 6)), self.clients.purge_one),
            (r.choice((0, 1, 4)), self.hosts.outage),
            (r.choice((0, 0, 1)), self.hosts.blackout),
            (r.choice((0, 3, 10)), lambda: sim_slurm.trouble(self.time, self.machine.slurms)),
        ):
            for _ in range(many):
                self.time.after(r.random() * busy, act)
        if self.site is not None:
            self.site.plan(busy)
        sim_hours.months(self, STORM_SECS)
        for at, what in self.swarm.plan(r, STORM_SECS):
            self.time.after(at, lambda what=what: self._soon(r.randint(0, CLOSE_STEPS), what))
        self._until(BEGIN + STORM_SECS)
        self._calm()
        more = 0.0 if self.site is None else sim_site.QUEUE_SECS
        self._until(BEGIN + STORM_SECS + CALM_SECS + more)
        self.ledger.advance()
        self.checks.reckon()
        self.ledger.reckon()
        sim_hours.reckon(self)
        rows = self.supervisor.store._rows
        return Lived(self.time.happened, rows[-1].checksum.hex() if rows else "", self.time.steps)

    def _decided(self) -> None:
        self.hosts.decided()
        self.fairness.decided()

    def _projected(self, job: Job) -> None:
        self.front_end.projected(job)
        self.checks.projected(job)

    def _stranger(self) -> None:
        """Let another process listen on one of the task ports for a while."""
        r = self.time.random
        node = r.choice(self.policy.nodes["local"])
        host, port = self.machine.host(node.host), r.randint(node.first_port, node.last_port)
        if self.time.calm or self.machine.busy_ports(node.host, (port,)):
            return
        host.strangers.add(port)
        self.time.saw("a stranger listened on a port")
        self.time.after(r.choice((0.5, 10.0, 60.0)), lambda: host.strangers.discard(port))

    def _until(self, at: float) -> None:
        time, check, account = self.time, self.checks.step, self.ledger.step
        compare = self.front_end.step
        while time.next_at() <= at:
            time.step()
            account()
            check()
            compare()
        time.now = at

    def _soon(self, steps: int, what: str) -> None:
        if steps and not self.time.calm:
            self.time.after(
                self.time.next_at() - self.time.now + 1e-9, lambda: self._soon(steps - 1, what)
            )
        elif not self.time.calm:
            strike(self, what)

    def _calm(self) -> None:
        """Stop all faults. Later, in the steady state, every reaction must be prompt."""
        self.time.calm = True
        self.checks.calm_since = self.time.now
        for supervisor in self.supervisors:
            supervisor.armed = None
            supervisor.faults.mend()
            supervisor.commit_secs = 0.002
        if self.site is not None:
            self.site.mend()
        self.hosts.mend()
        self.sign_ins.mend()
        for slurm in self.machine.slurms.values():
            slurm.mend()
        for keeper in self.machine.keepers.values():
            keeper.armed = None
        SteadyState(self).begin()

    def _removed(self, jid: str, serial: int) -> None:
        self.time.saw("a run directory was purged")
        if self.machine.of_job(jid):
            self.broken(f"the run directory of {jid}/{serial} was removed while it runs")

    def broken(self, sentence: str) -> None:
        raise Violation(
            f"{sentence}\nat {self.time.now - BEGIN:.3f} s, step {self.time.steps}; to see it again: {command(self.seed, self.several, self.number)}"
        )


def command(seed: int, several: bool | None = None, number: int | None = None) -> str:
    more = "" if several is None else " --supervisors " + ("several" if several else "one")
    more += "" if number is None else f" --number {number}"
    return f".venv/bin/python tests/simulation/support/run_seeds.py --seed {seed}{more} --trace"


def run(
    seed: int,
    trace: Callable[[str], None] | None = None,
    *,
    several: bool | None = None,
    number: int | None = None,
) -> Lived:
    """Run one life; raise Violation if a guarantee is broken."""
    sim = Simulator(seed, trace, several=several, number=number)
    reached, page, asking = failpoints.reached, state_machine.SNAPSHOT_PAGE, placement.ASKING
    hours = placement.HOURS_SECS
    failpoints.reached, placement.HOURS_SECS = sim.reached, sim_hours.LOOK_SECS
    if sim.small:
        state_machine.SNAPSHOT_PAGE, placement.ASKING = 2, 3
    try:
        return sim.run()
    except Violation:
        raise
    except Exception as e:
        raise Violation(
            f"{type(e).__name__}: {e}\nto see it again: {command(seed, several, number)}"
        ) from e
    finally:
        failpoints.reached, state_machine.SNAPSHOT_PAGE, placement.ASKING = reached, page, asking
        placement.HOURS_SECS = hours


if __name__ == "__main__":
    sys.exit("run tests/simulation/support/run_seeds.py")
