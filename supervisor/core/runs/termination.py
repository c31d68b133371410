"""Termination of runs: cancels, time limits, queue limits.

An accepted cancel is final from its transaction on: the status is `canceled` regardless of the
processes, and stopping them stays outstanding until an agent reports their end. The intent is
recorded before any signal. A stop that arrives after the commands of all live tasks have exited is
late: it is recorded, changes no result, and prevents another attempt.
"""

from ....db.events.events import LateStopRequested, RunEnded, StopRequested
from ....db.events.state import Job, Run
from ....db.store.contract import Receipt
from ....protocol.clusters.cluster import fallback_secs
from ....protocol.errors import Refusal
from ....protocol.ids import Token
from ....protocol.jobs.status import CANCELED
from ..interface import timers
from ..interface.effects import ClearTimer, ReplyStatus, SetTimer, StopTask
from ..interface.inputs import Cancel, cancel_receipt
from ..scheduling import dispatch, placement
from ..scheduling.dispatch import REMIND_SECS
from ..state import cluster_assignment
from ..state.transaction import Transaction
from ..state.world import owner
from . import attempts, dependencies


def cancel(tx: Transaction, input_: Cancel) -> None:
    """Cancel exactly the requested run. Raise Refusal, with the same answer for an unknown job and
    for a job of another user.
    """
    request = input_.request
    job = tx.world.jobs.get(request.compute_jid)
    if job is None or job.run is None or owner(job.jid) != request.uid:
        raise Refusal("notFound", f"there is no job {request.compute_jid}")
    run = job.run
    if input_.known is not None and input_.known[0] != job.jid:
        raise Refusal(
            "conflict",
            f"reqId {request.req_id} was used for another job before; a new request needs a new reqId",
        )
    if input_.taken:
        raise Refusal(
            "conflict",
            f"reqId {request.req_id} was used to submit a run; a cancel needs a reqId of its own",
        )
    serial = input_.known[1] if input_.known else request.compute_job_serial or run.serial
    tx.emit(ReplyStatus(input_.handle, job.jid, serial))
    if input_.known is not None:
        return
    # recorded even without effect: a repeated request must not cancel a later run
    tx.receipts.append(
        Receipt(
            uid=request.uid,
            req_id=cancel_receipt(request.req_id),
            jid=job.jid,
            serial=serial,
            at=tx.now.wall,
        )
    )
    if serial != run.serial or not run.active:
        return
    _stop(tx, run, job.jid, "cancel", by=request.uid, note=request.reason, req_id=request.req_id)


def queue_limit(tx: Transaction, jid: str, serial: int) -> None:
    """End a run that waited too long."""
    run = _live(tx, jid, serial)
    if run is not None and (
        not run.attempts or cluster_assignment.in_scheduler_queue(tx.world.policy, run)
    ):
        _stop(tx, run, jid, "queueLimit", by="supervisor")


def time_limit(tx: Transaction, token: Token) -> None:
    """Ask the keeper again and again to stop a task that should have ended by now.

    Nothing is recorded: the task may have ended by itself, which its report will show. If the
    keeper stops it because of this, the report has this reason.
    """
    task = tx.world.task(token)
    run = _live(tx, token.jid, token.serial)
    if run is not None and task is not None and task.live and task.exited is None:
        tx.emit(StopTask(task.agent_key, token, "timeLimit", run.spec.grace_secs))
        tx.emit(SetTimer(timers.TimeLimit(token), REMIND_SECS + run.spec.grace_secs))


def repeat_stop(tx: Transaction, token: Token) -> None:
    """Ask again to stop a task whose end was not reported."""
    task = tx.world.task(token)
    job = tx.world.jobs.get(token.jid)
    if (
        task is None
        or not task.live
        or task.held is not None
        or task.exited is not None
        or job is None
    ):
        return
    run = job.run
    if run is None or run.serial != token.serial:
        dispatch.stop(tx, token, None)
    elif run.stop is None and any(
        a.number == token.attempt and a.decided is not None for a in run.attempts
    ):
        dispatch.stop(tx, token, attempts.not_needed(tx, run))
    else:
        dispatch.stop(tx, token, run.stop)


