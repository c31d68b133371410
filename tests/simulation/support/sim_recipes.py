"""The parts of runs: commands, roles, policies and dependencies. Each life has a few recipes, so
that the same run is submitted again.
"""

import random
from typing import Any

import msgspec
from sim_machine import HOME, OTHER

from jobscribe.protocol.jobs.roles import Port, Retry, TaskRole
from jobscribe.supervisor.core.resources import gang_allocator
from jobscribe.supervisor.core.resources.gang_allocator import Node

#: How jobs end; the token chooses one of the alternatives between commas.
ENDS = (
    "0",
    "0",
    "0",
    "3",
    "0,1",
    "0,0,0,1",
    "s6,0",
    "200,0,0",
    "201,0",
    "210",
    "0,137",
    "s11",
    "127",
)
LENGTHS = (0.0, 0.01, 0.5, 4.0, 15.0)
ON_TERM = ("dies", "exits", "ignores")
FIRST_PORT = 30_000


def nodes(r: random.Random) -> tuple[Node, ...]:
    """Return one or two hosts with small resources."""
    ports = r.choice((8, 14, 40))
    hosts = (HOME,) if r.random() < 0.5 else (HOME, OTHER)
    return tuple(
        Node(
            host=host,
            address=f"10.0.0.{n}",
            cpu=r.choice((3, 4, 8)),
            memory_mb=r.choice((600, 2000)),
            gpus=("0", "1")[: r.choice((0, 1, 2))],
            first_port=FIRST_PORT,
            last_port=FIRST_PORT + ports - 1,
        )
        for n, host in enumerate(hosts, 1)
    )


def command(r: random.Random, ends: tuple[str, ...] = ENDS) -> tuple[str, ...]:
    lengths = ",".join(f"{r.choice(LENGTHS) * r.random():.3f}" for _ in range(r.choice((1, 1, 3))))
    return ("job", r.choice(ends), lengths, r.choice(ON_TERM))


class Recipes:
    """The recipes of one life. nodes: their hosts; some recipes ask for more."""

    def __init__(self, r: random.Random, nodes: tuple[Node, ...]) -> None:
        self.random, self._nodes = r, nodes
        self.gangs = r.choice((0.15, 0.3, 0.6))
        self._tried_again, self._debugged = r.choice((0.0, 0.3, 0.7)), r.choice((0.0, 0.1, 0.4))
        self.waiting = r.choice((0.0, 0.1, 0.3))
        self._roles = [self._gang() for _ in range(6)]

    def _gang(self) -> tuple[TaskRole, ...]:
        """Return the roles of a gang that usually fits."""
        for _ in range(5):
            roles = tuple(
                self._role(name)
                for name in ("ps", "worker", "chief")[: self.random.choice((1, 1, 2, 2, 3))]
            )
            if gang_allocator.too_much(self._nodes, roles) is None:
                break
        return roles

    def _role(self, name: str) -> TaskRole:
        r = self.random
        tasks = r.choice((1, 1, 2, 3))
        ports = r.choice(
            (
                (),
                (),
                (Port(label="data", count=2),),
                (Port(label="http", count=2),),
                (Port(label="web", begin=FIRST_PORT + 3),),
            )
        )
        return TaskRole(
            name=name,
            tasks=1 if any(p.begin for p in ports) and r.random() < 0.7 else tasks,
            command=command(r),
            cpu=r.choice((1, 1, 1, 2)),
            memory_mb=r.choice((100, 100, 300)),
            gpu=r.choice((0, 0, 0, 1)),
            ports=ports,
            min_failed=r.choice((1, 1, 1, tasks, None)),
            min_succeeded=r.choice((None, None, None, 1, tasks)),
        )

    def roles(self) -> tuple[TaskRole, ...]:
        """Return roles, some of which exceed the resources."""
        r = self.random
        roles = r.choice(self._roles)
        if r.random() < 0.05:
            much = r.choice(({"cpu": 9}, {"memory_mb": 2001}, {"gpu": 3}))
            roles = (msgspec.structs.replace(roles[0], **much), *roles[1:])
        return roles

    def policies(self) -> dict[str, Any]:
        """Return the retry policy, and whether failed tasks are held."""
        r = self.random
        out: dict[str, Any] = {}
        if r.random() < self._tried_again:
            out["retry"] = Retry(
                count=r.choice((0, 1, 2)),
                platform=r.choice((0, 1, 3)),
                conflict_secs=r.choice((0.5, 3.0)),
            )
        if r.random() < self._debugged:
            out["debug_secs"] = r.choice((0.5, 4.0, 30.0))
        return out


def one_fits(nodes: tuple[Node, ...], roles: tuple[TaskRole, ...]) -> bool:
    """Return whether it is a single task that fits on a host."""
    if len(roles) != 1 or roles[0].tasks != 1:
        return False
    (role,) = roles
    ports = role.all_ports()
    named = {p.begin + n for p in ports if p.begin for n in range(p.count)}
    free = sum(p.count for p in ports if not p.begin)
    return any(
        role.cpu <= n.cpu
        and role.memory_mb <= n.memory_mb
        and role.gpu <= len(n.gpus)
        and named <= set(n.ports)
        and free <= len(n.ports) - len(named)
        for n in nodes
    )


def too_much(nodes: tuple[Node, ...], roles: tuple[TaskRole, ...]) -> bool:
    """Return whether a task is larger than every host."""
    return any(
        all(r.cpu > n.cpu or r.memory_mb > n.memory_mb or r.gpu > len(n.gpus) for n in nodes)
        for r in roles
    )
