"""Content of notifications: the words for an event, the targets that want it, and the message.
Pure.
"""

from collections.abc import Callable
from typing import Any

from ...db.events.events import (
    AgentSignInNeeded,
    AttemptEnded,
    Event,
    JobFolded,
    RunEnded,
    RunPurged,
    RunRequested,
    TaskHeld,
    TaskStarted,
)
from ...db.events.state import Job, Run
from ...protocol.jobs.status import CANCELED, COMPLETED, ERROR, PENDING, PURGED, RUNNING
from ...protocol.redaction import Redactor
from ...service.site.notification_file import WORDS, Target
from ..diagnosis.explanation import brief
from .event_reader import Moment

SCHEMA = "jobscribe.notification/1"
#: Maximum characters of each text in a message.
MOST_TEXT = 2_000

_FINAL = frozenset({COMPLETED, ERROR, CANCELED, "ended"})
#: Only these events cause notifications, and only for targets that subscribe to one of these words.
_EVENT_WORDS: dict[type[Event], frozenset[str]] = {
    RunRequested: frozenset({"pending"}),
    TaskStarted: frozenset({"running"}),
    TaskHeld: frozenset({"held"}),
    AttemptEnded: frozenset({"attemptEnded", "pending"}),
    RunEnded: _FINAL,
    RunPurged: frozenset({"purged"}),
    JobFolded: frozenset(WORDS),
    AgentSignInNeeded: frozenset({"signInNeeded"}),
}
_WORDS = {
    PENDING: ("pending",),
    RUNNING: ("running",),
    PURGED: ("purged",),
    **{status: (status, "ended") for status in (COMPLETED, ERROR, CANCELED)},
}

Why = Callable[[Job], dict[str, Any] | None]


def words(moment: Moment) -> tuple[str, ...]:
    """Return the subscription words that match an event, most specific first; empty without news."""
    event, before, after = moment
    match event.event:
        case AgentSignInNeeded():
            return ("signInNeeded",)
        case JobFolded(job=job):
            return _WORDS.get(job.status, ())
        case TaskHeld(token=token):
            return ("held",) if _current(after, token.serial) else ()
        case AttemptEnded(serial=serial):
            return ("attemptEnded", *_changed(before, after)) if _current(after, serial) else ()
        case RunRequested():
            return ("pending",)
        case _:
            return _changed(before, after)


def _changed(before: Job | None, after: Job | None) -> tuple[str, ...]:
    return (
        ()
        if before is None or after is None or before.status == after.status
        else _WORDS.get(after.status, ())
    )


def _current(job: Job | None, serial: int) -> bool:
    """Return whether the run is current. Older runs cause no notifications."""
    return job is not None and job.run is not None and job.run.serial == serial


def wanted(target: Target, moment: Moment) -> str | None:
    """Return the word by which a target wants this event, or None."""
    word = next((w for w in words(moment) if w in target.on), None)
    if word is None:
        return None
    run = None if moment.after is None else moment.after.run
    event = moment.event
    if isinstance(event, AgentSignInNeeded):
        uid, type_, driver = event.agent_key.uid, None, event.agent_key.driver
    elif run is not None:
        uid, type_, driver = run.spec.uid, run.spec.simulation_type, run.spec.driver
    else:
        return None
    for asked, there in (
        (target.users, uid),
        (target.simulation_types, type_),
        (target.drivers, driver),
    ):
        if asked and there not in asked:
            return None
    return words(moment)[0] if word == "ended" else word


def may_want(target: Target, event: Event, uid: str | None) -> bool:
    """Exclude most events cheaply, before the job is read."""
    asked = _EVENT_WORDS.get(type(event))
    return (
        asked is not None
        and not asked.isdisjoint(target.on)
        and (not target.users or uid is None or uid in target.users)
    )


def message(target: Target, moment: Moment, redactor: Redactor, why: Why) -> dict[str, Any]:
    """Return the message. It contains nothing of the job's data, command or environment."""
    stored, before, after = moment
    event = stored.event
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "id": "",
        "at": event.at,
        "target": target.name,
        "event": wanted(target, moment),
        "state": None,
        "previous": None,
        "computeJid": None,
        "computeJobSerial": None,
        "uid": None,
        "simulationType": None,
        "driver": None,
        "attempt": None,
        "reason": getattr(event, "reason", None),
        "error": None,
        "why": None,
        "position": stored.position,
    }
    if isinstance(event, AgentSignInNeeded):
        key = event.agent_key
        out |= {"uid": key.uid, "driver": key.driver, "host": key.host}
    elif after is not None and after.run is not None:
        out |= _of_run(after, after.run) | {
            "previous": before.status if before is not None else None,
            "why": why(after),
        }
    if isinstance(event, JobFolded):
        out |= {"event": "folded", "previous": None, "changes": event.events}
        out["reason"] = (
            out["reason"] or after.run.reason
            if after is not None and after.run is not None
            else None
        )
    elif isinstance(event, AttemptEnded):
        out["attempt"] = event.attempt
    elif isinstance(event, TaskHeld):
        out["error"] = event.exit.sentence()
    out["id"] = (
        f"{out['computeJid'] or stored.stream}/{out['computeJobSerial'] or 0}/{stored.position}"
    )
    shown: dict[str, Any] = _short(out, redactor)
    return shown


def _of_run(job: Job, run: Run) -> dict[str, Any]:
    return {
        "state": job.status,
        "computeJid": job.jid,
        "computeJobSerial": run.serial,
        "uid": run.spec.uid,
        "simulationType": run.spec.simulation_type,
        "driver": run.spec.driver,
        "attempt": run.attempt or None,
        "error": run.error,
    }


def why_ended(job: Job) -> dict[str, Any] | None:
    """Return a short explanation for a run that ended without completing, as in status replies."""
    if job.run is None or job.run.active:
        return None
    return brief(
        {
            "state": job.status,
            "known": True,
            "since": None,
            "queueState": None,
            "jobStatusMessage": None,
        },
        job,
    )


def test_message(target: Target, number: str, at: float) -> dict[str, Any]:
    """Return a test message."""
    return {
        "schema": SCHEMA,
        "id": f"test/0/{number}",
        "at": at,
        "target": target.name,
        "event": "test",
        "state": None,
        "previous": None,
        "computeJid": None,
        "computeJobSerial": None,
        "uid": None,
        "simulationType": None,
        "driver": None,
        "attempt": None,
        "reason": "an operator requested a test of this target",
        "error": None,
        "why": None,
        "position": 0,
    }


def _short(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, str):
        text = redactor.shown(value)
        return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "..."
    if isinstance(value, dict):
        return {k: _short(v, redactor) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_short(v, redactor) for v in value[:20]]
    return value
