"""`jobscribe job ssh` and its proxy command.

ssh starts the proxy, which opens an sshd in the task's container over the relay of shells. Nothing
listens there. The supervisor sees what ssh encrypts.
"""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ....protocol.errors import Refusal
from ....protocol.ids import AgentKind, parse_agent_key
from ....protocol.jobs.status import TaskStatus
from ...session.job_names import resolve_job
from ...session.session import Session, command, session
from ..tasks import task_name
from .options import alias, block, host_name, ssh_options
from .user_keys import UserKeys, program, user_keys

if TYPE_CHECKING:
    from ....client.async_client import AsyncClient

#: How long (seconds) requests of an open connection are retried while the supervisor is unavailable.
_LOST_SECS = 3.0
_TASK = re.compile(r"([A-Za-z][A-Za-z0-9_]*)-(0|[1-9][0-9]{0,5})\Z")
_ENTERED = (TaskStatus.RUNNING, TaskStatus.HELD)
_WELCOME = b"jobscribe-ssh "


@command()
@click.argument("name", metavar="JOB")
@click.argument("words", nargs=-1, metavar="[ROLE-INDEX] [-- COMMAND...]")
@click.option(
    "--config",
    "as_config",
    is_flag=True,
    help="Print the tasks as hosts for ~/.ssh/config, for scp, rsync and IDEs.",
)
def ssh(name: str, words: tuple[str, ...], as_config: bool) -> None:
    """Log in to a task with OpenSSH, or run a command in it. The job needs `ssh: true` and an image
    with sshd; `job shell` enters every task.

    Without ROLE-INDEX, the only task that runs. The connection passes through the supervisor, from
    each machine with an API token. It has a key of this job, made on this machine.
    """
    s = session()
    if s.screen.json and not as_config:
        raise click.UsageError("--json requires --config: a login is interactive")
    jid = resolve_job(s, name)
    answer = s.client_for(jid).tasks(jid)
    tasks = answer["tasks"]
    task, rest = _chosen(tasks, words)
    if as_config and rest:
        raise click.UsageError(f"--config runs no command: {' '.join(rest)}")
    if not as_config and task is None:
        task = _only(tasks)
    shown = [task] if task is not None else _with_sshd(tasks)
    for one in shown:
        _check(s, jid, one, bool(answer.get("ssh")))
    keys = user_keys(jid)
    if as_config:
        _print_config(s, jid, shown, keys)
        return
    assert task is not None
    options = _options(s, jid, task, keys)
    flags = [word for key, value in options for word in ("-o", f"{key}={value}")]
    ssh_path = program("ssh")
    s.screen.message(f"[task {task_name(task)} of {jid}; relayed by the supervisor]")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(ssh_path, ["ssh", *flags, host_name(jid, task["role"], task["index"]), *rest])


@command()
@click.argument("name", metavar="JOB")
@click.argument("task_words", metavar="ROLE-INDEX")
def ssh_proxy(name: str, task_words: str) -> None:
    """Connect standard input and output with an sshd in a task. OpenSSH starts this command: see
    `job ssh --config`.
    """
    s = session()
    s.limit_wait("ssh waits no longer")
    jid = resolve_job(s, name)
    matched = _TASK.match(task_words)
    if matched is None:
        raise click.UsageError(f"{task_words!a} is no task: write ROLE-INDEX, such as worker-0")
    keys = user_keys(jid)
    task = {"role": matched[1], "index": int(matched[2])}
    try:
        asyncio.run(_relay(s, jid, task, keys))
    except PermissionError:
        raise click.UsageError("standard input is a file; ssh starts this command") from None
    except BrokenPipeError:
        return


async def _relay(s: Session, jid: str, task: dict[str, Any], keys: UserKeys) -> None:
    from ....client.api.errors import ClientError
    from ...terminal.relayed_stream import RelayedStream

    welcomed = False

    def welcome(line: bytes) -> None:
        nonlocal welcomed
        if not line.startswith(_WELCOME):
            raise ClientError("agentUnavailable", "the task answered, but not with an sshd")
        welcomed = True
        keys.know(alias(jid), line.removeprefix(_WELCOME).decode("ascii", "replace"))

    client: AsyncClient = s.async_client_for(jid, _LOST_SECS)
    async with client:
        options = {"role": task["role"], "index": task["index"], "program": {"name": "ssh"}}
        opened = await client.open_shell(jid, None, **options)
        ends = (sys.stdin.fileno(), sys.stdout.fileno())
        key = keys.public.encode() + b"\n"
        stream = RelayedStream(client, jid, str(opened["shellId"]), ends, key, welcome)
        answer = await stream.run()
    if answer is not None and not welcomed:
        why = answer["detail"] or f"its sshd ended with code {answer['code']}"
        raise ClientError(
            "notHere", f"task {task_name(task)} has no ssh: {why}", _instead(s, jid, task)
        )


