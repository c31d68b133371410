"""The one fold: what the events of a job add up to. Used live, at restart, by stories, records and tests.

`evolve(job, event)` is total: it never raises on a sequence the core can write, and a late event of an older run changes
nothing but its own place in history. Values are frozen; a change is a new value.
"""

from typing import assert_never

import msgspec

from ..protocol.ids import Token
from ..protocol.status import CANCELED, PENDING, PURGED, RUNNING
from .events import AttemptEnded, JobEvent, JobFolded, RunEnded, RunPurged, RunRequested, StopRequested, TaskEnded, TaskPlaced, TaskStarted
from .state import Attempt, Job, PastRun, Run, Stop, Task

#: Earlier runs kept in a job; older ones are only counted (the log still has them).
HISTORY_LENGTH = 50


def evolve(job: Job, event: JobEvent) -> Job:
    """The job after this event."""
    job = msgspec.structs.replace(job, version=job.version + 1)
    match event:
        case RunRequested():
            return _requested(job, event)
        case JobFolded():
            return event.job
        case TaskPlaced():
            task = Task(token=event.token, agent_key=event.agent_key, op_id=event.op_id, placed_at=event.at, boot_id=event.boot_id)
            return _with_run(job, event.token.serial, lambda run: _placed(run, task))
        case TaskStarted():
            return _started(job, event)
        case StopRequested():
            stop = Stop(at=event.at, reason=event.reason, by=event.by, grace_secs=event.grace_secs, note=event.note)
            return _with_run(job, event.serial, lambda run: msgspec.structs.replace(run, stop=run.stop or stop))
        case TaskEnded():
            return _ended(job, event)
        case AttemptEnded():
            return _with_run(job, event.serial, lambda run: _attempt_ended(run, event))
        case RunEnded():
            return _with_run(job, event.serial, lambda run: _run_ended(run, event))
        case RunPurged():
            return _with_run(job, event.serial, lambda run: run if run.busy else msgspec.structs.replace(run, status=PURGED))
        case _:
            assert_never(event)


def fold(jid: str, events: list[JobEvent]) -> Job:
    """The job that these events, oldest first, add up to."""
    job = Job(jid=jid)
    for e in events:
        job = evolve(job, e)
    return job


def _with_run(job: Job, serial: int, change) -> Job:  # type: ignore[no-untyped-def]
    if job.run is None or job.run.serial != serial:
        return job
    return msgspec.structs.replace(job, run=change(job.run))


def _requested(job: Job, e: RunRequested) -> Job:
    history, dropped = job.history, job.history_dropped
    if job.run is not None:
        history = (*history, _past(job.run))
        while len(history) > HISTORY_LENGTH and not history[0].live_tasks:
            history, dropped = history[1:], dropped + 1
    run = Run(serial=e.serial, status=PENDING, spec=e.spec, run_dir=e.run_dir, req_id=e.req_id, queued_at=e.at,
              queued_mono=e.mono, queued_boot_id=e.boot_id)
    return msgspec.structs.replace(job, run=run, history=history, history_dropped=dropped)


def _past(run: Run) -> PastRun:
    e = run.exit
    return PastRun(
        serial=run.serial, status=run.status, queued_at=run.queued_at, started_at=run.started_at, ended_at=run.ended_at,
        reason=run.reason, error=run.error, compute_job_hash=run.spec.compute_job_hash, compute_model=run.spec.compute_model,
        job_run_mode=run.spec.job_run_mode, exit_code=e.code if e else None, exit_signal=e.signal if e else None,
        live_tasks=run.live_tasks,
    )


def _placed(run: Run, task: Task) -> Run:
    number = task.token.attempt
    attempts = run.attempts if any(a.number == number for a in run.attempts) else (*run.attempts, Attempt(number=number))
    return msgspec.structs.replace(run, attempts=tuple(
        msgspec.structs.replace(a, tasks=(*a.tasks, task)) if a.number == number else a for a in attempts
    ))


def _change_task(run: Run, token: Token, **fields: object) -> Run:
    return msgspec.structs.replace(run, attempts=tuple(
        a if a.number != token.attempt else msgspec.structs.replace(a, tasks=tuple(
            msgspec.structs.replace(t, **fields) if t.token == token else t for t in a.tasks
        )) for a in run.attempts
    ))


def _started(job: Job, e: TaskStarted) -> Job:
    fields = {"pid": e.pid, "start_ticks": e.start_ticks, "started_at": e.started_at, "host": e.host, "boot_id": e.boot_id}
    run = job.run
    if run is not None and run.serial == e.token.serial:
        run = _change_task(run, e.token, **fields)
        status = RUNNING if run.status == PENDING else run.status
        return msgspec.structs.replace(job, run=msgspec.structs.replace(run, status=status, started_at=run.started_at or e.started_at))
    return msgspec.structs.replace(job, history=tuple(
        p if p.serial != e.token.serial else msgspec.structs.replace(p, live_tasks=tuple(
            msgspec.structs.replace(t, **fields) if t.token == e.token else t for t in p.live_tasks
        )) for p in job.history
    ))


def _ended(job: Job, e: TaskEnded) -> Job:
    if job.run is not None and job.run.serial == e.token.serial:
        started = e.exit.started_at if e.exit.source != "start" else None
        run = _change_task(job.run, e.token, ended_at=e.at, exit=e.exit)
        return msgspec.structs.replace(job, run=msgspec.structs.replace(run, started_at=run.started_at or started))
    return msgspec.structs.replace(job, history=tuple(
        msgspec.structs.replace(p, live_tasks=tuple(t for t in p.live_tasks if t.token != e.token)) if p.serial == e.token.serial else p
        for p in job.history
    ))


def _attempt_ended(run: Run, e: AttemptEnded) -> Run:
    known = run.attempts if any(a.number == e.attempt for a in run.attempts) else (*run.attempts, Attempt(number=e.attempt))
    return msgspec.structs.replace(run, attempts=tuple(
        msgspec.structs.replace(a, ended_at=e.at, reason=e.reason) if a.number == e.attempt else a for a in known
    ))


def _run_ended(run: Run, e: RunEnded) -> Run:
    if not run.active:
        return run
    error = e.error if e.status != CANCELED else None
    exit_ = run.exit
    # it may have ended long before anybody could tell us
    ended_at = e.at if run.stop is not None or exit_ is None else exit_.ended_at or e.at
    return msgspec.structs.replace(run, status=e.status, ended_at=ended_at, reason=e.reason, error=error)
