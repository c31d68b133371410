"""Pickles objects with cloudpickle, within a limit of bytes."""

import io
import pickle
import types
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from ..api.errors import ClientError

#: File name that cloudpickle puts into code.
_NO_FILE = "<dynamic-code>"


class TooLarge(Exception):
    """The pickle is larger than the limit."""


def load_cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        raise ClientError(
            "notSerializable",
            "functions need the package cloudpickle, which is not installed",
            "pip install 'jobscribe[client]'",
        ) from None
    return cloudpickle


def pickled(value: object, limit: int) -> bytes:
    """Raises TooLarge, and any exception of the objects."""
    target = _Bounded(limit, keep=True)
    _dump(value, target)
    return b"".join(target.pieces)


def pickled_size(value: object, limit: int) -> int:
    """Return the size of the pickle without keeping it. Raises like `pickled`."""
    target = _Bounded(limit, keep=False)
    _dump(value, target)
    return target.size


def _dump(value: object, target: "_Bounded") -> None:
    _pickler()(target, protocol=pickle.HIGHEST_PROTOCOL).dump(value)


@cache
def _pickler() -> Any:
    """Return cloudpickle's class, which reads this table of its class when it is created."""
    pickler = load_cloudpickle().Pickler
    table = pickler.dispatch_table
    own = ChainMap({types.CodeType: partial(_code, table)}, table)
    return type("Pickler", (pickler,), {"dispatch_table": own})


def _code(table: Mapping[type, Callable[[Any], Any]], code: types.CodeType) -> Any:
    """Reduce code as cloudpickle does, but keep its file name for tracebacks."""
    build, parts = table[types.CodeType](code)
    return build, tuple(code.co_filename if part == _NO_FILE else part for part in parts)


class _Bounded(io.RawIOBase):
    """Collects or only counts at most `limit` bytes."""

    def __init__(self, limit: int, *, keep: bool) -> None:
        self._limit, self._keep = limit, keep
        self.size, self.pieces = 0, list[bytes]()

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.size += size
        if self.size > self._limit:
            raise TooLarge
        if self._keep:
            self.pieces.append(bytes(data))
        return size
