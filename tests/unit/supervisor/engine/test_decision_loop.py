"""The engine: decide, store, act, in this order. It acts only on durable events, and recovers after
a disk failure.
"""

import gc
import os
from collections import Counter

import pytest
from usage_fold import usage_of

from jobscribe.db.events.events import JobFolded, job_stream
from jobscribe.db.events.job_fold import evolve, fold
from jobscribe.db.events.state import Job
from jobscribe.db.events.usage_row import ALL_MONTHS, DAY, HOUR, UsageRow, merged
from jobscribe.db.maintenance.checkpoints import trimmed
from jobscribe.db.store.contract import Stored
from jobscribe.db.store.failing_store import Faults
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.api.requests import RunCancel, RunSimulation
from jobscribe.protocol.clusters.queues import Queues, UserLimits
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import DEFAULT_QUEUE, Token
from jobscribe.protocol.wire.messages import PortsProbed, RunStatusUpdate, Snapshot
from jobscribe.supervisor.core import decide
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.grants import Grant
from jobscribe.supervisor.core.interface.inputs import (
    AgentConnected,
    AgentDisconnected,
    AgentMessage,
    Cancel,
    DriverFailed,
    DriverFound,
    DriverStarted,
    DriverStopped,
    FramesLost,
    GrantsChanged,
    Now,
    Restarted,
    Submit,
    TimerFired,
    agent_key,
    jids,
    refusal_handle,
)
from jobscribe.supervisor.core.resources import concurrency_limits
from jobscribe.supervisor.core.resources.fair_share import Account
from jobscribe.supervisor.core.runs import termination
from jobscribe.supervisor.core.scheduling import placement
from jobscribe.supervisor.core.state import transaction
from jobscribe.supervisor.core.state.agent_phase import AgentPhase, PhaseTrigger, next_phase
from jobscribe.supervisor.core.state.configuration import CoreConfig
from jobscribe.supervisor.core.state.world import World
from jobscribe.supervisor.engine.decision_loop import CACHED, PAUSE_SECS, Engine

EVICTED = PhaseTrigger.EVICTED
LIVES = 5000 if os.environ.get("SOAK") == "1" else 1500


class House:
    """Store, engine and ports. With `hold` nothing is durable before `commit`."""

    def __init__(self, kit, *, hold=False, store=None, **policy):
        self.kit, self.wall, self.mono, self.moment = kit, kit.WALL, 1000.0, 0
        self.faults = Faults()
        self.store = store or MemoryStore(lambda call: call(), hold=hold, point=self.faults)
        self.engine = Engine(CoreConfig(**policy), self.store, self)
        self.performed, self.projections, self.notices, self.dead, self.live = [], [], [], [], []
        self.errors, self.causes = [], []
        self.when_performed = lambda effect: None
        self.handles = 0

    # ports

    def now(self):
        self.moment += 1
        return Now(
            wall=self.wall, mono=self.mono, boot_id="b", entropy=self.moment.to_bytes(8, "big")
        )

    def perform(self, effect, cause):
        self.performed.append(effect)
        self.causes.append(cause)
        self.when_performed(effect)

    def projected(self, job, position, at):
        self.projections.append((job, position, at))

    def connections(self):
        return self.live

    def fatal(self, refusal):
        self.dead.append(refusal.code)

    def noticed(self, what, detail):
        self.notices.append(what)

    def broken(self, error):
        self.errors.append(str(error))

    # helpers

    def submission(self, n=1, uid=None, req_id=None, force=False, **fields):
        self.handles += 1
        spec = self.kit.spec(n, uid or self.kit.UID, **fields)
        return Submit(
            self.handles,
            RunSimulation(req_id=req_id or f"submit-{self.handles:05d}", run=spec, force_run=force),
            "/d",
        )

    def submit(self, *args, **kwargs):
        """Submit a run; return the handle that waits for the answer."""
        input_ = self.submission(*args, **kwargs)
        self.engine.tell(input_)
        return input_.handle

    def cancel(self, n=1, uid=None, req_id=None):
        self.handles += 1
        uid = uid or self.kit.UID
        request = RunCancel(
            req_id=req_id or f"cancel-{self.handles:05d}",
            uid=uid,
            compute_jid=self.kit.jid_of(n, uid),
        )
        self.engine.tell(Cancel(self.handles, request))
        return self.handles

    def agent(self, epoch=1, key=None, *executions, number=1):
        key = key or self.kit.key_of()
        self.live = [c for c in self.live if c[0] != key] + [(key, epoch, self.kit.alive(key))]
        self.engine.tell(AgentConnected(key, epoch, self.kit.alive(key)))
        self.engine.tell(
            AgentMessage(
                key, epoch, Snapshot(number=number, page=0, last=True, executions=executions)
            )
        )

    def says(self, execution, epoch=1, key=None):
        self.engine.tell(
            AgentMessage(key or self.kit.key_of(), epoch, RunStatusUpdate(execution=execution))
        )

    def job(self, n=1, uid=None):
        return self.engine.durable(self.kit.jid_of(n, uid or self.kit.UID)).job

    def token(self, n=1, uid=None):
        return self.engine.world.jobs[self.kit.jid_of(n, uid or self.kit.UID)].live_tasks()[0].token

    def asked(self, type_):
        return [e for e in self.performed if isinstance(e, type_)]

    def answers(self):
        """Return handle -> serial, or the code of the refusal."""
        return {
            e.handle: e.serial if isinstance(e, fx.ReplyStatus) else e.refusal.code
            for e in self.performed
            if isinstance(e, fx.ReplyStatus | fx.ReplyRefusal)
        }

    def wait_out(self):
        self.mono += PAUSE_SECS
        self.wall += PAUSE_SECS

    def restarted(self, kit, **policy):
        """Return a new process on the durable events."""
        after = House(kit, store=self.store.crash(), **policy)
        after.wall, after.moment, after.handles = self.wall, self.moment + 1000, self.handles
        after.engine.start()
        return after


