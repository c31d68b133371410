"""What the core knows: the fold of the log for everything live, and the notices that are true only while this process runs.

`World` is changed by two things alone: `Turn.record*` (events, through the folds) and the decisions' bookkeeping of notices
(who is connected, who waits for which slot). A decision advances the world it is given instead of copying it, because one
release can place many runs, each on top of the last; a failed commit throws the world away and folds a new one.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ...db.agent import evolve_agent
from ...db.events import AgentEvent, JobEvent, agent_stream, job_stream
from ...db.job import evolve
from ...db.state import AgentRecord, Job, PastRun, Run, Task
from ...db.store import Receipt, Write
from ...protocol.diagnosis import Table
from ...protocol.ids import AgentKey, OpId, Token, derived_id, split_jid
from ...protocol.messages import Execution, Shared
from ...protocol.requests import RunSpec
from ...protocol.roles import After, Place
from . import rooms, slots, tallies
from .effects import Effect
from .inputs import Now
from .rooms import Node, Room
from .slots import Slots, Ticket
from .tallies import Tallies


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and deadlines (seconds). cpu_slots: per (driver, kind). hosts: where a driver's agents live.

    nodes: per driver, what there is for runs with roles. exits: what exits mean.
    """

    cpu_slots: dict[tuple[str, str], int] = {}
    op_run_slots: dict[tuple[str, str], int] = {}
    hosts: dict[str, str] = msgspec.field(default_factory=lambda: {"local": "localhost"})
    nodes: dict[str, tuple[Node, ...]] = {}
    exits: Table = Table()
    #: what is held for a gang is given back when it could not be started within this time, and is asked for again later
    hold_secs: float = 60.0
    hold_again_secs: float = 30.0
    #: a failed task may be kept so long
    debug_secs: float = 604_800.0
    agent_start_secs: float = 10.0
    agent_start_tries: int = 3
    #: so many calls may wait for one agent to be up
    agent_wanted: int = 256
    #: runs of users with these plans are never purged
    kept_plans: frozenset[str] = frozenset()
    #: after an agent's connection ended: look for it at once, then after this long, again and again
    agent_return_secs: float = 3.0
    op_reply_secs: float = 30.0
    #: the time limit is enforced where the job runs; the supervisor steps in so long after that
    limit_slack_secs: float = 5.0
    time_limit_secs: float | None = None
    queue_limit_secs: float | None = None
    #: the log was set back: lower serials may have been used in what it has lost
    serial_floor: int = 0


