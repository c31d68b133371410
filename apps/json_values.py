"""What an app returns, made plain: what JSON can carry, or a sentence that names the place of what
it cannot.

numpy's arrays and scalars become lists and numbers, where numpy is loaded; it is never imported
here. Nothing is guessed: a set, bytes, a date or NaN are refused, because a page could not tell
them from what they were turned into.
"""

import sys
from collections.abc import Iterable
from math import isfinite
from typing import Any

import msgspec

#: Values nested deeper than this are refused; so is one that contains itself.
MAX_DEPTH = 64
_INTEGERS = range(-(2**63), 2**64)
#: How much of a long path or key is shown.
_SHOWN = 80


class NotPlain(Exception):
    """The text says where in the value the trouble is, and what it is: `plots[0].points[3] is NaN`."""


def encoded(value: Any) -> bytes:
    """The value as JSON. Raises NotPlain."""
    return msgspec.json.encode(plain(value))


def plain(value: Any) -> Any:
    """The same value out of dict, list, str, int, float, bool and None alone; every float is
    finite. Raises NotPlain.
    """
    return _plain(value, "", MAX_DEPTH)


def _plain(value: Any, path: str, room: int) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is float or kind is int:
        return _number(value, path)
    if isinstance(value, str):
        return _text(value, path)
    if room <= 0:
        raise NotPlain(f"{_said(path)} is nested deeper than {MAX_DEPTH}, or contains itself")
    if isinstance(value, dict):
        return {_key(k, path): _plain(v, _below(path, k), room - 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return _sequence(value, path, room)
    return _other(value, path, room)


def _sequence(values: Iterable[Any], path: str, room: int) -> list[Any]:
    out = list(values)
    kinds = {*map(type, out)}
    # most of what is sent is long lists of numbers: nothing is done for each of them here
    if kinds <= {float} and all(map(isfinite, out)):
        return out
    return [_plain(v, f"{path}[{i}]", room - 1) for i, v in enumerate(out)]


def _other(value: Any, path: str, room: int) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        if value.dtype.kind not in "biufUO":
            raise NotPlain(f"{_said(path)} is an array of {value.dtype}")
        known = (
            value.astype(float) if value.dtype.kind == "f" else value
        )  # of 16 bytes there is nothing in JSON
        return _plain(known.tolist(), path, room - 1)
    if numpy is not None and isinstance(value, numpy.generic):
        item = float(value) if isinstance(value, numpy.floating) else value.item()
        return _plain(item, path, room - 1)
    if isinstance(value, int | float):  # of an own kind, such as an IntEnum
        return _number(float(value) if isinstance(value, float) else int(value), path)
    raise NotPlain(f"{_said(path)} is {_a(type(value).__name__)}")


def _number(value: int | float, path: str) -> int | float:
    if isinstance(value, float):
        if not isfinite(value):
            raise NotPlain(f"{_said(path)} is {'NaN' if value != value else 'infinite'}")
    elif value not in _INTEGERS:
        raise NotPlain(f"{_said(path)} is an integer of more than 64 bits")
    return value


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotPlain(f"{_said(path)} is text with half a character in it") from None
    return str.__str__(value)


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise NotPlain(f"{_said(path)} has the key {ascii(key)[:_SHOWN]}, which is not text")
    return _text(key, f"a key of {_said(path)}")


def _below(path: str, key: Any) -> str:
    name = str(key) if str(key).isidentifier() else f"[{ascii(str(key))[:_SHOWN]}]"
    return f"{path}.{name}" if path and not name.startswith("[") else f"{path}{name}"


def _said(path: str) -> str:
    if len(path) > 2 * _SHOWN:
        path = f"{path[:_SHOWN]}...{path[-_SHOWN:]}"
    return path or "the value"


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
