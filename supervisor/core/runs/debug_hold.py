"""Debug holds of failed tasks: their processes have ended, but they keep their resources.

A task is held if it failed by itself (its own exit code, a crash, out of memory), never if the
platform caused it. The hold ends at its deadline or by a release. Then the task ends with its
recorded exit, and the attempt continues from there.

With a batch scheduler the allocation is the resource: the job's own script holds it, and the agent
reports that (`allocation_held`). A task whose allocation is gone is not held.
"""

import msgspec

from ....db.events.events import TaskHeld
from ....db.events.state import Job, Task
from ....diagnosis.exit_table import Diagnosis, diagnose
from ....protocol.errors import Refusal
from ....protocol.ids import Token
from ....protocol.jobs.exit_info import ExitInfo
from ..interface import timers
from ..interface.effects import DiscardHeldTask, ReplyStatus, SetTimer
from ..interface.inputs import ReleaseHold
from ..state.transaction import Transaction
from ..state.world import owner
from . import attempts


def is_wanted(tx: Transaction, task: Task, exit_: ExitInfo, diagnosis: Diagnosis | None) -> bool:
    """Return whether this failed task is to be held."""
    token = task.token
    run = tx.world.jobs[token.jid].run
    if (
        run is None
        or run.serial != token.serial
        or not run.active
        or run.spec.debug_secs is None
        or task.held is not None
    ):
        return False
    if run.late_stop is not None:  # the user has already asked for the end of the run
        return False
    attempt = next((a for a in run.attempts if a.number == token.attempt), None)
    if (
        attempt is None
        or attempt.decided is not None
        or diagnosis is None
        or exit_.stop_reason is not None
    ):
        return False
    if exit_.ended_by_scheduler not in (None, "OUT_OF_MEMORY"):
        return False
    return exit_.source in ("keeper", "script", "engine", "scheduler") and diagnosis.type in (
        "user",
        "unknown",
    )


def allocation_held(tx: Transaction, task: Task, exit_: ExitInfo, until: float) -> None:
    """Hold a failed task whose allocation is held until this time (unix seconds), or release the
    allocation if that is not wanted.
    """
    batch = tx.world.batch.get(task.token)
    if batch is not None and exit_.batch is msgspec.UNSET:
        sentence = "its command failed, and its allocation was held for debugging"
        exit_ = msgspec.structs.replace(
            exit_, batch=msgspec.structs.replace(batch, state="", sentence=sentence)
        )
    diagnosis = diagnose(exit_, tx.world.policy.exits)
    if is_wanted(tx, task, exit_, diagnosis):
        hold(tx, task, exit_, diagnosis, until)
    else:
        tx.emit(DiscardHeldTask(task.agent_key, task.token))


def allocation_ended(tx: Transaction, task: Task) -> None:
    """End the hold of a task whose allocation is gone."""
    assert task.agent_key.driver in tx.world.policy.batch
    attempts.end_held(tx, task)


def hold(
    tx: Transaction,
    task: Task,
    exit_: ExitInfo,
    diagnosis: Diagnosis | None,
    until: float | None = None,
) -> None:
    """Hold the task until its deadline or its release. until: an earlier end of its allocation (unix
    seconds).
    """
    token = task.token
    run = tx.world.jobs[token.jid].run
    assert run is not None and run.spec.debug_secs is not None
    secs = min(run.spec.debug_secs, tx.world.policy.debug_secs)
    if until is not None:
        secs = min(secs, max(0.0, until - tx.now.wall))
    tx.record(
        token.jid,
        TaskHeld(
            at=tx.now.wall,
            token=token,
            exit=exit_,
            secs=secs,
            diagnosis=diagnosis,
            mono=tx.now.mono,
            boot_id=tx.now.boot_id,
        ),
    )
    if task.agent_key.driver not in tx.world.policy.batch:  # there the agent watches the allocation
        tx.world.agent(task.agent_key).placed.discard(token)
    tx.emit(SetTimer(timers.DebugHoldDeadline(token), secs))


def deadline(tx: Transaction, token: Token) -> None:
    """End the hold."""
    task = tx.world.task(token)
    if task is not None and task.live and task.held is not None:
        attempts.end_held(tx, task)


def release(tx: Transaction, input_: ReleaseHold) -> None:
    """End holds at a user's request. Raise Refusal, with the same answer for an unknown job and for
    a job of another user.
    """
    request = input_.request
    job = tx.world.jobs.get(request.compute_jid)
    if job is None or job.run is None or owner(job.jid) != request.uid:
        raise Refusal("notFound", f"there is no job {request.compute_jid}")
    serial = request.compute_job_serial or job.run.serial
    tx.emit(ReplyStatus(input_.handle, job.jid, serial))
    if serial != job.run.serial:
        return
    for task in attempts.live_held(job.run.live_tasks):
        if request.role in (None, task.token.role) and request.index in (None, task.token.index):
            deadline(tx, task.token)


def arm(tx: Transaction, job: Job) -> None:
    """Set the timers for the rest of the holds, after a restart."""
    for task in job.live_tasks():
        if task.held is not None:
            passed = tx.secs_since(task.held.at, task.held.mono, task.held.boot_id)
            tx.emit(
                SetTimer(timers.DebugHoldDeadline(task.token), max(0.0, task.held.secs - passed))
            )