@pytest.fixture
def house(kit):
    return House(kit)


def check(house):
    """Check that the fold of the store equals the live state."""
    jobs = {}
    for stored in house.store.read_all(0, 10**6):
        if stored.stream.startswith("job/"):
            jid = stored.stream[4:]
            jobs[jid] = evolve(jobs.get(jid, Job(jid=jid)), stored.event)
    assert house.engine.world.jobs == {j: job for j, job in jobs.items() if job.busy}
    assert concurrency_limits.violations(house.engine.world.slots) == []
    assert {jid: house.engine.durable(jid).job for jid in jobs} == jobs
    used = usage_of(house.store.read_all(0, 10**6)).values()
    assert merged(house.store.usage(0, 1e12), ALL_MONTHS) == merged(used, ALL_MONTHS)


# ---- durable first


def test_nothing_is_done_or_shown_before_it_is_durable(kit):
    house = House(kit, hold=True)
    house.submit()
    assert (house.performed, house.projections) == ([], [])
    assert house.engine.durable(kit.jid_of()) is None
    house.store.commit()
    assert [type(e) for e in house.performed] == [fx.ReplyStatus, fx.StartAgent, fx.SetTimer]
    assert house.job().status == "pending"
    ((job, _, at),) = house.projections
    assert (job, at) == (house.job(), kit.WALL)


def test_at_the_time_of_the_answer_the_job_can_be_read(house):
    seen = []
    house.when_performed = lambda e: (
        seen.append(house.engine.durable(e.jid).job.status)
        if isinstance(e, fx.ReplyStatus)
        else None
    )
    house.submit()
    assert seen == ["pending"]


def test_effects_come_in_the_order_of_decisions_also_of_those_that_write_nothing(kit):
    """The refusal needs no write, but waits for the events that it depends on."""
    house = House(kit, hold=True)
    first = house.submit(1)
    joined = house.submit(1)
    refused = house.submit(1, command=("other",))
    house.engine.tell(TimerFired(timers.QueueLimit(kit.jid_of(9), 1)))
    assert house.performed == []
    house.store.commit()
    assert list(house.answers()) == [first, joined, refused]
    assert house.answers()[refused] == "anotherRun"


def test_effects_come_with_their_causes_also_refusals_and_what_a_recovery_asks_for(
    kit, monkeypatch
):
    house = House(kit)
    house.submit(1)
    assert [str(c) for c in house.causes] == [
        "RunRequested@1",
        "AgentStartRequested@1",
        "AgentStartRequested@1",
    ]
    house.agent()
    with monkeypatch.context() as m:
        m.setattr(termination, "_stop", bug)
        house.causes.clear()
        house.cancel(1)
    assert [str(c) for c in house.causes] == ["Cancel"]
    house.engine.poke()
    asked = zip(house.performed[-len(house.causes) :], house.causes, strict=True)
    assert [str(c) for e, c in asked if isinstance(e, fx.ListTasks)] == ["Restarted"]


def test_without_anything_on_its_way_a_refusal_comes_at_once(kit):
    house = House(kit, hold=True)
    handle = house.cancel(9)
    assert house.answers() == {handle: "notFound"}


def test_one_call_is_one_transaction(kit):
    house = House(kit, hold=True)
    house.engine.tell(*(house.submission(n) for n in range(1, 6)))
    assert house.store.waiting == 1
    house.store.commit()
    assert len(house.answers()) == 5


def test_effects_of_a_decision_that_is_made_while_acting_come_after(house, kit):
    """Ending a connection sends an input to the engine while it executes the effects of the earlier
    decision.
    """

    def told(effect):
        if isinstance(effect, fx.ReplyStatus) and effect.handle == 1:
            house.submit(1, command=("other",))

    house.when_performed = told
    house.submit(1)
    kinds = [type(e).__name__ for e in house.performed]
    assert kinds == ["ReplyStatus", "StartAgent", "SetTimer", "ReplyRefusal"]


def test_the_position_of_a_job_is_that_of_its_own_last_event(house, kit):
    """The position is the same for a fresh decision and for a job read from the log."""
    house.engine.tell(*(house.submission(n) for n in range(1, 4)))
    house.agent()
    for n in range(1, 4):
        jid = kit.jid_of(n)
        entry = house.engine.durable(jid)
        assert entry.position == house.store.read("job/" + jid)[-1].position
        assert house.restarted(kit).engine.durable(jid) == entry if n == 3 else True
    for job, position, _ in house.projections:
        assert house.store._log[position - 1].stream == "job/" + job.jid


# ---- repeated requests


def test_the_same_request_while_the_first_is_on_its_way(kit):
    house = House(kit, hold=True)
    one, two = house.submit(1, req_id="request-1"), house.submit(1, req_id="request-1", force=True)
    three = house.submit(2, req_id="request-1")
    house.store.commit()
    answers = house.answers()
    assert answers[one] == answers[two]
    assert answers[three] == "conflict"
    assert house.engine._requests == {}


