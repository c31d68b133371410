"""Host selection for drivers with several hosts: the capacity of each host, the hosts allowed for a
run, and the choice among them.

Functions on plain data. `state.host_assignment` collects the current load; `rebalancing` and
`host_availability` act on it.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from ....protocol.clusters.cluster import LIMIT_SLACK_SECS
from ....protocol.ids import AgentKind


class HostCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """slots: concurrent runs, by kind. agent_mb: memory of one agent of a kind; memory_mb: memory
    for all agents of the host, None: not counted.

    Memory is counted only for drivers that run gangs in containers: otherwise agents of gangs could
    wait for each other's memory. plans: only users with these plans use the host; empty: only users
    without a dedicated host.
    """

    host: str
    slots: dict[AgentKind, int]
    agent_mb: dict[AgentKind, int] = {}
    memory_mb: int | None = None
    plans: frozenset[str] = frozenset()
    #: concurrent runs of one user on a cluster; None: the driver's number
    user_runs: int | None = None
    #: on a cluster: the agent ends a run this long after its time limit, if the scheduler has not
    limit_slack_secs: float = LIMIT_SLACK_SECS


class HostOutage(msgspec.Struct, frozen=True):
    """An unavailable host: reason, and since when (wall time)."""

    detail: str
    since: float


#: By (driver, host).
Outages = dict[tuple[str, str], HostOutage]


class HostCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One host as a candidate for a run.

    load: runs of its kind that wait or run there; slots: concurrent runs. warm: 2 if the user's
    agent of that kind is up or on its way, 1 if the user has any agent there. memory: 2 if the
    agent fits, 1 if it fits after evicting idle agents, else 0.
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
        """Name of the host."""

    @property
    def plans(self) -> frozenset[str]:
        """Plans for which the host is reserved."""


_Place = TypeVar("_Place", bound=_Kept)


def allowed(places: Sequence[_Place], plan: str | None) -> list[_Place]:
    """Return the hosts reserved for this plan, or the unreserved ones if there are none."""
    kept = [p for p in places if plan is not None and plan in p.plans]
    return kept or [p for p in places if not p.plans]


def choose(options: Sequence[HostCandidate]) -> str | None:
    """Return the host whose queue a run joins. Hosts that are down or without memory are chosen
    only if there is no other.

    If slots are free, a running agent counts first, then the load. Otherwise the load counts first.
    The first host wins a tie.
    """
    up = [o for o in options if not o.down] or options
    roomy = [o for o in up if o.memory] or up
    free = [o for o in roomy if o.load < o.slots]
    if free:
        return min(free, key=lambda o: (-o.warm, o.load / o.slots, -o.memory)).host
    return min(roomy, key=lambda o: (o.load / o.slots, -o.warm, -o.memory)).host if roomy else None


def record_change(
    outages: Outages, where: tuple[str, str], detail: str, at: float, *, up: bool
) -> None:
    """Record that a host is up or down. An outage begins with its first report."""
    if up:
        outages.pop(where, None)
    else:
        before = outages.get(where)
        outages[where] = HostOutage(detail, at if before is None else before.since)
