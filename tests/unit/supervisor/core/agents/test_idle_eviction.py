"""Idle agents are evicted to free memory for others; agents that are needed are not evicted."""

import pytest

from jobscribe.protocol.clusters.queues import Queues, UserLimits
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import (
    AgentStopRequested,
    DriverFound,
    DriverStopped,
    EvictionRefused,
    HostChanged,
    RequireAgent,
)
from jobscribe.supervisor.core.resources.host_selection import HostCapacity
from jobscribe.supervisor.core.status.run_status import status

IDLE_SECS = 30.0
UIDS = tuple(f"user000{n}" for n in range(1, 6))


def _stage(kit, *memory, **fields):
    places = tuple(
        HostCapacity(
            host=host,
            slots={"sequential": 2},
            agent_mb={"sequential": 100, "parallel": 250},
            memory_mb=mb,
        )
        for host, mb in zip("ab", memory, strict=False)
    )
    slots = {("local", "sequential"): 4}
    return kit.Stage(
        places={"local": places}, op_run_slots=slots, agent_idle_secs={"local": IDLE_SECS}, **fields
    )


@pytest.fixture
def one(kit):
    """A host with memory for two agents."""
    return _stage(kit, 250)


def key(kit, n, host="a", kind="sequential"):
    return kit.key_of(UIDS[n], kind, host)


def idle(stage, kit, *numbers):
    """Bring up one idle agent for each of these users. The first has been idle the longest."""
    for n in numbers:
        stage.submit(n, uid=UIDS[n])
        stage.up(key(kit, n))
        stage.end(stage.token(n, UIDS[n]))
        stage.pass_time(1.0)


def dismissed(stage):
    return [e.key for e in stage.asked(fx.EvictAgent)]


def started(stage):
    return [e.key for e in stage.asked(fx.StartAgent)]


def told(stage, n):
    said = status(stage.world, stage.job(n, UIDS[n]), 1, stage.now())
    return said["queueState"], said["jobStatusMessage"]


def test_an_agent_that_nobody_needs_for_a_while_is_dismissed(one, kit):
    one.submit(0, uid=UIDS[0])
    one.up(key(kit, 0))
    assert timers.AgentIdleDeadline(key(kit, 0)) not in one.clock
    one.end(one.token(0, UIDS[0]))
    assert one.clock[timers.AgentIdleDeadline(key(kit, 0))] == IDLE_SECS
    one.pass_time(IDLE_SECS)
    one.fire(timers.AgentIdleDeadline(key(kit, 0)))
    (effect,) = one.asked(fx.EvictAgent)
    assert (
        effect == fx.EvictAgent(key(kit, 0), 1, {"pid": 9})
        and one.world.agent(key(kit, 0)).phase == "leaving"
    )
    one.disconnect(key(kit, 0))
    assert (
        one.world.agent(key(kit, 0)).phase == "absent"
        and started(one) == []
        and timers.AgentLeaveDeadline(key(kit, 0)) not in one.clock
    )


def test_who_is_needed_again_is_not_idle(one, kit):
    idle(one, kit, 0)
    one.submit(1, uid=UIDS[0])
    assert timers.AgentIdleDeadline(key(kit, 0)) not in one.clock
    one.pass_time(2 * IDLE_SECS)
    one.fire(timers.AgentIdleDeadline(key(kit, 0)))
    assert dismissed(one) == []


def test_a_call_is_a_use(one, kit):
    idle(one, kit, 0)
    one.pass_time(IDLE_SECS - 11)
    one.tell(RequireAgent(1, key(kit, 0)))
    one.pass_time(10.0)
    one.fire(timers.AgentIdleDeadline(key(kit, 0)))
    assert (
        dismissed(one) == [] and one.clock[timers.AgentIdleDeadline(key(kit, 0))] == IDLE_SECS - 10
    )


def _leaving(one, kit):
    idle(one, kit, 0)
    one.pass_time(IDLE_SECS)
    one.fire(timers.AgentIdleDeadline(key(kit, 0)))


def test_who_is_busy_stays_and_is_asked_for_everything(one, kit):
    _leaving(one, kit)
    one.submit(1, uid=UIDS[0])
    one.tell(EvictionRefused(key(kit, 0), 1))
    assert (
        one.job(1, UIDS[0]).live_tasks()
        and one.asked(fx.ListTasks)
        and timers.AgentLeaveDeadline(key(kit, 0)) not in one.clock
    )
    assert timers.AgentIdleDeadline(key(kit, 0)) not in one.clock


