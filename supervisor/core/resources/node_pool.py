"""The nodes of one driver: their cores, memory, GPUs and ports, and what gangs hold of them.

Ports are assigned in turn from the node's start port, so that a released port is not reused at
once. Ports on which other processes listen are avoided for a while. On nodes with subnets, each
gang has a block of addresses; blocks used by other networks are avoided as well. A host that is
down gets no new tasks. Functions on plain data; deterministic.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat

import msgspec

from ....protocol.jobs.roles import TaskPlace, TaskRole
from . import bin_packing, host_selection, subnets
from .bin_packing import PORT, FreeCapacity, Node, RoleDemand
from .concurrency_limits import NOBODY, RunKey
from .fair_share import Account, FairShare, ShareRules

#: (role, index)
TaskIndex = tuple[str, int]


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
    account: Account = NOBODY
    #: its longest run time in seconds, if it has a time limit; and the time (monotonic) at which a
    #: placed gang has ended by it
    limit_secs: float | None = None
    until: float | None = None


class NodePool(msgspec.Struct):
    """The nodes of one driver. Their hosts are distinct."""

    nodes: tuple[Node, ...]
    fair: FairShare = msgspec.field(default_factory=lambda: FairShare(ShareRules()))
    usage: dict[str, NodeUsage] = msgspec.field(default_factory=dict)
    claims: dict[RunKey, AllocationRequest] = msgspec.field(default_factory=dict)
    #: waiting (number, ticket), lowest first
    queue: list[tuple[int, RunKey]] = msgspec.field(default_factory=list)
    #: the waiting gang that did not fit when it was tried last
    first: RunKey | None = None
    #: a retry is due, because turns may change with time
    retries: bool = False
    #: unavailable hosts, and hosts that get no new tasks
    down: set[str] = msgspec.field(default_factory=set)
    drained: set[str] = msgspec.field(default_factory=set)
    #: cores and MiB of hosts of which this shard has a part that changes; `nodes` have its even part
    granted: dict[str, tuple[int, int]] = {}

    def __post_init__(self) -> None:
        for n in self.nodes:
            self.usage.setdefault(n.host, NodeUsage(next_port=n.start_port, subnets=n.subnets))


def sized(pool: NodePool, node: Node) -> Node:
    """Return the node with what may be used of it now."""
    if node.host not in pool.granted:
        return node
    cpu, memory_mb = pool.granted[node.host]
    return msgspec.structs.replace(node, cpu=cpu, memory_mb=memory_mb)


def assign(
    pool: NodePool, claim: AllocationRequest
) -> tuple[tuple[RoleDemand, ...], bin_packing.Assignment] | None:
    """Return a plan for a gang on what is free, or None if it does not fit now."""
    demands, among = bin_packing.demands_of(claim.roles), allowed_nodes(pool, claim.plan)
    if _exceeds_total(pool, demands, among):
        return None
    assignment = bin_packing.pack_onto(demands, free_capacities(pool), among)
    return None if assignment is None else (demands, assignment)


def fit(pool: NodePool, claim: AllocationRequest) -> tuple[TaskPlace, ...] | None:
    """Return placements for a gang, or None if it does not fit now."""
    plan = assign(pool, claim)
    return None if plan is None else _places(pool, claim.roles, *plan)


def add_tasks(
    pool: NodePool, claim: AllocationRequest, places: Iterable[TaskPlace], sign: int
) -> None:
    """Add or remove the resources of tasks."""
    for place in places:
        _account(pool, claim, place, sign)


def change_ports(
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


def usage_violations(pool: NodePool, node: Node) -> list[str]:
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
    # a part that changes may be lowered below its use
    whole = node.host not in pool.granted
    if whole and (used.cpu > node.cpu or used.memory_mb > node.memory_mb):
        out.append("more is held than there is")
    out.extend(f"GPU {g} is held by {n}" for g, n in used.gpus.items() if n > 1)
    out.extend(f"GPU {g} is held, and there is none" for g in used.gpus if g not in node.gpus)
    out.extend(f"port {p} is held by {n}" for p, n in used.ports.items() if n > 1)
    return out


def free_capacities(pool: NodePool) -> list[FreeCapacity]:
    out = []
    for n in (sized(pool, n) for n in pool.nodes):
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


def allowed_nodes(pool: NodePool, plan: str | None) -> list[int]:
    """Return the indexes of nodes that are available to users with this plan."""
    may = {n.host for n in host_selection.allowed(pool.nodes, plan)} - pool.down - pool.drained
    return [at for at, n in enumerate(pool.nodes) if n.host in may]


def _exceeds_total(pool: NodePool, demands: Sequence[RoleDemand], among: Sequence[int]) -> bool:
    """Return whether all nodes together have too little free. A cheap check, because this runs at
    every release.
    """
    used = [(sized(pool, n), pool.usage[n.host]) for n in (pool.nodes[at] for at in among)]
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
