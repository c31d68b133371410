"""The hosts of a pool in the API: resources held in the core, and the reports of the driver."""

from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.protocol.clusters.container_pool import PoolHost
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.jobs.roles import TaskPlace, TaskRole
from jobscribe.supervisor.api.endpoints.hosts import HasHosts, host_row
from jobscribe.supervisor.core.resources import concurrency_limits, gang_allocator
from jobscribe.supervisor.core.resources.gang_allocator import Node
from jobscribe.supervisor.core.resources.host_selection import HostCapacity
from jobscribe.supervisor.core.resources.limit_pools import CpuPool
from jobscribe.supervisor.core.state.configuration import CoreConfig
from jobscribe.supervisor.core.state.world import World
from jobscribe.supervisor.runs.service import RunService

NODE = Node(
    host="a",
    address="10.0.0.1",
    cpu=8,
    memory_mb=9000,
    gpus=("0", "1"),
    first_port=30_000,
    last_port=30_010,
)
HOST = PoolHost(
    name="a",
    address="tcp://10.0.0.1:2376",
    cpu=8,
    memory_mb=9000,
    agents_mb=4000,
    gpus=("0", "1"),
    sequential=5,
    plans=("premium",),
)
ROLE = TaskRole(name="w", tasks=2, cpu=3, memory_mb=1000, gpu=1, command=("true",))


def watched(host: PoolHost = HOST, **fields: Any) -> Any:
    return SimpleNamespace(
        **{
            "host": host,
            "up": True,
            "detail": "host a answers",
            "since": 5.0,
            "version": "20.10",
            **fields,
        }
    )


def world() -> World:
    place = HostCapacity(
        host="a",
        slots={"sequential": 5, "parallel": 1},
        agent_mb={"sequential": 1024, "parallel": 2048},
        memory_mb=4000,
    )
    other = HostCapacity(host="b", slots={"sequential": 1, "parallel": 1})
    return World(CoreConfig(places={"docker": (place, other)}, nodes={"docker": (NODE,)}))


def test_a_host_that_nobody_uses() -> None:
    assert host_row(world(), "docker", watched()) == {
        "host": "a",
        "driver": "docker",
        "state": "up",
        "since": 5.0,
        "drained": None,
        "detail": "host a answers",
        "version": "20.10",
        "address": "tcp://10.0.0.1:2376",
        "labels": {},
        "plans": ("premium",),
        "slots": {"sequential": [0, 5], "parallel": [0, 1]},
        "agents": 0,
        "agentsMb": [0, 4000],
        "runs": 0,
        "tasks": 0,
        "cpu": [0, 8],
        "memoryMb": [0, 9000],
        "gpus": [0, 2],
        "ports": 0,
    }


def test_what_is_held_there_and_nothing_of_another_host() -> None:
    w = world()
    for n in range(3):
        concurrency_limits.request(w.slots, ("job", n), n, (CpuPool("docker", "sequential", "a"),))
    concurrency_limits.request(w.slots, ("job", 9), 9, (CpuPool("docker", "sequential", "b"),))
    gang_allocator.record_placed(
        w.node_pools["docker"],
        ("gang", 1),
        (ROLE,),
        [
            TaskPlace(
                role="w",
                index=n,
                host="a",
                address="10.208.0.2",
                ports={"x": (30_000 + n,)},
                gpus=(str(n),),
            )
            for n in range(2)
        ],
    )
    for kind, host, phase, placed in (
        ("sequential", "a", "up", 2),
        ("parallel", "a", "starting", 0),
        ("sequential", "b", "up", 7),
        ("container", "a", "up", 3),
    ):
        key = AgentKey("docker", kind, "user0001", host)
        view = w.agent(key)
        view.phase = phase
        view.placed = {object() for _ in range(placed)}  # type: ignore[misc]
    w.agent(AgentKey("docker", "sequential", "user0002", "a"))
    row = host_row(w, "docker", watched())
    assert (row["slots"], row["agents"], row["agentsMb"]) == (
        {"sequential": [3, 5], "parallel": [0, 1]},
        2,
        [3072, 4000],
    )
    assert (row["runs"], row["tasks"], row["cpu"], row["memoryMb"], row["gpus"], row["ports"]) == (
        2,
        3,
        [6, 8],
        [2000, 9000],
        [2, 2],
        2,
    )


def test_a_host_that_is_down_says_why_and_has_nothing_for_gangs_where_there_is_no_room() -> None:
    w = World(
        CoreConfig(
            places={"docker": (HostCapacity(host="a", slots={"sequential": 5, "parallel": 1}),)}
        )
    )
    row = host_row(
        w, "docker", watched(up=False, detail="host a refuses the connection", version=None)
    )
    assert (row["state"], row["detail"], row["version"], row["cpu"], row["gpus"]) == (
        "down",
        "host a refuses the connection",
        None,
        [0, 8],
        [0, 2],
    )


def test_the_first_driver_of_a_house_is_meant_where_none_is_named() -> None:
    desk: Any = SimpleNamespace(drivers={"docker": 1, "local": 2})
    assert [RunService.driver(desk, asked) for asked in ("", "docker", "local")] == [
        "docker",
        "docker",
        "local",
    ]
    with pytest.raises(Refusal, match="choose one of: docker, local"):
        RunService.driver(desk, "slurm")


def test_only_drivers_with_hosts_have_a_pool() -> None:
    assert isinstance(SimpleNamespace(engines={}), HasHosts) and not isinstance(
        SimpleNamespace(), HasHosts
    )
