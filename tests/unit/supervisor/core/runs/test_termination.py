"""Cancels and time limits in every state of a run, and the messages they require."""

import pytest

from jobscribe.db.events.events import StopRequested
from jobscribe.protocol.api.requests import RunCancel
from jobscribe.protocol.ids import Token
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import Cancel, Restarted, cancel_receipt
from jobscribe.supervisor.core.resources.limit_pools import CpuPool
from jobscribe.supervisor.core.runs.termination import REMIND_SECS


def in_state(kit, state: str):
    stage = kit.Stage()
    if state in ("slot", "after"):
        stage.submit(9)
    stage.submit(1, grace_secs=4.0)
    if state == "no agent":
        return stage
    stage.up()
    if state == "slot":
        assert not stage.job().run.attempts
        return stage
    if state == "placed":
        return stage
    stage.reports(kit.running(stage.token()))
    return stage


@pytest.mark.parametrize("state", ["no agent", "slot", "placed", "running"])
def test_an_accepted_cancel_is_final_at_once(kit, state):
    stage = in_state(kit, state)
    decision = stage.cancel()
    assert stage.state() == ("canceled", "cancel")
    assert stage.events()[-2:] == ["StopRequested", "RunEnded"]
    assert len(decision.receipts) == 1
    (reply,) = stage.asked(fx.ReplyStatus)
    assert (reply.jid, reply.serial) == (kit.jid_of(), stage.job().run.serial)
    assert timers.QueueLimit(kit.jid_of(), reply.serial) in stage.cleared()
    stop = next(e for _, e in stage.log if isinstance(e, StopRequested))
    assert (stop.reason, stop.by, stop.grace_secs, cancel_receipt(stop.req_id)) == (
        "cancel",
        kit.UID,
        4.0,
        decision.receipts[0].req_id,
    )


@pytest.mark.parametrize("state", ["no agent", "slot"])
def test_a_queued_run_is_canceled_without_an_agent(kit, state):
    stage = in_state(kit, state)
    stage.cancel()
    assert stage.asked(fx.TaskEffect) == []
    assert not stage.job().busy
    assert (kit.jid_of(), stage.job().run.serial) not in stage.world.agent(kit.key_of()).queued
    assert (kit.jid_of(), stage.job().run.serial) not in stage.world.slots.claims


def test_a_canceled_run_is_not_placed_when_the_agent_comes(kit):
    stage = in_state(kit, "no agent")
    stage.cancel()
    stage.up()
    assert stage.asked(fx.LaunchTask) == []
    assert stage.events().count("TaskPlaced") == 0


@pytest.mark.parametrize("state", ["placed", "running"])
def test_what_may_live_is_told_to_stop_and_asked_again_until_it_is_over(kit, state):
    stage = in_state(kit, state)
    token = stage.token()
    stage.cancel()
    (op,) = stage.asked(fx.StopTask)
    assert (op.token, op.reason, op.grace_secs) == (token, "cancel", 4.0)
    assert stage.timers() == {timers.StopReminder(token): REMIND_SECS + 4.0}
    assert stage.job().busy, "ending it is still owed"
    for _ in range(3):
        stage.fire(timers.StopReminder(token))
        assert stage.asked(fx.StopTask) == [op]
        assert timers.StopReminder(token) in stage.timers()
    stage.reports(kit.ended(token, None, signal=15, stop_reason="cancel"))
    assert timers.StopReminder(token) in stage.cleared()
    stage.fire(timers.StopReminder(token))
    assert stage.effects == []
    assert stage.state() == ("canceled", "cancel")
    assert not stage.job().busy


def test_slots_are_free_only_when_nothing_is_left(kit):
    stage = in_state(kit, "running")
    stage.submit(2)
    token = stage.token(1)
    stage.cancel(1)
    assert not stage.job(2).run.attempts
    stage.reports(kit.ended(token))
    assert stage.job(2).run.attempts


