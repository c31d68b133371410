"""Host assignment: the host whose queue holds each queued run, and the memory of hosts taken by
agents.

All of it is in-memory notices. A queued run is assigned again after a restart; a placed run stays
with its agent.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from ....db.events.state import Run
from ....protocol.api.requests import RunSpec
from ....protocol.ids import AgentKey, AgentKind, compute_jid
from ..interface import drains
from ..interface.drains import Drains
from ..resources import host_selection
from ..resources.concurrency_limits import Pool, RunKey
from ..resources.host_selection import HostCandidate, HostCapacity, Outages
from ..resources.limit_pools import LimitPool, cpu_pool
from . import cluster_assignment
from .agent_phase import WITHOUT_PROCESS, AgentPhase
from .agent_state import AgentState
from .configuration import CoreConfig

#: Phases of agents that a new run cannot use, or only after another start.
_NOT_USABLE = WITHOUT_PROCESS | {AgentPhase.LEAVING, AgentPhase.STOPPING}


class HostAssignment:
    """Host assignment for one `World`."""

    def __init__(
        self,
        policy: CoreConfig,
        agents: Mapping[AgentKey, AgentState],
        pools: Mapping[LimitPool, Pool],
        down: Outages,
        drains: Drains,
    ) -> None:
        """agents, pools, drains: the world's own, which change. down: unavailable hosts."""
        self._policy, self._agents, self._pools, self._drains = policy, agents, pools, drains
        #: unavailable hosts
        self.down = down
        #: hosts of queued runs (only drivers with several hosts), and their number by (driver,
        #: kind, host)
        self.hosts: dict[RunKey, str] = {}
        self._waiting: Counter[tuple[str, str, str]] = Counter()
        #: queued runs that no host accepts, with their submission numbers
        self.unassigned: dict[RunKey, int] = {}
        #: agents that take memory by (driver, host), and agents that wait for memory
        self._with_memory: dict[tuple[str, str], dict[AgentKey, None]] = {}
        self.waiting_for_memory: dict[AgentKey, None] = {}

    # ---- records

    def host_of(self, run: Run) -> str:
        """Return the host whose queue holds the run, or the first host if the run is not queued."""
        spec = run.spec
        if spec.driver in self._policy.batch:
            return (
                cluster_assignment.cluster(self._policy, spec)
                or cluster_assignment.named_cluster(spec)
                or ""
            )
        places = self._policy.hosts(spec.driver)
        if len(places) == 1:
            return places[0].host
        return self.hosts.get(
            (compute_jid(spec.uid, spec.simulation_id, spec.compute_model), run.serial),
            places[0].host,
        )

    def add_waiting(self, key: AgentKey, ticket: RunKey) -> None:
        if len(self._policy.hosts(key.driver)) > 1:
            self.hosts[ticket] = key.host
            self._waiting[key.driver, key.kind, key.host] += 1

    def remove_waiting(self, key: AgentKey, ticket: RunKey) -> None:
        if self.hosts.pop(ticket, None) is not None:
            where = (key.driver, key.kind, key.host)
            self._waiting[where] -= 1
            if not self._waiting[where]:
                del self._waiting[where]

    def update_memory(self, key: AgentKey, *, taken: bool) -> None:
        """Record whether the agent takes memory on its host."""
        self.waiting_for_memory.pop(key, None)
        if self._agents[key].phase == AgentPhase.CROWDED:
            self.waiting_for_memory[key] = None
        if taken:
            self._with_memory.setdefault((key.driver, key.host), {})[key] = None
        elif key in (same_host := self._with_memory.get((key.driver, key.host), {})):
            del same_host[key]
            if not same_host:
                del self._with_memory[key.driver, key.host]

    # ---- choices

    def key_at(self, spec: RunSpec, host: str) -> AgentKey:
        """Return the agent that runs this spec on this host."""
        if spec.driver in self._policy.batch:
            return AgentKey(spec.driver, cluster_assignment.KIND, spec.uid, host)
        kind = (
            AgentKind.CONTAINER
            if spec.roles and spec.driver in self._policy.containers
            else AgentKind(spec.job_run_mode)
        )
        return AgentKey(spec.driver, kind, spec.uid, host)

    def choose(self, spec: RunSpec) -> AgentKey | None:
        """Return the agent for a new run, or None if no host accepts it."""
        if spec.driver in self._policy.batch:
            host = cluster_assignment.cluster(self._policy, spec)
            return None if host is None else self.key_at(spec, host)
        places = host_selection.allowed(self._policy.hosts(spec.driver), spec.active_plan)
        if len(places) == 1:
            return self.key_at(spec, places[0].host)
        host = host_selection.choose(
            [self._candidate(p, self.key_at(spec, p.host)) for p in places]
        )
        return None if host is None else self.key_at(spec, host)

    def agent_for_calls(self, driver: str, uid: str, host: str | None) -> AgentKey:
        """Return the agent that answers a user's calls: on this host if it is available, else a
        running one, else as for a run without a plan.
        """
        places = self._policy.hosts(driver)
        if driver in self._policy.batch:
            return self._on_cluster(driver, uid, host)
        keys = [AgentKey(driver, AgentKind.SEQUENTIAL, uid, p.host) for p in places]
        if len(places) == 1:
            return keys[0]
        candidates = [self._candidate(p, key) for p, key in zip(places, keys, strict=True)]
        up = [o for o in candidates if not o.down]
        chosen = next((o.host for o in up if o.host == host), None) or next(
            (o.host for o in up if o.warm == 2), None
        )
        if chosen is None:
            open_ = {p.host for p in host_selection.allowed(places, None)}
            chosen = host_selection.choose([o for o in candidates if o.host in open_] or candidates)
        assert chosen is not None
        return AgentKey(driver, AgentKind.SEQUENTIAL, uid, chosen)

    def _on_cluster(self, driver: str, uid: str, host: str | None) -> AgentKey:
        """Return the agent on this cluster. Without a cluster: a running agent of the user, else
        the first cluster.
        """
        keys = [
            AgentKey(driver, cluster_assignment.KIND, uid, p.host)
            for p in self._policy.hosts(driver)
        ]
        requested = next((k for k in keys if k.host == host), None)
        return requested or next((k for k in keys if self._alive(k)), keys[0])

    def _candidate(self, place: HostCapacity, key: AgentKey) -> HostCandidate:
        pool, waiting = (
            self._pools.get(cpu_pool(key)),
            self._waiting[key.driver, key.kind, key.host],
        )
        return HostCandidate(
            host=place.host,
            down=self.gets_nothing(msgspec.structs.replace(key, host=place.host)),
            warm=self._warm(key),
            memory=self.memory(key),
            slots=max(1, self._policy.slots_at(key.driver, key.kind, place.host)),
            load=waiting + (len(pool.holders) if pool is not None else 0),
        )

    def gets_nothing(self, key: AgentKey) -> bool:
        """Return whether the agent's host is down or drained."""
        where = (key.driver, key.host)
        return where in self.down or drains.of_host(self._drains, *where) is not None

    def _warm(self, key: AgentKey) -> int:
        if self._alive(key):
            return 2
        others = (
            AgentKey(key.driver, kind, key.uid, key.host)
            for kind in (AgentKind.SEQUENTIAL, AgentKind.PARALLEL)
            if kind != key.kind
        )
        return int(any(map(self._alive, others)))

    def _alive(self, key: AgentKey) -> bool:
        view = self._agents.get(key)
        return view is not None and view.phase not in _NOT_USABLE

    # ---- memory of agents

    def memory(self, key: AgentKey) -> int:
        """Return 2 if the host has memory for this agent or the agent is there, 1 if evicting idle
        agents frees enough, else 0.
        """
        lacking = self.missing_mb(key) + self.reserved_mb(key)
        if lacking <= 0:
            return 2
        return int(
            sum(self.agent_mb(k) for k in self.idle_agents(key) + self.leaving_agents(key))
            >= lacking
        )

    def missing_mb(self, key: AgentKey) -> int:
        """Return the MiB missing to start the agent."""
        place, view = self._policy.place(key.driver, key.host), self._agents.get(key)
        if (
            place is None
            or place.memory_mb is None
            or key.kind == AgentKind.CONTAINER
            or (view is not None and view.takes_memory)
        ):
            return 0
        return sum(map(self.agent_mb, self._others(key))) + self.agent_mb(key) - place.memory_mb

    def agent_mb(self, key: AgentKey) -> int:
        """Return the MiB that a running agent takes."""
        place = self._policy.place(key.driver, key.host)
        return 0 if place is None else place.agent_mb.get(key.kind, 0)

    def idle_agents(self, key: AgentKey) -> list[AgentKey]:
        """Return the agents on the same host that may be evicted for this one, the longest idle
        first: unneeded agents, and last those whose runs only wait, if this one has executions.

        The waiting runs may wait for the slots of these executions, whose state only this agent
        can report.
        """
        views = [self._agents[k] for k in self._others(key)]
        own = self._agents.get(key)
        placed = own is not None and bool(own.placed)
        idle = [
            v
            for v in views
            if v.phase == AgentPhase.UP
            and v.synced
            and not v.busy
            and (not v.needed or (placed and v.only_waits))
            and v.record.key.kind != AgentKind.CONTAINER
        ]
        return [v.record.key for v in sorted(idle, key=lambda v: (v.needed, v.used, v.record.key))]

    def reserved_mb(self, key: AgentKey) -> int:
        """Return the MiB of the same host that agents with executions wait for. Such an agent, and
        one that takes memory already, need not wait for them: 0.
        """
        own = self._agents.get(key)
        if own is not None and (own.placed or own.takes_memory):
            return 0
        return sum(
            self.agent_mb(k)
            for k in self.waiting_for_memory
            if k != key and (k.driver, k.host) == (key.driver, key.host) and self._agents[k].placed
        )

    def leaving_agents(self, key: AgentKey) -> list[AgentKey]:
        return [k for k in self._others(key) if self._agents[k].phase == AgentPhase.LEAVING]

    def memory_in_use(self, key: AgentKey) -> tuple[int, int]:
        """Return the number of other agents on the same host and their MiB."""
        others = self._others(key)
        return len(others), sum(map(self.agent_mb, others))

    def _others(self, key: AgentKey) -> list[AgentKey]:
        return [k for k in self._with_memory.get((key.driver, key.host), {}) if k != key]
