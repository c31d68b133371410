"""The options shared by `run` and `job submit`, and their conversion to run spec fields."""

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


class _CoreBytes(click.ParamType):  # type: ignore[type-arg]
    """A size that may be missing, so that the next word is taken for it."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return BYTES.convert(value, param, ctx)
        except click.BadParameter as e:
            self.fail(f"{e.message}; before a command, write: --core -- COMMAND...", param, ctx)


#: Options for a cluster, as in sbatch, with the names of job files.
_BATCH = [
    click.option(
        "--cluster",
        metavar="NAME",
        help="Submit to this cluster (driver sbatch; `jobscribe cluster list` shows all).",
    ),
    click.option("--partition", metavar="NAME", help="Partition of the cluster."),
    click.option("--account", metavar="NAME", help="Account there to charge."),
    click.option("--qos", metavar="NAME", help="Quality of service."),
    click.option("--constraint", metavar="FEATURES", help="Features that the nodes must have."),
    click.option("--licenses", metavar="LICENSES", help="Licences to use (matlab:2)."),
    click.option("--nodes", type=_COUNT, metavar="N", help="Number of nodes."),
    click.option(
        "--tasks", type=_COUNT, metavar="N", help="Number of processes that srun starts (ranks)."
    ),
    click.option(
        "--tasks-per-node", type=_COUNT, metavar="N", help="Number of these processes per node."
    ),
    click.option("--cores", type=_COUNT, metavar="N", help="Cores per process."),
    click.option("--gpus", type=click.IntRange(0), metavar="N", help="GPUs per node."),
    click.option(
        "--module",
        "modules",
        multiple=True,
        metavar="NAME",
        help="Load this environment module first.",
    ),
    click.option(
        "--setup", metavar="SH", help="Shell lines to run before the command, on the node."
    ),
    click.option(
        "--directive",
        "directives",
        multiple=True,
        metavar="OPTION",
        help="A further sbatch option, if the cluster allows it.",
    ),
    click.option(
        "--signal-secs",
        type=_COUNT,
        metavar="SECS",
        help="Send SIGUSR1 this long before the time limit.",
    ),
]
#: Driver of clusters.
SBATCH = "sbatch"


def run_options(function: F) -> F:
    """Add the options of a run to a command function. `spec_options` converts their values."""
    for option in reversed(
        [
            click.option(
                "--kind",
                type=click.Choice(["sequential", "parallel"]),
                help="Kind of concurrency slot to use (default: sequential).",
            ),
            click.option(
                "--time-limit",
                type=SECS,
                metavar="TIME",
                help="Maximum run time (30, 10m, 2h, 10:00, 1-00:00:00).",
            ),
            click.option(
                "--queue-limit",
                type=SECS,
                metavar="TIME",
                help="Maximum time in the queue.",
            ),
            click.option(
                "--grace",
                type=SECS,
                metavar="TIME",
                help="Time between SIGTERM and SIGKILL on a stop (default: 3).",
            ),
            click.option(
                "--core",
                type=_CoreBytes(),
                is_flag=False,
                flag_value="1G",
                metavar="BYTES",
                help="Collect core files of at most this size (--core alone: 1G; default: none).",
            ),
            click.option(
                "--wrap",
                metavar="CMD",
                help="Prefix for the command, split like in a shell (a profiler, mpirun).",
            ),
            click.option(
                "--env",
                "-e",
                multiple=True,
                metavar="K=V",
                help="Set an environment variable; K alone passes on the local value.",
            ),
            click.option(
                "--debug",
                "debug",
                is_flag=False,
                flag_value="breakpoint",
                metavar="[=MODE]",
                help="Let breakpoint() wait for 'jobscribe debug attach'; --debug=on-error: uncaught exceptions, too;"
                " =debugpy: for an IDE; =debugpy:HOST:PORT or =pydevd:HOST:PORT: connect to an IDE.",
            ),
            click.option(
                "--debug-ttl",
                type=SECS,
                metavar="TIME",
                help="A stopped process continues by itself after this time (default: 30m).",
            ),
            click.option(
                "--profile",
                metavar="KIND[=TOOL]",
                help="Record a profile: cpu[=sampler|cprofile|py-spy], mem[=samples|memray], gpu ('jobscribe profile list').",
            ),
            click.option("--name", metavar="TEXT", help="Display name."),
            click.option("--queue", metavar="QUEUE", help="Queue of the run (default: yours)."),
            click.option(
                "--priority",
                type=click.IntRange(-1000, 1000),
                metavar="N",
                help="Runs of yours with a higher priority go first (default: 0).",
            ),
            click.option(
                "--driver",
                metavar="DRIVER",
                help="Driver that starts the run: local, docker, sbatch (default: the site's).",
            ),
            click.option(
                "--image",
                metavar="IMAGE",
                help="Run as one task in its own container of this image.",
            ),
            click.option(
                "--cpu",
                type=click.IntRange(1),
                metavar="N",
                help="Run as one task with this number of cores.",
            ),
            click.option(
                "--memory",
                metavar="MB",
                help="Run as one task with this memory (512, 2GB); on a cluster: memory per node.",
            ),
            click.option(
                "--gpu", type=click.IntRange(0), metavar="N", help="Run as one task with GPUs."
            ),
            click.option(
                "--shm", metavar="MB", help="Run as one task with this shared memory (default: 64)."
            ),
            click.option(
                "--volume",
                "volumes",
                multiple=True,
                metavar="NAME",
                help="Mount this volume in its container.",
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
    debug: str | None,
    debug_ttl: float | None,
    profile: str | None,
    name: str | None,
    queue: str | None,
    priority: int | None,
    driver: str | None,
    image: str | None,
    cpu: int | None,
    memory: str | None,
    gpu: int | None,
    shm: str | None,
    volumes: tuple[str, ...],
    **batch: Any,
) -> dict[str, Any]:
    """Return the RunSpec fields of these options, and `task`: the resources of a single task, or
    None. Raises click.BadParameter.

    --memory is the memory of a node for runs on a cluster without a container.
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
        "env": {**dict(map(_variable, env)), **_debugging(debug, debug_ttl)} or None,
        "profile": _profile(profile),
        "sim_name": name,
        "queue": queue,
        "priority": priority,
        "driver": driver or (SBATCH if on_cluster else None),
        "task": _task(image, cpu, None if of_node else memory, gpu, shm, volumes),
        "batch": _batch_request(batch) if on_cluster else None,
    }