def _live(tx: Transaction, jid: str, serial: int) -> Run | None:
    job = tx.world.jobs.get(jid)
    return (
        job.run
        if job is not None and job.run is not None and job.run.serial == serial and job.run.active
        else None
    )


def _stop(
    tx: Transaction,
    run: Run,
    jid: str,
    reason: str,
    *,
    by: str,
    note: str = "",
    req_id: str | None = None,
) -> None:
    at = tx.now.wall
    key = tx.world.key_of(run)
    live = run.live_tasks
    held = attempts.live_held(live)
    if run.ending:
        if run.late_stop is None:
            tx.record(
                jid,
                LateStopRequested(
                    at=at, serial=run.serial, reason=reason, by=by, note=note, req_id=req_id
                ),
            )
        for task in held:
            attempts.end_held(tx, task)
        return
    tx.record(
        jid,
        StopRequested(
            at=at,
            serial=run.serial,
            reason=reason,
            by=by,
            grace_secs=run.spec.grace_secs,
            note=note,
            req_id=req_id,
        ),
    )
    for timer in (timers.QueueLimit, timers.AttemptRetry):
        tx.emit(ClearTimer(timer(jid, run.serial)))
    dependencies.forget(tx, (jid, run.serial), run.waits_for)
    if live and len(held) == len(live):
        # it has failed and was held: it ends with its recorded exit
        for task in held:
            attempts.end_held(tx, task)
        return
    tx.record(jid, RunEnded(at=at, serial=run.serial, status=CANCELED, reason=reason))
    if not live:
        placement.remove(tx, key, (jid, run.serial))
    for task in live:
        stopped = tx.world.jobs[jid].run
        assert stopped is not None
        if task.held is not None:
            attempts.end_held(tx, task)
        elif task.exited is None:
            placement.stopped(tx, task)
            dispatch.stop(tx, task.token, stopped.stop)


def arm(tx: Transaction, job: Job) -> None:
    """Set the timers that a job in this state needs."""
    run = job.run
    if run is None or not run.active:
        return
    limit = run.spec.queue_limit_secs or tx.world.policy.queue_limit_secs
    if run.attempts:
        # in the scheduler's queue the run's own limit continues until it runs
        limit = (
            run.spec.queue_limit_secs
            if cluster_assignment.in_scheduler_queue(tx.world.policy, run)
            else None
        )
    if limit is not None:
        passed = tx.secs_since(run.queued_at, run.queued_mono, run.queued_boot_id)
        tx.emit(SetTimer(timers.QueueLimit(job.jid, run.serial), max(0.0, limit - passed)))


def arm_limit(tx: Transaction, token: Token, elapsed: float) -> None:
    """Set the timer of the supervisor's time limit, which applies if no keeper enforces it."""
    run, task = _live(tx, token.jid, token.serial), tx.world.task(token)
    if run is None or task is None or task.exited is not None:
        return
    limit = run.spec.time_limit_secs or tx.world.policy.time_limit_secs
    if limit is not None:
        slack = tx.world.policy.limit_slack_secs + run.spec.grace_secs
        if task.agent_key.driver in tx.world.policy.batch:
            place = tx.world.policy.place(task.agent_key.driver, task.agent_key.host)
            limit = (
                fallback_secs(limit)
                if place is None
                else fallback_secs(limit, place.limit_slack_secs)
            )
        tx.emit(SetTimer(timers.TimeLimit(token), max(0.0, limit + slack - elapsed)))


def canceled_after(run: Run) -> float | None:
    """Return the time limit in seconds that ended the run, or None."""
    if run.status != CANCELED or run.reason != "timeLimit":
        return None
    return run.spec.time_limit_secs
