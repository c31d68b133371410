"""Text form of a job's plan: its policies, common environment, roles and tasks. Pure."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

_ENDS = {"ok": "completed", "any": "ended", "failed": "ended without success"}


def plan_lines(item: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a plan. item: {"name", "runs", "after", "plan"}, with the supervisor's plan."""
    plan, tasks = item["plan"], item["plan"]["tasks"]
    count = item["runs"]
    many = f", an array of {count} runs; this is the first" if count > 1 else ""
    yield f"job {item['name']} ({len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}{many})"
    for wait in item["after"]:
        yield f"  It starts after {wait['job']} has {_ENDS.get(wait['on'], wait['on'])}."
    for sentence in plan["policies"]:
        yield f"  {sentence}"
    yield from _environment("environment of all tasks", plan["environment"], "  ")
    for role in plan["roles"]:
        yield f"  role {role['name']}{_resources(role)}"
        yield from _command(role["command"])
        yield from _environment("environment", role["environment"], "    ")
        for task in tasks:
            if task["role"] == role["name"]:
                where = f" on {task['host']}" if task.get("host") else ""
                yield f"    task {task['role']} {task['index']}{where}, in {task['directory']}"
                yield from _environment("environment", task["environment"], "      ")


def _resources(role: Mapping[str, Any]) -> str:
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


def _command(command: list[str] | None) -> Iterator[str]:
    if command is None:
        yield "    command: from its app"
    elif len(command) == 3 and command[:2] == ["/bin/bash", "-c"]:
        yield "    command, by /bin/bash -c:"
        for line in command[2].splitlines():
            yield f"      {line}".rstrip()
    else:
        yield f"    command: {shlex.join(command)}"


def _environment(title: str, env: Mapping[str, str], indent: str) -> Iterator[str]:
    if env:
        yield f"{indent}{title}:"
    for name, value in env.items():
        yield f"{indent}  {name}={shlex.quote(value)}"
