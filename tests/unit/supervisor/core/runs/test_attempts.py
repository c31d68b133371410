"""Attempts: the consequences of each task's end, with any events in between, and no leftovers of
any attempt.

Long random scenarios cover all combinations. At each point where the supervisor is killed, the
state folded from the log leads to the same end. Named cases follow.
"""

import os
from random import Random

import pytest
from gang_scenario import ACTIONS, GangScenario

from jobscribe.db.events.events import (
    AttemptDecided,
    AttemptEnded,
    RunEnded,
    TaskEnded,
    TaskHeld,
    TaskPlaced,
    TaskStarted,
)
from jobscribe.db.events.job_fold import ATTEMPTS_KEPT, ATTEMPTS_WHOLE, evolve
from jobscribe.db.events.state import Retrying
from jobscribe.protocol.ids import Token, op_id
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.roles import Retry
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import Restarted
from jobscribe.supervisor.core.resources.limit_pools import CpuPool
from jobscribe.supervisor.core.status.run_status import status

PLAYS = 400 if os.environ.get("SOAK") == "1" else 24
LENGTH = 120


@pytest.fixture
def stage(kit):
    """Two hosts of four cores each."""
    return kit.Stage(
        nodes={"local": (kit.node(), kit.node("node2"))}, op_run_slots={("local", "parallel"): 4}
    )


def of(stage, type_, n=1):
    return [e for s, e in stage.log if isinstance(e, type_)]


def held(world):
    """Return the slots, cores, memory, GPUs and ports held by runs whose tasks may be live."""
    slots = {t: c.pools[: c.held] for t, c in world.slots.claims.items() if t in world.task_counts}
    seats = {
        t: c.placements
        for room in world.node_pools.values()
        for t, c in room.claims.items()
        if t in world.task_counts
    }
    return slots, seats, world.task_counts, world.followers


def act(play, random):
    play.act(random.choice(ACTIONS), random.randrange(6), random.randrange(6))


@pytest.mark.timeout(600)
def test_long_plays_come_to_the_same_end_wherever_the_supervisor_was_killed(kit):
    """Agent starts are retried many times, so the result does not depend on earlier failures."""
    seen = set()
    for seed in range(PLAYS):
        random, play = Random(seed), GangScenario(kit, agent_start_tries=1_000)
        for _ in range(LENGTH):
            act(play, random)
            if random.random() < 0.2:
                assert held(play.stage.restored()) == held(play.stage.world)
            if random.random() < 0.02:
                play = play.restarted()
            if random.random() < 0.02:
                play.restarted().finish()
        after_restart = play.restarted()
        ends = after_restart.finish()
        assert play.finish() == ends
        seen |= (
            play.seen
            | {(s, r) for all_ in ends.values() for _, s, r in all_}
            | {type(e).__name__ for _, e in play.stage.log}
        )
        seen |= {
            timers.AttemptRetry(e.retry is not None, e.not_retried is not None)
            for _, e in play.stage.log
            if isinstance(e, AttemptEnded)
        }
        seen |= {
            (e.agent_key.host, e.token.attempt > 1)
            for _, e in play.stage.log
            if isinstance(e, TaskPlaced)
        }
        seen |= {
            ("decided", e.succeeded) for _, e in play.stage.log if isinstance(e, AttemptDecided)
        }
    assert seen >= {
        ("completed", "exit"),
        ("error", "exit"),
        ("error", "signal"),
        ("canceled", "cancel"),
        ("canceled", "queueLimit"),
        ("canceled", "dependency"),
        "TaskHeld",
        "DependencyEnded",
        "held off",
        timers.AttemptRetry(True, False),
        ("up", True),
        ("starting", True),
        ("node2", False),
        ("localhost", True),
        ("decided", True),
        ("decided", False),
    }


