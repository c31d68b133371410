"""`job tasks` and `job release`: the tasks and attempts of a run, and the end of what is kept of it
for debugging.
"""

import time
from typing import TYPE_CHECKING, Any

import click

from ..session.job_names import whole
from ..session.session import Session, command, session
from ..terminal.quantities import duration, moment

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADS = ("TASK", "STATE", "EXIT", "WHERE", "TOOK", "PID")
#: Ports of one label that are shown before it says how many there are.
_PORTS_SHOWN = 4


@command()
@click.argument("name", metavar="JOB")
@click.option(
    "--attempt",
    type=click.IntRange(1),
    metavar="N",
    help="The tasks of this attempt (default: the latest).",
)
@click.option(
    "--failed",
    is_flag=True,
    help="Only tasks that failed, and those that are kept because they did.",
)
def tasks(name: str, attempt: int | None, failed: bool) -> None:
    """Show the attempts of a run, why each was tried again or not, and the tasks of one of them."""
    s = session()
    jid = whole(s, name)
    answer = s.client_for(jid).tasks(jid, attempt or 0)
    shown = [t for t in answer["tasks"] if not failed or t["state"] in ("failed", "held")]
    if s.screen.json:
        s.screen.value("jobscribe.job.tasks/1", {**answer, "tasks": shown})
        return
    for line in _told(jid, answer):
        s.screen.line(line)
    if shown:
        s.screen.table(_HEADS, [_row(t) for t in shown])
    elif answer["tasks"]:
        s.screen.say("none of its tasks has failed")
    else:
        s.screen.say(_no_tasks(answer))
    for line in hints(s, jid, answer["tasks"]):
        s.screen.say(line)


def hints(s: Session, jid: str, tasks_: "Sequence[dict[str, Any]]") -> list[str]:
    """How to enter tasks that are kept for debugging, and how to end that."""
    held = [t for t in tasks_ if t["state"] == "held"]
    if not held:
        return []
    first, here = held[0], s.here()
    until = moment(min(t["heldUntil"] for t in held))
    kept = (
        task_name(first)
        + (f" and {len(held) - 1} more" if len(held) > 1 else "")
        + f" {'are' if len(held) > 1 else 'is'} kept"
    )
    return [
        f"{kept} for debugging until {until}, with everything held:",
        f"  jobscribe job shell {jid} --role {first['role']} --index {first['index']}{here}   # enter it",
        f"  jobscribe job release {jid}{here}   # give back what it holds; it ends with the exit that it had",
    ]


def task_name(task: dict[str, Any]) -> str:
    return f"{task['role']}/{task['index']}"


def at_most(answer: dict[str, Any]) -> str:
    """` of at most 6`: how many attempts the run may have; nothing where that is not limited, or
    only one.
    """
    policy = answer.get("policy")
    if policy is None or policy["count"] < 0 or policy["platform"] < 0:
        return ""
    return f" of at most {1 + policy['count'] + policy['platform']}"


def attempt_line(attempt: dict[str, Any], *, rule: bool = True) -> str:
    """How an attempt ended, and what came of that. rule: with the condition that decided it."""
    parts = ["ended" if attempt["endedAt"] is not None else "ends"]
    decided, retry = attempt["decided"], attempt["retry"]
    if decided is not None:
        word = "succeeded" if decided["succeeded"] else "failed"
        by = "" if decided["role"] is None else f" by {decided['role']}/{decided['index']}"
        parts = [f"{word}{by}" + (f" ({decided['reason'].rstrip('.')})" if rule else "")]
    elif attempt["reason"]:
        parts[0] += f" ({attempt['reason']})"
    if retry is not None:
        parts.append(f"tried again: {retry['reason']}")
    if attempt["notRetried"]:
        parts.append(f"not tried again: {attempt['notRetried']}")
    return "; ".join(parts)


def _told(jid: str, answer: dict[str, Any]) -> list[str]:
    number = f", attempt {answer['attempt']}{at_most(answer)}" if answer["attempt"] else ""
    lines = [f"{jid} {answer['state']}{number}"]
    told = [a for a in answer["attempts"] if a["endedAt"] is not None or a["decided"] is not None]
    return lines + [f"  attempt {a['number']:<4} {attempt_line(a)}" for a in told]


def _no_tasks(answer: dict[str, Any]) -> str:
    if not answer["attempt"] and answer["state"] not in ("pending", "running"):
        return "none of its tasks was ever placed; 'job why' says why"
    if not answer["attempt"]:
        return "no task has been placed yet; 'job why' says what it waits for"
    return f"the tasks of attempt {answer['attempt']} are not kept any more"


def _row(task: dict[str, Any]) -> list[str]:
    live = task["state"] in ("placed", "running")
    return [
        task_name(task),
        task["state"],
        _exit(task),
        _where(task),
        _took(task),
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


def _where(task: dict[str, Any]) -> str:
    """`127.0.0.1 http:30000 ssh:30001 gpu:0,1`; in a container with its host before, and its image
    and name behind.
    """
    contained = [f"{key}:{task[key]}" for key in ("image", "container") if task.get(key)]
    # the address of a container is one of its gang's network, and does not say where it is
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


def _took(task: dict[str, Any]) -> str:
    exit_ = task["exit"] or {}
    began = exit_.get("startedAt") or task["startedAt"]
    if began is None:
        return "-"
    ended = exit_.get("endedAt") or task["endedAt"]
    return duration(max(0.0, (time.time() if ended is None else ended) - began))


@command()
@click.argument("name", metavar="JOB")
@click.option("--role", metavar="ROLE", help="Only tasks of this role.")
@click.option("--index", type=click.IntRange(0), metavar="I", help="With --role: only this one.")
def release(name: str, role: str | None, index: int | None) -> None:
    """End the debugging of tasks that failed and are kept: what they hold is given back, and they
    end with the exits that they had.
    """
    if index is not None and role is None:
        raise click.UsageError("--index goes with --role")
    s = session()
    jid = whole(s, name)
    client = s.client_for(jid)
    before = client.tasks(jid)
    held = [
        t
        for t in before["tasks"]
        if t["state"] == "held" and role in (None, t["role"]) and index in (None, t["index"])
    ]
    state = client.release(jid, serial=before["computeJobSerial"], role=role, index=index)
    if s.screen.json:
        s.screen.value(
            "jobscribe.job.release/1",
            {"released": [task_name(t) for t in held], "status": state.raw},
        )
        return
    if not held:
        which = (
            "no task of it"
            if role is None
            else f"no task of role {role}"
            if index is None
            else f"no task {role}/{index}"
        )
        s.screen.say(f"{jid}: {which} is kept for debugging; nothing was changed")
        return
    s.screen.say(f"{jid}: released {', '.join(map(task_name, held))}; it is {state.sentence()}")
