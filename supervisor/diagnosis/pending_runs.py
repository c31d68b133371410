"""Explain a run that waits or is stopping: sentence, excluded causes and advice. Pure.

The numbers (slots, runs ahead, missing resources, Slurm's reason) come from the status sentence.
"""

from collections.abc import Callable
from typing import Any

from ...db.events.state import Run
from ...diagnosis.causes import CAUSES
from . import batch_jobs
from .phrases import NAMED, Answer, add_attempts, dependency, with_ids
from .running_runs import add_earlier_failure

Explainer = Callable[[Answer, Run, dict[str, Any]], None]


def explain(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    """Fill the answer for a run that waits or is stopping."""
    add_attempts(answer, run)
    explain_state = _EXPLAINERS.get(status["queueState"] or "", _other)
    explain_state(answer, run, status)


def _debug_hold(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    answer["sentence"], answer["try"] = (
        f"held for debugging: {status['jobStatusMessage']}",
        _debug_commands(answer["computeJid"], run),
    )
    answer["not"] = ["over: it keeps its resources until it is released or the hold expires"]
    for task in run.live_tasks:
        if task.held is not None and task.batch is not None and task.batch.job_id is not None:
            where = f"{task.host} of {task.batch.cluster}"
            answer["evidence"].append(f"its Slurm job {task.batch.job_id} keeps {where} until then")
    add_earlier_failure(answer, run)


def _retry_wait(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    jid = answer["computeJid"]
    answer["sentence"] = f"waiting for its next attempt: {status['jobStatusMessage']}"
    answer["not"] = ["over: the next attempt starts automatically"]
    answer["try"] = [
        f"jobscribe job tasks {jid}",
        f"jobscribe job cancel {jid}   # stops the retries",
    ]
    add_earlier_failure(answer, run)


def _dependency(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    answer["sentence"], answer["not"] = (
        f"not started: {status['jobStatusMessage']}",
        ["a failure: it waits"],
    )
    answer["evidence"] += [f"it runs after {dependency(a)}" for a in run.waits_for[:NAMED]]
    answer["try"] = [f"jobscribe job why {run.waits_for[0].compute_jid}"] if run.waits_for else []


def _slurm(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    batch_jobs.explain_queued(
        answer, batch_jobs.latest_state(run, status), status["jobStatusMessage"]
    )


def _sign_in(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    batch_jobs.explain_sign_in(answer, status["signInTo"], status["jobStatusMessage"])
    _add_never_ran(answer, run)


def _stopping(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    jid = answer["computeJid"]
    answer["sentence"] = f"stopping: {status['jobStatusMessage']}"
    answer["try"] = [
        f"jobscribe job tasks {jid}",
        f"jobscribe job wait {jid}   # returns when all its processes have ended",
    ]


def _ending(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    batch = batch_jobs.latest_state(run, status)
    answer["sentence"] = status["jobStatusMessage"]
    answer["not"] = list(CAUSES["ending"].excludes)
    answer["try"] = [
        f"jobscribe job wait {answer['computeJid']}   # returns when all its processes have ended",
        *batch_jobs.queue_commands(batch),
    ]


def _other(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    """Explain a run that waits for a slot, for resources, or for its agent."""
    cause = CAUSES[answer["cause"]]
    attempt = f"attempt {run.attempt + 1} " if run.retry is not None else ""
    answer["sentence"], answer["not"] = (
        f"{attempt}not started: {status['jobStatusMessage']}",
        list(cause.excludes),
    )
    if answer["cause"] == "starting" and any(role.image for role in run.spec.roles):
        images = sorted({role.image for role in run.spec.roles if role.image})
        more = f" and {len(images) - NAMED} more" if len(images) > NAMED else ""
        answer["evidence"].append(
            f"images that its hosts may have to pull first: {', '.join(images[:NAMED])}{more}"
        )
    _add_never_ran(answer, run)
    answer["try"] = [
        *with_ids(answer["computeJid"], cause.commands),
        *(line for line in cause.todo if "jobscribe " not in line),
    ]


def _add_never_ran(answer: Answer, run: Run) -> None:
    if run.started_at is None:
        answer["evidence"].append("it has not run yet, so it has no output")


def _debug_commands(jid: str, run: Run) -> list[str]:
    """Return the commands that open a shell in each held task, and the command that releases
    them.
    """
    held = [t.token for t in run.live_tasks if t.held is not None]
    shells = [f"jobscribe job shell {jid} --role {t.role} --index {t.index}" for t in held[:NAMED]]
    return [
        *shells,
        f"jobscribe job release {jid}   # frees its resources; its exit status stays the same",
    ]


_EXPLAINERS: dict[str, Explainer] = {
    "debug_hold": _debug_hold,
    "retry_wait": _retry_wait,
    "dependency": _dependency,
    "slurm": _slurm,
    "sign_in": _sign_in,
    "stopping": _stopping,
    "ending": _ending,
}
