"""States of an execution and their transitions. Pure, and standard library only, because keepers
use it.

Keeper, batch scheduler and container driver report facts about an execution. A fact may be repeated
or skipped: an execution can end before its start was seen, and a batch scheduler can queue a job
again after its start. Only the end is final; no fact follows it. An execution that is `running`
with a known exit is *ending*, which is no state of its own (see `wire.messages.Execution`).
"""

import enum

from .transitions import IllegalTransition


class ExecutionState(enum.StrEnum):
    """starting: accepted, no process yet. running: a process started. ended: nothing is left."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class Trigger(enum.StrEnum):
    """Facts about an execution. queued: accepted, or queued again by a batch scheduler. started: a
    process started. ended: nothing of it is left, or it never starts.
    """

    QUEUED = "queued"
    STARTED = "started"
    ENDED = "ended"


#: (state, trigger) -> state. A pair that is absent is illegal.
TRANSITIONS: dict[tuple[ExecutionState, Trigger], ExecutionState] = {
    (ExecutionState.STARTING, Trigger.QUEUED): ExecutionState.STARTING,
    (ExecutionState.STARTING, Trigger.STARTED): ExecutionState.RUNNING,
    (ExecutionState.STARTING, Trigger.ENDED): ExecutionState.ENDED,
    (ExecutionState.RUNNING, Trigger.QUEUED): ExecutionState.STARTING,
    (ExecutionState.RUNNING, Trigger.STARTED): ExecutionState.RUNNING,
    (ExecutionState.RUNNING, Trigger.ENDED): ExecutionState.ENDED,
}

#: The fact that a reported state stands for.
REPORTS: dict[ExecutionState, Trigger] = {
    ExecutionState.STARTING: Trigger.QUEUED,
    ExecutionState.RUNNING: Trigger.STARTED,
    ExecutionState.ENDED: Trigger.ENDED,
}


def next_state(state: ExecutionState, trigger: Trigger) -> ExecutionState:
    """Return the state after a fact. Raises IllegalTransition."""
    after = TRANSITIONS.get((state, trigger))
    if after is None:
        raise IllegalTransition("execution", state, trigger)
    return after
