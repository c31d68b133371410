"""Observes the container of a task: running, ended (the exit information is then collected once),
or gone. Decisions are made elsewhere.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ....protocol.execution.lifecycle import TIME_LIMIT
from ....protocol.jobs.core_report import CoreReport
from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.jobs.notices import Notices
from ....runtime.cores import marker
from ....runtime.execution.folder import (
    EXIT_CODE,
    STDERR,
    STDOUT,
    add_messages,
    from_code,
    notices,
    read,
    written_code,
)
from ....runtime.execution.output_limit import OutputCap
from ..containers import exit_status
from ..host.container_calls import inspect
from ..host.engine import HostEngine
from .init_script import LIMIT_MARK, SURVIVORS
from .state import TaskState

#: The kernel's upper limit of process ids.
_MOST = 2**22
#: The pid of a task that ended before it was inspected: its pid inside its container.
_UNSEEN_PID = 1


class ContainerObserver:
    """Reports changes of containers. on_running(task): the task runs. on_ended(task, exit): it has
    ended.
    """

    def __init__(
        self,
        cap: OutputCap,
        on_ended: Callable[[TaskState, ExitInfo], Any],
        on_running: Callable[[TaskState], Any],
    ) -> None:
        self._cap, self._on_ended, self._on_running = cap, on_ended, on_running

    async def observe(self, task: TaskState, engine: HostEngine) -> None:
        """Inspect the container and report changes. Raises EngineError and OSError; then nothing is
        reported.
        """
        async with task.observe_lock:
            if task.life.ended or task.container is None or not task.start_requested:
                return
            container = await inspect(engine, task.container)
            state: dict[str, Any] | None = None if container is None else container["State"]
            if state is not None and exit_status.running(state):
                if task.pid is None:
                    task.mark_running(int(state.get("Pid") or 0), exit_status.started_at(state))
                    self._on_running(task)
                return
            limit = None if container is None else (container.get("HostConfig") or {}).get("Memory")
            exit_ = await asyncio.to_thread(self._collect_exit, task, state, limit)
            if task.pid is None and exit_.source != "start" and exit_.started_at is not None:
                task.mark_running(_UNSEEN_PID, exit_.started_at)
            self._on_ended(task, exit_)

    def cap(self, tasks: list[TaskState]) -> None:
        """Limit the output of running tasks. Blocks."""
        for task in tasks:
            self._cap.apply(task)

    def _collect_exit(
        self, task: TaskState, state: dict[str, Any] | None, limit: int | None
    ) -> ExitInfo:
        """Collect and store the exit information. Blocks. Raises OSError."""
        folder = task.folder
        exit_ = exit_status.task_exit(
            state,
            ooms=task.oom_kills,
            recorded=_recorded_exit(folder),
            stop_reason=_stop_reason(task),
        )
        self._cap.remember(task)
        self._cap.apply(task, last=True)
        reports = add_messages(folder, {"code": exit_.code})
        began = exit_.started_at if exit_.started_at is not None else task.life.started_at
        # an engine records a start afterwards, which can be later than the end of a short task
        ended = max(time.time() if exit_.ended_at is None else exit_.ended_at, began or 0.0)
        exit_ = msgspec.structs.replace(
            exit_,
            facts=exit_status.exit_facts(
                exit_,
                peak=task.memory_peak,
                limit=limit or None,
                ooms=task.oom_kills,
                reported=reports.get("facts") or {},
            ),
            survivors_killed=_survivors(folder),
            termination_message=reports.get("terminationMessage"),
            last_lines=reports.get("lastLines"),
            report=reports.get("report"),
            notices=msgspec.convert(reports["notices"], Notices)
            if "notices" in reports
            else msgspec.UNSET,
            stdout_bytes=task.sizes.get(STDOUT),
            stderr_bytes=task.sizes.get(STDERR),
            dropped_bytes=self._cap.dropped_bytes(task),
            started_at=began,
            ended_at=ended,
        )
        exit_ = msgspec.structs.replace(exit_, core=_core_report(task, exit_))
        task.place.files.note_exit(task.token, exit_)
        return exit_


def find_exited(tasks: list[TaskState]) -> list[tuple[TaskState, ExitInfo]]:
    """Return the tasks whose command has exited, each with this exit. Blocks."""
    out = []
    for task in tasks:
        with contextlib.suppress(OSError):  # the next poll tries again
            recorded = _recorded_exit(task.folder)
            if recorded is not None:
                began = task.life.started_at
                ended = min(os.stat(f"{task.folder}/{EXIT_CODE}").st_mtime, time.time())
                known = ExitInfo(
                    stop_reason=_stop_reason(task),
                    started_at=began,
                    ended_at=max(ended, began or 0.0),
                )
                out.append((task, exit_status.script_exit(known, recorded)))
    return out


def find_notices(tasks: list[TaskState]) -> list[tuple[TaskState, Notices]]:
    """Return the tasks with notices that are not reported yet, each with all of them. Blocks."""
    out = []
    for task in tasks:
        with contextlib.suppress(OSError):  # the next poll tries again
            found = msgspec.convert(notices(task.folder), Notices)
            if found != task.notices:
                out.append((task, found))
    return out


def _recorded_exit(folder: str) -> exit_status.RecordedExit | None:
    """Return the exit that the init script recorded. Raises OSError."""
    code = written_code(folder)
    if code is None:
        return None
    exit_info = from_code(folder, code)
    return exit_status.RecordedExit(
        code=exit_info.get("code"),
        signal=exit_info.get("signal"),
        core_dumped=exit_info.get("coreDumped", False),
    )


def _core_report(task: TaskState, exit_: ExitInfo) -> CoreReport | msgspec.UnsetType:
    """Collect core files that the task left in its run directory. The task's code may have made
    them, so no tool reads them here.
    """
    run_dir, own = "" if task.request is None else task.request.run_dir, f"/{task.place.key.uid}/"
    base, _, inner = run_dir.partition(own)
    if not inner:
        return msgspec.UNSET  # it is in the container only
    try:
        base += own.rstrip("/")
        return marker.report_of(task.folder, run_dir, exit_, base=base, frames=False)
    except OSError as e:
        task.log("core files of {} cannot be collected: {}", str(task.token), e.strerror)
        return msgspec.UNSET


def _stop_reason(task: TaskState) -> str | None:
    """The init script enforces the time limit itself if the driver does not run."""
    limit = TIME_LIMIT if read(f"{task.folder}/{LIMIT_MARK}", 16) else None
    return task.life.stop_reason or limit


def _survivors(folder: str) -> int:
    count = (read(f"{folder}/{SURVIVORS}", 16) or b"").strip()
    return min(int(count), _MOST) if count.isdigit() else 0
