"""How an execution ended, in the words of protocol.exits.ExitInfo (camelCase, as it is stored and
sent).

Who knows best speaks: the parent that waited for the process; else what the script wrote; else
nobody, which is said.
"""

from __future__ import annotations

import os
import re
import time

from ....runtime.execution.folder import (
    EXIT_CODE,
    STDERR,
    STDOUT,
    add_messages,
    from_code,
    written_code,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .state import Execution

#: A keeper that noticed an end within this time takes the moment of noticing (seconds).
_LATE_SECS = 1.0
RESTARTED = "the machine was restarted while it ran"
CONTAINER_ENDED = "the container that it ran in ended"
MEMORY_OF_SOME = "memory ran out in its container while it ran beside others; whose process the kernel killed is not known"
KILLED_UNSEEN = (
    "its script was killed while no keeper was its parent, so nobody knows how its command ended"
)
NOTHING_LEFT = "the keeper was killed while it was starting it, and nothing of it is left"
NEVER_SPAWNED = "the keeper was killed before it had started it"
NEVER_TO_START = "stopped before it started"


def from_parent(e: Execution) -> dict[str, Any]:
    """The exit of a main process that this keeper waited for."""
    assert e.main_status is not None
    status, usage = e.main_status
    code = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    out = _of_shell(e, code, os.WTERMSIG(status), os.WCOREDUMP(status))
    out |= {"userSecs": round(usage.ru_utime, 6), "systemSecs": round(usage.ru_stime, 6)}
    # a spawned process begins with the peak of its keeper, and a lower peak of its own cannot be
    # told from that
    if usage.ru_maxrss * 1024 > _own_peak():
        out["maxRssBytes"] = usage.ru_maxrss * 1024
    return out


def _own_peak() -> int:
    """The most memory that this process has had since it began, in bytes; 0 where the kernel does
    not say.
    """
    try:
        with open("/proc/self/status", "rb") as f:
            found = re.search(rb"(?m)^VmHWM:\s*(\d+) kB", f.read(8192))
    except OSError:
        return 0
    return int(found[1]) * 1024 if found is not None else 0


def while_ending(e: Execution) -> dict[str, Any] | None:
    """The exit of a main process that is over, while something of the execution is left. None:
    nobody knows it.
    """
    if e.main_seen is not None:
        code = e.main_seen.si_status if e.main_seen.si_code == os.CLD_EXITED else None
        out = _of_shell(e, code, e.main_seen.si_status, e.main_seen.si_code == os.CLD_DUMPED)
    else:
        out = from_evidence(e, "")
    return (
        None
        if out["source"] == "lost"
        else {"endedAt": _ended_at(e)} | out | {"stopReason": e.stop_reason}
    )


def _of_shell(e: Execution, code: int | None, number: int, dumped: bool) -> dict[str, Any]:
    """code: None where a signal with this number ended the shell."""
    out: dict[str, Any] = {"source": "keeper", "startedAt": e.started_at}
    if code is None:  # the command may have ended before its shell was hit
        code = written_code(e.folder)
    return out | (
        {"signal": number, "coreDumped": dumped} if code is None else from_code(e.folder, code)
    )


def from_evidence(e: Execution, otherwise: str) -> dict[str, Any]:
    """The exit of an execution whose parent is gone: what its script wrote, else lost, with this
    detail.
    """
    out: dict[str, Any] = {"source": "script", "startedAt": e.started_at}
    written = written_code(e.folder)
    if written is not None:
        out |= from_code(e.folder, written)
        try:
            # files are stamped by a coarser clock: a short job would end before it started
            out["endedAt"] = max(
                min(os.stat(f"{e.folder}/{EXIT_CODE}").st_mtime, time.time()), e.started_at or 0.0
            )
        except OSError as error:
            out["detail"] = f"the time of its end is not known: {error.strerror}"
        return out
    return {"source": "lost", "startedAt": e.started_at, "detail": otherwise}


def container_ended(why: str | None) -> str:
    """why: in the words of who saw it; None where nobody said."""
    return CONTAINER_ENDED + (f": {why}" if why else "")


def never(detail: str, stop_reason: str | None = None, fault: str | None = None) -> dict[str, Any]:
    """The end of an execution that never began. fault: what was missing, in a word."""
    return {
        "source": "start",
        "detail": detail,
        "stopReason": stop_reason,
        "endedAt": time.time(),
        "fault": fault,
    }


def with_evidence(e: Execution, exit_: dict[str, Any], dropped_bytes: int) -> dict[str, Any]:
    """Add what only can be said when nothing of it runs any more."""
    out = (
        {"endedAt": _ended_at(e)}
        | exit_
        | {
            "stopReason": e.stop_reason,
            "survivorsKilled": len(e.survivors),
            "stdoutBytes": e.sizes.get(STDOUT),
            "stderrBytes": e.sizes.get(STDERR),
            "droppedBytes": dropped_bytes,
        }
    )
    return add_messages(e.folder, out)


def ended_mono(e: Execution, since: float) -> float:
    """Monotonic time at which its main process ended, noticed just now. since: it had not ended
    then.

    A keeper that was stopped or starved notices late: then the age of the exit code's file says
    when, between `since` and now.
    """
    now = time.monotonic()
    if now - since < _LATE_SECS:
        return now
    try:
        age = time.time() - os.stat(f"{e.folder}/{EXIT_CODE}").st_mtime
    except OSError:
        return now
    return min(now, max(since, e.started_mono or since, now - age))


def _ended_at(e: Execution) -> float:
    """By the wall clock as it was at the start: between the two lies how long it took, though the
    clock was set meanwhile.
    """
    if e.started_at is None or e.started_mono is None:
        return time.time()
    return e.started_at + max(
        0.0, (time.monotonic() if e.ended_mono is None else e.ended_mono) - e.started_mono
    )
