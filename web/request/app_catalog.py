"""The installed apps for the front end: the compute model of each report, and the hash of a run's
inputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...apps.app import App, AppError, Data, Kind, Model
from ...apps.registry import COMMAND, digest, load, names
from ...protocol.errors import Refusal
from ...protocol.version import APP_VERSION

#: Longer versions are not passed to runs.
_VERSION_CHARS = 200
#: Returns sha256 by name for a user's library; called only if an app reads a file of it.
LibFiles = Callable[[], Mapping[str, str]]


class Slot(msgspec.Struct, frozen=True):
    """Compute model of a job. kind: None for a plain command, and for a job without an installed
    app.
    """

    name: str
    kind: Kind | None = None


class AppCatalog:
    """The installed and configured apps. also: `name=module:attribute` of further apps."""

    def __init__(self, also: Sequence[str] = ()) -> None:
        self._also = tuple(also)

    def names(self) -> tuple[str, ...]:
        """Return the apps that a page can start; plain commands are submitted elsewhere."""
        return tuple(n for n in names(self._also) if n != COMMAND)

    def app(self, simulation_type: str) -> App:
        """Return the app. Raises Refusal (unknownApp, appFailed)."""
        return load(simulation_type, self._also)

    def model(self, simulation_type: str, report: str) -> Model:
        """Return the compute model of this report. Raises Refusal."""
        app = self.app(simulation_type)
        model = app.model(report)
        if model is None:
            known = ", ".join(
                sorted(
                    {m.name for m in app.models} | {r.name for m in app.models for r in m.reports}
                )
            )
            raise Refusal(
                "notFound",
                f"{simulation_type} has no report {report!r}; it has: {known}",
            )
        return model

    def slot(self, simulation_type: str, report: str) -> Slot:
        """Return the compute model of a job that may have been submitted elsewhere, for status,
        cancel, log and diagnosis.
        """
        try:
            model = self.model(simulation_type, report)
        except Refusal:  # unknownApp, appFailed, notFound: the supervisor may know the job although the app is gone
            return Slot(report)
        return Slot(model.name, model.kind)

    def hash(self, simulation_type: str, model: Model, data: Data, lib: LibFiles) -> str:
        """Return the computeJobHash. Raises Refusal (appRefused with the app's message, appFailed)."""
        try:
            return digest(self.app(simulation_type), model.name, data, _LazyMapping(lib))
        except AppError as e:
            raise Refusal("appRefused", str(e)) from None
        except RecursionError:
            raise Refusal("tooDeep", "the request is nested too deeply") from None

    def environment(self, simulation_type: str) -> dict[str, str]:
        """Return the variables of a run of this app: the app version of its hash. An agent with
        another version refuses the run.
        """
        version = self.app(simulation_type).version
        return (
            {APP_VERSION: version}
            if isinstance(version, str) and version.isprintable() and len(version) <= _VERSION_CHARS
            else {}
        )

    def descriptions(self) -> list[dict[str, Any]]:
        """Return the data for forms. An app that cannot be loaded has an `error`."""
        return [self._description(name) for name in self.names()]

    def _description(self, name: str) -> dict[str, Any]:
        try:
            app = self.app(name)
        except Refusal as e:
            return {"name": name, "error": e.sentence}
        return {
            "name": app.name,
            "title": app.title,
            "version": app.version,
            "models": msgspec.to_builtins(app.models),
            "methods": {
                "analysis": sorted(app.analysis),
                "stateful": sorted(app.stateful),
                "stateless": sorted(app.stateless),
            },
        }


class _LazyMapping(Mapping[str, str]):
    """A mapping that is fetched at its first use."""

    def __init__(self, look: LibFiles) -> None:
        self._look = look
        self._found: Mapping[str, str] | None = None

    def _all(self) -> Mapping[str, str]:
        if self._found is None:
            self._found = self._look()
        return self._found

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
