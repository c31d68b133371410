"""By which words ends are counted: those of the table of causes that are ends, so that each series
is there before there is such an end.
"""

from typing import Final, get_args

from ...db.events.state import Run
from ...diagnosis.causes import CAUSES as TABLE
from ...diagnosis.classification import classify_run
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.status import CANCELED, COMPLETED, ERROR, QueueState

FINAL: Final = (COMPLETED, CANCELED, ERROR)
_OTHER: Final = "other"
#: Words of the table that are no ends.
_LIVE: Final = ({*get_args(QueueState), "running", "purged", "missing"}) - {"dependency"}
_ENDS: Final = tuple(word for word in TABLE if word not in _LIVE)
#: Of a run that was ended without a fault of its own, and of one that failed.
_CANCELS: Final = ("canceled", "queueLimit", "timeLimit", "dependency", "shutdown", _OTHER)
_ERRORS: Final = (*(word for word in _ENDS if word not in (COMPLETED, "canceled")), _OTHER)
#: By final state.
CAUSES: Final[dict[str, tuple[str, ...]]] = {
    COMPLETED: (COMPLETED,),
    CANCELED: _CANCELS,
    ERROR: _ERRORS,
}


def attempt_causes() -> tuple[str, ...]:
    """Of attempts."""
    return (*_ENDS, _OTHER)


def cause(status: str, reason: str | None, exit_: ExitInfo | None) -> str:
    """Of a run that has ended so."""
    word = classify_run(status, reason, exit_).cause
    return word if word in CAUSES.get(status, ()) else _OTHER


def attempt_cause(run: Run, number: int, reason: str) -> str:
    """Of one attempt."""
    attempt = next((a for a in run.attempts if a.number == number), None)
    task = None if attempt is None else attempt.telling
    exit_ = None if task is None else task.exit
    status = COMPLETED if exit_ is not None and exit_.succeeded else ERROR
    word = classify_run(status, reason, exit_).cause
    return word if word in _ENDS else _OTHER
