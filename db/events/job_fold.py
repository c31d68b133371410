"""The fold of a job's stream. The supervisor, restarts, event history, records and tests all use
it.

`evolve(job, event)` is total: it never raises on a sequence that the core can write. A late event
of an older run changes only that run's entry in the history. Values are frozen; a change returns a
new value.
"""

from typing import Any, assert_never

import msgspec

from ...diagnosis.exit_table import Diagnosis
from ...protocol.ids import Token
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.notices import Notice
from ...protocol.jobs.status import CANCELED, PENDING, PURGED, RUNNING
from .events import (
    AttemptDecided,
    AttemptEnded,
    DependencyEnded,
    JobEvent,
    JobFolded,
    LateStopRequested,
    RunEnded,
    RunPurged,
    RunRequested,
    StopRequested,
    TagsChanged,
    TaskEnded,
    TaskExited,
    TaskHeld,
    TaskNoticed,
    TaskPlaced,
    TaskSlotGranted,
    TaskStarted,
    TaskSubmitted,
)
from .state import Attempt, DebugHold, Decided, Job, PastRun, Run, Stop, Task

#: Earlier runs kept in a job. Older runs are only counted; the log still has them.
HISTORY_LENGTH = 50
#: Attempts kept with their tasks, and attempts kept at all. No retry policy counts further back.
ATTEMPTS_WHOLE, ATTEMPTS_KEPT = 20, 2_500


def evolve(job: Job, event: JobEvent) -> Job:
    """Return the job after this event."""
    job = msgspec.structs.replace(job, version=job.version + 1)
    match event:
        case RunRequested():
            return _requested(job, event)
        case JobFolded():
            return event.job
        case TaskPlaced():
            task = Task(
                token=event.token,
                agent_key=event.agent_key,
                op_id=event.op_id,
                placed_at=event.at,
                boot_id=event.boot_id,
                address=event.address,
                ports=event.ports,
                gpus=event.gpus,
                ahead=event.ahead,
            )
            return _with_run(job, event.token.serial, lambda run: _placed(run, task))
        case TaskSlotGranted():
            return _change_task_of(job, event.token, slot_at=event.at)
        case DependencyEnded():
            return _with_run(job, event.serial, lambda run: _dependency_ended(run, event))
        case TaskSubmitted():
            return _change_task_of(job, event.token, batch=event.batch)
        case TaskStarted():
            return _started(job, event)
        case StopRequested():
            stop = Stop(
                at=event.at,
                reason=event.reason,
                by=event.by,
                grace_secs=event.grace_secs,
                note=event.note,
            )
            return _with_run(
                job, event.serial, lambda run: msgspec.structs.replace(run, stop=run.stop or stop)
            )
        case LateStopRequested():
            late = Stop(
                at=event.at, reason=event.reason, by=event.by, grace_secs=0.0, note=event.note
            )
            return _with_run(
                job,
                event.serial,
                lambda run: msgspec.structs.replace(run, late_stop=run.late_stop or late),
            )
        case TaskExited():
            return _change_task_of(job, event.token, exited=event.exit)
        case TaskHeld():
            held = DebugHold(at=event.at, secs=event.secs, mono=event.mono, boot_id=event.boot_id)
            return _with_run(
                job,
                event.token.serial,
                lambda run: _change_task(
                    run,
                    event.token,
                    exit=event.exit,
                    diagnosis=event.diagnosis,
                    held=held,
                    exited=None,
                ),
            )
        case TaskEnded():
            return _ended(job, event)
        case TaskNoticed(token=token, code=code, text=text):
            return _noticed(job, token, Notice(code, text))
        case AttemptDecided():
            return _with_run(job, event.serial, lambda run: _decided(run, event))
        case AttemptEnded():
            return _with_run(job, event.serial, lambda run: _attempt_ended(run, event))
        case RunEnded():
            return _with_run(job, event.serial, lambda run: _run_ended(run, event))
        case RunPurged():
            return _with_run(job, event.serial, lambda run: run if run.busy else _purged(run))
        case TagsChanged():
            tags = (set(job.tags) | set(event.added)) - set(event.removed)
            return msgspec.structs.replace(job, tags=tuple(sorted(tags)))
        case _:
            assert_never(event)


def fold(jid: str, events: list[JobEvent]) -> Job:
    """Return the job that results from these events, oldest first."""
    job = Job(jid=jid)
    for e in events:
        job = evolve(job, e)
    return job


