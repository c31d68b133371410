"""Runs the core: decide, store, then act, in order, and only on durable decisions.

No asyncio here: the supervisor and the simulator drive the same engine. `tell` takes inputs,
`perform` gets durable effects, and reads return durable state only. Decisions run ahead of the
disk. If a commit fails, the engine drops all later decisions, refuses their requests, and folds the
world from the log again.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from ...db.events.agent_fold import evolve_agent
from ...db.events.events import RunRequested, agent_stream, job_stream
from ...db.events.job_fold import evolve
from ...db.events.state import AgentRecord, Job
from ...db.events.usage_row import UsageRow, add, month_of
from ...db.store.contract import Appended, Batch, Done, EventStore, Stored, StoreUnreachable, Write
from ...db.store.group_commit import last_positions
from ...db.store.job_index import index_row
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey
from ...protocol.wire.messages import Alive
from ...runtime import failpoints
from ..core.decide import Decision, decide
from ..core.interface import inputs as core_inputs
from ..core.interface.causes import Cause
from ..core.interface.drains import Drains
from ..core.interface.effects import Effect, ListTasks, ReplyRefusal
from ..core.interface.grants import Grants
from ..core.interface.inputs import (
    AgentConnected,
    Cancel,
    DrainsChanged,
    GrantsChanged,
    HostChanged,
    Input,
    Now,
    Restarted,
    Submit,
    cancel_receipt,
)
from ..core.resources import host_selection
from ..core.resources.host_selection import Outages
from ..core.resources.monthly_usage import next_month
from ..core.state.configuration import CoreConfig
from ..core.state.world import World
from .deferred_inputs import DeferredInputs

#: Finished jobs that stay in memory after a read.
CACHED = 512
#: Limit for jobs whose data takes more than LIGHT_BYTES bytes as JSON.
HEAVY_CACHED, LIGHT_BYTES = 16, 16 * 1024
#: Seconds (monotonic) after a failed commit in which requests are refused before the store is tried
#: again.
PAUSE_SECS = 1.0
#: Usage of a longer time, in half-lives, does not count for the fair share.
USAGE_HALF_LIVES = 20.0


class EngineCallbacks(Protocol):
    """Functions of the surrounding process that the engine calls."""

    def now(self) -> Now:
        """Return the current time and fresh entropy."""

    def perform(self, effect: Effect, cause: Cause) -> None:
        """Carry out one durable effect. Must not raise and must not wait."""

    def projected(self, job: Job, position: int, at: float) -> None:
        """Publish the durable state of a job to records and subscribers."""

    def connections(self) -> list[tuple[AgentKey, int, Alive]]:
        """Return the agents' live connections, to restore them after the world is folded again."""

    def fatal(self, refusal: Refusal) -> None:
        """Stop the process: the store failed permanently."""

    def noticed(self, what: str, detail: str) -> None:
        """Count and log an event."""

    def broken(self, error: Exception) -> None:
        """Log an unexpected exception of a decision, with its traceback."""


class DurableJob(msgspec.Struct, frozen=True):
    """A job as stored on disk."""

    job: Job
    position: int
    at: float


class _Pending(msgspec.Struct):
    """A decision that is not durable yet. done: called with the result of the write."""

    inputs: Sequence[Input]
    decision: Decision
    at: float
    result: Appended | Refusal | None = None
    done: Done | None = None


def _folded(jid: str, events: Iterable[Stored]) -> tuple[DurableJob, int]:
    """Return a job from the events of its stream, and the position of its latest request."""
    job, position, at, requested = Job(jid=jid), 0, 0.0, 0
    for stored in events:
        job = evolve(job, stored.event)  # type: ignore[arg-type]
        position, at = stored.position, stored.event.at
        if isinstance(stored.event, RunRequested):
            requested = position
    return DurableJob(job, position, at), requested


def _is_heavy(job: Job) -> bool:
    """Return whether the data of the job's run is too large to cache many of these jobs."""
    return (
        job.run is not None
        and job.run.spec.data is not None
        and len(msgspec.json.encode(job.run.spec.data)) > LIGHT_BYTES
    )


