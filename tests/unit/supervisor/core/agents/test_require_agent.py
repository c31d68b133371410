"""Agents that are required without a run: for a call, for a reader of output, or at the start of a
session.
"""

import pytest

from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import (
    DriverFailed,
    RequireAgent,
    TimerFired,
    agent_key,
    refusal_handle,
)


@pytest.fixture
def stage(kit):
    return kit.Stage()


def want(stage, kit, handle=7):
    stage.tell(RequireAgent(handle, kit.key_of()))


def ready(stage):
    return [e.handle for e in stage.asked(fx.AgentReady)]


def test_an_agent_that_is_up_is_ready_at_once(stage, kit):
    stage.submit()
    stage.up()
    want(stage, kit)
    assert ready(stage) == [7]


def test_an_agent_that_is_not_there_is_started_and_ready_when_its_snapshot_is_in(stage, kit):
    want(stage, kit)
    (start,) = stage.asked(fx.StartAgent)
    assert (start.key, ready(stage)) == (kit.key_of(), [])
    stage.started(kit.key_of())
    stage.open(kit.key_of())
    assert ready(stage) == [], "before its snapshot nobody knows what it runs"
    stage.snapshot(kit.key_of())
    assert ready(stage) == [7]


def test_who_comes_meanwhile_waits_for_the_same_start(stage, kit):
    want(stage, kit, 7)
    want(stage, kit, 8)
    assert stage.asked(fx.StartAgent) == []
    stage.up()
    assert ready(stage) == [7, 8]
    stage.snapshot(kit.key_of())
    assert ready(stage) == [], "each is told once"


def test_an_agent_that_went_away_is_looked_for_again(stage, kit):
    stage.submit()
    stage.up()
    stage.reports(kit.ended(stage.token()))
    stage.disconnect(kit.key_of())
    want(stage, kit)
    assert [e.key for e in stage.asked(fx.FindAgent)] == [kit.key_of()]


def test_when_it_cannot_be_started_whoever_waits_is_told_why(kit):
    stage = kit.Stage(agent_start_tries=2)
    want(stage, kit)
    for attempt in (1, 2):
        stage.tell(DriverFailed(kit.key_of(), attempt, "no more memory"))
        refused = [
            (e.handle, e.refusal.code, "no more memory" in e.refusal.sentence)
            for e in stage.asked(fx.ReplyRefusal)
        ]
        assert refused == ([(7, "agentUnavailable", True)] if attempt == 2 else [])
        if attempt == 1:
            stage.tell(TimerFired(timers.AgentStartRetry(kit.key_of(), 1)))
    assert not stage.world.agent(kit.key_of()).needed


def test_a_wish_leaves_nothing_in_the_log_but_the_agents_start(stage, kit):
    want(stage, kit)
    assert [type(e).__name__ for _, e in stage.log] == ["AgentStartRequested"]


def test_too_many_wishes_are_refused(kit):
    stage = kit.Stage(agent_wanted=1)
    want(stage, kit, 7)
    want(stage, kit, 8)
    assert stage.refusal() == "tooManyRequests"


def test_a_wish_names_its_agent_and_who_is_to_be_told(kit):
    assert (
        agent_key(RequireAgent(7, kit.key_of())),
        refusal_handle(RequireAgent(7, kit.key_of())),
    ) == (
        kit.key_of(),
        7,
    )
