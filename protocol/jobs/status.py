"""Status values of a run, reasons and sub-states. A sub-state is a field beside the status, never a
new status.
"""

from typing import Final, Literal

Status = Literal[
    "missing", "pending", "running", "completed", "canceled", "error", "job_run_purged"
]

MISSING: Final = "missing"
PENDING: Final = "pending"
RUNNING: Final = "running"
COMPLETED: Final = "completed"
CANCELED: Final = "canceled"
ERROR: Final = "error"
#: the run ended, and its files were removed later
PURGED: Final = "job_run_purged"

ACTIVE: Final = frozenset({PENDING, RUNNING})

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
