"""How an execution ended, in the words of protocol.exits.ExitInfo (camelCase, as it is stored and sent).

Who knows best speaks: the parent that waited for the process; else what the script wrote; else nobody, which is said.
"""

from __future__ import annotations

import os
import time

from .layout import EXIT_CODE, MESSAGE, MESSAGE_BYTES, REPORT, SIGNAL, STDERR, STDOUT, last_lines, last_report, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .execution import Execution

#: Shells report these two as 128+n without a word.
_SILENT_SIGNALS = (2, 13)

RESTARTED = "the machine was restarted while it ran"
KILLED_UNSEEN = "its script was killed while no keeper was its parent, so nobody knows how its command ended"
NOTHING_LEFT = "the keeper was killed while it was starting it, and nothing of it is left"
NEVER_SPAWNED = "the keeper was killed before it had started it"
NEVER_TO_START = "stopped before it started"


def from_parent(e: Execution) -> dict[str, Any]:
    """The exit of a main process that this keeper waited for."""
    assert e.main_status is not None
    status, usage = e.main_status
    out: dict[str, Any] = {"source": "keeper", "startedAt": e.started_at}
    written = _written(e)
    if os.WIFSIGNALED(status) and written is not None:  # the command had ended before its shell was hit
        out |= _from_code(e, written)
    elif os.WIFSIGNALED(status):
        out |= {"signal": os.WTERMSIG(status), "coreDumped": os.WCOREDUMP(status)}
    else:
        out |= _from_code(e, os.WEXITSTATUS(status))
    return out | {
        "userSecs": round(usage.ru_utime, 6), "systemSecs": round(usage.ru_stime, 6), "maxRssBytes": usage.ru_maxrss * 1024,
    }


def from_evidence(e: Execution, otherwise: str) -> dict[str, Any]:
    """The exit of an execution whose parent is gone: what its script wrote, else lost, with this detail."""
    out: dict[str, Any] = {"source": "script", "startedAt": e.started_at}
    written = _written(e)
    if written is not None:
        out |= _from_code(e, written)
        try:
            # files are stamped by a coarser clock: a short job would end before it started
            out["endedAt"] = max(os.stat(f"{e.folder}/{EXIT_CODE}").st_mtime, e.started_at or 0.0)
        except OSError as error:
            out["detail"] = f"the time of its end is not known: {error.strerror}"
        return out
    return {"source": "lost", "startedAt": e.started_at, "detail": otherwise}


def never(detail: str, stop_reason: str | None = None, fault: str | None = None) -> dict[str, Any]:
    """The end of an execution that never began. fault: what was missing, in a word."""
    return {"source": "start", "detail": detail, "stopReason": stop_reason, "endedAt": time.time(), "fault": fault}


def with_evidence(e: Execution, exit_: dict[str, Any], dropped_bytes: int) -> dict[str, Any]:
    """Add what only can be said when nothing of it runs any more."""
    out = {"endedAt": _ended_at(e)} | exit_ | {
        "stopReason": e.stop_reason, "survivorsKilled": len(e.survivors), "stdoutBytes": e.sizes.get(STDOUT),
        "stderrBytes": e.sizes.get(STDERR), "droppedBytes": dropped_bytes,
    }
    message = read(f"{e.folder}/{MESSAGE}", MESSAGE_BYTES)
    if message:
        out["terminationMessage"] = message.decode("utf-8", "replace")
    report = last_report(f"{e.folder}/{REPORT}")
    if report is not None:
        out["report"] = report
    if out.get("code") != 0:
        out["lastLines"] = last_lines(f"{e.folder}/{STDERR}") or last_lines(f"{e.folder}/{STDOUT}")
    return out


def _ended_at(e: Execution) -> float:
    """By the wall clock as it was at the start: between the two lies how long it took, though the clock was set meanwhile."""
    if e.started_at is None or e.started_mono is None:
        return time.time()
    return e.started_at + max(0.0, time.monotonic() - e.started_mono)


def _written(e: Execution) -> int | None:
    """The exit code in the script's own hand; without its newline it is half written."""
    text = read(f"{e.folder}/{EXIT_CODE}", 16) or b""
    return int(text) & 255 if text.endswith(b"\n") and text.strip().isdigit() else None


def _from_code(e: Execution, code: int) -> dict[str, Any]:
    """A shell reports signal n as 128+n. Its own words, kept apart from the command's, tell that from an exit with that code."""
    number = code - 128
    if number <= 0 or number > 64:
        return {"code": code}
    words = read(f"{e.folder}/{SIGNAL}", 4096) or b""
    if words or number in _SILENT_SIGNALS:
        return {"signal": number, "coreDumped": b"core dumped" in words}
    return {"code": code}
