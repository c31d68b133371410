"""Cluster fields of web clients: fields of a model that select a cluster and its resources.

They are not inputs: the app never sees them, and a result does not depend on where it is computed.
They apply only with `jobRunMode: "sbatch"`, because clients always send them.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import BatchRequest, ClusterName, SlurmName
from ...protocol.errors import Refusal

MODE = "jobRunMode"
SBATCH: Final = "sbatch"
_MODES = ("sequential", "parallel", SBATCH)
_SECS = 3600.0
_MOST_HOURS = 366 * 24


class _Field(NamedTuple):
    """A cluster field. title: label for people. most: maximum of a number; None for a name of type
    `type_`. wish: the matching field of BatchRequest.
    """

    title: str
    wish: str
    most: int | None = None
    least: int = 1
    type_: Any = SlurmName


#: `sbatchHours` is separate: it is the run's time limit.
_FIELDS = {
    "sbatchCluster": _Field("Cluster", "cluster", type_=ClusterName),
    "sbatchQueue": _Field("Partition", "partition"),
    "sbatchProject": _Field("Account", "account"),
    "sbatchQos": _Field("Quality of service", "qos"),
    "sbatchNodes": _Field("Nodes", "nodes", 1_000_000),
    "sbatchCores": _Field("Cores", "cores", 1_000_000),
    "tasksPerNode": _Field("Tasks per node", "tasks_per_node", 1_000_000),
    "sbatchMemoryMb": _Field("Memory", "memory_mb", 2**40),
    "sbatchGpus": _Field("GPUs", "gpus", 1_000, 0),
}
_HOURS = "sbatchHours"
NAMES = frozenset({MODE, _HOURS, *_FIELDS})


class Target(NamedTuple):
    """The selected target of a run. models: without these fields. driver: "" for the site's
    default. time_limit_secs: None if not requested.
    """

    models: dict[str, Any]
    driver: Literal["", "sbatch"] = ""
    batch: BatchRequest | msgspec.UnsetType = msgspec.UNSET
    time_limit_secs: float | None = None

    def apply(self, spec: RunSpec) -> RunSpec:
        """Return the run with this target."""
        return msgspec.structs.replace(
            spec, driver=self.driver, batch=self.batch, time_limit_secs=self.time_limit_secs
        )


def parse_target(
    models: Mapping[str, Any], names: Collection[str], own: Collection[str] = ()
) -> Target:
    """Return the target from the first existing model in `names`. own: fields of the app itself,
    which stay unchanged.

    Raises Refusal("badRequest") with the field name.
    """
    chosen = next((name for name in names if isinstance(models.get(name), dict)), None)
    # clients send the fields in each of their models
    rest = {name: _without(model, NAMES.difference(own)) for name, model in models.items()}
    if chosen is None:
        return Target(rest)
    given = {k: v for k, v in models[chosen].items() if k not in own}
    about = f"models.{chosen}."
    mode = given.get(MODE)
    if mode is not None and mode not in _MODES:
        raise _refusal(about + MODE, "Where it runs", f"be one of {', '.join(_MODES)}")
    if mode != SBATCH:
        return Target(rest)
    wishes = {
        field.wish: value
        for name, field in _FIELDS.items()
        if (value := _value(about + name, field, given.get(name))) is not None
    }
    if "nodes" not in wishes and "tasks_per_node" not in wishes and "cores" in wishes:
        # without nodes, cores are the number of processes for `srun`
        wishes["tasks"] = wishes.pop("cores")
    hours = _hours(about + _HOURS, given.get(_HOURS))
    return Target(rest, SBATCH, BatchRequest(**wishes), None if hours is None else hours * _SECS)


def _without(model: Any, names: Collection[str]) -> Any:
    return {k: v for k, v in model.items() if k not in names} if isinstance(model, dict) else model


def _value(path: str, field: _Field, given: Any) -> Any:
    """Return the value; None if missing or "", which clients send for empty fields."""
    if given is None or given == "":
        return None
    return (
        _name(path, field, given) if field.most is None else _whole(path, field, field.most, given)
    )


def _name(path: str, field: _Field, given: Any) -> str:
    try:
        name: str = msgspec.convert(given, field.type_)
        return name
    except msgspec.ValidationError:
        raise _refusal(
            path, field.title, "be a name as Slurm has them: letters, digits and _ . @ + -"
        ) from None


def _whole(path: str, field: _Field, most: int, given: Any) -> int:
    number = _number(given)
    if number is None or number != int(number) or not field.least <= number <= most:
        raise _refusal(path, field.title, f"be a whole number from {field.least} to {most}")
    return int(number)


def _hours(path: str, given: Any) -> float | None:
    if given is None or given == "":
        return None
    number = _number(given)
    if number is None or not 0 < number <= _MOST_HOURS:
        raise _refusal(path, "Hours", f"be a number over 0 and up to {_MOST_HOURS}")
    return number


def _number(given: Any) -> float | None:
    """Return a finite number, also from a text, as forms send it; None for anything else."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    read: Callable[[Any], float] = float
    try:
        number = read(given if not isinstance(given, str) or given.isascii() else "")
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _refusal(path: str, title: str, must: str) -> Refusal:
    """Return a refusal in the form from which pages find the field."""
    return Refusal("badRequest", f"{path} ({title}) must {must}")
