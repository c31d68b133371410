"""Parts of a bundle, and missing parts. A part's name never contains unchecked text of a job."""

import json
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Kind = Literal["json", "text", "script", "output"]
_ODD = re.compile(r"[^A-Za-z0-9_-]")


class Part(NamedTuple):
    """One file of a bundle. name: path in the bundle's folder. about: its description."""

    name: str
    kind: Kind
    data: bytes
    about: str


class Missing(NamedTuple):
    name: str
    why: str


class Collected:
    """Parts in order of importance. If the bundle is too large, the last parts are omitted."""

    def __init__(self, working: Callable[[str], None]) -> None:
        self.parts: list[Part] = []
        self.missing: list[Missing] = []
        #: Reports the current step to the user.
        self.working = working

    def add(self, name: str, kind: Kind, data: bytes, about: str) -> None:
        self.parts.append(Part(name, kind, data, about))

    def add_json(self, name: str, value: Any, about: str) -> None:
        self.add(name, "json", json_bytes(value), about)

    def lacks(self, name: str, why: str) -> None:
        self.missing.append(Missing(name, why))

    def limit_size(self, limit: int) -> None:
        """Omit the parts that do not fit into `limit` bytes."""
        kept, used = [], 0
        for part in self.parts:
            if used + len(part.data) > limit:
                self.lacks(
                    part.name,
                    f"omitted: with its {len(part.data)} bytes the bundle would exceed {limit} (--max-size)",
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
    """Return the text as part of a file name: letters, digits, _ and -, at most 64 characters."""
    return _ODD.sub("_", str(text))[:64] or "_"
