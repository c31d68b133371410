"""The hosts of drivers with several hosts, with states and used resources; and the clusters that a
user may submit to.
"""

from typing import Any

import msgspec

from ....protocol.api.requests import ClusterList
from ....protocol.ids import AgentKey, AgentKind
from ...connections.monitored_hosts import HasHosts, MonitoredHosts
from ...core.resources import gang_allocator
from ...core.resources.limit_pools import cpu_pool
from ...core.state.world import World
from ..transport.request_handler import Handler

_KINDS = (AgentKind.SEQUENTIAL, AgentKind.PARALLEL)


async def pool(h: Handler) -> Any:
    """Return the hosts of the pools, with their used resources."""
    world = h.runs.engine.world
    return {
        "state": "ok",
        "hosts": [
            host_row(world, name, engine)
            for name, driver in h.runs.drivers.items()
            if isinstance(driver, HasHosts)
            for engine in driver.engines.values()
        ],
    }


async def pool_check(h: Handler) -> Any:
    """Use each host of the pools as a run would, and return its faults."""
    drivers = [d for d in h.runs.drivers.values() if isinstance(d, HasHosts)]
    return {
        "state": "ok",
        "hosts": sum(len(d.engines) for d in drivers),
        "problems": [s for d in drivers for s in await d.check()],
    }


async def clusters(h: Handler) -> Any:
    request: ClusterList = h.parsed(ClusterList)
    inventory = h.services.clusters
    return {"state": "ok", "clusters": [] if inventory is None else inventory.listing(request.uid)}


def host_row(world: World, driver: str, watched: MonitoredHosts) -> dict[str, Any]:
    """Return one host. Pairs are [used, total]; a total of None is unlimited.

    runs: executions in agents. tasks: executions in their own containers.
    """
    host = watched.host
    views = {
        key: view
        for key, view in world.agents.items()
        if (key.driver, key.host) == (driver, host.name)
    }
    agents = [
        key for key, view in views.items() if key.kind != AgentKind.CONTAINER and view.takes_memory
    ]
    held = _held(world, driver, host.name)
    return {
        "host": host.name,
        "driver": driver,
        "state": "up" if watched.up else "down",
        "since": watched.since,
        "drained": _drain(world, driver, host.name),
        "detail": watched.detail,
        "version": watched.version,
        "address": host.address,
        "labels": host.labels,
        "plans": host.plans,
        "slots": {kind: _slots(world, AgentKey(driver, kind, "-", host.name)) for kind in _KINDS},
        "agents": len(agents),
        "agentsMb": [sum(map(world.host_assignment.agent_mb, agents)), host.agents_mb],
        "runs": sum(
            len(view.placed) for key, view in views.items() if key.kind != AgentKind.CONTAINER
        ),
        "tasks": sum(
            len(view.placed) for key, view in views.items() if key.kind == AgentKind.CONTAINER
        ),
        "cpu": held.get("cpu", [0, host.cpu]),
        "memoryMb": held.get("memory_mb", [0, host.memory_mb]),
        "gpus": held.get("gpus", [0, len(host.gpus)]),
        "ports": held.get("ports", 0),
    }


def _drain(world: World, driver: str, host: str) -> dict[str, Any] | None:
    """Return why this host gets no new runs, or None."""
    found = world.drains.get((driver, host))
    return None if found is None else msgspec.to_builtins(found)


def _held(world: World, driver: str, host: str) -> dict[str, Any]:
    """Return the used and total resources for tasks of roles; {} if the driver has none."""
    room = world.node_pools.get(driver)
    return (
        next((row for row in gang_allocator.usage(room) if row["host"] == host), {})
        if room is not None
        else {}
    )


def _slots(world: World, key: AgentKey) -> list[int]:
    found = world.slots.pools.get(cpu_pool(key))
    return [
        0 if found is None else len(found.holders),
        world.slots_at(key.driver, key.kind, key.host),
    ]
