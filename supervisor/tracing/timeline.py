"""The timeline of a job or an agent from the event log: each event with component and cause. Pure."""

from collections.abc import Sequence
from typing import Any

from ...db.events.events import (
    SYSTEM,
    AgentFolded,
    AgentGone,
    AgentSignInNeeded,
    AgentStarted,
    AgentStartFailed,
    AgentStartRequested,
    AttemptDecided,
    AttemptEnded,
    DependencyEnded,
    Event,
    JobFolded,
    LateStopRequested,
    RunEnded,
    RunPurged,
    RunRequested,
    StopRequested,
    TaskEnded,
    TaskExited,
    TaskHeld,
    TaskNoticed,
    TaskPlaced,
    TaskSlotGranted,
    TaskStarted,
    TaskSubmitted,
    agent_stream,
)
from ...db.records.event_text import story
from ...db.store.contract import EventStore, Stored
from ...protocol.ids import Token

#: Number of newest events in the timeline of an agent.
NEWEST = 500
Cause = dict[str, Any]


def with_others(store: EventStore, events: list[Stored]) -> list[Stored]:
    """Return a job's events with those of its agents and of supervisor sessions in the same time."""
    keys = {e.event.agent_key for e in events if hasattr(e.event, "agent_key")}
    first = events[0].position if events else 0
    last = max((e.position for e in events), default=0)
    streams = [*(agent_stream(key) for key in keys), SYSTEM]
    others = [s for stream in streams for s in store.read(stream) if first <= s.position <= last]
    return sorted([*events, *others], key=lambda s: s.position)


def items(events: Sequence[Stored]) -> list[dict[str, Any]]:
    """Return one item for each event, in order.

    cause: `position` of the causing event, or the id of the causing `request` or `job`.
    """
    causes = _Causes()
    return [
        {
            "at": s.event.at,
            "source": s.stream,
            "component": component(s.event),
            "position": s.position,
            "version": s.version,
            "text": line,
            "cause": causes.of(s),
            "event": s.event,
        }
        for s, line in zip(events, story(events), strict=True)
    ]


def component(event: Event) -> str:
    """Return `supervisor`, `agent`, `command`, `container` or `slurm`; `front` has log lines only."""
    match event:
        case (
            AgentStarted() | AgentStartFailed() | AgentSignInNeeded() | AgentGone() | AgentFolded()
        ):
            return "agent"
        case TaskSubmitted():
            return "slurm"
        case TaskNoticed(code="imagePulling" | "imagePulled"):
            return "container"
        case TaskStarted() | TaskNoticed():
            return "command"
        case TaskEnded(exit=exit_) | TaskHeld(exit=exit_) | TaskExited(exit=exit_):
            return {
                "engine": "container",
                "scheduler": "slurm",
                "lost": "supervisor",
                "start": "agent",
            }.get(exit_.source, "command")
        case _:
            return "supervisor"


class _Causes:
    """Finds the cause of each event, from the positions of earlier events."""

    def __init__(self) -> None:
        #: position of the last event for each subject
        self._last: dict[tuple[object, ...], int] = {}

    def of(self, stored: Stored) -> Cause | None:
        event, position = stored.event, stored.position
        cause = self._cause(event)
        for key in _subjects(event):
            self._last[key] = position
        return cause

    def _first(self, *keys: tuple[object, ...]) -> Cause | None:
        return next(({"position": self._last[key]} for key in keys if key in self._last), None)

    def _cause(self, event: Event) -> Cause | None:
        match event:
            case (
                RunRequested(req_id=req_id)
                | StopRequested(req_id=str(req_id))
                | LateStopRequested(req_id=str(req_id))
            ):
                return {"request": req_id}
            case DependencyEnded(compute_jid=jid):
                return {"job": jid}
            case AgentStartRequested():
                return self._first(("request",))
            case (
                AgentStarted(agent_key=key)
                | AgentStartFailed(agent_key=key)
                | AgentSignInNeeded(agent_key=key)
            ):
                return self._first(("start", key))
            case (
                TaskPlaced()
                | TaskSlotGranted()
                | TaskSubmitted()
                | TaskStarted()
                | TaskExited()
                | TaskHeld()
                | TaskEnded()
                | TaskNoticed()
            ):
                return self._task_cause(event)
            case AttemptDecided(serial=serial, attempt=attempt, role=role, index=index):
                return self._first(
                    ("task over", serial, attempt, role, index), ("over", serial, attempt)
                )
            case AttemptEnded(serial=serial, attempt=attempt):
                return self._first(("over", serial, attempt))
            case RunEnded(serial=serial):
                return self._first(
                    ("stop", serial),
                    ("attempt over", serial),
                    ("dependency", serial),
                    ("run", serial),
                )
            case RunPurged(serial=serial):
                return self._first(("run over", serial))
            case _:
                return None

    def _task_cause(
        self,
        event: TaskPlaced
        | TaskSlotGranted
        | TaskSubmitted
        | TaskStarted
        | TaskExited
        | TaskHeld
        | TaskEnded
        | TaskNoticed,
    ) -> Cause | None:
        token = event.token
        match event:
            case TaskPlaced():
                again = [("attempt over", token.serial)] if token.attempt > 1 else []
                return self._first(*again, ("dependency", token.serial), ("run", token.serial))
            case TaskSubmitted() | TaskSlotGranted():
                return self._first(("placed", token))
            case TaskStarted():
                return self._first(("submitted", token), ("placed", token))
            case TaskNoticed():
                return self._first(("started", token), ("submitted", token), ("placed", token))
            case TaskExited() | TaskHeld() | TaskEnded():
                stopped = [("stop", token.serial)] if event.exit.stop_reason is not None else []
                return self._first(
                    ("exited", token),
                    *stopped,
                    ("started", token),
                    ("submitted", token),
                    ("placed", token),
                )


def _subjects(event: Event) -> list[tuple[object, ...]]:
    match event:
        case RunRequested(serial=serial):
            return [("request",), ("run", serial)]
        case StopRequested(serial=serial):
            return [("stop", serial)]
        case DependencyEnded(serial=serial):
            return [("dependency", serial)]
        case AgentStartRequested(agent_key=key):
            return [("start", key)]
        case TaskPlaced(token=token):
            return [("placed", token)]
        case TaskSubmitted(token=token):
            return [("submitted", token)]
        case TaskStarted(token=token):
            return [("started", token)]
        case TaskExited(token=token):
            return [("exited", token)]
        case TaskHeld(token=token) | TaskEnded(token=token):
            return [*_over(token)]
        case AttemptEnded(serial=serial):
            return [("attempt over", serial)]
        case RunEnded(serial=serial):
            return [("run over", serial)]
        case JobFolded(job=job):
            return (
                [] if job.run is None else [("run", job.run.serial), ("run over", job.run.serial)]
            )
        case _:
            return []


def _over(token: Token) -> list[tuple[object, ...]]:
    return [
        ("over", token.serial, token.attempt),
        ("task over", token.serial, token.attempt, token.role, token.index),
    ]