def _debugging(mode: str | None, secs: float | None) -> dict[str, str]:
    """Return the variables of remote debugging."""
    if mode is None:
        if secs is not None:
            raise click.UsageError("--debug-ttl requires --debug")
        return {}
    from ...protocol.jobs import debugging

    if not debugging.is_mode(mode):
        raise click.BadParameter(
            f"{mode!r} is none of: {', '.join(debugging.FORMS)}; before a command, write: --debug --"
            " COMMAND...",
            param_hint="--debug",
        )
    more = {} if secs is None else {debugging.SECS_VARIABLE: f"{secs:g}"}
    return {debugging.VARIABLE: mode, **more}


def _profile(text: str | None) -> str | None:
    from ...protocol.jobs import profiling

    if text is not None and profiling.option(text) is None:
        raise click.BadParameter(profiling.choices(), param_hint="--profile")
    return text


def _task(
    image: str | None,
    cpu: int | None,
    memory: str | None,
    gpu: int | None,
    shm: str | None,
    volumes: tuple[str, ...],
) -> dict[str, Any] | None:
    """Return the role fields of a run with a single task, validated like a job file. None if no
    such option is given.
    """
    given = {
        "image": image,
        "cpu": cpu,
        "memory": memory,
        "gpu": gpu,
        "shm": shm,
        "volumes": list(volumes) or None,
    }
    if all(value is None for value in given.values()):
        return None
    from ...schema.jobs.role_rules import task_options

    role, found = task_options(given)
    for problem in found.problems:
        option = problem.path.partition("[")[0].replace("volumes", "volume")
        raise click.BadParameter(
            f"{problem.problem}; right: {problem.right}", param_hint=f"--{option}"
        )
    return {
        name: getattr(role, name)
        for name in ("image", "cpu", "memory_mb", "gpu", "shm_mb", "volumes")
    }


def _batch_request(values: dict[str, Any]) -> "BatchRequest | None":
    """Return the batch request of these options. None if none is given."""
    keys = {"tasks_per_node": "tasksPerNode", "signal_secs": "signalSecs"}
    given = {
        keys.get(name, name): list(v) if isinstance(v, tuple) else v
        for name, v in values.items()
        if v not in (None, ())
    }
    if not given:
        return None
    from ...schema.jobs.batch_rules import batch_options

    request, findings = batch_options(given)
    names = {
        "modules": "module",
        "directives": "directive",
        "tasksPerNode": "tasks-per-node",
        "signalSecs": "signal-secs",
    }
    for problem in findings.problems:
        key = problem.path.partition("[")[0]
        hint = f"--{names.get(key, key)}" if key else None
        raise click.BadParameter(f"{problem.problem}; right: {problem.right}", param_hint=hint)
    return request


def _variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if equals:
        return key, value
    if key not in os.environ:
        raise click.BadParameter(f"{key} is not set here; write {key}=VALUE", param_hint="--env")
    return key, os.environ[key]
