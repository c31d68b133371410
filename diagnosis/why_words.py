"""Words of `job why` beside causes: reasons, faults, states, confidences and phrases of rows."""

from ..protocol.jobs.exit_info import FAULTS
from .causes import BY_REASON, BY_STOP, CAUSES
from .exit_table import Row

_OTHERS = {
    "scheduler": "reason: Slurm ended the run; the cause (nodeFail, preempted...) says why",
    "pending": "state: the run waits; the cause says for what",
    "error": "state: the run did not succeed; the cause says why",
    "ok": "state: the run succeeded, as completed",
    "certain": "confidence: an authoritative source reported the cause",
    "likely": "confidence: the facts fit this cause, and hardly any other",
    "possible": "confidence: the facts fit this cause, but others too",
    "unknown": "confidence: the event is known, but not its originator",
    "user": "type: caused by the program, its input, or its request",
    "platform": "type: caused by machines, drivers or jobscribe",
    "resource": "type: a resource was not available in time",
}
_PURGED = "job_run_purged"


def cause_word(word: str) -> str | None:
    """Return the cause that a cause, or the end reason of a run, names; None for other words."""
    reasons = {**BY_REASON, **BY_STOP, _PURGED: "purged"}
    known = {name.casefold(): name for name in CAUSES}
    known |= {name.casefold(): cause for name, cause in reasons.items()}
    return known.get(word.casefold())


def sentence(word: str) -> str | None:
    """Return the meaning of a fault, state, reason or confidence; None for other words."""
    fault = next((name for name in FAULTS if name.casefold() == word.casefold()), None)
    if fault is not None:
        return f"fault of a start: {FAULTS[fault]}"
    return _OTHERS.get(word.casefold())


def row_of(phrase: str, rows: tuple[Row, ...]) -> Row | None:
    """Return the row of the exit table with this phrase."""
    return next((row for row in rows if row.phrase.casefold() == phrase.casefold()), None)
