"""What describes a run on the command line: the options that `run` and `job submit` share, and the
specs made of them.
"""

import os
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..terminal.quantities import BYTES, SECS

if TYPE_CHECKING:
    from ...protocol.clusters.batch import BatchRequest

F = TypeVar("F", bound=Callable[..., Any])

_COUNT = click.IntRange(1)
#: What is asked of a cluster: options as sbatch has them, named as in job files.
_BATCH = [
    click.option(
        "--cluster",
        metavar="NAME",
        help="Submit it to this cluster (driver sbatch; `jobscribe cluster list` shows all).",
    ),
    click.option("--partition", metavar="NAME", help="Partition of the cluster."),
    click.option("--account", metavar="NAME", help="Account there that it is charged to."),
    click.option("--qos", metavar="NAME", help="Quality of service."),
    click.option("--constraint", metavar="FEATURES", help="Features that its nodes must have."),
    click.option("--licenses", metavar="LICENSES", help="Licences that it takes (matlab:2)."),
    click.option("--nodes", type=_COUNT, metavar="N", help="Nodes."),
    click.option("--tasks", type=_COUNT, metavar="N", help="Processes that srun starts (ranks)."),
    click.option("--tasks-per-node", type=_COUNT, metavar="N", help="Of them, on each node."),
    click.option("--cores", type=_COUNT, metavar="N", help="Cores of each of them."),
    click.option("--gpus", type=click.IntRange(0), metavar="N", help="GPUs of each node."),
    click.option(
        "--module",
        "modules",
        multiple=True,
        metavar="NAME",
        help="Load this environment module before.",
    ),
    click.option(
        "--setup", metavar="SH", help="Lines of sh that come before the command, on the node."
    ),
    click.option(
        "--directive",
        "directives",
        multiple=True,
        metavar="OPTION",
        help="One more option of sbatch, if the cluster allows it.",
    ),
    click.option(
        "--signal-secs",
        type=_COUNT,
        metavar="SECS",
        help="So long before its time limit it gets SIGUSR1.",
    ),
]
#: The driver that has clusters.
SBATCH = "sbatch"


def run_options(function: F) -> F:
    """The options of a run; the function gets them as one dictionary, see `spec_options`."""
    for option in reversed(
        [
            click.option(
                "--kind",
                type=click.Choice(["sequential", "parallel"]),
                help="Kind of slot it takes (default: sequential).",
            ),
            click.option(
                "--time-limit",
                type=SECS,
                metavar="TIME",
                help="End it so long after its start (30, 10m, 2h, 10:00, 1-00:00:00).",
            ),
            click.option(
                "--queue-limit",
                type=SECS,
                metavar="TIME",
                help="Give up when it has waited so long.",
            ),
            click.option(
                "--grace",
                type=SECS,
                metavar="TIME",
                help="Between SIGTERM and SIGKILL when it is stopped (default: 3).",
            ),
            click.option(
                "--core",
                type=BYTES,
                metavar="BYTES",
                help="Largest core dump (default: 0, none). Containers write none.",
            ),
            click.option(
                "--wrap",
                metavar="CMD",
                help="Put this in front of the command, split as a shell would (a profiler, mpirun).",
            ),
            click.option(
                "--env",
                "-e",
                multiple=True,
                metavar="K=V",
                help="Set a variable in its environment; K alone passes it on.",
            ),
            click.option("--name", metavar="TEXT", help="A name for people."),
            click.option(
                "--driver",
                metavar="DRIVER",
                help="What starts it: local, docker, sbatch (default: the site's).",
            ),
            click.option(
                "--image",
                metavar="IMAGE",
                help="Run it as one task in a container of its own, of this image.",
            ),
            click.option(
                "--cpu",
                type=click.IntRange(1),
                metavar="N",
                help="Cores that are held for it as one task.",
            ),
            click.option(
                "--memory",
                metavar="MB",
                help="Memory for it as one task (512, 2GB); on a cluster, of each node.",
            ),
            click.option(
                "--gpu", type=click.IntRange(0), metavar="N", help="GPUs for it as one task."
            ),
            click.option(
                "--shm", metavar="MB", help="Shared memory for it as one task (default: 64)."
            ),
            click.option(
                "--volume",
                "volumes",
                multiple=True,
                metavar="NAME",
                help="What its container sees besides: a volume.",
            ),
            *_BATCH,
        ]
    ):
        function = option(function)
    return function


