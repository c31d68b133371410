"""Recovery of executions that an earlier keeper started, from evidence and the process table.

A pid counts only together with its start time and boot. A process that reuses the number is neither
taken for the job nor signalled.
"""

from __future__ import annotations

import fcntl
import os
import time

from ....protocol.execution.table import never_started
from ....runtime import processes
from ....runtime.execution import wait_status
from ....runtime.execution.folder import (
    EXIT,
    SCRIPT,
    SIGNAL,
    START,
    STDERR,
    STOP,
    lock_paths,
    read_json,
)
from ....runtime.execution.keeper_ledger import earlier_exit
from . import exit_info
from .container_log import end_reason
from .earlier_reaper import will_record
from .process_tracker import with_mark
from .state import Execution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ....runtime.execution.keeper_ledger import Entry
    from ....runtime.processes import Process
    from ..linux.cgroups import Cgroups
    from .ledger import KeeperLedger

#: How long to search for the process of a locked execution (seconds): a child between fork and exec
#: shows no mark yet.
_SEARCH_SECS = 0.5


def recover_execution(
    name: str,
    token: str,
    entry: Entry | None,
    layout: KeeperLedger,
    boot_id: str,
    life_id: str,
    cgroups: Cgroups,
) -> Execution:
    """Return the execution of a ledger's entry, or (None) of a forgotten one: ended, running (`pid`
    is alive), or exited and perhaps with processes left. A recorded stop is continued by
    `resume_stop`.
    """
    folder = layout.evidence(name)
    e = Execution(name, token, folder)
    e.own = e.alone = False
    e.life.claimed()
    start = (entry and entry.start) or read_json(f"{folder}/{START}")
    # older versions do not record "life"
    booted = start.get("bootId") if start is not None else entry and entry.boot
    rebooted = booted != boot_id and (start is not None or booted is not None)
    restarted = rebooted or (start is not None and start.get("life", life_id) != life_id)
    if start is not None:
        # after a restart, the recorded monotonic time belongs to another clock
        _take_over(e, start, None if restarted else start.get("startedMono"))
    e.cgroup = cgroups.find(name, (start or {}).get("cgroup"))
    if e.cgroup is not None:
        e.cgroup.thaw()
    final = read_json(f"{folder}/{EXIT}")
    e.recorded = final is not None
    if final is None:
        final = entry.exit if entry is not None else earlier_exit(layout.folder, name)
    if final is not None:
        e.finish(final)
    elif restarted:
        resume_stop(e)
        why = (
            exit_info.RESTARTED
            if rebooted
            else exit_info.container_ended(end_reason(layout.container_log, e.life.started_at))
        )
        e.finish(exit_info.with_final_fields(e, exit_info.from_evidence(e, why), 0))
    elif start is None:
        _search_processes(e, noted=entry is not None)
    elif e.pid is None or e.ticks is None or not processes.alive(e.pid, e.ticks):
        e.life.exited(time.monotonic())
    return e


def resume_stop(e: Execution) -> None:
    """Continue a stop that the earlier keeper recorded."""
    stop = read_json(f"{e.folder}/{STOP}")
    if stop is not None:
        e.life.resume_stop(
            str(stop.get("reason")),
            float(stop.get("grace", e.life.grace)),
            time.monotonic(),
            # older versions do not record whether a signal was sent
            signaled=bool(stop.get("signaled", True)),
        )


def _take_over(e: Execution, start: dict[str, Any], started_mono: float | None) -> None:
    e.pid, e.ticks, e.run_dir = start.get("pid"), start.get("startTicks"), start.get("runDir")
    e.direct = start.get("direct") is True
    e.life.limit, e.life.grace = start.get("limit"), start.get("grace", e.life.grace)
    e.life.started(start.get("startedAt"), started_mono)
    core = start.get("core")
    e.core_limit = core if isinstance(core, int) and core > 0 else 0
    e.oom_counters = start.get("counted") if isinstance(start.get("counted"), dict) else None


def _search_processes(e: Execution, *, noted: bool) -> None:
    """Search the process of a keeper that ended between consuming the token and recording the pid.
    noted: the ledger has the use of the token; else it may have lost the end of the execution, too.
    """
    until = time.monotonic() + _SEARCH_SECS
    found = _find_processes(e)
    while time.monotonic() < until and (_reaper_is_busy() or (not found and _locked(e))):
        time.sleep(0.01)
        found = _find_processes(e)
    seen = wait_status.read(e.folder, None, None)
    if seen is not None:
        _record_main(e, seen.pid, seen.ticks)
        e.life.exited(time.monotonic())
        return
    # its children may be session leaders too: the main process is the oldest
    main = next((p for p in found if p.session == p.pid and _is_main(p.pid, e)), None)
    if main is not None:
        _record_main(e, main.pid, main.ticks)
        return
    # this file is the last one created before the process; it goes after the end is in the ledger
    if found or not noted or os.path.exists(f"{e.folder}/{STDERR}"):
        e.life.exited(time.monotonic())
        return
    resume_stop(e)
    e.finish(never_started(exit_info.NEVER_SPAWNED, time.time(), e.life.stop_reason))


def _record_main(e: Execution, pid: int, ticks: int) -> None:
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    e.record_main(pid, ticks, time.time() - age, time.monotonic() - age)


def _reaper_is_busy() -> bool:
    """Return whether an exit is about to be recorded."""
    return any(p.over and will_record(p) for p in processes.table().values())


def _find_processes(e: Execution) -> list[Process]:
    """Return the processes that carry its mark or are in its cgroup."""
    there = processes.table()
    found = {p.pid: p for p in with_mark(e, there.values())}
    inside = e.cgroup.pids() if e.cgroup is not None else []
    return list(
        (
            found | {pid: there[pid] for pid in inside if pid in there and not there[pid].over}
        ).values()
    )


def _is_main(pid: int, e: Execution) -> bool:
    """Return whether a session leader is the main process. An earlier version runs the script."""
    script = f"{e.folder}/{SCRIPT}"
    if not os.path.exists(f"{e.folder}/{SIGNAL}"):
        return True
    e.direct = False
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read(8192).split(b"\0")[1:2] == [os.fsencode(script)]
    except OSError:
        return False


def _locked(e: Execution) -> bool:
    """Return whether any process still holds its lock."""
    return any(map(_is_locked, lock_paths(e.folder)))


def _is_locked(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
