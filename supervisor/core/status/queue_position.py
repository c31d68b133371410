"""Queue position: the number of runs that need the same slots or nodes and go first. Pure.

The queue of one pool contains only some of these runs. A run that still waits for a slot of its
user, or behind its user's first runs, takes its CPU slot before every later run. Runs whose agent
is not up request nothing and are not counted.

Queues are in order of submission, so a count costs a copy of the numbers and a search, not a loop
over all runs.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import takewhile
from typing import assert_never

from ..resources.concurrency_limits import LimitWait, RunKey
from ..resources.fair_share import Account
from ..resources.limit_pools import (
    ArrayPool,
    CpuPool,
    JobPool,
    OpPool,
    RunDirPool,
    UserPool,
    UserTotal,
)
from ..state.agent_phase import AgentPhase
from ..state.agent_state import AgentState
from ..state.world import World


def for_slot(world: World, wait: LimitWait, ticket: RunKey, number: int) -> int | None:
    """Return how many runs go before this one, which need a slot of the pool and have none; in a CPU
    pool with several users, about how many. None for a pool that is no queue of runs.
    """
    match wait.pool:
        case CpuPool():
            return _for_cpu(world, wait.pool, ticket, number)
        case OpPool(driver, kind, uid, cluster):
            views = [
                v
                for v in _asking(world, driver)
                if (v.record.key.kind, v.record.key.uid) == (kind, uid)
            ]
            views = [v for v in views if cluster in (None, v.record.key.host)]
            return sum(_earlier(_waiting(v).values(), number) for v in views) - _among(
                views, wait.holders, number
            )
        case UserTotal():
            return wait.ahead
        case UserPool(uid):
            views = [v for v in _asking(world) if v.record.key.uid == uid]
            earlier = sum(_earlier(_waiting(v).values(), number) for v in views)
            return earlier - _among(views, wait.holders, number)
        case ArrayPool(uid, simulation_id):
            views = [v for v in _asking(world) if v.record.key.uid == uid]
            members = f"{uid}-{simulation_id}-"
            return sum(_members(v, members, number) for v in views) - _among(
                views, wait.holders, number
            )
        case JobPool() | RunDirPool():
            return None
        case _:
            assert_never(wait.pool)


def rivals(world: World, pool: CpuPool, ticket: RunKey) -> dict[Account, int]:
    """Return the other accounts whose runs wait for a CPU pool or will, with the number of these
    runs.
    """
    account, lines = world.account_of(ticket), world.slots.pools[pool].lines
    out, batch = dict[Account, int](), pool.driver in world.policy.batch
    for view in _asking_for(world, pool):
        uid, waiting = view.record.key.uid, _plain(world, view)
        if uid == account.uid or not waiting:
            continue
        accounts = [a for a in lines if a.uid == uid]
        if len(accounts) > 1:  # in several queues: what requests slots now
            out |= {a: len(lines[a]) for a in accounts}
        else:
            first = next(t for t in _waiting(view) if batch or t not in view.gangs)
            out[accounts[0] if accounts else world.account_of(first)] = waiting
    return out


def _for_cpu(world: World, pool: CpuPool, ticket: RunKey, number: int) -> int:
    """Return the earlier waiting runs of this user, and about how many of others go before it."""
    account, own = world.account_of(ticket), 0
    for view in _asking_for(world, pool):
        if view.record.key.uid == account.uid:
            own = _earlier(_waiting(view).values(), number)
            if pool.driver not in world.policy.batch:
                own -= _earlier(view.gangs.values(), number)
            own -= _among([view], world.slots.pools[pool].holders, number)
    return own + world.slots.fair.before(account, own, rivals(world, pool, ticket))


def _asking_for(world: World, pool: CpuPool) -> Iterator[AgentState]:
    for view in _asking(world, pool.driver):
        if (view.record.key.kind, view.record.key.host) == (pool.kind, pool.host):
            yield view


def _plain(world: World, view: AgentState) -> int:
    """Return how many waiting runs of the agent need a CPU slot."""
    gangs = 0 if view.record.key.driver in world.policy.batch else len(view.gangs)
    return len(view.queued) + len(view.ahead) - gangs


def for_nodes(world: World, driver: str, ticket: RunKey) -> int:
    """Return how many runs with roles go before this one, which waits for nodes of this driver; with
    several users, about how many. Runs that wait outside the queue do not count.
    """
    claims, account = world.node_pool(driver).claims, world.account_of(ticket)
    never = (t for t, claim in claims.items() if claim.never is not None)
    aside = {*never, *world.holds, *world.gang_backoffs}
    own, lengths = 0, Counter[Account]()
    for view in _asking(world, driver):
        gangs = {t: n for t, n in view.gangs.items() if t not in aside}
        if view.record.key.uid == account.uid:
            own += _earlier(gangs.values(), claims[ticket].number)
        elif gangs:
            lengths[world.account_of(next(iter(gangs)))] += len(gangs)
    return max(1, own + world.slots.fair.before(account, own, lengths))


def of_user(view: AgentState, number: int) -> int:
    """Return the number of earlier waiting runs of the same agent."""
    return _earlier(_waiting(view).values(), number)


def _asking(world: World, driver: str | None = None) -> Iterator[AgentState]:
    """Yield agents that are up and have waiting runs."""
    for key, view in world.agents.items():
        if (
            (view.queued or view.ahead)
            and view.phase == AgentPhase.UP
            and view.synced
            and driver in (None, key.driver)
        ):
            yield view


def _waiting(view: AgentState) -> dict[RunKey, int]:
    """Return the numbers of the runs without slots, those that wait with the agent included."""
    return {**view.ahead, **view.queued} if view.ahead else view.queued


def _earlier(numbers: Iterable[int], number: int) -> int:
    return bisect_left(list(numbers), number)


def _among(views: Iterable[AgentState], tickets: Collection[RunKey], number: int) -> int:
    """Return how many of these tickets wait with a lower number."""
    waiting = (_waiting(v) for v in views)
    return sum(queue[t] < number for queue in waiting for t in queue.keys() & tickets)


def _members(view: AgentState, prefix: str, number: int) -> int:
    """Return the number of earlier runs of an array. Runs with slot requests are at the front of
    the queue, so the loop is short.
    """
    return sum(
        jid.startswith(prefix)
        for (jid, _), _n in takewhile(lambda item: item[1] < number, _waiting(view).items())
    )
