"""Gang allocator: the cores, memory, GPUs and ports of one driver's nodes, their holders, and the
gangs that wait for them.

A gang is all tasks of all roles of an attempt. It gets everything or nothing, each task on one
node. The lowest number goes first. If the first gang does not fit, it blocks all later ones, so
that small gangs do not starve a large one. A gang that would not fit even on idle nodes (it was
accepted when there were more nodes) waits outside the queue and blocks no other gang.

Ports are assigned in turn, so that a released port is not reused at once. Ports on which other
processes listen are avoided for a while. On nodes with subnets, each gang has a block of addresses;
blocks used by other networks are avoided as well. A host that is down gets no new tasks. Nothing is
stored for ended gangs. Functions on plain data; deterministic.
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
    "avoid_block",
    "next_retry",
    "ports_taken",
    "record_placed",
    "release",
    "request",
    "requeue",
    "retry",
    "too_much",
    "usage",
    "violations",
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
    """Held resources of one node. Only tasks placed before a restart can make them exceed its
    capacity.
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
    placements: dict[TaskIndex, TaskPlace] = msgspec.field(default_factory=dict)
    kept: bool = False
    #: why it would not fit on idle nodes; if set, the gang is in no queue
    never: str | None = None
    #: plan of its user: some hosts are reserved for plans
    plan: str | None = None


class NodePool(msgspec.Struct):
    """The nodes of one driver. Their hosts are distinct."""

    nodes: tuple[Node, ...]
    usage: dict[str, NodeUsage] = msgspec.field(default_factory=dict)
    claims: dict[RunKey, AllocationRequest] = msgspec.field(default_factory=dict)
    #: waiting (number, ticket), lowest first
    queue: list[tuple[int, RunKey]] = msgspec.field(default_factory=list)
    #: unavailable hosts
    down: set[str] = msgspec.field(default_factory=set)

    def __post_init__(self) -> None:
        for n in self.nodes:
            self.usage.setdefault(n.host, NodeUsage(subnets=n.subnets))


def request(
    pool: NodePool,
    ticket: RunKey,
    number: int,
    roles: Sequence[TaskRole],
    mono: float,
    plan: str | None = None,
) -> list[Allocation]:
    """Request placements for all tasks of all roles. Return the gangs that got theirs now (this
    one, or none).
    """
    if ticket in pool.claims:
        return []
    never = too_much(pool.nodes, roles, plan)
    pool.claims[ticket] = AllocationRequest(number, tuple(roles), never=never, plan=plan)
    if never is not None:
        return []
    insort(pool.queue, (number, ticket))
    # behind a gang that does not fit, nothing is available
    return _grant(pool, mono) if pool.queue[0][1] == ticket else []


def record_placed(
    pool: NodePool, ticket: RunKey, roles: Sequence[TaskRole], places: Iterable[TaskPlace]
) -> None:
    """Record tasks placed before a restart, even above capacity. A gang may be recorded in several
    calls.
    """
    claim = pool.claims.get(ticket)
    if claim is not None and not claim.placements:
        _leave_queue(pool, ticket)
        claim = None
    if claim is None:
        # it precedes all gangs that wait from now on
        claim = AllocationRequest(-1, tuple(roles))
    claim.kept = True
    for place in places:
        task = (place.role, place.index)
        if task not in claim.placements:
            claim.placements[task] = place
            _account(pool, claim, place, 1)
    if claim.placements:
        pool.claims[ticket] = claim


def release(
    pool: NodePool, ticket: RunKey, mono: float, task: TaskIndex | None = None
) -> list[Allocation]:
    """Release everything that a gang holds or waits for (or one of its placements). Return the
    gangs that got everything now.
    """
    claim = pool.claims.get(ticket)
    if claim is None:
        return []
    if not claim.placements and task is None:
        first = _leave_queue(pool, ticket)
        return _grant(pool, mono) if first else []
    for s in tuple(claim.placements) if task is None else (task,):
        place = claim.placements.pop(s, None)
        if place is None:
            return []
        _account(pool, claim, place, -1)
    if not claim.placements:
        del pool.claims[ticket]
    return _grant(pool, mono)


