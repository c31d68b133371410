"""Translates settings into drivers, agent and keeper settings, and the `CoreConfig` of the core."""

import os
import random
from collections.abc import Collection, Mapping
from typing import Any

from ..drivers.contracts import AgentDriver, Capacity
from ..drivers.local_agents import LocalDriver
from ..drivers.local_gpus import cards, names
from ..protocol.clusters.cluster import Clusters
from ..protocol.clusters.container_pool import Pool, PoolHost
from ..protocol.ids import AgentKind
from ..service.settings.settings import Settings
from ..service.site import queue_file
from ..service.site.exit_table_file import load
from ..service.site.shards import in_turn
from .core.resources.gang_allocator import Node
from .core.resources.host_selection import HostCapacity
from .core.state.configuration import CoreConfig
from .process.root_directory import RootDirectory

#: Maximum time for which the start of an agent's container waits for earlier starts, without the
#: time to pull its image.
QUEUED_STARTS_SECS = 600.0
#: Concurrent container runs of one user per host. The resources that their tasks request are the
#: real limit.
CONTAINER_RUNS = 1_000
#: Time to copy the agent's code to a cluster before its first start there.
CODE_COPY_SECS = 120.0


def local_driver(settings: Settings, root: RootDirectory, *, descriptors: int) -> LocalDriver:
    """Return the local driver. descriptors: open files that its agents and their jobs may have."""
    slots, keeper = settings.slots, keeper_settings(settings)
    # local agents share the supervisor's streams, and so its journal
    keeper["log"] |= {
        "journald": settings.log.journald,
        "journalStream": os.environ.get("JOURNAL_STREAM"),
    }
    return LocalDriver(
        root.path,
        root / "agents.json",
        cpu_slots=Capacity(sequential=slots.local_sequential, parallel=slots.local_parallel),
        keeper_settings=keeper,
        agent_settings=agent_settings(settings),
        descriptors=descriptors,
    )


def keeper_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings sent to every keeper, with any driver."""
    output, groups = settings.output, settings.keeper
    return {
        "outputCap": {"head": output.head_bytes, "tail": output.tail_bytes},
        "cgroups": {"use": groups.cgroups, "pids": groups.job_pids or 0},
        "log": {"format": settings.log.format},
    }


def agent_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings sent to every agent, with any driver."""
    limits = settings.limits
    return {
        "apps": list(settings.apps.also),
        "loginSecs": limits.login_profile_secs,
        "keeperSilentSecs": limits.keeper_silent_secs,
        "awaySecs": limits.agent_away_secs,
    }