def test_the_same_request_after_a_restart(kit):
    house = House(kit)
    house.submit(1, req_id="request-1")
    house.cancel(1, req_id="request-2")
    after = house.restarted(kit)
    after.submit(1, req_id="request-1", force=True)
    again = after.cancel(1, req_id="request-2")
    assert len(after.answers()) == 2
    assert after.job().run.serial == after.answers()[again]
    assert after.store.head() == house.store.head()


def test_a_request_that_joined_is_remembered_by_the_store(house):
    """The request wrote no event, only its receipt."""
    first = house.submit(1, req_id="request-1")
    house.submit(1, req_id="request-2")
    house.cancel(1)
    house.submit(1, force=True)
    again = house.submit(1, req_id="request-2")
    assert house.answers()[again] == house.answers()[first] < house.job().run.serial


def test_requests_of_other_users_are_other_requests(house, kit):
    house.submit(1, req_id="request-1")
    house.submit(1, uid=kit.OTHER_UID, req_id="request-1")
    assert set(house.answers().values()) == {int(kit.WALL)}
    assert house.job(1, kit.OTHER_UID).status == "pending"


# ---- jobs come and go


def test_finished_jobs_leave_and_come_back_when_asked_for(house, kit):
    house.submit()
    house.agent()
    house.says(kit.ended(house.token()))
    assert house.engine.world.jobs == {}
    first = house.job().run.serial
    house.submit()
    assert house.engine.world.jobs == {}, "joined the finished one"
    assert house.answers() == {1: first, 2: first}
    house.submit(force=True)
    assert house.job().run.serial == first + 1
    assert len(house.job().history) == 1
    check(house)


def test_a_job_that_begins_anew_while_its_end_is_on_its_way_stays(kit):
    house = House(kit, hold=True)
    house.submit()
    house.agent()
    house.store.commit()
    house.says(kit.ended(house.token()))
    house.submit(force=True)
    house.store.commit()
    assert kit.jid_of() in house.engine.world.jobs
    check(house)


def test_late_words_about_a_finished_job(house, kit):
    house.submit()
    house.agent()
    token = house.token()
    house.says(kit.ended(token))
    house.engine._durable.clear()
    house.performed.clear()
    house.says(kit.ended(token))
    house.says(kit.running(token))
    assert [m.tokens for m in house.asked(fx.AcknowledgeTasks)] == [(token,)]
    assert [m.token for m in house.asked(fx.StopTask)] == [token]
    assert house.engine.world.jobs == {}
    check(house)


def test_a_snapshot_brings_its_jobs(house, kit):
    house.submit()
    house.agent()
    token = house.token()
    house.says(kit.ended(token))
    house.engine._durable.clear()
    house.agent(2, None, kit.ended(token), kit.ended(kit.replace(token, serial=1)))
    assert house.engine.world.jobs == {}
    assert {m.tokens[0].serial for m in house.asked(fx.AcknowledgeTasks)} == {1, token.serial}


def test_a_job_nobody_knows(house, kit):
    assert house.engine.durable(kit.jid_of(8)) is None
    house.agent()
    house.says(kit.ended(kit.replace(_token(kit), serial=7)))
    assert house.engine.world.jobs == {}


def _token(kit):
    return Token(kit.jid_of(8), 5, 1, "main", 0)


def lives(house, kit, count, start=0):
    for n in range(start, start + count):
        house.submit(n)
        token = house.token(n)
        house.says(kit.running(token))
        house.says(kit.ended(token, n % 2))


def size(engine):
    return (
        len(engine.world.jobs),
        len(engine.world.slots.pools),
        len(engine.world.slots.claims),
        len(engine._pending),
        len(engine._requests),
        sum(len(v.placed) + len(v.queued) for v in engine.world.agents.values()),
        len(engine.world.agents),
    )


def test_memory_is_flat_after_many_job_lives(house, kit):
    """Count all objects that the engine refers to. The store is excluded, because here it keeps all
    events in memory. Timers must be set and cleared in pairs.
    """
    house.submit(99_999)
    house.agent()
    house.says(kit.ended(house.token(99_999)))
    lives(house, kit, CACHED + 50)
    before = size(house.engine)
    reached = objects(house.engine, house.store)
    house.performed.clear(), house.projections.clear()
    timers = Counter()

    def count(effect):
        if isinstance(effect, fx.SetTimer):
            timers[effect.timer] = 1
        elif isinstance(effect, fx.ClearTimer):
            timers.pop(effect.timer, None)
        house.performed.clear()
        house.projections.clear()

    house.when_performed = count
    lives(house, kit, LIVES, start=1000)
    assert size(house.engine) == before == (0, 0, 0, 0, 0, 0, 1)
    assert len(house.engine._durable) <= CACHED + 1
    assert objects(house.engine, house.store) <= reached * 1.05
    assert not timers, "every timer of a finished run was given back"


def objects(engine, store):
    """Return the number of objects that the engine refers to, without the store and the ports."""
    gc.collect()
    seen, todo = {id(store), id(engine.ports)}, [engine]
    count = 0
    while todo:
        o = todo.pop()
        if (
            id(o) in seen
            or isinstance(o, type)
            or type(o).__name__ in ("module", "function", "builtin_function_or_method")
        ):
            continue
        seen.add(id(o))
        count += 1
        todo.extend(gc.get_referents(o))
    return count


def test_many_busy_jobs_stay_at_hand_and_finished_ones_are_let_go(kit):
    house = House(kit)
    for n in range(CACHED + 100):
        house.submit(n)
    assert len(house.engine._durable) == len(house.engine.world.jobs) == CACHED + 100
    for n in range(CACHED + 100):
        house.cancel(n)
    assert house.engine.world.jobs == {}
    assert len(house.engine._durable) <= CACHED
    for n in range(CACHED + 100):
        assert house.job(n).status == "canceled"
    assert len(house.engine._durable) <= CACHED
    check(house)