def ports_taken(
    pool: NodePool,
    ticket: RunKey,
    ports: Mapping[str, Sequence[int]],
    mono: float,
) -> tuple[tuple[TaskPlace, ...] | None, list[Allocation]]:
    """Avoid these ports for a while, because other processes listen there. Return the gang's
    placements with other ports.

    Return None if no other ports are free (or the gang has no placements): the gang waits again
    with its number, and may be granted other hosts at once.
    """
    for host, numbers in ports.items():
        if host in pool.usage:
            pool.usage[host].avoided.update(dict.fromkeys(numbers, mono + AVOID_SECS))
    claim = pool.claims.get(ticket)
    if claim is None or not claim.placements:
        return None, _grant(pool, mono)
    if _change_ports(pool, claim, ports):
        return tuple(claim.placements.values()), _grant(pool, mono)
    return None, requeue(pool, ticket, mono)


def avoid_block(pool: NodePool, host: str, address: str, mono: float) -> None:
    """Avoid the block of this address for a while, because another network uses it."""
    used = pool.usage.get(host)
    block = (
        None if used is None or used.subnets is None else subnets.block_of(used.subnets, address)
    )
    if used is not None and block is not None:
        used.foreign[block] = mono + AVOID_BLOCK_SECS


def requeue(pool: NodePool, ticket: RunKey, mono: float) -> list[Allocation]:
    """Release the gang's placements and queue it again with its number. Return the gangs that got
    everything now, possibly this one.
    """
    claim = pool.claims[ticket]
    for place in claim.placements.values():
        _account(pool, claim, place, -1)
    claim.placements, claim.kept = {}, False
    insort(pool.queue, (claim.number, ticket))
    return _grant(pool, mono)


def retry(pool: NodePool, mono: float) -> list[Allocation]:
    """Retry after time has passed (avoided ports may be free) or a host came back. Return the gangs
    that got everything now.
    """
    return _grant(pool, mono)


def next_retry(pool: NodePool) -> float | None:
    """Return the time (monotonic) of the next retry while gangs wait: the end of the next
    avoidance. None if no retry is needed.
    """
    untils = (
        until
        for b in pool.usage.values()
        for avoided in (b.avoided, b.foreign)
        for until in avoided.values()
    )
    return min(untils, default=None) if pool.queue else None


def wait_of(pool: NodePool, ticket: RunKey) -> UnschedulableReason | None:
    """Return why a gang waits, or None if it does not wait here."""
    claim = pool.claims.get(ticket)
    if claim is None or claim.placements:
        return None
    if claim.never is not None:
        return UnschedulableReason(
            "insufficient",
            0,
            f"it was accepted when more resources were configured, and no longer fits even if nothing else runs: {claim.never}",
        )
    if ahead := bisect_left(pool.queue, (claim.number, ticket)):
        return unschedulable.behind(ahead)
    capacities = _free_capacities(pool)
    return unschedulable.shortage(
        bin_packing.demands_of(claim.roles),
        [capacities[at] for at in _allowed_nodes(pool, claim.plan)],
    )


def usage(pool: NodePool) -> list[dict[str, object]]:
    """Return held and total resources of each node."""
    return [
        {
            "host": n.host,
            "cpu": [b.cpu, n.cpu],
            "memory_mb": [b.memory_mb, n.memory_mb],
            "gpus": [len(b.gpus), len(n.gpus)],
            "ports": len(b.ports),
        }
        for n in pool.nodes
        for b in (pool.usage[n.host],)
    ]


def violations(pool: NodePool) -> list[str]:
    """Return violated invariants as sentences, for tests and the simulator."""
    waits = {t: c for t, c in pool.claims.items() if not c.placements and c.never is None}
    out = [
        f"{t} waits and is not in the queue"
        for t, c in waits.items()
        if (c.number, t) not in pool.queue
    ]
    out.extend(
        f"{t} stands in the queue and does not wait" for _, t in pool.queue if t not in waits
    )
    if pool.queue != sorted(set(pool.queue)):
        out.append("the queue is out of order")
    for node in pool.nodes:
        out.extend(f"{node.host}: {wrong}" for wrong in _usage_violations(pool, node))
    if pool.queue and not out and _assign(pool, pool.claims[pool.queue[0][1]]) is not None:
        out.append(f"there is room for {pool.queue[0][1]}, and it waits")
    return out


