"""Timers are values: equal if and only if type and fields are equal."""

import typing

import pytest

from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.supervisor.core.interface.inputs import TimerFired, agent_key, jids
from jobscribe.supervisor.core.interface.timers import AgentTimer, FollowerCheck, Timer

VALUES = {
    AgentKey: AgentKey("local", "sequential", "user0001", "localhost"),
    Token: Token("user0001-sim00001-command", 1, 1, "main", 0),
    int: 1,
    str: "user0001-sim00001-command",
}


def timer_of(type_):
    """Return a timer with the same fields as every other timer with fields of these types."""
    return type_(*(VALUES[hint] for hint in typing.get_type_hints(type_).values()))


TIMERS = [timer_of(type_) for type_ in typing.get_args(Timer)]


def test_timers_of_different_types_with_equal_fields_do_not_collide():
    assert len(TIMERS) == 18
    clock = {timer: type(timer) for timer in TIMERS}
    assert len(clock) == len(TIMERS)
    assert all(clock[timer_of(type(timer))] is type(timer) for timer in TIMERS)
    assert all((one == other) == (one is other) for one in TIMERS for other in TIMERS)


@pytest.mark.parametrize("timer", TIMERS, ids=lambda timer: type(timer).__name__)
def test_a_timer_names_the_state_that_its_decision_needs(timer):
    fired = TimerFired(timer)
    expected = VALUES[AgentKey] if isinstance(timer, AgentTimer) else None
    assert agent_key(fired) == expected
    assert hasattr(timer, "key") == isinstance(timer, AgentTimer)
    assert jids(fired) == ((timer.jid,) if isinstance(timer, FollowerCheck) else ())