def test_who_is_busy_is_left_alone_for_a_moment_also_where_memory_is_wanted(one, kit):
    idle(one, kit, 0, 1)
    one.submit(2, uid=UIDS[2])
    one.tell(EvictionRefused(key(kit, 0), 1))
    assert dismissed(one) == [key(kit, 1)], "another one goes"
    one.tell(EvictionRefused(key(kit, 1), 1))
    assert dismissed(one) == [] and told(one, 2)[0] == "agent_memory"
    one.pass_time(one.clock[timers.AgentIdleDeadline(key(kit, 0))])
    one.fire(timers.AgentIdleDeadline(key(kit, 0)))
    assert dismissed(one) == [key(kit, 0)]


def test_an_old_word_of_a_busy_agent_changes_nothing(one, kit):
    _leaving(one, kit)
    one.tell(EvictionRefused(key(kit, 0), 0))
    assert one.world.agent(key(kit, 0)).phase == "leaving"


@pytest.mark.parametrize("how", ["disconnected", "stopped"])
def test_who_is_needed_while_it_leaves_is_started_anew(one, kit, how):
    _leaving(one, kit)
    one.submit(1, uid=UIDS[0])
    one.tell(RequireAgent(5, key(kit, 0)))
    assert started(one) == [] and not one.job(1, UIDS[0]).live_tasks()
    assert (
        "is being stopped"
        in status(one.world, one.job(1, UIDS[0]), 1, one.now())["jobStatusMessage"]
    )
    if how == "disconnected":
        one.disconnect(key(kit, 0))
        one.found("gone", key(kit, 0))
    else:
        one.tell(DriverStopped(key(kit, 0)))
    assert started(one) == [key(kit, 0)]
    one.up(key(kit, 0))
    assert one.job(1, UIDS[0]).live_tasks()


def test_who_does_not_go_is_stopped(one, kit):
    _leaving(one, kit)
    one.fire(timers.AgentLeaveDeadline(key(kit, 0)))
    assert [e.key for e in one.asked(fx.StopAgent)] == [key(kit, 0)] and timers.AgentLeaveDeadline(
        key(kit, 0)
    ) in one.clock


def test_who_connects_anew_while_it_leaves_is_told_again(one, kit):
    _leaving(one, kit)
    one.submit(1, uid=UIDS[0])
    one.open(key(kit, 0))
    (effect,) = one.asked(fx.EvictAgent)
    assert effect.epoch == 2 and not one.job(1, UIDS[0]).live_tasks()


def test_without_a_time_nobody_is_dismissed(kit):
    stage = kit.Stage()
    stage.submit()
    stage.up()
    stage.end(stage.token())
    assert not any(isinstance(t, timers.AgentIdleDeadline) for t in stage.clock)


# memory


def test_the_one_that_was_not_needed_for_longest_makes_room_and_no_other(one, kit):
    idle(one, kit, 0, 1)
    one.submit(2, uid=UIDS[2])
    assert dismissed(one) == [key(kit, 0)] and started(one) == []
    state, sentence = told(one, 2)
    assert state == "agent_memory"
    assert sentence.startswith(
        "the memory of host a is used by 2 agents (200 of 250 MiB), and its agent needs 100 MiB"
    )
    one.disconnect(key(kit, 0))
    assert started(one) == [key(kit, 2)] and dismissed(one) == []


def test_whoever_is_needed_is_never_dismissed(one, kit):
    idle(one, kit, 0)
    one.submit(1, uid=UIDS[1])
    one.up(key(kit, 1))
    one.submit(2, uid=UIDS[2])
    assert dismissed(one) == [key(kit, 0)]
    one.submit(3, uid=UIDS[3])
    assert dismissed(one) == [] and told(one, 3)[0] == "agent_memory"
    one.disconnect(key(kit, 0))
    assert started(one) == [key(kit, 2)], "the one that waits longer"
    one.end(one.token(1, UIDS[1]))
    assert dismissed(one) == [key(kit, 1)], "nobody needs it any more, and somebody waits"


def test_an_agent_whose_runs_wait_makes_room_for_one_that_has_executions(kit):
    """The waiting run needs the slot of an execution whose agent needs the memory of its agent."""
    host = HostCapacity(
        host="a", slots={"sequential": 1}, agent_mb={"sequential": 100}, memory_mb=150
    )
    stage = kit.Stage(places={"local": (host,)}, op_run_slots={("local", "sequential"): 4})
    first, second = key(kit, 0), key(kit, 1)
    stage.submit(0, uid=UIDS[0])
    stage.up(first)
    token = stage.token(0, UIDS[0])
    stage.reports(kit.running(token), key=first)
    stage.submit(1, uid=UIDS[1])
    stage.disconnect(first)
    stage.connect(second)  # a start that was reported as failed had succeeded
    started(stage)
    assert dismissed(stage) == []
    stage.tell(DriverFound(first, "gone", "its process is gone"))
    assert dismissed(stage) == [second] and started(stage) == []
    stage.disconnect(second)
    assert started(stage) == [first]
    stage.connect(first, kit.running(token))
    assert dismissed(stage) == [] and stage.world.agent(second).phase == "crowded"


