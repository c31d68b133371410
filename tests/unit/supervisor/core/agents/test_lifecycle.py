"""Agent lifecycle: who starts an agent, how failures are handled, and that a missing reply
alone proves nothing.
"""

import pytest

from jobscribe.protocol.wire.messages import KeeperReport
from jobscribe.supervisor.core.agents.lifecycle import GIVEN_UP, PATIENT_SECS, RETRY_SECS
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import (
    AgentConnected,
    DriverFailed,
    DriverStarted,
    DriverStopped,
    Restarted,
)
from jobscribe.supervisor.core.resources.host_selection import HostCapacity
from jobscribe.supervisor.core.state.transaction import token_hash
from jobscribe.supervisor.core.status.run_status import knowledge, waiting


def fail(stage, kit, reason="no room", key=None):
    key = key or kit.key_of()
    stage.tell(DriverFailed(key, stage.world.agent(key).record.attempt, reason))


def busy(kit, **policy):
    """Return a stage with one running execution, whose agent is up."""
    stage = kit.Stage(**policy)
    stage.submit()
    stage.up()
    stage.reports(kit.running(stage.token()))
    return stage


# ---- starting


def test_an_agent_is_started_once_for_many_runs(stage, kit):
    stage.submit(1)
    (start,) = stage.asked(fx.StartAgent)
    assert (start.key, start.attempt) == (kit.key_of(), 1)
    assert (
        stage.timers()[timers.AgentStartDeadline(kit.key_of(), 1)] == stage.policy.agent_start_secs
    )
    stage.submit(2)
    assert stage.asked(fx.StartAgent) == []
    stage.started()
    stage.submit(3)
    assert stage.asked(fx.StartAgent) == []
    assert stage.agent_events() == ["AgentStartRequested", "AgentStarted"]


def test_an_agent_has_its_time_from_when_its_driver_started_it_where_starts_take_their_turn(kit):
    """With 50 users starting at once on one host, the last agent's deadline starts when its driver
    starts it.
    """
    stage = kit.Stage(driver_start_secs={"local": 600.0})
    stage.submit(1)
    assert stage.timers()[timers.AgentStartDeadline(kit.key_of(), 1)] == 600.0
    stage.started()
    assert (
        stage.timers()[timers.AgentStartDeadline(kit.key_of(), 1)] == stage.policy.agent_start_secs
    )
    stage.fire(timers.AgentStartDeadline(kit.key_of(), 1))
    assert len(stage.asked(fx.StopAgent)) == 1


def test_a_driver_that_never_says_how_a_start_went_is_given_up(kit):
    stage = kit.Stage(driver_start_secs={"local": 600.0}, agent_start_tries=1)
    stage.submit(1)
    stage.fire(timers.AgentStartDeadline(kit.key_of(), 1))
    assert stage.state()[0] == "error"


def test_the_log_has_the_hash_of_the_token_and_never_the_token(stage, kit):
    stage.submit(1)
    (start,) = stage.asked(fx.StartAgent)
    record = stage.record(kit.key_of())
    assert record.token_hashes == (token_hash(start.token),)
    assert start.token not in repr(stage.log)


def test_each_start_has_a_token_of_its_own(stage, kit):
    decision = stage.tell(
        stage.submission(kit.spec(1)), stage.submission(kit.spec(1, kit.OTHER_UID))
    )
    tokens = {e.token for e in decision.effects if isinstance(e, fx.StartAgent)}
    assert len(tokens) == 2


def test_another_host_by_policy(kit):
    stage = kit.Stage(places={"local": (HostCapacity(host="node7", slots={}),)})
    stage.submit()
    (start,) = stage.asked(fx.StartAgent)
    assert start.key.host == "node7"


def test_failed_starts_are_tried_again_with_growing_pauses(kit):
    stage = kit.Stage(agent_start_tries=7)
    stage.submit()
    waits = []
    for attempt in range(1, 7):
        fail(stage, kit)
        assert timers.AgentStartDeadline(kit.key_of(), attempt) in stage.cleared()
        waits.append(stage.timers()[timers.AgentStartRetry(kit.key_of(), attempt)])
        assert stage.asked(fx.StartAgent) == []
        stage.fire(timers.AgentStartRetry(kit.key_of(), attempt))
        (start,) = stage.asked(fx.StartAgent)
        assert start.attempt == attempt + 1
    assert tuple(waits) == (*RETRY_SECS, RETRY_SECS[-1])
    assert stage.state()[0] == "pending"


