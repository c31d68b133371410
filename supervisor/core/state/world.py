"""What the core knows: the fold of the log for everything live, and the notices that are true only
while this process runs.

`World` is changed by two things alone: `Turn.record*` (events, through the folds) and the
decisions' bookkeeping of notices (who is connected, who waits for which slot). A decision advances
the world it is given instead of copying it, because one release can place many runs, each on top of
the last; a failed commit throws the world away and folds a new one.
"""

import hashlib
from collections.abc import Callable, Container, Iterable
from functools import cache
from typing import Any

import msgspec

from ....db.events.agent_fold import evolve_agent
from ....db.events.events import AgentEvent, JobEvent, agent_stream, job_stream
from ....db.events.job_fold import evolve
from ....db.events.state import AgentRecord, Job, PastRun, Run, Task
from ....db.store.contract import Receipt, Write
from ....protocol.api.requests import RunSpec
from ....protocol.clusters.batch import BatchState
from ....protocol.ids import AgentKey, OpId, Token, derived_id, split_jid
from ....protocol.jobs.roles import After, TaskPlace
from ....protocol.wire.messages import Execution, KeeperReport, Shared
from ..interface.effects import Effect
from ..interface.inputs import Now
from ..resources import concurrency_limits, gang_allocator
from ..resources.concurrency_limits import ConcurrencyLimits, RunKey
from ..resources.gang_allocator import NodePool
from ..resources.host_selection import Outages
from . import cluster_assignment, task_counts
from .configuration import CoreConfig as CoreConfig
from .host_assignment import HostAssignment, cpu_pool
from .task_counts import CountsByRun


class AgentState(msgspec.Struct, kw_only=True):
    """One agent key: its record (durable) and where it stands (a notice).

    phase: `absent` (nobody looked), `finding`, `starting`, `away` (alive by its driver's word, not
    connected), `stopping`, `up`, `leaving` (nobody needed it, and it was asked to go), `crowded`
    (its host has no memory left to start it), `signed_out` (nothing can be done about it before its
    user has signed in). Only an `up` agent whose first snapshot is complete (`synced`) is believed
    and given work.
    """

    record: AgentRecord
    phase: str = "absent"
    #: wall time since when it is in this phase
    since: float | None = None
    epoch: int = 0
    synced: bool = False
    #: its first snapshot missed something that runs, and it was asked again
    doubted: bool = False
    #: wall time since when nobody can know what its executions do
    unknown_since: float | None = None
    failures: int = 0
    boot_id: str = ""
    host: str = ""
    #: what its driver said of it last, while it is away
    away: str = ""
    #: the agent's report that its keeper does not answer, while that is so; and the keeper's pid
    keeper: KeeperReport | None = None
    keeper_pid: int = 0
    #: snapshot under way: its number and what came so far
    snapshot_number: int | None = None
    snapshot_pages: int = 0
    #: highest number of a snapshot of this connection that was complete
    snapshot_done: int = 0
    snapshot: dict[Token, Execution] = msgspec.field(default_factory=dict)
    #: jobs that the first snapshot of this connection changed, and the version of each that says
    #: so: until that is durable, nobody is told more than before, which was not known since
    #: news_since
    news: dict[str, int] = msgspec.field(default_factory=dict)
    news_since: float | None = None
    #: queued runs of this key, by ticket: number of submission; in this order
    queued: dict[RunKey, int] = msgspec.field(default_factory=dict)
    #: of these, the runs with roles; in the same order
    gangs: dict[RunKey, int] = msgspec.field(default_factory=dict)
    #: of these, who asks for slots: the first ones, and only so many (see `placement`)
    asking: set[RunKey] = msgspec.field(default_factory=set)
    #: placed and not ended
    placed: set[Token] = msgspec.field(default_factory=set)
    #: who waits for it to be up, besides runs
    wanted: list[int] = msgspec.field(default_factory=list)
    #: gangs that hold something here and have not been placed yet
    holding: set[RunKey] = msgspec.field(default_factory=set)
    #: up and not needed, with a timer; and when it was needed or asked for last, on the monotonic
    #: clock
    idle: bool = False
    used: float = 0.0
    #: it was to go and did not, because somebody waited for an answer of it: it is left alone for a
    #: moment
    busy: bool = False

    #: why its user has to sign in; and whether that was done since it was last looked for
    sign_in: str = ""
    signed_in: bool = False

    @property
    def there(self) -> bool:
        """Does it take memory, as far as is known?"""
        return self.phase not in ("absent", "crowded", "signed_out")

    @property
    def known(self) -> bool:
        """Is it up, and is what it says of its executions true now? Only then it is given work."""
        return self.phase == "up" and self.synced and self.keeper is None

    @property
    def needed(self) -> bool:
        return bool(self.queued or self.placed or self.wanted or self.holding)


