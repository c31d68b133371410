"""Hosts of a driver with several: what each has for agents, which of them a run may go to, and to
which of these it goes.

Plain data and functions of it. What runs hold and wait for is gathered in `world`, what is done
about it in `moving` and `outages`.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from ....protocol.clusters.cluster import LIMIT_SLACK_SECS


class HostCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """slots: runs at once, by kind. agent_mb: memory that one agent of a kind takes there;
    memory_mb: for all of them, None: not counted.

    It is counted for drivers whose gangs are in containers only: agents of gangs could wait for
    each other's memory. plans: only runs of users with these plans come here; none: everybody
    else's.
    """

    host: str
    slots: dict[str, int]
    agent_mb: dict[str, int] = {}
    memory_mb: int | None = None
    plans: frozenset[str] = frozenset()
    #: of one user at once, on a cluster; None: as with the driver
    user_runs: int | None = None
    #: on a cluster: its agent ends what the scheduler has not ended so long after its time limit
    limit_slack_secs: float = LIMIT_SLACK_SECS


class HostOutage(msgspec.Struct, frozen=True):
    """A host that cannot be asked: why, and since when (wall time)."""

    detail: str
    since: float


#: By (driver, host).
Outages = dict[tuple[str, str], HostOutage]


class HostCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One host, as a run sees it that looks for a home.

    load: runs of its kind that wait or run there, of `slots` at once. warm: 2 where its user's
    agent of that kind is there or on its way, 1 where the user has any agent. memory: 2 where there
    is room for its agent, 1 where idle ones make room, 0 where there is none.
    """

    host: str
    down: bool = False
    slots: int = 1
    load: int = 0
    warm: int = 0
    memory: int = 2


class _Kept(Protocol):
    @property
    def host(self) -> str:
        """Its name."""

    @property
    def plans(self) -> frozenset[str]:
        """Who may come."""


_Place = TypeVar("_Place", bound=_Kept)


def allowed(places: Sequence[_Place], plan: str | None) -> list[_Place]:
    """Those that are kept for this plan; where none is, those that are kept for nobody."""
    kept = [p for p in places if plan is not None and plan in p.plans]
    return kept or [p for p in places if not p.plans]


def choose(options: Sequence[HostCandidate]) -> str | None:
    """Where a run waits. A host that is down is nobody's choice while another is up; nor is one
    whose memory is used up.

    Where a slot is free, the agent that is there counts first, then the load; where none is, the
    load alone. The first listed wins a tie.
    """
    up = [o for o in options if not o.down] or options
    roomy = [o for o in up if o.memory] or up
    free = [o for o in roomy if o.load < o.slots]
    if free:
        return min(free, key=lambda o: (-o.warm, o.load / o.slots, -o.memory)).host
    return min(roomy, key=lambda o: (o.load / o.slots, -o.warm, -o.memory)).host if roomy else None


def note(outages: Outages, where: tuple[str, str], detail: str, at: float, *, up: bool) -> None:
    """A host of a driver can be asked, or cannot. It is down since it was told for the first time."""
    if up:
        outages.pop(where, None)
    else:
        before = outages.get(where)
        outages[where] = HostOutage(detail, at if before is None else before.since)