# ---- which tasks


def _chosen(
    tasks: Sequence[dict[str, Any]], words: tuple[str, ...]
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Return the task in the first word, and the other words. Raises Refusal for a missing one."""
    matched = _TASK.match(words[0]) if words else None
    if matched is None or not any(t["role"] == matched[1] for t in tasks):
        return None, words
    for task in tasks:
        if (task["role"], task["index"]) == (matched[1], int(matched[2])):
            return task, words[1:]
    raise Refusal("badRequest", f"the job has no task {words[0]}; {_names(tasks)}")


def _only(tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = _with_sshd(tasks)
    if len(found) != 1:
        raise Refusal("badRequest", f"choose a task: {_names(found)}")
    return found[0]


def _with_sshd(tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tasks that can be entered. Raises Refusal without one."""
    found = [t for t in tasks if t["state"] in _ENTERED]
    if not found:
        raise Refusal("notReady", "no task of the job runs; 'jobscribe job why' says why")
    return found


def _names(tasks: Sequence[dict[str, Any]]) -> str:
    names = [f"{t['role']}-{t['index']}" for t in tasks[:8]]
    return "its tasks: " + ", ".join(names) + (" ..." if len(tasks) > len(names) else "")


def _check(s: Session, jid: str, task: dict[str, Any], asked: bool) -> None:
    """Raises Refusal for a task that has no sshd, as far as this is known here. asked: the job has
    `ssh: true`.
    """
    name, why = task_name(task), None
    if parse_agent_key(task["agentKey"]).kind != AgentKind.CONTAINER:
        why = f"task {name} has no container of its own, so no sshd"
    elif not asked:
        why = f"task {name} has no sshd: the job was submitted without 'ssh: true'"
    if why is not None:
        raise Refusal("notHere", f"{why}; {_instead(s, jid, task)}")
    if task["state"] not in _ENTERED:
        raise Refusal(
            "notReady",
            f"task {name} does not run ({task['state']}); 'jobscribe job why {jid}' says why",
        )


def _instead(s: Session, jid: str, task: dict[str, Any]) -> str:
    return (
        f"this opens a shell: jobscribe job shell {jid} --role {task['role']}"
        f" --index {task['index']}{s.supervisor_options()}"
    )


# ---- the options of ssh


def _options(s: Session, jid: str, task: dict[str, Any], keys: UserKeys) -> list[tuple[str, str]]:
    own = shutil.which("jobscribe")
    start = [os.path.abspath(own)] if own else [sys.executable, "-m", "jobscribe.cli"]
    place = f"{task['role']}-{task['index']}"
    proxy = [*start, "job", "ssh-proxy", jid, place, *_supervisor(s)]
    return ssh_options(jid, proxy, keys.private, keys.known_hosts)


def _supervisor(s: Session) -> list[str]:
    """Return the options that select the supervisor from each directory."""
    words = ["--uid", s.options["uid"]] if s.options.get("uid") else []
    if s.url:
        words += ["--url", s.url]
        file = s.options.get("token_file")
        return [*words, "--token-file", os.path.abspath(file)] if file else words
    return [*words, "--site", s.site] if s.site else [*words, "--root", s.root]


def _print_config(s: Session, jid: str, tasks: Sequence[dict[str, Any]], keys: UserKeys) -> None:
    hosts = [(host_name(jid, t["role"], t["index"]), _options(s, jid, t, keys)) for t in tasks]
    if s.screen.json:
        rows = [{"host": name, "options": dict(options)} for name, options in hosts]
        s.screen.value("jobscribe.job.ssh/1", {"hosts": rows})
        return
    for name, options in hosts:
        for line in block(name, options):
            s.screen.line(line)