def spec_options(
    kind: str | None,
    time_limit: float | None,
    queue_limit: float | None,
    grace: float | None,
    core: int | None,
    wrap: str | None,
    env: tuple[str, ...],
    name: str | None,
    driver: str | None,
    image: str | None,
    cpu: int | None,
    memory: str | None,
    gpu: int | None,
    shm: str | None,
    volumes: tuple[str, ...],
    **batch: Any,
) -> dict[str, Any]:
    """The fields of a RunSpec that these options set, and `task`: what it asks for as one task,
    where it asks for any such thing.

    --memory is that of its node, where a cluster is asked for anything and no container.
    """
    on_cluster = driver == SBATCH or any(value not in (None, ()) for value in batch.values())
    of_node = on_cluster and all(value is None for value in (image, cpu, gpu, shm)) and not volumes
    if on_cluster:
        batch["memory"] = memory if of_node else None
    try:
        words = tuple(shlex.split(wrap)) if wrap else None
    except ValueError as e:
        raise click.BadParameter(
            f"{wrap!r} cannot be split into words: {e}", param_hint="--wrap"
        ) from None
    return {
        "job_run_mode": kind,
        "time_limit_secs": time_limit,
        "queue_limit_secs": queue_limit,
        "grace_secs": grace,
        "core_bytes": core,
        "wrap": words,
        "env": dict(map(_variable, env)) or None,
        "sim_name": name,
        "driver": driver or (SBATCH if on_cluster else None),
        "task": _task(image, cpu, None if of_node else memory, gpu, shm, volumes),
        "batch": _wishes(batch) if on_cluster else None,
    }


def _task(
    image: str | None,
    cpu: int | None,
    memory: str | None,
    gpu: int | None,
    shm: str | None,
    volumes: tuple[str, ...],
) -> dict[str, Any] | None:
    """Fields of the role that the command is then: what is said of it, as a job file would say it
    (see protocol.described_roles).
    """
    said = {
        "image": image,
        "cpu": cpu,
        "memory": memory,
        "gpu": gpu,
        "shm": shm,
        "volumes": list(volumes) or None,
    }
    if all(value is None for value in said.values()):
        return None
    from ...schema.fields import Findings, Table
    from ...schema.jobs.role_fields import roles

    found = Findings()
    table = Table({"roles": {"main": {**said, "command": ["true"]}}}, "", found, {"roles": ()}, "")
    made = roles(table)
    for problem in found.problems:
        option = (
            problem.path.removeprefix("roles.main.").partition("[")[0].replace("volumes", "volume")
        )
        raise click.BadParameter(
            f"{problem.problem}; right: {problem.right}", param_hint=f"--{option}"
        )
    role = made[0]
    return {
        name: getattr(role, name)
        for name in ("image", "cpu", "memory_mb", "gpu", "shm_mb", "volumes")
    }


def _wishes(said: dict[str, Any]) -> "BatchRequest | None":
    """What they ask of a cluster; nothing where they ask for nothing."""
    keys = {"tasks_per_node": "tasksPerNode", "signal_secs": "signalSecs"}
    given = {
        keys.get(name, name): list(v) if isinstance(v, tuple) else v
        for name, v in said.items()
        if v not in (None, ())
    }
    if not given:
        return None
    from ...schema.jobs.batch_fields import parse_batch_options

    wishes, findings = parse_batch_options(given)
    names = {
        "modules": "module",
        "directives": "directive",
        "tasksPerNode": "tasks-per-node",
        "signalSecs": "signal-secs",
    }
    for problem in findings.problems:
        key = problem.path.removeprefix("batch").removeprefix(".").partition("[")[0]
        hint = f"--{names.get(key, key)}" if key else None
        raise click.BadParameter(f"{problem.problem}; right: {problem.right}", param_hint=hint)
    return wishes


def _variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if equals:
        return key, value
    if key not in os.environ:
        raise click.BadParameter(f"{key} is not set here; write {key}=VALUE", param_hint="--env")
    return key, os.environ[key]
