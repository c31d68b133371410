"""Configuration in layers: defaults < file (TOML) < environment (JOBSCRIBE_*) < command line. Every
value has an origin.

An unknown name is an error that suggests the most similar name: a silently ignored setting is worse
than none. `settings` defines the settings; `site.startup_checks` decides whether they are safe for
a start.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Never

from ...protocol.errors import Refusal
from ...schema.fields import InvalidValue
from .settings import GROUPS, SETTINGS, LogSettings, Settings, value_of

__all__ = [
    "CLIENT_NAMES",
    "FILE_NAME",
    "JOB_NAMES",
    "LogSettings",
    "Row",
    "Settings",
    "load",
    "show",
]

FILE_NAME = "jobscribe.toml"
PREFIX = "JOBSCRIBE_"

#: Variables in the environment of a job. A command inside a job may start jobscribe, so these names
#: are accepted and ignored.
JOB_NAMES = frozenset(
    {
        "JOBSCRIBE_TOKEN",
        "JOBSCRIBE_COMPUTE_JID",
        "JOBSCRIBE_SERIAL",
        "JOBSCRIBE_ATTEMPT",
        "JOBSCRIBE_TASK_ROLE",
        "JOBSCRIBE_TASK_INDEX",
        "JOBSCRIBE_RUN_DIR",
        "JOBSCRIBE_TERMINATION_MESSAGE",
        "JOBSCRIBE_REPORT",
        "JOBSCRIBE_CRASHPOINT",
        "JOBSCRIBE_DEBUG",
        "JOBSCRIBE_DEBUG_SECS",
        "JOBSCRIBE_DEBUG_DIR",
        "JOBSCRIBE_PROFILE",
        "JOBSCRIBE_PROFILE_DIR",
    }
)
#: Variables in the environment of a notification command, which may start jobscribe too.
NOTIFY_NAMES = frozenset(
    {
        "JOBSCRIBE_NOTIFY_ID",
        "JOBSCRIBE_NOTIFY_TARGET",
        "JOBSCRIBE_NOTIFY_EVENT",
        "JOBSCRIBE_NOTIFY_STATE",
        "JOBSCRIBE_NOTIFY_JID",
        "JOBSCRIBE_NOTIFY_SERIAL",
        "JOBSCRIBE_NOTIFY_POSITION",
    }
)
#: Variables for clients only.
CLIENT_NAMES = frozenset({"JOBSCRIBE_URL", "JOBSCRIBE_SECRET", "JOBSCRIBE_PATIENCE"})
CONFIG_NAME = "JOBSCRIBE_CONFIG"

_ENV = {s.env_name: s.name for s in SETTINGS.values()}
_TABLE = re.compile(r"\s*\[\s*([\w.\"' -]+?)\s*\]")
_ASSIGNMENT = re.compile(r"\s*([\w.\"' -]+?)\s*=")
_BARE = str.maketrans("", "", "\"' ")


class _Given(NamedTuple):
    value: Any
    origin: str


class Row(NamedTuple):
    """A setting with its value, for people."""

    key: str
    value: str
    origin: str
    about: str


def load(
    options: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Settings:
    """Return the settings of this process. Raises Refusal("badConfig").

    options: values of settings from the command line; `None` means not given. env: default is the
    process's environment. file: a configuration file that must exist. Without it:
    `JOBSCRIBE_CONFIG`, then `<root>/jobscribe.toml` if it exists.
    """
    env = os.environ if env is None else env
    overrides = _from_env(env)
    overrides.update(_from_options(options or {}))
    named = file or env.get(CONFIG_NAME)
    root = _parse("root", overrides["root"]) if "root" in overrides else Settings().root
    path = named or os.path.join(os.path.abspath(root), FILE_NAME)
    given = _from_file(path, must_exist=named is not None)
    if named is None and "root" in given:
        raise Refusal(
            "badConfig",
            f"{given['root'].origin}: a configuration file in the root cannot set the root; remove the line",
        )
    given.update(overrides)
    return _build(given)


def show(settings: Settings) -> list[Row]:
    """Return every setting with its value and origin. No value is secret: secrets are in files that
    settings name.
    """
    return [
        Row(
            s.name,
            _text(value_of(settings, s.name)),
            settings.origins.get(s.name, "default"),
            s.about,
        )
        for s in SETTINGS.values()
    ]


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        # Numbers are the first and last value of a range.
        return (
            "-".join(map(str, value))
            if value and all(isinstance(v, int) for v in value)
            else ", ".join(value)
        )
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _build(given: Mapping[str, _Given]) -> Settings:
    top: dict[str, Any] = {}
    grouped: dict[str, dict[str, Any]] = {g: {} for g in GROUPS}
    for name, g in given.items():
        group, _, rest = name.rpartition(".")
        (grouped[group] if group else top)[rest] = _parse(name, g)
    groups = {g: GROUPS[g](**values) for g, values in grouped.items()}
    return Settings(**top, **groups, origins={name: g.origin for name, g in given.items()})


def _parse(name: str, given: _Given) -> Any:
    try:
        return SETTINGS[name].parser(given.value)
    except InvalidValue as e:
        raise Refusal(
            "badConfig", f"{given.origin}: {name} {e}; got {ascii(given.value)[:60]}"
        ) from None


def _from_options(options: Mapping[str, Any]) -> dict[str, _Given]:
    for name in options:
        if name not in SETTINGS:
            _raise_unknown("option", name, SETTINGS)
    return {
        k: _Given(v, "option --" + k.rpartition(".")[2].replace("_", "-"))
        for k, v in options.items()
        if v is not None
    }


def _from_env(env: Mapping[str, str]) -> dict[str, _Given]:
    out = {}
    for name, value in sorted(env.items()):
        if name in _ENV:
            if value:  # empty means unset, as in unit and compose files
                out[_ENV[name]] = _Given(value, f"environment {name}")
        elif name.startswith(PREFIX) and name not in JOB_NAMES | NOTIFY_NAMES | CLIENT_NAMES | {
            CONFIG_NAME
        }:
            _raise_unknown("environment", name, [*_ENV, *CLIENT_NAMES, CONFIG_NAME, *JOB_NAMES])
    return out


def _from_file(path: str, must_exist: bool) -> dict[str, _Given]:
    try:
        with open(path, encoding="utf-8") as f:
            content = f.read()
        data = tomllib.loads(content)
    except FileNotFoundError:
        if must_exist:
            raise Refusal("badConfig", f"configuration file {path} does not exist") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise Refusal("badConfig", f"the configuration file {path} cannot be read: {e}") from None
    lines = _lines(content)
    out = {}
    for name, value in _flatten(data):
        origin = f"{path}:{_line_of(name, lines)}"
        if name not in SETTINGS:
            _raise_unknown(origin, name, SETTINGS)
        out[name] = _Given(value, origin)
    return out


def _flatten(data: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in data.items():
        name = before + key
        if isinstance(value, dict) and name not in SETTINGS:
            yield from _flatten(value, name + ".") if value or name in GROUPS else [(name, value)]
        else:
            yield name, value


def _lines(content: str) -> dict[str, int]:
    """Return the line of each key and table. TOML parsers do not report it."""
    out: dict[str, int] = {}
    table = ""
    for number, line in enumerate(content.splitlines(), 1):
        if m := _TABLE.match(line):
            table = m[1].translate(_BARE)
            out.setdefault(table, number)
            table += "."
        elif m := _ASSIGNMENT.match(line):
            out.setdefault(table + m[1].translate(_BARE), number)
    return out


def _line_of(name: str, lines: Mapping[str, int]) -> int:
    while name and name not in lines:
        name = name.rpartition(".")[0]
    return lines.get(name, 1)


def _raise_unknown(origin: str, name: str, known: Iterable[str]) -> Never:
    known = list(known)
    last_part = [k for k in known if k.rpartition(".")[2] == name.rpartition(".")[2]]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6) or last_part[:1]
    advice = f"did you mean {near[0]!r}?" if near else "'jobscribe config show' lists all settings"
    raise Refusal("badConfig", f"{origin}: unknown setting {ascii(name)[:80]}; {advice}")
