"""Status values of a run with their legal changes, states of a task, reasons and sub-states. A
sub-state is a field beside the status, never a new status.
"""

import enum
from typing import Final, Literal

from .transitions import IllegalTransition


class Status(enum.StrEnum):
    """The status of a run. job_run_purged: the run ended, and its files were removed later."""

    MISSING = "missing"
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELED = "canceled"
    ERROR = "error"
    PURGED = "job_run_purged"


MISSING: Final = Status.MISSING
PENDING: Final = Status.PENDING
RUNNING: Final = Status.RUNNING
COMPLETED: Final = Status.COMPLETED
CANCELED: Final = Status.CANCELED
ERROR: Final = Status.ERROR
PURGED: Final = Status.PURGED

ACTIVE: Final = frozenset({PENDING, RUNNING})

#: status of a job -> statuses that one event can lead to. A job without a run is `missing`, and a
#: job can be submitted again after each end. A running run is pending again before a retry.
LEGAL_CHANGES: Final[dict[Status, frozenset[Status]]] = {
    MISSING: frozenset({PENDING}),
    PENDING: frozenset({RUNNING, COMPLETED, CANCELED, ERROR}),
    RUNNING: frozenset({PENDING, COMPLETED, CANCELED, ERROR}),
    COMPLETED: frozenset({PENDING, PURGED}),
    CANCELED: frozenset({PENDING, PURGED}),
    ERROR: frozenset({PENDING, PURGED}),
    PURGED: frozenset({PENDING}),
}


def check_change(before: Status, after: Status, event: str) -> None:
    """Raise IllegalTransition unless an event keeps the status or changes it legally."""
    if before != after and after not in LEGAL_CHANGES[before]:
        raise IllegalTransition("run", before, f"{event} to {after}")


class TaskStatus(enum.StrEnum):
    """The state of a task in answers and records."""

    PLACED = "placed"
    RUNNING = "running"
    HELD = "held"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


#: States of a task without processes.
TASK_ENDED: Final = frozenset(
    {TaskStatus.HELD, TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.STOPPED}
)

#: Why jobscribe stopped a run. Recorded before the first signal, so that an exit is never mistaken
#: for its cause. `decided`: other tasks decided the attempt.
StopReason = Literal["cancel", "timeLimit", "queueLimit", "lost", "shutdown", "decided"]

#: Why a run ended; `None` if its exit status is the whole reason. `scheduler`: the batch scheduler,
#: or an administrator there, ended it.
EndReason = Literal[
    "exit",
    "signal",
    "cancel",
    "timeLimit",
    "queueLimit",
    "lost",
    "shutdown",
    "startFailed",
    "agentStartFailed",
    "dependency",
    "scheduler",
]

Kind = Literal["sequential", "parallel"]
