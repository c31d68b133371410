"""Columns of rows as PostgreSQL's text of arrays. Pure.

psycopg converts lists value by value, which costs more than everything else of a commit.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_TEXT: dict[type, Callable[[Any], str]] = {
    str: _quoted,
    int: str,
    bool: lambda value: str(int(value)),
    float: repr,
    bytes: lambda value: '"\\\\x' + value.hex() + '"',
    type(None): lambda _: "NULL",
}


def array(values: Iterable[Any]) -> str:
    """Return the text of an array of these texts, numbers, bytes and Nones."""
    return "{" + ",".join([(_TEXT.get(type(v)) or _derived(v))(v) for v in values]) + "}"


def columns(rows: Sequence[Sequence[Any]], count: int) -> list[str]:
    """Return the `count` columns of these rows, each as the text of an array."""
    return [array(c) for c in zip(*rows, strict=True)] if rows else ["{}"] * count


def _derived(value: Any) -> Callable[[Any], str]:
    """Return the function for a value of a derived type, as an enumeration of texts."""
    return next(f for kind, f in _TEXT.items() if isinstance(value, kind))
