"""What `job why` says more of tasks that run in containers of their own: image, host, who says how
it ended, what to try. Pure.
"""

import shlex
import signal
from collections.abc import Sequence

from ...db.events.state import Run, Task
from ...diagnosis.classification import NO_CORE
from ...protocol.jobs.exit_info import ExitInfo

#: Faults that are of the image; and those that are of a host, which its check may explain.
_OF_IMAGE = frozenset(
    {"imageMissing", "pullDenied", "registryUnreachable", "pullTimeout", "noShell"}
)
_NO_SHELL = "noShell"
_OF_HOST = frozenset(
    {
        "registryUnreachable",
        "pullTimeout",
        "engineRefused",
        "subnetTaken",
        "pullDenied",
        "imageMissing",
    }
)
#: Those of a cluster.
_OF_CLUSTER = frozenset({"batchRefused", "neverPossible", "schedulerUnreachable"})
#: Of images and of hosts so many are named.
_NAMED = 5
_PULL, _TRY, _EVENTS = (
    "docker pull",
    "docker run --rm --entrypoint /bin/sh",
    "docker events --since 24h --filter",
)


def contained(task: Task | None) -> bool:
    """Does this task have a container of its own?"""
    return task is not None and task.agent_key.kind == "container"


def in_agents(task: Task | None) -> bool:
    """Is it beside its agent, in that one's container?"""
    return task is not None and task.agent_key.driver == "docker" and not contained(task)


def core(task: Task | None, line: str) -> str:
    """The evidence of a missing core, without an option that containers do not honour; any other
    line as it is.
    """
    if line == NO_CORE and (contained(task) or in_agents(task)):
        return "no core was written: containers write none, and --core does not change that"
    return line


def where(task: Task) -> str:
    """Where its process number means something: what its machine calls itself is a container's
    number where its agent is in one.
    """
    if in_agents(task):
        return f"in container {task.host} on {task.agent_key.host}"
    return f"on {task.host}"


def teller(task: Task | None, exit_: ExitInfo) -> str:
    """Who says how it ended."""
    if exit_.source == "engine":
        return "container engine" + (f" of {task.agent_key.host}" if task is not None else "")
    if exit_.source == "scheduler":
        return "batch scheduler" + (f" of {task.agent_key.host}" if task is not None else "")
    return "supervisor" if exit_.source == "lost" else exit_.source


def evidence(run: Run, tasks: Sequence[Task]) -> list[str]:
    """Which images these tasks have, on which hosts their containers are, and what their engines
    said besides.
    """
    hosts: dict[str | None, dict[str, None]] = {}
    for task in tasks:
        if contained(task):
            hosts.setdefault(_image(run, task), {})[task.agent_key.host] = None
    said = [
        t.exit.detail
        for t in tasks
        if t.exit is not None and t.exit.source == "engine" and t.exit.detail
    ]
    own = [
        f"container: {_called(image)}, on {_some(list(where))}"
        for image, where in list(hosts.items())[:_NAMED]
    ]
    return [*own, *said[:_NAMED], *(line for task in tasks[:_NAMED] for line in _shared(task))]


def missing(exit_: ExitInfo) -> str:
    """What a start was in want of, as evidence."""
    return f"{'in a word' if exit_.fault in _OF_HOST | _OF_IMAGE | _OF_CLUSTER | {'volumeRefused'} else 'what was missing'}: {exit_.fault}"


def beyond(task: Task | None, exit_: ExitInfo) -> str:
    """Behind the sentence on a signal that nobody here sent: who may have."""
    if not contained(task) or exit_.out_of_memory:
        return ""
    if exit_.signal == signal.SIGTERM:
        return " ('docker stop' does that)"
    return (
        " ('docker kill' does that, and an engine that is stopped)"
        if exit_.signal == signal.SIGKILL
        else ""
    )


def commands(run: Run, task: Task | None, exit_: ExitInfo | None) -> list[str]:
    """What can be typed to find out more, or to mend it."""
    if task is None or exit_ is None:
        return []
    if in_agents(task):
        return _of_agents(task, exit_)
    if not contained(task):
        return []
    host, image = task.agent_key.host, _image(run, task)
    out = []
    if exit_.source == "start" and exit_.fault in _OF_IMAGE and image is not None:
        named, by_hand = shlex.quote(image), f"   # by hand, on {host}: what does"
        pull = f"{_PULL} {named}{by_hand} the registry say?"
        out.append(f"{_TRY} {named} -c true{by_hand} it say?" if exit_.fault == _NO_SHELL else pull)
    if exit_.source == "start" and (
        exit_.fault in _OF_HOST or (exit_.fault in _OF_IMAGE and image is None)
    ):
        out.append("jobscribe pool check   # what is wrong with the hosts")
    sent = (
        exit_.signal in (signal.SIGKILL, signal.SIGTERM)
        and exit_.out_of_memory is not True
        and exit_.stop_reason is None
    )
    if exit_.source == "lost" or sent:
        out.append(
            f"{_EVENTS} label=jobscribe.jid={task.token.jid}   # on {host}: when it was killed or removed"
        )
    return out


def _of_agents(task: Task, exit_: ExitInfo) -> list[str]:
    """Of its agent's container, which ended under it, the engine remembers what was done to it."""
    if task.host is None or not (exit_.source == "lost" or exit_.stop_reason == "shutdown"):
        return []
    return [
        f"{_EVENTS} container={task.host}   # on {task.agent_key.host}: when it was stopped, killed or removed"
    ]


def is_command(line: str) -> bool:
    """Is this one to type? Such lines stay, whatever the exit table has to say."""
    return line.startswith(("jobscribe ", f"{_PULL} ", "docker run ", "docker events "))


def _shared(task: Task) -> list[str]:
    """In its agent's container all runs of its user share memory, and end together."""
    if not in_agents(task) or task.host is None:
        return []
    return [
        f"container: {task.host} on {task.agent_key.host}, where its agent and other runs of its user are as well"
    ]


def _image(run: Run, task: Task) -> str | None:
    return next((r.image for r in run.spec.roles if r.name == task.token.role), None)


def _called(image: str | None) -> str:
    return "the image of the pool" if image is None else f"image {image}"


def _some(hosts: list[str]) -> str:
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    return ", ".join(hosts[:_NAMED]) + more
