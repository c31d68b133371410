"""The registry of apps: built-in apps, apps of installed packages, and apps named in the
configuration.

Listing names imports no app; `load` imports only the requested one. An unusable app is refused with
a sentence; the exception is in `__cause__`, for the log.
"""

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..protocol.errors import Refusal
from ..protocol.ids import parse
from .app import App, AppError, Data

#: Entry point group in which a package offers apps: `crack = my_apps.crack:app`.
GROUP = "jobscribe.apps"
#: The simulation type that runs an argument vector without any app.
COMMAND = "command"
BUILT_IN = {"heat": f"{__package__}.heat:app", "myapp": f"{__package__}.myapp:app"}

_BLOCK = 1 << 20


def names(also: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the sorted simulation types, including `command`. Imports no app. Raises
    Refusal("badConfig").
    """
    return tuple(sorted({COMMAND, *BUILT_IN, *_installed(), *_configured(also)}))


def load(name: str, also: Sequence[str] = ()) -> App:
    """Return the app with this name. `also`, texts `name=module:attribute`, takes precedence over
    built-in apps, which take precedence over installed apps.

    Raises Refusal: `unknownApp`, with the known names; `appFailed` if the app cannot be imported or
    is invalid.
    """
    return _load(name, tuple(also))


def sources(name: str, also: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the files of the app's package that this process has imported. Raises
    Refusal("badConfig").
    """
    target = _configured(also).get(name) or BUILT_IN.get(name) or _installed().get(name, "")
    top = target.partition(":")[0].strip().partition(".")[0]
    found = (
        getattr(m, "__file__", None)
        for n, m in list(sys.modules.items())
        if n == top or n.startswith(f"{top}.")
    )
    return tuple(file for file in found if file)


def digest(
    app: App, model_name: str, data: Data, lib: Path | Mapping[str, str] | None = None
) -> str:
    """Return the computeJobHash, a digest of the app's version, the parameters and the library
    files that they name. Equal hashes mean equal results.

    lib: the user's library folder, or the sha256 of its files by name. Raises AppError, and
    Refusal("appFailed").
    """
    from hashlib import blake2b  # loads OpenSSL, which a job command does not need

    try:
        content = {
            "app": app.name,
            "version": app.version,
            "model": model_name,
            "parameters": app.parameters(data, model_name),
            "files": {name: _sha256(lib, name) for name in app.lib_files(data)},
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except AppError:
        raise
    except Exception as error:  # also if the return value is no JSON
        raise Refusal(
            "appFailed", f"{app.name} failed in parameters: {type(error).__name__}: {error}"
        ) from error
    return blake2b(text.encode(), digest_size=16).hexdigest()


# ---- inside


def _configured(also: Sequence[str]) -> dict[str, str]:
    """Return name -> module:attribute from the configuration."""
    out = {}
    for text in also:
        name, equals, target = text.partition("=")
        module, colon, attribute = target.partition(":")
        if not (equals and colon and module and attribute):
            raise Refusal("badConfig", f"apps.also: {text!a} is not name=module:attribute")
        out[parse("simulationType", name.strip())] = target.strip()
    return out


def _installed() -> dict[str, str]:
    """Return name -> module:attribute from installed packages."""
    # slower to import than the rest of this module, and rarely needed
    from importlib import metadata

    return {point.name: point.value for point in metadata.entry_points(group=GROUP)}


@lru_cache(maxsize=256)
def _load(name: str, also: tuple[str, ...]) -> App:
    listed = _configured(also)
    target = listed.get(name) or BUILT_IN.get(name)
    if target is None and name != COMMAND:
        target = _installed().get(name)
    if target is None:
        known = ", ".join(n for n in names(also) if n != COMMAND)
        raise Refusal("unknownApp", f"there is no app {name!a}; the apps are: {known}")
    found = _import_app(name, target)
    wrong = _find_error(found, name)
    if wrong is not None:
        raise Refusal("appFailed", f"the app {name} ({target}) cannot be used: {wrong}")
    assert isinstance(found, App)
    return found


def _import_app(name: str, target: str) -> object:
    module, _, attributes = target.partition(":")
    try:
        found: object = importlib.import_module(module.strip())
        for attribute in attributes.split("[")[0].strip().split("."):
            found = getattr(found, attribute)
    except Exception as error:  # a plug-in may raise anything on import
        raise Refusal(
            "appFailed",
            f"the app {name} ({target}) cannot be imported: {type(error).__name__}: {error}",
        ) from error
    except SystemExit as error:
        raise Refusal(
            "appFailed", f"the app {name} ({target}) cannot be imported: it calls exit()"
        ) from error
    return found


def _find_error(found: object, name: str) -> str | None:
    """Return a sentence that says why this is no valid app with that name, or None."""
    if not isinstance(found, App):
        return f"it is {type(found).__name__!r}, not an App"
    if found.name != name:
        return f"its name is {found.name!a}"
    if not found.models:
        return "it has no compute models"
    for model in found.models:
        try:
            parse("computeModel", model.name)
        except Refusal as refusal:
            return refusal.sentence
        if model.kind == "sequential" and found.result is None:
            return f"{model.name} is sequential, but the app has no function result"
        if model.kind == "parallel" and found.frame is None:
            return f"{model.name} is parallel, but the app has no function frame"
    if len({m.name for m in found.models}) != len(found.models):
        return "two of its compute models have the same name"
    return None


def _sha256(lib: Path | Mapping[str, str] | None, name: str) -> str:
    """Return the digest of one library file. Raises AppError if the user has no file with that
    name.
    """
    missing = AppError(f"there is no file {name!a} in your library; upload it first")
    if not isinstance(lib, Path):
        if lib is None or name not in lib:
            raise missing
        return lib[name]
    if "/" in name or name in ("", ".", ".."):
        raise missing
    from hashlib import sha256

    out: Any = sha256()
    try:
        with (lib / name).open("rb") as f:
            while block := f.read(_BLOCK):
                out.update(block)
    except OSError:
        raise missing from None
    return str(out.hexdigest())
