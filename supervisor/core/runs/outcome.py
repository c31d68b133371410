"""Outcome of a run: maps the exit of its execution to status, reason and error. Pure functions;
their truth table is in the tests.
"""

from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.jobs.status import CANCELED, COMPLETED, ERROR, Status

#: The error of a run that was neither canceled nor over a limit.
SHUTDOWN = "stopped from outside: its machine was shut down, or its keeper was told to stop"

#: The error of a run that was missing in the log after a rollback: its processes were stopped as
#: leftovers.
LEFTOVER = "stopped because the event log was rolled back and had no record of its start"


def outcome(exit_: ExitInfo) -> tuple[Status, str, str | None]:
    """Return (status, reason, error) of a run with one task that ended like this and without a
    recorded stop.

    The supervisor's own stop reason comes first: a job stopped by its time limit may exit 0 on
    SIGTERM. Then the job's own termination message, then the facts of its exit.
    """
    if exit_.stop_reason == "timeLimit":
        return CANCELED, "timeLimit", None
    if exit_.stop_reason == "shutdown":
        return ERROR, "shutdown", SHUTDOWN
    if exit_.stop_reason == "lost":
        return ERROR, "lost", LEFTOVER
    if exit_.stop_reason is not None:
        return CANCELED, "cancel", None
    if exit_.source == "start":
        return ERROR, "startFailed", exit_.sentence()
    if exit_.source == "lost":
        return ERROR, "lost", exit_.sentence()
    if exit_.code == 0:
        return COMPLETED, "exit", None
    if exit_.ended_by_scheduler is not None:
        return ERROR, "scheduler", exit_.sentence()
    message = (exit_.termination_message or "").strip()
    return ERROR, "signal" if exit_.signal is not None else "exit", message or exit_.sentence()
