"""What the shape of a run with roles cannot say: whether its roles fit each other and the driver,
and whether an agent can be told of them.

Whether there are machines for them is not asked here.
"""

from collections import Counter
from collections.abc import Collection
from itertools import pairwise

from ...protocol.api.requests import RunSpec
from ...protocol.errors import Refusal
from ...protocol.jobs.roles import FIRST_PORT, LAST_PORT, MAX_PORTS, MAX_TASKS, Port, TaskRole
from ...protocol.launch import task_environment
from ...protocol.redaction import is_secret
from ...protocol.wire.codec import MAX_KEYS
from ...schema.fields import quoted
from ...schema.jobs import container_rules

#: Variables of one task, its own and the shared ones together: with what else is told of it, they
#: fit into one message.
MAX_VARIABLES = MAX_KEYS - 100


def check_roles(
    spec: RunSpec, *, containers: bool = False, volumes: Collection[str] = (), user_dir: str = ""
) -> None:
    """Raises Refusal (badRequest, tooLarge, volumeRefused).

    containers: the driver gives tasks containers of their own. volumes: names that its pool has.
    user_dir: of the run's user.
    """
    names = Counter(r.name for r in spec.roles)
    for name, count in names.items():
        if count > 1:
            raise Refusal(
                "badRequest", f"{count} roles are called {name!r}; give each a name of its own"
            )
    for role in spec.roles:
        _check_role(role)
        if containers:
            _check_container(role, volumes, user_dir)
        elif asked := [
            f"`{key}`" for key, value in (("image", role.image), ("volumes", role.volumes)) if value
        ]:
            driver = f"the driver {spec.driver}" if spec.driver else "the usual driver here"
            _refuse(
                role,
                f"it cannot have {' and '.join(asked)}: {driver} runs tasks on machines as they are, in no "
                "containers; leave this out, or choose a driver that has some (docker)",
            )
    _check_totals(spec)
    for variable in spec.env:
        _check_pai(variable, set(task_environment.GIVEN), "a run with roles")
    if spec.sim_name and "\0" in spec.sim_name:
        raise Refusal(
            "badRequest",
            "`simName` has a NUL character in it, which no variable of an environment can have",
        )
    if clash := task_environment.find_name_conflict(spec.roles):
        raise Refusal(
            "badRequest",
            f"two of the roles would have a variable {clash} each, with different values; rename one of them",
        )


def check_env(env: dict[str, str], whose: str = "") -> None:
    """Variables that no request may set. Raises Refusal."""
    for name in env:
        if name.startswith("JOBSCRIBE_"):
            raise Refusal(
                "badRequest",
                f"{whose}the environment variable {name} is set by the system, not by a request",
            )
        if is_secret(name, ""):
            raise Refusal(
                "badRequest",
                f"{whose}the environment variable {name} looks like a secret; what is submitted is kept in "
                "the log, so put the secret into a file that only the job's user can read and pass its path",
            )


def _check_role(role: TaskRole) -> None:
    for field, threshold in (("minFailed", role.min_failed), ("minSucceeded", role.min_succeeded)):
        if threshold is not None and threshold > role.tasks:
            _refuse(
                role,
                f"`{field}` is {threshold}, and it has only {_some(role.tasks, 'task')}; give at most that, or null for never",
            )
    if not role.command[0]:
        _refuse(role, "the first word of its `command` is empty; it names the program")
    check_env(role.env, f"role {role.name!r}: ")
    for variable in role.env:
        _check_pai(variable, set(), f"role {role.name!r}")
    labels = Counter(p.label for p in role.ports)
    for label, count in labels.items():
        if count > 1:
            _refuse(
                role,
                f"{count} of its ports are called {label!r}; give each label once, with a `count`",
            )
    _check_numbers(role)


def _check_container(role: TaskRole, volumes: Collection[str], user_dir: str) -> None:
    """Its image and volumes, as far as can be told before a host is asked."""
    if role.image is not None and (problem := container_rules.image_problem(role.image)):
        _refuse(
            role, f"its `image` can be no image: {problem}; right is {container_rules.IMAGE_FORM}"
        )
    for volume in role.volumes:
        if problem := container_rules.volume_problem(volume) or container_rules.volume_refusal(
            volume, volumes, user_dir
        ):
            raise Refusal(
                "volumeRefused",
                f"role {role.name!r}: it cannot have the volume {quoted(volume)}: {problem}",
            )
    if (again := container_rules.first_duplicate(role.volumes)) is not None:
        raise Refusal(
            "volumeRefused",
            f"role {role.name!r}: it names the volume {quoted(again)} twice; give each once",
        )


def _check_numbers(role: TaskRole) -> None:
    """Ports that are asked for by number."""
    fixed = sorted((p for p in role.ports if p.begin), key=lambda p: p.begin)
    for port in fixed:
        if port.begin < FIRST_PORT or _last(port) > LAST_PORT:
            _refuse(role, f"its ports {_range(port)} are not within {FIRST_PORT} to {LAST_PORT}")
    for first, second in pairwise(fixed):
        if second.begin <= _last(first):
            _refuse(role, f"its ports {_range(first)} and {_range(second)} overlap")


def _check_totals(spec: RunSpec) -> None:
    tasks = sum(r.tasks for r in spec.roles)
    if tasks > MAX_TASKS:
        raise Refusal(
            "badRequest", f"the roles have {tasks} tasks together; the limit is {MAX_TASKS}"
        )
    ports = sum(r.tasks * p.count for r in spec.roles for p in r.all_ports())
    if ports > MAX_PORTS:
        raise Refusal(
            "badRequest",
            f"the tasks of all roles have {ports} ports together, with `http` and `ssh` of each; "
            f"the limit is {MAX_PORTS}",
        )
    most = (
        max(len(r.env) for r in spec.roles)
        + len(spec.env)
        + task_environment.max_variables(spec.roles)
    )
    if most > MAX_VARIABLES:
        raise Refusal(
            "tooLarge",
            f"a task would have {most} environment variables; the limit is {MAX_VARIABLES}",
        )


def _check_pai(variable: str, given: set[str], whose: str) -> None:
    if variable.startswith("PAI_") and variable not in given:
        also = f"; it may set {', '.join(sorted(given))}" if given else ""
        raise Refusal(
            "badRequest",
            f"{whose} cannot set {variable}: variables whose names begin with PAI_ say where the tasks are{also}",
        )


def _last(port: Port) -> int:
    return port.begin + port.count - 1


def _range(port: Port) -> str:
    return (
        f"{port.begin} to {_last(port)} ({port.label})"
        if port.count > 1
        else f"{port.begin} ({port.label})"
    )


def _some(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _refuse(role: TaskRole, sentence: str) -> None:
    raise Refusal("badRequest", f"role {role.name!r}: {sentence}")