def test_busy_ones_that_are_old_do_not_leave_for_finished_ones_that_are_new(kit):
    house = House(kit)
    for n in range(20):
        house.submit(n)
    for n in range(20, CACHED + 200):
        house.submit(n)
        house.cancel(n)
    assert {kit.jid_of(n) for n in range(20)} <= house.engine._durable.keys()
    assert len(house.engine._durable) <= CACHED + 20


# ---- restart


def test_a_restart_finds_what_was_durable_and_nothing_else(kit):
    house = House(kit, hold=True)
    house.submit(1)
    house.submit(2)
    house.store.commit()
    house.submit(3)
    after = house.restarted(kit)
    assert after.engine.world.jobs.keys() == {kit.jid_of(1), kit.jid_of(2)}
    after.store.commit()
    assert [type(e) for e in after.performed] == [fx.StartAgent, fx.SetTimer]
    after.agent()
    after.store.commit()
    assert [m.token.jid for m in after.asked(fx.LaunchTask)] == [kit.jid_of(1)]
    check(after)


def test_the_order_of_the_queue_survives(kit):
    house = House(kit)
    for n in (3, 1, 2):
        house.submit(n)
    after = house.restarted(kit)
    after.submit(0)
    after.agent()
    order = []
    while after.engine.world.jobs:
        (run,) = after.asked(fx.LaunchTask)
        after.performed.clear()
        order.append(run.token.jid)
        after.says(kit.ended(run.token))
    assert order == [kit.jid_of(n) for n in (3, 1, 2, 0)]


def test_agents_are_known_after_a_restart_though_nothing_is_owed(kit):
    """Their token hashes let them connect, and the next start continues the attempt number."""
    house = House(kit)
    house.submit()
    house.engine.tell(DriverStarted(kit.key_of(), 1, {"pid": 9}))
    house.agent()
    house.says(kit.ended(house.token()))
    after = house.restarted(kit)
    assert after.engine.world.agents == {}
    assert after.engine.agent_record(kit.key_of()) == house.engine.world.agent(kit.key_of()).record
    assert after.engine.agent_record(kit.key_of("stranger")).version == 0
    assert kit.key_of("stranger") not in after.engine.world.agents
    after.submit(2)
    assert [e.handle for e in after.asked(fx.FindAgent)] == [{"pid": 9}]
    check(after)


# ---- disk failures


def full(kit, **policy):
    """Return a house with a running job and its agent, where a submission met a full disk."""
    house = House(kit, **policy)
    house.submit(1)
    house.engine.tell(DriverStarted(kit.key_of(), 1, {"pid": 9}))
    house.agent()
    house.says(kit.running(house.token(1)))
    house.faults.fail(forever=True)
    return house


def test_what_could_not_be_written_is_refused_and_forgotten(kit):
    house = full(kit)
    house.performed.clear()
    handle = house.submit(2)
    assert house.answers() == {handle: "storageUnavailable"}
    assert [e for e in house.performed if not isinstance(e, fx.ReplyRefusal)] == []
    assert house.engine.durable(kit.jid_of(2)) is None
    assert house.notices == ["storageUnavailable"]
    assert house.engine.paused
    assert house.job(1).status == "running", "reads go on"


def test_during_the_pause_requests_are_refused_at_once(kit):
    house = full(kit)
    house.submit(2)
    house.faults.mend()
    handle = house.submit(3)
    assert house.answers()[handle] == "storageUnavailable"
    house.wait_out()
    handle = house.submit(3)
    assert isinstance(house.answers()[handle], int)
    assert not house.engine.paused
    check(house)


def test_everything_decided_on_top_of_what_failed_is_refused(kit):
    house = House(kit, hold=True)
    house.faults.fail()
    handles = [
        house.submit(1),
        house.submit(1),
        house.submit(2),
        house.submit(2, command=("other",)),
        house.cancel(9),
        house.cancel(1),
    ]
    house.store.commit()
    assert house.answers() == dict.fromkeys(handles, "storageUnavailable")
    assert house.engine._requests == {}
    house.wait_out()
    house.engine.poke()
    house.store.commit()
    assert house.engine.world.jobs == {}
    again = house.submit(1)
    house.store.commit()
    assert isinstance(house.answers()[again], int)


def test_work_goes_on_without_a_restart_when_it_clears(kit):
    """The engine learns from a snapshot about the end that was reported meanwhile."""
    house = full(kit)
    token = house.token(1)
    house.says(kit.ended(token))
    assert house.job(1).status == "running"
    assert house.asked(fx.AcknowledgeTasks) == []
    house.faults.mend()
    house.wait_out()
    house.performed.clear()
    house.engine.poke()
    assert not house.engine.paused
    assert len(house.asked(fx.ListTasks)) == 1
    assert not house.asked(fx.StartAgent) and not house.asked(fx.FindAgent), "it is connected"
    house.engine.tell(
        AgentMessage(
            kit.key_of(), 1, Snapshot(number=2, page=0, last=True, executions=(kit.ended(token),))
        )
    )
    assert house.job(1).status == "completed"
    assert [m.tokens for m in house.asked(fx.AcknowledgeTasks)] == [(token,)]
    check(house)