def test_giving_up_ends_the_queued_runs_with_the_reason(stage, kit):
    stage.submit(1, queue_limit_secs=99.0)
    stage.submit(2)
    for attempt in (1, 2):
        fail(stage, kit)
        stage.fire(timers.AgentStartRetry(kit.key_of(), attempt))
    fail(stage, kit, "the image is gone")
    for n in (1, 2):
        assert stage.state(n) == ("error", "agentStartFailed")
        assert "the image is gone" in stage.job(n).run.error
        assert not stage.job(n).busy
    assert timers.QueueLimit(kit.jid_of(1), stage.job(1).run.serial) in stage.cleared()
    assert stage.timers() == {}
    view = stage.world.agent(kit.key_of())
    assert (view.phase, view.queued, view.failures) == ("absent", {}, 0)
    stage.submit(3)
    assert [e.attempt for e in stage.asked(fx.StartAgent)] == [4]


def test_giving_up_never_ends_a_run_whose_execution_may_live(kit):
    stage = busy(kit)
    stage.submit(2)
    stage.disconnect()
    stage.found("gone")
    for attempt in (2, 3, 4):
        fail(stage, kit)
        if attempt < 4:
            stage.fire(timers.AgentStartRetry(kit.key_of(), attempt))
    assert stage.state(2) == ("error", "agentStartFailed")
    assert stage.state(1) == ("running", None)
    assert stage.timers()[timers.AgentStartRetry(kit.key_of(), 4)] == PATIENT_SECS
    stage.fire(timers.AgentStartRetry(kit.key_of(), 4))
    assert [e.attempt for e in stage.asked(fx.StartAgent)] == [5]


def test_an_execution_that_may_live_is_looked_for_at_the_usual_pace_first(kit):
    """Adoption within ten seconds is promised, so one failed start must not cost a minute."""
    stage = busy(kit)
    stage.disconnect()
    stage.found("gone")
    fail(stage, kit)
    assert stage.timers()[timers.AgentStartRetry(kit.key_of(), 2)] == RETRY_SECS[0]


def test_a_connection_forgets_the_failures(kit):
    stage = kit.Stage(agent_start_tries=2)
    stage.submit(1)
    fail(stage, kit)
    stage.fire(timers.AgentStartRetry(kit.key_of(), 1))
    stage.up()
    stage.disconnect()
    stage.found("gone")
    fail(stage, kit)
    assert stage.state()[0] == "pending"
    assert stage.world.agent(kit.key_of()).failures == 1


@pytest.mark.parametrize("attempt", [0, 2])
def test_words_about_another_attempt_change_nothing(stage, kit, attempt):
    stage.submit()
    before = len(stage.log)
    stage.tell(DriverStarted(kit.key_of(), attempt, {"pid": 1}))
    stage.tell(DriverFailed(kit.key_of(), attempt, "x"))
    stage.fire(timers.AgentStartDeadline(kit.key_of(), attempt))
    stage.fire(timers.AgentStartRetry(kit.key_of(), attempt))
    assert len(stage.log) == before
    assert stage.effects == []


def test_started_is_said_twice(stage, kit):
    stage.submit()
    stage.started()
    before = len(stage.log)
    stage.started()
    assert len(stage.log) == before


def test_a_retry_timer_of_a_start_under_way_does_nothing(stage, kit):
    stage.submit()
    stage.fire(timers.AgentStartRetry(kit.key_of(), 1))
    assert stage.effects == []
    stage.up()
    stage.fire(timers.AgentStartRetry(kit.key_of(), 1))
    assert stage.effects == []


def test_a_retry_for_which_nobody_waits_any_more_starts_nothing(stage, kit):
    stage.submit()
    fail(stage, kit)
    stage.cancel()
    stage.fire(timers.AgentStartRetry(kit.key_of(), 1))
    assert stage.asked(fx.StartAgent) == []
    assert stage.world.agent(kit.key_of()).phase == "absent"


