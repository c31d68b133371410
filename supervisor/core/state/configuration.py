"""What the core decides by: sizes and deadlines, hosts and what they have. Made out of the
settings, once.
"""

import msgspec

from ....diagnosis.exit_table import Table
from ..resources.bin_packing import Node
from ..resources.host_selection import HostCapacity

#: Where agents are of a driver that says nothing about it.
_ALONE = (HostCapacity(host="localhost", slots={}),)


class CoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and deadlines (seconds). places: per driver, the hosts of its agents; where none is
    given there is one, with cpu_slots.

    nodes: per driver, what there is for runs with roles. containers: drivers whose runs with roles
    are at places of kind `container`. batch: drivers that give their runs to a batch scheduler; the
    hosts of these are clusters. exits: what exits mean.
    """

    #: per (driver, kind), on each host whose place does not say it
    cpu_slots: dict[tuple[str, str], int] = {}
    op_run_slots: dict[tuple[str, str], int] = {}
    places: dict[str, tuple[HostCapacity, ...]] = {}
    containers: frozenset[str] = frozenset()
    batch: frozenset[str] = frozenset()
    #: of tasks of gangs there
    batch_ports: tuple[int, int] = (20_000, 29_999)
    nodes: dict[str, tuple[Node, ...]] = {}
    #: agents that nobody needs for so long are sent home; of other drivers, never
    agent_idle_secs: dict[str, float] = {}
    exits: Table = Table()
    #: what is held for a gang is given back when it could not be started within this time, and is
    #: asked for again later
    hold_secs: float = 60.0
    hold_again_secs: float = 30.0
    #: a failed task may be kept so long
    debug_secs: float = 604_800.0
    #: from a start on to the first word of the agent
    agent_start_secs: float = 10.0
    #: where starts take their turn, or an image has to come first: the driver has so long to say
    #: that it started one, and then it counts
    driver_start_secs: dict[str, float] = {}
    agent_start_tries: int = 3
    #: so many calls may wait for one agent to be up
    agent_wanted: int = 256
    #: runs of users with these plans are never purged
    kept_plans: frozenset[str] = frozenset()
    #: after an agent's connection ended: look for it at once, then after this long, again and again
    agent_return_secs: float = 3.0
    op_reply_secs: float = 30.0
    #: the same for what a batch scheduler is known to have in its queue, perhaps for days
    batch_reply_secs: float = 600.0
    #: the time limit is enforced where the job runs; the supervisor steps in so long after that
    limit_slack_secs: float = 5.0
    time_limit_secs: float | None = None
    queue_limit_secs: float | None = None
    #: the log was set back: lower serials may have been used in what it has lost
    serial_floor: int = 0

    def hosts(self, driver: str) -> tuple[HostCapacity, ...]:
        """Where its agents may be."""
        return self.places.get(driver) or _ALONE

    def place(self, driver: str, host: str) -> HostCapacity | None:
        """What this host has for agents; None: it is none of them any more."""
        return next((p for p in self.hosts(driver) if p.host == host), None)

    def watches(self, driver: str) -> bool:
        """Does it matter whether somebody needs its agents?"""
        return driver in self.agent_idle_secs or any(
            p.memory_mb is not None for p in self.hosts(driver)
        )

    def runs_at(self, driver: str, kind: str, host: str | None) -> int:
        """Runs of one user at once: on this host, where it has a number of its own."""
        place = None if host is None else self.place(driver, host)
        there = None if place is None else place.user_runs
        return self.op_run_slots.get((driver, kind), 1) if there is None else there

    def slots_at(self, driver: str, kind: str, host: str) -> int:
        """Plain runs at once."""
        place = self.place(driver, host)
        there = None if place is None else place.slots.get(kind)
        return self.cpu_slots.get((driver, kind), 1) if there is None else there
