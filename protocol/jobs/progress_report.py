"""Progress reports of an execution: one line of JSON each, an object with a size limit, because one
message carries hundreds of them.

Jobs write these lines, so their content is untrusted. Standard library only, because the keeper
imports this module.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:  # keeps the keeper's memory small
    from typing import Any

#: Maximum length of one line, in bytes.
LIMIT = 16 * 1024
#: Maximum nesting and number of keys. Reports are part of snapshots, which have limits of their own
#: (see `codec`).
MAX_DEPTH, MAX_KEYS = 6, 64
_INTEGERS = range(-(2**63), 2**64)


def parse(line: bytes) -> dict[str, Any] | None:
    """Return the report in this line, or None if the line is no valid report."""
    if len(line) > LIMIT:
        return None
    try:
        value = json.loads(line, parse_constant=_no_constant)
        return value if find_error(value) is None else None
    except (ValueError, RecursionError):
        return None


def parse_last(tail: bytes, *, from_start: bool) -> dict[str, Any] | None:
    """Return the last valid report among the complete lines in the last bytes of a file.
    from_start: the bytes are the whole file.
    """
    lines = tail.split(b"\n")[:-1]
    if not from_start:
        lines = lines[1:]
    return next((r for r in map(parse, reversed(lines)) if r is not None), None)


def find_error(value: Any) -> str | None:
    """Return a sentence that says why the value is no valid report, or None."""
    if not isinstance(value, dict):
        return "a report must be an object"
    keys = _keys(value, MAX_DEPTH)
    if keys is None:
        return f"a report may be nested at most {MAX_DEPTH} deep, with finite numbers and valid Unicode only"
    if keys > MAX_KEYS:
        return f"a report may have at most {MAX_KEYS} keys, not {keys}"
    return None


def _keys(value: Any, depth: int) -> int | None:
    """Return the number of keys in the value, or None if some part of it cannot be sent."""
    match value:
        case dict() | list() if depth <= 0:
            return None
        case dict():
            own = [0 if _sendable(k) else None for k in value]
            below = [_keys(v, depth - 1) for v in value.values()]
            return _sum([len(value), *own, *below])
        case list():
            return _sum([_keys(v, depth - 1) for v in value])
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
    raise ValueError(f"{name} is not a JSON number")
