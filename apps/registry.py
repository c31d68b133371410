"""Which apps there are: those that come along, those that installed packages offer, and those that
the configuration names.

Naming them imports none of them; `load` imports the one that is asked for. An app that cannot be
used is refused with a sentence, and whoever asked for it finds the cause in `__cause__`, for the
log.
"""

import hashlib
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

#: Where a package offers its apps: `crack = my_apps.crack:app`.
GROUP = "jobscribe.apps"
#: Runs an argument vector as it is given; no code of an app is involved.
COMMAND = "command"
BUILT_IN = {"heat": f"{__package__}.heat:app", "myapp": f"{__package__}.myapp:app"}

_BLOCK = 1 << 20


def names(also: Sequence[str] = ()) -> tuple[str, ...]:
    """The simulation types there are, sorted; `command` is one. Imports no app. Raises
    Refusal("badConfig").
    """
    return tuple(sorted({COMMAND, *BUILT_IN, *_offered(), *_listed(also)}))


def load(name: str, also: Sequence[str] = ()) -> App:
    """The app of this name. `also`, texts `name=module:attribute`, wins over what comes along, and
    that over what is installed.

    Raises Refusal: `unknownApp`, which names those there are; `appFailed` where it cannot be
    imported, or is none.
    """
    return _load(name, tuple(also))


def sources(name: str, also: Sequence[str] = ()) -> tuple[str, ...]:
    """Files of the package that this app is in, as far as they have been imported here. Raises
    Refusal("badConfig").
    """
    target = _listed(also).get(name) or BUILT_IN.get(name) or _offered().get(name, "")
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
    """The computeJobHash: equal where the results would be, so of the app's version, the parameters
    and the library files they name.

    lib: the user's library folder, or the sha256 of its files by name. Raises AppError, and
    Refusal("appFailed").
    """
    try:
        said = {
            "app": app.name,
            "version": app.version,
            "model": model_name,
            "parameters": app.parameters(data, model_name),
            "files": {name: _sha256(lib, name) for name in app.lib_files(data)},
        }
        text = json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except AppError:
        raise
    except Exception as error:  # also of what it returned and JSON cannot carry
        raise Refusal(
            "appFailed", f"{app.name} failed in parameters: {type(error).__name__}: {error}"
        ) from error
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# ---- inside


def _listed(also: Sequence[str]) -> dict[str, str]:
    """name: module:attribute, as the configuration says it."""
    out = {}
    for text in also:
        name, equals, target = text.partition("=")
        module, colon, attribute = target.partition(":")
        if not (equals and colon and module and attribute):
            raise Refusal("badConfig", f"apps.also: {text!a} is not name=module:attribute")
        out[parse("simulationType", name.strip())] = target.strip()
    return out


def _offered() -> dict[str, str]:
    """name: module:attribute, as installed packages say it."""
    from importlib import (
        metadata,  # costs more than all the rest of this module, and is seldom needed
    )

    return {point.name: point.value for point in metadata.entry_points(group=GROUP)}


@lru_cache(maxsize=256)
def _load(name: str, also: tuple[str, ...]) -> App:
    listed = _listed(also)
    target = listed.get(name) or BUILT_IN.get(name)
    if target is None and name != COMMAND:
        target = _offered().get(name)
    if target is None:
        there = ", ".join(n for n in names(also) if n != COMMAND)
        raise Refusal("unknownApp", f"there is no app {name!a}; there are: {there}")
    found = _imported(name, target)
    wrong = _wrong(found, name)
    if wrong is not None:
        raise Refusal("appFailed", f"the app {name} ({target}) cannot be used: {wrong}")
    assert isinstance(found, App)
    return found


def _imported(name: str, target: str) -> object:
    module, _, attributes = target.partition(":")
    try:
        found: object = importlib.import_module(module.strip())
        for attribute in attributes.split("[")[0].strip().split("."):
            found = getattr(found, attribute)
    except Exception as error:  # whatever a plug-in raises when it is imported
        raise Refusal(
            "appFailed",
            f"the app {name} ({target}) cannot be imported: {type(error).__name__}: {error}",
        ) from error
    except SystemExit as error:
        raise Refusal(
            "appFailed", f"the app {name} ({target}) cannot be imported: it calls exit()"
        ) from error
    return found


def _wrong(found: object, name: str) -> str | None:
    """Why this is no app of that name, if it is not one."""
    if not isinstance(found, App):
        return f"it is {type(found).__name__!r}, not an App"
    if found.name != name:
        return f"it calls itself {found.name!a}"
    if not found.models:
        return "it has no compute models"
    for model in found.models:
        try:
            parse("computeModel", model.name)
        except Refusal as refusal:
            return refusal.sentence
        if model.kind == "sequential" and found.result is None:
            return f"{model.name} is sequential, but there is no function result"
        if model.kind == "parallel" and found.frame is None:
            return f"{model.name} is parallel, but there is no function frame"
    if len({m.name for m in found.models}) != len(found.models):
        return "two of its compute models have the same name"
    return None


def _sha256(lib: Path | Mapping[str, str] | None, name: str) -> str:
    """Of one library file; raises AppError where the user has none of that name."""
    missing = AppError(f"there is no file {name!a} in your library; upload it first")
    if not isinstance(lib, Path):
        if lib is None or name not in lib:
            raise missing
        return lib[name]
    if "/" in name or name in ("", ".", ".."):
        raise missing
    out: Any = hashlib.sha256()
    try:
        with (lib / name).open("rb") as f:
            while block := f.read(_BLOCK):
                out.update(block)
    except OSError:
        raise missing from None
    return str(out.hexdigest())
