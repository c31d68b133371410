"""Converts the return values of apps to plain JSON values, or raises an error that names the
position of an invalid value.

numpy arrays and scalars become lists and numbers if numpy is loaded; it is never imported here.
Nothing is converted silently: sets, bytes, dates and NaN are refused, because a page could not
recognise them afterwards.
"""

import sys
from collections.abc import Iterable
from math import isfinite
from typing import Any

import msgspec

#: Deeper values are refused, and so are values that contain themselves.
MAX_DEPTH = 64
_INTEGERS = range(-(2**63), 2**64)
#: Maximum length of a path or key in a message, in characters.
_SHOWN = 80


class NotPlain(Exception):
    """A value that is not plain JSON data. The text names its position and the problem, such as
    `plots[0].points[3] is NaN`.
    """


def encode(value: Any) -> bytes:
    """Return the value as JSON. Raises NotPlain."""
    return msgspec.json.encode(plain(value))


def plain(value: Any) -> Any:
    """Return the value built only from dict, list, str, int, finite float, bool and None. Raises
    NotPlain.
    """
    return _plain(value, "", MAX_DEPTH)


def _plain(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is float or kind is int:
        return _number(value, path)
    if isinstance(value, str):
        return _text(value, path)
    if depth <= 0:
        raise NotPlain(f"{_show_path(path)} is nested deeper than {MAX_DEPTH}, or contains itself")
    if isinstance(value, dict):
        return {_key(k, path): _plain(v, _child_path(path, k), depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return _sequence(value, path, depth)
    return _other(value, path, depth)


def _sequence(values: Iterable[Any], path: str, depth: int) -> list[Any]:
    out = list(values)
    kinds = {*map(type, out)}
    # Fast path for long lists of numbers, the most frequent values.
    if kinds <= {float} and all(map(isfinite, out)):
        return out
    return [_plain(v, f"{path}[{i}]", depth - 1) for i, v in enumerate(out)]


def _other(value: Any, path: str, depth: int) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        if value.dtype.kind not in "biufUO":
            raise NotPlain(f"{_show_path(path)} is an array of {value.dtype}")
        # JSON has no floats of 16 bytes
        known = value.astype(float) if value.dtype.kind == "f" else value
        return _plain(known.tolist(), path, depth - 1)
    if numpy is not None and isinstance(value, numpy.generic):
        item = float(value) if isinstance(value, numpy.floating) else value.item()
        return _plain(item, path, depth - 1)
    if isinstance(value, int | float):  # a subclass, such as an IntEnum
        return _number(float(value) if isinstance(value, float) else int(value), path)
    raise NotPlain(f"{_show_path(path)} is {_with_article(type(value).__name__)}")


def _number(value: int | float, path: str) -> int | float:
    if isinstance(value, float):
        if not isfinite(value):
            raise NotPlain(f"{_show_path(path)} is {'NaN' if value != value else 'infinite'}")
    elif value not in _INTEGERS:
        raise NotPlain(f"{_show_path(path)} is an integer of more than 64 bits")
    return value


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotPlain(f"{_show_path(path)} is text with half of a surrogate pair") from None
    return str.__str__(value)


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise NotPlain(f"{_show_path(path)} has the key {ascii(key)[:_SHOWN]}, which is not text")
    return _text(key, f"a key of {_show_path(path)}")


def _child_path(path: str, key: Any) -> str:
    name = str(key) if str(key).isidentifier() else f"[{ascii(str(key))[:_SHOWN]}]"
    return f"{path}.{name}" if path and not name.startswith("[") else f"{path}{name}"


def _show_path(path: str) -> str:
    if len(path) > 2 * _SHOWN:
        path = f"{path[:_SHOWN]}...{path[-_SHOWN:]}"
    return path or "the value"


def _with_article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
