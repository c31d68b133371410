"""What a report of an execution may be: one line of JSON, an object, small enough to go with
hundreds of others in a message.

Jobs write these lines themselves, so whatever is in them is a stranger's. Standard library only:
the keeper reads them, too.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:  # a keeper does without what it does not need
    from typing import Any

#: Bytes of one line.
LIMIT = 16 * 1024
#: Reports travel inside snapshots, which have limits of their own (see `codec`): levels and keys,
#: all of them together.
MAX_DEPTH, MAX_KEYS = 6, 64
_INTEGERS = range(-(2**63), 2**64)


def parsed(line: bytes) -> dict[str, Any] | None:
    """The report in this line; None where it is none."""
    if len(line) > LIMIT:
        return None
    try:
        value = json.loads(line, parse_constant=_no_constant)
        return value if wrong(value) is None else None
    except (ValueError, RecursionError):
        return None


def newest(tail: bytes, *, from_start: bool) -> dict[str, Any] | None:
    """The last report among the whole lines of a file's last bytes. from_start: these bytes are the
    whole file.
    """
    lines = tail.split(b"\n")[:-1]
    if not from_start:
        lines = lines[1:]
    return next((r for r in map(parsed, reversed(lines)) if r is not None), None)


def wrong(value: Any) -> str | None:
    """Why this is no report, if it is none; a sentence."""
    if not isinstance(value, dict):
        return "a report is an object"
    keys = _keys(value, MAX_DEPTH)
    if keys is None:
        return f"a report is nested at most {MAX_DEPTH} deep, and has only finite numbers and whole texts"
    if keys > MAX_KEYS:
        return f"a report has at most {MAX_KEYS} keys, not {keys}"
    return None


def _keys(value: Any, room: int) -> int | None:
    """How many keys there are in it; None where something in it cannot be sent."""
    match value:
        case dict() | list() if room <= 0:
            return None
        case dict():
            own = [0 if _sendable(k) else None for k in value]
            below = [_keys(v, room - 1) for v in value.values()]
            return _sum([len(value), *own, *below])
        case list():
            return _sum([_keys(v, room - 1) for v in value])
        case _:
            return 0 if _sendable(value) else None


def _sum(numbers: list[int | None]) -> int | None:
    known = [n for n in numbers if n is not None]
    return sum(known) if len(known) == len(numbers) else None


def _sendable(value: Any) -> bool:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return False
    if isinstance(value, float):
        return value - value == 0.0
    return not isinstance(value, int) or value in _INTEGERS


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
