"""Keys of a job description that define what runs: commands, environments, and roles with the
requests of their tasks.
"""

from collections.abc import Collection, Mapping, Sequence

from ...protocol.ids import EnvName, Role
from ...protocol.jobs.roles import (
    FIRST_PORT,
    LAST_PORT,
    MAX_PORTS,
    MAX_ROLES,
    MAX_TASKS,
    Port,
    TaskRole,
)
from ...protocol.launch.task_environment import find_name_conflict
from ...protocol.redaction import is_secret
from ..fields import Findings, Table, bounds, fits, shown, word
from .container_rules import (
    IMAGE_FORM,
    MAX_VOLUMES,
    VOLUME_FORM,
    first_duplicate,
    image_problem,
    volume_problem,
)

#: The shell that runs a command given as text.
SHELL = ("/bin/bash", "-c")
MAX_WORDS = 10_000
#: Keys of a role, each with names used by other systems.
ROLE: dict[str, Sequence[str]] = {
    "tasks": ("taskNumber", "instances", "count", "replicas"),
    "command": ("cmd", "commands"),
    "env": ("environment", "jobEnvs"),
    "cpu": ("cpuNumber", "cpus", "cores"),
    "memory": ("memoryMB", "mem"),
    "shm": ("shmMB",),
    "gpu": ("gpuNumber", "gpus"),
    "ports": ("portList", "port"),
    "image": ("dockerImage", "docker", "container"),
    "volumes": ("volume", "mounts", "storages"),
    "minFailed": ("minFailedTaskCount", "minFailedInstances"),
    "minSucceeded": ("minSucceededTaskCount", "minSucceededInstances"),
}
_PORT: dict[str, Sequence[str]] = {
    "begin": ("beginAt", "start", "first"),
    "count": ("portNumber", "number"),
}
_NAME = "a letter, then letters, digits or _, at most 32"
#: A `minSucceeded` below this share of a role's tasks gets a warning.
_FAR_BELOW = 0.5


def command(table: Table) -> tuple[str, ...]:
    """Return the words of `command`: a text with its shell, or a list of words."""
    value, findings, path = table.raw("command"), table.findings, table.path("command")
    right = "a text for /bin/bash -c, or a list of words"
    if isinstance(value, str):
        if not value.strip():
            table.error("command", right, "it is empty")
        return (*SHELL, word(findings, path, value))
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_WORDS:
        problem = (
            "it is missing"
            if value is None
            else f"it has {len(value)} words"
            if isinstance(value, list | tuple)
            else ""
        )
        table.error(
            "command",
            right + (f" (1 to {MAX_WORDS})" if isinstance(value, list | tuple) else ""),
            problem,
        )
        return ("true",)
    words = tuple(word(findings, p, v) for v, p in table.elements("command", right))
    if value[0] == "":
        findings.error(f"{path}[0]", "the first word is empty", "the name of a program")
    return words


def environment(
    table: Table, taken: Mapping[str, str] = {}, pai: Collection[str] | None = ()
) -> dict[str, str]:
    """Return the variables of `env`. taken: variables set by another key, with its name. pai:
    variables with the prefix PAI_ that may be set; None for all.
    """
    env = {}
    for name, value, path in table.entries("env", "an object: NAME: value"):
        if not fits(name, EnvName):
            table.findings.error(
                path,
                "this is not a variable name",
                "letters, digits and _, not a digit first, at most 128",
            )
        elif name.startswith("JOBSCRIBE_"):
            table.findings.error(
                path, "jobscribe sets variables with the prefix JOBSCRIBE_", "another name"
            )
        elif is_secret(name):
            table.findings.error(
                path,
                "it looks like a secret, and submitted values are stored in the log",
                "the path of a file that only the job's user can read",
            )
        elif name.startswith("PAI_") and pai is not None and name not in pai:
            table.findings.error(
                path,
                "jobscribe sets variables with the prefix PAI_, with the addresses of all tasks",
                "another name",
            )
        elif name in taken:
            table.findings.error(path, f"`{taken[name]}` sets it", f"`{taken[name]}` alone")
        else:
            text = word(table.findings, path, value)
            if len(name) + len(text.encode()) + 2 > 128 * 1024:
                table.findings.error(
                    path,
                    "name and value are too long together",
                    "at most 131070 bytes; put longer data into a file",
                )
            env[name] = text
    return env


