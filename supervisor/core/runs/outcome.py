"""How a run ends: from one execution's exit to the run's status and reason. Plain functions with
their truth table as tests.
"""

from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.jobs.status import CANCELED, COMPLETED, ERROR

#: Nobody canceled such a run, and no limit of its own was reached.
SHUTDOWN = "it was ended from outside: its machine was shut down, or the keeper of its jobs was told to end"

#: The log was set back to before this run was started: what ran was taken for a leftover.
LEFTOVER = (
    "it was ended because the log, which had been set back, did not know that it had been started"
)


def outcome(exit_: ExitInfo) -> tuple[str, str, str | None]:
    """(status, reason, error) of a run whose only task ended like this and which nobody had stopped
    in the books.

    Our own intent comes first: a job that is ended by its time limit may well exit 0 on SIGTERM.
    Then what the job itself left as its last word; then what is known of its exit.
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
    said = (exit_.termination_message or "").strip()
    return ERROR, "signal" if exit_.signal is not None else "exit", said or exit_.sentence()
