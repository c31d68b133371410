"""Bin packing of gangs: assigns each task to one node by the free resources, all tasks or none.

Tasks of a role are alike, so a whole role is placed at once: the largest role first, node after
node, in a few orders. If no order works, a small gang is searched exhaustively, so that it is not
rejected when a solution exists. Deterministic. `gang_allocator` records the holders,
`unschedulable` explains failures.
"""

from collections.abc import Callable, Container, Sequence

import msgspec

from ....protocol.jobs.roles import TaskRole
from . import gpu_types, subnets

#: Indexes of amounts: cores, MiB, GPUs, ports with any number.
CPU, MEMORY, GPU, PORT = range(4)
#: Limits of the exhaustive search: tasks of a gang, and visited nodes.
SEARCHED_TASKS, SEARCH_STEPS = 16, 10_000


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a driver and its resources for runs. address: other tasks connect to it.

    subnets: gangs get a network on one host, with addresses of this range. plans: only runs of
    users with these plans are placed here; empty: users without a dedicated node. gpu_names: of
    each GPU, "" if unknown. start_port: where the first search for a free port begins.
    """

    host: str
    address: str
    cpu: int
    memory_mb: int
    gpus: tuple[str, ...] = ()
    gpu_names: tuple[str, ...] = ()
    first_port: int = 30_000
    last_port: int = 32_767
    start_port: int = 0
    subnets: str | None = None
    plans: frozenset[str] = frozenset()

    @property
    def ports(self) -> range:
        return range(self.first_port, self.last_port + 1)

    @property
    def amounts(self) -> tuple[int, int, int, int]:
        return (self.cpu, self.memory_mb, len(self.gpus), len(self.ports))


class RoleDemand(msgspec.Struct, frozen=True):
    """Demand of each task of a role. fixed: required port numbers, ascending. gpu_type: of the
    host; "": any.
    """

    role: str
    tasks: int
    amounts: tuple[int, int, int, int]
    fixed: tuple[int, ...] = ()
    gpu_type: str = ""


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

    def has_type(self, demand: RoleDemand) -> bool:
        return gpu_types.has_type(self.node.gpu_names, demand.gpu_type)

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

    demand: RoleDemand
    index: int
    placed: int
    capacities: list[FreeCapacity]


def demands_of(roles: Sequence[TaskRole]) -> tuple[RoleDemand, ...]:
    out = []
    for r in roles:
        ports = r.all_ports()
        fixed = sorted(n for p in ports if p.begin for n in range(p.begin, p.begin + p.count))
        dynamic = sum(p.count for p in ports if not p.begin)
        amounts = (r.cpu, r.memory_mb, r.gpu, dynamic)
        out.append(RoleDemand(r.name, r.tasks, amounts, tuple(fixed), r.gpu_type or ""))
    return tuple(out)


def idle_capacities(nodes: Sequence[Node]) -> list[FreeCapacity]:
    """Return the free resources of idle nodes."""
    return [FreeCapacity(n, list(n.amounts)) for n in nodes]


def total(demands: Sequence[RoleDemand], resource: int) -> int:
    return sum(n.amounts[resource] * n.tasks for n in demands)


def without_ports(demands: Sequence[RoleDemand]) -> tuple[RoleDemand, ...]:
    return tuple(
        msgspec.structs.replace(n, amounts=(*n.amounts[:PORT], 0), fixed=()) for n in demands
    )


def pack(demands: Sequence[RoleDemand], capacities: Sequence[FreeCapacity]) -> Assignment | None:
    """Return the node of each task, or None if no assignment was found. Does not change
    `capacities`.
    """
    if any(
        total(demands, resource) > sum(s.free[resource] for s in capacities)
        for resource in range(4)
    ):
        return None
    if not all(any(tasks_that_fit(n, s) for s in capacities) for n in demands):
        return None
    for by, order in (
        (_largest_share, _as_listed),
        (_largest_share, _evenly),
        (_largest_share, _tightest),
        (_all_shares, _as_listed),
    ):
        assignment, stuck = _assign_in_order(demands, [s.copy() for s in capacities], by, order)
        if stuck is None:
            return assignment
    return _search(demands, capacities)


def pack_onto(
    demands: Sequence[RoleDemand], capacities: Sequence[FreeCapacity], among: Sequence[int]
) -> Assignment | None:
    """Pack onto the nodes with these indexes only. On nodes with subnets, all tasks go to one
    node.
    """
    for at in sorted(
        among, key=lambda at: (not total(demands, GPU) and capacities[at].free[GPU] > 0, at)
    ):
        if capacities[at].node.subnets is not None and fits_alone(demands, capacities[at]):
            return [[at] * demand.tasks for demand in demands]
    wide = [at for at in among if capacities[at].node.subnets is None]
    found = pack(demands, [capacities[at] for at in wide]) if wide else None
    return None if found is None else [[wide[n] for n in nodes] for nodes in found]


def fits_alone(demands: Sequence[RoleDemand], capacity: FreeCapacity) -> bool:
    """Return whether the whole gang fits on this node, in one network."""
    return (
        not capacity.full
        and sum(n.tasks for n in demands) <= subnets.MEMBERS
        and pack(demands, [capacity]) is not None
    )


def first_unplaced(
    demands: Sequence[RoleDemand], capacities: Sequence[FreeCapacity]
) -> UnplacedTask | None:
    """Return the first unplaced task of the simplest order."""
    return _assign_in_order(demands, [s.copy() for s in capacities], _largest_share, _as_listed)[1]


def tasks_that_fit(demand: RoleDemand, capacity: FreeCapacity) -> int:
    """Return how many tasks of this demand fit on the node."""
    if demand.gpu_type and not capacity.has_type(demand):
        return 0
    most = demand.tasks
    for amount, free in zip(demand.amounts, capacity.free, strict=True):
        if amount:
            most = min(most, free // amount)
    if most > 0 and demand.fixed:
        # A port number exists once per node, and may lie in the range of dynamic ports.
        within = sum(p in capacity.node.ports for p in demand.fixed)
        fits = capacity.free[PORT] >= demand.amounts[PORT] + within and all(
            capacity.has(p) for p in demand.fixed
        )
        return int(fits)
    return max(0, most)


def _reserve(demand: RoleDemand, capacity: FreeCapacity, tasks: int) -> None:
    for resource, amount in enumerate(demand.amounts):
        capacity.free[resource] -= amount * tasks
    if demand.fixed:
        capacity.fixed |= frozenset(demand.fixed)
        capacity.free[PORT] -= sum(p in capacity.node.ports for p in demand.fixed)


def _assign_in_order(
    demands: Sequence[RoleDemand],
    capacities: list[FreeCapacity],
    by: Callable[[RoleDemand, list[int]], float],
    order: _Order,
) -> tuple[Assignment, UnplacedTask | None]:
    """Place the demand with the fewest possible hosts first, then the largest: as many tasks on a
    node as fit, then the next node. Changes `capacities`.
    """
    total = [sum(s.free[resource] for s in capacities) for resource in range(4)]
    assignment: Assignment = [[] for _ in demands]
    hosts = [_hosts(demand, capacities) for demand in demands]
    for i in sorted(
        range(len(demands)),
        key=lambda i: (hosts[i], not demands[i].fixed, -by(demands[i], total), i),
    ):
        demand = demands[i]
        for at, most in order(demand, capacities):
            if (
                n := min(
                    demand.tasks - len(assignment[i]), most, tasks_that_fit(demand, capacities[at])
                )
            ) > 0:
                _reserve(demand, capacities[at], n)
                assignment[i].extend([at] * n)
            if len(assignment[i]) == demand.tasks:
                break
        else:
            return assignment, UnplacedTask(
                demand, len(assignment[i]), sum(map(len, assignment)), capacities
            )
        assignment[i].sort()
    return assignment, None


def _hosts(demand: RoleDemand, capacities: Sequence[FreeCapacity]) -> int:
    """Return the number of nodes with the demand's type of GPUs; all if it has no type."""
    if not demand.gpu_type:
        return len(capacities)
    return sum(s.has_type(demand) for s in capacities)


