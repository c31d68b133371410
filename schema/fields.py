"""Problems of plain data (from JSON or YAML) with their paths, and the text forms of paths, values
and ranges. `structs` finds the problems. Source and file of the data are unknown here.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

#: Maximum number of reported problems; a file with more is probably of another kind.
MAX_PROBLEMS = 1_000
_SHOWN = 60
#: Maximum length of a name that gets a suggestion, and number of comparisons in one pass, because
#: each takes time.
_GUESSED, _GUESSES = 40, 20_000
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_LAST = re.compile(r'(?:\.?[A-Za-z_][A-Za-z0-9_-]*|\[(?:\d+|"[^"\n]*")\])\Z')


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


def quoted(text: str) -> str:
    """Return the text in double quotes, as ASCII, shortened."""
    inner = ascii(text[:_SHOWN])[1:-1].replace("\\'", "'").replace('"', "'")
    return f'"{inner}..."' if len(text) > _SHOWN else f'"{inner}"'


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"
