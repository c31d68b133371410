"""Ending tasks in containers: SIGTERM to all of one, its grace, SIGKILL of the container, again and
again until nothing is left.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable

import msgspec

from ....runtime.execution.folder import written_code
from ..agents.driver import DockerDriver
from ..host.engine import EngineError, HostEngine
from .init_script import STOP_MARK
from .state import TaskState

#: Between two SIGKILLs, or two tries to reach the host.
AGAIN_SECS = 2.0


class ContainerStopper:
    def __init__(self, driver: DockerDriver, look: Callable[[TaskState], Awaitable[None]]) -> None:
        self._driver, self._look = driver, look

    async def run(self, task: TaskState) -> None:
        """Of a task whose container was started; returns when it is over. While its host is away
        that waits.

        The stop is on record before its signal. One that comes after the command's own exit is too
        late, and is taken back.
        """
        assert task.stop is not None
        if not task.stop.signaled:
            with contextlib.suppress(
                OSError
            ):  # a job that has filled the disk is ended all the same; who asked for it stands in the log
                await asyncio.to_thread(task.place.files.note_stop, task.token, task.stop)
        engine = self._driver.engines[task.place.key.host]
        told = False
        while task.exit is None:
            left = (task.kill_at or 0.0) - time.monotonic()
            try:
                if not task.stop.signaled and not await self._still_wanted(task, engine):
                    return
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

    async def clear(self, task: TaskState) -> None:
        """Its command has ended, and its container runs on: that is over now, as what outlives a
        command is everywhere.
        """
        engine = self._driver.engines[task.place.key.host]
        with contextlib.suppress(EngineError):
            await _signal(engine, task, signal.Signals.SIGKILL)
            await self._look(task)

    async def _still_wanted(self, task: TaskState, engine: HostEngine) -> bool:
        """Before the first signal: False where the command has ended by itself. Raises EngineError
        while no signal can be sent.
        """
        assert task.stop is not None
        if await asyncio.to_thread(written_code, task.folder) is not None:
            task.stop = task.kill_at = None
            await asyncio.to_thread(task.place.files.withdraw_stop, task.token)
            await self._look(task)
            return False
        if not engine.up:
            raise EngineError("unreachable", engine.detail)
        task.stop = msgspec.structs.replace(task.stop, signaled=True)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(task.place.files.note_stop, task.token, task.stop, STOP_MARK)
        return True

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
        await engine.call(
            f"send {number.name} to task {id_[:12]}", lambda c: c.kill(id_, int(number))
        )
    except EngineError as e:
        if e.code not in ("notFound", "conflict"):  # it has ended already
            raise
