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

from ....protocol.jobs.execution_state import ExecutionState
from ....protocol.jobs.exit_info import ExitInfo
from ....runtime.execution.folder import (
    EXIT_CODE,
    STDERR,
    STDOUT,
    add_messages,
    from_code,
    read,
    written_code,
)
from ....runtime.execution.output_limit import OutputCap
from ..containers import exit_status
from ..host.container_calls import inspect
from ..host.engine import HostEngine
from .init_script import LIMIT_MARK, SURVIVORS
from .state import TaskState

#: Seconds after the exit of a command in which its container normally ends; later the exit is
#: reported before the end.
ENDING_SECS = 0.4
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
            if task.exit is not None or task.container is None or not task.start_requested:
                return
            container = await inspect(engine, task.container)
            state: dict[str, Any] | None = None if container is None else container["State"]
            if state is not None and exit_status.running(state):
                if task.state is ExecutionState.STARTING:
                    task.mark_running(int(state.get("Pid") or 0), exit_status.started_at(state))
                    self._on_running(task)
                return
            limit = None if container is None else (container.get("HostConfig") or {}).get("Memory")
            exit_ = await asyncio.to_thread(self._collect_exit, task, state, limit)
            starting = task.state is ExecutionState.STARTING
            if starting and exit_.source != "start" and exit_.started_at is not None:
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
        began = exit_.started_at if exit_.started_at is not None else task.started_at
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
            stdout_bytes=task.sizes.get(STDOUT),
            stderr_bytes=task.sizes.get(STDERR),
            dropped_bytes=self._cap.dropped_bytes(task),
            started_at=began,
            ended_at=ended,
        )
        task.place.files.note_exit(task.token, exit_)
        return exit_


def find_exited(tasks: list[TaskState], now: float) -> list[TaskState]:
    """Return the tasks whose command has exited for some time while the container still exists, and
    set their `exited`. Blocks. now: monotonic seconds.
    """
    out = []
    for task in tasks:
        with contextlib.suppress(OSError):  # the next poll tries again
            recorded = _recorded_exit(task.folder)
            if recorded is not None and task.command_exit_mono is None:
                task.command_exit_mono = now
            elif (
                recorded is not None
                and task.command_exit_mono is not None
                and now - task.command_exit_mono >= ENDING_SECS
            ):
                ended = min(os.stat(f"{task.folder}/{EXIT_CODE}").st_mtime, time.time())
                known = ExitInfo(
                    stop_reason=_stop_reason(task),
                    started_at=task.started_at,
                    ended_at=max(ended, task.started_at or 0.0),
                )
                task.command_exit = exit_status.script_exit(known, recorded)
                out.append(task)
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


def _stop_reason(task: TaskState) -> str | None:
    """A stop without a signal had no effect, so it is no reason."""
    if task.stop is not None and task.stop.signaled:
        return task.stop.reason
    return "timeLimit" if read(f"{task.folder}/{LIMIT_MARK}", 16) else None


def _survivors(folder: str) -> int:
    count = (read(f"{folder}/{SURVIVORS}", 16) or b"").strip()
    return min(int(count), _MOST) if count.isdigit() else 0
