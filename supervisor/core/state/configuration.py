"""The configuration of the core: sizes, deadlines, hosts and their resources. Built once from the
settings.
"""

import msgspec

from ....diagnosis.exit_table import Table
from ....protocol.clusters.queues import Queues
from ....protocol.ids import AgentKind
from ..resources.bin_packing import Node
from ..resources.fair_share import QueueRule, ShareRules
from ..resources.host_selection import HostCapacity

#: Hosts of a driver without configured hosts.
_ALONE = (HostCapacity(host="localhost", slots={}),)


class CoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and deadlines (seconds). places: per driver, the hosts of its agents; if empty, the
    driver has one host, with cpu_slots.

    nodes: per driver, the nodes for runs with roles. containers: drivers that place runs with roles
    at kind `container`. batch: drivers that submit runs to a batch scheduler; their hosts are
    clusters. exits: the exit table. queues: also the limits of users.
    """

    #: per (driver, kind), for each host without its own number
    cpu_slots: dict[tuple[str, AgentKind], int] = {}
    op_run_slots: dict[tuple[str, AgentKind], int] = {}
    places: dict[str, tuple[HostCapacity, ...]] = {}
    #: limits of the site of which this shard has a part that changes (`interface.grants`)
    moving: frozenset[str] = frozenset()
    containers: frozenset[str] = frozenset()
    batch: frozenset[str] = frozenset()
    #: port range of gang tasks on clusters
    batch_ports: tuple[int, int] = (20_000, 29_999)
    nodes: dict[str, tuple[Node, ...]] = {}
    #: idle time before eviction, by driver; without a value, agents are never evicted
    agent_idle_secs: dict[str, float] = {}
    exits: Table = Table()
    queues: Queues = Queues()
    #: resources held for a gang are released if it does not start within this time, and requested
    #: again later
    hold_secs: float = 60.0
    hold_again_secs: float = 30.0
    #: longest hold of a failed task
    debug_secs: float = 604_800.0
    #: time from the start of an agent to its first message
    agent_start_secs: float = 10.0
    #: time for the driver to report a start, where starts queue up or pull an image; then
    #: agent_start_secs counts
    driver_start_secs: dict[str, float] = {}
    agent_start_tries: int = 3
    #: maximum number of calls that wait for one agent
    agent_wanted: int = 256
    #: run directories of users with these plans are never removed
    kept_plans: frozenset[str] = frozenset()
    #: interval of lookups after an agent's connection ended; the first lookup is immediate
    agent_return_secs: float = 3.0
    op_reply_secs: float = 30.0
    #: the same for executions that a batch scheduler is known to hold in its queue
    batch_reply_secs: float = 600.0
    #: the agent enforces the time limit; the supervisor intervenes this long after it
    limit_slack_secs: float = 5.0
    time_limit_secs: float | None = None
    queue_limit_secs: float | None = None
    #: an agent has runs for this many seconds ahead (see `placement_ahead`)
    ahead_secs: float = 0.1
    #: after a log rollback: lower serials may have been used by lost events
    serial_floor: int = 0

    @property
    def shares(self) -> ShareRules:
        """Return the rules by which users take turns."""
        return ShareRules(
            half_life_secs=self.queues.half_life,
            gpu_cores=self.queues.gpu_cores,
            queues={
                name: QueueRule(share=queue.share, borrow=queue.borrow)
                for name, queue in self.queues.all.items()
            },
        )

    def hosts(self, driver: str) -> tuple[HostCapacity, ...]:
        """Return the hosts of the driver's agents."""
        return self.places.get(driver) or _ALONE

    def place(self, driver: str, host: str) -> HostCapacity | None:
        """Return the host's capacity for agents, or None if the host is no longer configured."""
        return next((p for p in self.hosts(driver) if p.host == host), None)

    def watches(self, driver: str) -> bool:
        """Return whether idle agents of this driver are tracked."""
        return driver in self.agent_idle_secs or any(
            p.memory_mb is not None for p in self.hosts(driver)
        )

    def runs_at(self, driver: str, kind: AgentKind, host: str | None) -> int:
        """Return the concurrent runs of one user, for this host if it has its own number."""
        place = None if host is None else self.place(driver, host)
        there = None if place is None else place.user_runs
        return self.op_run_slots.get((driver, kind), 1) if there is None else there

    def slots_at(self, driver: str, kind: AgentKind, host: str) -> int:
        """Return the concurrent plain runs on this host."""
        place = self.place(driver, host)
        there = None if place is None else place.slots.get(kind)
        return self.cpu_slots.get((driver, kind), 1) if there is None else there
