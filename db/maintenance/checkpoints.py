"""Which events one checkpoint may stand for, and what it says. Pure: rules and events in, a
checkpoint out.

A job is folded whole, once nothing is owed for it and its last event is old; of an agent's stream
and the system's the old beginning is. A checkpoint takes position, version and time of the last
event it stands for, so whatever was built on those (index, records, followers, expected versions)
stays true. Folding what is folded already changes nothing.
"""

from collections.abc import Sequence

import msgspec

from ...protocol.ids import parse, parse_agent_key
from ...protocol.jobs.status import PURGED
from ..events.agent_fold import evolve_agent
from ..events.events import (
    SYSTEM,
    AgentFolded,
    Event,
    JobFolded,
    LogSetBack,
    SupervisorStarted,
    SupervisorStopped,
    SystemFolded,
)
from ..events.job_fold import evolve
from ..events.state import AgentRecord, Job
from ..store.contract import Stored

_JOB, _AGENT = "job/", "agent/"
#: In place of the error of a run that was purged: that it failed is kept.
NOT_KEPT = "it failed; what was said of that is not kept"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """before: what happened at this time or later stays as it is. history: earlier runs kept of a
    job. at: now.
    """

    before: float
    history: int
    at: float


class Identity(msgspec.Struct, frozen=True):
    """Whose log it is. root_id: None for a log that no version with identities has used. restored:
    put in place as a backup since.
    """

    root_id: str | None = None
    restored: bool = False


class Checkpoint(msgspec.Struct, frozen=True):
    """`row` stands for the first `count` events of its stream, whose last one it takes the place
    of.
    """

    row: Stored
    count: int


def job_of(stream: str, events: Sequence[Stored]) -> Job | None:
    """The job that a whole stream adds up to; None where it is another kind of stream."""
    if not stream.startswith(_JOB):
        return None
    job = Job(jid=parse("computeJid", stream.removeprefix(_JOB)))
    for stored in events:
        job = evolve(job, stored.event)  # type: ignore[arg-type]
    return job


def checkpoint(stream: str, events: Sequence[Stored], rules: Rules) -> Checkpoint | None:
    """What may stand for the first events of this stream (given from its first one on); None where
    nothing is won.
    """
    if stream.startswith(_JOB):
        job = job_of(stream, events)
        return None if job is None else _job(job, events, rules)
    old = _old(events, rules.before)
    if stream == SYSTEM:
        old = old[: _owed(old)]
    if len(old) < 2:
        return None
    if stream.startswith(_AGENT):
        agent = AgentRecord(key=parse_agent_key(stream.removeprefix(_AGENT)))
        for stored in old:
            agent = evolve_agent(agent, stored.event)  # type: ignore[arg-type]
        event: Event = AgentFolded(
            at=old[-1].event.at,
            agent=agent,
            events=_count(old),
            since=_since(old),
            folded_at=rules.at,
        )
    elif stream == SYSTEM and any(
        isinstance(s.event, SupervisorStarted | SupervisorStopped) for s in old
    ):
        event = SystemFolded(
            at=old[-1].event.at,
            session=last_session(old),
            serial_floor=serial_floor(old),
            events=_count(old),
            since=_since(old),
            folded_at=rules.at,
            root_id=identity(old).root_id,
        )
    else:
        return None
    return _instead(old, event)


def trimmed(job: Job, history: int) -> Job:
    """The job without what is not kept for ever: older runs, and of a purged run all but what it
    was and how it ended.
    """
    run = job.run
    if run is not None and run.status == PURGED:
        spec = msgspec.structs.replace(
            run.spec, command=(), data=None, env={}, wrap=(), sim_name=None, roles=(), after=()
        )
        run = msgspec.structs.replace(
            run,
            spec=spec,
            attempts=(),
            stop=None,
            late_stop=None,
            error=None if run.error is None else NOT_KEPT,
        )
        history = 0
    dropped = max(0, len(job.history) - history)
    return msgspec.structs.replace(
        job, run=run, history=job.history[dropped:], history_dropped=job.history_dropped + dropped
    )


def last_session(events: Sequence[Stored]) -> int:
    """Of the events of the system: number of the last supervisor session; 0 for none."""
    return max(
        (s.event.session for s in events if isinstance(s.event, SupervisorStarted | SystemFolded)),
        default=0,
    )


def serial_floor(events: Sequence[Stored]) -> int:
    """Of the events of the system: below this, serials may have been used in what the log has lost."""
    return max(
        (s.event.serial_floor for s in events if isinstance(s.event, LogSetBack | SystemFolded)),
        default=0,
    )


def identity(events: Sequence[Stored]) -> Identity:
    """Of the events of the system."""
    out = Identity()
    for stored in events:
        match stored.event:
            case SupervisorStarted(root_id=root_id) | SystemFolded(root_id=root_id) if (
                root_id is not None
            ):
                out = Identity(root_id)
            case LogSetBack(reason="restored"):
                out = Identity(out.root_id, restored=True)
    return out


def _job(job: Job, events: Sequence[Stored], rules: Rules) -> Checkpoint | None:
    if job.busy or events[-1].event.at >= rules.before:
        return None
    kept = trimmed(job, rules.history)
    if kept == job and len(events) == 1:
        return None
    first = events[0].event
    event = JobFolded(
        at=events[-1].event.at,
        job=kept,
        events=_count(events),
        since=_since(events),
        folded_at=rules.at,
        trimmed=kept != job or (isinstance(first, JobFolded) and first.trimmed),
    )
    return _instead(events, event)


def _old(events: Sequence[Stored], before: float) -> Sequence[Stored]:
    young = next((n for n, s in enumerate(events) if s.event.at >= before), len(events))
    return events[:young]


def _owed(events: Sequence[Stored]) -> int:
    """Number of the first event that a start still looks for: a setting back after which no session
    has ended yet.
    """
    owed = len(events)
    for n, s in enumerate(events):
        if isinstance(s.event, LogSetBack):
            owed = min(owed, n)
        elif isinstance(s.event, SupervisorStopped):
            owed = len(events)
    return owed


def set_back(events: Sequence[Stored]) -> bool:
    """Of the events of the system: was the log set back, and no session has ended since? Then
    agents may run what it does not know.
    """
    return _owed(events) < len(events)


def _count(events: Sequence[Stored]) -> int:
    first = events[0].event
    return len(events) + (
        first.events - 1 if isinstance(first, JobFolded | AgentFolded | SystemFolded) else 0
    )


def _since(events: Sequence[Stored]) -> float:
    first = events[0].event
    return first.since if isinstance(first, JobFolded | AgentFolded | SystemFolded) else first.at


def _instead(events: Sequence[Stored], event: Event) -> Checkpoint:
    last = events[-1]
    return Checkpoint(Stored(last.position, last.stream, last.version, event), len(events))
