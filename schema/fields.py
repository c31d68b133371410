"""Reads plain data (from JSON or YAML) key by key: returns typed values, and collects all errors
with their paths.

Nothing here raises for any data: an error is recorded, and a valid value is returned instead, so
that one pass finds all errors. Source and file of the data are unknown here.
"""

import difflib
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ..protocol import durations

#: Maximum number of reported problems; a file with more is probably of another kind.
MAX_PROBLEMS = 1_000
#: Maximum bytes of one word of a command, and of `NAME=value` in an environment: the limit of the
#: operating system.
MAX_WORD = 128 * 1024 - 1
_SHOWN = 60
#: Maximum length of a name that gets a suggestion, and number of comparisons in one pass, because
#: each takes time.
_GUESSED, _GUESSES = 40, 20_000
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_LAST = re.compile(r'(?:\.?[A-Za-z_][A-Za-z0-9_-]*|\[(?:\d+|"[^"\n]*")\])\Z')
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([A-Za-z]{0,3})")
_MEGABYTES = {
    "": 1.0,
    "k": 2**-10,
    "kb": 2**-10,
    "kib": 2**-10,
    "m": 1,
    "mb": 1,
    "mib": 1,
    "g": 2**10,
    "gb": 2**10,
    "gib": 2**10,
    "t": 2**20,
    "tb": 2**20,
    "tib": 2**20,
}


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An error or a warning. path: its place (`roles.worker.minFailed`, "" for the whole document).
    right: the expected form.

    file, line: its place in the text, if known. unsafe: the error would endanger the site.
    """

    path: str
    problem: str
    right: str
    line: int | None = None
    file: str | None = None
    unsafe: bool = False

    def sentence(self, kind: str = "") -> str:
        """Return one line in the style of compilers. kind: such as `warning`."""
        place = ":".join(
            p for p in (self.file, None if self.line is None else str(self.line)) if p is not None
        )
        return ": ".join(
            p for p in (place, kind, self.path, f"{self.problem}; right: {self.right}") if p
        )


class InvalidValue(Exception):
    """A value does not have the required form; the text names that form: `must be ...`."""


class InvalidDocument(Exception):
    """The document is invalid. Has all errors and warnings."""

    def __init__(self, problems: Sequence[Problem], warnings: Sequence[Problem] = ()) -> None:
        self.problems, self.warnings = tuple(problems), tuple(warnings)
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        first = self.problems[0]
        self.sentence = f"the description is not valid: {first.path + ': ' if first.path else ''}{first.problem}{more}"
        super().__init__(self.sentence)


class Findings:
    """Errors, which make the data unusable, and warnings."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._more = 0
        self._guesses = _GUESSES

    @property
    def full(self) -> bool:
        return len(self.problems) >= MAX_PROBLEMS

    @property
    def count(self) -> int:
        """Return the number of all errors, including those beyond the limit."""
        return len(self.problems) + self._more

    def error(self, path: str, problem: str, right: str, *, unsafe: bool = False) -> None:
        if self.full:
            self._more += 1
        else:
            self.problems.append(Problem(path=path, problem=problem, right=right, unsafe=unsafe))

    def has_error(self, path: str) -> bool:
        """Return whether there is an error at this path or below it."""
        below = (f"{path}.", f"{path}[")
        return any(p.path == path or p.path.startswith(below) for p in self.problems)

    def warning(self, path: str, problem: str, right: str) -> None:
        if len(self.warnings) < MAX_PROBLEMS:
            self.warnings.append(Problem(path=path, problem=problem, right=right))

    def nearest(self, word: str, known: Mapping[str, Sequence[str]]) -> str | None:
        """Return the known name that was probably meant. known: each name with its aliases."""
        self._guesses -= len(known)
        if len(word) > _GUESSED or self._guesses < 0:
            return None
        names = {
            alias.lower(): name for name, aliases in known.items() for alias in (*aliases, name)
        }
        hits = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
        return names[hits[0]] if hits else None

    def check(self) -> None:
        """Raise InvalidDocument if there is an error."""
        if self._more:
            self.problems.append(
                Problem(
                    path="",
                    problem=f"{self._more} more problems are not shown",
                    right="fix these first",
                )
            )
        if self.problems:
            raise InvalidDocument(self.problems, self.warnings)