class GangReservation(msgspec.Struct):
    """A gang that has everything and is not placed yet: its agents must be up, and nobody else on
    its ports.

    probes: the probe under way at each of its agents; free: agents where its ports are free.
    """

    number: int
    places: tuple[TaskPlace, ...]
    #: on the monotonic clock
    since: float
    probes: dict[AgentKey, OpId] = {}
    free: set[AgentKey] = msgspec.field(default_factory=set)
    #: probes so far
    tries: int = 0


class World:
    """Everything live. Jobs are here while something is owed for them, or while somebody just
    asked.
    """

    def __init__(
        self,
        policy: CoreConfig,
        recall: Callable[[AgentKey], AgentRecord] = lambda key: AgentRecord(key=key),
        down: Outages | None = None,
    ) -> None:
        """recall: what the log knows of an agent that is not here. down: hosts that cannot be asked
        now.
        """
        self.policy = policy
        self._recall = recall
        self.jobs: dict[str, Job] = {}
        self.agents: dict[AgentKey, AgentState] = {}
        #: agents that were looked at since `forget_idle`
        self._looked_at: set[AgentKey] = set()
        #: and, of those that may become idle, in this decision
        self.watched: set[AgentKey] = set()
        self.slots = ConcurrencyLimits(capacity=self._capacity)
        self._watches = cache(policy.watches)
        self.homes = HostAssignment(self, {} if down is None else dict(down))
        #: what runs with roles have of the machines, by driver
        self.rooms = {
            driver: NodePool(
                nodes=nodes, down={host for at, host in self.homes.down if at == driver}
            )
            for driver, nodes in policy.nodes.items()
        }
        #: gangs on their way from having everything to being placed
        self.holds: dict[RunKey, GangReservation] = {}
        #: gangs that gave everything back and wait for a moment, with why and until when (wall
        #: time)
        self.held_off: dict[RunKey, tuple[str, float]] = {}
        #: how far the attempts are that live
        self.tallies: CountsByRun = {}
        #: who waits for the end of a run of this job, by its serial
        self.followers: dict[str, dict[int, dict[RunKey, None]]] = {}
        #: monotonic time at which an execution began, as far as its agent has said so
        self.began: dict[Token, float] = {}
        #: what batch schedulers said last of executions that live
        self.batch: dict[Token, BatchState] = {}
        self.next_number = 1

    def _capacity(self, pool: str) -> int:
        match pool.split("/"):
            case ["cpu", driver, kind, host]:
                return self.policy.slots_at(driver, kind, host)
            case ["op", _, driver, kind, _, *host]:
                return self.policy.runs_at(driver, kind, host[0] if host else None)
            case ["array", _, at_once]:
                return int(at_once)
            case _:
                return 1

    def agent(self, key: AgentKey) -> AgentState:
        view = self.agents.get(key)
        if view is None:
            view = self.agents[key] = AgentState(record=self._recall(key))
        self._looked_at.add(key)
        if self._watches(key.driver):
            self.watched.add(key)
        return view

    def forget_idle(self) -> None:
        """Agents that are not there and that nobody needs are in the log only. To be called when
        all that was decided is durable.
        """
        for key in self._looked_at:
            view = self.agents.get(key)
            if view is not None and view.phase in ("absent", "signed_out") and not view.needed:
                del self.agents[key]
        self._looked_at.clear()

    def key_of(self, run: Run) -> AgentKey:
        """The agent it waits for, or would wait for."""
        return self.key_at(run.spec, self.homes.host_of(run))

    def key_at(self, spec: RunSpec, host: str) -> AgentKey:
        """Who runs it there."""
        if spec.driver in self.policy.batch:
            return AgentKey(spec.driver, cluster_assignment.KIND, spec.uid, host)
        kind = (
            "container"
            if spec.roles and spec.driver in self.policy.containers
            else spec.job_run_mode
        )
        return AgentKey(spec.driver, kind, spec.uid, host)

    def enqueue(self, key: AgentKey, ticket: RunKey, number: int) -> None:
        """It waits for this agent, behind all others."""
        view, run = self.agent(key), self.jobs[ticket[0]].run
        view.queued[ticket] = number
        if run is not None and run.spec.roles:
            view.gangs[ticket] = number
        self.homes.settled(key, ticket)

    def dequeue(self, key: AgentKey, ticket: RunKey) -> int | None:
        """It does not wait for it any more; the number that it had. None: it did not wait."""
        self.homes.homeless.pop(ticket, None)
        view = self.agent(key)
        view.asking.discard(ticket)
        number = view.queued.pop(ticket, None)
        view.gangs.pop(ticket, None)
        if number is not None:
            self.homes.left(key, ticket)
        return number

    def room(self, driver: str) -> NodePool:
        """What there is with this driver; nothing, where it was not said."""
        return self.rooms.setdefault(driver, NodePool(nodes=()))

    def wait_for(self, ticket: RunKey, waits: Iterable[After]) -> None:
        """This run waits for the end of those."""
        for after in waits:
            self.followers.setdefault(after.compute_jid, {}).setdefault(
                after.compute_job_serial, {}
            )[ticket] = None

    def task(self, token: Token) -> Task | None:
        job = self.jobs.get(token.jid)
        return None if job is None else job.task(token)

    def number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def restore(self, jobs: Iterable[tuple[Job, int]], agents: Iterable[AgentRecord]) -> None:
        """Take in what the log says of live jobs (with the position of their request, which orders
        them) and of agents.
        """
        for record in agents:
            self.agent(record.key).record = record
        ordered = sorted(jobs, key=lambda pair: pair[1])
        for job, number in ordered:
            self.jobs[job.jid] = job
            self._restore_job(job, number)
            self.next_number = max(self.next_number, number + 1)
        # where there is room is known when all that is held is
        for job, number in ordered:
            self._restore_queued(job, number)

    def _restore_job(self, job: Job, number: int) -> None:
        run = job.run
        if run is not None and run.waits_for and run.active:
            self.wait_for((job.jid, run.serial), run.waits_for)
        for task in job.live_tasks():
            if task.held is None:
                self.agent(task.agent_key).placed.add(task.token)
        by_run: dict[int, list[Task]] = {}
        for task in job.live_tasks():
            by_run.setdefault(task.token.serial, []).append(task)
        for serial, tasks in by_run.items():
            self._restore_holdings(job, (job.jid, serial), number, tasks)

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
        key = self.homes.choose(run.spec)
        if key is None:
            self.homes.homeless[job.jid, run.serial] = number
        else:
            self.enqueue(key, (job.jid, run.serial), number)

    def _restore_holdings(self, job: Job, ticket: RunKey, number: int, tasks: list[Task]) -> None:
        run, key = job.run, tasks[0].agent_key
        asked: RunSpec | PastRun
        if run is not None and run.serial == ticket[1]:
            asked, attempt = run.spec, run.attempts[-1].tasks
        else:
            asked, attempt = next(p for p in job.history if p.serial == ticket[1]), tuple(tasks)
        self.tallies[ticket] = task_counts.of(attempt)
        released = () if all(t.pid is None for t in attempt) else (dir_pool(job.jid),)
        concurrency_limits.hold(
            self.slots, ticket, number, pools_of(key, job.jid, asked, self.policy.batch), released
        )
        if asked.roles and key.driver not in self.policy.batch:
            gang_allocator.keep(
                self.room(key.driver), ticket, asked.roles, tuple(t.place for t in tasks)
            )


