"""What a bundle is made of, and what could not be had. Names of parts are ours alone: nothing that
a job chose becomes a path.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Kind = Literal["json", "text", "script", "output"]
_ODD = re.compile(r"[^A-Za-z0-9_-]")


class Part(NamedTuple):
    """name: below the bundle's one folder. about: what it is, for the list."""

    name: str
    kind: Kind
    data: bytes
    about: str


class Missing(NamedTuple):
    name: str
    why: str


class Collected:
    """In the order of their importance: when the bundle would be too large, what came last is left
    out.
    """

    def __init__(self, working: Callable[[str], None]) -> None:
        self.parts: list[Part] = []
        self.missing: list[Missing] = []
        #: says what is being done, to somebody who waits
        self.working = working

    def add(self, name: str, kind: Kind, data: bytes, about: str) -> None:
        self.parts.append(Part(name, kind, data, about))

    def add_json(self, name: str, value: Any, about: str) -> None:
        self.add(name, "json", json_bytes(value), about)

    def lacks(self, name: str, why: str) -> None:
        self.missing.append(Missing(name, why))

    def within(self, limit: int) -> None:
        """Leave out what does not fit into so many bytes."""
        kept, used = [], 0
        for part in self.parts:
            if used + len(part.data) > limit:
                self.lacks(
                    part.name,
                    f"left out: with its {len(part.data)} bytes the bundle would be larger than {limit} (--max-size)",
                )
                continue
            used += len(part.data)
            kept.append(part)
        self.parts = kept


def json_bytes(value: Any) -> bytes:
    return (
        json.dumps(value, indent=1, ensure_ascii=False, default=str).encode(
            "utf-8", "backslashreplace"
        )
        + b"\n"
    )


def plain(text: object) -> str:
    """As a part of a file name."""
    return _ODD.sub("_", str(text))[:64] or "_"