def _usage_violations(pool: NodePool, node: Node) -> list[str]:
    seen, used = NodeUsage(subnets=node.subnets), pool.usage[node.host]
    kept = False
    owners: dict[int, RunKey] = {}
    out: list[str] = []
    for ticket, claim in pool.claims.items():
        asked = {(r.name, i): r for r in claim.roles for i in range(r.tasks)}
        out.extend(
            f"{ticket} has {task}, which it did not ask for"
            for task in claim.placements
            if task not in asked
        )
        for task, place in claim.placements.items():
            if place.host == node.host and task in asked:
                _add_usage(seen, asked[task], place, 1)
                kept = kept or claim.kept
                block = (
                    None if node.subnets is None else subnets.block_of(node.subnets, place.address)
                )
                if block is not None and owners.setdefault(block, ticket) != ticket:
                    out.append(f"{ticket} and {owners[block]} have addresses of one network")
    if any(
        getattr(seen, what) != getattr(used, what)
        for what in ("cpu", "memory_mb", "gpus", "ports", "blocks")
    ):
        out.append("the books differ from what the gangs hold")
    if kept:
        return out
    if used.cpu > node.cpu or used.memory_mb > node.memory_mb:
        out.append("more is held than there is")
    out.extend(f"GPU {g} is held by {n}" for g, n in used.gpus.items() if n > 1)
    out.extend(f"GPU {g} is held, and there is none" for g in used.gpus if g not in node.gpus)
    out.extend(f"port {p} is held by {n}" for p, n in used.ports.items() if n > 1)
    return out


def _grant(pool: NodePool, mono: float) -> list[Allocation]:
    """Place waiting gangs in order, as long as the first one fits."""
    for used in pool.usage.values():
        for avoided in (used.avoided, used.foreign):
            for number in [n for n, until in avoided.items() if until <= mono]:
                del avoided[number]
    out: list[Allocation] = []
    while pool.queue:
        _, ticket = pool.queue[0]
        claim = pool.claims[ticket]
        plan = _assign(pool, claim)
        if plan is None:
            break
        del pool.queue[0]
        places = _places(pool, claim.roles, *plan)
        claim.placements = {(p.role, p.index): p for p in places}
        for p in places:
            _account(pool, claim, p, 1)
        if not places:
            del pool.claims[ticket]
        out.append((ticket, places))
    return out


def _leave_queue(pool: NodePool, ticket: RunKey) -> bool:
    """Remove a waiting gang. Return whether it was the first."""
    claim = pool.claims.pop(ticket)
    if claim.never is not None:
        return False
    at = bisect_left(pool.queue, (claim.number, ticket))
    del pool.queue[at]
    return at == 0


def _free_capacities(pool: NodePool) -> list[FreeCapacity]:
    out = []
    for n in pool.nodes:
        b = pool.usage[n.host]
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


def _allowed_nodes(pool: NodePool, plan: str | None) -> list[int]:
    """Return the indexes of nodes that are available to users with this plan."""
    may = {n.host for n in host_selection.allowed(pool.nodes, plan)} - pool.down
    return [at for at, n in enumerate(pool.nodes) if n.host in may]


def _assign(
    pool: NodePool, claim: AllocationRequest
) -> tuple[tuple[RoleDemand, ...], bin_packing.Assignment] | None:
    demands, among = bin_packing.demands_of(claim.roles), _allowed_nodes(pool, claim.plan)
    if _exceeds_total(pool, demands, among):
        return None
    assignment = bin_packing.pack_onto(demands, _free_capacities(pool), among)
    return None if assignment is None else (demands, assignment)


def _exceeds_total(pool: NodePool, demands: Sequence[RoleDemand], among: Sequence[int]) -> bool:
    """Return whether all nodes together have too little free. A cheap check, because this runs at
    every release.
    """
    used = [(n, pool.usage[n.host]) for n in (pool.nodes[at] for at in among)]
    free = (
        sum(max(0, n.cpu - b.cpu) for n, b in used),
        sum(max(0, n.memory_mb - b.memory_mb) for n, b in used),
        sum(len(n.gpus) for n, _ in used),
        sum(len(n.ports) for n, _ in used),
    )
    return any(bin_packing.total(demands, what) > free[what] for what in range(len(free)))


