"""`job shell`: enter a task, that is: a shell of one's own with the environment and in the
directory of its command.

The keeper leaves the script of each task beside its output (its *evidence*); that script can start
a shell instead of the command. This works where the script lies, for the unix user whose it is.
Elsewhere it is said what to do instead.
"""

import os
import shlex
import socket
import sys
from collections.abc import Sequence
from typing import Any

import click

from ...protocol.errors import Refusal
from ...protocol.ids import parse_agent_key
from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from .tasks import task_name

_SCRIPT = "script.sh"
#: Tasks that are named to somebody who has to choose one.
_NAMED = 8


@command()
@click.argument("name", metavar="JOB")
@click.option("--role", metavar="ROLE", help="A task of this role.")
@click.option("--index", type=click.IntRange(0), metavar="I", help="With --role: this one.")
@click.option(
    "--attempt",
    type=click.IntRange(1),
    metavar="N",
    help="As it was in this attempt (default: the latest).",
)
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="Print the command line that enters it, and do nothing.",
)
def shell(
    name: str, role: str | None, index: int | None, attempt: int | None, only_print: bool
) -> None:
    """Enter a task that runs, is kept for debugging, or has ended: a shell with its environment, in
    its directory.

    Without --role, the task that is kept for debugging, or the only one there is. What you do there
    is done as the task's unix user, beside it; to leave it changes nothing of it.
    """
    if index is not None and role is None:
        raise click.UsageError("--index goes with --role")
    s = session()
    if s.screen.json and not only_print:
        raise click.UsageError("--json goes with --print: a shell is for a person")
    jid = resolve_job(s, name)
    answer = s.client_for(jid).tasks(jid, attempt or 0)
    task = chosen(answer, role, index)
    words = [*_into_batch_job(task), "/bin/sh", f"{task['evidence']}/{_SCRIPT}", "--shell"]
    if only_print:
        _print(s, task, words)
        return
    _check(task, words)
    s.screen.message(f"[{_about(task, answer)}; 'exit' leaves it]")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(words[0], words)


def chosen(answer: dict[str, Any], role: str | None, index: int | None) -> dict[str, Any]:
    """The task that is meant. Raises Refusal(notHere, badRequest)."""
    tasks: list[dict[str, Any]] = answer["tasks"]
    if not tasks:
        gone = f"the tasks of attempt {answer['attempt']} are not kept any more"
        raise Refusal(
            "notHere", gone if answer["attempt"] else "none of its tasks has been placed yet"
        )
    meant = [t for t in tasks if role in (None, t["role"]) and index in (None, t["index"])]
    if not meant:
        raise Refusal(
            "badRequest",
            f"the run has no task {role}"
            + ("" if index is None else f"/{index}")
            + f"; there are {_names(tasks)}",
        )
    held = [t for t in meant if t["state"] == "held"]
    failed = [t for t in meant if t["state"] == "failed"]
    if held:
        return held[0]
    if len(meant) == 1 or len(failed) == 1:
        return meant[0] if len(meant) == 1 else failed[0]
    raise Refusal(
        "badRequest",
        f"there are {len(meant)} tasks; choose one with --role and --index: {_names(meant)}",
    )


def _names(tasks: Sequence[dict[str, Any]]) -> str:
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    return ", ".join(map(task_name, tasks[:_NAMED])) + more


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
    state = {"held": "kept for debugging", "placed": "about to start", "running": "running"}.get(
        task["state"], task["state"]
    )
    return f"task {task_name(task)} of {answer['computeJid']}, attempt {answer['attempt']}, {state}"


