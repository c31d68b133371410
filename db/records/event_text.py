"""The history of a job, an agent or the system for people: one line per event. Pure.

Ids are shortened as in logs. `data` returns the same for programs, with full ids.
"""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, assert_never

import msgspec

from ...protocol.clusters.batch import BatchState
from ...protocol.ids import Token, printable, short_op
from ..events.events import (
    AccessEvent,
    ActedForUser,
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
    LogCompacted,
    LogSetBack,
    RunEnded,
    RunPurged,
    RunRequested,
    ShellClosed,
    ShellOpened,
    StopRequested,
    SupervisorStarted,
    SupervisorStopped,
    SystemFolded,
    TagsChanged,
    TaskEnded,
    TaskExited,
    TaskHeld,
    TaskNoticed,
    TaskPlaced,
    TaskSlotGranted,
    TaskStarted,
    TaskSubmitted,
    TokenCreated,
    TokenRevoked,
    type_of,
)
from ..store.contract import Stored

#: Maximum length of texts that come from users or jobs.
SHOWN = 200


def story(events: Sequence[Stored]) -> list[str]:
    """Return one line per event: time, seconds since the previous event, text."""
    return [f"{line['time']}  {_gap(line['gap'])}  {line['text']}" for line in _lines(events)]


def data(events: Sequence[Stored]) -> list[dict[str, Any]]:
    """Return the history as plain data: position, stream, version, type, at, gap (seconds, null for
    the first), time (UTC), text, event.
    """
    return [
        {
            "position": s.position,
            "stream": s.stream,
            "version": s.version,
            "type": type_of(s.event),
            "at": s.event.at,
            **line,
            "event": msgspec.to_builtins(s.event),
        }
        for s, line in zip(events, _lines(events), strict=True)
    ]


def _lines(events: Sequence[Stored]) -> list[dict[str, Any]]:
    gaps = [None, *(b.event.at - a.event.at for a, b in itertools.pairwise(events))]
    return [
        {"time": _time(s.event.at), "gap": gap, "text": sentence(s.event)}
        for s, gap in zip(events, gaps, strict=False)
    ]


def _time(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError, OSError):
        return f"{at!r} s".rjust(24)


def _gap(gap: float | None) -> str:
    """Format the gap in nine characters. It is negative if the clock was set back."""
    return (" " * 9) if gap is None else f"{gap:+.3f}s".rjust(9)


def sentence(event: Event) -> str:
    """Return the text of one event."""
    match event:
        case (
            RunRequested()
            | StopRequested()
            | LateStopRequested()
            | RunEnded()
            | RunPurged()
            | DependencyEnded()
            | TagsChanged()
        ):
            return _of_run(event)
        case AttemptDecided() | AttemptEnded():
            return _of_attempt(event)
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
            return _of_task(event)
        case (
            AgentStartRequested()
            | AgentStarted()
            | AgentStartFailed()
            | AgentSignInNeeded()
            | AgentGone()
        ):
            return _of_agent(event)
        case JobFolded() | AgentFolded() | SystemFolded():
            return _of_checkpoint(event)
        case TokenCreated() | TokenRevoked():
            return _of_access(event)
        case ShellOpened() | ShellClosed():
            return _of_shell(event)
        case ActedForUser():
            about = f" on {_clean(event.jid)}" if event.jid else ""
            return (
                f"{_clean(event.actor)} ({event.actor_role}) acted for {_clean(event.subject)}: {_clean(event.action)}{about}"
                f" from {_clean(event.peer)}, {event.outcome}"
            )
        case LogCompacted():
            return f"the log up to position {event.position} was compacted: {event.events_before} events became {event.events_after}"
        case LogSetBack():
            behind = event.lost_up_to > event.position
            if event.reason == "repaired":
                lost = (
                    f"some events after it, up to position {event.lost_up_to}, are lost"
                    if behind
                    else "no event is known to be lost"
                )
                return f"a damaged log was repaired: intact up to position {event.position}; {lost}"
            lost = (
                f"events after it, up to position {event.lost_up_to}, are lost"
                if behind
                else "no event is known to be lost"
            )
            return (
                f"a backup was restored: the log continues from position {event.position}; {lost}"
            )
        case SupervisorStarted():
            return f"supervisor session {event.session} started: pid {event.pid}, version {_clean(event.version)}"
        case SupervisorStopped():
            return f"supervisor session {event.session} stopped: {_clean(event.reason)}"
        case _:
            assert_never(event)


