"""Label values for causes of finished runs and attempts. They come from the table of causes, so
every series exists before the first such end.
"""

from typing import Final, get_args

from ...db.events.state import Run
from ...diagnosis.causes import CAUSES as TABLE
from ...diagnosis.causes import QueueState
from ...diagnosis.classification import classify_run
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.status import CANCELED, COMPLETED, ERROR

FINAL: Final = (COMPLETED, CANCELED, ERROR)
_OTHER: Final = "other"
#: Words of the table that are not causes of an end.
_LIVE: Final = ({*get_args(QueueState), "running", "purged", "missing"}) - {"dependency"}
_ENDS: Final = tuple(word for word in TABLE if word not in _LIVE)
#: Causes of canceled runs, and of failed runs.
_CANCELS: Final = ("canceled", "queueLimit", "timeLimit", "dependency", "shutdown", _OTHER)
_ERRORS: Final = (*(word for word in _ENDS if word not in (COMPLETED, "canceled")), _OTHER)
#: Causes by final state.
CAUSES: Final[dict[str, tuple[str, ...]]] = {
    COMPLETED: (COMPLETED,),
    CANCELED: _CANCELS,
    ERROR: _ERRORS,
}


def attempt_causes() -> tuple[str, ...]:
    """Return the causes of attempts."""
    return (*_ENDS, _OTHER)


def cause(status: str, reason: str | None, exit_: ExitInfo | None) -> str:
    """Return the cause of a finished run."""
    word = classify_run(status, reason, exit_).cause
    return word if word in CAUSES.get(status, ()) else _OTHER


def attempt_cause(run: Run, number: int, reason: str) -> str:
    """Return the cause of one finished attempt."""
    attempt = next((a for a in run.attempts if a.number == number), None)
    task = None if attempt is None else attempt.telling
    exit_ = None if task is None else task.exit
    status = COMPLETED if exit_ is not None and exit_.succeeded else ERROR
    word = classify_run(status, reason, exit_).cause
    return word if word in _ENDS else _OTHER