def test_cancel_races_start(kit):
    """The start message was under way: the agent reports the start, then the end. The status never
    goes back.
    """
    stage = in_state(kit, "placed")
    token = stage.token()
    stage.cancel()
    stage.reports(kit.running(token))
    assert stage.state() == ("canceled", "cancel")
    assert [m.token for m in stage.asked(fx.StopTask)] == [token]
    stage.reports(kit.ended(token, None, signal=9, stop_reason="cancel"))
    assert stage.state() == ("canceled", "cancel")
    assert stage.events()[-3:] == ["TaskStarted", "TaskEnded", "AttemptEnded"]


def test_end_races_cancel(kit):
    """The run had completed when the cancel was accepted: it stays canceled, but its exit is
    recorded.
    """
    stage = in_state(kit, "running")
    token = stage.token()
    stage.cancel()
    stage.reports(kit.ended(token, 0))
    assert stage.state() == ("canceled", "cancel")
    assert stage.job().run.exit.code == 0
    assert stage.events()[-2:] == ["TaskEnded", "AttemptEnded"]
    assert [m.tokens for m in stage.asked(fx.AcknowledgeTasks)] == [(token,)]


@pytest.mark.parametrize("code", [0, 3])
def test_cancel_of_an_ended_run_changes_no_run(kit, code):
    stage = in_state(kit, "running")
    stage.reports(kit.ended(stage.token(), code))
    before = len(stage.log)
    stage.cancel()
    (reply,) = stage.asked(fx.ReplyStatus)
    assert reply.serial == stage.job().run.serial
    assert (len(stage.log), stage.asked(fx.TaskEffect)) == (before, [])


def test_cancel_of_another_serial_changes_no_run(kit):
    stage = in_state(kit, "running")
    before = len(stage.log)
    stage.cancel(serial=stage.job().run.serial - 1)
    (reply,) = stage.asked(fx.ReplyStatus)
    assert reply.serial == stage.job().run.serial - 1
    assert (len(stage.log), stage.state()[0]) == (before, "running")


def test_cancel_of_this_serial(kit):
    stage = in_state(kit, "running")
    stage.cancel(serial=stage.job().run.serial)
    assert stage.state() == ("canceled", "cancel")


def test_not_yours_and_not_there_answer_alike(kit):
    stage = in_state(kit, "running")
    before = len(stage.log)
    stage.cancel(1, by=kit.OTHER_UID)
    (foreign,) = stage.asked(fx.ReplyRefusal)
    stage.cancel(7)
    (absent,) = stage.asked(fx.ReplyRefusal)
    assert foreign.refusal.code == absent.refusal.code == "notFound"
    assert foreign.refusal.sentence.replace(kit.jid_of(1), "X") == absent.refusal.sentence.replace(
        kit.jid_of(7), "X"
    )
    assert len(stage.log) == before


def test_a_repeated_cancel_is_answered_for_the_run_it_meant(kit):
    stage = in_state(kit, "running")
    stage.cancel(req_id="cancel-it")
    serial = stage.job().run.serial
    stage.reports(kit.ended(stage.token()))
    stage.submit(force=True)
    before = len(stage.log)
    decision = stage.cancel(req_id="cancel-it")
    (reply,) = stage.asked(fx.ReplyStatus)
    assert reply.serial == serial != stage.job().run.serial
    assert (len(stage.log), decision.receipts) == (before, ())
    assert stage.job().run.active


def test_a_repeated_cancel_that_had_nothing_to_do_does_not_hit_the_next_run(kit):
    """The reply was lost and the user started a new run. The client repeats its cancel of
    "whichever is live".
    """
    stage = in_state(kit, "running")
    stage.reports(kit.ended(stage.token()))
    stage.cancel(req_id="cancel-it")
    stage.submit(force=True)
    stage.cancel(req_id="cancel-it")
    assert stage.job().run.active


def test_a_cancel_with_the_req_id_of_another_job_is_refused(kit):
    """An answer with the other job's serial would look like success, but cancel nothing.
    Submissions follow the same rule.
    """
    stage = in_state(kit, "running")
    stage.submit(2, req_id="request-two")
    stage.cancel(1, req_id="request-two")
    assert stage.refusal() == "conflict"
    assert stage.job(1).run.active


