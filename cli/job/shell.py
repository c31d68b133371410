"""`jobscribe job shell`: a shell in the directory and environment of a task.

The keeper keeps the script of each task beside its output (its *evidence*). The script can start a
shell instead of the command, on the machine with the script, for its unix user. From other machines
the supervisor and the task's agent relay the shell (`cli/session/relayed_shell.py`). Where that is
not possible, the command prints the next step.
"""

import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from ...agent.slurm import command_lines
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKind, parse_agent_key
from ...protocol.jobs.status import TaskStatus
from ..session.job_names import resolve_job
from ..session.relayed_shell import relayed
from ..session.session import Session, command, session
from .tasks import task_name

_SCRIPT, _SCRIPT_SECS = "script.sh", 1.0
#: Number of tasks listed if the user must choose one.
_LISTED_TASKS = 8


@command()
@click.argument("name", metavar="JOB")
@click.option("--role", metavar="ROLE", help="Task of this role.")
@click.option(
    "--index", type=click.IntRange(0), metavar="I", help="With --role: index of the task."
)
@click.option(
    "--attempt",
    type=click.IntRange(1),
    metavar="N",
    help="Attempt number (default: the latest).",
)
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="Print the command line, and do nothing.",
)
def shell(
    name: str, role: str | None, index: int | None, attempt: int | None, only_print: bool
) -> None:
    """Open a shell in the directory and with the environment of a task. The task may be running,
    held for debugging, or over.

    Without --role, the command selects the held task, or the only failed task, or the only task.
    The shell runs as the task's unix user, beside the task; leaving it does not affect the task. On
    other machines than the task's, supervisor and agent relay it. Its exit status is that of the
    command.
    """
    if index is not None and role is None:
        raise click.UsageError("--index requires --role")
    s = session()
    if s.screen.json and not only_print:
        raise click.UsageError("--json requires --print: a shell is interactive")
    jid = resolve_job(s, name)
    answer = s.client_for(jid).tasks(jid, attempt or 0)
    task = select_task(answer, role, index)
    words = [*_srun_prefix(task), "/bin/sh", f"{task['evidence']}/{_SCRIPT}", "--shell"]
    if only_print:
        _print(s, task, words)
        return
    about = _about(task, answer)
    if s.remote:
        relayed(s, jid, task, answer["attempt"], about)
    try:
        _check(task, words)
    except Refusal as e:
        if s.remote:
            raise
        relayed(s, jid, task, answer["attempt"], about, e)
    s.screen.message(f"[{about}; 'exit' closes the shell]")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(words[0], words)


def select_task(answer: dict[str, Any], role: str | None, index: int | None) -> dict[str, Any]:
    """Return the task that the options select. Raises Refusal(notHere, badRequest)."""
    tasks: list[dict[str, Any]] = answer["tasks"]
    if not tasks:
        gone = f"the tasks of attempt {answer['attempt']} are no longer stored"
        raise Refusal("notHere", gone if answer["attempt"] else "no task of the job is placed yet")
    matching = [t for t in tasks if role in (None, t["role"]) and index in (None, t["index"])]
    if not matching:
        raise Refusal(
            "badRequest",
            f"the run has no task {role}"
            + ("" if index is None else f"/{index}")
            + f"; its tasks: {_names(tasks)}",
        )
    held = [t for t in matching if t["state"] == TaskStatus.HELD]
    failed = [t for t in matching if t["state"] == TaskStatus.FAILED]
    if held:
        return held[0]
    if len(matching) == 1 or len(failed) == 1:
        return matching[0] if len(matching) == 1 else failed[0]
    raise Refusal(
        "badRequest",
        f"there are {len(matching)} tasks; choose one with --role and --index: {_names(matching)}",
    )


def _names(tasks: Sequence[dict[str, Any]]) -> str:
    more = f" and {len(tasks) - _LISTED_TASKS} more" if len(tasks) > _LISTED_TASKS else ""
    return ", ".join(map(task_name, tasks[:_LISTED_TASKS])) + more


def _print(s: Session, task: dict[str, Any], words: list[str]) -> None:
    if s.screen.json:
        s.screen.value(
            "jobscribe.job.shell/1",
            {
                "role": task["role"],
                "index": task["index"],
                "state": task["state"],
                "host": task["host"],
                "argv": words,
            },
        )
    else:
        s.screen.line(shlex.join(words))


def _about(task: dict[str, Any], answer: dict[str, Any]) -> str:
    state = {"held": "held for debugging", "placed": "about to start", "running": "running"}.get(
        task["state"], task["state"]
    )
    return f"task {task_name(task)} of {answer['computeJid']}, attempt {answer['attempt']}, {state}"