class AgentView(msgspec.Struct, kw_only=True):
    """One agent key: its record (durable) and where it stands (a notice).

    phase: `absent` (nobody looked), `finding`, `starting`, `away` (alive by its driver's word, not connected), `stopping`,
    `up`. Only an `up` agent whose first snapshot is complete (`synced`) is believed and given work.
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
    #: snapshot under way: its number and what came so far
    snapshot_number: int | None = None
    snapshot_pages: int = 0
    #: highest number of a snapshot of this connection that was complete
    snapshot_done: int = 0
    snapshot: dict[Token, Execution] = msgspec.field(default_factory=dict)
    #: jobs that the first snapshot of this connection changed, and the version of each that says so: until that is durable, nobody
    #: is told more than before, which was not known since news_since
    news: dict[str, int] = msgspec.field(default_factory=dict)
    news_since: float | None = None
    #: queued runs of this key, by ticket: number of submission; in this order
    queued: dict[Ticket, int] = msgspec.field(default_factory=dict)
    #: of these, who asks for slots: the first ones, and only so many (see `placement`)
    asking: set[Ticket] = msgspec.field(default_factory=set)
    #: placed and not ended
    placed: set[Token] = msgspec.field(default_factory=set)
    #: who waits for it to be up, besides runs
    wanted: list[int] = msgspec.field(default_factory=list)
    #: gangs that hold something here and have not been placed yet
    holding: set[Ticket] = msgspec.field(default_factory=set)

    @property
    def needed(self) -> bool:
        return bool(self.queued or self.placed or self.wanted or self.holding)


class Hold(msgspec.Struct):
    """A gang that has everything and is not placed yet: its agents must be up, and nobody else on its ports.

    probes: the probe under way at each of its agents; free: agents where its ports are free.
    """

    number: int
    places: tuple[Place, ...]
    #: on the monotonic clock
    since: float
    probes: dict[AgentKey, OpId] = {}
    free: set[AgentKey] = msgspec.field(default_factory=set)
    #: probes so far
    tries: int = 0


class World:
    """Everything live. Jobs are here while something is owed for them, or while somebody just asked."""

    def __init__(self, policy: Policy, recall: Callable[[AgentKey], AgentRecord] = lambda key: AgentRecord(key=key)) -> None:
        """recall: what the log knows of an agent that is not here."""
        self.policy = policy
        self._recall = recall
        self.jobs: dict[str, Job] = {}
        self.agents: dict[AgentKey, AgentView] = {}
        #: agents that were looked at since `forget_idle`
        self._looked_at: set[AgentKey] = set()
        self.slots = Slots(capacity=self._capacity)
        #: what runs with roles have of the machines, by driver
        self.rooms = {driver: Room(nodes=nodes) for driver, nodes in policy.nodes.items()}
        #: gangs on their way from having everything to being placed
        self.holds: dict[Ticket, Hold] = {}
        #: gangs that gave everything back and wait for a moment, with why and until when (wall time)
        self.held_off: dict[Ticket, tuple[str, float]] = {}
        #: how far the attempts are that live
        self.tallies: Tallies = {}
        #: who waits for the end of a run of this job, by its serial
        self.followers: dict[str, dict[int, dict[Ticket, None]]] = {}
        #: monotonic time at which an execution began, as far as its agent has said so
        self.began: dict[Token, float] = {}
        self.next_number = 1

    def _capacity(self, pool: str) -> int:
        match pool.split("/"):
            case ["cpu", driver, kind]:
                return self.policy.cpu_slots.get((driver, kind), 1)
            case ["op", _, driver, kind, _]:
                return self.policy.op_run_slots.get((driver, kind), 1)
            case ["array", _, at_once]:
                return int(at_once)
            case _:
                return 1

    def agent(self, key: AgentKey) -> AgentView:
        view = self.agents.get(key)
        if view is None:
            view = self.agents[key] = AgentView(record=self._recall(key))
        self._looked_at.add(key)
        return view

    def forget_idle(self) -> None:
        """Agents that are not there and that nobody needs are in the log only. To be called when all that was decided is durable."""
        for key in self._looked_at:
            view = self.agents.get(key)
            if view is not None and view.phase == "absent" and not view.needed:
                del self.agents[key]
        self._looked_at.clear()

    def key_of(self, run: Run) -> AgentKey:
        """The agent it waits for."""
        return self.key_at(run.spec, self.policy.hosts.get(run.spec.driver, "localhost"))

    def key_at(self, spec: RunSpec, host: str) -> AgentKey:
        return AgentKey(spec.driver, spec.job_run_mode, spec.uid, host)

    def room(self, driver: str) -> Room:
        """What there is with this driver; nothing, where it was not said."""
        return self.rooms.setdefault(driver, Room(nodes=()))

    def wait_for(self, ticket: Ticket, waits: Iterable[After]) -> None:
        """This run waits for the end of those."""
        for after in waits:
            self.followers.setdefault(after.compute_jid, {}).setdefault(after.compute_job_serial, {})[ticket] = None

    def task(self, token: Token) -> Task | None:
        job = self.jobs.get(token.jid)
        return None if job is None else job.task(token)

    def number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def restore(self, jobs: Iterable[tuple[Job, int]], agents: Iterable[AgentRecord]) -> None:
        """Take in what the log says of live jobs (with the position of their request, which orders them) and of agents."""
        for record in agents:
            self.agent(record.key).record = record
        for job, number in sorted(jobs, key=lambda pair: pair[1]):
            self.jobs[job.jid] = job
            self._restore_job(job, number)
            self.next_number = max(self.next_number, number + 1)

    def _restore_job(self, job: Job, number: int) -> None:
        run = job.run
        if run is not None and run.waits_for:
            if run.active:
                self.wait_for((job.jid, run.serial), run.waits_for)
        elif run is not None and run.active and not run.live_tasks and run.retry is None:
            self.agent(self.key_of(run)).queued[(job.jid, run.serial)] = number
        for task in job.live_tasks():
            if task.held is None:
                self.agent(task.agent_key).placed.add(task.token)
        by_run: dict[int, list[Task]] = {}
        for task in job.live_tasks():
            by_run.setdefault(task.token.serial, []).append(task)
        for serial, tasks in by_run.items():
            self._restore_holdings(job, (job.jid, serial), number, tasks)

    def _restore_holdings(self, job: Job, ticket: Ticket, number: int, tasks: list[Task]) -> None:
        run, key = job.run, tasks[0].agent_key
        asked: RunSpec | PastRun
        if run is not None and run.serial == ticket[1]:
            asked, attempt = run.spec, run.attempts[-1].tasks
        else:
            asked, attempt = next(p for p in job.history if p.serial == ticket[1]), tuple(tasks)
        self.tallies[ticket] = tallies.of(attempt)
        released = () if all(t.pid is None for t in attempt) else (dir_pool(job.jid),)
        slots.hold(self.slots, ticket, number, pools_of(key, job.jid, asked), released)
        if asked.roles:
            rooms.keep(self.room(key.driver), ticket, asked.roles, tuple(t.place for t in tasks))


def pools_of(key: AgentKey, jid: str, asked: RunSpec | PastRun) -> tuple[str, ...]:
    """What a run must hold, in the order in which it is taken: its turn in its array, op slot, run directory, CPU.

    Before these comes the job itself, held until nothing of the run is left: the run directory is given back at the start
    already (frames are read while it runs), and a run that is being stopped must not meet its successor there.
    A run with roles takes no CPU slot: it holds what its roles ask for (`rooms`).
    """
    uid, sid, _ = split_jid(jid)
    array = (f"array/{uid}-{sid}/{asked.at_once}",) if asked.at_once is not None else ()
    cpu = () if asked.roles else (f"cpu/{key.driver}/{key.kind}",)
    return ("job/" + jid, *array, f"op/run/{key.driver}/{key.kind}/{key.uid}", dir_pool(jid), *cpu)


def dir_pool(jid: str) -> str:
    return "dir/" + jid


class Turn:
    """One decision in the making: what it records, what it asks for. `world` is already advanced by every event recorded."""

    def __init__(self, world: World, now: Now) -> None:
        self.world = world
        self.now = now
        self.effects: list[Effect] = []
        self.receipts: list[Receipt] = []
        #: jobs as they are after this decision
        self.touched: dict[str, Job] = {}
        #: agents that somebody has come to need
        self.needed: dict[AgentKey, None] = {}
        #: what tasks of an attempt (computeJid, serial, attempt) share, where they are launched
        self.shared: dict[tuple[str, int, int], Shared] = {}
        self._writes: dict[str, tuple[int, list[Any]]] = {}
        self._minted = 0

    def record(self, jid: str, event: JobEvent) -> Job:
        job = self.world.jobs.get(jid) or Job(jid=jid)
        self._write(job_stream(jid), job.version, event)
        job = evolve(job, event)
        tallies.count(self.world.tallies, event)
        self.world.jobs[jid] = self.touched[jid] = job
        return job

    def record_agent(self, key: AgentKey, event: AgentEvent) -> None:
        view = self.world.agent(key)
        self._write(agent_stream(key), view.record.version, event)
        view.record = evolve_agent(view.record, event)

    def ask(self, effect: Effect) -> None:
        self.effects.append(effect)

    def need(self, key: AgentKey) -> None:
        """See to it that this agent is up or on its way, before this decision is over."""
        self.needed[key] = None

    def chance(self) -> float:
        """In [0, 1), another one each time."""
        self._minted += 1
        digest = hashlib.blake2b(self.now.entropy + self._minted.to_bytes(4, "big"), digest_size=8, person=b"chance").digest()
        return int.from_bytes(digest, "big") / 2**64

    def passed(self, at: float, mono: float | None, boot_id: str | None) -> float:
        """Seconds since a moment on record: by the monotonic clock within one boot, by the wall clock over a restart of the machine."""
        if mono is not None and boot_id == self.now.boot_id:
            return max(0.0, self.now.mono - mono)
        return max(0.0, self.now.wall - at)

    def mint(self) -> tuple[str, str]:
        """A fresh token and its hash."""
        self._minted += 1
        token = derived_id(self.now.entropy + self._minted.to_bytes(4, "big"), key=b"jobscribe token")
        return token, token_hash(token)

    def writes(self) -> tuple[Write, ...]:
        return tuple(Write(stream, version, tuple(events)) for stream, (version, events) in self._writes.items())

    def _write(self, stream: str, version: int, event: Any) -> None:
        self._writes.setdefault(stream, (version, []))[1].append(event)


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def owner(jid: str) -> str:
    return split_jid(jid)[0]
