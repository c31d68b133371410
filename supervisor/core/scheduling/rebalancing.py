"""Rebalancing: moves queued runs between the hosts of a driver. Each run keeps its number.

Runs with placed tasks never move. A run moves because its host is down or drained, because the host has no
memory for its agent, or because another host has a free slot and no waiting run.
"""

from collections import Counter
from collections.abc import Iterable

from ....protocol.api.requests import RunSpec
from ....protocol.ids import AgentKey, AgentKind
from ..resources import host_selection
from ..resources.concurrency_limits import RunKey
from ..resources.fair_share import Account
from ..resources.limit_pools import CpuPool
from ..state.transaction import Transaction
from . import placement


def leave_host(tx: Transaction, key: AgentKey) -> None:
    """Move queued runs of a host that cannot run the agent now, where a better host exists.

    A host whose memory is being freed keeps them: `rebalance` may have chosen it, and would again.
    """
    world = tx.world
    view, down = world.agent(key), world.host_assignment.gets_nothing(key)
    if not view.queued or len(world.policy.hosts(key.driver)) == 1:
        return
    if not down and world.host_assignment.memory(key) > 0:
        return
    leaving: dict[RunKey, AgentKey] = {}
    asked = bool(view.asking)
    placement.withdraw(tx, key, view.asking)
    for ticket, number in list(view.queued.items()):
        world.dequeue(key, ticket)
        target = world.host_assignment.choose(_spec(tx, ticket)) or key
        better = not world.host_assignment.gets_nothing(target) and (
            down or world.host_assignment.memory(target) > 0
        )
        leaving[ticket] = target if better else key
        world.enqueue(leaving[ticket], ticket, number)
    if asked or any(target != key for target in leaving.values()):
        _arrived(tx, {key, *leaving.values()})


def move(tx: Transaction, key: AgentKey, ticket: RunKey, target: AgentKey) -> None:
    """Move one run to another agent's queue."""
    placement.withdraw(tx, key, (ticket,))
    number = tx.world.dequeue(key, ticket)
    if number is not None:
        tx.world.enqueue(target, ticket, number)
        _arrived(tx, {key, target})


def _arrived(tx: Transaction, keys: Iterable[AgentKey]) -> None:
    for key in sorted(keys):
        placement.reorder(tx, key)
        if tx.world.agent(key).queued:
            tx.require_agent(key)


def rebalance(tx: Transaction) -> None:
    """Give free slots without waiters to waiting runs of other hosts, in the order of turns."""
    if not tx.world.host_assignment.hosts:
        return
    for driver, places in tx.world.policy.places.items():
        several = len(places) > 1 and driver not in tx.world.policy.batch
        for kind in sorted({kind for p in places for kind in p.slots}) if several else ():
            _rebalance(tx, driver, kind)


def _rebalance(tx: Transaction, driver: str, kind: AgentKind) -> None:
    world = tx.world
    pools = {
        p.host: world.slots.pools.get(CpuPool(driver, kind, p.host))
        for p in world.policy.places[driver]
    }
    used = [(host, pool) for host, pool in pools.items() if pool is not None]
    waiting: dict[Account, list[tuple[int, tuple[RunKey, str]]]] = {}
    for host, pool in used:
        for account, line in pool.lines.items():
            waiting.setdefault(account, []).extend((n, (ticket, host)) for n, ticket in line)
    free = (
        {
            host: world.policy.slots_at(driver, kind, host)
            - (0 if pool is None else len(pool.holders))
            for host, pool in pools.items()
            if (driver, host) not in world.host_assignment.down
            and world.drain_of(driver, host) is None
            and (pool is None or not pool.lines)
        }
        if waiting
        else {}
    )
    if not any(n > 0 for n in free.values()):
        return
    for key, view in world.agents.items():
        if key.driver == driver and key.kind == kind and key.host in free and not view.known:
            free[key.host] -= len(view.queued)  # these runs will request slots when the agent is up
    in_use = sum((Counter(pool.in_use) for _, pool in used), Counter[str]())
    lines = {account: sorted(line) for account, line in waiting.items()}
    for _, (ticket, host) in world.slots.fair.turns(
        lines, in_use, sum(pool.capacity for _, pool in used)
    ):
        if not any(n > 0 for n in free.values()):
            return
        spec = _spec(tx, ticket)
        may = {
            p.host for p in host_selection.allowed(world.policy.places[driver], spec.active_plan)
        }
        to = next(
            (
                h
                for h, n in free.items()
                if n > 0 and h in may and world.host_assignment.memory(world.key_at(spec, h))
            ),
            None,
        )
        if to is not None and ticket in world.agent(world.key_at(spec, host)).queued:
            free[to] -= 1
            move(tx, world.key_at(spec, host), ticket, world.key_at(spec, to))


def _spec(tx: Transaction, ticket: RunKey) -> RunSpec:
    run = tx.world.jobs[ticket[0]].run
    assert run is not None and run.serial == ticket[1]
    return run.spec