def _check(task: dict[str, Any], words: list[str]) -> None:
    """Check that the task can be entered here. Raises Refusal("notHere") with the next step."""
    path, host, here = words[-2], task["host"], socket.gethostname()
    line = shlex.join(words)
    info = _nearest_stat(path)
    if task.get("agentKey", "").startswith("docker."):
        raise Refusal("notHere", _in_container(task, line))
    if _is_batch(task) and (
        not _is_over(task)
        or info is None
        or not os.path.exists(path)
        or info.st_uid != os.geteuid()
    ):
        raise Refusal("notHere", _on_cluster(task, line))
    if host is not None and host != here and not os.path.exists(path):
        raise Refusal(
            "notHere",
            f"task {task_name(task)} is on {host}, and this machine is {here}; log in there as its unix user and run: {line}",
        )
    if info is not None and info.st_uid != os.geteuid():
        owner = _user(info.st_uid)
        how = f"runuser -u {owner} -- {line}" if os.geteuid() == 0 else f"sudo -u {owner} {line}"
        reason = f"only unix user {owner} can enter task {task_name(task)}"
        raise Refusal("notHere", f"{reason}; you are {_user(os.geteuid())}; run: {how}")
    if not _appears(path, task):
        why = {
            TaskStatus.PLACED: "the task has not started yet",
            TaskStatus.SUCCEEDED: "it succeeded at once and left no script, or its files are not here; try `jobscribe job repro`",
        }.get(task["state"], "its files were removed or lie on another machine")
        raise Refusal("notHere", f"task {task_name(task)} cannot be entered here: {why} ({path})")


def _appears(path: str, task: dict[str, Any]) -> bool:
    """Return whether the script exists. A keeper writes it when a run takes longer than a moment."""
    until = time.monotonic() + (_SCRIPT_SECS if task["state"] == TaskStatus.RUNNING else 0.0)
    while not os.path.exists(path) and time.monotonic() < until:
        time.sleep(_SCRIPT_SECS / 20)
    return os.path.exists(path)


def _is_batch(task: dict[str, Any]) -> bool:
    return str(task.get("agentKey", "")).startswith("sbatch.")


def _is_over(task: dict[str, Any]) -> bool:
    if _is_batch(task) and task["state"] == TaskStatus.HELD:  # its allocation is held
        return False
    return task["state"] not in (TaskStatus.PLACED, TaskStatus.RUNNING)


def _srun_prefix(task: dict[str, Any]) -> list[str]:
    """Return the srun command that enters a running batch task's node. Empty for other tasks."""
    batch = task.get("batch") or {}
    live = task["state"] in (TaskStatus.RUNNING, TaskStatus.HELD)
    if not _is_batch(task) or not live or not batch.get("jobId"):
        return []
    # A task of a gang has an address and a single host. The host of a single task is its list of
    # nodes.
    node = task["host"] if task.get("address") and task.get("host") else ""
    return command_lines.enter(str(batch["jobId"]), node, terminal=True)


def _on_cluster(task: dict[str, Any], line: str) -> str:
    """Return how to enter a task of a batch job: only Slurm gives access to its node, and its files
    belong to its unix user.
    """
    cluster = parse_agent_key(task["agentKey"]).host
    match task["state"]:
        case TaskStatus.PLACED:
            return f"task {task_name(task)} cannot be entered yet: it waits for Slurm on {cluster} ('jobscribe job why' gives the reason)"
        case TaskStatus.HELD:
            about = f"task {task_name(task)} is held for debugging on {task['host']} of {cluster}"
            return f"{about}; as its unix user, run on a login node of {cluster}: {line}"
        case TaskStatus.RUNNING:
            return f"task {task_name(task)} runs on {task['host']} of {cluster}; as its unix user, run on a login node of {cluster}: {line}"
        case _:
            return f"the files of task {task_name(task)} are on {cluster}; as its unix user, run on a login node of {cluster}: {line}"


def _in_container(task: dict[str, Any], line: str) -> str:
    """Return the command that enters a task in a container, for a machine with access to the Docker
    daemon of its host.
    """
    key = parse_agent_key(task["agentKey"])
    if key.kind != AgentKind.CONTAINER:
        enter = f"docker exec -it srj-{key.kind[0]}-{key.uid} {line}"
        if _is_over(task):
            # An agent's container stops some time after its last run; the next run starts it again.
            about = f"task {task_name(task)} was in the container of its agent"
            return f"{about}; while the agent is up (see 'jobscribe agent list'), run on {key.host}: {enter}"
        return (
            f"task {task_name(task)} is in the container of its agent; run on {key.host}: {enter}"
        )
    container = task.get("container") or "srj-t-..."
    if task["state"] in (TaskStatus.PLACED, TaskStatus.RUNNING):
        return f"task {task_name(task)} is in its own container; run on {key.host}: docker exec -it {container} {line}"
    again = "create a similar one from its `docker run` line (docs/docker.md, 'Investigate a dead container'), and run in it"
    return f"the container of task {task_name(task)}, {container} on {key.host}, has stopped; {again}: {line}"


def _nearest_stat(path: str) -> os.stat_result | None:
    """Return the stat of the path, or of the folder that denies access to it. None if it is
    missing.
    """
    while path != "/":
        try:
            return os.stat(path)
        except PermissionError:
            path = os.path.dirname(path)
        except OSError:
            return None
    return None


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
