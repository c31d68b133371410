"""`jobscribe job tasks`: the tasks and attempts of a run. Other `job` commands use its texts."""

import time
from typing import TYPE_CHECKING, Any

import click

from ...protocol.jobs.status import ACTIVE, TaskStatus
from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import duration, moment

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADS = ("TASK", "STATE", "EXIT", "LOCATION", "DURATION", "PID")
#: Maximum number of ports shown for one label. For more ports, their count follows.
_PORTS_SHOWN = 4


@command()
@click.argument("name", metavar="JOB")
@click.option(
    "--attempt",
    type=click.IntRange(1),
    metavar="N",
    help="Tasks of this attempt (default: the latest).",
)
@click.option(
    "--failed",
    is_flag=True,
    help="Only tasks that failed or are held for debugging.",
)
def tasks(name: str, attempt: int | None, failed: bool) -> None:
    """Show the attempts of a run, why each was retried or not, and the tasks of one attempt."""
    s = session()
    jid = resolve_job(s, name)
    answer = s.client_for(jid).tasks(jid, attempt or 0)
    shown = [
        t
        for t in answer["tasks"]
        if not failed or t["state"] in (TaskStatus.FAILED, TaskStatus.HELD)
    ]
    if s.screen.json:
        s.screen.value("jobscribe.job.tasks/1", {**answer, "tasks": shown})
        return
    for line in _attempt_lines(jid, answer):
        s.screen.line(line)
    if shown:
        s.screen.table(_HEADS, [_row(t) for t in shown])
    elif answer["tasks"]:
        s.screen.message("no task of this attempt has failed")
    else:
        s.screen.message(_no_tasks(answer))
    for line in hints(s, jid, answer["tasks"]):
        s.screen.message(line)


def hints(s: Session, jid: str, tasks_: "Sequence[dict[str, Any]]") -> list[str]:
    """Return how to enter the tasks held for debugging, and how to release them."""
    held = [t for t in tasks_ if t["state"] == TaskStatus.HELD]
    if not held:
        return []
    first, here = held[0], s.supervisor_options()
    until = moment(min(t["heldUntil"] for t in held))
    tasks_held = (
        task_name(first)
        + (f" and {len(held) - 1} more" if len(held) > 1 else "")
        + f" {'are' if len(held) > 1 else 'is'} held"
    )
    return [
        f"{tasks_held} for debugging until {until}, with all resources:",
        f"  jobscribe job shell {jid} --role {first['role']} --index {first['index']}{here}   # enter it",
        f"  jobscribe job release {jid}{here}   # free its resources; it keeps its exit",
    ]


def task_name(task: dict[str, Any]) -> str:
    return f"{task['role']}/{task['index']}"


def at_most(answer: dict[str, Any]) -> str:
    """Return the limit of attempts as ` of at most 6`. Empty if there is no limit or no retry
    policy.
    """
    policy = answer.get("policy")
    if policy is None or policy["count"] < 0 or policy["platform"] < 0:
        return ""
    return f" of at most {1 + policy['count'] + policy['platform']}"


def attempt_line(attempt: dict[str, Any], *, rule: bool = True) -> str:
    """Return how an attempt ended, and whether it was retried. rule: add the condition that decided
    it.
    """
    parts = ["ended" if attempt["endedAt"] is not None else "ends"]
    decided, retry = attempt["decided"], attempt["retry"]
    if decided is not None:
        outcome = "succeeded" if decided["succeeded"] else "failed"
        by = "" if decided["role"] is None else f" by {decided['role']}/{decided['index']}"
        parts = [f"{outcome}{by}" + (f" ({decided['reason'].rstrip('.')})" if rule else "")]
    elif attempt["reason"]:
        parts[0] += f" ({attempt['reason']})"
    if retry is not None:
        parts.append(f"retried: {retry['reason']}")
    if attempt["notRetried"]:
        parts.append(f"not retried: {attempt['notRetried']}")
    return "; ".join(parts)


def _attempt_lines(jid: str, answer: dict[str, Any]) -> list[str]:
    number = f", attempt {answer['attempt']}{at_most(answer)}" if answer["attempt"] else ""
    lines = [f"{jid} {answer['state']}{number}"]
    shown = [a for a in answer["attempts"] if a["endedAt"] is not None or a["decided"] is not None]
    return lines + [f"  attempt {a['number']:<4} {attempt_line(a)}" for a in shown]


def _no_tasks(answer: dict[str, Any]) -> str:
    if not answer["attempt"] and answer["state"] not in ACTIVE:
        return "no task was ever placed; 'jobscribe job why' gives the reason"
    if not answer["attempt"]:
        return "no task is placed yet; 'jobscribe job why' shows the condition it waits for"
    return f"the tasks of attempt {answer['attempt']} are no longer stored"


def _row(task: dict[str, Any]) -> list[str]:
    live = task["state"] in (TaskStatus.PLACED, TaskStatus.RUNNING)
    return [
        task_name(task),
        task["state"],
        _exit(task),
        _location(task),
        _duration(task),
        str(task["pid"]) if live and task["pid"] else "-",
    ]


def _exit(task: dict[str, Any]) -> str:
    exit_ = task["exit"]
    if exit_ is None:
        return "-"
    by = f" ({exit_['stopReason']})" if exit_.get("stopReason") else ""
    if exit_.get("signal") is not None:
        from ...protocol.jobs.exit_info import signal_name

        return signal_name(exit_["signal"]) + by
    return f"{exit_['code']}{by}" if exit_.get("code") is not None else f"{exit_['source']}{by}"


def _location(task: dict[str, Any]) -> str:
    """Return the location, for example `127.0.0.1 http:30000 ssh:30001 gpu:0,1`. For a container,
    its host comes first, and image and container name last.
    """
    contained = [f"{key}:{task[key]}" for key in ("image", "container") if task.get(key)]
    # A container's address belongs to the network of its gang and does not identify its host.
    host = task["host"] if "image" in task and task["address"] else None
    parts = [*([host] if host else []), task["address"] or task["host"] or "-"]
    for label, ports in task["ports"].items():
        numbers = ",".join(map(str, ports[:_PORTS_SHOWN]))
        parts.append(
            f"{label}:{numbers}" + (f",... ({len(ports)})" if len(ports) > _PORTS_SHOWN else "")
        )
    if task["gpus"]:
        parts.append("gpu:" + ",".join(task["gpus"]))
    return " ".join(parts + contained)


def _duration(task: dict[str, Any]) -> str:
    exit_ = task["exit"] or {}
    began = exit_.get("startedAt") or task["startedAt"]
    if began is None:
        return "-"
    ended = exit_.get("endedAt") or task["endedAt"]
    return duration(max(0.0, (time.time() if ended is None else ended) - began))