def test_two_cancels_in_one_decision_stop_once(kit):
    stage = in_state(kit, "running")
    stage.tell(
        *(
            Cancel(n, RunCancel(req_id=f"cancel-{n:04d}", uid=kit.UID, compute_jid=kit.jid_of()))
            for n in (91, 92)
        )
    )
    assert stage.events().count("StopRequested") == 1
    assert len(stage.asked(fx.StopTask)) == 1
    assert [e.handle for e in stage.asked(fx.ReplyStatus)] == [91, 92]


# ---- limits


def test_the_queue_limit_of_the_run_or_of_the_house(kit):
    stage = kit.Stage(queue_limit_secs=50.0)
    stage.submit(1)
    stage.submit(2, queue_limit_secs=7.0)
    assert stage.timers()[timers.QueueLimit(kit.jid_of(2), stage.job(2).run.serial)] == 7.0
    stage.pass_time(20)
    stage.restart()
    stage.tell(Restarted())
    pending = stage.timers()
    assert pending[timers.QueueLimit(kit.jid_of(1), stage.job(1).run.serial)] == pytest.approx(30.0)
    assert pending[timers.QueueLimit(kit.jid_of(2), stage.job(2).run.serial)] == 0.0


def test_a_clock_that_was_set_back_makes_the_queue_limit_no_longer_than_it_is(kit):
    stage = kit.Stage()
    stage.submit(1, queue_limit_secs=7.0)
    stage.wall -= 3600
    stage.restart()
    stage.tell(Restarted())
    assert stage.timers()[timers.QueueLimit(kit.jid_of(1), stage.job(1).run.serial)] == 7.0


def test_over_a_restart_of_the_machine_the_queue_limit_counts_by_the_wall_clock(kit):
    """The monotonic clock restarted, so it is lower than at the submission."""
    stage = kit.Stage()
    stage.submit(1, queue_limit_secs=7.0)
    stage.wall, stage.mono, stage.boot_id = stage.wall + 3, 5.0, "boot1"
    stage.restart()
    stage.tell(Restarted())
    name = timers.QueueLimit(kit.jid_of(1), stage.job(1).run.serial)
    assert stage.timers()[name] == 4.0
    stage.wall -= 3600
    stage.restart()
    stage.tell(Restarted())
    assert stage.timers()[name] == 7.0


def test_without_a_queue_limit_there_is_no_timer(stage):
    stage.submit()
    assert not [t for t in stage.timers() if isinstance(t, timers.QueueLimit)]


def test_waited_too_long(stage, kit):
    stage.submit(queue_limit_secs=7.0)
    stage.fire(timers.QueueLimit(kit.jid_of(), stage.job().run.serial))
    assert stage.state() == ("canceled", "queueLimit")
    stop = next(e for _, e in stage.log if isinstance(e, StopRequested))
    assert (stop.by, stop.reason) == ("supervisor", "queueLimit")
    assert not stage.job().busy


def test_a_queue_limit_that_comes_too_late_does_nothing(stage, kit):
    stage.submit(queue_limit_secs=7.0)
    serial = stage.job().run.serial
    stage.up()
    stage.fire(timers.QueueLimit(kit.jid_of(), serial))
    assert stage.state()[0] == "pending"
    stage.fire(timers.QueueLimit(kit.jid_of(), serial - 1))
    stage.fire(timers.QueueLimit(kit.jid_of(5), serial))
    stage.cancel()
    before = len(stage.log)
    stage.fire(timers.QueueLimit(kit.jid_of(), serial))
    assert len(stage.log) == before


@pytest.mark.parametrize(
    ("own", "house", "elapsed", "armed"),
    [
        (100.0, None, 0.0, 109.0),
        (100.0, 50.0, 30.0, 79.0),
        (None, 50.0, 0.0, 59.0),
        (None, None, 0.0, None),
        (10.0, None, 500.0, 0.0),
        (100.0, None, None, 109.0),
    ],
)
def test_second_line_of_the_time_limit(kit, own, house, elapsed, armed):
    """The timer is limit + 5 s slack + 4 s grace - elapsed time."""
    stage = kit.Stage(time_limit_secs=house)
    stage.submit(time_limit_secs=own, grace_secs=4.0)
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token, elapsed=elapsed))
    assert stage.timers().get(timers.TimeLimit(token)) == armed


