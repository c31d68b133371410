"""Decides which events a checkpoint may replace, and builds the checkpoint. Pure.

A job is folded as a whole when it is not busy and its last event is old. In the streams of agents
and of the system, only the old beginning is folded. A checkpoint has position, version and time of
the last event it replaces, so everything derived from these (index, records, followers, expected
versions) stays valid. Folding a checkpoint again changes nothing.
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
#: Replaces the error text of a purged run, so that its failure stays visible.
NOT_KEPT = "it failed; what was said of that is not kept"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules of a compaction. before: events at this time or later are kept. history: earlier runs
    kept in a job; None: a job is folded exactly as it is.

    at: now.
    """

    before: float
    history: int | None
    at: float


class Identity(msgspec.Struct, frozen=True):
    """Identity of the root that owns the log. root_id: None for a log from versions without
    identities. restored: a backup was restored since.
    """

    root_id: str | None = None
    restored: bool = False


class Checkpoint(msgspec.Struct, frozen=True):
    """`row` replaces the first `count` events of its stream, at the place of the last of them."""

    row: Stored
    count: int


def job_of(stream: str, events: Sequence[Stored]) -> Job | None:
    """Return the job that the whole stream folds to; None for another kind of stream."""
    if not stream.startswith(_JOB):
        return None
    job = Job(jid=parse("computeJid", stream.removeprefix(_JOB)))
    for stored in events:
        job = evolve(job, stored.event)  # type: ignore[arg-type]
    return job


def checkpoint(stream: str, events: Sequence[Stored], rules: Rules) -> Checkpoint | None:
    """Return a checkpoint for the first events of this stream; None if it would save nothing.
    events: from the first event of the stream on.
    """
    if stream.startswith(_JOB):
        job = job_of(stream, events)
        return None if job is None else _job(job, events, rules)
    old = _old(events, rules.before)
    if stream == SYSTEM:
        old = old[: _first_needed(old)]
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
    return _replacing(old, event)


def trimmed(job: Job, history: int) -> Job:
    """Return the job without data that compaction drops: older runs; of a purged run, everything
    but its description and result.
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
    """Return the number of the last supervisor session; 0 for none. events: of the stream `system`."""
    return max(
        (s.event.session for s in events if isinstance(s.event, SupervisorStarted | SystemFolded)),
        default=0,
    )


def serial_floor(events: Sequence[Stored]) -> int:
    """Return the lowest safe serial: lost events may have used lower ones. events: of the stream
    `system`.
    """
    return max(
        (s.event.serial_floor for s in events if isinstance(s.event, LogSetBack | SystemFolded)),
        default=0,
    )


def identity(events: Sequence[Stored]) -> Identity:
    """Return the identity of the log. events: of the stream `system`."""
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
    kept = job if rules.history is None else trimmed(job, rules.history)
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
    return _replacing(events, event)


def _old(events: Sequence[Stored], before: float) -> Sequence[Stored]:
    young = next((n for n, s in enumerate(events) if s.event.at >= before), len(events))
    return events[:young]


def _first_needed(events: Sequence[Stored]) -> int:
    """Return the index of the first event that the next start still needs: a rollback that no ended
    session follows.
    """
    needed = len(events)
    for n, s in enumerate(events):
        if isinstance(s.event, LogSetBack):
            needed = min(needed, n)
        elif isinstance(s.event, SupervisorStopped):
            needed = len(events)
    return needed


def is_rolled_back(events: Sequence[Stored]) -> bool:
    """Return whether the log was rolled back and no session has ended since. Agents may then run
    executions that the log does not know. events: of the stream `system`.
    """
    return _first_needed(events) < len(events)


def _count(events: Sequence[Stored]) -> int:
    first = events[0].event
    return len(events) + (
        first.events - 1 if isinstance(first, JobFolded | AgentFolded | SystemFolded) else 0
    )


def _since(events: Sequence[Stored]) -> float:
    first = events[0].event
    return first.since if isinstance(first, JobFolded | AgentFolded | SystemFolded) else first.at


def _replacing(events: Sequence[Stored], event: Event) -> Checkpoint:
    last = events[-1]
    return Checkpoint(Stored(last.position, last.stream, last.version, event), len(events))