def pools_of(
    key: AgentKey, jid: str, asked: RunSpec | PastRun, clusters: Container[str] = ()
) -> tuple[str, ...]:
    """What a run must hold, in the order in which it is taken: its turn in its array, op slot, run
    directory, CPU.

    Before these comes the job itself, held until nothing of the run is left: the run directory is
    given back at the start already (frames are read while it runs), and a run that is being stopped
    must not meet its successor there. A run with roles takes no CPU slot: it holds what its roles
    ask for (`rooms`). With drivers that are in `clusters` it takes one, which is a place in the
    queue of its cluster, and each cluster has op slots of its own.
    """
    uid, sid, _ = split_jid(jid)
    array = (f"array/{uid}-{sid}/{asked.at_once}",) if asked.at_once is not None else ()
    queued = key.driver in clusters
    cpu = () if asked.roles and not queued else (cpu_pool(key),)
    op = f"op/run/{key.driver}/{key.kind}/{key.uid}" + (f"/{key.host}" if queued else "")
    return ("job/" + jid, *array, op, dir_pool(jid), *cpu)


def dir_pool(jid: str) -> str:
    return "dir/" + jid


class Transaction:
    """One decision in the making: what it records, what it asks for. `world` is already advanced by
    every event recorded.
    """

    def __init__(self, world: World, now: Now) -> None:
        self.world = world
        self.now = now
        self.effects: list[Effect] = []
        self.receipts: list[Receipt] = []
        #: jobs as they are after this decision
        self.touched: dict[str, Job] = {}
        #: agents that somebody has come to need
        self.needed: dict[AgentKey, None] = {}
        #: agents in whose queue others may ask now
        self.shorter: dict[AgentKey, None] = {}
        #: (driver, host) where memory of agents was given back, or may be
        self.freed: dict[tuple[str, str], None] = {}
        #: what tasks of an attempt (computeJid, serial, attempt) share, where they are launched
        self.shared: dict[tuple[str, int, int], Shared] = {}
        self._writes: dict[str, tuple[int, list[Any]]] = {}
        self._minted = 0

    def record(self, jid: str, event: JobEvent) -> Job:
        job = self.world.jobs.get(jid) or Job(jid=jid)
        self._write(job_stream(jid), job.version, event)
        job = evolve(job, event)
        task_counts.count(self.world.tallies, event)
        self.world.jobs[jid] = self.touched[jid] = job
        return job

    def record_agent(self, key: AgentKey, event: AgentEvent) -> None:
        view = self.world.agent(key)
        self._write(agent_stream(key), view.record.version, event)
        view.record = evolve_agent(view.record, event)

    def ask(self, effect: Effect) -> None:
        self.effects.append(effect)

    def enter(self, view: AgentState, phase: str) -> None:
        """An agent is somewhere else in its life."""
        if view.phase == phase:
            return
        key, was_there = view.record.key, view.there
        view.phase, view.since = phase, self.now.wall
        self.world.homes.present(key, there=view.there)
        if was_there and not view.there:
            self.freed[key.driver, key.host] = None

    def need(self, key: AgentKey) -> None:
        """See to it that this agent is up or on its way, before this decision is over."""
        self.needed[key] = None

    def chance(self) -> float:
        """In [0, 1), another one each time."""
        self._minted += 1
        digest = hashlib.blake2b(
            self.now.entropy + self._minted.to_bytes(4, "big"), digest_size=8, person=b"chance"
        ).digest()
        return int.from_bytes(digest, "big") / 2**64

    def passed(self, at: float, mono: float | None, boot_id: str | None) -> float:
        """Seconds since a moment on record: by the monotonic clock within one boot, by the wall
        clock over a restart of the machine.
        """
        if mono is not None and boot_id == self.now.boot_id:
            return max(0.0, self.now.mono - mono)
        return max(0.0, self.now.wall - at)

    def mint(self) -> tuple[str, str]:
        """A fresh token and its hash."""
        self._minted += 1
        token = derived_id(
            self.now.entropy + self._minted.to_bytes(4, "big"), key=b"jobscribe token"
        )
        return token, token_hash(token)

    def writes(self) -> tuple[Write, ...]:
        return tuple(
            Write(stream, version, tuple(events))
            for stream, (version, events) in self._writes.items()
        )

    def _write(self, stream: str, version: int, event: Any) -> None:
        self._writes.setdefault(stream, (version, []))[1].append(event)


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def owner(jid: str) -> str:
    return split_jid(jid)[0]