def _noticed(job: Job, token: Token, notice: Notice) -> Job:
    task = job.task(token)
    known = task.notices if task is not None and isinstance(task.notices, tuple) else ()
    return _change_task_of(job, token, notices=(*known, notice))


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
    run = Run(
        serial=e.serial,
        status=PENDING,
        spec=e.spec,
        run_dir=e.run_dir,
        req_id=e.req_id,
        queued_at=e.at,
        queued_mono=e.mono,
        queued_boot_id=e.boot_id,
        waits_for=e.waits_for,
    )
    # the name of a purged job is free: its next owner gets no tags of the former one
    tags = () if job.status == PURGED else job.tags
    return msgspec.structs.replace(
        job, run=run, history=history, history_dropped=dropped, tags=tags
    )


def _past(run: Run) -> PastRun:
    e = run.exit
    return PastRun(
        serial=run.serial,
        status=run.status,
        queued_at=run.queued_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        reason=run.reason,
        error=run.error,
        compute_job_hash=run.spec.compute_job_hash,
        compute_model=run.spec.compute_model,
        job_run_mode=run.spec.job_run_mode,
        exit_code=e.code if e else None,
        exit_signal=e.signal if e else None,
        live_tasks=(live := run.live_tasks),
        roles=run.spec.roles if live else (),
        at_once=run.spec.at_once if live else None,
        batch=run.spec.batch if live else msgspec.UNSET,
        queue=run.spec.queue or "" if live else "",
        simulation_type=run.spec.simulation_type if live else "",
    )


def _purged(run: Run) -> Run:
    """Remove texts quoted from the deleted files of the run. The exit codes stay."""
    attempts = tuple(
        msgspec.structs.replace(a, tasks=tuple(map(_without_quotes_in, a.tasks)))
        for a in run.attempts
    )
    return msgspec.structs.replace(run, status=PURGED, attempts=attempts)


def _without_quotes_in(task: Task) -> Task:
    return (
        task
        if task.exit is None
        else msgspec.structs.replace(task, **_without_quotes(task.exit, task.diagnosis))
    )


def without_quotes(event: TaskEnded | TaskHeld) -> TaskEnded | TaskHeld:
    """Return the event without texts quoted from the files of a run that was purged since."""
    return msgspec.structs.replace(event, **_without_quotes(event.exit, event.diagnosis))


def _without_quotes(exit_: ExitInfo, diagnosis: Diagnosis | None) -> dict[str, Any]:
    return {
        "exit": msgspec.structs.replace(exit_, termination_message=None, last_lines=None),
        "diagnosis": None
        if diagnosis is None
        else msgspec.structs.replace(diagnosis, matched=None, excerpt=None),
    }


def _dependency_ended(run: Run, e: DependencyEnded) -> Run:
    left = tuple(
        a
        for a in run.waits_for
        if (a.compute_jid, a.compute_job_serial) != (e.compute_jid, e.compute_job_serial)
    )
    return msgspec.structs.replace(run, waits_for=left)


def _placed(run: Run, task: Task) -> Run:
    number = task.token.attempt
    if not run.attempts or run.attempts[-1].number != number:
        return msgspec.structs.replace(
            run, attempts=(*_older(run.attempts), Attempt(number=number, tasks=(task,)))
        )
    last = run.attempts[-1]
    last = msgspec.structs.replace(last, tasks=(*last.tasks, task))
    return msgspec.structs.replace(run, attempts=(*run.attempts[:-1], last))