def image(table: Table) -> str | None:
    """Return the value of `image` if it is a valid name."""
    value = table.raw("image")
    if value is None:
        return None
    problem = image_problem(value) if isinstance(value, str) else f"it is {shown(value)}"
    if problem is None:
        return str(value)
    table.error("image", IMAGE_FORM, problem)
    return None


def roles(table: Table, image_of_all: str | None = None) -> tuple[TaskRole, ...]:
    """Return the roles of a job, in order. image_of_all: image of roles that name none."""
    findings, path = table.findings, table.path("roles")
    if table.null("roles"):
        return ()
    entries = table.entries("roles", "an object: name of the role: {tasks, command, ...}")
    if not 1 <= len(entries) <= MAX_ROLES and isinstance(table.raw("roles"), dict):
        findings.error(path, f"there are {len(entries)} roles", f"1 to {MAX_ROLES} roles")
    before = findings.count
    out = []
    for name, value, at in entries[:MAX_ROLES]:
        if not fits(name, Role):
            findings.error(
                at,
                "this is not a role name: shells could not read variables with it in their names",
                _NAME,
            )
        holder = Table(value, at, findings, ROLE, "a role")
        if isinstance(value, dict):
            out.append(_role(name, holder, image_of_all))
    if findings.count == before:
        _check_together(findings, path, out)
    return tuple(out)


def _check_together(findings: Findings, path: str, out: Sequence[TaskRole]) -> None:
    """Check the limits for all roles together."""
    tasks, ports = (
        sum(r.tasks for r in out),
        sum(r.tasks * sum(p.count for p in r.all_ports()) for r in out),
    )
    if tasks > MAX_TASKS:
        findings.error(path, f"the roles have {tasks} tasks together", f"at most {MAX_TASKS}")
    elif ports > MAX_PORTS:
        findings.error(
            path,
            f"the tasks have {ports} ports together (each has http and ssh)",
            f"at most {MAX_PORTS}",
        )
    elif conflict := find_name_conflict(out):
        findings.error(
            path,
            f"two roles set {conflict} to different values",
            "other role names, without numbers and words such as PORT_LIST",
        )
    if out and all(r.min_failed is None and r.min_succeeded is None for r in out):
        findings.warning(
            path, "no failure of a task makes the job fail", "`minFailed: 1` in a role that matters"
        )


def _role(name: str, t: Table, image_of_all: str | None) -> TaskRole:
    tasks = t.whole("tasks", bounds(TaskRole, "tasks"), 1)
    memory = t.megabytes("memory", bounds(TaskRole, "memory_mb"), 100)
    shm = t.megabytes("shm", bounds(TaskRole, "shm_mb"), min(64, memory))
    if shm > memory:
        t.error("shm", f"at most the memory of the task, {memory} MB", f"it is {shm} MB")
    role = TaskRole(
        name=name,
        tasks=tasks,
        command=command(t),
        env=environment(t),
        cpu=t.whole("cpu", bounds(TaskRole, "cpu"), 1),
        memory_mb=memory,
        shm_mb=shm,
        gpu=t.whole("gpu", bounds(TaskRole, "gpu"), 0),
        ports=_ports(t, tasks),
        image=image(t) or image_of_all,
        volumes=_volumes(t),
        min_failed=_threshold(t, "minFailed", tasks, 1),
        min_succeeded=_threshold(t, "minSucceeded", tasks, None),
    )
    least = role.min_succeeded
    if least is not None and least < tasks * _FAR_BELOW:
        many = f"the job succeeds as soon as {least} of the {tasks} tasks of this role " + (
            "has" if least == 1 else "have"
        )
        t.findings.warning(
            t.path("minSucceeded"), f"{many} succeeded; all others are stopped", f"{tasks}, or null"
        )
    return role


