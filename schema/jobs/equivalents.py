"""The command line and the Python program that submit the same job as a job description. Pure.

A description with keys that have no option is submitted from a file.
"""

import pprint
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

_PROGRAM = "jobscribe job submit"
_SHELL = ("/bin/bash", "-c")
#: The role of a run that is one task with its own resources.
_MAIN = "main"
#: A command line has no retries; those of a job file are on by default.
_NO_RETRIES = ({"platform": 0}, {"count": 0, "platform": 0})
#: Keys of a job and their options, in the order of the form.
_JOB = {
    "name": "--name",
    "kind": "--kind",
    "queue": "--queue",
    "priority": "--priority",
    "driver": "--driver",
    "timeLimit": "--time-limit",
    "queueLimit": "--queue-limit",
    "grace": "--grace",
    "array": "--array",
    "profile": "--profile",
}
_TASK = {"image": "--image", "cpu": "--cpu", "memory": "--memory", "gpu": "--gpu", "shm": "--shm"}
_BATCH = {
    "cluster": "--cluster",
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "constraint": "--constraint",
    "licenses": "--licenses",
    "nodes": "--nodes",
    "tasks": "--tasks",
    "tasksPerNode": "--tasks-per-node",
    "cores": "--cores",
    "gpus": "--gpus",
    "memory": "--memory",
    "setup": "--setup",
    "signalSecs": "--signal-secs",
}
_LISTS = {"modules": "--module", "directives": "--directive"}


def command_line(data: Mapping[str, Any], file: str) -> str:
    """Return the command for a valid description, ready for a shell. file: its name if it needs one."""
    words = None if "jobs" in data else _words(_given(data))
    return f"{_PROGRAM} {shlex.join(words)}" if words else file_command(file)


def file_command(file: str) -> str:
    """Return the command that submits a job file."""
    return f"{_PROGRAM} -f {shlex.quote(file)}"


def python_program(data: Mapping[str, Any]) -> str:
    """Return a program that submits a valid description."""
    shown = pprint.pformat(dict(data), width=96, sort_dicts=False)
    return (
        "from jobscribe.client import Client\n\n"
        f"job = {shown}\n"
        "with Client(URL, token=TOKEN) as client:\n"
        "    runs = client.submit_description(job)\n"
    )


def _given(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in data.items() if v is not None}


def _words(data: dict[str, Any]) -> list[str] | None:
    """Return the words after `job submit`; None if a key has no option."""
    if data.pop("retry", None) not in _NO_RETRIES:
        return None
    task: dict[str, Any] = {}
    if (roles := data.pop("roles", None)) is not None:
        if list(roles) != [_MAIN] or len(roles[_MAIN]) < 2:
            return None
        task = _given(roles[_MAIN])
        data["command"] = task.pop("command", None)
        data.setdefault("kind", "parallel")
    command, env = data.pop("command", None), data.pop("env", {})
    volumes, batch = task.pop("volumes", ()), _given(data.pop("batch", {}))
    lists = {name: batch.pop(name) for name in _LISTS if name in batch}
    if not command or data.keys() - _JOB or task.keys() - _TASK or batch.keys() - _BATCH:
        return None
    if task and "memory" in batch:
        return None
    words = [
        *_options(data, _JOB),
        *_options(task, _TASK),
        *(w for volume in volumes for w in ("--volume", str(volume))),
        *_options(batch, _BATCH),
        *(w for name, values in lists.items() for v in values for w in (_LISTS[name], str(v))),
        *(w for name, value in env.items() for w in ("--env", f"{name}={value}")),
    ]
    shell = (*_SHELL, command) if isinstance(command, str) else command
    return [*words, "--", *map(str, shell)]


def _options(given: Mapping[str, Any], options: Mapping[str, str]) -> Iterator[str]:
    for name, option in options.items():
        if name in given:
            yield from (option, str(given[name]))