def _of_checkpoint(event: JobFolded | AgentFolded | SystemFolded) -> str:
    count = "1 earlier event" if event.events == 1 else f"{event.events} earlier events"
    folded = f"{count} folded into this one on {_time(event.folded_at)[:10]}, the first from {_time(event.since)}"
    match event:
        case JobFolded(job=job):
            run = f"run {job.run.serial} is {job.status}" if job.run is not None else "no run"
            more = "; some data was dropped" if event.trimmed else ""
            return f"{run} ({len(job.history) + job.history_dropped} earlier runs); {folded}{more}"
        case AgentFolded(agent=agent):
            return f"agent {agent.key} was at attempt {agent.attempt}; {folded}"
        case SystemFolded():
            return f"last supervisor session: {event.session}; {folded}"
        case _:
            assert_never(event)


def _of_access(event: AccessEvent) -> str:
    match event:
        case TokenCreated():
            scopes = ", ".join(event.scopes)
            return (
                f"API token {event.id} {_clean(event.name)!r} of {event.uid} created by {event.by}: {scopes};"
                f" expires {_time(event.expires_at)}"
            )
        case TokenRevoked():
            why = f": {_clean(event.reason)}" if event.reason else ""
            return f"API token {event.id} revoked by {event.by}{why}"
        case _:
            assert_never(event)


def _of_attempt(event: AttemptDecided | AttemptEnded) -> str:
    attempt = f"run {event.serial} attempt {event.attempt}"
    match event:
        case AttemptDecided():
            by = "" if event.role is None else f" by {event.role}/{event.index}"
            result = "success" if event.succeeded else "failure"
            return f"{attempt} decided{by}, {result}: {_clean(event.reason)}"
        case AttemptEnded():
            again = (
                ""
                if event.retry is None
                else f"; next attempt in {event.retry.delay_secs:g} s: {_clean(event.retry.reason)}"
            )
            no = "" if event.not_retried is None else f"; no retry: {_clean(event.not_retried)}"
            return f"{attempt} ended: {_clean(event.reason)}{again}{no}"
        case _:
            assert_never(event)


def _of_run(
    event: RunRequested
    | StopRequested
    | LateStopRequested
    | RunEnded
    | RunPurged
    | DependencyEnded
    | TagsChanged,
) -> str:
    match event:
        case RunRequested():
            spec = event.spec
            named = f" {_clean(spec.sim_name)!r}" if spec.sim_name else ""
            kind = " ".join(dict.fromkeys((spec.simulation_type, spec.compute_model)))
            return (
                f"run {event.serial} requested by {spec.uid}: {kind}{named}, {spec.job_run_mode} on"
                f" {spec.driver} (request {event.req_id})"
                + _requested_roles(event)
                + (f", cloned from {spec.cloned_from}" if spec.cloned_from else "")
            )
        case StopRequested():
            note = f": {_clean(event.note)}" if event.note else ""
            return f"stop of run {event.serial} requested ({event.reason}) by {event.by}, grace {event.grace_secs:g} s{note}"
        case LateStopRequested():
            note = f": {_clean(event.note)}" if event.note else ""
            return (
                f"stop of run {event.serial} requested ({event.reason}) by {event.by} after its command had ended;"
                f" the result does not change{note}"
            )
        case DependencyEnded():
            return f"run {event.serial} no longer waits for run {event.compute_job_serial} of {event.compute_jid}, which is {event.status}"
        case RunEnded():
            why = f" ({event.reason})" if event.reason else ""
            return f"run {event.serial} is {event.status}{why}" + (
                f": {_clean(event.error)}" if event.error else ""
            )
        case RunPurged():
            return f"run {event.serial} was purged: its run directory was removed"
        case TagsChanged():
            changes = [f"added {', '.join(event.added)}"] if event.added else []
            changes += [f"removed {', '.join(event.removed)}"] if event.removed else []
            return f"tags changed by {event.by}: {'; '.join(changes)}"
        case _:
            assert_never(event)


def _requested_roles(event: RunRequested) -> str:
    roles = ", ".join(f"{role.tasks} x {role.name}" for role in event.spec.roles)
    count = len(event.waits_for)
    waits = f"; waits for {count} other run{'s' * (count > 1)}" if count else ""
    return (f": {roles}" if roles else "") + waits


