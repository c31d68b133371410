"""Consequences of a task's end for its attempt, and of an attempt's end for its run: completion,
retries, final status.
"""

from collections.abc import Iterable

from ....db.events.events import AttemptDecided, AttemptEnded, RunEnded, TaskEnded
from ....db.events.state import Attempt, Retrying, Run, Stop, Task
from ....diagnosis.exit_table import Diagnosis
from ....protocol.ids import AgentKind, Token
from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.jobs.status import COMPLETED, ERROR, Status
from ..interface import timers
from ..interface.effects import ClearTimer, DiscardHeldTask, SetTimer
from ..scheduling import dispatch, placement
from ..state.transaction import Transaction
from .attempt_policies import TaskOutcome, again, decided
from .outcome import outcome

#: Stop reason of tasks that are no longer needed because their attempt was decided. Never a failure
#: of the task.
DECIDED = "decided"
#: Reason for no further attempt if the run was canceled too late to change its result.
CANCELED_LATE = "{} asked for the end of the run after its command had ended"


def task_ended(tx: Transaction, task: Task, exit_: ExitInfo, diagnosis: Diagnosis | None) -> None:
    """Record that the task has ended completely, and handle the consequences."""
    token = task.token
    tx.world.batch.pop(token, None)
    tx.record(token.jid, TaskEnded(at=tx.now.wall, token=token, exit=exit_, diagnosis=diagnosis))
    run = tx.world.jobs[token.jid].run
    current = run is not None and run.serial == token.serial
    in_container = task.agent_key.kind == AgentKind.CONTAINER and (
        run is None or not current or run.spec.debug_secs is not None
    )
    allocated = task.held is not None and task.agent_key.driver in tx.world.policy.batch
    if in_container or allocated:
        tx.emit(DiscardHeldTask(task.agent_key, token))
    if run is not None and current:
        _decide(tx, run, token, exit_)
        _end_attempt(tx, token)
    placement.task_ended(tx, task.agent_key, token)


def retry(tx: Transaction, jid: str, serial: int) -> None:
    """Queue the run again after the pause between two attempts."""
    job = tx.world.jobs.get(jid)
    run = job.run if job is not None else None
    if job is None or run is None or run.serial != serial or run.retry is None or run.live_tasks:
        return
    if not placement.waits(tx.world, (jid, serial), run):
        placement.enqueue(tx, job)


def arm(tx: Transaction, jid: str, run: Run) -> None:
    """Set the timer for the rest of the pause, after a restart."""
    if run.retry is not None and not run.live_tasks:
        passed = tx.secs_since(run.retry.at, run.retry.mono, run.retry.boot_id)
        tx.emit(
            SetTimer(timers.AttemptRetry(jid, run.serial), max(0.0, run.retry.delay_secs - passed))
        )


def _attempt(run: Run, number: int) -> Attempt | None:
    return next((a for a in reversed(run.attempts) if a.number == number), None)


def _decide(tx: Transaction, run: Run, token: Token, exit_: ExitInfo) -> None:
    """Decide the attempt if this end fulfils a condition of its policy, and stop the other
    tasks.
    """
    attempt = _attempt(run, token.attempt)
    if not run.spec.roles or not run.active or attempt is None or attempt.decided is not None:
        return
    if not _may_decide(tx, run, token, exit_):
        return
    if exit_.stop_reason == "timeLimit":
        succeeded, reason, role, index = (
            False,
            f"[{token.role}]: a task was ended by the time limit",
            token.role,
            token.index,
        )
    else:
        verdict = decided(run.spec.roles, _ended_tasks(attempt, token))
        if verdict is None:
            return
        succeeded, reason, role, index = (
            verdict.succeeded,
            verdict.reason,
            verdict.role or "",
            verdict.index or 0,
        )
    tx.record(
        token.jid,
        AttemptDecided(
            at=tx.now.wall,
            serial=run.serial,
            attempt=token.attempt,
            succeeded=succeeded,
            reason=reason,
            role=role or None,
            index=index if role else None,
        ),
    )
    _stop_others(tx, run, attempt)


def _may_decide(tx: Transaction, run: Run, token: Token, exit_: ExitInfo) -> bool:
    """Return whether the attempt must be evaluated: at its last end, or when the role has enough
    ends of this kind. Saves a loop over all tasks.
    """
    counts = tx.world.task_counts.get((token.jid, token.serial))
    if counts is None or exit_.stop_reason == "timeLimit":
        return True
    role = next(r for r in run.spec.roles if r.name == token.role)
    enough = role.min_succeeded if exit_.succeeded else role.min_failed
    return enough is not None and counts.ends[token.role, exit_.succeeded] >= enough


