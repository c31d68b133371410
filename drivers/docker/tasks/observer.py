"""What became of a task's container: it runs, it has ended (then the evidence is put together,
once), or it is gone.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

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

#: A container goes with its command mostly within this time (seconds); else the exit is told before
#: the end.
ENDING_SECS = 0.4
#: Nobody can have more processes.
_MOST = 2**22
#: Of one that was over before anybody looked: what it was in its own container.
_UNSEEN_PID = 1


class ContainerObserver:
    """ended(task, exit), runs(task): what is new."""

    def __init__(
        self,
        cap: OutputCap,
        ended: Callable[[TaskState, ExitInfo], Any],
        runs: Callable[[TaskState], Any],
    ) -> None:
        self._cap, self._ended, self._runs = cap, ended, runs

    async def look(self, task: TaskState, engine: HostEngine) -> None:
        """Ask the engine, and tell what is new. Raises EngineError and OSError: then nothing is
        known, and nothing is told.
        """
        async with task.looking:
            if task.exit is not None or task.container is None or not task.begun:
                return
            there = await inspect(engine, task.container)
            state: dict[str, Any] | None = None if there is None else there["State"]
            if state is not None and exit_status.running(state):
                if task.pid is None:
                    task.runs(int(state.get("Pid") or 0), exit_status.started_at(state))
                    self._runs(task)
                return
            limit = None if there is None else (there.get("HostConfig") or {}).get("Memory")
            exit_ = await asyncio.to_thread(self._written_down, task, state, limit)
            if task.pid is None and exit_.source != "start" and exit_.started_at is not None:
                task.runs(_UNSEEN_PID, exit_.started_at)
            self._ended(task, exit_)

    def cap(self, tasks: list[TaskState]) -> None:
        """Of those that run. Blocks."""
        for task in tasks:
            self._cap.apply(task)

    def _written_down(
        self, task: TaskState, state: dict[str, Any] | None, limit: int | None
    ) -> ExitInfo:
        """Blocks. Raises OSError."""
        folder = task.folder
        exit_ = exit_status.of_task(
            state, ooms=task.ooms, written=_written(folder), stop_reason=_stop_reason(task)
        )
        self._cap.remember(task)
        self._cap.apply(task, last=True)
        words = add_messages(folder, {"code": exit_.code})
        began = exit_.started_at if exit_.started_at is not None else task.began
        # an engine notes a start when it has happened, which can be after a short task has ended
        ended = max(time.time() if exit_.ended_at is None else exit_.ended_at, began or 0.0)
        exit_ = msgspec.structs.replace(
            exit_,
            facts=exit_status.facts_of(
                exit_,
                peak=task.memory_peak,
                limit=limit or None,
                ooms=task.ooms,
                said=words.get("facts") or {},
            ),
            survivors_killed=_survivors(folder),
            termination_message=words.get("terminationMessage"),
            last_lines=words.get("lastLines"),
            report=words.get("report"),
            stdout_bytes=task.sizes.get(STDOUT),
            stderr_bytes=task.sizes.get(STDERR),
            dropped_bytes=self._cap.dropped_bytes(task),
            started_at=began,
            ended_at=ended,
        )
        task.place.files.note_exit(task.token, exit_)
        return exit_


def exits(tasks: list[TaskState], now: float) -> list[TaskState]:
    """Those whose command has ended for some time while their container has not: `exited` is set.
    Blocks. now: monotonic seconds.
    """
    out = []
    for task in tasks:
        with contextlib.suppress(OSError):  # the next look tells
            written = _written(task.folder)
            if written is not None and task.exit_seen is None:
                task.exit_seen = now
            elif (
                written is not None
                and task.exit_seen is not None
                and now - task.exit_seen >= ENDING_SECS
            ):
                ended = min(os.stat(f"{task.folder}/{EXIT_CODE}").st_mtime, time.time())
                known = ExitInfo(
                    stop_reason=_stop_reason(task),
                    started_at=task.began,
                    ended_at=max(ended, task.began or 0.0),
                )
                task.exited = exit_status.as_written(known, written)
                out.append(task)
    return out


def _written(folder: str) -> exit_status.Written | None:
    """What the wrapper wrote of the end. Raises OSError."""
    code = written_code(folder)
    if code is None:
        return None
    said = from_code(folder, code)
    return exit_status.Written(
        code=said.get("code"), signal=said.get("signal"), core_dumped=said.get("coreDumped", False)
    )


def _stop_reason(task: TaskState) -> str | None:
    """A stop that was never signaled did nothing."""
    if task.stop is not None and task.stop.signaled:
        return task.stop.reason
    return "timeLimit" if read(f"{task.folder}/{LIMIT_MARK}", 16) else None


def _survivors(folder: str) -> int:
    said = (read(f"{folder}/{SURVIVORS}", 16) or b"").strip()
    return min(int(said), _MOST) if said.isdigit() else 0
