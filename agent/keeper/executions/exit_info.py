"""Exit info of executions, as protocol.exits.ExitInfo (camelCase, as stored and sent).

Sources in order: this keeper, if it is the parent; the reaper of an earlier keeper; for an
execution of an earlier version, the code that its script wrote. If all are missing, the exit status
is lost.
"""

from __future__ import annotations

import os
import re
import time

from ....runtime.execution import wait_status
from ....runtime.execution.folder import (
    EXIT_CODE,
    STDERR,
    STDOUT,
    add_messages,
    from_code,
    written_code,
)
from ..linux.child_usage import read_usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ....runtime.execution.wait_status import WaitStatus
    from .state import Execution

#: The last known peak memory of this process (bytes): it never falls.
_peak = 0
#: A keeper that notices an end within this time (seconds) records the moment of noticing.
_LATE_SECS = 1.0
RESTARTED = "the machine was restarted while it ran"
CONTAINER_ENDED = "its container ended while it ran"
KILLED_UNSEEN = (
    "it ended while neither a keeper nor a reaper was its parent; its exit status is lost"
)
NOTHING_LEFT = "the keeper was killed while it started the execution, and no process of it is left"
TAKEN_OVER = (
    "its keeper was killed while it ran; another keeper took over, and the reaper recorded the exit"
)
NEVER_SPAWNED = "the keeper was killed before it started the execution"


def from_parent(e: Execution) -> dict[str, Any]:
    """Return the exit info of an ended child, which is not reaped yet."""
    assert e.main_seen is not None and e.pid is not None
    out, usage = _seen_exit(e, e.main_seen), read_usage(e.pid)
    out |= {"userSecs": round(usage.user_secs, 6), "systemSecs": round(usage.system_secs, 6)}
    # a spawned process starts with the peak of the keeper, which hides a lower peak of its own
    if usage.peak_bytes > _peak and usage.peak_bytes > _own_peak():
        out["maxRssBytes"] = usage.peak_bytes
    return out


def _seen_exit(e: Execution, seen: os.waitid_result) -> dict[str, Any]:
    out: dict[str, Any] = {"source": "keeper", "startedAt": e.life.started_at}
    return out | wait_status.exit_fields(wait_status.from_waitid(seen))


def _own_peak() -> int:
    """Return the peak memory of this process in bytes, or 0 if the kernel does not report it."""
    global _peak
    try:
        with open("/proc/self/status", "rb") as f:
            found = re.search(rb"(?m)^VmHWM:\s*(\d+) kB", f.read(8192))
    except OSError:
        return 0
    _peak = int(found[1]) * 1024 if found is not None else 0
    return _peak


def from_ended_main(e: Execution) -> dict[str, Any] | None:
    """Return the exit info of an ended main process while other processes of the execution remain.

    Returns None if the exit status is lost.
    """
    out = from_evidence(e, "") if e.main_seen is None else _seen_exit(e, e.main_seen)
    return (
        None
        if out["source"] == "lost"
        else {"endedAt": _ended_at(e)} | out | {"stopReason": e.life.stop_reason}
    )


def from_evidence(e: Execution, otherwise: str) -> dict[str, Any]:
    """Return the exit info of an execution whose keeper is gone, from its evidence, or "lost" with
    `otherwise` as its detail.
    """
    seen = wait_status.read(e.folder, e.pid, e.ticks) if e.direct else None
    if seen is not None:
        return {
            "source": "keeper",
            "startedAt": e.life.started_at,
            "endedAt": _recorded_end(e, seen),
            "detail": TAKEN_OVER,
            **seen.exit_fields(),
            **seen.cpu,
        }
    if not e.direct:
        return _from_script(e, otherwise)
    return {"source": "lost", "startedAt": e.life.started_at, "detail": otherwise}


def _recorded_end(e: Execution, seen: WaitStatus) -> float:
    """Return the end time by the wall clock of the start, if its monotonic time is known."""
    if e.life.started_at is None or e.life.started_mono is None:
        return min(seen.at, time.time())
    return e.life.started_at + max(0.0, min(seen.mono, time.monotonic()) - e.life.started_mono)


def _from_script(e: Execution, otherwise: str) -> dict[str, Any]:
    """Return the exit info of an execution of an earlier version: the code that its script wrote."""
    out: dict[str, Any] = {"source": "script", "startedAt": e.life.started_at}
    written = written_code(e.folder)
    if written is not None:
        out |= from_code(e.folder, written)
        try:
            # file times come from a coarser clock: a short job would end before it started
            out["endedAt"] = max(
                min(os.stat(f"{e.folder}/{EXIT_CODE}").st_mtime, time.time()),
                e.life.started_at or 0.0,
            )
        except OSError as error:
            out["detail"] = f"end time unknown: {error.strerror}"
        return out
    return {"source": "lost", "startedAt": e.life.started_at, "detail": otherwise}


def container_ended(why: str | None) -> str:
    """Return the detail for an ended container. why: the driver's sentence, or None."""
    return CONTAINER_ENDED + (f": {why}" if why else "")


def with_final_fields(e: Execution, exit_: dict[str, Any], dropped_bytes: int) -> dict[str, Any]:
    """Add the fields that are final only when no process of the execution is left."""
    out = (
        {"endedAt": _ended_at(e)}
        | exit_
        | {
            "stopReason": e.life.stop_reason,
            "survivorsKilled": len(e.survivors),
            "stdoutBytes": e.sizes.get(STDOUT),
            "stderrBytes": e.sizes.get(STDERR),
            "droppedBytes": dropped_bytes,
        }
    )
    return add_messages(e.folder, out)


def exited_mono(e: Execution, since: float) -> float:
    """Return the monotonic time at which the main process, found ended just now, has ended.

    since: a time at which it still ran. A keeper that was stopped or starved notices late; then the
    reaper's record, or the age of the exit code's file, gives the time, limited to `since` and now.
    """
    now = time.monotonic()
    if now - since < _LATE_SECS:
        return now
    if (seen := wait_status.read(e.folder, e.pid, e.ticks)) is not None:
        ended = seen.mono
    elif e.direct:
        return now
    else:
        try:
            ended = now - (time.time() - os.stat(f"{e.folder}/{EXIT_CODE}").st_mtime)
        except OSError:
            return now
    return min(now, max(since, e.life.started_mono or since, ended))


def _ended_at(e: Execution) -> float:
    """Return the end time by the wall clock of the start, so that a clock change does not alter the
    duration.
    """
    life = e.life
    if life.started_at is None or life.started_mono is None:
        return time.time()
    exited = time.monotonic() if life.exited_mono is None else life.exited_mono
    return life.started_at + max(0.0, exited - life.started_mono)
