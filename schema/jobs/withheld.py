"""Values of a stored run that look like a secret: found, and replaced by references, so that copies
of its definition have none. Pure.

A value counts if its name says so (`protocol.redaction.is_secret`): a variable, a key, `NAME=value`
or `--name value` in a command, also within the text of a script; or if it belongs to a short option of
a well-known program (`short_options`). Values that a shell or a program
reads at run time (`$NAME`, `$(...)`, `f(x)`) are no secrets.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import BatchRequest
from ...protocol.jobs.roles import TaskRole
from ...protocol.launch.function_call import VARIABLE as CALL_VARIABLE
from ...protocol.redaction import REDACTED, is_secret
from . import short_options

_REFERENCE = re.compile(r"@WITHHELD:([A-Za-z_][A-Za-z0-9_]*)@")
_OPTION = re.compile(r"-{0,2}([A-Za-z_][\w-]{1,127})=(.+)", re.DOTALL)
_FLAG = re.compile(r"--?([A-Za-z][\w-]{0,127})")
#: In texts: password=..., "api_key": "...", Authorization: Bearer ..., --token ...
_IN_TEXT = re.compile(
    r"""(?<!\w)(?P<name>[A-Za-z_][\w-]{1,63}+)(?:\\{0,3}["']?[ \t]?(?:=>|[=:]{1,2})[ \t]?|(?:[ \t]|\\\n)+)"""
    r"""(?:(?:Bearer|Basic|[Tt]oken)[ ]+)?"""
)
#: Values are matched after secret names alone; otherwise long lines of many names would take minutes.
_VALUE = re.compile(r"""(?:"[^"\n]*"|'[^'\n]*'|\\{1,3}"[^"\n]*|[^\s"',;}&|<>]{1,65536})""")
_ADDRESS = re.compile(
    r"(?<!\w)\w{1,20}://(?:[^\s/@'\":$]{0,256}:(?P<value>[^\s/'\"$]{1,512})|(?P<token>[\w.~%-]{20,512}))@"
)
#: API tokens, and tokens of well-known services.
_TOKEN = re.compile(
    r"(?P<value>jst_[A-Za-z0-9]{8}_[A-Za-z0-9_-]{8,}"
    r"|(?<!\w)(?:gh[opsur]_[A-Za-z0-9]{30,255}|github_pat_\w{30,255}|glpat-[\w-]{20,255}"
    r"|hf_[A-Za-z0-9]{30,255}|xox[abeprs]-[\w-]{10,255}|AKIA[0-9A-Z]{16}(?!\w)))",
    re.ASCII,
)
#: Names that are secrets of jobs, in addition to those of `protocol.redaction`.
_ALSO_SECRET = re.compile(
    r"[A-Z0-9_]+_(?:PASS|PWD|PAT)|(?i:(?:[\w-]*[_-])?(?:access|encryption|signing|master)[_-]?key)"
)
#: Commands of functions: code and pickled data.
_PACKED = ("function-call", "function-worker")
_SCHEMES = ("Bearer", "Basic", "Token", "token")
_NUMBER = re.compile(r"[\d.,%]*")
#: A value of this length is withheld wherever it occurs; shorter ones would hide ordinary words.
_EVERYWHERE = 6
#: Options with the path of a file that has the secret.
_FILE = re.compile(r".*(?:file|path|dir|folder)", re.IGNORECASE | re.DOTALL)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


class Withheld(NamedTuple):
    """A value that is not copied. name: of the variable that gives it. where: its place, for a
    person. path: its place in the definition.
    """

    name: str
    where: str
    path: str
    value: str

    @property
    def reference(self) -> str:
        """The text that stands for the value."""
        return f"@WITHHELD:{self.name}@"


class Withholding:
    """Replaces the values of one run by references. `found`: each value once."""

    def __init__(self) -> None:
        self.found: list[Withheld] = []

    def spec(self, spec: RunSpec) -> RunSpec:
        """Return the run with references in its commands, variables and data."""
        once = self._spec(spec)
        # a value may also occur where its name does not
        return self._spec(once) if any(len(w.value) >= _EVERYWHERE for w in self.found) else once

    def line(self, text: str) -> str:
        """Return a line of output or of an explanation without these values and others."""
        for each in self.found:
            if len(each.value) >= _EVERYWHERE:
                text = text.replace(each.value, REDACTED)
        return _REFERENCE.sub(REDACTED, _replaced(text, lambda name, value: REDACTED))

    def _spec(self, spec: RunSpec) -> RunSpec:
        return msgspec.structs.replace(
            spec,
            command=self._words(spec.command, "the command", "command"),
            wrap=self._words(spec.wrap, "the wrapper", "wrap"),
            env=self._env(spec.env, "the environment", "env"),
            data=None if spec.data is None else self._data(spec.data, "data"),
            roles=tuple(map(self._role, spec.roles)),
            batch=self._batch(spec.batch),
            sim_name=self.line(spec.sim_name) if spec.sim_name else spec.sim_name,
        )

    def _batch(self, request: Any) -> Any:
        if not isinstance(request, BatchRequest) or not request.setup:
            return request
        setup = self._text(request.setup, "the setup lines", "batch.setup")
        return msgspec.structs.replace(request, setup=setup)

    def _role(self, role: TaskRole) -> TaskRole:
        whose = f"role {role.name}"
        return msgspec.structs.replace(
            role,
            command=self._words(
                role.command, f"the command of {whose}", f"roles.{role.name}.command"
            ),
            env=self._env(role.env, f"the environment of {whose}", f"roles.{role.name}.env"),
            volumes=tuple(
                self._text(v, f"a volume of {whose}", f"roles.{role.name}.volumes")
                for v in role.volumes
            ),
        )

    def _env(self, env: dict[str, str], where: str, path: str) -> dict[str, str]:
        return {
            name: self._reference(name, f"{name} in {where}", f"{path}.{name}", value)
            if _names_secret(name, value)
            else value
            if name == CALL_VARIABLE
            else self._text(value, f"{name} in {where}", f"{path}.{name}")
            for name, value in env.items()
        }

    def _words(self, words: Sequence[str], where: str, path: str) -> tuple[str, ...]:
        if len(words) > 5 and words[1] == "-c" and words[3] in _PACKED:
            return tuple(words)
        out: list[str] = []
        short = {s.n: s for s in short_options.secrets(words)}
        for n, word in enumerate(words):
            if n in short and not _is_reference(word[short[n].begin :]):
                kept, value = word[: short[n].begin], word[short[n].begin :]
                about = f"the value of {short[n].option} in {where}"
                out.append(kept + self._reference("PASSWORD", about, path, value))
                continue
            flag = _FLAG.fullmatch(words[n - 1]) if n and n - 1 not in short else None
            option = _OPTION.fullmatch(word)
            if flag and _names_secret(flag[1], word) and not word.startswith("-"):
                out.append(self._reference(flag[1], f"--{flag[1]} in {where}", path, word))
            elif option and _names_secret(option[1], option[2]) and "\n" not in word:
                about = f"{option[1]} in {where}"
                kept = word[: len(word) - len(option[2])]
                out.append(kept + self._reference(option[1], about, path, option[2]))
            else:
                out.append(self._text(word, where, path))
        return tuple(out)

    def _data(self, value: Any, path: str, key: str = "") -> Any:
        """Return data of an app. key: the nearest key that sounds secret."""
        if isinstance(value, dict):
            return {
                k: self._data(v, f"{path}.{k}", k if _names_secret(k, v) else key)
                for k, v in value.items()
            }
        if isinstance(value, list):
            return [self._data(v, f"{path}.{n}", key) for n, v in enumerate(value)]
        if not isinstance(value, str):
            return value
        if key and value:
            return self._reference(key, path, path, value)
        return self._text(value, path, path)

    def _text(self, text: str, where: str, path: str) -> str:
        for each in self.found:
            if len(each.value) >= _EVERYWHERE:
                text = text.replace(each.value, each.reference)
        return _replaced(
            text, lambda name, value: self._reference(name, f"{name} in {where}", path, value)
        )

    def _reference(self, name: str, where: str, path: str, value: str) -> str:
        if _REFERENCE.search(value):
            return value
        known = next((w for w in self.found if w.value == value), None)
        if known is not None:
            return known.reference
        plain = _NOT_IN_NAMES.sub("_", name).lstrip("0123456789") or "SECRET"
        if plain.startswith("JOBSCRIBE_"):  # variables of executions
            plain = f"WITHHELD_{plain}"
        taken = {w.name for w in self.found}
        chosen = next(
            n for n in (plain, *(f"{plain}_{i}" for i in range(2, 10_000))) if n not in taken
        )
        self.found.append(Withheld(chosen, where, path, value))
        return self.found[-1].reference


def references(text: str) -> list[str]:
    """Return the names of the values that this text refers to."""
    return _REFERENCE.findall(text)


def with_references(text: str, replace: Callable[[str], str]) -> str:
    """Return the text with each reference replaced. replace: gets the name of the value."""
    return _REFERENCE.sub(lambda m: replace(m[1]), text)


def looks_secret(text: str) -> bool:
    """Return whether the text contains a value that looks like a secret."""
    found: list[str] = []

    def note(name: str, value: str) -> str:
        found.append(name)
        return value

    _replaced(text, note)
    return bool(found)


def is_function_call(words: Sequence[str]) -> bool:
    """Return whether the command calls a Python function. Its words are code and pickled data."""
    return len(words) > 5 and words[1] == "-c" and words[3] == "function-call"


def _names_secret(name: str, value: object) -> bool:
    if _ALSO_SECRET.fullmatch(name) is not None:
        return value is not None and not isinstance(value, bool)
    return is_secret(name, value) and _FILE.fullmatch(name) is None


def _replaced(text: str, replace: Callable[[str, str], str]) -> str:
    """Return the text with replacements of literal secrets. replace(name, value)."""
    text = _TOKEN.sub(lambda m: replace("API_TOKEN", m["value"]), text)
    text = _ADDRESS.sub(lambda m: _address(m, replace), text)
    text = short_options.replaced(text, lambda option, value: _short(value, replace))
    out, at = [], 0
    while (m := _IN_TEXT.search(text, at)) is not None:
        name, end = m["name"], m.end()
        found = _VALUE.match(text, end) if _names_secret(name, "x") else None
        value = found[0] if found else ""
        flag = text[max(0, m.start() - 1) : m.start()] == "-"
        spaced = text[m.end("name") : end].strip(" \t\\\n") == ""
        inner = value.strip("\"'\\")
        literal = bool(inner) and not _is_reference(value) and not _NUMBER.fullmatch(inner)
        if (
            _names_secret(name, inner)
            and literal
            and (flag or not spaced)
            and inner not in _SCHEMES
        ):
            begin = end + value.find(inner)
            out += [text[at:begin], replace(name, inner)]
            at = begin + len(inner)
            continue
        out.append(text[at:end])  # the value may itself be a name
        at = end
    return "".join(out) + text[at:]


def _short(value: str, replace: Callable[[str, str], str]) -> str:
    """Return the value of an option with its secret replaced; its quotes stay."""
    inner = value.strip("\"'")
    if not inner or _is_reference(value):
        return value
    begin = value.find(inner)
    return value[:begin] + replace("PASSWORD", inner) + value[begin + len(inner) :]


def _address(match: re.Match[str], replace: Callable[[str, str], str]) -> str:
    """Return the match with its password, or the token before the host, replaced."""
    part, name = ("value", "PASSWORD") if match["token"] is None else ("token", "TOKEN")
    begin, end = (n - match.start() for n in match.span(part))
    return match[0][:begin] + replace(name, match[part]) + match[0][end:]


def _is_reference(value: str) -> bool:
    """Return whether a program finds the value at run time."""
    if value.startswith("'"):
        return False
    inner = value.strip('"\\')
    if inner.startswith(("$", "%", "{{", "<", "@WITHHELD:")):
        return True
    return not value.startswith('"') and any(c in inner for c in "([")
