"""Reader of the report of a collection. The job may have written it itself: what does not have the
form of `protocol.jobs.core_report.CoreReport` is left out, so that no report of an end becomes
invalid. Standard library only.
"""

from __future__ import annotations

from ..execution.folder import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

CORES, REPORT = "cores", "cores.json"
#: Most files of one execution.
MOST = 8
#: Time limit of a collection (seconds).
TOTAL_SECS = 40.0
#: As in protocol.jobs.core_report, which needs more than the standard library.
STATES = (
    *("kept", "tooLarge", "diskFull", "notMoved", "hardLimit", "noPattern", "piped"),
    *("notStored", "notWritable", "notFound", "notWritten", "timeout"),
)
NODE_STATES = ("hardLimit", "noPattern", "piped", "systemd", "elsewhere")
_KINDS, _WHY_NO_FRAMES, _TOOLS = (
    ("python", "native"),
    ("noTool", "timeout", "failed"),
    ("pystack", "gdb"),
)
MOST_NODES = 8
_MOST_FRAMES, _CHARS, _PATH_CHARS, _NUMBER = 5, 200, 1024, 2**53


def read_report(folder: str) -> dict[str, Any] | None:
    """Return the report in this evidence; None if there is none. folder: of the execution."""
    found = read_json(f"{folder}/{CORES}/{REPORT}")
    return None if found is None else checked(found)


def checked(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the valid part of a report; None without a state. Pure."""
    state = found.get("state")
    if state not in STATES:
        return None
    out: dict[str, Any] = {
        "state": state,
        "limit": _number(found.get("limit")) or 0,
        "left": _number(found.get("left")) or 0,
        "detail": _text(found.get("detail"), _CHARS),
        "files": [_file(f) for f in _maps(found.get("files"), MOST) if _is_file(f)],
        "frames": [_frame(f) for f in _maps(found.get("frames"), _MOST_FRAMES)],
        "nodes": [
            {"state": n["state"], "names": names, "detail": _text(n.get("detail"), _CHARS) or ""}
            for n in _maps(found.get("nodes"), MOST_NODES)
            if n.get("state") in NODE_STATES and (names := _text(n.get("names"), _CHARS))
        ],
        "tool": found["tool"] if found.get("tool") in _TOOLS else None,
        "noFrames": found["noFrames"] if found.get("noFrames") in _WHY_NO_FRAMES else None,
    }
    return {name: value for name, value in out.items() if value not in (None, [])}


def _is_file(f: Mapping[str, Any]) -> bool:
    name = f.get("name")
    return isinstance(name, str) and 0 < len(name) < 64 and "/" not in name and name.isprintable()


def _file(f: Mapping[str, Any]) -> dict[str, Any]:
    digest = f.get("sha256")
    is_digest = isinstance(digest, str) and len(digest) == 64 and digest.isalnum()
    return {
        "name": f["name"],
        "pid": _number(f.get("pid")),
        "program": _text(f.get("program"), _PATH_CHARS),
        "signal": n if (n := _number(f.get("signal"))) is not None and 0 < n <= 64 else None,
        "size": _number(f.get("size")) or 0,
        "completeBytes": _number(f.get("completeBytes")) or 0,
        "sha256": digest if is_digest else None,
    }


def _frame(f: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": f["kind"] if f.get("kind") in _KINDS else "native",
        "function": _text(f.get("function"), _CHARS) or "?",
        "file": _text(f.get("file"), _CHARS) or "",
        "line": _number(f.get("line")) or 0,
    }


def _maps(value: Any, most: int) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)][:most] if isinstance(value, list) else []


def _number(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _NUMBER else None


def _text(value: Any, most: int) -> str | None:
    """Return one printable line that UTF-8 can represent."""
    if not isinstance(value, str) or not value:
        return None
    return "".join(c if c.isprintable() else " " for c in value[:most])
