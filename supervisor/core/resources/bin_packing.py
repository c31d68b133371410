"""Which task of a gang sits on which node: each on one of them, all or none, by what is free there.

Tasks of a role are alike, so whole roles are laid out at once: the largest first, node after node,
in a few orders. A small gang that none of them finds a place for is searched for, so that it is not
said to be too much when there is a way. The same calls give the same places. Who holds what is in
`rooms`, what is said about it in `shortage`.
"""

from collections.abc import Callable, Container, Sequence

import msgspec

from ....protocol.jobs.roles import TaskRole
from . import subnets

#: What is counted: cores, MiB, GPUs, ports whose number does not matter.
CPU, MEMORY, GPU, PORT = range(4)
#: Gangs of so many tasks at most are searched for, and so many times a node is looked at.
SEARCHED_TASKS, SEARCH_STEPS = 16, 10_000


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a driver and what runs may have of it. address: what others connect to.

    subnets: gangs have a network of one host there, and addresses out of these. plans: only runs of
    users with these plans come here; none: everybody else's.
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
    """What each of the tasks of a role needs. fixed: numbers of ports that it must have, ascending."""

    role: str
    tasks: int
    amounts: tuple[int, int, int, int]
    fixed: tuple[int, ...] = ()


class FreeCapacity(msgspec.Struct):
    """What is free on a node. held, avoided: ports that nobody can have now; fixed: those that this
    gang takes by their number.

    full: no addresses are left for the network of another gang.
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


#: For each need, in their order, the places in the list of nodes where its tasks go, ascending.
Assignment = list[list[int]]
#: In which order of nodes, and how many tasks at most on each.
_Order = Callable[[RoleDemand, list[FreeCapacity]], list[tuple[int, int]]]


class UnplacedTask(msgspec.Struct, frozen=True):
    """The first task without a place: of which role, how many of the gang have one, and what is
    free beside them.
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
    """What is free when nothing runs."""
    return [FreeCapacity(n, list(n.amounts)) for n in nodes]


def asked(needs: Sequence[RoleDemand], what: int) -> int:
    return sum(n.amounts[what] * n.tasks for n in needs)


def without_ports(needs: Sequence[RoleDemand]) -> tuple[RoleDemand, ...]:
    return tuple(
        RoleDemand(n.role, n.tasks, (n.amounts[CPU], n.amounts[MEMORY], n.amounts[GPU], 0))
        for n in needs
    )


def pack(needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity]) -> Assignment | None:
    """Where each task goes; None: no way was found. Leaves `spaces` as they are."""
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
    """As `pack`, with those of the nodes alone that are numbered; where gangs have a network of one
    host, all tasks on one of these.
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
    """Is there room for all of it on this node, in a network of that host?"""
    return (
        not space.full
        and sum(n.tasks for n in needs) <= subnets.MEMBERS
        and pack(needs, [space]) is not None
    )


def stuck(needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity]) -> UnplacedTask | None:
    """How far the plainest way of laying out comes."""
    return _lay_out(needs, [s.copy() for s in spaces], _largest_share, _as_listed)[1]


def room_for(need: RoleDemand, space: FreeCapacity) -> int:
    """How many tasks of this need the node has room for."""
    most = need.tasks
    for amount, free in zip(need.amounts, space.free, strict=True):
        if amount:
            most = min(most, free // amount)
    if most > 0 and need.fixed:
        # a number is there once, and may be one of those that are given to anybody
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
    """The largest need first; for each as many tasks on a node as fit, then the next node. Changes
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
    """Tasks without GPUs go where there are none, if they can."""
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
    """To each node its share, by how many it has room for: so none runs out of one thing while it
    has much of another.
    """
    room = [room_for(need, s) for s in spaces]
    return [
        (at, -(-need.tasks * n // sum(room)))
        for at, n in sorted(enumerate(room), key=lambda o: (-o[1], o[0]))
        if n
    ]


def _search(needs: Sequence[RoleDemand], spaces: Sequence[FreeCapacity]) -> Assignment | None:
    """Every way there is, until one is found or the steps are used up; for small gangs only."""
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
    """tasks: what each needs, those of a role one after the other. alike: nodes with the same
    amounts free are the same.
    """

    tasks: list[RoleDemand]
    alike: bool
    steps: int = SEARCH_STEPS

    def go_on(self, spaces: list[FreeCapacity], chosen: tuple[int, ...]) -> tuple[int, ...] | None:
        """The nodes of all tasks, those of the first ones being chosen."""
        n = len(chosen)
        if n == len(self.tasks):
            return chosen
        # tasks of a role are alike: the second never goes before the first
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