def test_an_agent_whose_start_could_not_be_recorded_is_not_started_twice(kit):
    """The agent is connected, although the driver's report was lost."""
    house = House(kit)
    house.submit(1)
    house.faults.fail()
    house.engine.tell(DriverStarted(kit.key_of(), 1, {"pid": 9}))
    house.live = [(kit.key_of(), 5, kit.alive(kit.key_of()))]
    house.performed.clear()
    house.wait_out()
    house.engine.poke()
    assert house.asked(fx.StartAgent) == []
    house.engine.tell(
        AgentMessage(kit.key_of(), 5, Snapshot(number=2, page=0, last=True, executions=()))
    )
    assert len(house.asked(fx.LaunchTask)) == 1


def test_an_idle_agent_that_is_connected_keeps_its_record(kit):
    """The agent has no pending work, so it was not folded with the world. Its next connection and
    start must be right.
    """
    house = full(kit)
    house.says(kit.ended(house.token(1)))
    house.faults.mend()
    house.wait_out()
    house.engine.poke()
    house.engine.tell(
        AgentMessage(
            kit.key_of(),
            1,
            Snapshot(number=2, page=0, last=True, executions=(kit.ended(house.token(1)),)),
        )
    )
    house.faults.fail()
    house.submit(2)
    house.wait_out()
    house.engine.poke()
    assert house.engine.agent_record(kit.key_of()).token_hashes
    assert house.engine.agent_record(kit.key_of()).handle == {"pid": 9}


@pytest.mark.parametrize(
    "input_",
    [
        lambda key: TimerFired(timers.AgentReturnDeadline(key)),
        lambda key: TimerFired(timers.AgentStartRetry(key, 1)),
        lambda key: TimerFired(timers.AgentStartDeadline(key, 1)),
        lambda key: DriverStarted(key, 9, {}),
        lambda key: DriverFailed(key, 9, "x"),
        lambda key: DriverFound(key, "gone", "x"),
        lambda key: DriverStopped(key),
        lambda key: AgentDisconnected(key, 1),
        lambda key: FramesLost(key, 1),
        lambda key: AgentConnected(key, 5, None),
    ],
)
def test_late_words_about_an_agent_that_is_not_at_hand_do_not_hide_its_record(kit, input_):
    house = House(kit)
    house.submit()
    house.engine.tell(DriverStarted(kit.key_of(), 1, {"pid": 9}))
    house.agent()
    house.says(kit.ended(house.token()))
    after = house.restarted(kit)
    message = input_(kit.key_of())
    after.engine.tell(
        kit.replace(message, alive=kit.alive(kit.key_of()))
        if isinstance(message, AgentConnected)
        else message
    )
    assert after.engine.agent_record(kit.key_of()).handle == {"pid": 9}


def test_a_store_that_is_gone_for_good_is_fatal(kit):
    house = full(kit)
    house.faults.fail(fatal=True)
    house.submit(2)
    house.wait_out()
    house.engine.poke()
    assert house.dead == ["storageUnavailable"]
    handle = house.submit(3)
    assert house.answers()[handle] == "storageUnavailable"


def test_a_store_that_fails_while_nothing_is_written_is_fatal(house, monkeypatch):
    lost = Refusal("storageUnavailable", "the log in the database lacks commits")
    monkeypatch.setattr(house.store, "failure", lambda: lost)
    house.engine.poke()
    assert house.dead == ["storageUnavailable"]


def test_hours_of_a_month_count_after_a_restart_with_a_clock_that_was_set_back(kit):
    limits = Queues(limits=UserLimits(core_hours=1.0))
    house = House(kit, queues=limits)
    house.wall = kit.WALL + 2 * HOUR
    house.submit(1)
    house.agent()
    token = house.token(1)
    house.says(kit.running(token))
    over = kit.ended(token)
    exit_ = kit.replace(over.exit, ended_at=kit.WALL + 2 * HOUR)
    house.says(kit.replace(over, exit=exit_))
    house.wall = kit.WALL
    handle = house.submit(2)
    assert house.answers()[handle] == "hoursUsedUp"
    after = house.restarted(kit, queues=limits)
    handle = after.submit(2)
    assert after.answers()[handle] == "hoursUsedUp"


def test_the_disk_is_still_full_after_the_pause(kit):
    house = full(kit)
    house.submit(2)
    for _ in range(3):
        house.wait_out()
        handle = house.submit(2)
        assert house.answers()[handle] == "storageUnavailable"
    assert house.dead == []
    house.faults.mend()
    house.wait_out()
    handle = house.submit(2)
    assert isinstance(house.answers()[handle], int)
    check(house)


def test_poking_a_sound_engine_does_nothing(house):
    house.engine.poke()
    assert house.performed == []


def test_what_cannot_be_read_is_refused_and_said(kit):
    house = House(kit)
    house.store.close()
    handle = house.submit()
    assert house.answers() == {handle: "storageUnavailable"}
    assert house.notices == ["storageUnavailable"]


# ---- a bug in a decision


def bug(*args, **kwargs):
    raise RuntimeError("a planted bug")


def broken(kit, monkeypatch, **policy):
    """Return a house with a running job and its agent, where a bug has just failed a decision."""
    house = House(kit, **policy)
    house.submit(1)
    house.agent()
    house.says(kit.running(house.token(1)))
    house.submit(2)
    with monkeypatch.context() as m:
        m.setattr(termination, "_stop", bug)
        handle = house.cancel(1)
    assert house.answers()[handle] == "internal"
    assert house.errors == ["a planted bug"]
    house.performed.clear()
    return house


