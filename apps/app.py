"""The contract of an app: how a simulation code is prepared, run and read. Plain data and
functions; no base class.

An app is one `App` value. It is found by the entry point group `jobscribe.apps`, or named in the
setting `apps.also` as `module:attribute` (see `registry`). Its functions run where the computation
runs: in a job command (`prepare`, `progress`, `result`, `outcome`), in a worker (`frame`, `result`,
methods), and - `parameters` alone - in the front end, which digests what it returns into the
computeJobHash. So `parameters` is pure: no files, no clock, no chance.

`data` is the simulation as its user has it: `{"simulationType", "simulationId", "report", "models":
{model: {field: value}}}`. Whatever a function raises is a failure of the app and is told without
its trace; `AppError` is the app saying no to its user, and its sentence is told as it is.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

Kind = Literal["sequential", "parallel"]
Value = str | int | float | bool
Data = dict[str, Any]

#: How a page draws what a report returns. The shapes stand in docs/apps.md.
Picture = Literal["curves", "heatmap", "points"]


class AppError(Exception):
    """The app cannot do what it is asked for; the text is for its user."""


class Field(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One parameter that a user may set. The type of `default` is its type; numbers have bounds,
    texts may have choices.
    """

    name: str
    title: str
    default: Value
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing to look at: the result of a sequential model, or a series of frames of a parallel
    one.
    """

    name: str
    title: str
    picture: Picture


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A compute model: what one run of the app computes. A sequential one has a result, a parallel
    one frames.
    """

    name: str
    title: str
    kind: Kind
    fields: tuple[Field, ...] = ()
    reports: tuple[Report, ...] = ()


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as an app sees it. `lib` is the folder of the files that the user has uploaded for this
    app (it may not exist).
    """

    run_dir: Path
    lib: Path
    model: str
    data: Data


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be executed in the run directory, after `prepare` has filled it. Paths and
    arguments only, never a shell line.
    """

    command: tuple[str, ...]
    env: dict[str, str] = {}


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Which frame of which report."""

    report: str
    index: int
    args: Data = {}


#: A method computes something: of a run (analysis), of the user's library (stateful), of its input
#: alone (stateless).
AnalysisMethod = Callable[[Run, Data], Any]
StatefulMethod = Callable[[Path, Data], Any]
StatelessMethod = Callable[[Data], Any]


def _nothing(run: Run) -> dict[str, Any]:
    return {}


def _said_nothing(run: Run, code: int) -> str | None:
    return None


class App(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation type.

    parameters(data, model): everything that decides the result, checked and completed; raises
    AppError. Digested, so plain data. prepare(run): fill the run directory and say what to execute.
    progress(run): `{"frameCount": n, "percentComplete": x, ...}` from what the run has written so
    far; asked again and again. result(run): of a sequential model, when its run has completed: what
    a page shows. Plain data. frame(run, frame): of a parallel model; may be asked while it runs.
    Raises AppError for a frame that is not there (yet). outcome(run, code): the sentence for the
    user about an end with this code (a signal is negative); None: the usual one. downloads(run):
    names of the files in the run directory that are worth offering, in order. download(run,
    suffix): make the file that was asked for and return its name in the run directory; each of
    `downloads` is a suffix. lib_files(data): names of the library files that the run reads; their
    digests are part of the computeJobHash.
    """

    name: str
    title: str
    version: str
    models: tuple[Model, ...]
    parameters: Callable[[Data, str], Data]
    prepare: Callable[[Run], Prepared]
    progress: Callable[[Run], dict[str, Any]] = _nothing
    result: Callable[[Run], Any] | None = None
    frame: Callable[[Run, Frame], Any] | None = None
    outcome: Callable[[Run, int], str | None] = _said_nothing
    downloads: Callable[[Run], tuple[str, ...]] = lambda run: ()
    download: Callable[[Run, str], str] | None = None
    lib_files: Callable[[Data], tuple[str, ...]] = lambda data: ()
    analysis: Mapping[str, AnalysisMethod] = {}
    stateful: Mapping[str, StatefulMethod] = {}
    stateless: Mapping[str, StatelessMethod] = {}

    def model(self, name: str) -> Model | None:
        """The compute model of this name, or the one that has a report of this name (many reports
        may share one run).
        """
        for model in self.models:
            if model.name == name or any(r.name == name for r in model.reports):
                return model
        return None


def checked(data: Data, model: Model) -> Data:
    """The fields of this model out of `data["models"]`, with defaults and bounds. Raises AppError;
    fields it does not know count not.
    """
    models = data.get("models", {})
    given = models.get(model.name, {}) if isinstance(models, dict) else None
    if not isinstance(given, dict):
        raise AppError(f"models.{model.name} must be an object of fields")
    return {f.name: _value(given.get(f.name, f.default), f, model.name) for f in model.fields}


def _value(value: Any, field: Field, model: str) -> Value:
    path, wanted = f"models.{model}.{field.name}", type(field.default)
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise AppError(f"{path} ({field.title}) must be of type {wanted.__name__}")
    if field.choices and value not in field.choices:
        raise AppError(f"{path} ({field.title}) must be one of {', '.join(field.choices)}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        low = -float("inf") if field.minimum is None else field.minimum
        high = float("inf") if field.maximum is None else field.maximum
        if not low <= value <= high:
            raise AppError(
                f"{path} ({field.title}) must lie between {low:g} and {high:g}"
                + (f" {field.unit}" if field.unit else "")
            )
    result: Value = value
    return result
