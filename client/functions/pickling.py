"""Pickles objects with cloudpickle, within a limit of bytes."""

import io
import pickle
from typing import Any

from ..api.errors import ClientError


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
    load_cloudpickle().dump(value, target, protocol=pickle.HIGHEST_PROTOCOL)
    return b"".join(target.pieces)


def pickled_size(value: object, limit: int) -> int:
    """Return the size of the pickle without keeping it. Raises like `pickled`."""
    target = _Bounded(limit, keep=False)
    load_cloudpickle().dump(value, target, protocol=pickle.HIGHEST_PROTOCOL)
    return target.size


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