def _of_task(
    event: TaskPlaced
    | TaskSlotGranted
    | TaskSubmitted
    | TaskStarted
    | TaskExited
    | TaskHeld
    | TaskEnded
    | TaskNoticed,
) -> str:
    match event:
        case TaskPlaced():
            ahead = " ahead of a free slot" if event.ahead else ""
            return f"{_task(event.token)} placed on {event.agent_key}{ahead} (op {short_op(event.op_id)})"
        case TaskSlotGranted():
            return f"{_task(event.token)} has a slot"
        case TaskSubmitted(batch=batch):
            return f"{_task(event.token)} submitted to {batch.cluster}: Slurm job {batch.job_id}{_queue(batch)}"
        case TaskStarted():
            pid = f"pid {event.pid} on " if event.pid else "on "
            return f"{_task(event.token)} started: {pid}{event.host}"
        case TaskExited():
            stopped = (
                f", stopped by jobscribe ({event.exit.stop_reason})"
                if event.exit.stop_reason
                else ""
            )
            return f"{_task(event.token)}: command ended: {_clean(event.exit.sentence())}{stopped}; other processes are still alive"
        case TaskHeld():
            how = _clean(event.exit.sentence())
            return (
                f"{_task(event.token)} failed and is held for {event.secs:g} s for debugging: {how}"
            )
        case TaskNoticed(code="imagePulling", text=image):
            return f"{_task(event.token)}: the pull of image {_clean(image)} begins"
        case TaskNoticed(code="imagePulled", text=image):
            return f"{_task(event.token)}: image {_clean(image)} is pulled"
        case TaskNoticed():
            return f"{_task(event.token)}: {_clean(event.text)} ({_clean(event.code)}); the task goes on"
        case TaskEnded():
            stopped = (
                f", stopped by jobscribe ({event.exit.stop_reason})"
                if event.exit.stop_reason
                else ""
            )
            return f"{_task(event.token)} ended: {_clean(event.exit.sentence())}{stopped}{_meaning(event)}{_by_slurm(event)}"
        case _:
            assert_never(event)


def _meaning(event: TaskEnded) -> str:
    found = event.diagnosis
    return "" if found is None or event.exit.stop_reason else f" ({found.phrase}, {found.type})"


def _queue(batch: BatchState) -> str:
    """Return partition and account of a Slurm job."""
    asked = [
        f"{what} {_clean(name)}"
        for what, name in (("partition", batch.partition), ("account", batch.account))
        if name
    ]
    return f" ({', '.join(asked)})" if asked else ""


def _by_slurm(event: TaskEnded) -> str:
    """Return the last state at the batch scheduler."""
    batch = event.exit.batch
    if not isinstance(batch, BatchState) or batch.job_id is None:
        return ""
    by = f", canceled by {_clean(batch.canceled_by)}" if batch.canceled_by else ""
    on = f" on {_clean(batch.nodes)}" if batch.nodes else ""
    return f"; Slurm job {batch.job_id}: {_clean(batch.state) or 'state unknown'}{by}{on}"


def _of_agent(
    event: AgentStartRequested | AgentStarted | AgentStartFailed | AgentSignInNeeded | AgentGone,
) -> str:
    match event:
        case AgentStartRequested():
            return f"start of agent {event.agent_key} requested (attempt {event.attempt})"
        case AgentStarted():
            return f"agent {event.agent_key} started"
        case AgentStartFailed():
            return f"start of agent {event.agent_key} failed (attempt {event.attempt}): {_clean(event.reason)}"
        case AgentSignInNeeded():
            return f"agent {event.agent_key} waits for its user to sign in (attempt {event.attempt}): {_clean(event.reason)}"
        case AgentGone():
            return f"agent {event.agent_key} is gone: {_clean(event.reason)}"
        case _:
            assert_never(event)


def _task(token: Token) -> str:
    return f"task {token.role}/{token.index} of run {token.serial} attempt {token.attempt}"


def _clean(text: str) -> str:
    """Make a text from users or jobs safe for a terminal, and shorten it."""
    text = printable(text)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _of_shell(event: ShellOpened | ShellClosed) -> str:
    of = f"shell {_clean(event.shell)}"
    if isinstance(event, ShellOpened):
        if event.program is not msgspec.UNSET:
            of = f"{of} for {_clean(event.program)}"
        return (
            f"{_clean(event.actor)} ({event.actor_role}) opened {of} in task {_clean(event.task)} of"
            f" {_clean(event.jid)} from {_clean(event.peer)}"
        )
    how = {
        "exit": f"exit code {event.code}" if event.signal is None else f"signal {event.signal}"
    }.get(event.reason, _clean(event.reason))
    return f"{of} in {_clean(event.jid)} closed after {event.seconds:.0f} s: {how}"
