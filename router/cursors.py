"""Positions in several shards as one cursor. Pure.

A cursor that is a number stays one: the digits of a large number are the positions, so it grows with
each of them, as a position does. Another cursor becomes a text.
"""

from typing import Any

import msgspec

from ..protocol.errors import Refusal

_BITS = 56
_DIGIT = (1 << _BITS) - 1
#: In place of a cursor: nothing was read yet; everything was read.
START, END = "", None

Cursor = int | str | None


def packed(positions: list[int]) -> int:
    """Return the number with these positions."""
    return (1 << _BITS * len(positions)) + sum(
        p << _BITS * shard for shard, p in enumerate(positions)
    )


def unpacked(number: int, total: int) -> list[int]:
    """Return the positions of a number that `packed` made. Raises Refusal("badRequest")."""
    if number >> _BITS * total != 1:
        raise _bad()
    return [number >> _BITS * shard & _DIGIT for shard in range(total)]


def text_of(cursors: list[Cursor]) -> str | None:
    """Return one cursor of all shards as a text. None if each shard is at its end."""
    return None if all(c is END for c in cursors) else msgspec.json.encode(cursors).decode()


def cursor_of(cursors: list[Cursor]) -> Cursor:
    """Return one cursor of all shards. None if each shard is at its end. It is a number if theirs are."""
    if all(c is END for c in cursors):
        return END
    if any(isinstance(c, str) and c != START for c in cursors):
        return msgspec.json.encode(cursors).decode()
    return packed([0 if c is END else 1 if isinstance(c, str) else c + 2 for c in cursors])


def cursors_of(cursor: Any, total: int) -> list[Cursor]:
    """Return the cursors of all shards, from that of a request. Raises Refusal("badRequest")."""
    if cursor is None or cursor in ("", 0):
        return [START] * total
    if isinstance(cursor, int):
        values = unpacked(cursor, total)
        return [END if v == 0 else START if v == 1 else v - 2 for v in values]
    try:
        found: list[Cursor] = msgspec.json.decode(str(cursor), type=list[int | str | None])
    except msgspec.DecodeError:
        raise _bad() from None
    if len(found) != total:
        raise _bad()
    return found


def _bad() -> Refusal:
    return Refusal(
        "badRequest",
        "the cursor is not one of this site: it must be `next` or the position of the previous answer",
    )
