"""Ending tasks in containers: SIGTERM to all of one, its grace, SIGKILL of the container, again and again until nothing is left."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable

from .agents import DockerDriver
from .engine import EngineError, HostEngine
from .executions import TaskState
from .wrapper import STOP_MARK

#: Between two SIGKILLs, or two tries to reach the host.
AGAIN_SECS = 2.0


class Stopping:
    def __init__(self, driver: DockerDriver, look: Callable[[TaskState], Awaitable[None]]) -> None:
        self._driver, self._look = driver, look

    async def run(self, task: TaskState) -> None:
        """Of a task whose container was started; returns when it is over. While its host is away that waits."""
        assert task.stop is not None
        with contextlib.suppress(OSError):  # a job that has filled the disk is ended all the same; who asked for it stands in the log
            await asyncio.to_thread(task.place.files.note_stop, task.token, task.stop, STOP_MARK)
        engine = self._driver.engines[task.place.key.host]
        told = False
        while task.exit is None:
            left = (task.kill_at or 0.0) - time.monotonic()
            try:
                if left <= 0:
                    await _signal(engine, task, signal.SIGKILL)
                elif not told:
                    await _signal(engine, task, signal.SIGTERM)
                    told = True
            except EngineError:
                await self._changes(task, AGAIN_SECS)
                continue
            await self._changes(task, min(left, AGAIN_SECS) if left > 0 else AGAIN_SECS)
            if left <= 0 and task.exit is None:
                await self._look(task)  # its end may have been missed

    async def _changes(self, task: TaskState, secs: float) -> None:
        """It ended, or it has less time than before."""
        task.changed.clear()
        if task.exit is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(task.changed.wait(), secs)


async def _signal(engine: HostEngine, task: TaskState, number: signal.Signals) -> None:
    id_ = task.container
    if id_ is None:
        return
    try:
        await engine.call(f"send {number.name} to task {id_[:12]}", lambda c: c.kill(id_, int(number)))
    except EngineError as e:
        if e.code not in ("notFound", "conflict"):  # it has ended already
            raise