def _older(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """Drop tasks of old attempts, and the oldest attempts, when another attempt begins."""
    whole = len(attempts) - ATTEMPTS_WHOLE + 1
    if whole <= 0 or not attempts[whole - 1].tasks:
        return attempts[-ATTEMPTS_KEPT + 1 :]
    thin = msgspec.structs.replace(attempts[whole - 1], tasks=())
    return (*attempts[: whole - 1], thin, *attempts[whole:])[-ATTEMPTS_KEPT + 1 :]


def _change_attempt(run: Run, number: int, change) -> Run:  # type: ignore[no-untyped-def]
    attempts = run.attempts
    if attempts and attempts[-1].number == number:  # the usual case
        return msgspec.structs.replace(run, attempts=(*attempts[:-1], change(attempts[-1])))
    return msgspec.structs.replace(
        run, attempts=tuple(change(a) if a.number == number else a for a in attempts)
    )


def _change_task(run: Run, token: Token, **fields: object) -> Run:
    def changed(attempt: Attempt) -> Attempt:
        at = run.seat(attempt, token)
        if at is None:
            return attempt
        task = msgspec.structs.replace(attempt.tasks[at], **fields)
        return msgspec.structs.replace(
            attempt, tasks=(*attempt.tasks[:at], task, *attempt.tasks[at + 1 :])
        )

    return _change_attempt(run, token.attempt, changed)


def _change_task_of(job: Job, token: Token, **fields: object) -> Job:
    """Change a task of the current run or of an earlier run with live tasks."""
    if job.run is not None and job.run.serial == token.serial:
        return msgspec.structs.replace(job, run=_change_task(job.run, token, **fields))
    return _change_past(job, token, **fields)


def _change_past(job: Job, token: Token, **fields: object) -> Job:
    """Change a live task of an earlier run."""
    return msgspec.structs.replace(
        job,
        history=tuple(
            p
            if p.serial != token.serial
            else msgspec.structs.replace(
                p,
                live_tasks=tuple(
                    msgspec.structs.replace(t, **fields) if t.token == token else t
                    for t in p.live_tasks
                ),
            )
            for p in job.history
        ),
    )


def _started(job: Job, e: TaskStarted) -> Job:
    fields: dict[str, Any] = {
        "pid": e.pid,
        "start_ticks": e.start_ticks,
        "started_at": e.started_at,
        "host": e.host,
        "boot_id": e.boot_id,
    }
    task = job.task(e.token)
    if task is not None and task.ahead and task.slot_at is None:
        fields["slot_at"] = e.at
    run = job.run
    if run is not None and run.serial == e.token.serial:
        run = _change_task(run, e.token, **fields)
        status = RUNNING if run.status == PENDING else run.status
        return msgspec.structs.replace(
            job,
            run=msgspec.structs.replace(
                run, status=status, started_at=run.started_at or e.started_at
            ),
        )
    return _change_past(job, e.token, **fields)


def _ended(job: Job, e: TaskEnded) -> Job:
    if job.run is not None and job.run.serial == e.token.serial:
        started = e.exit.started_at if e.exit.source != "start" else None
        run = _change_task(
            job.run, e.token, ended_at=e.at, exit=e.exit, diagnosis=e.diagnosis, exited=None
        )
        return msgspec.structs.replace(
            job, run=msgspec.structs.replace(run, started_at=run.started_at or started)
        )
    return msgspec.structs.replace(
        job,
        history=tuple(
            _past_ended(p, e.token) if p.serial == e.token.serial else p for p in job.history
        ),
    )


def _past_ended(past: PastRun, token: Token) -> PastRun:
    left = tuple(t for t in past.live_tasks if t.token != token)
    if left:
        return msgspec.structs.replace(past, live_tasks=left)
    return msgspec.structs.replace(
        past,
        live_tasks=(),
        roles=(),
        at_once=None,
        batch=msgspec.UNSET,
        queue="",
        simulation_type="",
    )


def _decided(run: Run, e: AttemptDecided) -> Run:
    decided = Decided(at=e.at, succeeded=e.succeeded, reason=e.reason, role=e.role, index=e.index)
    return _change_attempt(run, e.attempt, lambda a: msgspec.structs.replace(a, decided=decided))


def _attempt_ended(run: Run, e: AttemptEnded) -> Run:
    if all(a.number != e.attempt for a in run.attempts):
        run = msgspec.structs.replace(run, attempts=(*run.attempts, Attempt(number=e.attempt)))
    run = _change_attempt(
        run,
        e.attempt,
        lambda a: msgspec.structs.replace(
            a,
            ended_at=e.at,
            reason=e.reason,
            retry=e.retry,
            not_retried=e.not_retried,
        ),
    )
    if e.retry is None or not run.active:
        return run
    return msgspec.structs.replace(run, status=PENDING)


def _run_ended(run: Run, e: RunEnded) -> Run:
    if not run.active:
        return run
    error = e.error if e.status != CANCELED else None
    exit_ = run.exit
    # the process may have ended long before the exit reached the supervisor
    ended_at = (
        e.at if run.stop is not None or exit_ is None or run.spec.roles else exit_.ended_at or e.at
    )
    return msgspec.structs.replace(
        run, status=e.status, ended_at=ended_at, reason=e.reason, error=error
    )
