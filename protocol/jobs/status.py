"""Run status, sub-state and the reasons that go with them. A sub-state is a field beside the
status, never a new status.
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
#: it ended, and what it wrote was removed since
PURGED: Final = "job_run_purged"

ACTIVE: Final = frozenset({PENDING, RUNNING})

#: Why a run was stopped. Written before the first signal is sent, so that an exit can always be
#: told from its cause. `decided`: the other tasks of its attempt had decided it.
StopReason = Literal["cancel", "timeLimit", "queueLimit", "lost", "shutdown", "decided"]

#: Why a run ended as it did; `None` when its own exit says it all. `scheduler`: its batch
#: scheduler, or somebody there, ended it.
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

#: What a pending, ending or stopping run is doing now.
QueueState = Literal[
    "dependency",
    "agent",
    "op_slot",
    "run_dir",
    "cpu_slot",
    "array_slot",
    "resources",
    "ports",
    "retry_wait",
    "starting",
    "stopping",
    "ending",
    "debug_hold",
    "no_host",
    "host_down",
    "agent_memory",
    "sign_in",
    "slurm",
]

Kind = Literal["sequential", "parallel"]
