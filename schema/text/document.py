"""A tree of plain data, built value by value by a parser of any notation. Limits size and depth,
rejects duplicate keys, and knows the line of each path.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ..fields import MAX_PROBLEMS, InvalidDocument, Problem, above, element, member, quoted

#: Limits: every file needs less depth, and no file written by a person has more values.
MAX_DEPTH, MAX_VALUES = 16, 50_000
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DIGITS = 20


class Tree:
    """Parsers call `begin`, `key`, `value` and `end` in the order of the text. name: of the text,
    for problems. `error` records a problem and continues; `stop` raises.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.data: Any = None
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []
        self._values = 0
        #: open containers, each with its path
        self._open: list[tuple[dict[str, Any] | list[Any], str]] = []
        #: in the innermost object: the key of the next value, and whether the key is a duplicate
        self._key: str | None = None
        self._again = False

    @property
    def depth(self) -> int:
        return len(self._open)

    @property
    def in_object(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1][0], dict)

    @property
    def wants_key(self) -> bool:
        return self.in_object and self._key is None

    def begin(self, container: dict[str, Any] | list[Any], line: int) -> None:
        """Open an empty object or list; values until `end` go into it."""
        path = self._put(container, line)
        if len(self._open) == MAX_DEPTH:
            self.stop(
                line,
                f"it has more than {MAX_DEPTH} levels of nesting",
                "less depth",
            )
        self._open.append((container, path))

    def key(self, key: str, line: int) -> None:
        container, path = self._open[-1]
        here = member(path, key)
        self._key, self._again = key, key in container
        if self._again:
            self.error(
                line,
                f"{quoted(key)} occurs twice, first in line {self.lines.get(here)}",
                "each key once",
                here,
            )
        self.lines.setdefault(here, line)

    def value(self, value: str | int | float | bool | None, line: int) -> None:
        self._put(value, line)

    def end(self) -> None:
        self._open.pop()

    def number(self, text: str, line: int) -> int | float | None:
        """Return the number as JSON reads it; None if the text is not a JSON number."""
        match = _NUMBER.fullmatch(text)
        if match is None:
            return None
        if match[1] is None and match[2] is None:
            return int(text) if len(text) <= _DIGITS else self._too_large(line)
        value = float(text)
        return value if math.isfinite(value) else self._too_large(line)

    def error(self, line: int, problem: str, right: str, path: str = "") -> None:
        self.problems.append(
            Problem(path=path, problem=problem, right=right, line=line, file=self.name)
        )
        if len(self.problems) >= MAX_PROBLEMS:
            self.stop(line, "too many problems", "fix these first")

    def stop(self, line: int | None, problem: str, right: str) -> None:
        """Record a problem that ends the reading. Raises InvalidDocument."""
        self.problems.append(
            Problem(path="", problem=problem, right=right, line=line, file=self.name)
        )
        self.check()

    def check(self) -> None:
        """Raise InvalidDocument if there is a problem."""
        if self.problems:
            raise InvalidDocument(self.problems)

    def located(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return the problems with file and line, in the order of the text. A missing value gets
        the line of its parent.
        """
        placed = [
            msgspec.structs.replace(p, file=self.name, line=self._line(p.path)) for p in problems
        ]
        return sorted(placed, key=lambda p: p.line or 0)

    def _line(self, path: str) -> int | None:
        while path not in self.lines and path:
            path = above(path)
        return self.lines.get(path)

    def _put(self, value: Any, line: int) -> str:
        """Add a value and return its path."""
        self._values += 1
        if self._values > MAX_VALUES:
            self.stop(line, f"there are more than {MAX_VALUES} values", "several files")
        if not self._open:
            self.data = value
            self.lines[""] = line
            return ""
        container, path = self._open[-1]
        if isinstance(container, list):
            here = element(path, len(container))
            self.lines.setdefault(here, line)
            container.append(value)
            return here
        assert self._key is not None
        here = member(path, self._key)
        if not self._again:
            container[self._key] = value
        self._key = None
        return here

    def _too_large(self, line: int) -> int:
        self.error(
            line, "it is a number of more than 64 bits", "a smaller number, or a text in quotes"
        )
        return 0
