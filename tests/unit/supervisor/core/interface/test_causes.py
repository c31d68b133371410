"""The cause of each effect: the event, or else the input, because of which it was requested.

The harness also checks in every test of the core that each named event is in the log.
"""

import typing

import msgspec
import pytest

from jobscribe.db.events.events import agent_stream, job_stream
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.wire.messages import RunStatusUpdate
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.causes import Cause, EventId
from jobscribe.supervisor.core.interface.inputs import (
    AgentMessage,
    DriverFailed,
    FramesLost,
    RequireAgent,
    Restarted,
    TimerFired,
)

KEY = AgentKey("local", "sequential", "user0001", "localhost")
TOKEN = Token("user0001-sim00001-command", 1, 1, "main", 0)


def causes(decision, type_):
    """Return the causes of the effects of this type, as log lines show them."""
    return [str(c.cause) for c in decision.caused if isinstance(c.effect, type_)]


def ends(kit, stage, n):
    token = stage.token(n)
    return AgentMessage(KEY, stage.epochs[KEY], RunStatusUpdate(execution=kit.ended(token)))


# ---- the rule


def test_the_cause_is_the_latest_event_of_the_same_job_or_agent(stage):
    decision = stage.submit(1)
    assert causes(decision, fx.ReplyStatus) == ["RunRequested@1"]
    assert causes(decision, fx.StartAgent) == ["AgentStartRequested@1"]
    assert causes(decision, fx.SetTimer) == ["AgentStartRequested@1"]
    (reply,) = [c for c in decision.caused if isinstance(c.effect, fx.ReplyStatus)]
    assert reply.cause == Cause(EventId("job/user0001-sim00001-command", 1), "RunRequested")


def test_an_input_that_ends_one_job_and_starts_another_is_no_cause_of_both(kit, stage):
    stage.submit(1)
    stage.submit(2)
    stage.up()
    decision = stage.tell(ends(kit, stage, 1))
    assert causes(decision, fx.LaunchTask) == ["TaskPlaced@2"], "the placement of the second job"
    assert causes(decision, fx.AcknowledgeTasks) == ["RunEnded@6"], "the end of the first job"


def test_an_effect_of_no_recorded_job_or_agent_follows_from_the_latest_event(stage):
    stage.tell(RequireAgent(5, KEY))
    for attempt in range(1, stage.policy.agent_start_tries):
        stage.tell(DriverFailed(KEY, attempt, "no fork"))
        stage.fire(timers.AgentStartRetry(KEY, attempt))
    decision = stage.tell(DriverFailed(KEY, stage.policy.agent_start_tries, "no fork"))
    failed = 2 * stage.policy.agent_start_tries
    assert causes(decision, fx.ReplyRefusal) == [f"AgentStartFailed@{failed}"]


def test_without_an_event_the_cause_is_the_input(stage):
    stage.submit(1)
    stage.up()
    assert causes(stage.tell(RequireAgent(5, KEY)), fx.AgentReady) == ["RequireAgent"]
    lost = stage.tell(FramesLost(KEY, stage.epochs[KEY]))
    assert causes(lost, fx.ListTasks) == ["FramesLost"]


def test_an_effect_before_the_first_event_follows_from_the_input(kit, stage):
    stage.submit(1)
    stage.up()
    token = stage.token(1)
    decision = stage.tell(ends(kit, stage, 1))
    (first, *_) = [c for c in decision.caused if isinstance(c.effect, fx.ClearTimer)]
    assert first.effect.timer == timers.LaunchDeadline(token) and str(first.cause) == "AgentMessage"


def test_events_of_another_input_of_the_same_decision_are_no_cause(kit, stage):
    stage.submit(1)
    stage.up()
    decision = stage.tell(ends(kit, stage, 1), FramesLost(KEY, stage.epochs[KEY]))
    assert causes(decision, fx.ListTasks) == ["FramesLost"]


def test_followers_are_checked_because_of_the_end_whichever_input_comes_last(kit, stage):
    stage.submit(1)
    stage.submit(2, after=kit.after(1))
    stage.up()
    decision = stage.tell(ends(kit, stage, 1), FramesLost(KEY, stage.epochs[KEY]))
    (check,) = [
        c
        for c in decision.caused
        if c.effect == fx.SetTimer(timers.FollowerCheck(kit.jid_of(1)), 0.0)
    ]
    assert str(check.cause) == "RunEnded@6"


def test_a_timer_passes_on_its_cause_and_an_event_replaces_it(kit, stage):
    stage.submit(1)
    stage.up()
    token = stage.token(1)
    stage.reports(kit.running(token))
    asked = stage.cancel(1)
    assert causes(asked, fx.StopTask) == ["RunEnded@5"]
    (timer,) = [
        c
        for c in asked.caused
        if c.effect.__class__ is fx.SetTimer and c.effect.timer == timers.StopReminder(token)
    ]
    again = stage.tell(TimerFired(timer.effect.timer, timer.cause))
    assert {str(c.cause) for c in again.caused} == {"RunEnded@5"} == set(causes(again, fx.StopTask))
    unknown = stage.tell(TimerFired(timer.effect.timer))
    assert {str(c.cause) for c in unknown.caused} == {"TimerFired"}
    stage.submit(2, queue_limit_secs=5.0)
    limit = timers.QueueLimit(kit.jid_of(2), stage.job(2).run.serial)
    over = stage.tell(TimerFired(limit, Cause(None, "Submit")))
    assert {str(c.cause) for c in over.caused} == {"StopRequested@2"}


def test_after_a_restart_the_cause_is_the_restart(stage):
    stage.submit(1, queue_limit_secs=50.0)
    stage.restart()
    decision = stage.tell(Restarted())
    assert causes(decision, fx.SetTimer)[0] == "Restarted", "the queue limit"
    assert causes(decision, fx.StartAgent) == ["AgentStartRequested@2"]


# ---- the job or agent of an effect

VALUES = {
    AgentKey: KEY,
    Token: TOKEN,
    tuple[Token, ...]: (TOKEN,),
    str: TOKEN.jid,
    int: 1,
    float: 1.0,
}


def of_type(type_, **fields):
    hints = typing.get_type_hints(type_)
    return type_(**{name: fields.get(name, VALUES.get(hint)) for name, hint in hints.items()})


def timers_():
    return [of_type(type_) for type_ in typing.get_args(timers.Timer)]


def effects():
    gang = msgspec.defstruct("Task", [("token", Token)])(TOKEN)
    for type_ in typing.get_args(fx.Effect):
        if type_ in (fx.SetTimer, fx.ClearTimer):
            yield from (of_type(type_, timer=timer) for timer in timers_())
        else:
            yield of_type(type_, **({"tasks": (gang,)} if type_ is fx.LaunchGang else {}))


@pytest.mark.parametrize(
    "effect", list(effects()), ids=lambda e: type(getattr(e, "timer", e)).__name__
)
def test_an_effect_is_about_its_job_or_else_its_agent(effect):
    subject = getattr(effect, "timer", effect)
    names = set(subject.__struct_fields__)
    # the token of an agent is its secret
    job = names & {"jid", "token", "tokens", "tasks"} if type(effect) is not fx.StartAgent else ()
    expected = job_stream(TOKEN.jid) if job else agent_stream(KEY) if "key" in names else None
    assert fx.stream_of(effect) == expected
