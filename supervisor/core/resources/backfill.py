"""Backfill: later gangs may be placed while the first one waits, if they do not delay it.

The first gang has a reservation: the earliest time at which it fits, if all placed gangs end by
their time limits. A later gang is placed if it ends by then, or if the first one still fits then
beside it. Without time limits on what the first gang waits for, that time is unknown, and nothing is
placed before it. A gang that ends early does not move the reservation: another one may have used the
gap. Pure.
"""

import copy
from collections.abc import Sequence

import msgspec

from ....protocol.jobs.roles import TaskPlace
from . import node_pool
from .node_pool import AllocationRequest, NodePool

#: Number of waiting gangs that are tried at a time.
CANDIDATES = 64
#: Added to a time limit: the start of agents and containers before it, and the stop after it.
SLACK_SECS = 60.0


class Reservation(msgspec.Struct):
    """When the first gang fits (monotonic), and the nodes as they will be then, without it."""

    at: float
    pool: NodePool


def end_of(limit_secs: float, mono: float) -> float:
    """Return the time (monotonic) at which a gang that is placed now has ended."""
    return mono + limit_secs + SLACK_SECS


def reserve(pool: NodePool, first: AllocationRequest, mono: float) -> Reservation | None:
    """Return the reservation of the first gang, or None if its time is unknown."""
    then = NodePool(
        nodes=pool.nodes,
        usage=copy.deepcopy(pool.usage),
        down=set(pool.down),
        drained=set(pool.drained),
        granted=dict(pool.granted),
        fair=pool.fair,
    )
    ends = sorted(
        (c.until, ticket)
        for ticket, c in pool.claims.items()
        # one that is over time is held, or has no end
        if c.placements and c.until is not None and c.until > mono
    )
    for until, ticket in ends:
        ending = pool.claims[ticket]
        node_pool.add_tasks(then, ending, ending.placements.values(), -1)
        if node_pool.assign(then, first) is not None:
            return Reservation(until, then)
    return None


def allows(
    reservation: Reservation,
    first: AllocationRequest,
    later: AllocationRequest,
    places: Sequence[TaskPlace],
    mono: float,
) -> bool:
    """Return whether a later gang at these places does not delay the first one; then the reservation
    includes it.
    """
    if later.limit_secs is not None and end_of(later.limit_secs, mono) <= reservation.at:
        return True
    node_pool.add_tasks(reservation.pool, later, places, 1)
    if node_pool.assign(reservation.pool, first) is not None:
        return True
    node_pool.add_tasks(reservation.pool, later, places, -1)
    return False