def test_a_run_whose_agent_makes_room_gets_no_slot_unless_the_agent_stays(kit):
    host = HostCapacity(
        host="a", slots={"sequential": 2}, agent_mb={"sequential": 100}, memory_mb=250
    )
    stage = kit.Stage(places={"local": (host,)})
    first, second = key(kit, 0), key(kit, 1)
    for n in (0, 2):
        stage.submit(n, uid=UIDS[n])
        stage.up(key(kit, n))
        stage.reports(kit.running(stage.token(n, UIDS[n])), key=key(kit, n))
    stage.submit(1, uid=UIDS[1])
    stage.disconnect(first)
    stage.connect(second)
    stage.tell(DriverFound(first, "gone", "its process is gone"))
    assert dismissed(stage) == [second]
    stage.end(stage.token(2, UIDS[2]))
    assert not stage.job(1, UIDS[1]).live_tasks()
    stage.tell(EvictionRefused(second, stage.epochs[second]))
    assert stage.job(1, UIDS[1]).live_tasks()


def test_an_agent_that_gets_the_slot_of_an_evicted_one_stays(kit):
    """Two agents of one user would make room; the user may have one run, and the second gets its turn."""
    host = HostCapacity(
        host="a",
        slots={"sequential": 1, "parallel": 2},
        agent_mb={"sequential": 100, "parallel": 200},
        memory_mb=450,
    )
    stage = kit.Stage(places={"local": (host,)}, queues=Queues(limits=UserLimits(running=1)))
    first, second, third = key(kit, 0, kind="parallel"), key(kit, 1), key(kit, 1, kind="parallel")
    stage.submit(0, uid=UIDS[0], job_run_mode="parallel")
    stage.up(first)
    stage.submit(2, uid=UIDS[2])
    stage.up(key(kit, 2))
    stage.submit(1, uid=UIDS[1])
    stage.up(second)
    stage.submit(4, uid=UIDS[1], job_run_mode="parallel")
    stage.disconnect(first)
    stage.connect(third)
    stage.tell(RequireAgent(9, third))
    stage.tell(DriverFound(first, "gone", "its process is gone"))
    assert dismissed(stage) == [second]
    assert stage.job(4, UIDS[1]).live_tasks()
    assert stage.world.agent(third).phase == "up"


def test_no_run_waits_where_an_agent_with_executions_waits_for_the_memory(kit):
    places = (
        HostCapacity(
            host="a", slots={"sequential": 4}, agent_mb={"sequential": 100}, memory_mb=150
        ),
        HostCapacity(host="b", slots={"sequential": 1}),
    )
    stage = kit.Stage(places={"local": places})
    _host(stage, "a", up=False)
    stage.submit(0, uid=UIDS[0])
    _host(stage, "a")
    stage.submit(1, uid=UIDS[1])
    stage.up(key(kit, 1))
    stage.reports(kit.running(stage.token(1, UIDS[1])), key=key(kit, 1))
    stage.disconnect(key(kit, 1))
    stage.connect(key(kit, 2))
    stage.tell(DriverFound(key(kit, 1), "gone", "its process is gone"))
    assert dismissed(stage) == [key(kit, 2)]
    stage.submit(3, uid=UIDS[3])
    assert started(stage) == [key(kit, 3, "b")]


def test_nobody_goes_where_that_would_not_help(one, kit):
    idle(one, kit, 0)
    one.submit(1, uid=UIDS[1])
    one.up(key(kit, 1))
    one.tell(RequireAgent(3, key(kit, 2, kind="parallel")))
    assert dismissed(one) == [] and started(one) == []


def test_a_run_goes_where_there_is_memory(kit):
    stage = _stage(kit, 100, 200)
    stage.submit(0, uid=UIDS[0])
    stage.up(key(kit, 0))
    for n in (1, 2, 3):
        stage.submit(n, uid=UIDS[n])
    assert {k.host for k, v in stage.world.agents.items() if v.queued} == {"a", "b"}
    assert told(stage, 3)[0] == "agent_memory"
    waits = next(k for k, v in stage.world.agents.items() if v.phase == "crowded")
    stage.up(key(kit, 1, "b")).up(key(kit, 2, "b"))
    free = 1 if waits.host == "a" else 0
    stage.end(stage.token(free, UIDS[free]))
    assert [k.host for k in dismissed(stage)] == ["b" if free else "a"]
    stage.disconnect(dismissed(stage)[0])
    assert [(k.uid, k.host) for k in started(stage)] == [(UIDS[3], "b" if free else "a")]