def test_a_failure_for_which_nobody_waits_any_more(stage, kit):
    stage.submit()
    stage.cancel()
    fail(stage, kit)
    assert stage.timers() == {}
    assert stage.world.agent(kit.key_of()).phase == "absent"


# ---- the start's deadline


def test_no_word_at_all_by_the_deadline_counts_as_failed(stage, kit):
    stage.submit()
    stage.fire(timers.AgentStartDeadline(kit.key_of(), 1))
    assert stage.agent_events()[-1] == "AgentStartFailed"
    assert timers.AgentStartRetry(kit.key_of(), 1) in stage.timers()


def test_word_of_a_start_that_comes_after_the_deadline_is_not_lost(stage, kit):
    """The agent was slow, not dead: its handle is needed to find it; no second start is needed."""
    stage.submit()
    stage.fire(timers.AgentStartDeadline(kit.key_of(), 1))
    stage.started()
    assert stage.record(kit.key_of()).handle == {"pid": 9}
    stage.fire(timers.AgentStartRetry(kit.key_of(), 1))
    assert stage.asked(fx.StartAgent) == []
    assert len(stage.asked(fx.FindAgent)) == 1


def test_started_but_not_connected_is_ended_and_counts_as_failed(stage, kit):
    stage.submit()
    stage.started()
    stage.fire(timers.AgentStartDeadline(kit.key_of(), 1))
    (stop,) = stage.asked(fx.StopAgent)
    assert (stop.key, stop.handle) == (kit.key_of(), {"pid": 9})
    stage.submit(2)
    assert stage.asked(fx.StartAgent) == []
    stage.fire(timers.AgentStartDeadline(kit.key_of(), 1))
    assert stage.asked(fx.StopAgent) == [stop], "nobody said that it is done: asked again"
    stage.tell(DriverStopped(kit.key_of()))
    assert timers.AgentStartDeadline(kit.key_of(), 1) in stage.cleared()
    assert stage.agent_events()[-2:] == ["AgentStartFailed", "AgentGone"]
    assert stage.record(kit.key_of()).handle is None
    stage.fire(timers.AgentStartRetry(kit.key_of(), 1))
    assert [e.attempt for e in stage.asked(fx.StartAgent)] == [2]
    before = len(stage.log)
    stage.tell(DriverStopped(kit.key_of()))
    assert len(stage.log) == before


def test_one_that_is_being_ended_gets_no_work(stage, kit):
    """The agent connects while it is being stopped. A run placed there now would be killed."""
    stage.submit()
    stage.started()
    stage.fire(timers.AgentStartDeadline(kit.key_of(), 1))
    stage.connect()
    assert stage.events() == ["RunRequested"]
    stage.tell(DriverStopped(kit.key_of()))
    stage.fire(timers.AgentStartRetry(kit.key_of(), 1))
    assert [e.attempt for e in stage.asked(fx.StartAgent)] == [2]


def test_one_that_may_hold_executions_is_not_ended_but_looked_for(kit):
    stage = busy(kit)
    stage.disconnect()
    stage.found("gone")
    stage.started()
    stage.fire(timers.AgentStartDeadline(kit.key_of(), 2))
    assert stage.asked(fx.StopAgent) == []
    (find,) = stage.asked(fx.FindAgent)
    assert find.handle == {"pid": 9}
    stage.found("gone")
    assert [e.attempt for e in stage.asked(fx.StartAgent)] == [3]


def test_a_deadline_after_it_connected_does_nothing(stage, kit):
    stage.submit()
    stage.up()
    assert stage.world.agent(kit.key_of()).phase == "up"
    stage.fire(timers.AgentStartDeadline(kit.key_of(), 1))
    assert stage.effects == []


def test_it_may_connect_before_the_driver_says_that_it_started(stage, kit):
    stage.submit()
    stage.connect()
    assert stage.asked(fx.LaunchTask)
    stage.started()
    assert stage.record(kit.key_of()).handle == {"pid": 9}
    assert stage.world.agent(kit.key_of()).phase == "up"


# ---- gone, alive, unknown