def _largest_share(demand: RoleDemand, total: list[int]) -> float:
    return max(
        (amount / free if free > 0 else 1.0) if amount else 0.0
        for amount, free in zip(demand.amounts, total, strict=True)
    )


def _all_shares(demand: RoleDemand, total: list[int]) -> float:
    return sum(
        (amount / free if free > 0 else 1.0) if amount else 0.0
        for amount, free in zip(demand.amounts, total, strict=True)
    )


def _spares_gpus(demand: RoleDemand, capacity: FreeCapacity) -> bool:
    """Return whether the task should avoid this node: tasks without GPUs prefer nodes without free
    GPUs.
    """
    return not demand.amounts[GPU] and capacity.free[GPU] > 0


def _as_listed(demand: RoleDemand, capacities: list[FreeCapacity]) -> list[tuple[int, int]]:
    return sorted(
        ((at, demand.tasks) for at in range(len(capacities))),
        key=lambda o: (_spares_gpus(demand, capacities[o[0]]), o),
    )


def _tightest(demand: RoleDemand, capacities: list[FreeCapacity]) -> list[tuple[int, int]]:
    fits = [tasks_that_fit(demand, s) for s in capacities]
    return sorted(
        ((at, demand.tasks) for at, n in enumerate(fits) if n),
        key=lambda o: (_spares_gpus(demand, capacities[o[0]]), fits[o[0]], o),
    )


