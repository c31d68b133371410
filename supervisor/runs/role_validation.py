"""Validation of roles beyond their types: consistency, driver capabilities and message limits.

Available hosts are not checked here.
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

#: Largest number of environment variables of one task, so that its message stays within the limit.
MAX_VARIABLES = MAX_KEYS - 100


def check_roles(
    spec: RunSpec, *, containers: bool = False, volumes: Collection[str] = (), user_dir: str = ""
) -> None:
    """Check the roles of a run. Raises Refusal (badRequest, tooLarge, volumeRefused).

    containers: the driver runs each task in its own container. volumes: names of the pool's
    volumes. user_dir: folder of the run's user.
    """
    names = Counter(r.name for r in spec.roles)
    for name, count in names.items():
        if count > 1:
            raise Refusal(
                "badRequest", f"{count} roles have the name {name!r}; give each role its own name"
            )
    for role in spec.roles:
        _check_role(role)
        if containers:
            _check_container(role, volumes, user_dir)
        elif fields := [
            f"`{key}`" for key, value in (("image", role.image), ("volumes", role.volumes)) if value
        ]:
            driver = f"the driver {spec.driver}" if spec.driver else "the default driver"
            _refuse(
                role,
                f"it cannot have {' and '.join(fields)}: {driver} runs tasks without containers; "
                "leave this out, or choose a driver with containers (docker)",
            )
        if role.gpu_type and not role.gpu:
            _refuse(role, "it has a `gpuType` but no GPUs; give `gpu`, or leave `gpuType` out")
    if spec.ssh and not containers:
        raise Refusal(
            "badRequest",
            "the job asks for `ssh` between its tasks, which needs tasks in containers; "
            "leave `ssh` out, or choose a driver with containers (docker)",
        )
    _check_totals(spec)
    for variable in spec.env:
        _check_pai(variable, set(task_environment.GIVEN), "a run with roles")
    if spec.sim_name and "\0" in spec.sim_name:
        raise Refusal(
            "badRequest",
            "`simName` contains a NUL character, which an environment variable cannot contain",
        )
    if clash := task_environment.find_name_conflict(spec.roles):
        raise Refusal(
            "badRequest",
            f"two roles would set the variable {clash} to different values; rename one of the roles",
        )


def check_env(env: dict[str, str], whose: str = "") -> None:
    """Check that an environment has no reserved or secret variables. Raises Refusal("badRequest").

    whose: beginning of the error sentence, for the environment of a role.
    """
    for name in env:
        if name.startswith("JOBSCRIBE_"):
            raise Refusal(
                "badRequest",
                f"{whose}the environment variable {name} is reserved for jobscribe; leave it out",
            )
        if is_secret(name, ""):
            raise Refusal(
                "badRequest",
                f"{whose}the environment variable {name} looks like a secret, and submissions are stored in "
                "the log; put the secret into a file that only the job's user can read and pass its path",
            )


def _check_role(role: TaskRole) -> None:
    for field, threshold in (("minFailed", role.min_failed), ("minSucceeded", role.min_succeeded)):
        if threshold is not None and threshold > role.tasks:
            _refuse(
                role,
                f"`{field}` is {threshold}, but the role has only {_plural(role.tasks, 'task')}; give at most that, or null for never",
            )
    if not role.command[0]:
        _refuse(role, "the first word of its `command`, the program, is empty")
    check_env(role.env, f"role {role.name!r}: ")
    for variable in role.env:
        _check_pai(variable, set(), f"role {role.name!r}")
    labels = Counter(p.label for p in role.ports)
    for label, count in labels.items():
        if count > 1:
            _refuse(
                role,
                f"{count} of its ports have the label {label!r}; give each label once, with a `count`",
            )
    _check_numbers(role)


def _check_container(role: TaskRole, volumes: Collection[str], user_dir: str) -> None:
    """Check image and volumes as far as this is possible without asking a host."""
    if role.image is not None and (problem := container_rules.image_problem(role.image)):
        _refuse(
            role, f"its `image` is not valid: {problem}; the form is {container_rules.IMAGE_FORM}"
        )
    for volume in role.volumes:
        if problem := container_rules.volume_problem(volume) or container_rules.volume_refusal(
            volume, volumes, user_dir
        ):
            raise Refusal(
                "volumeRefused",
                f"role {role.name!r}: the volume {quoted(volume)} is not allowed: {problem}",
            )
    if (duplicate := container_rules.first_duplicate(role.volumes)) is not None:
        raise Refusal(
            "volumeRefused",
            f"role {role.name!r}: it names the volume {quoted(duplicate)} twice; name it once",
        )


def _check_numbers(role: TaskRole) -> None:
    """Check the ports that are requested by number."""
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
            f"{whose} cannot set {variable}: jobscribe sets the variables PAI_* to the addresses of the tasks{also}",
        )


def _last(port: Port) -> int:
    return port.begin + port.count - 1


def _range(port: Port) -> str:
    return (
        f"{port.begin} to {_last(port)} ({port.label})"
        if port.count > 1
        else f"{port.begin} ({port.label})"
    )


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _refuse(role: TaskRole, sentence: str) -> None:
    raise Refusal("badRequest", f"role {role.name!r}: {sentence}")
