"""The app contract: how a simulation code is prepared, run and read. Plain data and functions; no
base class.

An app is one `App` value. It is found by the entry point group `jobscribe.apps`, or named in the
setting `apps.also` as `module:attribute` (see `registry`). Most functions run on the machine of the
computation: `prepare`, `progress`, `result` and `outcome` in a job command, `frame`, `result` and
the methods in a worker. Only `parameters` runs in the front end, too: its return value is part of
the computeJobHash. So `parameters` must be pure: no files, no clock, no randomness.

`data` is the simulation as its user entered it: `{"simulationType", "simulationId", "report",
"models": {model: {field: value}}}`. Any exception counts as a failure of the app and is reported
without its stack trace. `AppError` is a refusal, and its text is shown to the user unchanged.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

Kind = Literal["sequential", "parallel"]
Value = str | int | float | bool
Data = dict[str, Any]

#: How a page draws the data of a report. docs/apps.md describes the formats.
Picture = Literal["curves", "heatmap", "points"]


class AppError(Exception):
    """A refusal by the app. The text is for its user."""


class Field(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One parameter that a user may set. Its type is the type of `default`. Numbers have bounds,
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
    """One view of a run: the result of a sequential model, or a series of frames of a parallel
    model.
    """

    name: str
    title: str
    picture: Picture


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A compute model: the computation of one run. A sequential model has a result, a parallel
    model has frames.
    """

    name: str
    title: str
    kind: Kind
    fields: tuple[Field, ...] = ()
    reports: tuple[Report, ...] = ()


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run from the point of view of an app. `lib` is the folder of the files that the user
    uploaded for this app; it may not exist.
    """

    run_dir: Path
    lib: Path
    model: str
    data: Data


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """The program to execute in the run directory, after `prepare` has filled it. Paths and
    arguments only, never a shell line.
    """

    command: tuple[str, ...]
    env: dict[str, str] = {}


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A requested frame: its report and index."""

    report: str
    index: int
    args: Data = {}


#: Methods compute on request: from a run (analysis), from the user's library (stateful), or from
#: their input alone (stateless).
AnalysisMethod = Callable[[Run, Data], Any]
StatefulMethod = Callable[[Path, Data], Any]
StatelessMethod = Callable[[Data], Any]


def _no_progress(run: Run) -> dict[str, Any]:
    return {}


def _no_sentence(run: Run, code: int) -> str | None:
    return None


class App(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation type.

    - `parameters(data, model)`: return everything that decides the result, checked and complete, as
      plain data for the hash. Raises AppError.
    - `prepare(run)`: fill the run directory and return the program to execute.
    - `progress(run)`: return `{"frameCount": n, "percentComplete": x, ...}` from the files of the
      run so far. Called repeatedly.
    - `result(run)`: return the page data of a completed run of a sequential model, as plain data.
    - `frame(run, frame)`: return the page data of one frame of a parallel model. May be called
      during the run. Raises AppError for a missing frame.
    - `outcome(run, code)`: return a sentence for the user about an exit with this code (negative
      for a signal), or None for the default sentence.
    - `downloads(run)`: return the names of files in the run directory to offer, in order.
    - `download(run, suffix)`: create the requested file and return its name in the run directory.
      Each of `downloads` is a suffix.
    - `lib_files(data)`: return the names of the library files that the run reads. Their digests are
      part of the computeJobHash.
    """

    name: str
    title: str
    version: str
    models: tuple[Model, ...]
    parameters: Callable[[Data, str], Data]
    prepare: Callable[[Run], Prepared]
    progress: Callable[[Run], dict[str, Any]] = _no_progress
    result: Callable[[Run], Any] | None = None
    frame: Callable[[Run, Frame], Any] | None = None
    outcome: Callable[[Run, int], str | None] = _no_sentence
    downloads: Callable[[Run], tuple[str, ...]] = lambda run: ()
    download: Callable[[Run, str], str] | None = None
    lib_files: Callable[[Data], tuple[str, ...]] = lambda data: ()
    analysis: Mapping[str, AnalysisMethod] = {}
    stateful: Mapping[str, StatefulMethod] = {}
    stateless: Mapping[str, StatelessMethod] = {}

    def model(self, name: str) -> Model | None:
        """Return the compute model with this name, or the model that has a report with this name
        (several reports may share one run).
        """
        for model in self.models:
            if model.name == name or any(r.name == name for r in model.reports):
                return model
        return None


def checked(data: Data, model: Model) -> Data:
    """Return the fields of this model from `data["models"]`, with defaults, after a check of types
    and bounds. Unknown fields are ignored. Raises AppError.
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