def test_an_idle_agent_that_goes_is_let_go(stage, kit):
    stage.submit()
    stage.up()
    stage.reports(kit.ended(stage.token()))
    stage.disconnect()
    assert stage.effects == []
    assert stage.world.agent(kit.key_of()).phase == "absent"
    stage.submit(2)
    (find,) = stage.asked(fx.FindAgent)
    assert find.handle == {"pid": 9}


def test_one_that_is_needed_is_looked_for_at_once(kit):
    stage = busy(kit)
    stage.disconnect()
    assert len(stage.asked(fx.FindAgent)) == 1
    assert stage.state() == ("running", None)


def test_gone_lets_a_new_one_start_and_its_snapshot_adopts(kit):
    stage = busy(kit)
    token = stage.token()
    stage.disconnect()
    stage.found("gone")
    assert stage.agent_events()[-2:] == ["AgentGone", "AgentStartRequested"]
    assert len(stage.record(kit.key_of()).token_hashes) == 2, (
        "the driver may be wrong, and the next start finds the old one"
    )
    stage.started()
    stage.connect(None, kit.running(token))
    assert stage.state() == ("running", None)
    assert stage.asked(fx.LaunchTask) == []
    stage.reports(kit.ended(token))
    assert stage.state() == ("completed", "exit")


def test_gone_and_not_needed_any_more_starts_nothing(stage, kit):
    stage.submit()
    stage.up()
    stage.reports(kit.ended(stage.token()))
    stage.disconnect()
    stage.submit(2)
    stage.cancel(2)
    stage.found("gone")
    assert stage.asked(fx.StartAgent) == []
    assert stage.world.agent(kit.key_of()).phase == "absent"


@pytest.mark.parametrize("said", ["alive", "unknown"])
def test_anything_but_gone_means_wait_and_ask_again(kit, said):
    stage = busy(kit)
    for _ in range(5):
        stage.disconnect() if stage.world.agent(kit.key_of()).phase == "up" else stage.fire(
            timers.AgentReturnDeadline(kit.key_of())
        )
        assert len(stage.asked(fx.FindAgent)) == 1
        stage.found(said)
        assert stage.timers() == {
            timers.AgentReturnDeadline(kit.key_of()): stage.policy.agent_return_secs
        }
        assert stage.asked(fx.StartAgent) == []
        stage.fire(timers.LaunchDeadline(stage.token()))
    assert stage.state() == ("running", None)
    assert not {"TaskEnded", "RunEnded"} & set(stage.events())


def test_away_and_back(kit):
    stage = busy(kit)
    token = stage.token()
    stage.disconnect()
    stage.found("alive")
    stage.connect(None, kit.running(token))
    assert stage.world.agent(kit.key_of()).phase == "up"
    stage.fire(timers.AgentReturnDeadline(kit.key_of()))
    assert stage.effects == []


def test_a_return_deadline_for_which_nobody_waits_any_more(stage, kit):
    stage.submit()
    stage.up()
    stage.reports(kit.ended(stage.token()))
    stage.disconnect()
    stage.submit(2)
    stage.found("alive")
    stage.cancel(2)
    stage.fire(timers.AgentReturnDeadline(kit.key_of()))
    assert stage.effects == []
    assert stage.world.agent(kit.key_of()).phase == "absent"


def test_it_connects_while_it_is_looked_for(kit):
    stage = busy(kit)
    token = stage.token()
    stage.disconnect()
    stage.connect(None, kit.running(token))
    before = len(stage.log)
    stage.found("gone")
    assert len(stage.log) == before
    assert stage.world.agent(kit.key_of()).phase == "up"


# ---- connections


def test_a_second_connection_ends_the_older_and_is_counted(kit):
    stage = busy(kit)
    token = stage.token()
    stage.submit(2)
    stage.open(kit.key_of())
    assert stage.counted() == ["agentReplaced"]
    assert [(e.key, e.epoch) for e in stage.asked(fx.EndConnection)] == [(kit.key_of(), 1)]
    assert not stage.world.agent(kit.key_of()).synced
    stage.snapshot(kit.key_of(), kit.running(token))
    assert stage.world.agent(kit.key_of()).synced
    stage.reports(kit.ended(token))
    assert stage.job(2).run.attempts


