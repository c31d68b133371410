"""The core's state: the fold of the log for all live jobs and agents, and notices that are true
only while this process runs.

Only two things change a `World`: `Transaction.record*` (events, through the folds) and the
decisions' changes of notices (connections, slots). A decision advances the given world instead of a
copy, because one release can place many runs, each on top of the last. A failed commit discards the
world and folds a new one.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Literal, assert_never

import msgspec

from ....db.events.reserved import by_run
from ....db.events.state import AgentRecord, Job, PastRun, Run, Task
from ....db.events.usage_row import UsageRow, end_of
from ....protocol.api.requests import RunSpec
from ....protocol.clusters.batch import BatchState
from ....protocol.ids import DEFAULT_QUEUE, AgentKey, AgentKind, OpId, Token, split_jid
from ....protocol.jobs.roles import After, TaskPlace
from ..interface import drains as drains_
from ..interface import grants as grants_
from ..interface.drains import Drain, Drains
from ..interface.grants import Grant, Grants
from ..interface.inputs import Now
from ..resources import concurrency_limits, gang_allocator
from ..resources.concurrency_limits import UNLIMITED, ConcurrencyLimits, Portion, RunKey
from ..resources.fair_share import Account, FairShare, Used
from ..resources.gang_allocator import NodePool
from ..resources.host_selection import Outages
from ..resources.limit_pools import (
    ArrayPool,
    CpuPool,
    JobPool,
    LimitPool,
    OpPool,
    RunDirPool,
    UserPool,
    UserTotal,
    cpu_pool,
    without_slots,
)
from ..resources.monthly_usage import MonthlyUsage
from . import task_counts
from .agent_phase import AgentPhase
from .agent_state import AgentState
from .configuration import CoreConfig
from .host_assignment import HostAssignment
from .task_counts import CountsByRun

#: More than the number of all runs: the numbers of two priorities never overlap.
PRIORITY_STEP = 2**48
#: The driver of this machine.
LOCAL = "local"


class GangReservation(msgspec.Struct):
    """A gang that holds all its resources and is not placed yet: its agents must be up and its
    ports free.

    probes: port probe in progress per agent; free: agents where the ports are free.
    """

    number: int
    places: tuple[TaskPlace, ...]
    #: monotonic time
    since: float
    probes: dict[AgentKey, OpId] = {}
    free: set[AgentKey] = msgspec.field(default_factory=set)
    #: number of probes
    tries: int = 0


class World:
    """All live state. A job stays while effects are outstanding for it, or shortly after a request
    for it.
    """

    def __init__(
        self,
        policy: CoreConfig,
        recall: Callable[[AgentKey], AgentRecord] = lambda key: AgentRecord(key=key),
        down: Outages | None = None,
        drains: Drains | None = None,
        grants: Grants | None = None,
    ) -> None:
        """recall: function that loads an agent's record from the log. down: unavailable hosts.
        drains: hosts that get no new runs. grants: of this shard; without one, a limit that moves is 0.
        """
        self.policy = policy
        self.drains: dict[tuple[str, str], Drain] = dict(drains or {})
        self.grants: dict[str, Grant] = dict(grants or {})
        self._recall = recall
        self.jobs: dict[str, Job] = {}
        self.agents: dict[AgentKey, AgentState] = {}
        #: agents used since `forget_idle`
        self._looked_at: set[AgentKey] = set()
        #: agents used in this decision, of drivers that evict idle agents
        self.watched: set[AgentKey] = set()
        self.slots = ConcurrencyLimits(capacity=self._capacity, fair=FairShare(policy.shares))
        self._watches = cache(policy.watches)
        self.host_assignment = HostAssignment(
            policy, self.agents, self.slots.pools, {} if down is None else dict(down), self.drains
        )
        #: nodes for runs with roles, by driver
        self.node_pools = {
            driver: NodePool(
                nodes=nodes,
                fair=self.slots.fair,
                down={host for at, host in self.host_assignment.down if at == driver},
                drained=drains_.hosts_of(self.drains, driver, (n.host for n in nodes)),
                granted=self.granted_nodes() if driver == LOCAL else {},
            )
            for driver, nodes in policy.nodes.items()
        }
        #: gangs that hold all resources and are not placed yet
        self.holds: dict[RunKey, GangReservation] = {}
        #: gangs that released everything and wait before the next try: reason and end (wall time)
        self.gang_backoffs: dict[RunKey, tuple[str, float]] = {}
        #: task counts of live attempts
        self.task_counts: CountsByRun = {}
        #: runs that wait for the end of a run, by job id and serial
        self.followers: dict[str, dict[int, dict[RunKey, None]]] = {}
        #: number of pending or running runs of each user
        self.active_runs: Counter[str] = Counter()
        #: monotonic start time of executions, as reported by agents
        self.began: dict[Token, float] = {}
        #: last state of live executions in batch schedulers
        self.batch: dict[Token, BatchState] = {}
        self.next_number = 1
        #: resources for which somebody has a limit over all runs of a user
        self._totals: tuple[Literal["cores", "gpus", "memory"], ...] = tuple(
            r for r in ("cores", "gpus", "memory") if policy.queues.any_limit(f"total_{r}")
        )
        #: whether somebody has a limit of hours; and the hours of ended executions
        self.limits_hours = policy.queues.any_limit("core_hours", "gpu_hours")
        self.hours = MonthlyUsage()

    def _capacity(self, pool: LimitPool) -> int:
        match pool:  # the pools that every run creates come first
            case JobPool() | RunDirPool():
                return 1
            case OpPool(driver, kind, host=host_):
                return self.policy.runs_at(driver, kind, host_)
            case CpuPool(driver, kind, host):
                drained = self.drain_of(driver, host) is not None
                return 0 if drained else self.slots_at(driver, kind, host)
            case ArrayPool(at_once=at_once) | UserPool(at_once=at_once):
                return at_once
            case UserTotal():
                return UNLIMITED  # each run has its own limit
            case _:
                assert_never(pool)

    def slots_at(self, driver: str, kind: AgentKind, host: str) -> int:
        """Return the concurrent plain runs on this host that this shard may have now."""
        if self.policy.moving:
            name = grants_.slots_name(driver, kind, host)
            if name in self.policy.moving:
                grant = self.grants.get(name)
                return 0 if grant is None else grant.limit
        return self.policy.slots_at(driver, kind, host)

    def granted_nodes(self) -> dict[str, tuple[int, int]]:
        """Return the cores and MiB of this machine that this shard may use now, by host."""
        if grants_.CPU not in self.policy.moving:
            return {}
        cpu, memory = (self.grants.get(name) for name in (grants_.CPU, grants_.MEMORY))
        limits = (cpu.limit if cpu else 0, memory.limit if memory else 0)
        return {node.host: limits for node in self.policy.nodes.get(LOCAL, ())}

    def drain_of(self, driver: str, host: str) -> Drain | None:
        """Return the drain because of which a host gets no new runs."""
        return drains_.of_host(self.drains, driver, host) if self.drains else None

    def agent(self, key: AgentKey) -> AgentState:
        view = self.agents.get(key)
        if view is None:
            view = self.agents[key] = AgentState(record=self._recall(key))
        self._looked_at.add(key)
        if self._watches(key.driver):
            self.watched.add(key)
        return view

    def forget_idle(self) -> None:
        """Drop agents that do not run and are not needed; the log has them. Call this when all
        decisions are durable.
        """
        for key in self._looked_at:
            view = self.agents.get(key)
            if (
                view is not None
                and view.phase in (AgentPhase.ABSENT, AgentPhase.SIGNED_OUT)
                and not view.needed
            ):
                del self.agents[key]
        self._looked_at.clear()

    def key_of(self, run: Run) -> AgentKey:
        """Return the agent that the run waits for, or would wait for."""
        return self.key_at(run.spec, self.host_assignment.host_of(run))

    def key_at(self, spec: RunSpec, host: str) -> AgentKey:
        """Return the agent that runs this spec on this host."""
        return self.host_assignment.key_at(spec, host)

    def enqueue(self, key: AgentKey, ticket: RunKey, number: int) -> None:
        """Append the run to this agent's queue."""
        view, run = self.agent(key), self.jobs[ticket[0]].run
        view.queued[ticket] = number
        if run is not None and run.spec.roles:
            view.gangs[ticket] = number
        self.host_assignment.add_waiting(key, ticket)

    def dequeue(self, key: AgentKey, ticket: RunKey) -> int | None:
        """Remove the run from this agent's queue. Return its number, or None if it was not queued."""
        self.host_assignment.unassigned.pop(ticket, None)
        view = self.agent(key)
        view.asking.discard(ticket)
        number = view.queued.pop(ticket, None)
        view.gangs.pop(ticket, None)
        if number is not None:
            self.host_assignment.remove_waiting(key, ticket)
        return number

    def node_pool(self, driver: str) -> NodePool:
        """Return the nodes of this driver, empty if none are configured."""
        return self.node_pools.setdefault(driver, NodePool(nodes=(), fair=self.slots.fair))

    def wait_for(self, ticket: RunKey, waits: Iterable[After]) -> None:
        """Record that this run waits for the end of other runs."""
        for after in waits:
            self.followers.setdefault(after.compute_jid, {}).setdefault(
                after.compute_job_serial, {}
            )[ticket] = None

    def task(self, token: Token) -> Task | None:
        job = self.jobs.get(token.jid)
        return None if job is None else job.task(token)

    def pools_of(self, key: AgentKey, ticket: RunKey) -> tuple[LimitPool, ...]:
        """Return the pools that a run must hold, in the order of acquisition: job, array limit, user,
        totals of the user, op slot, run directory, CPU.

        The job comes first and is held until all tasks of the run have ended. The run directory is
        released at the start, because frames are read from it while the run is active. This pool
        also prevents that a stopping run and its successor share the directory. A run with roles
        takes no CPU slot: it holds the resources that its roles request (`gang_allocator`). With a
        batch driver it takes one, which is a place in the queue of its cluster, and each cluster
        has its own op slots.
        """
        jid, serial = ticket
        asked = request_of(self.jobs[jid], serial)
        uid, sid, _ = split_jid(jid)
        array = (ArrayPool(uid, sid, asked.at_once),) if asked.at_once is not None else ()
        queued = key.driver in self.policy.batch
        cpu = () if asked.roles and not queued else (cpu_pool(key),)
        op = OpPool(key.driver, key.kind, key.uid, key.host if queued else None)
        plan = asked.active_plan if isinstance(asked, RunSpec) else None
        running = self.policy.queues.limits_of(plan, uid).running
        user = () if running is None else (UserPool(uid, running),)
        return (JobPool(jid), *array, *user, *self.portions_of(ticket), op, RunDirPool(jid), *cpu)

    def portions_of(self, ticket: RunKey) -> dict[UserTotal, Portion]:
        """Return what a run takes of the totals of its user. Runs without a limit count, too: the
        user may have others with one.
        """
        if not self._totals:
            return {}
        jid, serial = ticket
        asked, uid = request_of(self.jobs[jid], serial), split_jid(jid)[0]
        reserved = by_run(asked)
        plan = asked.active_plan if isinstance(asked, RunSpec) else None
        limits = self.policy.queues.limits_of(plan, uid)
        amounts = {"cores": reserved.cores, "gpus": reserved.gpus, "memory": reserved.mib or 0}
        out: dict[UserTotal, Portion] = {}
        for resource in self._totals:
            most = getattr(limits, f"total_{resource}")
            if amounts[resource]:
                out[UserTotal(uid, resource)] = Portion(
                    amounts[resource], UNLIMITED if most is None else most
                )
        return out

    def account_of(self, ticket: RunKey) -> Account:
        """Return the account that a run is charged to."""
        jid, serial = ticket
        asked = request_of(self.jobs[jid], serial)
        queue = self.slots.fair.rules.name_of(asked.queue or DEFAULT_QUEUE)
        return Account(queue, split_jid(jid)[0])

    def waiting_runs(self, uid: str) -> int:
        """Return how many runs of a user are active and have no live task."""
        placed = sum(
            run is not None and run.active and run.serial == serial
            for jid, serial in self.task_counts
            if split_jid(jid)[0] == uid
            for run in (self.jobs[jid].run,)
        )
        return self.active_runs[uid] - placed

    def number(self, run: Run) -> int:
        """Return a number that orders a new run behind the others of its priority."""
        self.next_number += 1
        return rank(self.next_number - 1, run)

    def restore(
        self,
        jobs: Iterable[tuple[Job, int]],
        agents: Iterable[AgentRecord],
        usage: Iterable[UsageRow] = (),
        now: Now | None = None,
        month: Iterable[UsageRow] = (),
    ) -> None:
        """Restore live jobs (with the position of their request, which orders them) and agents from
        the log. usage: of ended executions, for the fair share; it decays until `now`. now: None if
        it does not matter for how long slots are held. month: the usage of the current month.
        """
        self.hours.add(month)
        if now is not None:
            self.slots.fair.now = self.slots.fair.reference = now.mono
            self._restore_usage(usage, now)
        for record in agents:
            self.agent(record.key).record = record
        ordered = sorted(jobs, key=lambda pair: pair[1])
        for job, number in ordered:
            self.jobs[job.jid] = job
            if job.run is not None and job.run.active:
                self.active_runs[split_jid(job.jid)[0]] += 1
            self._restore_job(job, number, now)
            self.next_number = max(self.next_number, number + 1)
        # free capacity is known only after all held resources are restored
        ranks = [
            (job, number if job.run is None else rank(number, job.run)) for job, number in ordered
        ]
        for job, number in sorted(ranks, key=lambda pair: pair[1]):
            self._restore_queued(job, number)

    def _restore_usage(self, usage: Iterable[UsageRow], now: Now) -> None:
        """Charge the usage to the accounts, as if each period's was used in its middle."""
        shares, used = self.slots.fair.rules, dict[Account, list[Used]]()
        for row in usage:
            age = max(0.0, now.wall - (row.start + end_of(row)) / 2)
            secs = (row.core_ms + shares.gpu_cores * row.gpu_ms) / 1000
            account = Account(shares.name_of(row.queue), row.uid)
            used.setdefault(account, []).append(Used(age, secs, row.executions))
        for account, own in used.items():
            self.slots.fair.restore(account, own)

    def _restore_job(self, job: Job, number: int, now: Now | None) -> None:
        run = job.run
        if run is not None and run.waits_for and run.active:
            self.wait_for((job.jid, run.serial), run.waits_for)
        for task in job.live_tasks():
            if task.held is None or task.agent_key.driver in self.policy.batch:
                self.agent(task.agent_key).placed.add(task.token)
        by_run: dict[int, list[Task]] = {}
        for task in job.live_tasks():
            by_run.setdefault(task.token.serial, []).append(task)
        for serial, tasks in by_run.items():
            self._restore_holdings(job, (job.jid, serial), number, tasks, now)

    def _restore_queued(self, job: Job, number: int) -> None:
        run = job.run
        if (
            run is None
            or run.waits_for
            or not run.active
            or run.live_tasks
            or run.retry is not None
        ):
            return
        key = self.host_assignment.choose(run.spec)
        if key is None:
            self.host_assignment.unassigned[job.jid, run.serial] = number
        else:
            self.enqueue(key, (job.jid, run.serial), number)

    def _restore_holdings(
        self, job: Job, ticket: RunKey, number: int, tasks: list[Task], now: Now | None
    ) -> None:
        run, key, asked = job.run, tasks[0].agent_key, request_of(job, ticket[1])
        current = run is not None and run.serial == ticket[1]
        attempt = run.attempts[-1].tasks if run is not None and current else tuple(tasks)
        self.task_counts[ticket] = task_counts.count_tasks(attempt)
        pools = self.pools_of(key, ticket)
        if all(task.waits_for_slot for task in tasks):
            concurrency_limits.restore(
                self.slots,
                ticket,
                number,
                without_slots(pools),
                (),
                self.account_of(ticket),
                portions=self.portions_of(ticket),
            )
            if run is not None and current and run.active:
                self.agent(key).ahead[ticket] = number
            return
        released = () if all(t.pid is None for t in attempt) else (RunDirPool(job.jid),)
        since = min(t.placed_at if t.slot_at is None else t.slot_at for t in attempt)
        ago = 0.0 if now is None else max(0.0, now.wall - since)
        concurrency_limits.restore(
            self.slots,
            ticket,
            number,
            pools,
            released,
            self.account_of(ticket),
            ago,
            self.portions_of(ticket),
        )
        if asked.roles and key.driver not in self.policy.batch:
            gang_allocator.record_placed(
                self.node_pool(key.driver),
                ticket,
                asked.roles,
                tuple(t.place for t in tasks),
                self.account_of(ticket),
                ago,
            )


def rank(number: int, run: Run) -> int:
    """Return the number by which a run is queued: a higher priority goes before any lower one."""
    return number - (run.spec.priority or 0) * PRIORITY_STEP


def request_of(job: Job, serial: int) -> RunSpec | PastRun:
    """Return what the current run, or an earlier one with live tasks, requested."""
    if job.run is not None and job.run.serial == serial:
        return job.run.spec
    return next(p for p in job.history if p.serial == serial)


def owner(jid: str) -> str:
    return split_jid(jid)[0]