def _check(task: dict[str, Any], words: list[str]) -> None:
    """Can we enter it from here? Raises Refusal("notHere") with what to do instead."""
    path, host, here = words[-2], task["host"], socket.gethostname()
    line = shlex.join(words)
    there = _nearest(path)
    if task.get("agentKey", "").startswith("docker."):
        raise Refusal("notHere", _in_container(task, line))
    if _of_batch(task) and (
        not _over(task) or there is None or not os.path.exists(path) or there.st_uid != os.geteuid()
    ):
        raise Refusal("notHere", _on_cluster(task, line))
    if host is not None and host != here and not os.path.exists(path):
        raise Refusal(
            "notHere",
            f"task {task_name(task)} is on {host}, and this is {here}; log in there as its unix user and run: {line}",
        )
    if there is not None and there.st_uid != os.geteuid():
        who = _user(there.st_uid)
        how = f"runuser -u {who} -- {line}" if os.geteuid() == 0 else f"sudo -u {who} {line}"
        alone = f"task {task_name(task)} runs as unix user {who}, who alone can enter it"
        raise Refusal("notHere", f"{alone}; this is {_user(os.geteuid())}: {how}")
    if not os.path.exists(path):
        why = (
            "it has not started yet"
            if task["state"] == "placed"
            else "its files have been removed, or lie on another machine"
        )
        raise Refusal(
            "notHere", f"there is nothing of task {task_name(task)} to enter here: {why} ({path})"
        )


def _of_batch(task: dict[str, Any]) -> bool:
    return str(task.get("agentKey", "")).startswith("sbatch.")


def _over(task: dict[str, Any]) -> bool:
    return task["state"] not in ("placed", "running")


def _into_batch_job(task: dict[str, Any]) -> list[str]:
    """Before the command line: Slurm brings us to the node where it runs, beside it."""
    batch = task.get("batch") or {}
    if not _of_batch(task) or task["state"] != "running" or not batch.get("jobId"):
        return []
    # one of several has an address, and a host of its own; of any other it is the list of all its
    # nodes
    node = [f"--nodelist={task['host']}"] if task.get("address") and task.get("host") else []
    return [
        "srun",
        f"--jobid={batch['jobId']}",
        "--overlap",
        "--ntasks=1",
        "--nodes=1",
        *node,
        "--pty",
    ]


def _on_cluster(task: dict[str, Any], line: str) -> str:
    """How a task of a batch job is entered: nobody but Slurm leads to its node, and its files
    belong to its unix user.
    """
    cluster = parse_agent_key(task["agentKey"]).host
    match task["state"]:
        case "placed":
            return f"there is nothing of task {task_name(task)} to enter yet: it waits for Slurm on {cluster} ('job why' says for what)"
        case "running":
            return f"task {task_name(task)} runs on {task['host']} of {cluster}; as its unix user, on a login node of {cluster}: {line}"
        case _:
            return f"the files of task {task_name(task)} lie on {cluster}; as its unix user, on a login node of {cluster}: {line}"


def _in_container(task: dict[str, Any], line: str) -> str:
    """How a task is entered that runs in a container: what to type where its host's daemon can be
    reached.
    """
    key = parse_agent_key(task["agentKey"])
    if key.kind != "container":
        there = f"docker exec -it srj-{key.kind[0]}-{key.uid} {line}"
        if _over(task):
            # the container ends some time after its last run, and the next run starts it again
            about = f"task {task_name(task)} was in the container of its agent"
            return f"{about}; while that runs ('jobscribe agent list' shows it), on {key.host}: {there}"
        return f"task {task_name(task)} is in the container of its agent; on {key.host}: {there}"
    container = task.get("container") or "srj-t-..."
    if task["state"] in ("placed", "running"):
        return f"task {task_name(task)} is in a container of its own; on {key.host}: docker exec -it {container} {line}"
    again = "make one like it from the `docker run` in the supervisor's log (docs/docker.md, 'Investigate a dead container'), and in it"
    return f"the container of task {task_name(task)}, {container} on {key.host}, runs no more; {again}: {line}"


def _nearest(path: str) -> os.stat_result | None:
    """Of the path, or of the folder that keeps us from seeing it; None where it is not there."""
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
