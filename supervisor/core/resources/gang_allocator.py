"""Gang allocator: the cores, memory, GPUs and ports of one driver's nodes, their holders, and the
gangs that wait for them.

A gang is all tasks of all roles of an attempt. It gets everything or nothing, each task on one
node. The lowest number goes first. If the first gang does not fit, it blocks all later ones, so
that small gangs do not starve a large one. A gang that would not fit on idle nodes (it was accepted
when there were more) waits aside and blocks nobody.

Ports are assigned in turn, so that a released port rests. Ports on which other processes listen are
avoided for a while. On nodes with subnets, each gang has a block of addresses; blocks used by other
networks are avoided as well. A host that is down gets no new tasks. Nothing is stored for ended
gangs. Functions on plain data; deterministic.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat

import msgspec

from ....protocol.jobs.roles import TaskPlace, TaskRole
from . import bin_packing, host_selection, subnets, unschedulable
from .bin_packing import PORT, FreeCapacity, Node, RoleDemand
from .concurrency_limits import RunKey
from .unschedulable import UnschedulableReason, too_much

__all__ = [
    "AVOID_BLOCK_SECS",
    "AVOID_SECS",
    "Allocation",
    "Node",
    "NodePool",
    "TaskIndex",
    "UnschedulableReason",
    "again",
    "broken",
    "foreign",
    "keep",
    "look_again",
    "next_look",
    "release",
    "request",
    "taken",
    "too_much",
    "usage",
    "wait_of",
]

#: (role, index)
TaskIndex = tuple[str, int]
#: A gang that got everything, and the placement of each task: by role in the requested order, then
#: by index.
Allocation = tuple[RunKey, tuple[TaskPlace, ...]]
#: Seconds for which a port is avoided after another process was found listening, and an address
#: block after another network was found using it. The latter is longer because a retry costs the
#: gang an attempt.
AVOID_SECS, AVOID_BLOCK_SECS = 60.0, 600.0


class NodeUsage(msgspec.Struct):
    """Held resources of one node. They exceed its capacity only through tasks placed before a
    restart.
    """

    cpu: int = 0
    memory_mb: int = 0
    #: number of holders: more than one only after a restart
    gpus: dict[str, int] = msgspec.field(default_factory=dict)
    ports: dict[int, int] = msgspec.field(default_factory=dict)
    #: end of the avoidance (monotonic), by port
    avoided: dict[int, float] = msgspec.field(default_factory=dict)
    #: where the search for a free port continues
    next_port: int = 0
    #: number of tasks with an address in each block, and the network of the blocks
    blocks: dict[int, int] = msgspec.field(default_factory=dict)
    #: end of the avoidance (monotonic), by block
    foreign: dict[int, float] = msgspec.field(default_factory=dict)
    subnets: str | None = None


class AllocationRequest(msgspec.Struct):
    """A waiting or placed gang. It waits until it has placements, and is removed with the last of
    them.
    """

    number: int
    roles: tuple[TaskRole, ...]
    seats: dict[TaskIndex, TaskPlace] = msgspec.field(default_factory=dict)
    kept: bool = False
    #: why it would not fit on idle nodes: then it is in no queue
    never: str | None = None
    #: plan of its user: some hosts are reserved for plans
    plan: str | None = None


class NodePool(msgspec.Struct):
    """The nodes of one driver. Their hosts are distinct."""

    nodes: tuple[Node, ...]
    books: dict[str, NodeUsage] = msgspec.field(default_factory=dict)
    claims: dict[RunKey, AllocationRequest] = msgspec.field(default_factory=dict)
    #: waiting (number, ticket), lowest first
    queue: list[tuple[int, RunKey]] = msgspec.field(default_factory=list)
    #: unavailable hosts
    down: set[str] = msgspec.field(default_factory=set)

    def __post_init__(self) -> None:
        for n in self.nodes:
            self.books.setdefault(n.host, NodeUsage(subnets=n.subnets))


def request(
    room: NodePool,
    ticket: RunKey,
    number: int,
    roles: Sequence[TaskRole],
    mono: float,
    plan: str | None = None,
) -> list[Allocation]:
    """Request placements for all tasks of all roles. Return the gangs that got theirs now (this
    one, or none).
    """
    if ticket in room.claims:
        return []
    never = too_much(room.nodes, roles, plan)
    room.claims[ticket] = AllocationRequest(number, tuple(roles), never=never, plan=plan)
    if never is not None:
        return []
    insort(room.queue, (number, ticket))
    # behind a gang that does not fit, nothing is available
    return _settle(room, mono) if room.queue[0][1] == ticket else []


def keep(
    room: NodePool, ticket: RunKey, roles: Sequence[TaskRole], places: Iterable[TaskPlace]
) -> None:
    """Record tasks placed before a restart, even above capacity. A gang may be recorded in several
    calls.
    """
    claim = room.claims.get(ticket)
    if claim is not None and not claim.seats:
        _leave_queue(room, ticket)
        claim = None
    if claim is None:
        # it was placed before all gangs that wait from now on
        claim = AllocationRequest(-1, tuple(roles))
    claim.kept = True
    for place in places:
        seat = (place.role, place.index)
        if seat not in claim.seats:
            claim.seats[seat] = place
            _book(room, claim, place, 1)
    if claim.seats:
        room.claims[ticket] = claim


def release(
    room: NodePool, ticket: RunKey, mono: float, seat: TaskIndex | None = None
) -> list[Allocation]:
    """Release everything that a gang holds or waits for (or one of its placements). Return the
    gangs that got everything now.
    """
    claim = room.claims.get(ticket)
    if claim is None:
        return []
    if not claim.seats and seat is None:
        first = _leave_queue(room, ticket)
        return _settle(room, mono) if first else []
    for s in tuple(claim.seats) if seat is None else (seat,):
        place = claim.seats.pop(s, None)
        if place is None:
            return []
        _book(room, claim, place, -1)
    if not claim.seats:
        del room.claims[ticket]
    return _settle(room, mono)


def taken(
    room: NodePool,
    ticket: RunKey,
    ports: Mapping[str, Sequence[int]],
    mono: float,
) -> tuple[tuple[TaskPlace, ...] | None, list[Allocation]]:
    """Avoid these ports for a while, because other processes listen there. Return the gang's
    placements with other ports.

    Return None if no other ports are free (or the gang has no placements): the gang waits again
    with its number. It may be among the granted gangs, then on other hosts.
    """
    for host, numbers in ports.items():
        if host in room.books:
            room.books[host].avoided.update(dict.fromkeys(numbers, mono + AVOID_SECS))
    claim = room.claims.get(ticket)
    if claim is None or not claim.seats:
        return None, _settle(room, mono)
    if _change_ports(room, claim, ports):
        return tuple(claim.seats.values()), _settle(room, mono)
    return None, again(room, ticket, mono)


def foreign(room: NodePool, host: str, address: str, mono: float) -> None:
    """Avoid the block of this address for a while, because another network uses it."""
    books = room.books.get(host)
    block = (
        None if books is None or books.subnets is None else subnets.block_of(books.subnets, address)
    )
    if books is not None and block is not None:
        books.foreign[block] = mono + AVOID_BLOCK_SECS


def again(room: NodePool, ticket: RunKey, mono: float) -> list[Allocation]:
    """Return the gang's placements and queue it again with its number. Return the gangs that got
    everything now, possibly this one.
    """
    claim = room.claims[ticket]
    for place in claim.seats.values():
        _book(room, claim, place, -1)
    claim.seats, claim.kept = {}, False
    insort(room.queue, (claim.number, ticket))
    return _settle(room, mono)


def look_again(room: NodePool, mono: float) -> list[Allocation]:
    """Retry after time has passed (avoided ports may be free) or a host came back. Return the gangs
    that got everything now.
    """
    return _settle(room, mono)


def next_look(room: NodePool) -> float | None:
    """Return the time (monotonic) of the next retry while gangs wait: the end of the next
    avoidance. None if no retry is needed.
    """
    untils = (
        until
        for b in room.books.values()
        for avoided in (b.avoided, b.foreign)
        for until in avoided.values()
    )
    return min(untils, default=None) if room.queue else None


def wait_of(room: NodePool, ticket: RunKey) -> UnschedulableReason | None:
    """Return why a gang waits, or None if it does not wait here."""
    claim = room.claims.get(ticket)
    if claim is None or claim.seats:
        return None
    if claim.never is not None:
        return UnschedulableReason(
            "insufficient",
            0,
            f"it was accepted when there was more, and does not fit even if nothing else runs: {claim.never}",
        )
    if ahead := bisect_left(room.queue, (claim.number, ticket)):
        return unschedulable.behind(ahead)
    spaces = _spaces(room)
    return unschedulable.lack(
        bin_packing.needs_of(claim.roles), [spaces[at] for at in _open(room, claim.plan)]
    )


def usage(room: NodePool) -> list[dict[str, object]]:
    """Return held and total resources of each node."""
    return [
        {
            "host": n.host,
            "cpu": [b.cpu, n.cpu],
            "memory_mb": [b.memory_mb, n.memory_mb],
            "gpus": [len(b.gpus), len(n.gpus)],
            "ports": len(b.ports),
        }
        for n in room.nodes
        for b in (room.books[n.host],)
    ]


def broken(room: NodePool) -> list[str]:
    """Return violated invariants as sentences, for tests and the simulator."""
    waits = {t: c for t, c in room.claims.items() if not c.seats and c.never is None}
    out = [
        f"{t} waits and is not in the queue"
        for t, c in waits.items()
        if (c.number, t) not in room.queue
    ]
    out.extend(
        f"{t} stands in the queue and does not wait" for _, t in room.queue if t not in waits
    )
    if room.queue != sorted(set(room.queue)):
        out.append("the queue is out of order")
    for node in room.nodes:
        out.extend(f"{node.host}: {wrong}" for wrong in _wrong_books(room, node))
    if room.queue and not out and _plan(room, room.claims[room.queue[0][1]]) is not None:
        out.append(f"there is room for {room.queue[0][1]}, and it waits")
    return out


def _wrong_books(room: NodePool, node: Node) -> list[str]:
    seen, books = NodeUsage(subnets=node.subnets), room.books[node.host]
    kept = False
    owners: dict[int, RunKey] = {}
    out: list[str] = []
    for ticket, claim in room.claims.items():
        asked = {(r.name, i): r for r in claim.roles for i in range(r.tasks)}
        out.extend(
            f"{ticket} has {seat}, which it did not ask for"
            for seat in claim.seats
            if seat not in asked
        )
        for seat, place in claim.seats.items():
            if place.host == node.host and seat in asked:
                _add(seen, asked[seat], place, 1)
                kept = kept or claim.kept
                block = (
                    None if node.subnets is None else subnets.block_of(node.subnets, place.address)
                )
                if block is not None and owners.setdefault(block, ticket) != ticket:
                    out.append(f"{ticket} and {owners[block]} have addresses of one network")
    if any(
        getattr(seen, what) != getattr(books, what)
        for what in ("cpu", "memory_mb", "gpus", "ports", "blocks")
    ):
        out.append("the books differ from what the gangs hold")
    if kept:
        return out
    if books.cpu > node.cpu or books.memory_mb > node.memory_mb:
        out.append("more is held than there is")
    out.extend(f"GPU {g} is held by {n}" for g, n in books.gpus.items() if n > 1)
    out.extend(f"GPU {g} is held, and there is none" for g in books.gpus if g not in node.gpus)
    out.extend(f"port {p} is held by {n}" for p, n in books.ports.items() if n > 1)
    return out


def _settle(room: NodePool, mono: float) -> list[Allocation]:
    """Place waiting gangs in order, as long as the first one fits."""
    for books in room.books.values():
        for avoided in (books.avoided, books.foreign):
            for number in [n for n, until in avoided.items() if until <= mono]:
                del avoided[number]
    out: list[Allocation] = []
    while room.queue:
        _, ticket = room.queue[0]
        claim = room.claims[ticket]
        plan = _plan(room, claim)
        if plan is None:
            break
        del room.queue[0]
        places = _places(room, claim.roles, *plan)
        claim.seats = {(p.role, p.index): p for p in places}
        for p in places:
            _book(room, claim, p, 1)
        if not places:
            del room.claims[ticket]
        out.append((ticket, places))
    return out


def _leave_queue(room: NodePool, ticket: RunKey) -> bool:
    """Remove a waiting gang. Return whether it was the first."""
    claim = room.claims.pop(ticket)
    if claim.never is not None:
        return False
    at = bisect_left(room.queue, (claim.number, ticket))
    del room.queue[at]
    return at == 0


def _spaces(room: NodePool) -> list[FreeCapacity]:
    out = []
    for n in room.nodes:
        b = room.books[n.host]
        ports = (
            len(n.ports)
            - sum(p in n.ports for p in b.ports)
            - sum(p in n.ports and p not in b.ports for p in b.avoided)
        )
        free = [
            n.cpu - b.cpu,
            n.memory_mb - b.memory_mb,
            sum(g not in b.gpus for g in n.gpus),
            ports,
        ]
        full = n.subnets is not None and _free_block(n, b) is None
        out.append(FreeCapacity(n, [max(0, f) for f in free], b.ports, b.avoided, full=full))
    return out


def _open(room: NodePool, plan: str | None) -> list[int]:
    """Return the indexes of nodes that are available to users with this plan."""
    may = {n.host for n in host_selection.allowed(room.nodes, plan)} - room.down
    return [at for at, n in enumerate(room.nodes) if n.host in may]


def _plan(
    room: NodePool, claim: AllocationRequest
) -> tuple[tuple[RoleDemand, ...], bin_packing.Assignment] | None:
    needs, among = bin_packing.needs_of(claim.roles), _open(room, claim.plan)
    if _hopeless(room, needs, among):
        return None
    seating = bin_packing.seat(needs, _spaces(room), among)
    return None if seating is None else (needs, seating)


def _hopeless(room: NodePool, needs: Sequence[RoleDemand], among: Sequence[int]) -> bool:
    """Return whether all nodes together have too little free. A cheap check, because this runs at
    every release.
    """
    books = [(n, room.books[n.host]) for n in (room.nodes[at] for at in among)]
    free = (
        sum(max(0, n.cpu - b.cpu) for n, b in books),
        sum(max(0, n.memory_mb - b.memory_mb) for n, b in books),
        sum(len(n.gpus) for n, _ in books),
        sum(len(n.ports) for n, _ in books),
    )
    return any(bin_packing.asked(needs, what) > free[what] for what in range(len(free)))


def _places(
    room: NodePool,
    roles: Sequence[TaskRole],
    needs: Sequence[RoleDemand],
    seating: bin_packing.Assignment,
) -> tuple[TaskPlace, ...]:
    """Return placements with names and numbers for a plan: first the ports requested by number,
    then any free ones.
    """
    count = [0] * len(room.nodes)
    fixed: list[set[int]] = [set() for _ in room.nodes]
    for need, seats in zip(needs, seating, strict=True):
        for at in seats:
            count[at] += need.amounts[PORT]
            fixed[at].update(need.fixed)
    numbers = [
        iter(_next_ports(n, room.books[n.host], count[at], fixed[at]))
        for at, n in enumerate(room.nodes)
    ]
    gpus = [iter([g for g in n.gpus if g not in room.books[n.host].gpus]) for n in room.nodes]
    addresses = [_addresses(n, room.books[n.host]) for n in room.nodes]
    out = []
    for role, seats in zip(roles, seating, strict=True):
        labels = role.all_ports()
        for index, at in enumerate(seats):
            ports = {
                p.label: tuple(
                    range(p.begin, p.begin + p.count)
                    if p.begin
                    else sorted(islice(numbers[at], p.count))
                )
                for p in labels
            }
            node = room.nodes[at]
            out.append(
                TaskPlace(
                    role=role.name,
                    index=index,
                    host=node.host,
                    address=next(addresses[at]),
                    ports=ports,
                    gpus=tuple(islice(gpus[at], role.gpu)),
                )
            )
    return tuple(out)


def _free_block(node: Node, books: NodeUsage) -> int | None:
    return subnets.free_block(node.subnets, books.blocks.keys() | books.foreign.keys())


def _addresses(node: Node, books: NodeUsage) -> Iterator[str]:
    """Return the addresses of the tasks of one gang on this node, in order."""
    block = _free_block(node, books)
    if node.subnets is None or block is None:
        return repeat(node.address)
    return (subnets.address(node.subnets, block, n) for n in range(subnets.MEMBERS))


def _next_ports(node: Node, books: NodeUsage, count: int, but: Iterable[int] = ()) -> list[int]:
    """Return the next free ports in turn, fewer than `count` if not enough are free. Advances the
    position.
    """
    if not count:
        return []
    first, end = node.ports.start, node.ports.stop
    start = min(max(books.next_port, first), end)
    turn = (p for r in (range(start, end), range(first, start)) for p in r)
    out = list(
        islice(
            (p for p in turn if p not in books.ports and p not in books.avoided and p not in but),
            count,
        )
    )
    if out:
        books.next_port = out[-1] + 1
    return out


def _change_ports(
    room: NodePool, claim: AllocationRequest, lost: Mapping[str, Sequence[int]]
) -> bool:
    """Give the gang other ports on the same hosts. Return False, with unchanged placements, if
    there are none.
    """
    any_number = {(r.name, p.label) for r in claim.roles for p in r.all_ports() if not p.begin}
    nodes = {n.host: n for n in room.nodes}
    fresh: dict[str, list[int]] = {}
    for host, bad in lost.items():
        here = [p for p in claim.seats.values() if p.host == host]
        gone = [
            (p.role, label) for p in here for label, has in p.ports.items() for n in has if n in bad
        ]
        if not gone:
            continue
        if host not in nodes or not any_number.issuperset(gone):
            return False
        fresh[host] = _next_ports(nodes[host], room.books[host], len(gone))
        if len(fresh[host]) < len(gone):
            return False
    for seat, place in claim.seats.items():
        numbers = fresh.get(place.host, [])
        bad = lost.get(place.host, ())
        ports = {
            label: tuple(sorted(numbers.pop(0) if n in bad else n for n in has))
            for label, has in place.ports.items()
        }
        if ports != place.ports:
            _book(room, claim, place, -1)
            claim.seats[seat] = msgspec.structs.replace(place, ports=ports)
            _book(room, claim, claim.seats[seat], 1)
    return True


def _book(room: NodePool, claim: AllocationRequest, place: TaskPlace, sign: int) -> None:
    """Add or remove the resources of one task. Hosts that are no longer configured are not counted."""
    books = room.books.get(place.host)
    if books is not None:
        _add(books, next(r for r in claim.roles if r.name == place.role), place, sign)


def _add(books: NodeUsage, role: TaskRole, place: TaskPlace, sign: int) -> None:
    books.cpu += sign * role.cpu
    books.memory_mb += sign * role.memory_mb
    for g in place.gpus:
        if not (n := books.gpus.get(g, 0) + sign):
            del books.gpus[g]
        else:
            books.gpus[g] = n
    block = None if books.subnets is None else subnets.block_of(books.subnets, place.address)
    if block is not None:
        books.blocks[block] = books.blocks.get(block, 0) + sign
        if not books.blocks[block]:
            del books.blocks[block]
    for p in (n for numbers in place.ports.values() for n in numbers):
        if not (n := books.ports.get(p, 0) + sign):
            del books.ports[p]
        else:
            books.ports[p] = n