def _ended_tasks(attempt: Attempt, newest: Token) -> list[TaskOutcome]:
    """Return the ended tasks in the order of their ends."""
    ended = sorted(
        (t for t in attempt.tasks if not t.live),
        key=lambda t: (t.token == newest, t.ended_at or 0.0),
    )
    return [
        TaskOutcome(t.token.role, t.token.index, t.exit is not None and t.exit.succeeded)
        for t in ended
    ]


def not_needed(tx: Transaction, run: Run) -> Stop:
    """Return the stop record of a task that its attempt no longer needs."""
    return Stop(
        at=tx.now.wall, reason=DECIDED, by="supervisor", grace_secs=run.spec.grace_secs, note=""
    )


def _stop_others(tx: Transaction, run: Run, attempt: Attempt) -> None:
    wanted = not_needed(tx, run)
    for task in attempt.tasks:
        if task.live and task.held is not None:
            end_held(tx, task)
        elif task.live and task.exited is None:
            dispatch.stop(tx, task.token, wanted)


def end_held(tx: Transaction, task: Task) -> None:
    """End a held task with its recorded exit, unless the end of another task has already ended it."""
    known = tx.world.task(task.token)
    if known is None or not known.live:
        return
    assert task.exit is not None
    tx.emit(ClearTimer(timers.DebugHoldDeadline(task.token)))
    task_ended(tx, task, task.exit, task.diagnosis)


def _end_attempt(tx: Transaction, token: Token) -> None:
    """After the last task of an attempt: start a retry, or end the run."""
    run = tx.world.jobs[token.jid].run
    assert run is not None
    attempt = _attempt(run, token.attempt)
    if (
        attempt is None
        or attempt.ended_at is not None
        or (token.jid, token.serial) in tx.world.task_counts
    ):
        return
    status, reason, error = _result(run, attempt)
    if not run.active:
        _end(tx, token, reason)
        return
    if status == ERROR and run.stop is None and run.spec.retry is not None:
        telling = attempt.telling
        behavior = (
            "unknown"
            if telling is None or telling.diagnosis is None
            else telling.diagnosis.behavior
        )
        before = [a.retry.behavior for a in run.attempts if a.retry is not None]
        late = run.late_stop
        found = (
            again(run.spec.retry, behavior, before, tx.random())
            if late is None
            else CANCELED_LATE.format(late.by)
        )
        if not isinstance(found, str):
            _end(
                tx,
                token,
                reason,
                retry=Retrying(
                    at=tx.now.wall,
                    delay_secs=found.delay_secs,
                    behavior=found.behavior,
                    reason=found.reason,
                    mono=tx.now.mono,
                    boot_id=tx.now.boot_id,
                ),
            )
            tx.emit(SetTimer(timers.AttemptRetry(token.jid, token.serial), found.delay_secs))
            return
        _end(tx, token, reason, not_retried=found)
    else:
        _end(tx, token, reason)
    tx.record(
        token.jid,
        RunEnded(at=tx.now.wall, serial=token.serial, status=status, reason=reason, error=error),
    )


def _end(
    tx: Transaction,
    token: Token,
    reason: str,
    *,
    retry: Retrying | None = None,
    not_retried: str | None = None,
) -> None:
    tx.record(
        token.jid,
        AttemptEnded(
            at=tx.now.wall,
            serial=token.serial,
            attempt=token.attempt,
            reason=reason,
            retry=retry,
            not_retried=not_retried,
        ),
    )


def _result(run: Run, attempt: Attempt) -> tuple[Status, str, str | None]:
    """Return (status, reason, error) of a run with this last attempt."""
    exit_, verdict = attempt.telling.exit if attempt.telling is not None else None, attempt.decided
    if verdict is not None and verdict.succeeded:
        return COMPLETED, "exit", None
    if exit_ is None:
        exit_ = ExitInfo(source="lost", detail="none of its tasks has an exit status")
    status, reason, error = outcome(exit_)
    if verdict is None or status == COMPLETED:
        return status, reason, error
    return (
        status,
        reason,
        f"{verdict.reason} {_named(attempt.telling)}: {error}" if error else verdict.reason,
    )


def _named(task: Task | None) -> str:
    return "a task" if task is None else f"{task.token.role}/{task.token.index}"


def live_held(all_: Iterable[Task]) -> list[Task]:
    """Return the tasks that are held for debugging."""
    return [t for t in all_ if t.live and t.held is not None]