def test_after_a_bug_the_world_is_folded_anew_and_work_goes_on(kit, monkeypatch):
    house = broken(kit, monkeypatch)
    house.engine.poke()
    assert len(house.asked(fx.ListTasks)) == 1
    token = house.token(1)
    house.engine.tell(
        AgentMessage(
            kit.key_of(), 1, Snapshot(number=2, page=0, last=True, executions=(kit.running(token),))
        )
    )
    house.cancel(1)
    assert house.job(1).status == "canceled"
    assert not house.job(2).run.attempts, "its slot is still taken"
    house.says(kit.ended(token))
    assert house.job(2).run.attempts
    check(house)


def test_after_a_bug_nothing_is_decided_before_what_is_on_its_way_is_durable(kit, monkeypatch):
    house = House(kit, hold=True)
    house.submit(1)
    with monkeypatch.context() as m:
        m.setattr(placement, "enqueue", bug)
        house.submit(2)
    early = house.submit(3)
    house.engine.poke()
    house.store.commit()
    assert house.answers()[early] == "conflict"
    assert isinstance(house.answers()[1], int), "what was decided before the bug stands"
    late = house.submit(3)
    house.store.commit()
    assert isinstance(house.answers()[late], int)
    assert kit.jid_of(2) not in house.engine.world.jobs
    check(house)


def test_a_fold_that_cannot_be_read_is_tried_again_and_nothing_is_decided_before(kit, monkeypatch):
    """A partly folded world would grant slots that are taken."""
    house = broken(kit, monkeypatch)
    with monkeypatch.context() as m:

        def unreadable(stream, after=0):
            raise Refusal("storageUnavailable", "the disk does not answer")

        m.setattr(house.store, "read", unreadable)
        handle = house.submit(5)
        assert house.answers()[handle] == "conflict"
        house.engine.poke()
    assert house.notices
    house.submit(5)
    assert house.engine.world.jobs.keys() == {kit.jid_of(n) for n in (1, 2, 5)}
    assert house.engine.world.agent(kit.key_of()).placed == {house.token(1)}
    check(house)


def test_a_bug_in_starting_over_lets_nobody_decide_on_that_world(kit, monkeypatch):
    house = broken(kit, monkeypatch)
    with monkeypatch.context() as m:
        m.setattr(decide, "restarted", bug)
        handle = house.submit(5)
        assert house.answers()[handle] == "conflict"
        assert house.job(1).status == "running"
    handle = house.submit(5)
    assert isinstance(house.answers()[handle], int)
    check(house)


def test_an_illegal_change_of_phase_is_such_a_bug_and_loses_no_acknowledged_run(kit, monkeypatch):
    house = House(kit)
    acknowledged = house.submit(1)
    key = kit.key_of()
    house.live = [(key, 1, kit.alive(key))]
    with monkeypatch.context() as m:
        m.setattr(transaction, "next_phase", lambda phase, trigger: next_phase(phase, EVICTED))
        house.engine.tell(AgentConnected(key, 1, kit.alive(key)))
    assert house.errors == ["an agent that is starting has no transition for: agent ended"]
    assert isinstance(house.answers()[acknowledged], int) and house.job(1).status == "pending"
    house.engine.poke()
    assert house.engine.world.agent(key).phase == AgentPhase.UP, "its connection is told again"
    house.engine.tell(AgentMessage(key, 1, Snapshot(number=1, page=0, last=True, executions=())))
    house.says(kit.ended(house.token(1)))
    assert house.job(1).status == "completed"
    check(house)


@pytest.mark.parametrize("nth", range(1, 7))
def test_whichever_commit_fails_nothing_acknowledged_is_lost_and_all_complete(kit, nth):
    """A short history of runs; the client and the agent repeat their requests as usual."""
    house = House(kit)
    house.submit(99)
    house.agent()
    house.says(kit.ended(house.token(99)))
    house.faults.fail(nth)
    machine, number = {}, 10
    house.performed.clear()
    for round_ in range(30):
        for n in (1, 2, 3):
            if round_ % 3 == 0 and f"done {n}" not in machine:
                house.submit(n, req_id=f"request-{n}")
                if isinstance(house.answers()[house.handles], int):
                    machine[f"done {n}"] = house.answers()[house.handles]
        for message in house.asked(fx.LaunchTask):
            machine.setdefault(message.token, kit.ended(message.token))
        reports = [e for t, e in machine.items() if not isinstance(t, str)]
        for e in reports:
            house.says(e)
        if house.asked(fx.ListTasks):
            house.performed.clear()
            number += 1
            house.engine.tell(
                AgentMessage(
                    kit.key_of(),
                    1,
                    Snapshot(number=number, page=0, last=True, executions=tuple(reports)),
                )
            )
        for ack in house.asked(fx.AcknowledgeTasks):
            for t in ack.tokens:
                machine.pop(t, None)
        house.mono += 0.5
        house.engine.poke()
    assert house.faults.failed == 1
    for n in (1, 2, 3):
        assert house.job(n).status == "completed"
        assert house.job(n).run.serial == machine[f"done {n}"]
    check(house)


# ---- jobs and agents that an input needs