@pytest.fixture
def full(kit):
    """Host a has a free slot and no memory for one more agent; host b has memory and no free slot.

    User 0 has the slot of b, and runs on a that wait until this run ends. Agents of user 0 take all
    memory of a: one for these runs, and an idle one for parallel runs.
    """
    places = tuple(
        HostCapacity(
            host=host,
            slots={"sequential": 1, "parallel": 1},
            agent_mb={"sequential": 100, "parallel": 200},
            memory_mb=mb,
        )
        for host, mb in (("a", 300), ("b", 200))
    )
    slots = {("local", kind): 1 for kind in ("sequential", "parallel")}
    stage = kit.Stage(places={"local": places}, op_run_slots=slots)
    stage.submit(0, uid=UIDS[0], job_run_mode="parallel")
    stage.up(key(kit, 0, kind="parallel"))
    stage.end(stage.token(0, UIDS[0]))
    _host(stage, "a", up=False)
    stage.submit(1, uid=UIDS[0])
    stage.up(key(kit, 0, "b"))
    _host(stage, "a")
    _host(stage, "b", up=False)
    stage.submit(2, uid=UIDS[0])
    stage.submit(3, uid=UIDS[0])
    stage.up(key(kit, 0))
    _host(stage, "b")
    return stage


def _host(stage, host, *, up=True):
    stage.tell(HostChanged("local", host, up, "it does not answer"))


def _queue(stage, key):
    return [jid for jid, _ in stage.world.agent(key).queued]


def test_a_run_stays_where_memory_is_being_freed(full, kit):
    """The slot of a is free, and b has the fewer runs: each of the two moves its run to the other."""
    full.submit(1, uid=UIDS[1])
    assert started(full) == [key(kit, 1, "b")]
    full.up(key(kit, 1, "b"))
    assert dismissed(full) == [key(kit, 0, kind="parallel")]
    assert _queue(full, key(kit, 1)) == [kit.jid_of(1, UIDS[1])]
    full.disconnect(key(kit, 0, kind="parallel"))
    assert started(full) == [key(kit, 1)]
    full.up(key(kit, 1))
    assert full.job(1, UIDS[1]).live_tasks()


def test_a_decision_ends_where_another_agent_waits_for_the_memory(full, kit):
    """The run waits on a until the other agent has the memory, and then on b."""
    parallel = key(kit, 1, kind="parallel")
    full.submit(2, uid=UIDS[1], job_run_mode="parallel")
    assert dismissed(full) == [key(kit, 0, kind="parallel")]
    full.submit(1, uid=UIDS[1])
    full.up(key(kit, 1, "b"))
    assert _queue(full, parallel) == [kit.jid_of(2, UIDS[1])]
    assert _queue(full, key(kit, 1)) == [kit.jid_of(1, UIDS[1])]
    full.disconnect(key(kit, 0, kind="parallel"))
    assert started(full) == [parallel]
    assert _queue(full, key(kit, 1, "b")) == [kit.jid_of(1, UIDS[1])]


def test_a_restart_counts_those_that_may_be_there_before_it_starts_others(one, kit):
    one.submit(1, uid=UIDS[1], job_run_mode="parallel")
    one.up(key(kit, 1, kind="parallel"))
    one.submit(0, uid=UIDS[0])
    one.restarted()
    assert started(one) == [] and [e.key for e in one.asked(fx.FindAgent)] == [
        key(kit, 1, kind="parallel")
    ]


def stop(stage, kit, n):
    stage.tell(AgentStopRequested(7, key(kit, n)))


def refused(stage):
    return [e.refusal.code for e in stage.asked(fx.ReplyRefusal)]


def test_an_agent_without_runs_ends_when_its_user_asks(one, kit):
    idle(one, kit, 0)
    stop(one, kit, 0)
    assert (dismissed(one), [e.handle for e in one.asked(fx.AgentReady)], refused(one)) == (
        [key(kit, 0)],
        [7],
        [],
    )
    assert one.world.agent(key(kit, 0)).phase == "leaving"


def test_an_agent_with_runs_is_not_ended_by_request(one, kit):
    one.submit(0, uid=UIDS[0])
    one.up(key(kit, 0))
    stop(one, kit, 0)
    assert (dismissed(one), refused(one)) == ([], ["agentBusy"])


def test_an_agent_that_is_not_connected_cannot_be_told_to_end(one, kit):
    stop(one, kit, 0)
    assert (dismissed(one), refused(one)) == ([], ["agentUnavailable"])
