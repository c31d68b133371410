"""Concurrency limits: the slots that a run must hold before its task is placed. Each pool is first
come, first served.

A ticket takes its pools in a fixed order (its job, array, op, run directory, CPU), which makes
deadlocks impossible. Within a pool the lowest number (order of submission) goes first, regardless
of earlier pools. Pools exist only while they have holders or waiters, so memory follows live runs.
Functions on plain data; deterministic.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

import msgspec

from .limit_pools import LimitPool, without_slots

#: (computeJid, serial)
RunKey = tuple[str, int]


class Pool(msgspec.Struct):
    capacity: int
    holders: set[RunKey] = msgspec.field(default_factory=set)
    #: waiting (number, ticket), lowest first
    queue: list[tuple[int, RunKey]] = msgspec.field(default_factory=list)


class LimitClaim(msgspec.Struct):
    number: int
    pools: tuple[LimitPool, ...]
    #: number of held pools, from the front of `pools`
    held: int = 0


class LimitWait(msgspec.Struct, frozen=True):
    """Why a ticket waits: for this pool, while `holders` use its capacity.

    ahead: tickets that wait for this pool now; later ones may still go first (see
    `queue_position`).
    """

    pool: LimitPool
    ahead: int
    holders: frozenset[RunKey]
    capacity: int

    @property
    def in_use(self) -> int:
        return len(self.holders)


class ConcurrencyLimits(msgspec.Struct):
    """`capacity` returns the size of a pool when it is created."""

    capacity: Callable[[LimitPool], int]
    pools: dict[LimitPool, Pool] = msgspec.field(default_factory=dict)
    claims: dict[RunKey, LimitClaim] = msgspec.field(default_factory=dict)


def request(
    slots: ConcurrencyLimits, ticket: RunKey, number: int, pools: tuple[LimitPool, ...]
) -> list[RunKey]:
    """Request all of `pools`. Return the tickets that now hold all their pools (this one, or none)."""
    if ticket in slots.claims:
        return []
    slots.claims[ticket] = LimitClaim(number=number, pools=pools)
    return _advance(slots, [ticket])


def restore(
    slots: ConcurrencyLimits,
    ticket: RunKey,
    number: int,
    pools: tuple[LimitPool, ...],
    released: Iterable[LimitPool] = (),
) -> None:
    """Record slots that were held before a restart, even above capacity. `released` were released
    since.
    """
    kept = tuple(p for p in pools if p not in released)
    slots.claims[ticket] = LimitClaim(number=number, pools=kept, held=len(kept))
    for limit in kept:
        _pool(slots, limit).holders.add(ticket)


def extend(slots: ConcurrencyLimits, ticket: RunKey, pools: tuple[LimitPool, ...]) -> list[RunKey]:
    """Request the rest of `pools` for a ticket that holds only the first ones (see `reduce_all`).
    Return the tickets that now hold all their pools (this one, or none).
    """
    claim = slots.claims[ticket]
    if len(claim.pools) == len(pools):
        return []
    claim.pools = pools
    return _advance(slots, [ticket])


def reduce_all(slots: ConcurrencyLimits, tickets: Iterable[RunKey]) -> list[RunKey]:
    """Let these tickets keep only the pools that are no slots, which each of them holds. Return the
    other tickets that now hold all their pools. None of these gets a slot that another one
    releases.
    """
    limits: dict[LimitPool, None] = {}
    for ticket in tickets:
        claim = slots.claims[ticket]
        kept = without_slots(claim.pools)
        _leave(slots, ticket, len(kept), limits)
        claim.pools, claim.held = kept, len(kept)
    return _grant_released(slots, limits)


def holds(slots: ConcurrencyLimits, ticket: RunKey, pools: tuple[LimitPool, ...]) -> bool:
    """Return whether a ticket holds exactly these pools."""
    claim = slots.claims[ticket]
    return claim.pools == pools and claim.held == len(pools)


def force(slots: ConcurrencyLimits, ticket: RunKey, pools: tuple[LimitPool, ...]) -> None:
    """Let a ticket that waits hold all of `pools`, even above capacity: it uses them already."""
    claim = slots.claims[ticket]
    for limit in claim.pools[claim.held : claim.held + 1]:
        queue = slots.pools[limit].queue
        del queue[bisect_left(queue, (claim.number, ticket))]
    for limit in pools[claim.held :]:
        _pool(slots, limit).holders.add(ticket)
    claim.pools, claim.held = pools, len(pools)


def release(
    slots: ConcurrencyLimits, ticket: RunKey, only: LimitPool | None = None
) -> list[RunKey]:
    """Release everything that a ticket holds or waits for (or one pool of a ticket that holds all).
    Return the tickets that now hold all their pools.
    """
    if only is None:
        return release_all(slots, (ticket,))
    claim = slots.claims.get(ticket)
    if claim is None or only not in claim.pools[: claim.held]:
        return []
    claim.pools = tuple(p for p in claim.pools if p != only)
    claim.held -= 1
    slots.pools[only].holders.discard(ticket)
    return _grant_released(slots, (only,))


def release_all(slots: ConcurrencyLimits, tickets: Iterable[RunKey]) -> list[RunKey]:
    """Release everything that these tickets hold or wait for. None of them gets a slot that another
    of them releases.
    """
    limits: dict[LimitPool, None] = {}
    for ticket in tickets:
        if ticket in slots.claims:
            _leave(slots, ticket, 0, limits)
            del slots.claims[ticket]
    return _grant_released(slots, limits)


def hand_over(
    slots: ConcurrencyLimits, ticket: RunKey, successor: RunKey, pools: tuple[LimitPool, ...]
) -> list[RunKey]:
    """Release everything that a ticket holds, and let its successor hold all of `pools`: it has
    started in the released slot. Return the tickets that now hold all their pools.
    """
    limits: dict[LimitPool, None] = {}
    if ticket in slots.claims:
        _leave(slots, ticket, 0, limits)
        del slots.claims[ticket]
    force(slots, successor, pools)
    return _grant_released(slots, limits)


def wait_of(slots: ConcurrencyLimits, ticket: RunKey) -> LimitWait | None:
    """Return what a ticket waits for, or None if it does not wait here."""
    claim = slots.claims.get(ticket)
    if claim is None or claim.held == len(claim.pools):
        return None
    limit = claim.pools[claim.held]
    pool = slots.pools[limit]
    return LimitWait(
        limit,
        bisect_left(pool.queue, (claim.number, ticket)),
        frozenset(pool.holders),
        pool.capacity,
    )


def violations(slots: ConcurrencyLimits) -> list[str]:
    """Return violated invariants as sentences, for tests and the simulator."""
    out = []
    for limit, pool in slots.pools.items():
        for t in pool.holders:
            claim = slots.claims.get(t)
            if claim is None or limit not in claim.pools[: claim.held]:
                out.append(f"{limit} is held by {t}, which does not know")
        out.extend(
            f"{t} stands in the queue of {limit} and does not wait for it"
            for _, t in pool.queue
            if not _waits_for(slots, t, limit)
        )
        if pool.queue != sorted(pool.queue):
            out.append(f"the queue of {limit} is out of order")
        if not pool.holders and not pool.queue:
            out.append(f"{limit} is kept though unused")
        if len(pool.holders) < pool.capacity and pool.queue:
            out.append(f"{limit} has room and somebody waits")
    for t, claim in slots.claims.items():
        out.extend(
            f"{t} believes it holds {limit}"
            for limit in claim.pools[: claim.held]
            if t not in slots.pools[limit].holders
        )
    return out


def _advance(slots: ConcurrencyLimits, tickets: list[RunKey]) -> list[RunKey]:
    """Let these tickets take pool after pool until each holds all or must wait. Return the tickets
    that hold all.
    """
    done = []
    for ticket in tickets:
        claim = slots.claims[ticket]
        while claim.held < len(claim.pools):
            limit = claim.pools[claim.held]
            pool = _pool(slots, limit)
            if len(pool.holders) >= pool.capacity or pool.queue:
                insort(pool.queue, (claim.number, ticket))
                break
            pool.holders.add(ticket)
            claim.held += 1
        else:
            done.append(ticket)
    return done


def _grant_released(slots: ConcurrencyLimits, limits: Iterable[LimitPool]) -> list[RunKey]:
    """Grant released slots to waiters, and drop unused pools."""
    out = [ticket for limit in limits for ticket in _grant(slots, limit)]
    for limit in limits:
        _forget_if_unused(slots, limit)
    return out


def _leave(
    slots: ConcurrencyLimits, ticket: RunKey, first: int, limits: dict[LimitPool, None]
) -> None:
    """Take a ticket out of the pools of its claim from number `first` on, and add these to
    `limits`.
    """
    claim = slots.claims[ticket]
    for number, limit in enumerate(claim.pools[: claim.held + 1]):
        if number < first:
            continue
        if number < claim.held:
            slots.pools[limit].holders.discard(ticket)
        else:
            queue = slots.pools[limit].queue
            del queue[bisect_left(queue, (claim.number, ticket))]
        limits[limit] = None


def _grant(slots: ConcurrencyLimits, limit: LimitPool) -> list[RunKey]:
    out: list[RunKey] = []
    pool = slots.pools.get(limit)
    while pool is not None and pool.queue and len(pool.holders) < pool.capacity:
        _, ticket = pool.queue.pop(0)
        pool.holders.add(ticket)
        slots.claims[ticket].held += 1
        out.extend(_advance(slots, [ticket]))
    return out


def _waits_for(slots: ConcurrencyLimits, ticket: RunKey, limit: LimitPool) -> bool:
    claim = slots.claims.get(ticket)
    return claim is not None and claim.held < len(claim.pools) and claim.pools[claim.held] == limit


def _pool(slots: ConcurrencyLimits, limit: LimitPool) -> Pool:
    pool = slots.pools.get(limit)
    if pool is None:
        pool = slots.pools[limit] = Pool(capacity=slots.capacity(limit))
    return pool


def _forget_if_unused(slots: ConcurrencyLimits, limit: LimitPool) -> None:
    pool = slots.pools.get(limit)
    if pool is not None and not pool.holders and not pool.queue:
        del slots.pools[limit]
