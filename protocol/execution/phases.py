"""Phases of an execution and of its stop, each with one table of transitions.

Keeper, Slurm batch and container tasks report facts. A fact may be repeated or skipped: an
execution can exit before its start was seen. Only the end is final.
"""

from __future__ import annotations

import enum

from ..jobs.execution_state import ExecutionState
from ..jobs.transitions import IllegalTransition


class Phase(enum.StrEnum):
    """new: the token is not used. starting: the token is used, no process is known. running: a
    process was started. exited: the main process has exited, other processes may be left. ended:
    nothing is left, or the execution never starts.
    """

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    ENDED = "ended"


class Fact(enum.StrEnum):
    """Facts that change the phase. claimed: the token was used for this execution."""

    CLAIMED = "claimed"
    STARTED = "started"
    EXITED = "exited"
    ENDED = "ended"


#: (phase, fact) -> phase. A pair that is absent is illegal.
PHASES: dict[tuple[Phase, Fact], Phase] = {
    (Phase.NEW, Fact.CLAIMED): Phase.STARTING,
    (Phase.NEW, Fact.ENDED): Phase.ENDED,
    (Phase.STARTING, Fact.STARTED): Phase.RUNNING,
    (Phase.STARTING, Fact.EXITED): Phase.EXITED,
    (Phase.STARTING, Fact.ENDED): Phase.ENDED,
    (Phase.RUNNING, Fact.STARTED): Phase.RUNNING,
    (Phase.RUNNING, Fact.EXITED): Phase.EXITED,
    (Phase.RUNNING, Fact.ENDED): Phase.ENDED,
    (Phase.EXITED, Fact.STARTED): Phase.EXITED,
    (Phase.EXITED, Fact.EXITED): Phase.EXITED,
    (Phase.EXITED, Fact.ENDED): Phase.ENDED,
}

#: The state that is reported for a phase. An exited execution is reported as running, with its exit.
REPORTED: dict[Phase, ExecutionState] = {
    Phase.NEW: ExecutionState.STARTING,
    Phase.STARTING: ExecutionState.STARTING,
    Phase.RUNNING: ExecutionState.RUNNING,
    Phase.EXITED: ExecutionState.RUNNING,
    Phase.ENDED: ExecutionState.ENDED,
}


class StopPhase(enum.StrEnum):
    """none: not being stopped. requested: somebody asked. recorded: the record exists and says that
    no signal was sent. cleared: no exit was found after that. signaled: the record says that a
    signal may have been sent, so an exit from now on is caused by the stop. barred: the execution
    can never start, whether or not somebody asked to stop it. overtaken: it had exited first; the record is still to be withdrawn.
    """

    NONE = "none"
    REQUESTED = "requested"
    RECORDED = "recorded"
    CLEARED = "cleared"
    SIGNALED = "signaled"
    BARRED = "barred"
    OVERTAKEN = "overtaken"


class StopFact(enum.StrEnum):
    """Facts that change the phase of a stop. exit found: the main process exited before a signal.
    exit missing: it was looked for and had not.
    """

    REQUESTED = "requested"
    RECORDED = "recorded"
    EXIT_FOUND = "exit found"
    EXIT_MISSING = "exit missing"
    SIGNAL_RECORDED = "signal recorded"
    START_BARRED = "start barred"
    WITHDRAWN = "withdrawn"


#: (phase of the stop, fact) -> phase of the stop. A pair that is absent is illegal.
STOPS: dict[tuple[StopPhase, StopFact], StopPhase] = {
    (StopPhase.NONE, StopFact.REQUESTED): StopPhase.REQUESTED,
    (StopPhase.NONE, StopFact.EXIT_FOUND): StopPhase.NONE,
    (StopPhase.NONE, StopFact.START_BARRED): StopPhase.BARRED,
    (StopPhase.REQUESTED, StopFact.RECORDED): StopPhase.RECORDED,
    (StopPhase.REQUESTED, StopFact.EXIT_FOUND): StopPhase.NONE,
    (StopPhase.REQUESTED, StopFact.START_BARRED): StopPhase.BARRED,
    (StopPhase.RECORDED, StopFact.EXIT_MISSING): StopPhase.CLEARED,
    (StopPhase.RECORDED, StopFact.EXIT_FOUND): StopPhase.OVERTAKEN,
    (StopPhase.RECORDED, StopFact.START_BARRED): StopPhase.BARRED,
    (StopPhase.CLEARED, StopFact.SIGNAL_RECORDED): StopPhase.SIGNALED,
    (StopPhase.CLEARED, StopFact.EXIT_FOUND): StopPhase.OVERTAKEN,
    (StopPhase.CLEARED, StopFact.START_BARRED): StopPhase.BARRED,
    (StopPhase.SIGNALED, StopFact.EXIT_FOUND): StopPhase.SIGNALED,
    (StopPhase.SIGNALED, StopFact.START_BARRED): StopPhase.BARRED,
    (StopPhase.BARRED, StopFact.REQUESTED): StopPhase.REQUESTED,
    (StopPhase.BARRED, StopFact.START_BARRED): StopPhase.BARRED,
    (StopPhase.OVERTAKEN, StopFact.EXIT_FOUND): StopPhase.OVERTAKEN,
    (StopPhase.OVERTAKEN, StopFact.WITHDRAWN): StopPhase.NONE,
}


def next_phase(phase: Phase, fact: Fact) -> Phase:
    """Return the phase after a fact. Raises IllegalTransition."""
    after = PHASES.get((phase, fact))
    if after is None:
        raise IllegalTransition("execution", phase, fact)
    return after


def next_stop_phase(phase: StopPhase, fact: StopFact) -> StopPhase:
    """Return the phase of a stop after a fact. Raises IllegalTransition."""
    after = STOPS.get((phase, fact))
    if after is None:
        raise IllegalTransition("stop of an execution", phase, fact)
    return after