def test_a_second_connection_takes_its_queued_runs_out_of_the_queue_until_it_has_said_everything(
    stage, kit
):
    """Otherwise a slot that becomes free goes to an agent whose running tasks are not known yet."""
    mine, other = kit.key_of(), kit.key_of(kit.OTHER_UID)
    stage.submit(1, uid=kit.OTHER_UID)
    stage.up(other)
    stage.submit(2)
    stage.up(mine)
    stage.open(mine)
    stage.reports(kit.ended(stage.token(1, kit.OTHER_UID)), key=other)
    assert not stage.job(2).run.attempts
    stage.snapshot(mine)
    assert stage.job(2).run.attempts


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_older_connection_does_not_replace_a_newer(kit, epoch):
    stage = busy(kit)
    stage.tell(AgentConnected(kit.key_of(), epoch, kit.alive(kit.key_of())))
    assert [(e.epoch, e.reason) for e in stage.asked(fx.EndConnection)] == [
        (epoch, "an older connection")
    ]
    assert stage.world.agent(kit.key_of()).epoch == 1
    assert stage.world.agent(kit.key_of()).synced


def test_what_an_older_connection_says_is_counted_and_dropped(kit):
    stage = busy(kit)
    token = stage.token()
    stage.open(kit.key_of())
    stage.snapshot(kit.key_of(), kit.running(token))
    stage.epochs[kit.key_of()] = 1
    before = len(stage.log)
    stage.reports(kit.ended(token, 5))
    assert stage.counted() == ["staleEpoch"]
    stage.disconnect()
    assert len(stage.log) == before
    assert stage.world.agent(kit.key_of()).phase == "up"


def test_what_one_says_that_is_not_connected_is_dropped(kit):
    stage = busy(kit)
    token = stage.token()
    stage.disconnect()
    stage.reports(kit.ended(token, 5))
    assert stage.counted() == ["staleEpoch"]
    assert stage.state() == ("running", None)


def test_since_when_nobody_knows(kit):
    """`unknown_since` is the first connection loss, and lasts until a snapshot is complete."""
    stage = busy(kit)
    view = stage.world.agent(kit.key_of())
    token = stage.token()
    assert view.unknown_since is None
    stage.pass_time(10)
    lost = stage.wall
    stage.disconnect()
    assert view.unknown_since == lost
    stage.pass_time(10)
    stage.open(kit.key_of())
    assert view.unknown_since == lost
    stage.pass_time(10)
    stage.disconnect()
    assert view.unknown_since == lost
    stage.connect(None, kit.running(token))
    assert view.unknown_since is None
    stage.pass_time(10)
    stage.open(kit.key_of())
    assert view.unknown_since == stage.wall
    stage.snapshot(kit.key_of(), kit.ended(token))
    stage.disconnect()
    assert view.unknown_since is None, "nothing is there that one could not know of"


# ---- restart


def test_after_a_restart_the_agents_that_are_needed_are_looked_for(kit):
    stage = busy(kit)
    stage.submit(5, uid=kit.OTHER_UID)
    stage.restart()
    stage.tell(Restarted())
    assert [(e.key, e.handle) for e in stage.asked(fx.FindAgent)] == [(kit.key_of(), {"pid": 9})]
    assert [(e.key, e.attempt) for e in stage.asked(fx.StartAgent)] == [
        (kit.key_of(kit.OTHER_UID), 2)
    ]
    assert stage.world.agent(kit.key_of()).unknown_since == stage.wall
    stage.tell(Restarted())
    assert [e for e in stage.effects if not isinstance(e, fx.SetTimer)] == [], (
        "what is under way is not asked for twice"
    )


def test_after_a_restart_an_agent_that_is_there_already_is_left_alone(kit):
    stage = busy(kit)
    stage.restart()
    stage.tell(AgentConnected(kit.key_of(), 7, kit.alive(kit.key_of())), Restarted())
    assert not stage.asked(fx.FindAgent) and not stage.asked(fx.StartAgent)


def test_after_a_restart_an_idle_agent_is_left_alone(stage, kit):
    stage.submit()
    stage.up()
    stage.reports(kit.ended(stage.token()))
    stage.restart()
    stage.tell(Restarted())
    assert stage.effects == []


