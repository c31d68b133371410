"""Rows of the log, each bound to the previous row by a checksum. Pure: no file, no clock.

A row's checksum covers the row and the previous checksum. So the last checksum represents the whole
log. Values read from a file may have any type: verification raises nothing but `Broken`.
"""

import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

from ...protocol.errors import Refusal
from ..events.events import decode
from .contract import Stored

#: Checksum before the first row.
START = bytes(16)
_NUMBERS = struct.Struct(">QQIdIII")


class Row(NamedTuple):
    """One event as stored in the file, in the order of its columns. `body` is the JSON text."""

    position: int
    stream: str
    version: int
    type: str
    schema: int
    at: float
    body: str
    checksum: bytes


class Broken(Exception):
    """The row at `position` was changed, or is missing, in the file."""

    def __init__(self, position: int, what: str) -> None:
        super().__init__(f"position {position}: {what}")
        self.position, self.what = position, what


def link(
    previous: bytes,
    position: int,
    stream: bytes,
    version: int,
    type_: bytes,
    schema: int,
    at: float,
    body: bytes,
) -> bytes:
    """Return the checksum of a row, 16 bytes."""
    numbers = _NUMBERS.pack(position, version, schema, at, len(stream), len(type_), len(body))
    return blake2b(b"".join((previous, numbers, stream, type_, body)), digest_size=16).digest()


def row(
    previous: bytes,
    position: int,
    stream: str,
    version: int,
    type_: str,
    schema: int,
    at: float,
    body: bytes,
) -> Row:
    """Return the row that follows the row with the checksum `previous`."""
    checksum = link(previous, position, stream.encode(), version, type_.encode(), schema, at, body)
    return Row(position, stream, version, type_, schema, at, body.decode(), checksum)


def verified(raw: tuple[Any, ...], previous: Any, expected: int) -> Row:
    """Verify `raw` (columns as `Row`, text as bytes) as the next row, at position `expected` or
    later. Raises Broken.

    Compaction leaves gaps in positions. A row with the right checksum proves that nothing is
    missing before it.
    """
    position, stream, version, type_, schema, at, body, checksum = raw
    try:
        right = link(previous, position, stream, version, type_, schema, at, body)
        row_ = Row(
            position, stream.decode(), version, type_.decode(), schema, at, body.decode(), right
        )
    except (TypeError, AttributeError, ValueError, struct.error, OverflowError):
        raise Broken(
            expected, "a column has the wrong type, or the row before it is missing"
        ) from None
    if right != checksum or position < expected:
        gap = position != expected
        raise Broken(
            expected,
            f"the next row in the log is at position {position!r}"
            if gap
            else "its checksum does not fit",
        )
    return row_


def follow(raws: Iterable[tuple[Any, ...]], previous: Any, after: int) -> Iterator[Row]:
    """Yield the rows after position `after` while each one follows the previous row. Raises Broken
    at the first that does not.
    """
    for raw in raws:
        row_ = verified(raw, previous, after + 1)
        yield row_
        previous, after = row_.checksum, row_.position


def stored(row_: Row) -> Stored:
    """Return the event of a row. Raises Refusal("unknownEvent")."""
    try:
        return Stored(
            row_.position,
            row_.stream,
            row_.version,
            decode(row_.type, row_.schema, row_.body.encode()),
        )
    except Refusal as e:
        raise Refusal(e.code, f"position {row_.position} ({row_.stream}): {e.sentence}") from None
