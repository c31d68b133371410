"""What all parts of an answer say alike: moments, earlier runs that are waited for, attempts, what
an exit table has to say. Pure.
"""

import datetime
from typing import Any

from ...db.events.state import Run
from ...diagnosis.exit_table import AGAIN, WHOSE
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.roles import After
from . import batch_jobs, containers

Answer = dict[str, Any]
#: Of attempts, tasks and runs that are waited for, so many are named: the latest, or the first.
NAMED = 5


def utc(at: float | None) -> str:
    return (
        "?"
        if at is None
        else datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    )


def after(other: After) -> str:
    on = {
        "ok": "if that completes",
        "any": "however that ends",
        "failed": "if that does not complete",
    }[other.on]
    return f"{other.compute_jid}, {on}"


def says(run: Run, exit_: ExitInfo) -> str:
    """The exit as evidence, and who says so."""
    return f"exit: {exit_.sentence()} (said by the {containers.teller(run.telling, exit_)})"


def attempts(answer: Answer, run: Run) -> None:
    """What decided the latest attempt, and why those before it were tried again, and it not."""
    for a in run.attempts[-NAMED:]:
        if a.decided is not None and a is run.attempts[-1]:
            by = "" if a.decided.role is None else f" by {a.decided.role}/{a.decided.index}"
            answer["evidence"].append(f"attempt {a.number} was decided{by}: {a.decided.reason}")
        if a.retry is not None:
            answer["evidence"].append(
                f"attempt {a.number} ended ({a.reason}) and is tried again: {a.retry.reason}"
            )
        if a.not_retried is not None and run.spec.retry is not None:
            answer["evidence"].append(f"attempt {a.number} is not tried again: {a.not_retried}")
    if run.stop is not None and not run.active and run.stop.reason != run.reason:
        why = f"{run.stop.by} asked for its end ({run.stop.reason}) when it had failed already and was kept for debugging"
        answer["evidence"].append(f"{why}: it ended with the exit that it had")


def diagnosed(
    answer: Answer, run: Run, usual: tuple[str, ...] = (), *, doubted: bool = False
) -> None:
    """What the exit table says of the task that stands for the run. Its solutions take the place of
    what is usually tried.

    doubted: they come behind that.
    """
    found, task = run.diagnosis, run.telling
    if found is None or task is None or run.status == "completed":
        put_first(answer, usual)
        return
    answer["diagnosis"] = {
        "code": found.code,
        "phrase": found.phrase,
        "type": found.type,
        "whose": WHOSE[found.type],
        "behavior": found.behavior,
        "again": AGAIN[found.behavior],
        "reason": found.reason,
        "solutions": list(found.solutions),
        "hint": found.hint,
        "matched": found.matched,
        "excerpt": found.excerpt,
        "task": f"{task.token.role}/{task.token.index}" if run.spec.roles else None,
    }
    if found.solutions:
        answer["try"] = [
            line
            for line in answer["try"]
            if containers.is_command(line) or batch_jobs.is_command(line)
        ]
    put_first(answer, (*usual, *found.solutions) if doubted else found.solutions or usual)


def waking(pid: int, host: str) -> str:
    """What to try where a keeper does not answer. Process 1 is that of a container, which is called
    by its name outside.
    """
    if pid == 1:
        return f"docker kill --signal=CONT CONTAINER   # on the Docker host of {host}; 'docker ps' has the name of the container"
    return f"kill -CONT {pid}   # on {host}, if 'ps -o stat= -p {pid}' shows T; a keeper that hangs is replaced by itself, and jobs run on"


def put_first(answer: Answer, lines: tuple[str, ...]) -> None:
    """These before all others, and none twice."""
    answer["try"] = list(dict.fromkeys((*lines, *answer["try"])))


def named(jid: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """What the table of causes has people try, with the name of this job where it says JOB."""
    return tuple(line.replace(" JOB", f" {jid}") for line in lines)
