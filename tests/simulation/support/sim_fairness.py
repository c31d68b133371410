"""Fairness between users: the queues and limits of a life, and the checks after each decision."""

from collections import Counter
from typing import TYPE_CHECKING

import sim_hours
from sim_clients import USERS

from jobscribe.db.events.reserved import by_task
from jobscribe.protocol.clusters.queues import Queue, Queues, UserLimits
from jobscribe.supervisor.core.resources.concurrency_limits import Pool, RunKey
from jobscribe.supervisor.core.resources.limit_pools import CpuPool, LimitPool, UserPool, UserTotal
from jobscribe.supervisor.core.state.world import World, owner, request_of

if TYPE_CHECKING:
    from simulator import Simulator

#: Cores in use by a user at a time, where there is such a limit.
TOTAL_CORES = 4
#: The configurations of lives; the seed chooses.
SITES = (
    *(4 * (Queues(),)),
    sim_hours.SITE,
    Queues(queues={"lab": Queue(users=USERS[:1])}, limits=UserLimits(queued=8)),
    Queues(
        queues={"lab": Queue(users=USERS[:1], share=2.0)},
        limits=UserLimits(total_cores=TOTAL_CORES),
    ),
    Queues(queues={"small": Queue(users=USERS[1:2], borrow=False)}, limits=UserLimits(running=2)),
)


class FairnessChecks:
    """G18: a user who waits for a slot and has run nothing gets the next one, whatever others queue."""

    def __init__(self, sim: "Simulator") -> None:
        self.sim = sim
        self._world: World | None = None
        self._holders: dict[LimitPool, set[RunKey]] = {}
        self._waiting: dict[LimitPool, set[str]] = {}
        self._ahead: set[RunKey] = set()
        #: users who have run something since the supervisor started
        self._served: set[str] = set()

    def decided(self) -> None:
        world = self.sim.supervisor.engine.world
        if world is not self._world:
            # usage is not in the log of a simulated store
            self._world, self._served = world, set()
            self._holders, self._waiting, self._ahead = {}, {}, set()
        pools = {p: pool for p, pool in world.slots.pools.items() if isinstance(p, CpuPool)}
        for limit, pool in pools.items():
            self._granted(world, limit, pool)
        # slots, or cores of runs with roles; usage from before a restart may be 0 s
        accounts = world.slots.fair.accounts.items()
        self._served |= {account.uid for account, usage in accounts if usage.used or usage.cores}
        self._holders = {limit: set(pool.holders) for limit, pool in pools.items()}
        self._waiting = {limit: {a.uid for a in pool.lines} for limit, pool in pools.items()}
        self._ahead = {ticket for view in world.agents.values() for ticket in view.ahead}
        self._limits(world)
        self._totals(world)

    def _granted(self, world: World, limit: LimitPool, pool: Pool) -> None:
        """Check who got a slot, except runs that an agent started in the slot of its ended one."""
        fresh = pool.holders - self._holders.get(limit, set()) - self._ahead
        passed = {
            a
            for a in pool.lines
            if a.uid in self._waiting.get(limit, ()) and a.uid not in self._served
        }
        for ticket in fresh:
            account = world.slots.claims[ticket].account
            if account.uid in self._served and any(a.queue == account.queue for a in passed):
                self.sim.broken(f"G18: {ticket} got a slot before {passed}, who have run nothing")
            if len(pool.lines) > 0:
                self.sim.time.saw("users took turns")

    def _totals(self, world: World) -> None:
        """Check that no user has more cores in use than the limit. An agent may start a run that
        waits with it while the supervisor does not hear of the end before it.
        """
        most = world.policy.queues.limits.total_cores
        in_use: Counter[str] = Counter()
        for jid, serial in world.task_counts if most is not None else ():
            tasks = [t for t in world.jobs[jid].live_tasks() if t.token.serial == serial]
            if tasks and not all(t.waits_for_slot for t in tasks):
                asked = request_of(world.jobs[jid], serial)
                in_use[owner(jid)] += sum(by_task(asked, t.token.role).cores for t in tasks)
        for uid, cores in in_use.items():
            if most is not None and cores > most:
                self.sim.broken(f"G18: {uid} has {cores} cores in use, and the limit is {most}")

    def _limits(self, world: World) -> None:
        for limit, pool in world.slots.pools.items():
            if isinstance(limit, UserPool) and pool.lines:
                self.sim.time.saw("a user waited for the limit of running runs")
            elif isinstance(limit, UserTotal) and pool.lines:
                self.sim.time.saw("a user waited for the limit of all cores")
            elif isinstance(limit, CpuPool):
                for queue, count in pool.in_use.items():
                    rules = world.slots.fair.rules
                    most = rules.entitled(queue, pool.capacity)
                    if not rules.queues[queue].borrow and count > most:
                        self.sim.time.saw("a queue has more than its share after a restart")