def test_the_supervisor_steps_in_after_the_time_limit(stage, kit):
    stage.submit(time_limit_secs=10.0)
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    for _ in range(2):
        stage.fire(timers.TimeLimit(token))
        assert stage.state() == ("running", None), (
            "it may be over long since: whoever is there says how it ended"
        )
        (op,) = stage.asked(fx.StopTask)
        assert (op.token, op.reason) == (token, "timeLimit")
        assert timers.TimeLimit(token) in stage.timers(), "it is told again"
    stage.reports(kit.ended(token, None, signal=15, stop_reason="timeLimit"))
    assert stage.state() == ("canceled", "timeLimit")
    assert timers.TimeLimit(token) in stage.cleared()


def test_what_ended_by_itself_before_the_supervisor_stepped_in_is_told_so(stage, kit):
    stage.submit(time_limit_secs=10.0)
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    stage.fire(timers.TimeLimit(token))
    stage.reports(kit.ended(token))
    assert stage.state() == ("completed", "exit")


def test_a_time_limit_that_comes_too_late_does_nothing(stage, kit):
    stage.submit(time_limit_secs=10.0)
    stage.up()
    token = stage.token()
    stage.reports(kit.ended(token))
    before = len(stage.log)
    stage.fire(timers.TimeLimit(token))
    stage.submit(force=True)
    stage.fire(timers.TimeLimit(token))
    assert stage.state()[0] == "pending"
    assert stage.events().count("StopRequested") == 0
    assert len(stage.log) > before


def test_a_limit_timer_of_a_queued_run_does_nothing(stage, kit):
    """The token has no task, so there is nothing to stop."""
    stage.submit()
    stage.fire(timers.TimeLimit(Token(kit.jid_of(), stage.job().run.serial, 1, "main", 0)))
    assert stage.state()[0] == "pending"


def test_reminders_of_what_nobody_knows_do_nothing(stage, kit):
    stage.fire(timers.StopReminder(Token(kit.jid_of(5), 1, 1, "main", 0)))
    assert stage.effects == []


def test_a_run_of_before_that_still_lives_is_reminded_too(stage, kit):
    stage.submit(grace_secs=4.0)
    stage.up()
    old = stage.token()
    stage.cancel()
    stage.submit(force=True)
    stage.fire(timers.StopReminder(old))
    (op,) = stage.asked(fx.StopTask)
    assert op.token == old
    assert timers.StopReminder(old) in stage.timers()


def test_a_cancel_with_the_req_id_of_the_submission_is_refused_and_says_so(stage):
    """Regression: the cancel was taken for a repeated submission, and not carried out."""
    stage.submit(req_id="request-one")
    decision = stage.cancel(req_id="request-one")
    assert stage.refusal() == "conflict"
    assert (decision.writes, decision.receipts) == ((), ())
    stage.cancel(req_id="request-two")
    assert stage.state()[0] == "canceled"


def test_a_submission_with_the_req_id_of_a_cancel_is_refused(stage):
    stage.submit(req_id="request-one")
    stage.cancel(req_id="request-two")
    before = len(stage.log)
    stage.submit(req_id="request-two", force=True)
    assert stage.refusal() == "conflict"
    assert len(stage.log) == before


def test_a_queued_run_leaves_the_queue_at_once_and_without_an_agent(kit):
    """No message is sent, and every run behind it moves up by one."""
    for up in (False, True):
        stage = kit.Stage(
            cpu_slots={("local", "sequential"): 1}, op_run_slots={("local", "sequential"): 9}
        )
        for n in (1, 2, 3):
            stage.submit(n)
        if up:
            stage.up()
        stage.cancel(2)
        assert (stage.state(2), stage.job(2).busy) == (("canceled", "cancel"), False)
        assert stage.asked(fx.StopTask) == []
        ticket = (kit.jid_of(2), stage.job(2).run.serial)
        view = stage.world.agent(kit.key_of())
        assert (
            ticket not in view.queued
            and ticket not in view.asking
            and ticket not in stage.world.slots.claims
        )
        if up:
            (pool,) = [
                p for name, p in stage.world.slots.pools.items() if isinstance(name, CpuPool)
            ]
            assert [t[0] for line in pool.lines.values() for _, t in line] == [kit.jid_of(3)]
