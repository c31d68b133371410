"""Slots: what a run must hold before its task may be placed, taken in a fixed order, first come
first served per pool.

A ticket takes its pools one after the other (its job, op, run directory, CPU); the fixed order
makes a deadlock impossible. Within a pool the lowest number (the order of submission) goes first,
whatever pool it waited in before. Pools appear when somebody asks and vanish when nobody holds or
waits, so that memory follows what is live. Functions over plain data: the same calls give the same
grants.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

import msgspec

#: (computeJid, serial)
RunKey = tuple[str, int]


class Pool(msgspec.Struct):
    capacity: int
    holders: set[RunKey] = msgspec.field(default_factory=set)
    #: (number, ticket) of who waits, lowest first
    queue: list[tuple[int, RunKey]] = msgspec.field(default_factory=list)


class LimitClaim(msgspec.Struct):
    number: int
    pools: tuple[str, ...]
    #: how many of `pools` are held
    held: int = 0


class LimitWait(msgspec.Struct, frozen=True):
    """Why a ticket waits: for this pool, while `holders` have what there is.

    ahead: of those that ask for this pool now; others may come to ask before it (see `ahead`).
    """

    pool: str
    ahead: int
    holders: frozenset[RunKey]
    capacity: int

    @property
    def in_use(self) -> int:
        return len(self.holders)


class ConcurrencyLimits(msgspec.Struct):
    """`capacity` says how many a pool of this name has, when it first appears."""

    capacity: Callable[[str], int]
    pools: dict[str, Pool] = msgspec.field(default_factory=dict)
    claims: dict[RunKey, LimitClaim] = msgspec.field(default_factory=dict)


def request(
    slots: ConcurrencyLimits, ticket: RunKey, number: int, pools: tuple[str, ...]
) -> list[RunKey]:
    """Ask for all of `pools`. Returns the tickets that hold everything now and did not before (this
    one, or none).
    """
    if ticket in slots.claims:
        return []
    slots.claims[ticket] = LimitClaim(number=number, pools=pools)
    return _advance(slots, [ticket])


def hold(
    slots: ConcurrencyLimits,
    ticket: RunKey,
    number: int,
    pools: tuple[str, ...],
    released: Iterable[str] = (),
) -> None:
    """Take note of what was placed before a restart, whether or not there is room. `released` were
    given back since.
    """
    kept = tuple(p for p in pools if p not in released)
    slots.claims[ticket] = LimitClaim(number=number, pools=kept, held=len(kept))
    for name in kept:
        _pool(slots, name).holders.add(ticket)


def release(slots: ConcurrencyLimits, ticket: RunKey, only: str | None = None) -> list[RunKey]:
    """Give back everything a ticket holds or waits for (or only one pool of a ticket that holds
    all). Returns who holds everything now.
    """
    if only is None:
        return release_all(slots, (ticket,))
    claim = slots.claims.get(ticket)
    if claim is None or only not in claim.pools[: claim.held]:
        return []
    claim.pools = tuple(p for p in claim.pools if p != only)
    claim.held -= 1
    slots.pools[only].holders.discard(ticket)
    return _pass_on(slots, (only,))


def release_all(slots: ConcurrencyLimits, tickets: Iterable[RunKey]) -> list[RunKey]:
    """Give back everything that these hold or wait for: none of them gets what another one of them
    gives back.
    """
    names: dict[str, None] = {}
    for ticket in tickets:
        claim = slots.claims.pop(ticket, None)
        if claim is None:
            continue
        for name in claim.pools[: claim.held]:
            slots.pools[name].holders.discard(ticket)
        for name in claim.pools[claim.held : claim.held + 1]:
            queue = slots.pools[name].queue
            del queue[bisect_left(queue, (claim.number, ticket))]
        names |= dict.fromkeys(claim.pools[: claim.held + 1])
    return _pass_on(slots, names)


def wait_of(slots: ConcurrencyLimits, ticket: RunKey) -> LimitWait | None:
    """What a ticket waits for; None when it waits for nothing here."""
    claim = slots.claims.get(ticket)
    if claim is None or claim.held == len(claim.pools):
        return None
    name = claim.pools[claim.held]
    pool = slots.pools[name]
    return LimitWait(
        name,
        bisect_left(pool.queue, (claim.number, ticket)),
        frozenset(pool.holders),
        pool.capacity,
    )


def broken(slots: ConcurrencyLimits) -> list[str]:
    """What is wrong with the books, as sentences: for tests and the simulator."""
    out = []
    for name, pool in slots.pools.items():
        for t in pool.holders:
            claim = slots.claims.get(t)
            if claim is None or name not in claim.pools[: claim.held]:
                out.append(f"{name} is held by {t}, which does not know")
        out.extend(
            f"{t} stands in the queue of {name} and does not wait for it"
            for _, t in pool.queue
            if not _waits_for(slots, t, name)
        )
        if pool.queue != sorted(pool.queue):
            out.append(f"the queue of {name} is out of order")
        if not pool.holders and not pool.queue:
            out.append(f"{name} is kept though unused")
        if len(pool.holders) < pool.capacity and pool.queue:
            out.append(f"{name} has room and somebody waits")
    for t, claim in slots.claims.items():
        out.extend(
            f"{t} believes it holds {name}"
            for name in claim.pools[: claim.held]
            if t not in slots.pools[name].holders
        )
    return out


def _advance(slots: ConcurrencyLimits, tickets: list[RunKey]) -> list[RunKey]:
    """Let these tickets take pool after pool until each has all or must wait. Returns the ones that
    have all.
    """
    done = []
    for ticket in tickets:
        claim = slots.claims[ticket]
        while claim.held < len(claim.pools):
            name = claim.pools[claim.held]
            pool = _pool(slots, name)
            if len(pool.holders) >= pool.capacity or pool.queue:
                insort(pool.queue, (claim.number, ticket))
                break
            pool.holders.add(ticket)
            claim.held += 1
        else:
            done.append(ticket)
    return done


def _pass_on(slots: ConcurrencyLimits, names: Iterable[str]) -> list[RunKey]:
    """There may be room in these pools, or nobody left in them."""
    out = [ticket for name in names for ticket in _grant(slots, name)]
    for name in names:
        _forget_if_unused(slots, name)
    return out


def _grant(slots: ConcurrencyLimits, name: str) -> list[RunKey]:
    out: list[RunKey] = []
    pool = slots.pools.get(name)
    while pool is not None and pool.queue and len(pool.holders) < pool.capacity:
        _, ticket = pool.queue.pop(0)
        pool.holders.add(ticket)
        slots.claims[ticket].held += 1
        out.extend(_advance(slots, [ticket]))
    return out


def _waits_for(slots: ConcurrencyLimits, ticket: RunKey, name: str) -> bool:
    claim = slots.claims.get(ticket)
    return claim is not None and claim.held < len(claim.pools) and claim.pools[claim.held] == name


def _pool(slots: ConcurrencyLimits, name: str) -> Pool:
    pool = slots.pools.get(name)
    if pool is None:
        pool = slots.pools[name] = Pool(capacity=slots.capacity(name))
    return pool


def _forget_if_unused(slots: ConcurrencyLimits, name: str) -> None:
    pool = slots.pools.get(name)
    if pool is not None and not pool.holders and not pool.queue:
        del slots.pools[name]
