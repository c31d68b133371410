"""The ids that log lines about a message carry."""

from jobscribe.protocol.ids import Token, execution_log_ids, op_id
from jobscribe.protocol.jobs.execution_state import ExecutionState
from jobscribe.protocol.wire.messages import (
    Execution,
    Kill,
    OpError,
    RunStatusUpdate,
    message_log_ids,
)

TOKEN = Token("user0001-sim00001-command", 1, 2, "main", 0)


def test_a_message_about_an_execution_gives_its_job_op_and_attempt() -> None:
    execution = Execution(token=TOKEN, state=ExecutionState.STARTING, op_id=op_id(TOKEN, "run"))
    assert message_log_ids(RunStatusUpdate(execution=execution)) == execution_log_ids(TOKEN)


def test_a_message_about_an_op_gives_the_op() -> None:
    assert message_log_ids(OpError(op_id="o" * 32, code="busy", error="no")) == {"op": "oooooo"}


def test_other_messages_give_nothing() -> None:
    assert message_log_ids(Kill(reason="over")) == {}
