"""Limits of the site of which this shard has a part that changes: what the shard may use now, and what
it uses and wants. What runs is left alone if a limit becomes smaller than its use.
"""

from ....protocol.grants import Use
from ..interface import grants
from ..interface.effects import GrantsApplied
from ..interface.inputs import GrantsChanged
from ..resources import gang_allocator
from ..resources.concurrency_limits import NEVER
from ..resources.limit_pools import CpuPool
from ..state.transaction import Transaction
from ..state.world import LOCAL, World
from . import gang_placement, placement


def changed(tx: Transaction, input_: GrantsChanged) -> None:
    """Apply the limits that there are now, and say what is used, once all decisions so far are
    durable.
    """
    world = tx.world
    before = {name: grant.limit for name, grant in world.grants.items()}
    world.grants.clear()
    world.grants.update(input_.grants)
    # nothing can start by itself where no limit has changed
    if before != {name: grant.limit for name, grant in world.grants.items()}:
        pool = world.node_pools.get(LOCAL)
        if pool is not None:
            pool.granted = world.granted_nodes()
            gang_placement.granted(tx, gang_allocator.retry(pool, tx.now.mono))
        placement.resized(tx, [p for p in world.slots.pools if isinstance(p, CpuPool)])
    tx.emit(GrantsApplied(input_.number, use(world)))


def use(world: World) -> dict[str, Use]:
    """Return what this shard uses and wants of each limit."""
    found = dict.fromkeys(world.policy.moving, Use(0, 0))
    for limit, pool in world.slots.pools.items():
        if isinstance(limit, CpuPool):
            name = grants.slots_name(limit.driver, limit.kind, limit.host)
            if name in found:
                waiting = sum(len(line) for account, line in pool.lines.items() if account != NEVER)
                drained = world.drain_of(limit.driver, limit.host) is not None
                found[name] = Use(
                    len(pool.holders), len(pool.holders) + (0 if drained else waiting)
                )
    nodes = world.node_pools.get(LOCAL)
    if nodes is not None and grants.CPU in found:
        cpu = memory = 0
        if not (nodes.drained or nodes.down):
            for _, ticket in nodes.queue:
                roles = nodes.claims[ticket].roles
                cpu += sum(r.tasks * r.cpu for r in roles)
                memory += sum(r.tasks * r.memory_mb for r in roles)
        used = list(nodes.usage.values())
        for name, has, waits in (
            (grants.CPU, sum(u.cpu for u in used), cpu),
            (grants.MEMORY, sum(u.memory_mb for u in used), memory),
        ):
            found[name] = Use(has, has + waits)
    return found
