"""Rules for the roles of a job, and for commands and environments, that concern several keys."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import UNSET

from ...protocol.ids import EnvName
from ...protocol.jobs.roles import (
    FIRST_PORT,
    LAST_PORT,
    MAX_PORTS,
    MAX_TASKS,
    Port,
    TaskRole,
)
from ...protocol.launch.task_environment import find_name_conflict
from ...protocol.redaction import is_secret
from ..fields import Findings, element, fits, member, shown
from ..structs import Place, convert, shared
from .container_rules import first_duplicate
from .keys import Ports, RoleKeys

#: The shell that runs a command given as text.
SHELL = ("/bin/bash", "-c")
#: Maximum bytes of `NAME=value` in an environment: the limit of the operating system.
_MAX_VARIABLE = 128 * 1024
#: A `minSucceeded` below this share of a role's tasks gets a warning.
_FAR_BELOW = 0.5


def words(command: str | tuple[str, ...] | None, place: Place) -> tuple[str, ...]:
    """Return the words of `command`: a text with its shell, or a list of words."""
    if command is None or isinstance(command, str):
        return () if command is None else (*SHELL, command)
    if command and not command[0] and place.valid("command"):
        path = element(member(place.path, "command"), 0)
        place.findings.error(path, "the first word is empty", "the name of a program")
    return command


def check_env(
    env: Mapping[str, str],
    place: Place,
    taken: Mapping[str, str] = {},
    pai: Collection[str] | None = (),
) -> None:
    """Check the variables of `env`. taken: variables set by another key, with its name. pai:
    variables with the prefix PAI_ that may be set; None for all.
    """
    for name, value in env.items():
        if fits(name, EnvName) and (found := _variable_problem(name, value, taken, pai)):
            place.within("env").error(name, *found)


def _variable_problem(
    name: str, value: str, taken: Mapping[str, str], pai: Collection[str] | None
) -> tuple[str, str] | None:
    """Return problem and right form of a variable."""
    if name.startswith("JOBSCRIBE_"):
        return "jobscribe sets variables with the prefix JOBSCRIBE_", "another name"
    if is_secret(name):
        return (
            "it looks like a secret, and submitted values are stored in the log",
            "the path of a file that only the job's user can read",
        )
    if name.startswith("PAI_") and pai is not None and name not in pai:
        return (
            "jobscribe sets variables with the prefix PAI_, with the addresses of all tasks",
            "another name",
        )
    if name in taken:
        return f"`{taken[name]}` sets it", f"`{taken[name]}` alone"
    if len(name) + len(value.encode()) + 2 > _MAX_VARIABLE:
        return (
            "name and value are too long together",
            f"at most {_MAX_VARIABLE - 2} bytes; put longer data into a file",
        )
    return None


def roles(
    keys: Mapping[str, RoleKeys], job: Place, image_of_all: str | None
) -> tuple[TaskRole, ...]:
    """Return the roles of a job, in order. image_of_all: image of roles that name none."""
    place = job.within("roles")
    out = [task_role(name, role, place.within(name), image_of_all) for name, role in keys.items()]
    if job.valid("roles"):
        _check_together(job, out)
    return tuple(out)


def task_options(given: Mapping[str, object]) -> tuple[TaskRole, Findings]:
    """Parse the keys of a role that are options of the command line."""
    findings, data = Findings(), {"command": ["true"], **given}
    keys = convert(RoleKeys, data, findings)
    return task_role("main", keys, Place(data, "", findings), None), findings


def task_role(name: str, keys: RoleKeys, place: Place, image_of_all: str | None) -> TaskRole:
    """Return the role. Its numbers fit together, or there is an error."""
    tasks, memory = keys.tasks, keys.memory_mb
    shm = min(64, memory) if keys.shm is None else keys.shm
    if shm > memory and place.valid("memory"):
        place.error("shm", f"it is {shm} MB", f"at most the memory of the task, {memory} MB")
    check_env(keys.env, place)
    for n, volume in enumerate(keys.volumes):
        if first_duplicate((*keys.volumes[:n], volume)) == volume:
            path = element(member(place.path, "volumes"), n)
            place.findings.error(path, f"{shown(volume)} occurs twice", "each once")
    if keys.gpu_type and not keys.gpu:
        place.error("gpuType", "the tasks of this role have no GPUs", "with `gpu`")
    least = _threshold(keys.min_succeeded, "minSucceeded", tasks, place)
    if least is not None and least < tasks * _FAR_BELOW:
        many = f"{least} of the {tasks} tasks of this role {'has' if least == 1 else 'have'}"
        place.findings.warning(
            member(place.path, "minSucceeded"),
            f"the job succeeds as soon as {many} succeeded; all others are stopped",
            f"{tasks}, or null",
        )
    own = {
        "name": name,
        "command": words(keys.command, place),
        "shm_mb": shm,
        "ports": _ports(keys, place.within("ports")),
        "gpu_type": keys.gpu_type or UNSET,
        "image": keys.image or image_of_all,
        "min_failed": _threshold(keys.min_failed, "minFailed", tasks, place),
        "min_succeeded": least,
    }
    return TaskRole(**{**shared(keys, TaskRole), **own})


def _check_together(job: Place, out: Sequence[TaskRole]) -> None:
    """Check the limits for all roles together."""
    tasks = sum(r.tasks for r in out)
    ports = sum(r.tasks * sum(p.count for p in r.all_ports()) for r in out)
    if tasks > MAX_TASKS:
        job.error("roles", f"the roles have {tasks} tasks together", f"at most {MAX_TASKS}")
    elif ports > MAX_PORTS:
        problem = f"the tasks have {ports} ports together (each has http and ssh)"
        job.error("roles", problem, f"at most {MAX_PORTS}")
    elif conflict := find_name_conflict(out):
        job.error(
            "roles",
            f"two roles set {conflict} to different values",
            "other role names, without numbers and words such as PORT_LIST",
        )
    if out and all(r.min_failed is None and r.min_succeeded is None for r in out):
        job.findings.warning(
            member(job.path, "roles"),
            "no failure of a task makes the job fail",
            "`minFailed: 1` in a role that matters",
        )


def _threshold(value: int | None, key: str, tasks: int, place: Place) -> int | None:
    """Return the threshold; null and -1 mean never."""
    if value is None or value == -1:
        return None
    if not 1 <= value <= tasks and place.valid("tasks"):
        plural = "s" * (tasks > 1)
        place.error(
            key,
            f"{value} is more than the {tasks} task{plural} of this role"
            if value > tasks
            else f"it is {value}",
            f"{'1 to ' * (tasks > 1)}{tasks}, or null for never",
        )
    return value


def _ports(keys: RoleKeys, place: Place) -> tuple[Port, ...]:
    out: list[Port] = []
    for label, value in keys.ports.items():
        found = value if isinstance(value, Ports) else Ports(count=value or 1)
        port = Port(label=label, count=found.count, begin=found.begin)
        if port.begin:
            _check_range(port, out, keys.tasks, place)
        out.append(port)
    return tuple(out)


def _check_range(port: Port, before: Sequence[Port], tasks: int, place: Place) -> None:
    """Check ports with fixed numbers, given the other ports of the role."""
    one, last = place.within(port.label), port.begin + port.count - 1
    highest = LAST_PORT + 1 - port.count
    if port.begin < FIRST_PORT:
        problem = f"{port.begin} is one of the machine's own ports"
        one.error("begin", problem, f"0 for any free ports, or {FIRST_PORT} to {highest}")
    elif port.begin > highest:
        problem = f"{port.begin} and the next {port.count - 1} exceed {LAST_PORT}"
        one.error("begin", problem, f"0, or {FIRST_PORT} to {highest}")
    if tasks > 1:
        one.findings.warning(
            one.path,
            f"each of the {tasks} tasks needs its own host for these ports",
            "`begin: 0` for any free ports",
        )
    for other in before:
        first = max(other.begin, port.begin)
        if other.begin and first <= min(other.begin + other.count - 1, last):
            one.error("", f"`{other.label}` also has port {first}", "ranges without common ports")