def policy(
    settings: Settings,
    drivers: Mapping[str, AgentDriver],
    pool: Pool | None,
    clusters: Clusters | None,
    serial_floor: int,
    moving: Collection[str] = (),
) -> CoreConfig:
    """Return the core's configuration. pool, clusters: None unless the Docker or Slurm driver is in
    use. serial_floor, moving: see `CoreConfig`.
    """
    limits, slots = settings.limits, settings.slots
    queues = queue_file.load(settings.queues.file)
    places: dict[str, tuple[HostCapacity, ...]] = {}
    nodes: dict[str, tuple[Node, ...]] = {}
    runs: dict[tuple[str, AgentKind], int] = {}
    if "local" in drivers:
        places["local"], nodes["local"] = (_local_place(settings),), (local_node(settings),)
        runs |= dict.fromkeys(
            (("local", AgentKind.SEQUENTIAL), ("local", AgentKind.PARALLEL)), slots.op_run
        )
    if pool is not None:
        places["docker"] = tuple(_pool_place(pool, host) for host in pool.hosts)
        nodes["docker"] = tuple(_pool_node(pool, host) for host in pool.hosts)
        runs |= {
            ("docker", AgentKind.SEQUENTIAL): pool.sequential.runs,
            ("docker", AgentKind.PARALLEL): pool.parallel.runs,
            ("docker", AgentKind.CONTAINER): CONTAINER_RUNS,
        }
    starts = {} if pool is None else {"docker": pool.pull_secs + QUEUED_STARTS_SECS}
    if clusters is not None:
        places["sbatch"] = tuple(
            HostCapacity(
                host=c.name,
                slots={AgentKind.PARALLEL: c.runs},
                user_runs=c.runs_per_user,
                limit_slack_secs=c.limit_slack_secs,
            )
            for c in clusters.clusters
        )
        starts["sbatch"] = max(c.start_secs for c in clusters.clusters) + CODE_COPY_SECS
    return CoreConfig(
        places=places,
        op_run_slots=runs,
        nodes=nodes,
        exits=load(settings.exits.table),
        queues=queues,
        containers=frozenset(
            name for name, driver in drivers.items() if driver.capabilities.containers
        ),
        agent_idle_secs={} if pool is None else {"docker": pool.agent_idle_secs},
        driver_start_secs=starts,
        batch=frozenset({"sbatch"} & drivers.keys()),
        agent_start_secs=limits.agent_start_secs,
        agent_start_tries=limits.agent_start_tries,
        op_reply_secs=limits.op_reply_secs,
        time_limit_secs=limits.time_limit_secs,
        queue_limit_secs=limits.queue_limit_secs,
        ahead_secs=limits.placed_ahead_secs,
        debug_secs=limits.debug_secs,
        kept_plans=frozenset(settings.purge.kept_plans),
        serial_floor=serial_floor,
        moving=frozenset(moving),
    )


def _local_place(settings: Settings) -> HostCapacity:
    slots = settings.slots
    return HostCapacity(
        host="localhost",
        slots={
            AgentKind.SEQUENTIAL: slots.local_sequential,
            AgentKind.PARALLEL: slots.local_parallel,
        },
    )


def local_node(settings: Settings) -> Node:
    """Return this machine as a node for runs with roles.

    Ports are assigned from a random one: another supervisor of this machine may check the same
    ports just before either's tasks listen.
    """
    r = settings.resources
    first, last = r.local_ports
    gpus = in_turn(cards() if r.local_gpus == ("auto",) else r.local_gpus, settings.shard)
    return Node(
        host="localhost",
        address="127.0.0.1",
        cpu=r.local_cpu,
        memory_mb=r.local_memory_mb,
        gpus=gpus,
        gpu_names=_gpu_names(gpus, None),
        first_port=first,
        last_port=last,
        start_port=random.randint(first, last),
    )


def _pool_place(pool: Pool, host: PoolHost) -> HostCapacity:
    return HostCapacity(
        host=host.name,
        slots={AgentKind.SEQUENTIAL: host.sequential, AgentKind.PARALLEL: host.parallel},
        agent_mb={
            AgentKind.SEQUENTIAL: pool.sequential.memory_mb,
            AgentKind.PARALLEL: pool.parallel.memory_mb,
        },
        memory_mb=host.agents_mb,
        plans=frozenset(host.plans),
    )


def _gpu_names(gpus: tuple[str, ...], host: PoolHost | None) -> tuple[str, ...]:
    """Return the name of each GPU, "" if it is unknown. host: None for this machine."""
    if host is not None and (host.gpu_type or not host.address.startswith("unix:")):
        return (host.gpu_type,) * len(gpus)
    known = names() if gpus else {}
    return tuple(known.get(gpu, "") for gpu in gpus)


def _pool_node(pool: Pool, host: PoolHost) -> Node:
    return Node(
        host=host.name,
        address=host.name,
        cpu=host.cpu,
        memory_mb=host.memory_mb,
        gpus=host.gpus,
        gpu_names=_gpu_names(host.gpus, host),
        first_port=host.ports[0],
        last_port=host.ports[1],
        subnets=pool.task_subnets,
        plans=frozenset(host.plans),
    )