class Engine:
    """Owner of the world. Runs in one thread."""

    def __init__(
        self,
        policy: CoreConfig,
        store: EventStore,
        ports: EngineCallbacks,
        drains: Drains | None = None,
    ) -> None:
        """drains: hosts that get no new runs, from before the start."""
        self.policy = policy
        self.store = store
        self.ports = ports
        self.world = World(policy, self._agent_record)
        self._pending: deque[_Pending] = deque()
        self._durable: dict[str, DurableJob] = {}
        #: those of them that have finished, and those of these that are heavy, in order of use
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._heavy: OrderedDict[str, None] = OrderedDict()
        self._requests: dict[tuple[str, str], tuple[str, int]] = {}
        self._paused_until: float | None = None
        #: wall time of the first failed write, None while the store works
        self.fails_since: float | None = None
        #: usage that became durable since the start, by driver and kind; other keys mean nothing
        self.used: dict[tuple[str, str], UsageRow] = {}
        self._acting = False
        self._suspect = False
        #: unavailable hosts: not in the log, and not affected by failed decisions
        self._outages: Outages = {}
        #: the same for hosts that get no new runs
        self._drains: Drains = drains or {}
        #: the same for parts of the site's limits
        self._grants: Grants = {}
        self.deferred = DeferredInputs()
        #: called after each decision, before it is durable; and after the world was folded again
        self.decided: Callable[[World, Sequence[Input]], None] = lambda world, inputs: None
        self.folded: Callable[[], None] = lambda: None
        #: called with a job that `reload` has read again
        self.reloaded: Callable[[DurableJob], None] = lambda entry: None
        #: jobs to read again once no decision about them is pending
        self._outdated: set[str] = set()

    # ---- in

    def start(self) -> None:
        """Fold the log, then emit all outstanding effects."""
        now = self.ports.now()
        self._load(now)
        self._tell(now, (Restarted(),))

    def tell(self, *inputs: Input) -> None:
        """Decide these inputs together, in one transaction, and with them the deferred ones."""
        self._tell(self.ports.now(), self.deferred.join(inputs))

    def tell_deferred(self) -> None:
        """Decide the deferred inputs, if there are any."""
        if self.deferred:
            self.tell()

    def _tell(self, now: Now, inputs: Sequence[Input]) -> None:
        for input_ in inputs:
            if isinstance(input_, DrainsChanged):
                self._drains = input_.drains
            if isinstance(input_, GrantsChanged):
                self._grants = input_.grants
            if isinstance(input_, HostChanged):
                host_selection.record_change(
                    self._outages,
                    (input_.driver, input_.host),
                    input_.detail,
                    now.wall,
                    up=input_.up,
                )
        if self._paused_until is not None and not self._resume(now):
            self._refuse(
                inputs, Refusal("storageUnavailable", "the event store cannot be written now")
            )
            return
        if self._suspect and not self._refold(now):
            self._refuse(
                inputs,
                Refusal(
                    "conflict",
                    "the supervisor is restoring its state after an internal error; try again",
                ),
            )
            return
        try:
            fetched = {jid for input_ in inputs for jid in self._fetch(input_)}
            known = [self._with_known_request(i) for i in inputs]
        except Refusal as e:
            self.ports.noticed(e.code, e.sentence)
            self._refuse(inputs, e)
            return
        try:
            decision = decide(self.world, known, now)
        except Exception as e:
            # A bug: the world may be half changed, so it is folded again before the next decision.
            self._suspect = True
            self.decided(self.world, inputs)
            self.ports.broken(e)
            self._refuse(
                inputs, Refusal("internal", "internal error; the supervisor's log has the details")
            )
            return
        for jid in fetched - decision.touched.keys():
            if not self.world.jobs[jid].busy:
                del self.world.jobs[jid]
        self.decided(self.world, inputs)
        failpoints.reached("supervisor.decided")
        self._append(_Pending(inputs, decision, now.wall))

    def record(self, write: Write, done: Done) -> None:
        """Append events that concern no job and no agent. Calls `done` once, when they and all
        earlier decisions are durable or refused.
        """
        now = self.ports.now()
        if self._paused_until is not None and not self._resume(now):
            done(Refusal("storageUnavailable", "the event store cannot be written now"))
            return
        decision = Decision(writes=(write,), receipts=(), touched={}, caused=())
        self._append(_Pending((), decision, now.wall, done=done))

    def _append(self, pending: _Pending) -> None:
        decision = pending.decision
        for r in decision.receipts:
            self._requests[r.uid, r.req_id] = (r.jid, r.serial)
        self._pending.append(pending)
        if decision.writes or decision.receipts:
            rows = tuple(index_row(job) for job in decision.touched.values())
            batch = Batch(
                writes=decision.writes,
                index=rows,
                receipts=decision.receipts,
                usage=decision.usage,
            )
            self.store.append(batch, lambda result: self._stored(pending, result))
        else:
            pending.result = Appended(0, 0)
            self._act_on_durable()

    # ---- durable

    def _stored(self, pending: _Pending, result: Appended | Refusal) -> None:
        pending.result = result
        self._act_on_durable()

    def _act_on_durable(self) -> None:
        """Act on all durable decisions at the front of the queue. Decisions made meanwhile are
        handled afterwards.
        """
        if self._acting:
            return
        self._acting = True
        try:
            self._act_on_front()
        finally:
            self._acting = False

    def _act_on_front(self) -> None:
        while self._pending and self._pending[0].result is not None:
            pending = self._pending.popleft()
            if isinstance(pending.result, Appended):
                self._act(pending, pending.result)
            else:
                assert isinstance(pending.result, Refusal)
                self._commit_failed(pending, pending.result)
                return
        if self._outdated:
            self._reload_outdated()
        if not self._pending:
            self.world.forget_idle()

    def _act(self, pending: _Pending, result: Appended) -> None:
        failpoints.reached("supervisor.durable")
        if pending.decision.writes:
            self.fails_since = None
        for r in pending.decision.receipts:
            self._requests.pop((r.uid, r.req_id), None)
        positions = last_positions(Batch(writes=pending.decision.writes), result.first)
        for jid, job in pending.decision.touched.items():
            position = positions[job_stream(jid)]
            self._cache(DurableJob(job, position, pending.at))
            self.ports.projected(job, position, pending.at)
            live = self.world.jobs.get(jid)
            if live is job and not job.busy:
                del self.world.jobs[jid]
        self._trim()
        for row in pending.decision.usage:
            of = (row.driver, row.kind)
            self.used[of] = add(self.used[of], row) if of in self.used else row
        for caused in pending.decision.caused:
            self.ports.perform(caused.effect, caused.cause)
        if pending.done is not None:
            pending.done(result)
        failpoints.reached("supervisor.acted")

    def _cache(self, entry: DurableJob) -> None:
        """Cache a job for later reads."""
        jid = entry.job.jid
        self._durable[jid] = entry
        if entry.job.busy:
            self._finished.pop(jid, None)
            self._heavy.pop(jid, None)
            return
        self._finished[jid] = None
        self._finished.move_to_end(jid)
        if _is_heavy(entry.job):
            self._heavy[jid] = None
            self._heavy.move_to_end(jid)

    def _trim(self) -> None:
        """Evict finished jobs from the cache. Busy jobs stay."""
        while len(self._finished) > CACHED:
            jid, _ = self._finished.popitem(last=False)
            self._heavy.pop(jid, None)
            del self._durable[jid]
        while len(self._heavy) > HEAVY_CACHED:
            jid, _ = self._heavy.popitem(last=False)
            del self._finished[jid], self._durable[jid]

    # ---- the store fails

    def _commit_failed(self, first: _Pending, refusal: Refusal) -> None:
        """Drop all decisions that are not durable, and refuse their requests. The world is folded
        again once the store works.
        """
        self.ports.noticed(refusal.code, refusal.sentence)
        now = self.ports.now()
        self._paused_until = now.mono + PAUSE_SECS
        self.fails_since = now.wall if self.fails_since is None else self.fails_since
        dropped, self._pending = [first, *self._pending], deque()
        for pending in dropped:
            self._refuse(pending.inputs, refusal)
            pending.result = refusal
            if pending.done is not None:
                pending.done(refusal)
        self._requests.clear()

    def _resume(self, now: Now) -> bool:
        """Try the store again after the pause. Return whether it works."""
        if self._paused_until is None or now.mono < self._paused_until:
            return False
        try:
            self.store.resume()
            self._load(now)
        except StoreUnreachable:
            return False  # a database that is away; requests are refused meanwhile
        except Refusal as e:
            self.ports.fatal(e)
            return False
        self._paused_until = None
        self._catch_up(now)
        return self._paused_until is None

    def _refold(self, now: Now) -> bool:
        """Fold the world again after a bug, once no write is in progress. Return whether this
        succeeded.
        """
        if self._pending:
            return False
        try:
            self._load(now)
        except Refusal as e:
            self.ports.noticed(e.code, e.sentence)
            return False  # keep refusing: a partly folded world would hand out resources that are in use
        self._suspect = False
        self._catch_up(now)
        return not self._suspect

    def _catch_up(self, now: Now) -> None:
        """Restore the state that is not in the log, after the world is folded again."""
        # tell connections first: connected agents are not looked for or started
        again: list[Input] = [
            AgentConnected(key, epoch, alive) for key, epoch, alive in self.ports.connections()
        ]
        restarted = Restarted()
        self.tell(*again, restarted)
        for key, _epoch, _alive in self.ports.connections():
            self.ports.perform(ListTasks(key), core_inputs.cause(restarted))

    def poke(self) -> None:
        """Try to recover even if no request arrives. A store may also fail while nothing is written."""
        failure = self.store.failure()
        if failure is not None:
            self.ports.fatal(failure)
        elif self._paused_until is not None:
            self._resume(self.ports.now())
        elif self._suspect:
            self._refold(self.ports.now())

    def sizes(self) -> dict[str, int]:
        """Return the number of objects in memory."""
        world = self.world
        return {
            "jobs": len(world.jobs),
            "agents": len(world.agents),
            "claims": len(world.slots.claims),
            "pools": len(world.slots.pools),
            "pending": len(self._pending),
            "atHand": len(self._durable),
            "requests": len(self._requests),
        }

    @property
    def paused(self) -> bool:
        return self._paused_until is not None

    def _refuse(self, inputs: Sequence[Input], refusal: Refusal) -> None:
        for input_ in inputs:
            handle = core_inputs.refusal_handle(input_)
            if handle is not None:
                self.ports.perform(ReplyRefusal(handle, refusal), core_inputs.cause(input_))

    # ---- what has to be at hand

    def _load(self, now: Now) -> None:
        """Fold the world from the log."""
        self.world = World(
            self.policy, self._agent_record, self._outages, self._drains, self._grants
        )
        self.folded()
        self._durable.clear()
        self._finished.clear()
        self._heavy.clear()
        self._requests.clear()
        jobs: list[tuple[Job, int]] = []
        busy = self.store.busy_jids()
        streams = self.store.read_streams([job_stream(jid) for jid in busy])
        for jid, events in zip(busy, streams, strict=True):
            entry, requested = _folded(jid, events)
            self._durable[jid] = entry
            jobs.append((entry.job, requested))
        keys = {t.agent_key for j, _ in jobs for t in j.live_tasks()}
        counted = USAGE_HALF_LIVES * self.world.slots.fair.rules.half_life_secs
        # with all of its hours: the clock may have been set back since they were recorded
        month = month_of(now.wall), next_month(next_month(now.wall))
        self.world.restore(
            jobs,
            [self._agent_record(k) for k in sorted(keys)],  # others are loaded when needed
            self.store.usage(now.wall - counted, now.wall),
            now,
            self.store.usage(*month) if self.world.limits_hours else (),
        )

    def _read(self, jid: str) -> tuple[DurableJob, int]:
        """Return a job from its stream, and the position of its latest request."""
        return _folded(jid, self.store.read(job_stream(jid)))

    def _agent_record(self, key: AgentKey) -> AgentRecord:
        record = AgentRecord(key=key)
        for stored in self.store.read(agent_stream(key)):
            record = evolve_agent(record, stored.event)  # type: ignore[arg-type]
        return record

    def _fetch(self, input_: Input) -> list[str]:
        """Load the jobs and agents of this input into the world. Return the ids of jobs that were
        not loaded.
        """
        fetched = []
        for jid in core_inputs.jids(input_):
            if jid not in self.world.jobs:
                entry = self._durable.get(jid) or self._read(jid)[0]
                if entry.job.version:
                    self.world.jobs[jid] = entry.job
                    if jid not in self._durable:
                        self._cache(entry)
                    fetched.append(jid)
        if isinstance(input_, Submit):
            queue_key = self.world.host_assignment.choose(input_.request.run)
            if queue_key is not None:
                self.agent_record(queue_key)
        elif (key := core_inputs.agent_key(input_)) is not None:
            self.agent_record(key)
        return fetched

    def _with_known_request(self, input_: Input) -> Input:
        """Add the result of an earlier request with the same reqId, or whether another kind of
        request used it.
        """
        match input_:
            case Submit(request=request):
                uid, own, other = request.run.uid, request.req_id, cancel_receipt(request.req_id)
            case Cancel(request=request):
                uid, own, other = request.uid, cancel_receipt(request.req_id), request.req_id
            case _:
                return input_
        known = self._find_request(uid, own)
        if known is not None:
            return msgspec.structs.replace(input_, known=known)
        return (
            input_
            if self._find_request(uid, other) is None
            else msgspec.structs.replace(input_, taken=True)
        )

    def _find_request(self, uid: str, req_id: str) -> tuple[str, int] | None:
        known = self._requests.get((uid, req_id))
        if known is not None:
            return known
        receipt = self.store.receipt(uid, req_id)
        return (receipt.jid, receipt.serial) if receipt else None

    def agent_record(self, key: AgentKey) -> AgentRecord:
        """Return the agent's record from the log (with token hashes for the handshake)."""
        if key not in self.world.agents:
            record = self._agent_record(key)
            if not record.version:
                return record
            self.world.agent(key).record = record
        return self.world.agent(key).record

    # ---- the log was trimmed

    def reload(self, jids: Iterable[str]) -> int:
        """Read these jobs again, because a compaction has dropped some of their data from the log.
        Return the number of jobs that are not read yet: those with a pending decision are read when
        it is durable.
        """
        self._outdated.update(jids)
        if not self._acting:
            self._reload_outdated()
        return len(self._outdated)

    def _reload_outdated(self) -> None:
        if self._paused_until is not None:
            return  # the world is folded again afterwards
        undecided = {jid for p in self._pending for jid in p.decision.touched}
        for jid in sorted(self._outdated - undecided):
            try:
                entry, _ = self._read(jid)
            except Refusal as e:
                self.ports.noticed(e.code, e.sentence)
                return
            self._outdated.discard(jid)
            for cached in (self._durable, self._finished, self._heavy):
                cached.pop(jid, None)
            if entry.job.version:
                if jid in self.world.jobs:
                    self.world.jobs[jid] = entry.job
                    self._cache(entry)
                self.reloaded(entry)

    # ---- reads

    def durable(self, jid: str) -> DurableJob | None:
        """Return the job as stored on disk, or None if it does not exist."""
        entry = self._durable.get(jid)
        if entry is None:
            entry, _ = self._read(jid)
            if not entry.job.version:
                return None
            self._cache(entry)
            self._trim()
        return entry