@pytest.mark.timeout(600)
def test_long_plays_in_which_agents_are_given_up_leave_nothing_behind(kit):
    seen = set()
    for seed in range(PLAYS // 2):
        random, play = Random(1_000 + seed), GangScenario(kit)
        for _ in range(LENGTH):
            act(play, random)
        seen |= {
            (s, r)
            for p in (play.restarted(), play)
            for all_ in p.finish().values()
            for _, s, r in all_
        }
    assert ("error", "agentStartFailed") in seen


# ---- a fixed moment, followed by any event


def wide(kit):
    """Return roles that need both hosts."""
    return kit.role("a", 3), kit.role("b", 3)


def queued(play, kit, **more):
    play.gang(*wide(kit), **more)


def holding(play, kit, **more):
    queued(play, kit, **more)
    play.up("localhost")
    assert play.stage.world.holds


def probing(play, kit, **more):
    holding(play, kit, **more)
    play.up("node2")
    assert len(play.stage.probes) == 2


def half_probed(play, kit, **more):
    probing(play, kit, **more)
    play.probed(play.stage.probes.pop())


def held_off(play, kit, **more):
    holding(play, kit, **more)
    play.stage.pass_time(60.0)
    play.stage.fire(timers.ReservationDeadline(*next(iter(play.stage.world.holds))))
    play.obey()
    assert play.stage.world.gang_backoffs


def no_room(play, kit, **more):
    play.gang(kit.role("big", 8), n=2)
    play.up("localhost", "node2")
    play.all_probed()
    queued(play, kit, **more)
    assert play.stage.tokens(2) and play.stage.world.node_pools["local"].queue


def no_ports(play, kit, **more):
    probing(play, kit, **more)
    play.all_probed(range(30_000, 30_012))
    assert play.stage.world.node_pools["local"].queue and not play.stage.world.holds


def in_array(play, kit, **more):
    play.gang(kit.role("a"), n=2, at_once=1)
    play.up("localhost")
    play.all_probed()
    queued(play, kit, **more)


def dependency(play, kit, **more):
    play.gang(kit.role("first"), n=2)
    queued(play, kit, after=kit.after(2, on="any"), **more)


def placed(play, kit, **more):
    probing(play, kit, **more)
    play.all_probed()
    assert len(play.stage.tokens()) == 6


def running(play, kit, **more):
    placed(play, kit, **more)
    for token in play.stage.tokens():
        play.report(token)


def decided(play, kit, **more):
    running(play, kit, **more)
    play.report(play.stage.tokens()[1], 1)
    assert len(play.stage.tokens()) == 5


def kept(play, kit, **more):
    running(play, kit, debug_secs=40.0, **more)
    for token in play.stage.tokens()[:2]:
        play.report(token, 1)
    assert sum(t.held is not None for t in play.stage.job().live_tasks()) == 2


def all_kept(play, kit, **more):
    running(play, kit, debug_secs=40.0, **more)
    for token in play.stage.tokens():
        play.report(token, 1)
    assert all(t.held is not None for t in play.stage.job().live_tasks())


def between(play, kit, **more):
    running(play, kit, retry=Retry(platform=1), **more)
    play.report(play.stage.tokens()[0], None, signal=9)
    for token in play.stage.tokens():
        play.report(token, 0, stop_reason="decided")
    assert play.stage.job().run.retry and not play.stage.tokens()


def again(play, kit, **more):
    between(play, kit, **more)
    play.stage.fire(timers.AttemptRetry(kit.jid_of(), play.stage.job().run.serial))
    play.obey()
    assert play.stage.world.holds


WAITING = (queued, holding, probing, half_probed, held_off, no_room, no_ports, in_array, dependency)
MOMENTS = (*WAITING, placed, running, decided, kept, all_kept, between, again)


def at(kit, moment, **more):
    play = GangScenario(kit, agent_start_tries=1_000)
    moment(play, kit, **more)
    return play


@pytest.mark.parametrize("moment", MOMENTS)
def test_canceled_at_any_moment_nothing_is_left(kit, moment):
    play = at(kit, moment)
    play.stage.cancel()
    play.obey()
    said = play.stage.state()
    # in this case the task had failed already and was held for debugging
    assert said == (("error", "exit") if moment is all_kept else ("canceled", "cancel"))
    ends = play.restarted().finish()
    assert play.finish() == ends
    assert play.stage.state() == said
    ended = [e.token for e in of(play.stage, TaskEnded)]
    assert len(ended) == len(set(ended)), "no task ends twice"


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_it_goes_on(kit, moment):
    play = at(kit, moment)
    expected = ("error", "exit") if moment in (decided, kept, all_kept) else ("completed", "exit")
    once, twice = play.restarted(), play.restarted().restarted()
    assert once.finish() == twice.finish() == play.finish()
    assert play.stage.state() == once.stage.state() == expected


@pytest.mark.parametrize("lost", ["localhost", "node2"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_agent_is_lost_at_any_moment_and_comes_back(kit, moment, lost):
    play = at(kit, moment)
    key = kit.key_of(kind="parallel", host=lost)
    if play.stage.world.agent(key).phase == "up":
        play.stage.disconnect(key)
        play.obey()
    ends = play.restarted().finish()
    assert play.finish() == ends


@pytest.mark.parametrize("moment", WAITING)
def test_the_queue_limit_ends_what_waits(kit, moment):
    play = at(kit, moment, queue_limit_secs=100.0)
    play.stage.fire(timers.QueueLimit(kit.jid_of(), play.stage.job().run.serial))
    play.obey()
    assert play.stage.state() == ("canceled", "queueLimit")
    assert play.restarted().finish() == play.finish()


@pytest.mark.parametrize("moment", [placed, running, decided, kept, all_kept, between, again])
def test_the_queue_limit_is_not_for_what_was_placed(kit, moment):
    play = at(kit, moment, queue_limit_secs=100.0)
    jid, serial = kit.jid_of(), play.stage.job().run.serial
    assert timers.QueueLimit(jid, serial) not in play.stage.clock
    before = len(play.stage.log)
    play.stage.fire(timers.QueueLimit(jid, serial))
    assert len(play.stage.log) == before


@pytest.mark.parametrize("moment", [placed, running, decided, kept])
def test_a_run_that_takes_the_place_of_a_canceled_one_gets_all_that_it_held(kit, moment):
    """The earlier run keeps its resources, also after a restart. They are released when its last
    task is over.
    """
    play = at(kit, moment)
    play.stage.cancel()
    play.obey()
    play.gang(kit.role("next", 8), force=True)
    live = {t.token.serial for t in play.stage.job().live_tasks()}
    for other in (play, play.restarted()):
        room = other.stage.world.node_pools["local"]
        assert sum(b.cpu for b in room.usage.values()) == len(other.stage.tokens())
        cpu_pools = [p for p in other.stage.world.slots.pools if isinstance(p, CpuPool)]
        assert cpu_pools == [], "a run with roles holds cores, not a CPU slot"
        other.finish()
        assert other.stage.state() == ("completed", "exit")
    assert play.stage.job().run.serial not in live


# ---- named cases


def test_reports_of_an_earlier_attempt_change_nothing(kit, stage):
    tokens = stage.placed(kit.role("a", 2), retry=Retry(platform=2))
    for token in tokens:
        stage.reports(kit.running(token), key=kit.key_of(kind="parallel"))
    stage.end(tokens[0], None, signal=9)
    stage.end(tokens[1], 0, stop_reason="decided")
    stage.fire(timers.AttemptRetry(*kit_ticket(stage)))
    stage.answer()
    second = stage.tokens()
    assert {t.attempt for t in second} == {2}
    before, key = len(stage.log), kit.key_of(kind="parallel")
    for token in (*tokens, *reversed(tokens)):
        stage.reports(kit.ended(token, 0), key=key)
        assert [e.tokens for e in stage.asked(fx.AcknowledgeTasks)] == [(token,)]
        stage.reports(kit.running(token), key=key)
        assert [(e.token, e.reason) for e in stage.asked(fx.StopTask)] == [(token, "lost")]
        stage.reports(kit.starting(token), key=key)
        assert [e.token for e in stage.asked(fx.StopTask)] == [token]
    assert len(stage.log) == before and stage.tokens() == second
    for token in second:
        stage.reports(kit.ended(token, 0), kit.ended(token, 1), kit.running(token), key=key)
    assert stage.state() == ("completed", "exit")
    assert [e.token for e in of(stage, TaskEnded)].count(second[0]) == 1


def kit_ticket(stage):
    job = stage.job()
    return job.jid, job.run.serial


def test_a_host_that_is_lost_takes_the_whole_attempt_with_it(kit, stage):
    tokens = stage.placed(
        kit.role("a", 3), kit.role("b", 3), hosts=("localhost", "node2"), retry=Retry(platform=1)
    )
    here, there = (kit.key_of(kind="parallel", host=h) for h in ("localhost", "node2"))
    for token in tokens:
        stage.reports(kit.running(token), key=stage.world.task(token).agent_key)
    stage.disconnect(there)
    stage.found("gone", there)
    stage.connect(there)
    lost = [e for e in of(stage, TaskEnded) if e.exit.source == "lost"]
    assert {e.token for e in lost} == {
        t.token for a in stage.job().run.attempts for t in a.tasks if t.agent_key == there
    }
    (decided_,) = of(stage, AttemptDecided)
    assert not decided_.succeeded
    left = stage.tokens()
    assert {stage.world.task(t).agent_key for t in left} == {here}
    for token in left:
        stage.end(token, None, signal=15, stop_reason="decided")
    (ended,) = of(stage, AttemptEnded)
    assert (
        ended.retry is not None and ended.retry.behavior == "transient" and ended.reason == "lost"
    )
    stage.fire(timers.AttemptRetry(*kit_ticket(stage)))
    stage.answer()
    for token in stage.tokens():
        assert token.attempt == 2
        stage.end(token)
    assert stage.state() == ("completed", "exit") and not stage.left()


def test_a_task_that_was_shut_down_did_not_succeed_whatever_it_exits_with(kit, stage):
    tokens = stage.placed(kit.role("a", 2, min_succeeded=1), retry=Retry(platform=1))
    stage.end(tokens[0], 0, stop_reason="shutdown")
    (verdict,) = of(stage, AttemptDecided)
    assert (verdict.succeeded, verdict.index) == (False, 0)
    stage.end(tokens[1], 0, stop_reason="decided")
    (over,) = of(stage, AttemptEnded)
    assert (over.reason, over.retry.behavior) == ("shutdown", "transient")


def test_a_time_limit_of_one_task_ends_the_run_and_is_not_tried_again(kit, stage):
    tokens = stage.placed(
        kit.role("a", 2, min_failed=None), retry=Retry(count=-1, platform=-1), time_limit_secs=5.0
    )
    stage.end(tokens[0], 0, stop_reason="timeLimit")
    assert [(e.reason, e.token) for e in stage.asked(fx.StopTask)] == [("decided", tokens[1])]
    stage.end(tokens[1], None, signal=15, stop_reason="decided")
    assert stage.state() == ("canceled", "timeLimit") and not stage.left()
    (ended,) = of(stage, AttemptEnded)
    assert ended.retry is None and stage.job().run.error is None


@pytest.mark.parametrize(
    ("roles", "codes", "state"),
    [
        ([("a", 3, {"min_succeeded": 2})], [0, 0], ("completed", "exit")),
        ([("a", 3, {})], [0, 1], ("error", "exit")),
        ([("a", 3, {"min_failed": 2})], [1, 0, 1], ("error", "exit")),
        ([("a", 3, {"min_failed": 2})], [1, 0, 0], ("completed", "exit")),
        ([("a", 2, {"min_failed": None})], [1, 1], ("completed", "exit")),
        ([("a", 2, {"min_succeeded": 1}), ("b", 1, {})], [0], ("completed", "exit")),
        (
            [("a", 1, {"min_failed": None}), ("b", 2, {"min_succeeded": 2})],
            [5, 0, 0],
            ("completed", "exit"),
        ),
    ],
)
def test_the_completion_policy_decides_at_the_right_end(kit, stage, roles, codes, state):
    tokens = stage.placed(*(kit.role(n, k, **more) for n, k, more in roles))
    for n, (token, code) in enumerate(zip(tokens, codes, strict=False)):
        assert not of(stage, AttemptDecided), f"not before end {n}"
        stage.end(token, code)
    (verdict,) = of(stage, AttemptDecided)
    left = stage.tokens()
    assert {e.token for e in stage.asked(fx.StopTask)} == set(left)
    for token in left:
        stage.end(token, None, signal=15, stop_reason="decided")
    assert stage.state() == state and verdict.succeeded == (state[0] == "completed")
    assert not stage.left()


def test_what_was_decided_is_not_changed_by_what_the_others_do(kit, stage):
    tokens = stage.placed(kit.role("a", 3, min_succeeded=1))
    stage.end(tokens[1], 0)
    stage.end(tokens[0], 7)
    stage.end(tokens[2], None, signal=9)
    assert stage.state() == ("completed", "exit") and stage.job().run.exit.code == 0
    assert len(of(stage, AttemptDecided)) == 1


def test_who_does_not_stop_is_told_again_also_after_a_restart(kit, stage):
    tokens = stage.placed(kit.role("a", 2))
    key = kit.key_of(kind="parallel")
    for token in tokens:
        stage.reports(kit.running(token), key=key)
    stage.end(tokens[0], 1)
    stage.fire(timers.StopReminder(tokens[1]))
    assert [(e.token, e.reason) for e in stage.asked(fx.StopTask)] == [(tokens[1], "decided")]
    stage.restarted()
    stage.connect(key, kit.running(tokens[1]))
    assert [(e.token, e.reason) for e in stage.asked(fx.StopTask)] == [(tokens[1], "decided")]
    stage.end(tokens[1], None, signal=15, stop_reason="decided")
    assert stage.state() == ("error", "exit") and not stage.left()


def test_a_task_that_never_arrived_and_is_not_needed_is_not_launched_after_all(kit, stage):
    tokens = stage.placed(kit.role("a", 3))
    key = kit.key_of(kind="parallel")
    stage.disconnect(key)
    stage.open(key)
    # the agent knows one of the three tasks, which has failed
    stage.snapshot(key, kit.ended(tokens[0], 1))
    if not stage.world.agent(key).synced:
        stage.snapshot(key, kit.ended(tokens[0], 1))
    stage.snapshot(key)
    launched = {t.token for e in stage.asked(fx.LaunchGang) for t in e.tasks}
    assert not launched and {e.token for e in stage.asked(fx.StopTask)} == set(tokens[1:])


def test_retries_are_counted_over_a_restart_and_never_too_many(kit, stage):
    stage.placed(kit.role("a"), retry=Retry(count=2, platform=1))
    how = [{"code": 1}, {"code": None, "signal": 9}, {"code": 1}, {"code": None, "signal": 9}]
    for n, exit_ in enumerate(how):
        (token,) = stage.tokens()
        assert token.attempt == n + 1
        stage.end(token, **exit_)
        if n == 1:
            stage.restarted()
            stage.up(kit.key_of(kind="parallel"))
            assert (
                timers.AttemptRetry(*kit_ticket(stage)) in stage.timers()
                or timers.AttemptRetry(*kit_ticket(stage)) in stage.clock
            )
        if n < 3:
            stage.fire(timers.AttemptRetry(*kit_ticket(stage)))
            stage.answer()
    assert stage.state() == ("error", "signal")
    last = of(stage, AttemptEnded)[-1]
    assert last.not_retried == "no platform retry is left: 1 of 1 used"


def test_the_pause_before_a_retry_goes_on_after_a_restart_as_long_as_is_left_of_it(kit, stage):
    (token,) = stage.placed(kit.role("a"), retry=Retry(count=5))
    ticket = kit_ticket(stage)
    for _ in range(3):
        stage.end(token, 1)
        delay = stage.clock[timers.AttemptRetry(*ticket)]
        stage.fire(timers.AttemptRetry(*ticket))
        stage.answer()
        (token,) = stage.tokens()
    stage.end(token, 1)
    delay = stage.clock[timers.AttemptRetry(*ticket)]
    assert delay == 4.0
    assert status(stage.world, stage.job(), 1, stage.now())["queueState"] == "retry_wait"
    stage.pass_time(1.0)
    stage.wall += 500.0  # the wall clock is set forward
    stage.restarted()
    assert stage.clock[timers.AttemptRetry(*ticket)] == pytest.approx(3.0)
    said = status(stage.world, stage.job(), 1, stage.now())
    assert (
        said["queueState"] == "retry_wait"
        and "attempt 4 ended" in said["jobStatusMessage"]
        and "attempt 5 follows" in said["jobStatusMessage"]
    )
    assert stage.job().status == "pending"
    stage.boot_id, stage.mono = "boot1", 5.0
    stage.restarted()
    assert stage.clock[timers.AttemptRetry(*ticket)] == 0.0, (
        "over a restart of the machine only the wall clock tells"
    )


def test_a_retry_is_enqueued_once_however_often_its_timer_fires(kit, stage):
    (token,) = stage.placed(kit.role("a"), retry=Retry(count=1))
    stage.end(token, 1)
    for _ in range(3):
        stage.fire(timers.AttemptRetry(*kit_ticket(stage)))
    stage.answer()
    assert [t.attempt for t in stage.tokens()] == [2]
    stage.fire(timers.AttemptRetry(*kit_ticket(stage)))
    assert [t.attempt for t in stage.tokens()] == [2]


def many_attempts(kit, stage, count):
    """Create a run with unlimited retries that has failed `count` times."""
    stage.gang(kit.role("a"), retry=Retry(count=-1, platform=-1))
    job, jid, key = stage.job(), kit.jid_of(), kit.key_of(kind="parallel")
    serial = job.run.serial
    events = []
    for number in range(1, count + 1):
        token, at = Token(jid, serial, number, "a", 0), kit.WALL + number
        again_ = Retrying(at=at, delay_secs=1.0, behavior="unknown", reason="because")
        events += [
            TaskPlaced(
                at=at,
                token=token,
                agent_key=key,
                op_id=op_id(token, "run"),
                ports={"http": (30_000,), "ssh": (30_001,)},
            ),
            TaskStarted(
                at=at, token=token, pid=5, start_ticks=6, started_at=at, host="h", boot_id="b"
            ),
            TaskEnded(at=at, token=token, exit=ExitInfo(code=1)),
            AttemptEnded(at=at, serial=serial, attempt=number, reason="exit", retry=again_),
        ]
    for event in events:
        job = evolve(job, event)
    return job, events


def test_a_run_that_is_tried_again_without_end_does_not_grow_without_end(kit, stage):
    job, events = many_attempts(kit, stage, ATTEMPTS_KEPT + 60)
    assert len(job.run.attempts) == ATTEMPTS_KEPT and job.run.attempt == ATTEMPTS_KEPT + 60
    assert sum(bool(a.tasks) for a in job.run.attempts) == ATTEMPTS_WHOLE
    stage.log += [("job/" + job.jid, e) for e in events]
    stage.restart()
    assert stage.job() == job
    stage.tell(Restarted())
    stage.fire(timers.AttemptRetry(*kit_ticket(stage)))
    stage.up(kit.key_of(kind="parallel"))
    stage.answer()
    (token,) = stage.tokens()
    assert token.attempt == ATTEMPTS_KEPT + 61
    # late reports about an attempt that is no longer stored
    old = Token(job.jid, token.serial, 3, "a", 0)
    stage.reports(kit.ended(old, 0), key=kit.key_of(kind="parallel"))
    assert [e.tokens for e in stage.asked(fx.AcknowledgeTasks)] == [(old,)]
    stage.end(token, 1)
    (reason,) = [e.retry.reason for e in of(stage, AttemptEnded)[-1:]]
    assert "no limit" in reason
    stage.fire(timers.AttemptRetry(*kit_ticket(stage)))
    stage.answer()
    stage.end(stage.tokens()[0], 0)
    assert stage.state() == ("completed", "exit") and not stage.left()


def test_a_plain_run_has_one_attempt_and_none_is_decided(kit, wide):
    wide.submit()
    wide.up()
    wide.reports(kit.ended(wide.token(), 3))
    assert not of(wide, AttemptDecided) and not of(wide, TaskHeld)
    (ended,) = of(wide, AttemptEnded)
    assert ended.retry is None and [e.status for e in of(wide, RunEnded)] == ["error"]
