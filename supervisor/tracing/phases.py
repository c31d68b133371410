"""Phases of a run, and causes of the gaps between its events. Pure.

All times are of the supervisor's clock. Clocks of agents are compared in `clock_offsets`.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...db.events.events import (
    AgentGone,
    AgentSignInNeeded,
    AgentStarted,
    AgentStartFailed,
    AgentStartRequested,
    AttemptEnded,
    DependencyEnded,
    Event,
    JobFolded,
    RunEnded,
    RunRequested,
    StopRequested,
    SupervisorStarted,
    SupervisorStopped,
    TaskEnded,
    TaskExited,
    TaskHeld,
    TaskNoticed,
    TaskPlaced,
    TaskSlotGranted,
    TaskStarted,
    TaskSubmitted,
)
from ...db.store.contract import Stored
from ...protocol.ids import AgentKind, Token
from ...protocol.jobs.notices import IMAGE_PULLED, IMAGE_PULLING

#: Shortest reported gap in seconds, and as a share of the whole time.
LEAST_SECS, LEAST_SHARE = 1.0, 0.005
#: Returns the job that freed the slot for the placement at this position; None if unknown.
Freed = Callable[[int], str | None]


class Phase(NamedTuple):
    """A phase of a run. track: phases of one track do not overlap. until: None if it has not ended.
    position: of the event that ends it.
    """

    name: str
    component: str
    track: str
    since: float
    until: float | None
    position: int | None


def waits(events: Sequence[Stored], freed: Freed) -> list[dict[str, Any]]:
    """Return the gaps between events: since, until, secs, text (its cause), known (whether the
    cause is known), before (position of the next event).
    """
    out: list[dict[str, Any]] = []
    whole = events[-1].event.at - events[0].event.at if events else 0.0
    state = _State()
    for a, b in itertools.pairwise(events):
        state.see(a)
        secs = b.event.at - a.event.at
        if secs < max(LEAST_SECS, whole * LEAST_SHARE):
            continue
        text = state.waited_for(b, freed)
        out.append(
            {
                "since": a.event.at,
                "until": b.event.at,
                "secs": round(secs, 3),
                "before": b.position,
                "known": text is not None,
                "text": f"{secs:.1f} s {text or 'without events: the cause is unknown'}",
            }
        )
    return out


class _State:
    """State of a run, computed from its events in order, to determine the reason for each wait."""

    def __init__(self) -> None:
        self._run: RunRequested | None = None
        self._over = False
        self._stop: StopRequested | None = None
        self._retry: AttemptEnded | None = None
        self._starting: dict[object, Event] = {}
        self._agent: AgentStarted | AgentStartFailed | AgentGone | None = None
        self._open: dict[
            Token,
            TaskPlaced | TaskSlotGranted | TaskSubmitted | TaskStarted | TaskExited | TaskHeld,
        ] = {}
        #: images that are being pulled, and None for an image that was pulled
        self._pulls: dict[Token, str | None] = {}
        self._ended_dependencies = 0
        self._session: int | None = None
        self._away = ""

    def see(self, stored: Stored) -> None:
        event = stored.event
        match event:
            case RunRequested():
                self._run, self._over, self._stop, self._retry, self._ended_dependencies = (
                    event,
                    False,
                    None,
                    None,
                    0,
                )
            case StopRequested():
                self._stop = event
            case DependencyEnded():
                self._ended_dependencies += 1
            case AgentStartRequested(agent_key=key) | AgentSignInNeeded(agent_key=key):
                self._starting[key] = event
            case (
                AgentStarted(agent_key=key)
                | AgentStartFailed(agent_key=key)
                | AgentGone(agent_key=key)
            ):
                self._starting.pop(key, None)
                self._agent = event
            case (
                TaskPlaced(token=token)
                | TaskSlotGranted(token=token)
                | TaskSubmitted(token=token)
                | TaskStarted(token=token)
                | TaskExited(token=token)
                | TaskHeld(token=token)
            ):
                self._open[token], self._retry = event, None
            case TaskNoticed(token=token, code=code, text=image) if code in _PULL:
                self._pulls[token] = image if code == IMAGE_PULLING else None
            case TaskEnded(token=token):
                self._open.pop(token, None)
                self._pulls.pop(token, None)
            case AttemptEnded():
                self._retry = event if event.retry is not None else None
            case RunEnded() | JobFolded():
                self._over = True
            case SupervisorStarted(session=session):
                self._session, self._away = session, ""
            case SupervisorStopped(session=session):
                self._session, self._away = session, "stopped"
            case _:
                pass

    def waited_for(self, then: Stored, freed: Freed) -> str | None:
        """Return the cause of the gap before the event `then`; None if unknown."""
        if isinstance(then.event, SupervisorStarted):
            before = then.event.session - 1 if self._session is None else self._session
            note = (
                ""
                if self._away
                else "; its last record is the previous event, but it may have run longer"
            )
            return f"supervisor was away: session {before} -> {then.event.session}{note}"
        if self._open:
            return self._task_wait()
        if self._over:
            return "after the end of the run" + (
                ", until it was requested again" if isinstance(then.event, RunRequested) else ""
            )
        return self._queue_wait(then, freed)

    def _task_wait(self) -> str:
        newest = max(self._open.values(), key=lambda e: _RANK[type(e)])
        token = newest.token
        which = f"{token.role}/{token.index}" + (
            f" and {len(self._open) - 1} more" if len(self._open) > 1 else ""
        )
        match newest:
            case TaskStarted() if self._stop is not None:
                return f"task {which} was being stopped ({self._stop.reason}, grace {self._stop.grace_secs:g} s)"
            case TaskStarted():
                return f"task {which} ran"
            case TaskExited():
                return f"the command of task {which} had ended, and its cleanup was in progress"
            case TaskHeld(secs=secs):
                return f"task {which} was held for debugging for up to {secs:g} s"
            case TaskSubmitted(batch=batch):
                why = f": {batch.reason}" if batch.reason and batch.reason != "None" else ""
                return f"in Slurm's queue{why} (Slurm job {batch.job_id} on {batch.cluster})"
            case TaskPlaced(agent_key=key, ahead=True):
                return f"task {which} waited at {key} for a slot"
            case TaskSlotGranted():
                return f"until task {which} started: the op was on its way"
            case TaskPlaced(agent_key=key):
                if (image := next(filter(None, self._pulls.values()), None)) is not None:
                    return f"image {image} was pulled for task {which}, at {key}"
                step = (
                    "its container was created"
                    if key.kind == AgentKind.CONTAINER
                    else "the op was on its way"
                )
                return f"until task {which} started: {step}, at {key}"

    def _queue_wait(self, then: Stored, freed: Freed) -> str | None:
        if self._retry is not None and self._retry.retry is not None:
            again = self._retry.retry
            return f"pause of {again.delay_secs:g} s before attempt {self._retry.attempt + 1}: {again.reason}"
        for key, event in self._starting.items():
            if isinstance(event, AgentSignInNeeded):
                return f"until the user of agent {key} signed in"
            return f"until agent {key} started"
        run = self._run
        if run is None:
            return self._agent_wait()
        if isinstance(then.event, DependencyEnded) or self._ended_dependencies < len(run.waits_for):
            return f"queued: dependency ({len(run.waits_for) - self._ended_dependencies} other runs had to end first)"
        if isinstance(then.event, AgentStartRequested):
            return f"queued: the start of agent {then.event.agent_key} was not requested yet"
        if isinstance(then.event, TaskPlaced):
            job = freed(then.position)
            if job is not None:
                return f"queued: op_slot of {run.spec.uid}, free when {job} ended"
            return (
                f"queued: waiting for agent {then.event.agent_key} to connect, or for a slot there"
            )
        return None

    def _agent_wait(self) -> str | None:
        """Return the cause of a gap between events of an agent alone."""
        match self._agent:
            case AgentStarted(agent_key=key):
                return f"agent {key} was running"
            case AgentStartFailed(agent_key=key):
                return f"pause before the next start of agent {key}"
            case AgentGone(agent_key=key):
                return f"until agent {key} was needed again"
            case _:
                return None


_PULL = (IMAGE_PULLING, IMAGE_PULLED)
_RANK: dict[type, int] = {
    TaskStarted: 4,
    TaskExited: 3,
    TaskHeld: 2,
    TaskSubmitted: 1,
    TaskSlotGranted: 1,
    TaskPlaced: 0,
}


# ---- phases for charts


def phases(events: Sequence[Stored]) -> list[Phase]:
    """Return the phases of runs and tasks: queued, agent start, start on its way, image pull, in
    Slurm's queue, execution, end.
    """
    return sorted(
        [*_run_phases(events), *_agent_phases(events), *_execution_phases(events)],
        key=lambda p: (p.since, p.track),
    )


def _run_phases(events: Sequence[Stored]) -> list[Phase]:
    out: list[Phase] = []
    queued: dict[int, tuple[str, float]] = {}
    over: dict[int, float] = {}
    for s in events:
        match s.event:
            case RunRequested(serial=serial, at=at):
                queued[serial] = ("queued", at)
            case AttemptEnded(serial=serial, at=at, retry=retry) if retry is not None:
                queued[serial] = (f"pause before attempt {s.event.attempt + 1}", at)
                over.pop(serial, None)
            case TaskPlaced(token=token, at=at):
                over.pop(token.serial, None)
                if token.serial in queued:
                    name, since = queued.pop(token.serial)
                    out.append(
                        Phase(name, "supervisor", f"run {token.serial}", since, at, s.position)
                    )
            case TaskEnded(token=token, at=at):
                over[token.serial] = at
            case RunEnded(serial=serial, at=at):
                if serial in queued:
                    out.append(
                        Phase(
                            queued[serial][0],
                            "supervisor",
                            f"run {serial}",
                            queued.pop(serial)[1],
                            at,
                            s.position,
                        )
                    )
                elif serial in over:
                    out.append(
                        Phase(
                            "end", "supervisor", f"run {serial}", over.pop(serial), at, s.position
                        )
                    )
            case _:
                pass
    return out + [
        Phase(name, "supervisor", f"run {serial}", since, None, None)
        for serial, (name, since) in queued.items()
    ]


def _agent_phases(events: Sequence[Stored]) -> list[Phase]:
    out: list[Phase] = []
    starting: dict[object, float] = {}
    for s in events:
        match s.event:
            case AgentStartRequested(agent_key=key, at=at):
                starting.setdefault(key, at)
            case (
                AgentStarted(agent_key=key, at=at)
                | AgentStartFailed(agent_key=key, at=at)
                | AgentSignInNeeded(agent_key=key, at=at)
            ):
                if key in starting:
                    out.append(
                        Phase("agent start", "agent", str(key), starting.pop(key), at, s.position)
                    )
            case _:
                pass
    return out + [
        Phase("agent start", "agent", str(key), since, None, None)
        for key, since in starting.items()
    ]


def _execution_phases(events: Sequence[Stored]) -> list[Phase]:
    out: list[Phase] = []
    doing: dict[Token, tuple[str, str, float]] = {}

    def step(token: Token, s: Stored, then: tuple[str, str] | None) -> None:
        if token in doing:
            name, component, since = doing.pop(token)
            out.append(Phase(name, component, _track(token), since, s.event.at, s.position))
        if then is not None:
            doing[token] = (*then, s.event.at)

    for s in events:
        match s.event:
            case TaskPlaced(token=token, ahead=True):
                step(token, s, ("waiting for a slot", "agent"))
            case TaskPlaced(token=token) | TaskSlotGranted(token=token):
                step(token, s, ("start on its way", "agent"))
            case TaskNoticed(token=token, code=code) if code in _PULL and token in doing:
                pulls = code == IMAGE_PULLING
                step(
                    token,
                    s,
                    ("image pull", "container") if pulls else ("start on its way", "agent"),
                )
            case TaskSubmitted(token=token):
                step(token, s, ("in Slurm's queue", "slurm"))
            case TaskStarted(token=token):
                step(token, s, ("execution", "command"))
            case TaskExited(token=token):
                step(token, s, ("completing", "command"))
            case TaskHeld(token=token):
                step(token, s, ("held for debugging", "command"))
            case TaskEnded(token=token):
                step(token, s, None)
            case _:
                pass
    return out + [
        Phase(name, component, _track(token), since, None, None)
        for token, (name, component, since) in doing.items()
    ]


def _track(token: Token) -> str:
    return f"run {token.serial} attempt {token.attempt} {token.role}/{token.index}"