def test_every_input_says_which_jobs_and_which_agent_it_needs(kit):
    key, token = kit.key_of(), _token(kit)
    sub = Submit(1, RunSimulation(req_id="request-1", run=kit.spec(1)), "/d")
    cancel = Cancel(2, RunCancel(req_id="request-1", uid=kit.UID, compute_jid=kit.jid_of(2)))
    update = AgentMessage(key, 1, RunStatusUpdate(execution=kit.starting(token)))
    page = AgentMessage(
        key,
        1,
        Snapshot(number=1, page=0, last=True, executions=(kit.starting(token), kit.running(token))),
    )
    assert [
        jids(i)
        for i in (sub, cancel, update, page, AgentMessage(key, 1, kit.alive(key)), Restarted())
    ] == [
        (kit.jid_of(1),),
        (kit.jid_of(2),),
        (token.jid,),
        (token.jid, token.jid),
        (),
        (),
    ]
    assert [refusal_handle(i) for i in (sub, cancel, update)] == [1, 2, None]
    assert [
        agent_key(i)
        for i in (
            sub,
            cancel,
            update,
            TimerFired(timers.AgentReturnDeadline(key)),
            TimerFired(timers.LaunchDeadline(token)),
            Restarted(),
        )
    ] == [
        None,
        None,
        key,
        key,
        None,
        None,
    ]


# ---- usage


def run_of(house, kit, n, secs, uid=None, **fields):
    """Run a simulation for `secs` seconds of both clocks and of the executor."""
    house.submit(n, uid, **fields)
    token = house.token(n, uid)
    key = kit.key_of(uid or kit.UID)
    house.says(kit.running(token), key=key)
    house.mono += secs
    house.wall += secs
    done = kit.ended(token, user_secs=secs, system_secs=0.0)
    exit_ = kit.replace(done.exit, ended_at=kit.WALL + secs)
    house.says(kit.replace(done, exit=exit_), key=key)
    return token


def test_each_ended_run_is_in_the_usage_and_in_the_totals_once(house, kit):
    house.submit(9)
    house.agent()
    house.says(kit.ended(house.token(9)))
    token = run_of(house, kit, 1, 30.0, simulation_type="night")
    assert house.engine.used["local", "sequential"].core_ms == 31_000
    (row,) = [r for r in house.store.usage(0, 1e12) if r.simulation_type == "night"]
    assert (row.uid, row.completed, row.executions) == (kit.UID, 1, 1)
    assert (row.core_ms, row.cpu_ms) == (30_000, 30_000)
    # a repeated report, also by the snapshot of a new connection and after a restart
    house.says(kit.ended(token))
    house.agent(2, None, kit.ended(token))
    check(house)
    after = house.restarted(kit)
    after.agent(1, None, kit.ended(token))
    assert [r for r in after.store.usage(0, 1e12) if r.simulation_type == "night"] == [row]
    assert after.engine.used == {}
    check(after)


def test_usage_of_a_commit_that_fails_counts_once_when_it_is_repeated(house, kit):
    house.submit()
    house.agent()
    token = house.token()
    house.faults.fail()
    house.says(kit.ended(token))
    assert (house.store.usage(0, 1e12), house.engine.used) == ([], {})
    house.wait_out()
    house.agent(2, None, kit.ended(token))
    (row,) = house.store.usage(0, 1e12)
    assert (row.completed, row.executions, row.wall_ms) == (1, 1, 1000)
    assert house.engine.used["local", "sequential"] == row
    check(house)


def test_the_usage_decides_whose_turn_it_is_also_after_a_restart(kit):
    house = House(kit, cpu_slots={("local", "sequential"): 1})
    busy, idle = (Account(DEFAULT_QUEUE, uid) for uid in (kit.UID, kit.OTHER_UID))
    for uid in (kit.UID, kit.OTHER_UID):
        house.submit(1, uid)
        house.agent(key=kit.key_of(uid))
        house.says(kit.ended(house.token(1, uid)), key=kit.key_of(uid))
    run_of(house, kit, 2, 500.0)
    before = house.engine.world.slots.fair
    half_life = house.engine.policy.shares.half_life_secs
    house.wall += half_life
    house.mono += half_life
    before.now = house.mono
    after = House(kit, store=house.store.crash(), cpu_slots={("local", "sequential"): 1})
    after.wall, after.mono = house.wall, 7.0
    after.handles, after.moment = 1000, 1000
    after.engine.start()
    fair = after.engine.world.slots.fair
    assert fair.usage(busy) == pytest.approx(before.usage(busy), rel=0.01)
    assert 0 < fair.usage(idle) < 1 < fair.usage(busy)
    assert fair.mean(busy) == pytest.approx(501 / 2, rel=0.01)
    assert fair.first({busy: 1, idle: 2}, {}, 1) == idle


def test_a_slot_that_is_held_at_a_restart_is_held_since_its_placement(kit):
    house = House(kit)
    house.submit()
    house.agent()
    house.says(kit.running(house.token()))
    house.wall += 900.0
    after = House(kit, store=house.store.crash())
    after.wall, after.moment, after.handles = house.wall, 1000, 1000
    after.engine.start()
    (holding,) = after.engine.world.slots.fair.holdings.values()
    assert holding.since == pytest.approx(after.mono - 900.0)
    (account,) = after.engine.world.slots.fair.accounts
    assert after.engine.world.slots.fair.level(account) == pytest.approx(900.0)


