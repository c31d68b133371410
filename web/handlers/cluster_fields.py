"""Where a simulation is to run, as web clients say it: fields among those of its model, and what
they ask of a cluster.

They are no inputs: the app sees none of them, and the same values have the same result wherever
they are computed. Without `jobRunMode: "sbatch"` they mean nothing, for clients send them always.
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
    """title: for a person. most: of a number; None where it is a name, which has the shape `type_`.
    wish: the field of Wishes.
    """

    title: str
    wish: str
    most: int | None = None
    least: int = 1
    type_: Any = SlurmName


#: `sbatchHours` is the run's time limit, and stands apart.
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


class Where(NamedTuple):
    """models: without these fields. driver: "" for the house's own. time_limit_secs: None where
    none is asked for.
    """

    models: dict[str, Any]
    driver: Literal["", "sbatch"] = ""
    batch: BatchRequest | msgspec.UnsetType = msgspec.UNSET
    time_limit_secs: float | None = None

    def of(self, spec: RunSpec) -> RunSpec:
        """The run, there."""
        return msgspec.structs.replace(
            spec, driver=self.driver, batch=self.batch, time_limit_secs=self.time_limit_secs
        )


def where(models: Mapping[str, Any], names: Collection[str], own: Collection[str] = ()) -> Where:
    """What the first of these models that there is says of it. own: fields that the app has itself,
    which are left alone.

    Raises Refusal("badRequest"), which names the field.
    """
    chosen = next((name for name in names if isinstance(models.get(name), dict)), None)
    # clients keep them in each of their models
    rest = {name: _without(model, NAMES.difference(own)) for name, model in models.items()}
    if chosen is None:
        return Where(rest)
    said = {k: v for k, v in models[chosen].items() if k not in own}
    about = f"models.{chosen}."
    mode = said.get(MODE)
    if mode is not None and mode not in _MODES:
        raise _refusal(about + MODE, "Where it runs", f"be one of {', '.join(_MODES)}")
    if mode != SBATCH:
        return Where(rest)
    wishes = {
        field.wish: value
        for name, field in _FIELDS.items()
        if (value := _value(about + name, field, said.get(name))) is not None
    }
    if "nodes" not in wishes and "tasks_per_node" not in wishes and "cores" in wishes:
        # without nodes, cores are what `srun` starts processes on
        wishes["tasks"] = wishes.pop("cores")
    hours = _hours(about + _HOURS, said.get(_HOURS))
    return Where(rest, SBATCH, BatchRequest(**wishes), None if hours is None else hours * _SECS)


def _without(model: Any, names: Collection[str]) -> Any:
    return {k: v for k, v in model.items() if k not in names} if isinstance(model, dict) else model


def _value(path: str, field: _Field, given: Any) -> Any:
    """None where nothing is said: clients send empty texts."""
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
    """Also of a text, as forms send it."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    read: Callable[[Any], float] = float
    try:
        number = read(given if not isinstance(given, str) or given.isascii() else "")
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _refusal(path: str, title: str, must: str) -> Refusal:
    """In the form in which pages find the field that is meant."""
    return Refusal("badRequest", f"{path} ({title}) must {must}")
