"""The record of an exit for a keeper that was not there, by the reaper, or by the agent of a keeper
that does not answer: `wait-status.json` in the evidence. Standard library only.

    {"pid", "startTicks": of the main process, "status": as wait(2) returns it,
     "userSecs", "systemSecs": CPU time, "at": unix seconds, "mono": monotonic seconds of this boot}

A job may write the file itself, so it counts only when the main process has ended.
"""

from __future__ import annotations

import os
import time

from .folder import read_json, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WAIT_STATUS = "wait-status.json"
#: Start of the process title of a reaper.
REAPER_TITLE = b"jobscribe reaper"
_TICKS_PER_SEC = os.sysconf("SC_CLK_TCK")


class WaitStatus:
    """A recorded exit. at: unix seconds; mono: monotonic seconds of the boot in which it ended."""

    __slots__ = ("at", "cpu", "mono", "pid", "status", "ticks")

    def __init__(self, fields: dict[str, Any]) -> None:
        """Raises KeyError, ValueError or TypeError for a file of another form."""
        self.pid, self.ticks, self.status = (
            int(fields[name]) for name in ("pid", "startTicks", "status")
        )
        self.at, self.mono = float(fields["at"]), float(fields["mono"])
        self.cpu = {name: float(fields[name]) for name in ("userSecs", "systemSecs")}
        os.waitstatus_to_exitcode(self.status)

    def exit_fields(self) -> dict[str, Any]:
        """Return code or signal, with the field names of protocol.jobs.exit_info.ExitInfo."""
        return exit_fields(self.status)


def exit_fields(status: int) -> dict[str, Any]:
    """Return code or signal of a wait status, with the field names of ExitInfo."""
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status), "coreDumped": os.WCOREDUMP(status)}
    return {"code": os.WEXITSTATUS(status)}


def from_waitid(info: os.waitid_result) -> int:
    """Return the result of waitid as a wait status."""
    if info.si_code == os.CLD_EXITED:
        return info.si_status << 8
    return info.si_status | (0x80 if info.si_code == os.CLD_DUMPED else 0)


def of_zombie(pid: int) -> int | None:
    """Return the wait status of another process's child that has ended; None if it is hidden.

    The kernel shows 0 to other users, and a set-user-id program belongs to another one.
    """
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as f:
            lines = f.read().splitlines()
        with open(f"/proc/{pid}/stat", "rb") as f:
            raw = f.read()
    except OSError:
        return None
    own = {"Uid": str(os.geteuid()), "Gid": str(os.getegid())}
    for line in lines:
        name, _, ids = line.partition(":")
        if name in own and set(ids.split()) != {own[name]}:
            return None
    return int(raw[raw.rfind(b")") + 2 :].split()[49])


def write(folder: str, pid: int, ticks: int, status: int, mono: float) -> None:
    """Record the exit of a zombie. mono: monotonic time of its end. Raises OSError."""
    user, system = cpu_secs(pid)
    write_json(
        f"{folder}/{WAIT_STATUS}",
        {
            "pid": pid,
            "startTicks": ticks,
            "status": status,
            "userSecs": user,
            "systemSecs": system,
            "at": time.time() - (time.monotonic() - mono),
            "mono": mono,
        },
    )


def read(folder: str, pid: int | None, ticks: int | None) -> WaitStatus | None:
    """Return the recorded exit of exactly this process; of any if `pid` is None."""
    try:
        found = WaitStatus(read_json(f"{folder}/{WAIT_STATUS}") or {})
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    return found if pid is None or (found.pid, found.ticks) == (pid, ticks) else None


def cpu_secs(pid: int) -> tuple[float, float]:
    """Return user and system time of a process and its reaped children."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            raw = f.read()
        own = [int(word) for word in raw[raw.rfind(b")") + 2 :].split()[11:15]]
    except (OSError, ValueError):
        return 0.0, 0.0
    return (own[0] + own[2]) / _TICKS_PER_SEC, (own[1] + own[3]) / _TICKS_PER_SEC
