"""Parts that several explanations share: times, dependencies, attempts, exit table entries. Pure."""

import datetime
from collections.abc import Callable, Iterable
from typing import Any

from ...db.events.state import Run
from ...diagnosis.exit_table import AGAIN, WHOSE
from ...protocol.ids import split_jid
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.roles import After
from ...protocol.jobs.status import COMPLETED
from . import batch_jobs, containers
from .usage_facts import policy_sentence

Answer = dict[str, Any]
#: Number of attempts (the latest), tasks or dependencies (the first) that an answer lists.
NAMED = 5


def utc(at: float | None) -> str:
    return (
        "?"
        if at is None
        else datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    )


def dependency(other: After) -> str:
    """Return the job that a run depends on, with the condition."""
    condition = {
        "ok": "if that run completes",
        "any": "whether or not that run completes",
        "failed": "if that run does not complete",
    }[other.on]
    return f"{other.compute_jid}, {condition}"


def several_tasks(run: Run) -> bool:
    """Return whether the run has more than one task, so that answers name the task."""
    return sum(role.tasks for role in run.spec.roles) > 1


def exit_evidence(run: Run, exit_: ExitInfo) -> str:
    """Return the exit and its source as one line of evidence."""
    line = f"exit: {exit_.sentence()} (reported by the {containers.source(run.telling, exit_)})"
    known = exit_.code is not None or exit_.signal is not None
    return (
        f"{line}; {exit_.detail}" if known and exit_.detail and exit_.source == "keeper" else line
    )


def add_attempts(answer: Answer, run: Run, named: Callable[[str], str] = lambda uid: uid) -> None:
    """Add what decided the latest attempt, and why attempts were or were not retried."""
    for a in run.attempts[-NAMED:]:
        if a.decided is not None and a is run.attempts[-1] and several_tasks(run):
            by = "" if a.decided.role is None else f" by {a.decided.role}/{a.decided.index}"
            answer["evidence"].append(
                f"attempt {a.number} was decided{by}: {policy_sentence(a.decided.reason)}"
            )
        if a.retry is not None:
            answer["evidence"].append(
                f"attempt {a.number} ended ({a.reason}) and is retried: {a.retry.reason}"
            )
        if a.not_retried is not None and run.spec.retry is not None:
            answer["evidence"].append(f"attempt {a.number} is not retried: {a.not_retried}")
    if run.stop is not None and not run.active and run.stop.reason != run.reason:
        request = f"{named(run.stop.by)} requested its end ({run.stop.reason})"
        answer["evidence"].append(
            f"{request} while it was held for debugging; its exit status did not change"
        )


def add_diagnosis(
    answer: Answer, run: Run, usual: tuple[str, ...] = (), *, doubted: bool = False
) -> None:
    """Add the exit table entry for the task that represents the run.

    usual: advice by cause, which the solutions of the entry replace. doubted: the solutions of the
    entry follow the usual advice instead of replacing it.
    """
    found, task = run.diagnosis, run.telling
    if found is None or task is None or run.status == COMPLETED:
        prepend_advice(answer, usual)
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
        "task": f"{task.token.role}/{task.token.index}" if several_tasks(run) else None,
    }
    if found.solutions:
        answer["try"] = [
            line
            for line in answer["try"]
            if containers.is_command(line) or batch_jobs.is_command(line)
        ]
    prepend_advice(answer, (*usual, *found.solutions) if doubted else found.solutions or usual)


def resume_keeper_command(pid: int, host: str) -> str:
    """Return the command that resumes a keeper that does not answer.

    In a container, the keeper is process 1; outside it, only the container's name is known.
    """
    if pid == 1:
        return f"docker kill --signal=CONT CONTAINER   # on the Docker host of {host}; 'docker ps' shows the name of the container"
    return f"kill -CONT {pid}   # on {host}, if 'ps -o stat= -p {pid}' shows T; a hung keeper is replaced automatically, its jobs continue"


def prepend_advice(answer: Answer, lines: tuple[str, ...]) -> None:
    """Put `lines` before the other advice, without duplicates."""
    answer["try"] = without_repeats((*lines, *answer["try"]))


def without_repeats(lines: Iterable[str]) -> list[str]:
    """Return the lines without those that begin as an earlier one, except for commands."""
    kept: dict[str, str] = {}
    for line in lines:
        command = containers.is_command(line) or batch_jobs.is_command(line)
        kept.setdefault(line if command else line[:40].casefold(), line)
    return list(kept.values())


def with_ids(jid: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """Replace the placeholders JOB and SIMULATION in lines of advice."""
    simulation = split_jid(jid)[1]
    return tuple(
        line.replace(" JOB", f" {jid}").replace(" SIMULATION", f" {simulation}") for line in lines
    )
