"""Tasks that an agent of an earlier version cannot hold for debugging. Pure: answers in place of the
agent.
"""

from typing import Any

import msgspec

from ...protocol.jobs.execution_state import ExecutionState
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.wire.messages import Execution, ReleaseHold, Run, RunStatusUpdate, RunTasks

CANNOT_HOLD = (
    "its agent runs an earlier version of jobscribe, which cannot hold failed tasks (`debug`); when its"
    " runs have ended, stop the agent with 'jobscribe agent stop' and submit the job again, or leave"
    " `debug` out"
)


def needs_holds(message: Any) -> bool:
    """Return whether only an agent that holds the allocations of failed tasks understands this."""
    match message:
        case ReleaseHold():
            return True
        case Run():
            return message.spec.debug_secs is not msgspec.UNSET
        case RunTasks():
            return any(t.spec.debug_secs is not msgspec.UNSET for t in message.tasks)
        case _:
            return False


def refused(message: Run | RunTasks | ReleaseHold) -> tuple[RunStatusUpdate, ...]:
    """Return the ends of the tasks that are not started."""
    if isinstance(message, ReleaseHold):
        return ()
    exit_ = ExitInfo(source="start", detail=CANNOT_HOLD)
    return tuple(
        RunStatusUpdate(
            execution=Execution(
                token=task.token, state=ExecutionState.ENDED, op_id=task.op_id, exit=exit_
            )
        )
        for task in (message.tasks if isinstance(message, RunTasks) else (message,))
    )
