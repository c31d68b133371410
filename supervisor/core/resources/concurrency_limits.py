"""Concurrency limits: the slots that a run must hold before its task is placed.

A ticket takes its pools in a fixed order (its job, array, user, op, run directory, CPU), which makes
deadlocks impossible. The CPU pools are for all users, who take turns by `fair_share`; each other
pool is for runs of one user. Within an account, or a pool of one user, the lowest number (order of
submission) goes first, regardless of earlier pools. Pools exist only while they have holders or waiters, so memory follows
live runs. A `UserTotal` has no slots: a ticket takes a portion of it. One whose portion can never fit
waits apart (`NEVER`) and lets the others pass.
Functions on plain data; deterministic.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from .fair_share import Account, FairShare, ShareRules
from .limit_pools import CpuPool, LimitPool, UserTotal, without_slots

#: (computeJid, serial)
RunKey = tuple[str, int]
#: Waiting (number, ticket), lowest first.
WaitingLine = list[tuple[int, RunKey]]
#: The account of all runs that wait for a pool of one user.
NOBODY = Account("", "")
#: The account of runs that wait for a total of their user and need more than all of it.
NEVER = Account("", "never")
#: A limit for runs without one.
UNLIMITED = 2**62


class Portion(NamedTuple):
    """The amount that a ticket takes of a total, and the limit of the total for it."""

    amount: int
    most: int = UNLIMITED


Portions = Mapping[UserTotal, Portion]


class Pool(msgspec.Struct):
    """in_use: number of holders by queue, in CPU pools. lines: waiting runs by account, none empty;
    in a pool of one user all are of `NOBODY` or `NEVER`. used: the portions of the holders.
    """

    capacity: int
    holders: set[RunKey] = msgspec.field(default_factory=set)
    in_use: dict[str, int] = msgspec.field(default_factory=dict)
    lines: dict[Account, WaitingLine] = msgspec.field(default_factory=dict)
    used: int = 0

    @property
    def waiting(self) -> dict[Account, int]:
        """Return the number of the first waiting run of each account, except those that never fit."""
        return {account: line[0][0] for account, line in self.lines.items() if account != NEVER}

    def join(self, account: Account, number: int, ticket: RunKey) -> None:
        insort(self.lines.setdefault(account, []), (number, ticket))

    def leave(self, account: Account, number: int, ticket: RunKey) -> None:
        line = self.lines[account]
        del line[bisect_left(line, (number, ticket))]
        if not line:
            del self.lines[account]


class LimitClaim(msgspec.Struct):
    number: int
    pools: tuple[LimitPool, ...]
    account: Account
    #: number of held pools, from the front of `pools`
    held: int = 0
    portions: Portions = {}

    def account_in(self, limit: LimitPool) -> Account:
        """Return the account that waits for the pool."""
        if isinstance(limit, UserTotal):
            portion = self.portions[limit]
            return NEVER if portion.amount > portion.most else NOBODY
        return self.account if isinstance(limit, CpuPool) else NOBODY


class LimitWait(msgspec.Struct, frozen=True):
    """Why a ticket waits: for this pool, while `holders` use its capacity.

    ahead: earlier tickets of the same account that wait for this pool now; others may go first (see
    `queue_position`). in_use, wanted: slots, or the portions of the holders and of the ticket.
    """

    pool: LimitPool
    ahead: int
    holders: frozenset[RunKey]
    capacity: int
    in_use: int
    wanted: int = 1


class ConcurrencyLimits(msgspec.Struct):
    """`capacity` returns the size of a pool when it is created."""

    capacity: Callable[[LimitPool], int]
    fair: FairShare = msgspec.field(default_factory=lambda: FairShare(ShareRules()))
    pools: dict[LimitPool, Pool] = msgspec.field(default_factory=dict)
    claims: dict[RunKey, LimitClaim] = msgspec.field(default_factory=dict)


def request(
    slots: ConcurrencyLimits,
    ticket: RunKey,
    number: int,
    pools: tuple[LimitPool, ...],
    account: Account = NOBODY,
    portions: Mapping[UserTotal, Portion] = {},
) -> list[RunKey]:
    """Request all of `pools`. Return the tickets that now hold all their pools (this one, or none)."""
    if ticket in slots.claims:
        return []
    slots.claims[ticket] = LimitClaim(
        number=number, pools=pools, account=account, portions=portions
    )
    return _advance(slots, [ticket])


def restore(
    slots: ConcurrencyLimits,
    ticket: RunKey,
    number: int,
    pools: tuple[LimitPool, ...],
    released: Iterable[LimitPool] = (),
    account: Account = NOBODY,
    ago: float = 0.0,
    portions: Mapping[UserTotal, Portion] = {},
) -> None:
    """Record slots that were held before a restart, even above capacity. `released` were released
    since. ago: how long the slots are held, in seconds.
    """
    kept = tuple(p for p in pools if p not in released)
    claim = slots.claims[ticket] = LimitClaim(
        number=number, pools=kept, account=account, held=len(kept), portions=portions
    )
    for limit in kept:
        _hold(slots, claim, limit, ticket, ago)


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
        slots.pools[limit].leave(claim.account_in(limit), claim.number, ticket)
    for limit in pools[claim.held :]:
        _hold(slots, claim, limit, ticket)
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
    _drop(slots, claim, only, ticket)
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


def resize(slots: ConcurrencyLimits, limits: list[LimitPool]) -> list[RunKey]:
    """Apply changed capacities of these pools. Return the tickets that now hold all their pools."""
    for limit in limits:
        slots.pools[limit].capacity = slots.capacity(limit)
    return _grant_released(slots, limits)


def wait_of(slots: ConcurrencyLimits, ticket: RunKey) -> LimitWait | None:
    """Return what a ticket waits for, or None if it does not wait here."""
    claim = slots.claims.get(ticket)
    if claim is None or claim.held == len(claim.pools):
        return None
    limit = claim.pools[claim.held]
    pool = slots.pools[limit]
    total = isinstance(limit, UserTotal)
    wanted, capacity = claim.portions[limit] if isinstance(limit, UserTotal) else (1, pool.capacity)
    return LimitWait(
        limit,
        bisect_left(pool.lines[claim.account_in(limit)], (claim.number, ticket)),
        frozenset(pool.holders),
        capacity,
        pool.used if total else len(pool.holders),
        wanted,
    )


def turns(slots: ConcurrencyLimits, limit: LimitPool) -> Iterator[tuple[int, RunKey]]:
    """Yield (number, ticket) of the runs that wait for a pool, in the order of their turns."""
    pool = slots.pools.get(limit)
    if pool is None:
        return iter(())
    if len(pool.lines) == 1 and isinstance(limit, CpuPool):
        (account,) = pool.lines
        if slots.fair.rules.may_use(
            account.queue, pool.in_use.get(account.queue, 0), pool.capacity
        ):
            return iter(pool.lines[account])
    if NOBODY in pool.lines:
        return iter(pool.lines[NOBODY])
    return slots.fair.turns(pool.lines, pool.in_use, pool.capacity)


def violations(slots: ConcurrencyLimits) -> list[str]:
    """Return violated invariants as sentences, for tests and the simulator."""
    out = []
    for limit, pool in slots.pools.items():
        for t in pool.holders:
            claim = slots.claims.get(t)
            if claim is None or limit not in claim.pools[: claim.held]:
                out.append(f"{limit} is held by {t}, which does not know")
        for account, line in pool.lines.items():
            out.extend(
                f"{t} stands in the queue of {limit} and does not wait for it"
                for _, t in line
                if not _waits_for(slots, t, limit, account)
            )
            if line != sorted(line) or not line:
                out.append(f"the queue of {limit} is out of order")
        if not pool.holders and not pool.lines:
            out.append(f"{limit} is kept though unused")
        if _first(slots, limit, pool) is not None:
            out.append(f"{limit} has room and somebody waits")
        portions = (slots.claims[t].portions for t in pool.holders if t in slots.claims)
        if isinstance(limit, UserTotal) and pool.used != sum(p[limit].amount for p in portions):
            out.append(f"{limit} counts {pool.used}, and its holders have another sum")
        if isinstance(limit, CpuPool):
            queues = Counter(slots.claims[t].account.queue for t in pool.holders)
            if queues != pool.in_use:
                out.append(f"{limit} counts {pool.in_use} slots of queues, and {queues} are held")
            out.extend(
                f"{t} holds {limit} and is not charged"
                for t in pool.holders
                if t not in slots.fair.holdings
            )
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
            if not _has_room(pool, limit, claim) or not _is_next(slots, pool, claim, ticket):
                pool.join(claim.account_in(limit), claim.number, ticket)
                break
            _hold(slots, claim, limit, ticket)
            claim.held += 1
        else:
            done.append(ticket)
    return done


def _has_room(pool: Pool, limit: LimitPool, claim: LimitClaim) -> bool:
    """Return whether the claim fits into what is free of the pool."""
    if isinstance(limit, UserTotal):
        portion = claim.portions[limit]
        return pool.used + portion.amount <= portion.most
    return len(pool.holders) < pool.capacity


def _first(slots: ConcurrencyLimits, limit: LimitPool, pool: Pool) -> tuple[Account, RunKey] | None:
    """Return the run that gets what is free of the pool, with its account, or None."""
    if not isinstance(limit, UserTotal) and len(pool.holders) >= pool.capacity:
        return None  # the usual case
    account = _next(slots, pool)
    if account is None:
        return None
    ticket = pool.lines[account][0][1]
    return (account, ticket) if _has_room(pool, limit, slots.claims[ticket]) else None


def _is_next(slots: ConcurrencyLimits, pool: Pool, claim: LimitClaim, ticket: RunKey) -> bool:
    """Return whether a ticket that does not wait yet gets the next slot of the pool."""
    account = claim.account_in(claim.pools[claim.held])
    if pool.lines:
        first, *_ = pool.lines.get(account) or [(claim.number, ticket)]
        return (claim.number, ticket) <= first and account == _next(
            slots, pool, {account: claim.number}
        )
    return account == NOBODY or slots.fair.rules.may_use(
        account.queue, pool.in_use.get(account.queue, 0), pool.capacity
    )


def _next(
    slots: ConcurrencyLimits, pool: Pool, joining: Mapping[Account, int] | None = None
) -> Account | None:
    """Return the account that gets the next slot of the pool, if any may have it. joining: waits,
    too.
    """
    waiting = {**pool.waiting, **(joining or {})}
    if not waiting or NOBODY in waiting:
        return next(iter(waiting), None)
    return slots.fair.first(waiting, pool.in_use, pool.capacity)


def _hold(
    slots: ConcurrencyLimits,
    claim: LimitClaim,
    limit: LimitPool,
    ticket: RunKey,
    ago: float = 0.0,
) -> None:
    pool = _pool(slots, limit)
    if ticket not in pool.holders and isinstance(limit, CpuPool):
        queue = claim.account.queue
        pool.in_use[queue] = pool.in_use.get(queue, 0) + 1
        slots.fair.begin(ticket, claim.account, 1.0, ago)
    if ticket not in pool.holders and isinstance(limit, UserTotal):
        pool.used += claim.portions[limit].amount
    pool.holders.add(ticket)


def _drop(slots: ConcurrencyLimits, claim: LimitClaim, limit: LimitPool, ticket: RunKey) -> None:
    pool = slots.pools[limit]
    if ticket in pool.holders and isinstance(limit, CpuPool):
        queue = claim.account.queue
        pool.in_use[queue] -= 1
        if not pool.in_use[queue]:
            del pool.in_use[queue]
        slots.fair.end(ticket)
    if ticket in pool.holders and isinstance(limit, UserTotal):
        pool.used -= claim.portions[limit].amount
    pool.holders.discard(ticket)


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
            _drop(slots, claim, limit, ticket)
        else:
            slots.pools[limit].leave(claim.account_in(limit), claim.number, ticket)
        limits[limit] = None


def _grant(slots: ConcurrencyLimits, limit: LimitPool) -> list[RunKey]:
    out: list[RunKey] = []
    pool = slots.pools.get(limit)
    while pool is not None and (first := _first(slots, limit, pool)) is not None:
        account, ticket = first
        pool.leave(account, slots.claims[ticket].number, ticket)
        _hold(slots, slots.claims[ticket], limit, ticket)
        slots.claims[ticket].held += 1
        out.extend(_advance(slots, [ticket]))
    return out


def _waits_for(slots: ConcurrencyLimits, t: RunKey, limit: LimitPool, account: Account) -> bool:
    claim = slots.claims.get(t)
    return (
        claim is not None
        and claim.held < len(claim.pools)
        and claim.pools[claim.held] == limit
        and claim.account_in(limit) == account
    )


def _pool(slots: ConcurrencyLimits, limit: LimitPool) -> Pool:
    pool = slots.pools.get(limit)
    if pool is None:
        pool = slots.pools[limit] = Pool(capacity=slots.capacity(limit))
    return pool


def _forget_if_unused(slots: ConcurrencyLimits, limit: LimitPool) -> None:
    pool = slots.pools.get(limit)
    if pool is not None and not pool.holders and not pool.lines:
        del slots.pools[limit]