def _evenly(demand: RoleDemand, capacities: list[FreeCapacity]) -> list[tuple[int, int]]:
    """Give each node a share proportional to its capacity, so that no node runs out of one resource
    while much of another is free.
    """
    fits = [tasks_that_fit(demand, s) for s in capacities]
    return [
        (at, -(-demand.tasks * n // sum(fits)))
        for at, n in sorted(enumerate(fits), key=lambda o: (-o[1], o[0]))
        if n
    ]


def _search(demands: Sequence[RoleDemand], capacities: Sequence[FreeCapacity]) -> Assignment | None:
    """Try all assignments until one fits or the step limit is reached. Small gangs only."""
    if sum(n.tasks for n in demands) > SEARCHED_TASKS:
        return None
    total = [sum(s.free[resource] for s in capacities) for resource in range(4)]
    order = sorted(
        range(len(demands)),
        key=lambda i: (not demands[i].fixed, -_largest_share(demands[i], total), i),
    )
    tasks = [i for i in order for _ in range(demands[i].tasks)]
    chosen = _Search([demands[i] for i in tasks], alike=not any(n.fixed for n in demands)).extend(
        list(capacities), ()
    )
    if chosen is None:
        return None
    assignment: Assignment = [[] for _ in demands]
    for i, at in zip(tasks, chosen, strict=True):
        assignment[i].append(at)
    return assignment


class _Search(msgspec.Struct):
    """tasks: demand of each task, grouped by role. alike: nodes with the same free amounts are
    interchangeable.
    """

    tasks: list[RoleDemand]
    alike: bool
    steps: int = SEARCH_STEPS

    def extend(
        self, capacities: list[FreeCapacity], chosen: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """Return the nodes of all tasks, given those of the first tasks."""
        n = len(chosen)
        if n == len(self.tasks):
            return chosen
        # tasks of a role are alike: node indexes only grow within a role
        first = chosen[-1] if n and self.tasks[n - 1] is self.tasks[n] else 0
        tried: set[tuple[object, ...]] = set()
        for at in range(first, len(capacities)):
            self.steps -= 1
            if self.steps < 0:
                return None
            seen = (*capacities[at].free, capacities[at].node.gpu_names)
            if (self.alike and seen in tried) or not tasks_that_fit(self.tasks[n], capacities[at]):
                continue
            tried.add(seen)
            after = capacities.copy()
            after[at] = capacities[at].copy()
            _reserve(self.tasks[n], after[at], 1)
            if (found := self.extend(after, (*chosen, at))) is not None:
                return found
        return None