class Bounds(NamedTuple):
    """Range of a number. low: minimum; with `above`, the value must be greater."""

    low: float
    high: float
    above: bool = False

    def hold(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def text(self) -> str:
        return (
            f"more than {self.low:g}, at most {_figure(self.high)}"
            if self.above
            else f"{self.low:g} to {_figure(self.high)}"
        )


@functools.cache
def bounds(struct: type[msgspec.Struct], name: str) -> Bounds:
    """Return the range of this numeric field, from its type."""
    info: Any = msgspec.inspect.type_info(struct)
    type_: Any = next(f.type for f in info.fields if f.name == name)
    for t in getattr(type_, "types", (type_,)):
        if isinstance(t, msgspec.inspect.IntType | msgspec.inspect.FloatType):
            low, above = (t.ge, False) if t.ge is not None else (t.gt, True)
            if low is not None and t.le is not None:
                return Bounds(low, t.le, above)
    raise TypeError(f"{struct.__name__}.{name} is not a number with two limits")


def range_text(metas: Sequence[msgspec.Meta], least: str, most: str) -> str:
    """Return the range that these attributes of the constraints give as text; "" for none."""
    low, high = _first(metas, least), _first(metas, most)
    if (beyond := _first(metas, "gt")) is not None:
        return f"more than {beyond:g}" + ("" if high is None else f", at most {_figure(high)}")
    if low is None:
        return "" if high is None else f"at most {_figure(high)}"
    return f"at least {_figure(low)}" if high is None else f"{_figure(low)} to {_figure(high)}"


def _first(metas: Sequence[msgspec.Meta], name: str) -> float | None:
    return next((v for m in metas if (v := getattr(m, name)) is not None), None)


def fits(value: str, shape: Any) -> bool:
    """Return whether this text has the shape (a type of `ids`)."""
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return False
    return True


def member(path: str, key: str) -> str:
    """Return the path of a key of the object at `path`."""
    if not _PLAIN.fullmatch(key):
        return f"{path}[{quoted(key)}]"
    return f"{path}.{key}" if path else key


def element(path: str, n: int) -> str:
    """Return the path of an element of the list at `path`."""
    return f"{path}[{n}]"


def above(path: str) -> str:
    """Return the path of the object or list that contains `path`."""
    return _LAST.sub("", path) if path else ""


def shown(value: object) -> str:
    """Describe a value for a person: short and printable."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if -(2**63) <= value < 2**64 else "a number of more than 64 bits"
        case float():
            return repr(value)
        case str():
            return f"the text {quoted(value)}"
        case dict():
            return "an object" if value else "an empty object"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return "something that is neither text nor number, list or object"


class Table:
    """The keys of one object. known: allowed keys with their aliases. A key with the value `None`
    counts as missing.
    """

    def __init__(
        self,
        data: object,
        path: str,
        findings: Findings,
        known: Mapping[str, Sequence[str]],
        what: str,
    ) -> None:
        self.where, self.findings = path, findings
        self._data: dict[Any, Any] = data if isinstance(data, dict) else {}
        if not isinstance(data, dict):
            findings.error(
                path,
                f"it is {shown(data)}",
                f"{what}: an object, with keys such as {next(iter(known))}",
            )
        for key in self._data:
            if not isinstance(key, str):
                findings.error(path, f"a key is {shown(key)}", "keys are texts; put it in quotes")
            elif key not in known:
                near = findings.nearest(key, known)
                findings.error(
                    member(path, key),
                    "unknown key",
                    f"`{near}`" if near else f"{what} has {listed(list(known))}",
                )

    def raw(self, key: str) -> object:
        return self._data.get(key)

    def has(self, key: str) -> bool:
        return self._data.get(key) is not None

    def null(self, key: str) -> bool:
        """Return whether the key exists with the value null."""
        return key in self._data and self._data[key] is None

    def path(self, key: str) -> str:
        return member(self.where, key)

    def error(self, key: str, right: str, problem: str = "") -> None:
        self.findings.error(self.path(key), problem or f"it is {shown(self.raw(key))}", right)

    def whole(self, key: str, limits: Bounds, default: int) -> int:
        """Return a whole number."""
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and limits.hold(value):
            return value
        self.error(
            key,
            f"a whole number, {limits.text()}"
            + (", without quotes" if isinstance(value, str) else ""),
        )
        return default

    def secs(self, key: str, limits: Bounds, default: float | None) -> float | None:
        """Return a time in seconds, from a number or a text that `durations` reads."""
        return self._amount(key, limits, durations.seconds, durations.FORM, default)

    def megabytes(self, key: str, limits: Bounds, default: int) -> int:
        """Return whole MB (2**20 bytes), rounded up, from a number of MB or a text such as 2GB."""
        amount = self._amount(
            key,
            limits,
            _megabytes,
            "MB as a number, or a text such as '512MB' or '2GB'",
            default,
            whole=True,
        )
        return default if amount is None else int(amount)

    def text(self, key: str, shape: Any, right: str) -> str | None:
        value = self.raw(key)
        if value is None or (isinstance(value, str) and fits(value, shape)):
            return value
        self.error(key, right + (f"; put it in quotes: '{value}'" if _is_whole(value) else ""))
        return None

    def choice(self, key: str, options: Sequence[str], default: str) -> str:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, str) and value in options:
            return value
        self.error(key, "one of " + ", ".join(options))
        return default

    def table(self, key: str, known: Mapping[str, Sequence[str]], what: str) -> "Table":
        """Return the object of this key; an empty one if it is missing."""
        return Table(
            {} if self.raw(key) is None else self.raw(key),
            self.path(key),
            self.findings,
            known,
            what,
        )

    def entries(self, key: str, what: str) -> list[tuple[str, object, str]]:
        """Return (name, value, path) for each key of an object, in order."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, dict):
            self.error(key, what)
            return []
        path = self.path(key)
        for name in value:
            if not isinstance(name, str):
                self.findings.error(
                    path, f"a key is {shown(name)}", "keys are texts; put it in quotes"
                )
        return [(name, v, member(path, name)) for name, v in value.items() if isinstance(name, str)]

    def elements(self, key: str, what: str) -> list[tuple[object, str]]:
        """Return (value, path) for each element of a list."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            self.error(key, what)
            return []
        return [(v, element(self.path(key), n)) for n, v in enumerate(value)]

    def _amount(
        self,
        key: str,
        limits: Bounds,
        read: Callable[[str], float | None],
        right: str,
        default: float | None,
        *,
        whole: bool = False,
    ) -> float | None:
        value = self.raw(key)
        if value is None:
            return default
        amount = math.nan
        if isinstance(value, int | float) and not isinstance(value, bool):
            amount = float(value) if abs(value) < 2**64 else math.inf
        elif isinstance(value, str) and (number := read(value)) is not None:
            amount = number
        if whole and math.isfinite(amount):
            amount = math.ceil(amount)
        if limits.hold(amount):
            return amount
        self.error(key, f"{right}, {limits.text()}")
        return default


def _megabytes(text: str) -> float | None:
    match = _AMOUNT.fullmatch(text)
    unit = _MEGABYTES.get(match[2].lower()) if match else None
    return None if match is None or unit is None else float(match[1]) * unit


def word(findings: Findings, path: str, value: object) -> str:
    """Return a word of a command or the value of a variable, from a text or a whole number."""
    if _is_whole(value):
        return str(value)
    if not isinstance(value, str):
        how = f"; put it in quotes: '{shown(value)}'" if isinstance(value, bool | float) else ""
        findings.error(path, f"it is {shown(value)}", f"a text{how}")
        return ""
    if "\0" in value:
        findings.error(path, "it contains a NUL", "a text without NUL; programs cannot receive one")
    elif not value.isascii() and not _is_unicode(value):
        findings.error(
            path,
            "it contains half of a character (a lone surrogate)",
            "a text in valid Unicode",
        )
    elif len(value) > MAX_WORD or len(value.encode()) > MAX_WORD:
        findings.error(
            path,
            f"it has {len(value)} characters",
            f"at most {MAX_WORD} bytes; put longer data into a file",
        )
    else:
        return value
    return ""


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quoted(text: str) -> str:
    """Return the text in double quotes, as ASCII, shortened."""
    inner = ascii(text[:_SHOWN])[1:-1].replace("\\'", "'").replace('"', "'")
    return f'"{inner}..."' if len(text) > _SHOWN else f'"{inner}"'


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"
