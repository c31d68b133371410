"""Test harness for the pure core: feeds inputs to `decide`, stores every event in its own log, and
checks each decision.

After every decision the harness checks the invariants. Versions match, and the fold of the log
equals the world. The slots are consistent, and no job has two live attempts. Queues, holds,
followers and task counts refer only to existing runs.
"""

import copy
import gc
import typing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jobscribe.db.events.agent_fold import evolve_agent
from jobscribe.db.events.events import RunRequested, TaskPlaced, TaskStarted, agent_stream
from jobscribe.db.events.job_fold import evolve
from jobscribe.db.events.state import AgentRecord, Job
from jobscribe.protocol.api.requests import RunCancel, RunRelease, RunSimulation, RunSpec
from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.roles import After, TaskRole
from jobscribe.protocol.wire.messages import (
    Alive,
    Execution,
    PortsProbed,
    RunStatusUpdate,
    Snapshot,
)
from jobscribe.supervisor.core.decide import Decision, decide
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.causes import Cause
from jobscribe.supervisor.core.interface.inputs import (
    AgentConnected,
    AgentDisconnected,
    AgentMessage,
    Cancel,
    DriverFound,
    DriverStarted,
    Input,
    Now,
    ReleaseHold,
    Restarted,
    Submit,
    TimerFired,
    cancel_receipt,
    jids,
)
from jobscribe.supervisor.core.interface.timers import Timer
from jobscribe.supervisor.core.resources import concurrency_limits, gang_allocator
from jobscribe.supervisor.core.resources.gang_allocator import Node
from jobscribe.supervisor.core.state import task_counts
from jobscribe.supervisor.core.state.configuration import CoreConfig
from jobscribe.supervisor.core.state.world import World

#: names of the inputs of the core
INPUTS = {type_.__name__ for type_ in typing.get_args(Input)}
UID, OTHER_UID = "user0001", "user0002"
WALL = 1_700_000_000.0


def spec(n: int = 1, uid: str = UID, **fields: Any) -> RunSpec:
    """Return the spec of this user's run of simulation number `n`."""
    return RunSpec(
        uid=uid,
        simulation_id=f"sim{n:05d}",
        command=fields.pop("command", ("true",)),
        **{"driver": "local", **fields},
    )


def jid_of(n: int = 1, uid: str = UID) -> str:
    return f"{uid}-sim{n:05d}-command"


def key_of(uid: str = UID, kind: str = "sequential", host: str = "localhost") -> AgentKey:
    return AgentKey("local", kind, uid, host)


def role(name: str = "a", tasks: int = 1, **fields: Any) -> TaskRole:
    return TaskRole(name=name, tasks=tasks, command=fields.pop("command", ("true",)), **fields)


def node(host: str = "localhost", cpu: int = 4, **fields: Any) -> Node:
    return Node(
        **{"host": host, "address": f"{host}.example", "cpu": cpu, "memory_mb": 4000, **fields}
    )


def after(*ns: int, on: str = "ok", uid: str = UID) -> tuple[After, ...]:
    return tuple(After(compute_jid=jid_of(n, uid), on=on) for n in ns)


def alive(key: AgentKey, **fields: Any) -> Alive:
    return Alive(
        agent_id="a" * 32,
        agent_key=key,
        version="1",
        host="node1",
        boot_id="boot1",
        pid=10,
        keeper_pid=9,
        **fields,
    )


def running(token: Token, pid: int = 100, elapsed: float | None = 0.0) -> Execution:
    return Execution(
        token=token,
        state="running",
        op_id=op_id(token, "run"),
        pid=pid,
        start_ticks=pid * 7,
        started_at=WALL,
        elapsed_secs=elapsed,
    )


def starting(token: Token) -> Execution:
    return Execution(token=token, state="starting", op_id=op_id(token, "run"))


def ended(token: Token, code: int | None = 0, *, pid: int | None = 100, **exit_: Any) -> Execution:
    info = ExitInfo(code=code, started_at=WALL if pid else None, ended_at=WALL + 1, **exit_)
    return Execution(
        token=token,
        state="ended",
        op_id=op_id(token, "run"),
        pid=pid,
        start_ticks=pid and pid * 7,
        exit=info,
    )


def ending(token: Token, code: int | None = 0, *, pid: int = 100, **exit_: Any) -> Execution:
    """Return an execution whose command has ended while some of its processes still run."""
    return msgspec.structs.replace(
        running(token, pid), exit=ExitInfo(code=code, started_at=WALL, ended_at=WALL + 1, **exit_)
    )