def _places(
    pool: NodePool,
    roles: Sequence[TaskRole],
    demands: Sequence[RoleDemand],
    assignment: bin_packing.Assignment,
) -> tuple[TaskPlace, ...]:
    """Return placements with names and numbers for a plan: first the ports requested by number,
    then any free ones.
    """
    count = [0] * len(pool.nodes)
    fixed: list[set[int]] = [set() for _ in pool.nodes]
    for demand, nodes_of_role in zip(demands, assignment, strict=True):
        for at in nodes_of_role:
            count[at] += demand.amounts[PORT]
            fixed[at].update(demand.fixed)
    numbers = [
        iter(_next_ports(n, pool.usage[n.host], count[at], fixed[at]))
        for at, n in enumerate(pool.nodes)
    ]
    gpus = [iter([g for g in n.gpus if g not in pool.usage[n.host].gpus]) for n in pool.nodes]
    addresses = [_addresses(n, pool.usage[n.host]) for n in pool.nodes]
    out = []
    for role, nodes_of_role in zip(roles, assignment, strict=True):
        labels = role.all_ports()
        for index, at in enumerate(nodes_of_role):
            ports = {
                p.label: tuple(
                    range(p.begin, p.begin + p.count)
                    if p.begin
                    else sorted(islice(numbers[at], p.count))
                )
                for p in labels
            }
            node = pool.nodes[at]
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


def _free_block(node: Node, used: NodeUsage) -> int | None:
    return subnets.free_block(node.subnets, used.blocks.keys() | used.foreign.keys())


def _addresses(node: Node, used: NodeUsage) -> Iterator[str]:
    """Return the addresses of the tasks of one gang on this node, in order."""
    block = _free_block(node, used)
    if node.subnets is None or block is None:
        return repeat(node.address)
    return (subnets.address(node.subnets, block, n) for n in range(subnets.MEMBERS))


def _next_ports(node: Node, used: NodeUsage, count: int, but: Iterable[int] = ()) -> list[int]:
    """Return the next free ports in turn, fewer than `count` if not enough are free. Advances the
    position.
    """
    if not count:
        return []
    first, end = node.ports.start, node.ports.stop
    start = min(max(used.next_port, first), end)
    candidates = (p for r in (range(start, end), range(first, start)) for p in r)
    out = list(
        islice(
            (
                p
                for p in candidates
                if p not in used.ports and p not in used.avoided and p not in but
            ),
            count,
        )
    )
    if out:
        used.next_port = out[-1] + 1
    return out


def _change_ports(
    pool: NodePool, claim: AllocationRequest, lost: Mapping[str, Sequence[int]]
) -> bool:
    """Give the gang other ports on the same hosts. Return False, with unchanged placements, if
    there are none.
    """
    any_number = {(r.name, p.label) for r in claim.roles for p in r.all_ports() if not p.begin}
    nodes = {n.host: n for n in pool.nodes}
    fresh: dict[str, list[int]] = {}
    for host, bad in lost.items():
        here = [p for p in claim.placements.values() if p.host == host]
        gone = [
            (p.role, label) for p in here for label, has in p.ports.items() for n in has if n in bad
        ]
        if not gone:
            continue
        if host not in nodes or not any_number.issuperset(gone):
            return False
        fresh[host] = _next_ports(nodes[host], pool.usage[host], len(gone))
        if len(fresh[host]) < len(gone):
            return False
    for task, place in claim.placements.items():
        numbers = fresh.get(place.host, [])
        bad = lost.get(place.host, ())
        ports = {
            label: tuple(sorted(numbers.pop(0) if n in bad else n for n in has))
            for label, has in place.ports.items()
        }
        if ports != place.ports:
            _account(pool, claim, place, -1)
            claim.placements[task] = msgspec.structs.replace(place, ports=ports)
            _account(pool, claim, claim.placements[task], 1)
    return True


def _account(pool: NodePool, claim: AllocationRequest, place: TaskPlace, sign: int) -> None:
    """Add or remove the resources of one task. Hosts that are no longer configured are not counted."""
    used = pool.usage.get(place.host)
    if used is not None:
        _add_usage(used, next(r for r in claim.roles if r.name == place.role), place, sign)


def _add_usage(used: NodeUsage, role: TaskRole, place: TaskPlace, sign: int) -> None:
    used.cpu += sign * role.cpu
    used.memory_mb += sign * role.memory_mb
    for g in place.gpus:
        if not (n := used.gpus.get(g, 0) + sign):
            del used.gpus[g]
        else:
            used.gpus[g] = n
    block = None if used.subnets is None else subnets.block_of(used.subnets, place.address)
    if block is not None:
        used.blocks[block] = used.blocks.get(block, 0) + sign
        if not used.blocks[block]:
            del used.blocks[block]
    for p in (n for numbers in place.ports.values() for n in numbers):
        if not (n := used.ports.get(p, 0) + sign):
            del used.ports[p]
        else:
            used.ports[p] = n
