"""What describes a run on the command line: the options that `run` and `job submit` share, and the specs made of them."""

import os
import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .quantities import BYTES, SECS

F = TypeVar("F", bound=Callable[..., Any])


def run_options(function: F) -> F:
    """The options of a run; the function gets them as one dictionary, see `spec_options`."""
    for option in reversed([
        click.option("--kind", type=click.Choice(["sequential", "parallel"]), help="Kind of slot it takes (default: sequential)."),
        click.option("--time-limit", type=SECS, metavar="SECS", help="End it so long after its start (30, 10m, 2h)."),
        click.option("--queue-limit", type=SECS, metavar="SECS", help="Give up when it has waited so long."),
        click.option("--grace", type=SECS, metavar="SECS", help="Between SIGTERM and SIGKILL when it is stopped (default: 3)."),
        click.option("--core", type=BYTES, metavar="BYTES", help="Largest core dump (default: 0, none)."),
        click.option("--wrap", metavar="CMD", help="Put this in front of the command, split as a shell would (a profiler, mpirun)."),
        click.option("--env", "-e", multiple=True, metavar="K=V", help="Set a variable in its environment; K alone passes it on."),
        click.option("--name", metavar="TEXT", help="A name for people."),
    ]):
        function = option(function)
    return function


def spec_options(
    kind: str | None, time_limit: float | None, queue_limit: float | None, grace: float | None, core: int | None, wrap: str | None,
    env: tuple[str, ...], name: str | None,
) -> dict[str, Any]:
    """The fields of a RunSpec that these options set."""
    try:
        words = tuple(shlex.split(wrap)) if wrap else None
    except ValueError as e:
        raise click.BadParameter(f"{wrap!r} cannot be split into words: {e}", param_hint="--wrap") from None
    return {
        "job_run_mode": kind, "time_limit_secs": time_limit, "queue_limit_secs": queue_limit, "grace_secs": grace, "core_bytes": core,
        "wrap": words, "env": dict(map(_variable, env)) or None, "sim_name": name,
    }


def _variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if equals:
        return key, value
    if key not in os.environ:
        raise click.BadParameter(f"{key} is not set here; write {key}=VALUE", param_hint="--env")
    return key, os.environ[key]
