"""The apps, as the front end sees them: which report belongs to which compute model, and which
inputs make two runs the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...apps.app import App, AppError, Data, Kind, Model
from ...apps.registry import COMMAND, digest, load, names
from ...protocol.errors import Refusal
from ...protocol.launch.task_environment import APP_VERSION

#: A longer version is not told.
_VERSION_CHARS = 200
#: sha256 by name, of a user's library; asked for only when an app reads a file of it.
LibFiles = Callable[[], Mapping[str, str]]


class Slot(msgspec.Struct, frozen=True):
    """Compute model of a job. kind: None for a plain command, and for a job that no installed app
    describes.
    """

    name: str
    kind: Kind | None = None


class AppCatalog:
    """also: `name=module:attribute`, besides the apps that are installed."""

    def __init__(self, also: Sequence[str] = ()) -> None:
        self._also = tuple(also)

    def names(self) -> tuple[str, ...]:
        """All that a page can start; plain commands are submitted elsewhere."""
        return tuple(n for n in names(self._also) if n != COMMAND)

    def app(self, simulation_type: str) -> App:
        """Raises Refusal (unknownApp, appFailed)."""
        return load(simulation_type, self._also)

    def model(self, simulation_type: str, report: str) -> Model:
        """The compute model that computes this report. Raises Refusal."""
        app = self.app(simulation_type)
        model = app.model(report)
        if model is None:
            there = ", ".join(
                sorted(
                    {m.name for m in app.models} | {r.name for m in app.models for r in m.reports}
                )
            )
            raise Refusal(
                "notFound", f"{simulation_type} has no report {report!r}; it has: {there}"
            )
        return model

    def slot(self, simulation_type: str, report: str) -> Slot:
        """The compute model of a job that may have been submitted elsewhere, for status, cancel,
        log and diagnosis.
        """
        try:
            model = self.model(simulation_type, report)
        except Refusal:  # unknownApp, appFailed, notFound: the supervisor may know the job although the app is gone
            return Slot(report)
        return Slot(model.name, model.kind)

    def hash(self, simulation_type: str, model: Model, data: Data, lib: LibFiles) -> str:
        """The computeJobHash. Raises Refusal (appRefused with what the app says to its user,
        appFailed).
        """
        try:
            return digest(self.app(simulation_type), model.name, data, _Later(lib))
        except AppError as e:
            raise Refusal("appRefused", str(e)) from None
        except RecursionError:
            raise Refusal("tooDeep", "the request is nested too deep") from None

    def environment(self, simulation_type: str) -> dict[str, str]:
        """What a run of this app has in its environment: the version that its hash is of. Where it
        runs, another one refuses it.
        """
        version = self.app(simulation_type).version
        return (
            {APP_VERSION: version}
            if isinstance(version, str) and version.isprintable() and len(version) <= _VERSION_CHARS
            else {}
        )

    def described(self) -> list[dict[str, Any]]:
        """What pages make their forms of. An app that cannot be loaded says why."""
        return [self._described(name) for name in self.names()]

    def _described(self, name: str) -> dict[str, Any]:
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


class _Later(Mapping[str, str]):
    """A mapping that is looked up when it is looked into."""

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
