"""States of an execution: every pair of state and fact, and the words on the wire."""

import itertools

import msgspec
import pytest

from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.execution_state import (
    REPORTS,
    TRANSITIONS,
    ExecutionState,
    Trigger,
    next_state,
)
from jobscribe.protocol.jobs.transitions import IllegalTransition
from jobscribe.protocol.wire.messages import Execution

STARTING, RUNNING, ENDED = ExecutionState
#: Per state: the states after "queued", "started" and "ended".
EXPECTED = {
    STARTING: (STARTING, RUNNING, ENDED),
    RUNNING: (STARTING, RUNNING, ENDED),
    ENDED: (None, None, None),
}


@pytest.mark.parametrize(("state", "trigger"), list(itertools.product(ExecutionState, Trigger)))
def test_each_pair_has_its_next_state_or_is_refused(
    state: ExecutionState, trigger: Trigger
) -> None:
    expected = EXPECTED[state][list(Trigger).index(trigger)]
    if expected is None:
        with pytest.raises(IllegalTransition, match=f"{trigger} is illegal in state {state}"):
            next_state(state, trigger)
    else:
        assert next_state(state, trigger) is expected


def test_a_report_from_the_first_state_leads_to_the_reported_state() -> None:
    assert {state: next_state(STARTING, REPORTS[state]) for state in ExecutionState} == {
        state: state for state in ExecutionState
    }
    assert set(TRANSITIONS.values()) == set(ExecutionState)


def test_the_words_on_the_wire_are_plain_text_and_others_are_refused() -> None:
    e = Execution(
        token=Token("user1234-sim12345-command", 1, 1, "main", 0), state=RUNNING, op_id="x" * 32
    )
    sent = msgspec.to_builtins(e)
    assert type(sent["state"]) is str and sent["state"] == "running"
    with pytest.raises(msgspec.ValidationError, match="paused"):
        msgspec.convert(sent | {"state": "paused"}, Execution)
