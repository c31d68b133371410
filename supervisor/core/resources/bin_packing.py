"""Bin packing of gangs: assigns each task to one node by the free resources, all tasks or none.

Tasks of a role are alike, so whole roles are laid out at once: the largest first, node after node,
in a few orders. If no order works, a small gang is searched exhaustively, so that it is not
rejected when a solution exists. Deterministic. `gang_allocator` records the holders,
`unschedulable` explains failures.
"""

from collections.abc import Callable, Container, Sequence

import msgspec

from ....protocol.jobs.roles import TaskRole
from . import subnets

#: Indexes of amounts: cores, MiB, GPUs, ports with any number.
CPU, MEMORY, GPU, PORT = range(4)
#: Limits of the exhaustive search: tasks of a gang, and visited nodes.
SEARCHED_TASKS, SEARCH_STEPS = 16, 10_000


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a driver and its resources for runs. address: other tasks connect to it.

    subnets: gangs get a network on one host, with addresses of this range. plans: only runs of
    users with these plans are placed here; empty: users without a dedicated node.
    """

    host: str
    address: str
    cpu: int
    memory_mb: int
    gpus: tuple[str, ...] = ()
    first_port: int = 30_000
    last_port: int = 32_767
    subnets: str | None = None
    plans: frozenset[str] = frozenset()

    @property
    def ports(self) -> range:
        return range(self.first_port, self.last_port + 1)

    @property
    def amounts(self) -> tuple[int, int, int, int]:
        return (self.cpu, self.memory_mb, len(self.gpus), len(self.ports))


class RoleDemand(msgspec.Struct, frozen=True):
    """Demand of each task of a role. fixed: required port numbers, ascending."""

    role: str
    tasks: int
    amounts: tuple[int, int, int, int]
    fixed: tuple[int, ...] = ()


class FreeCapacity(msgspec.Struct):
    """Free resources of a node. held, avoided: unavailable ports; fixed: ports that this gang takes
    by number.

    full: no free address block is left for another gang.
    """

    node: Node
    free: list[int]
    held: Container[int] = ()
    avoided: Container[int] = ()
    fixed: frozenset[int] = frozenset()
    full: bool = False

    def copy(self) -> "FreeCapacity":
        return FreeCapacity(
            self.node, self.free.copy(), self.held, self.avoided, self.fixed, self.full
        )

    def has(self, port: int) -> bool:
        return port not in self.held and port not in self.avoided and port not in self.fixed


#: For each demand, in order, the ascending node indexes of its tasks.
Assignment = list[list[int]]
#: Returns node indexes in order, with the maximum number of tasks on each.
_Order = Callable[[RoleDemand, list[FreeCapacity]], list[tuple[int, int]]]


class UnplacedTask(msgspec.Struct, frozen=True):
    """The first task that does not fit: its role, the number of placed tasks, and the remaining
    free resources.
    """

    need: RoleDemand
    index: int
    seated: int
    spaces: list[FreeCapacity]


def needs_of(roles: Sequence[TaskRole]) -> tuple[RoleDemand, ...]:
    out = []
    for r in roles:
        ports = r.all_ports()
        fixed = sorted(n for p in ports if p.begin for n in range(p.begin, p.begin + p.count))
        dynamic = sum(p.count for p in ports if not p.begin)
        out.append(RoleDemand(r.name, r.tasks, (r.cpu, r.memory_mb, r.gpu, dynamic), tuple(fixed)))
    return tuple(out)


def empty(nodes: Sequence[Node]) -> list[FreeCapacity]:
    """Return the free resources of idle nodes."""
    return [FreeCapacity(n, list(n.amounts)) for n in nodes]


def asked(needs: Sequence[RoleDemand], what: int) -> int:
    return sum(n.amounts[what] * n.tasks for n in needs)


def without_ports(needs: Sequence[RoleDemand]) -> tuple[RoleDemand, ...]:
    return tuple(
        RoleDemand(n.role, n.tasks, (n.amounts[CPU], n.amounts[MEMORY], n.amounts[GPU], 0))
        for n in needs
    )


def pack(needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity]) -> Assignment | None:
    """Return the node of each task, or None if no assignment was found. Does not change `spaces`."""
    if any(asked(needs, what) > sum(s.free[what] for s in spaces) for what in range(4)):
        return None
    if not all(any(room_for(n, s) for s in spaces) for n in needs):
        return None
    for by, order in (
        (_largest_share, _as_listed),
        (_largest_share, _evenly),
        (_largest_share, _tightest),
        (_all_shares, _as_listed),
    ):
        seating, stuck = _lay_out(needs, [s.copy() for s in spaces], by, order)
        if stuck is None:
            return seating
    return _search(needs, spaces)


def seat(
    needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity], among: Sequence[int]
) -> Assignment | None:
    """Pack onto the nodes with these indexes only. On nodes with subnets, all tasks go to one
    node.
    """
    for at in sorted(
        among, key=lambda at: (not asked(needs, GPU) and spaces[at].free[GPU] > 0, at)
    ):
        if spaces[at].node.subnets is not None and alone(needs, spaces[at]):
            return [[at] * need.tasks for need in needs]
    wide = [at for at in among if spaces[at].node.subnets is None]
    found = pack(needs, [spaces[at] for at in wide]) if wide else None
    return None if found is None else [[wide[n] for n in seats] for seats in found]


def alone(needs: Sequence[RoleDemand], space: FreeCapacity) -> bool:
    """Return whether the whole gang fits on this node, in one network."""
    return (
        not space.full
        and sum(n.tasks for n in needs) <= subnets.MEMBERS
        and pack(needs, [space]) is not None
    )


def stuck(needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity]) -> UnplacedTask | None:
    """Return the first unplaced task of the simplest order."""
    return _lay_out(needs, [s.copy() for s in spaces], _largest_share, _as_listed)[1]


def room_for(need: RoleDemand, space: FreeCapacity) -> int:
    """Return how many tasks of this demand fit on the node."""
    most = need.tasks
    for amount, free in zip(need.amounts, space.free, strict=True):
        if amount:
            most = min(most, free // amount)
    if most > 0 and need.fixed:
        # A port number exists once per node, and may lie in the range of dynamic ports.
        within = sum(p in space.node.ports for p in need.fixed)
        fits = space.free[PORT] >= need.amounts[PORT] + within and all(
            space.has(p) for p in need.fixed
        )
        return int(fits)
    return max(0, most)


def _take(need: RoleDemand, space: FreeCapacity, tasks: int) -> None:
    for what, amount in enumerate(need.amounts):
        space.free[what] -= amount * tasks
    if need.fixed:
        space.fixed |= frozenset(need.fixed)
        space.free[PORT] -= sum(p in space.node.ports for p in need.fixed)


def _lay_out(
    needs: Sequence[RoleDemand],
    spaces: list[FreeCapacity],
    by: Callable[[RoleDemand, list[int]], float],
    order: _Order,
) -> tuple[Assignment, UnplacedTask | None]:
    """Place the largest demand first: as many tasks on a node as fit, then the next node. Changes
    `spaces`.
    """
    total = [sum(s.free[what] for s in spaces) for what in range(4)]
    seating: Assignment = [[] for _ in needs]
    for i in sorted(range(len(needs)), key=lambda i: (not needs[i].fixed, -by(needs[i], total), i)):
        need = needs[i]
        for at, most in order(need, spaces):
            if (n := min(need.tasks - len(seating[i]), most, room_for(need, spaces[at]))) > 0:
                _take(need, spaces[at], n)
                seating[i].extend([at] * n)
            if len(seating[i]) == need.tasks:
                break
        else:
            return seating, UnplacedTask(need, len(seating[i]), sum(map(len, seating)), spaces)
        seating[i].sort()
    return seating, None


def _largest_share(need: RoleDemand, total: list[int]) -> float:
    return max(
        (amount / free if free > 0 else 1.0) if amount else 0.0
        for amount, free in zip(need.amounts, total, strict=True)
    )


def _all_shares(need: RoleDemand, total: list[int]) -> float:
    return sum(
        (amount / free if free > 0 else 1.0) if amount else 0.0
        for amount, free in zip(need.amounts, total, strict=True)
    )


def _spares_gpus(need: RoleDemand, space: FreeCapacity) -> bool:
    """Return whether the task should avoid this node: tasks without GPUs prefer nodes without free
    GPUs.
    """
    return not need.amounts[GPU] and space.free[GPU] > 0


def _as_listed(need: RoleDemand, spaces: list[FreeCapacity]) -> list[tuple[int, int]]:
    return sorted(
        ((at, need.tasks) for at in range(len(spaces))),
        key=lambda o: (_spares_gpus(need, spaces[o[0]]), o),
    )


def _tightest(need: RoleDemand, spaces: list[FreeCapacity]) -> list[tuple[int, int]]:
    room = [room_for(need, s) for s in spaces]
    return sorted(
        ((at, need.tasks) for at, n in enumerate(room) if n),
        key=lambda o: (_spares_gpus(need, spaces[o[0]]), room[o[0]], o),
    )


def _evenly(need: RoleDemand, spaces: list[FreeCapacity]) -> list[tuple[int, int]]:
    """Give each node a share proportional to its capacity, so that no node runs out of one resource
    while much of another is free.
    """
    room = [room_for(need, s) for s in spaces]
    return [
        (at, -(-need.tasks * n // sum(room)))
        for at, n in sorted(enumerate(room), key=lambda o: (-o[1], o[0]))
        if n
    ]


def _search(needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity]) -> Assignment | None:
    """Try all assignments until one fits or the step limit is reached. Small gangs only."""
    if sum(n.tasks for n in needs) > SEARCHED_TASKS:
        return None
    total = [sum(s.free[what] for s in spaces) for what in range(4)]
    order = sorted(
        range(len(needs)), key=lambda i: (not needs[i].fixed, -_largest_share(needs[i], total), i)
    )
    tasks = [i for i in order for _ in range(needs[i].tasks)]
    chosen = _Search([needs[i] for i in tasks], alike=not any(n.fixed for n in needs)).go_on(
        list(spaces), ()
    )
    if chosen is None:
        return None
    seating: Assignment = [[] for _ in needs]
    for i, at in zip(tasks, chosen, strict=True):
        seating[i].append(at)
    return seating


class _Search(msgspec.Struct):
    """tasks: demand of each task, grouped by role. alike: nodes with the same free amounts are
    interchangeable.
    """

    tasks: list[RoleDemand]
    alike: bool
    steps: int = SEARCH_STEPS

    def go_on(self, spaces: list[FreeCapacity], chosen: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the nodes of all tasks, given those of the first tasks."""
        n = len(chosen)
        if n == len(self.tasks):
            return chosen
        # tasks of a role are alike: node indexes only grow within a role
        first = chosen[-1] if n and self.tasks[n - 1] is self.tasks[n] else 0
        tried: set[tuple[int, ...]] = set()
        for at in range(first, len(spaces)):
            self.steps -= 1
            if self.steps < 0:
                return None
            seen = tuple(spaces[at].free)
            if (self.alike and seen in tried) or not room_for(self.tasks[n], spaces[at]):
                continue
            tried.add(seen)
            after = spaces.copy()
            after[at] = spaces[at].copy()
            _take(self.tasks[n], after[at], 1)
            if (found := self.go_on(after, (*chosen, at))) is not None:
                return found
        return None