def test_usage_that_is_restored_decays_and_counts_gpus_as_cores(kit):
    now = Now(wall=100 * DAY + HOUR, mono=50.0, boot_id="b", entropy=b"")
    world = World(CoreConfig())
    rules = world.slots.fair.rules
    rows = [
        # each in the middle of its period: now, one half-life ago, and later than now
        used_at(100 * DAY + HOUR // 2, "hour", core_ms=1000, gpu_ms=500, executions=1),
        used_at(93 * DAY + HOUR - DAY // 2, "day", core_ms=4000, executions=1),
        used_at(100 * DAY, "day", uid=kit.OTHER_UID, core_ms=3000, queue="gone"),
    ]
    world.restore([], [], rows, now)
    own, other = (Account(DEFAULT_QUEUE, uid) for uid in (kit.UID, kit.OTHER_UID))
    fair = world.slots.fair
    assert fair.usage(own) == pytest.approx(1.0 + 0.5 * rules.gpu_cores + 2.0)
    assert fair.mean(own) == pytest.approx(fair.usage(own) / 1.5)
    assert fair.usage(other) == pytest.approx(3.0)


def used_at(start, span, uid="user0001", queue=DEFAULT_QUEUE, **sums):
    return UsageRow(
        start=start,
        span=span,
        uid=uid,
        queue=queue,
        driver="local",
        kind="sequential",
        simulation_type="command",
        **sums,
    )


def test_a_gang_that_runs_at_a_restart_holds_its_resources_since_its_placement(kit):
    policy = {"nodes": {"local": (kit.node(cpu=4),)}}
    house = House(kit, **policy)
    house.submit(roles=(kit.role(tasks=2, cpu=2),), command=())
    house.agent()
    (probe,) = house.asked(fx.CheckPorts)
    house.engine.tell(AgentMessage(probe.key, 1, PortsProbed(op_id=probe.op_id, busy=())))
    house.wall += 100.0
    placed = house.engine.world.jobs[kit.jid_of()].live_tasks()
    after = House(kit, store=house.store.crash(), **policy)
    after.wall, after.moment, after.handles = house.wall, 1000, 1000
    after.engine.start()
    holdings = after.engine.world.slots.fair.holdings
    assert len(placed) == 2 == len(holdings)
    assert {(h.cores, h.since) for h in holdings.values()} == {(2.0, after.mono - 100.0)}


# ---- a compaction trimmed the log


def trimmed_log(house, jid, monkeypatch):
    """Replace what the store has of a job now by a checkpoint without its history."""
    read, stream = house.store.read, job_stream(jid)
    events = read(stream)
    job = trimmed(fold(jid, [s.event for s in events]), 0)
    last = events[-1]
    event = JobFolded(at=last.event.at, job=job, events=len(events), since=1.0, folded_at=2.0)
    start = Stored(last.position, stream, last.version, event)

    def shorter(of, after=0, limit=None):
        return [start, *read(of, last.version)] if of == stream else read(of, after, limit)

    monkeypatch.setattr(house.store, "read", shorter)


def test_a_job_whose_history_was_trimmed_is_read_again_wherever_it_is_in_memory(kit, monkeypatch):
    house = House(kit, hold=True)
    jid, read = kit.jid_of(), []
    house.engine.reloaded = lambda e: read.append((e.job.status, len(e.job.history)))
    house.submit()
    house.agent()
    house.store.commit()
    for _ in range(2):
        house.says(kit.ended(house.token()))
        house.submit(force=True)
        house.store.commit()
    house.says(kit.ended(house.token()))
    house.store.commit()
    assert (len(house.job().history), house.engine.world.jobs) == (2, {})
    trimmed_log(house, jid, monkeypatch)
    # cached
    assert house.engine.reload([jid]) == 0
    assert read == [("completed", 0)]
    assert (house.job().history, house.job().history_dropped) == ((), 2)
    # begins anew while the log is exchanged: read when that is durable
    house.submit(force=True)
    trimmed_log(house, jid, monkeypatch)
    assert (house.engine.reload([jid, kit.jid_of(9)]), len(read)) == (1, 1)
    house.store.commit()
    assert house.engine.reload(()) == 0
    assert read[1:] == [("pending", 1)]
    assert house.engine.world.jobs[jid] is house.job()
    assert house.job() == fold(jid, [s.event for s in house.store.read(job_stream(jid))])
    house.says(kit.ended(house.token()))
    house.store.commit()
    assert house.job() == fold(jid, [s.event for s in house.store.read(job_stream(jid))])
    # cannot be read now
    monkeypatch.setattr(house.store, "read", refuse_reading)
    assert house.engine.reload([jid]) == 1 and house.notices[-1] == "storageUnavailable"


def refuse_reading(*args):
    raise Refusal("storageUnavailable", "it cannot be read")


def test_limits_of_the_site_are_kept_when_the_log_is_folded_again(kit):
    limit = "slots.local_sequential"
    slots = {("local", "sequential"): 8}
    house = House(kit, hold=True, moving=frozenset((limit,)), op_run_slots=slots)
    house.engine.start()

    def uses():
        """Return the answers of the core: number, use and demand."""
        return [(e.number, *e.use[limit]) for e in house.asked(fx.GrantsApplied)]

    house.engine.tell(GrantsChanged({limit: Grant(limit=1, capacity=8)}, 1))
    house.agent()
    house.submit(1)
    house.submit(2)
    house.engine.tell(GrantsChanged({limit: Grant(limit=1, capacity=8)}, 2))
    assert uses() == [(1, 0, 0)], "what is used is not durable yet"
    house.store.commit()
    assert uses() == [(1, 0, 0), (2, 1, 2)]
    house.faults.fail()
    house.submit(3)
    house.engine.tell(GrantsChanged({limit: Grant(limit=2, capacity=8)}, 3))
    house.store.commit()
    assert [number for number, *_ in uses()] == [1, 2], "an earlier decision is lost"
    house.faults.mend()
    house.wait_out()
    house.engine.poke()
    house.agent(epoch=2)
    house.store.commit()
    assert house.engine.world.grants[limit].limit == 2
    assert house.engine.world.slots_at("local", "sequential", "localhost") == 2
