"""Fairness between users: the queues and limits of a life, and the checks after each decision."""

from typing import TYPE_CHECKING

from sim_clients import USERS

from jobscribe.protocol.clusters.queues import Queue, Queues, UserLimits
from jobscribe.supervisor.core.resources.concurrency_limits import Pool, RunKey
from jobscribe.supervisor.core.resources.limit_pools import CpuPool, LimitPool, UserPool
from jobscribe.supervisor.core.state.world import World

if TYPE_CHECKING:
    from simulator import Simulator

#: The configurations of lives; the seed chooses.
SITES = (
    *(5 * (Queues(),)),
    Queues(queues={"lab": Queue(users=USERS[:1])}, limits=UserLimits(queued=8)),
    Queues(queues={"lab": Queue(users=USERS[:1], share=2.0)}),
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
        # slots, or cores of runs with roles
        self._served |= {account.uid for account in world.slots.fair.accounts}
        self._holders = {limit: set(pool.holders) for limit, pool in pools.items()}
        self._waiting = {limit: {a.uid for a in pool.lines} for limit, pool in pools.items()}
        self._ahead = {ticket for view in world.agents.values() for ticket in view.ahead}
        self._limits(world)

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

    def _limits(self, world: World) -> None:
        for limit, pool in world.slots.pools.items():
            if isinstance(limit, UserPool) and pool.lines:
                self.sim.time.saw("a user waited for the limit of running runs")
            elif isinstance(limit, CpuPool):
                for queue, count in pool.in_use.items():
                    rules = world.slots.fair.rules
                    most = rules.entitled(queue, pool.capacity)
                    if not rules.queues[queue].borrow and count > most:
                        self.sim.time.saw("a queue has more than its share after a restart")
