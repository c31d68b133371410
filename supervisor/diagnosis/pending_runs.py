"""What is said of a run that waits, or is coming to its end: the sentence of the status, what it is
not, and what to try. Pure.

The sentence has the numbers already: which slot, how many are ahead, what of which host is short,
what Slurm says.
"""

from collections.abc import Callable
from typing import Any

from ...db.events.state import Run
from ...diagnosis.causes import CAUSES
from . import batch_jobs
from .phrases import NAMED, Answer, after, attempts
from .running_runs import failed_before

Say = Callable[[Answer, Run, dict[str, Any]], None]


def waiting(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    attempts(answer, run)
    say = _SAY.get(status["queueState"] or "", _other)
    say(answer, run, status)


def _debug_hold(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    answer["sentence"], answer["try"] = (
        f"it is kept for debugging: {status['jobStatusMessage']}",
        _entering(answer["computeJid"], run),
    )
    answer["not"] = ["over: it holds what it has, until it is released or its time is up"]
    failed_before(answer, run)


def _retry_wait(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    jid = answer["computeJid"]
    answer["sentence"] = f"it waits to be tried again: {status['jobStatusMessage']}"
    answer["not"] = ["over: another attempt follows by itself"]
    answer["try"] = [
        f"jobscribe job tasks {jid}",
        f"jobscribe job cancel {jid}   # to try it no more",
    ]
    failed_before(answer, run)


def _dependency(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    answer["sentence"], answer["not"] = (
        f"it has not started: {status['jobStatusMessage']}",
        ["a failure: it waits"],
    )
    answer["evidence"] += [f"it is to run after {after(a)}" for a in run.waits_for[:NAMED]]
    answer["try"] = [f"jobscribe job why {run.waits_for[0].compute_jid}"] if run.waits_for else []


def _slurm(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    batch_jobs.waiting(answer, run, batch_jobs.said_of(run, status), status["jobStatusMessage"])


def _sign_in(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    batch_jobs.sign_in(answer, status["signInTo"], status["jobStatusMessage"])
    _never_ran(answer, run)


def _stopping(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    jid = answer["computeJid"]
    answer["sentence"] = f"it is coming to its end: {status['jobStatusMessage']}"
    answer["try"] = [
        f"jobscribe job tasks {jid}",
        f"jobscribe job wait {jid}   # returns when nothing of it is left",
    ]


def _ending(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    said = batch_jobs.said_of(run, status)
    answer["sentence"] = status["jobStatusMessage"]
    answer["not"] = list(CAUSES["ending"].excludes)
    answer["try"] = [
        f"jobscribe job wait {answer['computeJid']}   # returns when nothing of it is left",
        *batch_jobs.commands(said),
    ]


def _other(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    """It is its turn that it waits for, or what is needed for it."""
    jid, cause = answer["computeJid"], CAUSES[answer["cause"]]
    which = f"attempt {run.attempt + 1}" if run.retry is not None else "it"
    answer["sentence"], answer["not"] = (
        f"{which} has not started: {status['jobStatusMessage']}",
        list(cause.excludes),
    )
    if answer["cause"] == "starting" and any(role.image for role in run.spec.roles):
        images = sorted({role.image for role in run.spec.roles if role.image})
        more = f" and {len(images) - NAMED} more" if len(images) > NAMED else ""
        answer["evidence"].append(
            f"images that its hosts may have to pull first: {', '.join(images[:NAMED])}{more}"
        )
    _never_ran(answer, run)
    group = f"jobscribe job group {run.spec.simulation_id}   # how its array stands"
    answer["try"] = [
        *_typed(jid, answer["cause"], group),
        *(line for line in cause.todo if "jobscribe " not in line),
    ]


def _never_ran(answer: Answer, run: Run) -> None:
    if run.started_at is None:
        answer["evidence"].append("it never ran so far: there is no output of it")


def _typed(jid: str, cause: str, group: str) -> list[str]:
    """What can be typed about it, the most telling first."""
    active = "jobscribe job list --active   # what is under way, and what waits"
    match cause:
        case "agent":
            return [
                f"jobscribe trace {jid}   # what was tried to start its agent, and what went wrong"
            ]
        case "starting":
            return [f"jobscribe job tasks {jid}   # where it stands"]
        case "array_slot":
            return [group, active]
        case "resources" | "ports":
            return ["jobscribe pool show   # what the hosts have, and what is used of it", active]
        case "no_host":
            return [
                "jobscribe pool show   # hosts that there are",
                "jobscribe cluster list   # clusters that there are",
                f"jobscribe job cancel {jid}   # then submit it again, asking for what there is",
            ]
        case "host_down":
            return ["jobscribe pool check   # what is wrong with the hosts"]
        case _:
            return [active]


def _entering(jid: str, run: Run) -> list[str]:
    """How to look at what is kept, and how to end that."""
    held = [t.token for t in run.live_tasks if t.held is not None]
    enter = [f"jobscribe job shell {jid} --role {t.role} --index {t.index}" for t in held[:NAMED]]
    return [
        *enter,
        f"jobscribe job release {jid}   # give back what it holds; it ends with the exit that it had",
    ]


_SAY: dict[str, Say] = {
    "debug_hold": _debug_hold,
    "retry_wait": _retry_wait,
    "dependency": _dependency,
    "slurm": _slurm,
    "sign_in": _sign_in,
    "stopping": _stopping,
    "ending": _ending,
}
