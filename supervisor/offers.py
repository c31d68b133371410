"""What this house offers, out of its settings: its drivers, and the sizes and deadlines by which the core decides."""

from collections.abc import Mapping

from ..drivers.driver import AgentDriver, Capacity
from ..drivers.gpus import cards
from ..drivers.local import LocalDriver
from ..service.exit_table import load
from ..service.settings import Settings
from .core.rooms import Node
from .core.world import Policy
from .root import Root


def local_driver(settings: Settings, root: Root, *, descriptors: int) -> LocalDriver:
    """descriptors: how many its agents and their jobs may have."""
    slots, output, groups = settings.slots, settings.output, settings.keeper
    keeper = {
        "outputCap": {"head": output.head_bytes, "tail": output.tail_bytes},
        "cgroups": {"use": groups.cgroups, "pids": groups.job_pids or 0},
    }
    return LocalDriver(
        root.path, root / "agents.json", cpu_slots=Capacity(sequential=slots.local_sequential, parallel=slots.local_parallel),
        keeper_settings=keeper, apps=settings.apps.also, descriptors=descriptors,
    )


def policy(settings: Settings, drivers: Mapping[str, AgentDriver], serial_floor: int) -> Policy:
    """serial_floor: see Policy."""
    limits, slots = settings.limits, settings.slots
    cpu: dict[tuple[str, str], int] = {}
    for name, driver in drivers.items():
        has = driver.capacity()
        cpu[name, "sequential"], cpu[name, "parallel"] = has.sequential or 1, has.parallel or 1
    return Policy(
        cpu_slots=cpu, op_run_slots={pool: slots.op_run or max(slots.local_sequential, slots.local_parallel) for pool in cpu},
        nodes={"local": (local_node(settings),)}, exits=load(settings.exits.table),
        agent_start_secs=limits.agent_start_secs, agent_start_tries=limits.agent_start_tries, op_reply_secs=limits.op_reply_secs,
        time_limit_secs=limits.time_limit_secs, queue_limit_secs=limits.queue_limit_secs, debug_secs=limits.debug_secs,
        kept_plans=frozenset(settings.purge.kept_plans), serial_floor=serial_floor,
    )


def local_node(settings: Settings) -> Node:
    """This machine, as runs with roles see it."""
    r = settings.resources
    first, last = r.local_ports
    return Node(
        host="localhost", address="127.0.0.1", cpu=r.local_cpu, memory_mb=r.local_memory_mb,
        gpus=cards() if r.local_gpus == ("auto",) else r.local_gpus, first_port=first, last_port=last,
    )
