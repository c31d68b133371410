"""Gang allocator: the gangs that wait for the resources of one driver's nodes (`node_pool`), and their
order.

A gang is all tasks of all roles of an attempt. It gets everything or nothing, each task on one
node. Users take turns by `fair_share`; the gangs of one account go in order of submission. If the
first gang does not fit, it has a reservation: a later gang is placed only if it does not delay the
first one (`backfill`), so that small gangs do not starve a large one. A gang that would not fit even
on idle nodes (it was accepted when there were more nodes) waits outside the queue and blocks no
other gang.

Nothing is stored for ended gangs. Functions on plain data; deterministic.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from ....protocol.jobs.roles import TaskPlace, TaskRole
from . import backfill, bin_packing, node_pool, subnets, unschedulable
from .bin_packing import Node
from .concurrency_limits import NOBODY, RunKey
from .fair_share import Account
from .node_pool import AllocationRequest, NodePool, TaskIndex
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


#: A gang that got everything, and the placement of each task: by role in the requested order, then
#: by index.
Allocation = tuple[RunKey, tuple[TaskPlace, ...]]
#: Seconds for which a port is avoided after another process was found listening, and an address
#: block after another network was found using it. The latter is longer because a retry costs the
#: gang an attempt.
AVOID_SECS, AVOID_BLOCK_SECS = 60.0, 600.0


def request(
    pool: NodePool,
    ticket: RunKey,
    number: int,
    roles: Sequence[TaskRole],
    mono: float,
    plan: str | None = None,
    account: Account = NOBODY,
    limit_secs: float | None = None,
) -> list[Allocation]:
    """Request placements for all tasks of all roles. Return the gangs that got theirs now (this
    one, or none).
    """
    if ticket in pool.claims:
        return []
    never = too_much(pool.nodes, roles, plan)
    pool.claims[ticket] = AllocationRequest(
        number, tuple(roles), never=never, plan=plan, account=account, limit_secs=limit_secs
    )
    if never is not None:
        return []
    insort(pool.queue, (number, ticket))
    first = next_gang(pool)
    if first == ticket:
        return _grant(pool, mono)
    return [] if first is None else _fill(pool, first, mono, (ticket,))


def record_placed(
    pool: NodePool,
    ticket: RunKey,
    roles: Sequence[TaskRole],
    places: Iterable[TaskPlace],
    account: Account = NOBODY,
    ago: float = 0.0,
) -> None:
    """Record tasks placed before a restart, even above capacity. A gang may be recorded in several
    calls. ago: how long they are placed, in seconds.
    """
    claim = pool.claims.get(ticket)
    if claim is not None and not claim.placements:
        _leave_queue(pool, ticket)
        claim = None
    if claim is None:
        # it precedes all gangs that wait from now on
        claim = AllocationRequest(-1, tuple(roles), account=account)
    claim.kept = True
    for place in places:
        task = (place.role, place.index)
        if task not in claim.placements:
            claim.placements[task] = place
            node_pool.add_tasks(pool, claim, (place,), 1)
            _begin(pool, ticket, claim, place, ago)
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
        _leave_queue(pool, ticket)
        return _grant(pool, mono)
    for s in tuple(claim.placements) if task is None else (task,):
        place = claim.placements.pop(s, None)
        if place is None:
            return []
        node_pool.add_tasks(pool, claim, (place,), -1)
        pool.fair.end((ticket, s))
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
    if node_pool.change_ports(pool, claim, ports):
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
    for task, place in claim.placements.items():
        node_pool.add_tasks(pool, claim, (place,), -1)
        pool.fair.end((ticket, task))
    claim.placements, claim.kept, claim.until = {}, False, None
    insort(pool.queue, (claim.number, ticket))
    return _grant(pool, mono)


def retry(pool: NodePool, mono: float) -> list[Allocation]:
    """Retry after time has passed (avoided ports may be free) or a host came back. Return the gangs
    that got everything now.
    """
    return _grant(pool, mono)


def next_retry(pool: NodePool) -> float | None:
    """Return the time (monotonic) of the next retry: the end of the next avoidance, also if no gang
    waits now, because one that begins to wait before that time sets no timer. None without
    avoidances.
    """
    untils = (
        until
        for b in pool.usage.values()
        for avoided in (b.avoided, b.foreign)
        for until in avoided.values()
    )
    return min(untils, default=None)


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
    if ticket != next_gang(pool):
        return unschedulable.behind(_ahead(pool, ticket, claim))
    capacities = node_pool.free_capacities(pool)
    return unschedulable.shortage(
        bin_packing.demands_of(claim.roles),
        [capacities[at] for at in node_pool.allowed_nodes(pool, claim.plan)],
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
        for n in (node_pool.sized(pool, n) for n in pool.nodes)
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
        out.extend(f"{node.host}: {wrong}" for wrong in node_pool.usage_violations(pool, node))
    first = None if out else pool.first
    if first is not None and node_pool.assign(pool, pool.claims[first]) is not None:
        out.append(f"there is room for {first}, and it waits")
    return out


def is_contended(pool: NodePool) -> bool:
    """Return whether gangs of several accounts wait."""
    return len({pool.claims[ticket].account for _, ticket in pool.queue}) > 1


def next_gang(pool: NodePool) -> RunKey | None:
    """Return the gang that is placed next, or None if no waiting queue may use more."""
    lines = _lines(pool)
    account = (
        pool.fair.first(
            {account: line[0][0] for account, line in lines.items()},
            _cores_in_use(pool),
            _cores(pool),
        )
        if lines
        else None
    )
    return None if account is None else lines[account][0][1]


def _lines(pool: NodePool) -> dict[Account, list[tuple[int, RunKey]]]:
    """Return the waiting gangs by account."""
    lines: dict[Account, list[tuple[int, RunKey]]] = {}
    for number, ticket in pool.queue:
        lines.setdefault(pool.claims[ticket].account, []).append((number, ticket))
    return lines


def _cores(pool: NodePool) -> int:
    return sum(node_pool.sized(pool, n).cpu for n in pool.nodes)


def _cores_in_use(pool: NodePool) -> dict[str, int]:
    """Return the cores that gangs of each queue hold."""
    out: dict[str, int] = {}
    for claim in pool.claims.values():
        if claim.placements:
            cores = {role.name: role.cpu for role in claim.roles}
            held = sum(cores[role] for role, _ in claim.placements)
            out[claim.account.queue] = out.get(claim.account.queue, 0) + held
    return out


def _ahead(pool: NodePool, ticket: RunKey, claim: AllocationRequest) -> int:
    """Return the earlier gangs of this account, and about how many of others go first; at least 1."""
    lines = _lines(pool)
    own = bisect_left(lines[claim.account], (claim.number, ticket))
    lengths = {account: len(line) for account, line in lines.items() if account != claim.account}
    return max(1, own + pool.fair.before(claim.account, own, lengths))


def _grant(pool: NodePool, mono: float) -> list[Allocation]:
    """Place waiting gangs in the order of turns, as long as the first one fits; then those that do
    not delay it.
    """
    for used in pool.usage.values():
        for avoided in (used.avoided, used.foreign):
            for number in [n for n, until in avoided.items() if until <= mono]:
                del avoided[number]
    out: list[Allocation] = []
    while (ticket := next_gang(pool)) is not None:
        pool.first = ticket
        places = node_pool.fit(pool, pool.claims[ticket])
        if places is None:
            return out + _fill(pool, ticket, mono)
        out.append(_placed(pool, ticket, places, mono))
    pool.first = None
    return out


def _fill(
    pool: NodePool, first: RunKey, mono: float, among: Iterable[RunKey] | None = None
) -> list[Allocation]:
    """Place gangs that do not delay the first one. among: tickets; the default is all, in the order
    of turns.
    """
    out: list[Allocation] = []
    reservation: backfill.Reservation | None = None
    turns = pool.fair.turns(_lines(pool), _cores_in_use(pool), _cores(pool))
    for ticket in among or [t for _, t in islice(turns, 1, backfill.CANDIDATES)]:
        claim = pool.claims[ticket]
        places = node_pool.fit(pool, claim)
        if places is None or not pool.fair.rules.may_use(
            claim.account.queue, _cores_in_use(pool).get(claim.account.queue, 0), _cores(pool)
        ):
            continue
        reservation = reservation or backfill.reserve(pool, pool.claims[first], mono)
        if reservation is None:
            return out
        if backfill.allows(reservation, pool.claims[first], claim, places, mono):
            out.append(_placed(pool, ticket, places, mono))
    return out


def _placed(
    pool: NodePool, ticket: RunKey, places: tuple[TaskPlace, ...], mono: float
) -> Allocation:
    claim = pool.claims[ticket]
    del pool.queue[bisect_left(pool.queue, (claim.number, ticket))]
    claim.placements = {(p.role, p.index): p for p in places}
    claim.until = None if claim.limit_secs is None else backfill.end_of(claim.limit_secs, mono)
    node_pool.add_tasks(pool, claim, places, 1)
    for p in places:
        _begin(pool, ticket, claim, p)
    if not places:
        del pool.claims[ticket]
    return ticket, places


def _begin(
    pool: NodePool, ticket: RunKey, claim: AllocationRequest, place: TaskPlace, ago: float = 0.0
) -> None:
    role = next(r for r in claim.roles if r.name == place.role)
    cores = role.cpu + role.gpu * pool.fair.rules.gpu_cores
    pool.fair.begin((ticket, (place.role, place.index)), claim.account, cores, ago)


def _leave_queue(pool: NodePool, ticket: RunKey) -> None:
    """Remove a waiting gang."""
    claim = pool.claims.pop(ticket)
    if claim.never is None:
        del pool.queue[bisect_left(pool.queue, (claim.number, ticket))]