class Stage:
    """The world, its event log, and helpers that feed inputs to it."""

    def __init__(self, **policy: Any) -> None:
        self.policy = CoreConfig(**policy)
        self.world = World(self.policy)
        #: whether agents announce that they keep runs until a slot is free
        self.agents_run_ahead = False
        self.wall, self.mono, self.boot_id = WALL, 1000.0, "boot0"
        #: (stream, event), oldest first; a position is an index + 1
        self.log: list[tuple[str, Any]] = []
        self.receipts: dict[tuple[str, str], tuple[str, int]] = {}
        self.effects: list[Any] = []
        self.epochs: dict[AgentKey, int] = {}
        #: probes without an answer; timers that are set and neither fired nor cleared
        self.probes: list[fx.CheckPorts] = []
        self.clock: dict[Timer, float] = {}
        # itertools.count cannot be copied from Python 3.14 on
        self._snapshots = iter(range(1, 10**9))
        self._handles = iter(range(1, 10**9))
        self._moments = iter(range(1, 10**9))

    # ---- inputs

    def now(self) -> Now:
        return Now(
            wall=self.wall,
            mono=self.mono,
            boot_id=self.boot_id,
            entropy=next(self._moments).to_bytes(16, "big"),
        )

    def tell(self, *inputs: Any) -> Decision:
        """Decide on these inputs together, then check the invariants. The effects are in
        `self.effects`.
        """
        for input_ in inputs:
            jids(input_)
            if isinstance(input_, TimerFired):
                self.clock.pop(input_.timer, None)
        decision = decide(self.world, inputs, self.now())
        self.effects = list(decision.effects)
        self._keep(decision)
        self._check(decision)
        self._check_notices()
        return decision

    def _keep(self, decision: Decision) -> None:
        assert len({w.stream for w in decision.writes}) == len(decision.writes), (
            "one write a stream"
        )
        for write in decision.writes:
            assert write.events
            assert write.expected_version == sum(s == write.stream for s, _ in self.log)
            self.log += [(write.stream, e) for e in write.events]
        for caused in decision.caused:
            self._check_cause(caused.cause)
        for r in decision.receipts:
            assert (r.uid, r.req_id) not in self.receipts, "a reqId leads to one place"
            self.receipts[r.uid, r.req_id] = (r.jid, r.serial)
        for e in self.effects:
            match e:
                case fx.SetTimer():
                    self.clock[e.timer] = e.secs
                case fx.ClearTimer():
                    self.clock.pop(e.timer, None)
                case fx.CheckPorts():
                    self.probes.append(e)

    def _check_cause(self, cause: Cause) -> None:
        if cause.event is None:
            assert cause.name in INPUTS
        else:
            events = [e for s, e in self.log if s == cause.event.stream]
            assert type(events[cause.event.version - 1]).__name__ == cause.name

    def _check(self, decision: Decision) -> None:
        assert concurrency_limits.violations(self.world.slots) == []
        for room in self.world.node_pools.values():
            assert gang_allocator.violations(room) == []
        for jid, job in decision.touched.items():
            assert self.world.jobs[jid] == job == self.folded(jid)
            assert len({(t.token.serial, t.token.attempt) for t in job.live_tasks()}) <= 1, (
                "two live attempts of one job"
            )
        for w in decision.writes:
            if w.stream.startswith("agent/"):
                view = next(v for k, v in self.world.agents.items() if agent_stream(k) == w.stream)
                assert view.record == self.record(view.record.key)
        started = [e.token for _, e in self.log if isinstance(e, TaskStarted)]
        assert len(started) == len(set(started)), "a token was started twice"
        placed = [e.token for _, e in self.log if isinstance(e, TaskPlaced)]
        assert len(placed) == len(set(placed)), "a token was placed twice"

    def _check_notices(self) -> None:
        world = self.world
        live: dict[tuple[str, int], list[Any]] = {}
        for jid, job in world.jobs.items():
            for task in job.live_tasks():
                live.setdefault((jid, task.token.serial), []).append(task)
        assert {t: tally.live for t, tally in world.task_counts.items()} == {
            t: len(tasks) for t, tasks in live.items()
        }
        for ticket, tally in world.task_counts.items():
            run = world.jobs[ticket[0]].run
            assert (
                run is None
                or run.serial != ticket[1]
                or tally == task_counts.count_tasks(run.attempts[-1].tasks)
            )
        queued = {t: k for k, v in world.agents.items() for t in v.queued}
        asking = {t for v in world.agents.values() for t in v.asking}
        assert asking <= queued.keys() and not queued.keys() & live.keys()
        for jid, serial in queued:
            job = world.jobs[jid]
            assert job.run and job.run.serial == serial and job.run.active and not job.run.waits_for
        for v in world.agents.values():
            assert list(v.gangs.items()) == [
                (t, n) for t, n in v.queued.items() if world.jobs[t[0]].run.spec.roles
            ]
        assert world.slots.claims.keys() == asking | live.keys(), (
            "slots belong to who asks or lives"
        )
        claims = {t: c for room in world.node_pools.values() for t, c in room.claims.items()}
        assert claims.keys() <= asking | live.keys(), "rooms belong to who asks or lives"
        for ticket, tasks in live.items():
            run = world.jobs[ticket[0]].run
            if tasks[0].agent_key.driver in self.policy.batch:
                assert ticket not in claims, "a cluster is nobody's room"
                continue
            if (run is not None and run.serial == ticket[1] and run.spec.roles) or ticket in claims:
                assert {(t.token.role, t.token.index) for t in tasks} == claims[
                    ticket
                ].placements.keys(), "a task holds what it asked for"
        queued_by_others = {
            t for t in world.holds if world.jobs[t[0]].run.spec.driver in self.policy.batch
        }
        assert (
            world.holds.keys() - queued_by_others
            == {t for t, c in claims.items() if c.placements} - live.keys()
        ), "who has everything is on its way"
        assert world.batch.keys() <= {t.token for tasks in live.values() for t in tasks}, (
            "what schedulers say is kept of what lives"
        )
        assert (
            not world.gang_backoffs.keys() & claims.keys() and world.gang_backoffs.keys() <= asking
        )
        holding: dict[AgentKey, set[Any]] = {}
        for ticket, hold in world.holds.items():
            assert {(p.role, p.index): p for p in hold.places} == claims[ticket].placements
            run = world.jobs[ticket[0]].run
            for key in {world.key_at(run.spec, p.host) for p in hold.places}:
                holding.setdefault(key, set()).add(ticket)
            assert timers.ReservationDeadline(*ticket) in self.clock
        assert {k: v.holding for k, v in world.agents.items() if v.holding} == holding
        for ticket in world.gang_backoffs:
            assert timers.ReservationRetry(*ticket) in self.clock
        waits: dict[str, dict[int, dict[Any, None]]] = {}
        for jid, job in world.jobs.items():
            for a in job.run.waits_for if job.run is not None and job.run.active else ():
                waits.setdefault(a.compute_jid, {}).setdefault(a.compute_job_serial, {})[
                    jid, job.run.serial
                ] = None
        assert world.followers == waits

    def left(self) -> dict[str, Any]:
        """Return everything that must be gone when no work is pending; {} if nothing is left."""
        world = self.world
        # the driver's avoided ports are checked again even if no run waits
        left = [
            t for t in self.clock if not isinstance(t, timers.AgentTimer | timers.NodePoolRetry)
        ]
        books = [
            b
            for room in world.node_pools.values()
            for b in room.usage.values()
            if b.cpu or b.memory_mb or b.gpus or b.ports
        ]
        kept = {
            "busy": [j for j, job in world.jobs.items() if job.busy],
            "pools": world.slots.pools,
            "claims": world.slots.claims,
            "rooms": [r for r in world.node_pools.values() if r.claims or r.queue],
            "books": books,
            "holds": world.holds,
            "held off": world.gang_backoffs,
            "followers": world.followers,
            "tallies": world.task_counts,
            "began": world.began,
            "timers": left,
            "batch": world.batch,
            "needed": [k for k, v in world.agents.items() if v.needed],
        }
        return {what: value for what, value in kept.items() if value}

    def _known(self, uid: str, own: str, other: str) -> dict[str, Any]:
        """Return the receipt fields, as the engine adds them."""
        known = self.receipts.get((uid, own))
        return {"known": known} if known is not None else {"taken": (uid, other) in self.receipts}

    # ---- the log

    def folded(self, jid: str) -> Job:
        job = Job(jid=jid)
        for stream, event in self.log:
            if stream == "job/" + jid:
                job = evolve(job, event)
        return job

    def record(self, key: AgentKey) -> AgentRecord:
        record = AgentRecord(key=key)
        for stream, event in self.log:
            if stream == agent_stream(key):
                record = evolve_agent(record, event)
        return record

    def restored(self) -> World:
        """Return the world that a restart folds from this log."""
        requested: dict[str, int] = {}
        for position, (stream, event) in enumerate(self.log, 1):
            if isinstance(event, RunRequested):
                requested[stream.removeprefix("job/")] = position
        jobs = [(self.folded(jid), n) for jid, n in requested.items()]
        world = World(self.policy, drains=self.world.drains, grants=self.world.grants)
        # the store has the usage; its own tests are about that
        fair = world.slots.fair = copy.deepcopy(self.world.slots.fair)
        fair.rules = self.policy.shares
        for pool in world.node_pools.values():
            pool.fair = fair
        world.restore(
            [(j, n) for j, n in jobs if j.busy], [self.record(k) for k in self.world.agents]
        )
        return world

    def restart(self) -> None:
        """Forget everything that is not in the log, as after kill -9. Connections are lost, too."""
        self.world = self.restored()
        for stream in {s for s, _ in self.log if s.startswith("job/")}:
            self.world.jobs.setdefault(stream[4:], self.folded(stream[4:]))
        self.clock, self.probes = {}, []

    def restarted(self) -> None:
        """Restart and send `Restarted`."""
        self.restart()
        self.tell(Restarted())

    # ---- helpers

    def pass_time(self, secs: float) -> None:
        self.wall += secs
        self.mono += secs

    def submission(
        self,
        run: RunSpec,
        *,
        req_id: str | None = None,
        serial: int = 0,
        force: bool = False,
        only_new: bool = False,
    ) -> Submit:
        handle = next(self._handles)
        request = RunSimulation(
            req_id=req_id or f"submit-{handle:06d}",
            run=run,
            force_run=force,
            only_new=only_new,
            compute_job_serial=serial,
        )
        return Submit(
            handle,
            request,
            f"/users/{run.simulation_id}",
            **self._known(run.uid, request.req_id, cancel_receipt(request.req_id)),
        )

    def submit(
        self,
        n: int = 1,
        *,
        uid: str = UID,
        req_id: str | None = None,
        serial: int = 0,
        force: bool = False,
        only_new: bool = False,
        **fields: Any,
    ) -> Decision:
        run, marks = spec(n, uid, **fields), {"force": force, "only_new": only_new}
        return self.tell(self.submission(run, req_id=req_id, serial=serial, **marks))

    def cancel(
        self,
        n: int = 1,
        *,
        uid: str = UID,
        by: str | None = None,
        serial: int = 0,
        req_id: str | None = None,
    ) -> Decision:
        handle = next(self._handles)
        by = by or uid
        request = RunCancel(
            req_id=req_id or f"cancel-{handle:06d}",
            uid=by,
            compute_jid=jid_of(n, uid),
            compute_job_serial=serial,
        )
        return self.tell(
            Cancel(
                handle, request, **self._known(by, cancel_receipt(request.req_id), request.req_id)
            )
        )

    def gang(self, *roles: TaskRole, n: int = 1, uid: str = UID, **fields: Any) -> Decision:
        """Submit a run with these roles."""
        return self.submit(n, uid=uid, command=(), roles=roles, job_run_mode="parallel", **fields)

    def answer(self, *busy: int) -> None:
        """Answer all port probes to connected agents; `busy` ports are taken by other processes."""
        while self.probes:
            probe = self.probes.pop(0)
            if self.world.agent(probe.key).phase == "up":
                self.says(
                    PortsProbed(
                        op_id=probe.op_id, busy=tuple(sorted(set(busy) & set(probe.ports)))
                    ),
                    probe.key,
                )

    def placed(
        self, *roles: TaskRole, n: int = 1, hosts: tuple[str, ...] = ("localhost",), **fields: Any
    ) -> list[Token]:
        """Submit and place a gang; return its tokens, in order."""
        self.gang(*roles, n=n, **fields)
        for host in hosts:
            key = key_of(kind="parallel", host=host)
            if self.world.agent(key).phase != "up":
                self.up(key)
        self.answer()
        return self.tokens(n)

    def tokens(self, n: int = 1, uid: str = UID) -> list[Token]:
        """Return the tokens of the live tasks."""
        return [t.token for t in self.job(n, uid).live_tasks()]

    def end(self, token: Token, code: int | None = 0, **exit_: Any) -> None:
        """Report that the task ended with this exit."""
        task = self.world.task(token)
        assert task is not None
        self.reports(ended(token, code, **exit_), key=task.agent_key)

    def release(
        self, n: int = 1, *, uid: str = UID, by: str | None = None, **fields: Any
    ) -> Decision:
        request = RunRelease(uid=by or uid, compute_jid=jid_of(n, uid), **fields)
        return self.tell(ReleaseHold(next(self._handles), request))

    def job(self, n: int = 1, uid: str = UID) -> Job:
        return self.world.jobs[jid_of(n, uid)]

    def state(self, n: int = 1, uid: str = UID) -> tuple[str, str | None]:
        run = self.job(n, uid).run
        assert run is not None
        return run.status, run.reason

    def token(self, n: int = 1, uid: str = UID) -> Token:
        """Return the token of this job's only live task."""
        (task,) = self.job(n, uid).live_tasks()
        return task.token

    def started(self, key: AgentKey | None = None) -> None:
        """Report that the driver started the agent."""
        key = key or key_of()
        self.tell(DriverStarted(key, self.world.agent(key).record.attempt, {"pid": 9}))

    def connect(self, key: AgentKey | None = None, *executions: Execution) -> None:
        """Connect the agent with a first snapshot of these executions. A second snapshot, if
        requested, is the same.
        """
        key = key or key_of()
        self.open(key)
        self.snapshot(key, *executions)
        if not self.world.agent(key).synced:
            self.snapshot(key, *executions)

    def open(self, key: AgentKey) -> None:
        self.epochs[key] = self.epochs.get(key, 0) + 1
        said = {"runs_ahead": True} if self.agents_run_ahead else {}
        self.tell(AgentConnected(key, self.epochs[key], alive(key, **said)))

    def snapshot(self, key: AgentKey, *executions: Execution) -> None:
        self.says(
            Snapshot(number=next(self._snapshots), page=0, last=True, executions=executions), key
        )

    def says(self, message: Any, key: AgentKey | None = None) -> None:
        key = key or key_of()
        self.tell(AgentMessage(key, self.epochs[key], message))

    def reports(self, *executions: Execution, key: AgentKey | None = None) -> None:
        for e in executions:
            self.says(RunStatusUpdate(execution=e), key)

    def disconnect(self, key: AgentKey | None = None) -> None:
        key = key or key_of()
        self.tell(AgentDisconnected(key, self.epochs[key]))

    def found(self, state: str, key: AgentKey | None = None) -> None:
        self.tell(DriverFound(key or key_of(), state, f"so says the driver: {state}"))

    def fire(self, timer: Timer) -> None:
        self.tell(TimerFired(timer))

    def up(self, key: AgentKey | None = None) -> "Stage":
        """Bring up an agent without executions. It was needed by a run that is over."""
        key = key or key_of()
        if self.world.agent(key).phase == "starting":
            self.started(key)
        self.connect(key)
        return self

    # ---- effects and events

    def asked(self, type_: Any) -> list[Any]:
        return [e for e in self.effects if isinstance(e, type_)]

    def timers(self) -> dict[Timer, float]:
        return {e.timer: e.secs for e in self.asked(fx.SetTimer)}

    def cleared(self) -> set[Timer]:
        return {e.timer for e in self.asked(fx.ClearTimer)}

    def refusal(self) -> str:
        (reply,) = self.asked(fx.ReplyRefusal)
        return str(reply.refusal.code)

    def counted(self) -> list[str]:
        return [e.what for e in self.asked(fx.IncrementCounter)]

    def events(self, n: int = 1, uid: str = UID) -> list[str]:
        """Return the types of the job's events."""
        return [type(e).__name__ for s, e in self.log if s == "job/" + jid_of(n, uid)]

    def agent_events(self, key: AgentKey | None = None) -> list[str]:
        return [type(e).__name__ for s, e in self.log if s == agent_stream(key or key_of())]


def wide_stage() -> Stage:
    """Return a stage with slots for many runs at once."""
    return Stage(
        cpu_slots={("local", "sequential"): 50, ("local", "parallel"): 50},
        op_run_slots={("local", "sequential"): 50, ("local", "parallel"): 50},
    )


_KIT = SimpleNamespace(
    Stage=Stage,
    wide_stage=wide_stage,
    spec=spec,
    jid_of=jid_of,
    key_of=key_of,
    alive=alive,
    running=running,
    starting=starting,
    ended=ended,
    ending=ending,
    role=role,
    node=node,
    after=after,
    UID=UID,
    OTHER_UID=OTHER_UID,
    WALL=WALL,
    replace=msgspec.structs.replace,
)


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """Return the builders of test values."""
    return _KIT


@pytest.fixture
def own_heap() -> Iterator[None]:
    """Keep the garbage collector off the objects of other tests while this test is timed."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def stage() -> Stage:
    """One CPU slot of each kind and one run per user (the policy's defaults)."""
    return Stage()


@pytest.fixture
def wide() -> Stage:
    return wide_stage()