def _volumes(t: Table) -> tuple[str, ...]:
    elements = t.elements("volumes", "a list of names and paths")
    if len(elements) > MAX_VOLUMES:
        t.error("volumes", f"at most {MAX_VOLUMES}", f"there are {len(elements)} volumes")
    out: list[str] = []
    for value, path in elements[:MAX_VOLUMES]:
        problem = volume_problem(value) if isinstance(value, str) else f"it is {shown(value)}"
        if problem is not None:
            t.findings.error(path, problem, VOLUME_FORM)
        elif first_duplicate([*out, str(value)]) is not None:
            t.findings.error(path, f"{shown(value)} occurs twice", "each once")
        else:
            out.append(word(t.findings, path, value))
    return tuple(out)


def _threshold(t: Table, key: str, tasks: int, default: int | None) -> int | None:
    """Return the threshold; null and -1 mean never."""
    value = t.raw(key)
    if t.null(key) or (value == -1 and not isinstance(value, bool)):
        return None
    if value is None:
        return default
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= tasks:
        return value
    more = isinstance(value, int) and not isinstance(value, bool) and value > tasks
    problem = (
        f"{shown(value)} is more than the {tasks} task{'s' * (tasks > 1)} of this role"
        if more
        else ""
    )
    t.error(
        key, f"1 to {tasks}, or null for never" if tasks > 1 else "1, or null for never", problem
    )
    return default


def _ports(t: Table, tasks: int) -> tuple[Port, ...]:
    entries = t.entries("ports", "an object: label: count, or label: {begin, count}")
    if len(entries) > 100:
        t.error("ports", "at most 100", f"there are {len(entries)} labels")
    out: list[Port] = []
    ranges: list[tuple[int, int, str]] = []
    for label, value, path in entries[:100]:
        if not fits(label, Role):
            t.findings.error(path, "this is not a port label", _NAME)
        port = _port(label, value, path, t.findings)
        out.append(port)
        if not port.begin:
            continue
        if tasks > 1:
            t.findings.warning(
                path,
                f"each of the {tasks} tasks needs its own host for these ports",
                "`begin: 0` for any free ports",
            )
        last = port.begin + port.count - 1
        for low, high, other in ranges:
            if port.begin <= high and last >= low:
                t.findings.error(
                    path,
                    f"`{other}` also has port {max(low, port.begin)}",
                    "ranges without common ports",
                )
        ranges.append((port.begin, last, label))
    return tuple(out)


def _port(label: str, value: object, path: str, findings: Findings) -> Port:
    limits = bounds(Port, "count")
    if isinstance(value, dict):
        table = Table(value, path, findings, _PORT, "ports")
        count, begin = (
            table.whole("count", limits, 1),
            table.whole("begin", bounds(Port, "begin"), 0),
        )
        highest = LAST_PORT + 1 - count
        if 0 < begin < FIRST_PORT:
            table.error(
                "begin",
                f"0 for any free ports, or {FIRST_PORT} to {highest}",
                f"{begin} is one of the machine's own ports",
            )
        elif begin > highest:
            table.error(
                "begin",
                f"0, or {FIRST_PORT} to {highest}",
                f"{begin} and the next {count - 1} exceed {LAST_PORT}",
            )
        return Port(label=label, count=count, begin=begin)
    # validate a plain count as if it were a key of its own
    holder = Table({label: 1 if value is None else value}, "", Findings(), {label: ()}, "")
    count = holder.whole(label, limits, 1)
    if holder.findings.problems:
        findings.error(
            path,
            f"it is {shown(value)}",
            f"a count: {limits.text()}, or an object with begin and count",
        )
    return Port(label=label, count=count)
