"""Hosts, or the site, that get no new runs for a while: their slots have no capacity, and gangs get
no places there. Queued runs move to other hosts if there are any. What runs is left alone.
"""

from ..interface import drains
from ..interface.drains import SITE
from ..interface.inputs import DrainsChanged
from ..resources import gang_allocator
from ..resources.limit_pools import CpuPool
from ..scheduling import gang_placement, placement, rebalancing
from ..state.transaction import Transaction


def changed(tx: Transaction, input_: DrainsChanged) -> None:
    """Apply the drains that there are now."""
    world = tx.world
    world.drains.clear()
    world.drains.update(input_.drains)
    for driver, pool in world.node_pools.items():
        pool.drained = drains.hosts_of(world.drains, driver, (n.host for n in pool.nodes))
        for host in sorted(pool.drained):
            gang_placement.host_down(tx, driver, host)
        gang_placement.granted(tx, gang_allocator.retry(pool, tx.now.mono))
    placement.resized(tx, [p for p in world.slots.pools if isinstance(p, CpuPool)])
    if SITE in world.drains:
        return  # no host is better than another
    # all of them: while the site was drained, no run left the others
    for key in sorted(k for k in world.agents if (k.driver, k.host) in world.drains):
        rebalancing.leave_host(tx, key)
