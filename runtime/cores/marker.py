"""Facts about core files that the script of an execution recorded on its machine or in its container:
limit, hard limit, and the kernel's pattern. For executors on other machines.
"""

from __future__ import annotations

import contextlib
import os
import re

import msgspec

from ...protocol.jobs.core_report import CoreReport
from ...protocol.jobs.exit_info import signal_number
from ...protocol.launch.job_script import CORE_ERROR, CORE_MARKER
from ..execution.folder import read
from .collector import Request, collect
from .report_file import checked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...protocol.jobs.exit_info import ExitInfo

_BYTES, _LARGEST = 8192, 2**50
#: Markers of the nodes of one execution; nodes whose markers are read.
_NODE, _MOST_NODES = re.compile(rf"{CORE_MARKER}\.[A-Za-z0-9._-]{{1,100}}"), 1_000
#: Clocks of nodes and file servers may differ by this much.
_CLOCK_SECS = 60.0


def read_marker(folder: str) -> dict[str, Any] | None:
    """Return fields of a `collector.Request`; None if the run asked for no core files, or did not
    come to its start. folder: of the execution.
    """
    facts = _facts(folder, CORE_MARKER)
    if facts is None:
        return None
    said = (read(f"{folder}/{CORE_ERROR}", _BYTES) or b"").decode("utf-8", "replace").strip()
    return {**facts, "folder": folder, "nodes": _nodes(folder), "systemdError": said[-150:]}


def _nodes(folder: str) -> list[dict[str, Any]]:
    """Return the facts of each node of an execution on several."""
    with contextlib.suppress(OSError):
        names = sorted(filter(_NODE.fullmatch, os.listdir(folder)))[:_MOST_NODES]
        found = ((name, _facts(folder, name)) for name in names)
        return [{**f, "node": name.removeprefix(f"{CORE_MARKER}.")} for name, f in found if f]
    return []


def _facts(folder: str, name: str) -> dict[str, Any] | None:
    lines = (read(f"{folder}/{name}", _BYTES) or b"").decode("utf-8", "replace").split("\n")
    if len(lines) != 5 or not lines[0].isdecimal() or not 0 < int(lines[0][:20]) <= _LARGEST:
        return None
    return {
        "limit": int(lines[0]),
        "hardLimit": 0 if lines[1] == "0" else None,
        "usesPid": lines[2] not in ("", "0"),
        "pattern": lines[3],
    }


def report_of(
    folder: str, run_dir: str, exit_: ExitInfo, *, base: str | None = None, frames: bool
) -> CoreReport | msgspec.UnsetType:
    """Collect the core files of an execution that has ended elsewhere, if it asked for them.

    base, frames: see `collector.Request`. Blocks. Raises OSError.
    """
    fields = read_marker(folder)
    if fields is None or exit_.source in ("start", "lost") or exit_.stop_reason is not None:
        return msgspec.UNSET
    number = signal_number(exit_.code, exit_.signal)
    more = {
        "runDir": run_dir,
        "since": (exit_.started_at or 0.0) - _CLOCK_SECS,
        "signal": number,
        "dumped": exit_.core_dumped,
        "base": base,
        "frames": frames,
    }
    found = collect(Request({**fields, **more}))
    valid = None if found is None else checked(found)
    return msgspec.UNSET if valid is None else msgspec.convert(valid, CoreReport)
