"""Facts about tasks in containers for `job why`: image, host, source of the exit, commands. Pure."""

import shlex
import signal
from collections.abc import Sequence

from ...db.events.state import Run, Task
from ...protocol.ids import AgentKind
from ...protocol.jobs.exit_info import ExitInfo

#: Start failures caused by the image.
_IMAGE_FAULTS = frozenset(
    {
        "imageMissing",
        "pullDenied",
        "registryUnreachable",
        "pullTimeout",
        "noShell",
        "credentialsLost",
    }
)
_NO_SHELL = "noShell"
#: Start failures caused by the host, which `jobscribe pool check` may explain.
_HOST_FAULTS = frozenset(
    {
        "registryUnreachable",
        "pullTimeout",
        "engineRefused",
        "subnetTaken",
        "pullDenied",
        "imageMissing",
    }
)
#: Number of images, hosts and tasks that an answer lists.
_NAMED = 5
_PULL, _TRY, _EVENTS = (
    "docker pull",
    "docker run --rm --entrypoint /bin/sh",
    "docker events --since 24h --filter",
)


def has_own_container(task: Task | None) -> bool:
    return task is not None and task.agent_key.kind == AgentKind.CONTAINER


def in_agent_container(task: Task | None) -> bool:
    return task is not None and task.agent_key.driver == "docker" and not has_own_container(task)


def location(task: Task) -> str:
    """Return the host, or the container and its host, to which the pid of the task belongs."""
    if in_agent_container(task):
        return f"in container {task.host} on {task.agent_key.host}"
    return f"on {task.host}"


def source(task: Task | None, exit_: ExitInfo) -> str:
    """Return the name of the component that reported the exit."""
    if exit_.source == "engine":
        return "container engine" + (f" of {task.agent_key.host}" if task is not None else "")
    if exit_.source == "scheduler":
        return "batch scheduler" + (f" of {task.agent_key.host}" if task is not None else "")
    return "supervisor" if exit_.source == "lost" else exit_.source


def evidence(run: Run, tasks: Sequence[Task]) -> list[str]:
    """Return the images of these tasks, the hosts of their containers, and engine messages."""
    hosts: dict[str | None, dict[str, None]] = {}
    for task in tasks:
        if has_own_container(task):
            hosts.setdefault(_image(run, task), {})[task.agent_key.host] = None
    messages = [
        t.exit.detail
        for t in tasks
        if t.exit is not None and t.exit.source == "engine" and t.exit.detail
    ]
    own = [
        f"container: {_image_name(image)}, on {_some(list(names))}"
        for image, names in list(hosts.items())[:_NAMED]
    ]
    return [*own, *messages[:_NAMED], *(line for task in tasks[:_NAMED] for line in _shared(task))]


def possible_sender(task: Task | None, exit_: ExitInfo) -> str:
    """Return the Docker commands that send the signal of this exit, for the sentence, or ""."""
    if not has_own_container(task) or exit_.out_of_memory:
        return ""
    if exit_.signal == signal.SIGTERM:
        return "; 'docker stop' sends it"
    return (
        "; 'docker kill' or a stopping Docker engine sends it"
        if exit_.signal == signal.SIGKILL
        else ""
    )


def commands(run: Run, task: Task | None, exit_: ExitInfo | None) -> list[str]:
    """Return commands that show more about the end of the task."""
    if task is None or exit_ is None:
        return []
    if in_agent_container(task):
        return _agent_container_commands(task, exit_)
    if not has_own_container(task):
        return []
    host, image = task.agent_key.host, _image(run, task)
    out = []
    if exit_.source == "start" and exit_.fault in _IMAGE_FAULTS and image is not None:
        quoted, note = shlex.quote(image), f"   # on {host}: shows the error of"
        pull = f"{_PULL} {quoted}{note} the registry"
        out.append(f"{_TRY} {quoted} -c true{note} the image" if exit_.fault == _NO_SHELL else pull)
    if exit_.source == "start" and (
        exit_.fault in _HOST_FAULTS or (exit_.fault in _IMAGE_FAULTS and image is None)
    ):
        out.append("jobscribe pool check   # shows the faults of the hosts")
    sent = (
        exit_.signal in (signal.SIGKILL, signal.SIGTERM)
        and exit_.out_of_memory is not True
        and exit_.stop_reason is None
    )
    if exit_.source == "lost" or sent:
        out.append(
            f"{_EVENTS} label=jobscribe.jid={task.token.jid}   # on {host}: shows when it was killed or removed"
        )
    return out


def _agent_container_commands(task: Task, exit_: ExitInfo) -> list[str]:
    """Return the command that shows when the container of the agent was stopped or removed."""
    if task.host is None or not (exit_.source == "lost" or exit_.stop_reason == "shutdown"):
        return []
    return [
        f"{_EVENTS} container={task.host}   # on {task.agent_key.host}: shows when it was stopped, killed or removed"
    ]


def is_command(line: str) -> bool:
    """Return whether a line of advice is a command. The exit table does not replace commands."""
    return line.startswith(("jobscribe ", f"{_PULL} ", "docker run ", "docker events "))


def _shared(task: Task) -> list[str]:
    """Return the container that the task shares, with its memory, with the user's other runs."""
    if not in_agent_container(task) or task.host is None:
        return []
    return [
        f"container: {task.host} on {task.agent_key.host}, shared with its agent and the other runs of its user"
    ]


def _image(run: Run, task: Task) -> str | None:
    return next((r.image for r in run.spec.roles if r.name == task.token.role), None)


def _image_name(image: str | None) -> str:
    return "the image of the pool" if image is None else f"image {image}"


def _some(hosts: list[str]) -> str:
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    return ", ".join(hosts[:_NAMED]) + more
