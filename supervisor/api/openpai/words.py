"""States, exit types and error codes in OpenPAI's words. Pure."""

from typing import Any

from ....db.events.state import Run
from ....diagnosis.exit_table import Diagnosis
from ....protocol.errors import CODES, Refusal
from ....protocol.jobs.status import CANCELED, COMPLETED, ERROR, PENDING, PURGED, RUNNING

#: state of a run -> (state, sub-state) of a job
_STATES = {
    PENDING: ("WAITING", "FRAMEWORK_WAITING"),
    RUNNING: ("RUNNING", "APPLICATION_RUNNING"),
    COMPLETED: ("SUCCEEDED", "FRAMEWORK_COMPLETED"),
    CANCELED: ("STOPPED", "FRAMEWORK_COMPLETED"),
    ERROR: ("FAILED", "FRAMEWORK_COMPLETED"),
    PURGED: ("UNKNOWN", "FRAMEWORK_COMPLETED"),
}
#: state of a task -> state of a task and of its container
TASK_STATES = {
    "placed": ("WAITING", "CONTAINER_ALLOCATED"),
    "running": ("RUNNING", "CONTAINER_RUNNING"),
    "held": ("RUNNING", "CONTAINER_RUNNING"),
    "succeeded": ("SUCCEEDED", "TASK_COMPLETED"),
    "stopped": ("STOPPED", "TASK_COMPLETED"),
    "failed": ("FAILED", "TASK_COMPLETED"),
}
_TYPES = {
    "user": "USER_FAILURE",
    "platform": "PLATFORM_FAILURE",
    "resource": "RESOURCE_ALLOCATION_TIMEOUT",
    "unknown": "UNKNOWN_FAILURE",
}
#: code of a refusal -> code of an error
_CODES = {
    "unauthenticated": "UnauthorizedUserError",
    "tokenExpired": "UnauthorizedUserError",
    "tokenRevoked": "UnauthorizedUserError",
    "forbidden": "ForbiddenUserError",
    "scopeMissing": "ForbiddenUserError",
    "queueRefused": "ForbiddenUserError",
    "notFound": "NoJobError",
    "methodNotAllowed": "NoApiError",
    "nameTaken": "ConflictJobError",
    "badRequest": "InvalidParametersError",
    "resourceExceeded": "InvalidParametersError",
    "tooManyRequests": "TooManyRequestsError",
    "tooManyRuns": "TooManyRequestsError",
}
_UNKNOWN = "UnknownError"
_BY_HTTP = {400: "InvalidParametersError", 404: "NoApiError"}


def job_state(run: Run) -> tuple[str, str]:
    """Return the state and sub-state of a job. A run that is being stopped is STOPPING."""
    if run.stop is not None and run.busy:
        return "STOPPING", "APPLICATION_RETRIEVING_DIAGNOSTICS"
    state, sub = _STATES.get(run.status, ("UNKNOWN", "FRAMEWORK_WAITING"))
    if run.retry is not None:
        return "WAITING", "APPLICATION_WAITING"
    return state, sub


def exit_type(run: Run) -> str | None:
    """Return the type of the job's exit; None while it is active."""
    if run.active:
        return None
    if run.status == COMPLETED:
        return "USER_SUCCESS"
    if run.status == CANCELED:
        return "USER_STOP"
    diagnosis = run.diagnosis
    return _TYPES["unknown"] if diagnosis is None else type_of(diagnosis)


def type_of(diagnosis: Diagnosis) -> str:
    return _TYPES[diagnosis.type]


def diagnostics(diagnosis: Diagnosis | None) -> str | None:
    """Return the reason and the advice of a diagnosis as one text."""
    if diagnosis is None:
        return None
    return "\n".join((f"{diagnosis.phrase}: {diagnosis.reason}", *diagnosis.solutions))


def milliseconds(at: float | None) -> int | None:
    """Return a time (unix seconds) in milliseconds."""
    return None if at is None else round(at * 1000)


def error(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error. `pai` in a refusal's details is its code here."""
    code = refusal.more.get("pai") or _CODES.get(refusal.code) or _BY_HTTP.get(refusal.http)
    given = refusal.more.get("problems")
    if isinstance(given, list | tuple):
        text = "\n".join((refusal.sentence, *map(_line, given)))
    else:
        text = f"{refusal.sentence}; {refusal.more.get('advice') or CODES[refusal.code].advice}"
    return {"code": code or _UNKNOWN, "message": text}


def _line(problem: Any) -> str:
    """Return one problem of a configuration as a line of text."""
    place = f"line {problem.line}: " if problem.line else ""
    return f"{place}{problem.path}: {problem.problem}; right: {problem.right}"
