"""Text form of a job's plan: its policies, common environment, roles and tasks."""

import shlex
from typing import Any

from ..terminal.screen import Screen

_ENDS = {"ok": "completed", "any": "ended", "failed": "ended without success"}


def show(screen: Screen, item: dict[str, Any]) -> None:
    """Print a plan. item: {"name", "runs", "after", "plan"}, with the supervisor's plan."""
    plan, tasks = item["plan"], item["plan"]["tasks"]
    count = item["runs"]
    many = f", an array of {count} runs; this is the first" if count > 1 else ""
    screen.line(f"job {item['name']} ({len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}{many})")
    for wait in item["after"]:
        screen.line(f"  It starts after {wait['job']} has {_ENDS.get(wait['on'], wait['on'])}.")
    for sentence in plan["policies"]:
        screen.line(f"  {sentence}")
    _environment(screen, "environment of all tasks", plan["environment"], "  ")
    for role in plan["roles"]:
        screen.line(f"  role {role['name']}{_resources(role)}")
        _command(screen, role["command"])
        _environment(screen, "environment", role["environment"], "    ")
        for task in tasks:
            if task["role"] == role["name"]:
                _task(screen, task)


def _task(screen: Screen, task: dict[str, Any]) -> None:
    where = f" on {task['host']}" if task.get("host") else ""
    screen.line(f"    task {task['role']} {task['index']}{where}, in {task['directory']}")
    _environment(screen, "environment", task["environment"], "      ")


def _resources(role: dict[str, Any]) -> str:
    if "cpu" not in role:
        return ""
    memory, gpu, image, volumes = (
        role["memoryMb"],
        role["gpu"],
        role.get("image"),
        role.get("volumes"),
    )
    each = f": {role['tasks']} x {role['cpu']} CPU, {memory} MB" + (f", {gpu} GPU" if gpu else "")
    return (
        each
        + (f", {role['shmMb']} MB shm, image {image}" if image else "")
        + (f", volumes {' '.join(volumes)}" if volumes else "")
    )


def _command(screen: Screen, command: list[str] | None) -> None:
    if command is None:
        screen.line("    command: from its app")
    elif len(command) == 3 and command[:2] == ["/bin/bash", "-c"]:
        screen.line("    command, by /bin/bash -c:")
        for line in command[2].splitlines():
            screen.line(f"      {line}".rstrip())
    else:
        screen.line(f"    command: {shlex.join(command)}")


def _environment(screen: Screen, title: str, env: dict[str, str], indent: str) -> None:
    if env:
        screen.line(f"{indent}{title}:")
    for name, value in env.items():
        screen.line(f"{indent}  {name}={shlex.quote(value)}")