def test_giving_up_many_runs_leaves_room_for_others_in_between(kit):
    """Runs are given up in batches. A run submitted later is not given up."""
    stage = kit.Stage(agent_start_tries=1)
    count = 2 * GIVEN_UP + 3
    stage.tell(*(stage.submission(kit.spec(n)) for n in range(count)))
    ended = lambda: sum(stage.job(n).status == "error" for n in range(count))
    fail(stage, kit)
    assert ended() == GIVEN_UP
    next_: dict = {
        t: secs for t, secs in stage.timers().items() if isinstance(t, timers.QueueGiveUp)
    }
    stage.submit(count)
    for done in (2 * GIVEN_UP, count):
        ((timer, secs),) = next_.items()
        assert secs == 0.0
        stage.fire(timer)
        assert ended() == done
        next_ = {t: secs for t, secs in stage.timers().items() if isinstance(t, timers.QueueGiveUp)}
    assert next_ == {}
    assert stage.state(count)[0] == "pending"


# ---- keepers that do not answer


def silent(**fields):
    return KeeperReport(answers=False, since=1_700_000_005.0, **fields)


def test_while_its_keeper_is_silent_an_agent_knows_nothing_and_gets_no_work(kit):
    stage = kit.Stage(
        cpu_slots={("local", "sequential"): 4}, op_run_slots={("local", "sequential"): 4}
    )
    stage.submit(1)
    stage.up()
    stage.reports(kit.running(stage.token()))
    stage.says(silent(stopped=True))
    run = stage.job().run
    assert knowledge(stage.world, stage.job(), run) == (False, 1_700_000_005.0)
    stage.submit(2)
    assert stage.asked(fx.LaunchTask) == [] and stage.state(2)[0] == "pending"
    queue, sentence = waiting(stage.world, stage.job(2), stage.job(2).run, stage.now())
    assert (
        queue == "agent"
        and "its keeper, pid 9 on node1, does not answer" in sentence
        and "a signal has stopped it" in sentence
    )
    stage.says(KeeperReport(answers=True))
    assert len(stage.asked(fx.LaunchTask)) == 1 and stage.job(2).run.attempts
    assert knowledge(stage.world, stage.job(), run) == (True, None)


def test_who_asked_for_slots_of_an_agent_gives_them_to_others_when_its_keeper_falls_silent(kit):
    stage = kit.Stage(
        cpu_slots={("local", "sequential"): 1}, op_run_slots={("local", "sequential"): 4}
    )
    stage.submit(1)
    stage.up()
    stage.reports(kit.running(stage.token()))
    stage.submit(2)
    stage.submit(1, uid=kit.OTHER_UID)
    stage.up(kit.key_of(kit.OTHER_UID))
    stage.says(silent())
    stage.end(stage.token(1))
    assert [e.token.jid for e in stage.asked(fx.LaunchTask)] == [kit.jid_of(1, kit.OTHER_UID)]


def test_a_silence_ends_with_its_connection_and_is_the_time_since_when_nothing_is_known(kit):
    stage = busy(kit)
    stage.says(silent())
    stage.disconnect()
    view = stage.world.agent(kit.key_of())
    assert (view.keeper, view.unknown_since) == (None, 1_700_000_005.0)
    stage.found("gone")
    assert len(stage.asked(fx.StartAgent)) == 1


def test_a_silence_that_is_told_before_the_first_snapshot_leaves_no_moment_of_false_knowledge(kit):
    stage = busy(kit)
    stage.disconnect()
    stage.found("alive")
    stage.open(kit.key_of())
    stage.says(silent())
    stage.snapshot(kit.key_of(), kit.running(stage.token()))
    assert knowledge(stage.world, stage.job(), stage.job().run)[0] is False


def test_with_a_batch_scheduler_a_silent_keeper_changes_nothing(kit):
    stage = kit.Stage(batch=frozenset({"local"}))
    stage.submit()
    key = stage.world.key_of(stage.job().run)
    stage.up(key)
    stage.says(silent(), key)
    assert stage.world.agent(key).keeper is None
