"""Stops tasks in containers: SIGTERM to all processes, the grace period, then SIGKILL of the
container until it has ended. Why a task is stopped is decided elsewhere.
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

#: Pause between two SIGKILLs, or two tries to reach the host, in seconds.
AGAIN_SECS = 2.0


class ContainerStopper:
    def __init__(
        self, driver: DockerDriver, observe: Callable[[TaskState], Awaitable[None]]
    ) -> None:
        self._driver, self._observe = driver, observe

    async def run(self, task: TaskState) -> None:
        """Stop a task whose container was started, and return when it has ended. Waits while the
        host is down.

        The stop is recorded before its signal. A stop that comes after the exit of the command is
        withdrawn.
        """
        assert task.stop is not None
        if not task.stop.signaled:
            # A job that has filled the disk is stopped without the record; the log has the reason.
            with contextlib.suppress(OSError):
                await asyncio.to_thread(task.place.files.note_stop, task.token, task.stop)
        engine = self._driver.engines[task.place.key.host]
        terminated = False
        while task.exit is None:
            left = (task.kill_at or 0.0) - time.monotonic()
            try:
                if not task.stop.signaled and not await self._prepare_first_signal(task, engine):
                    return
                if left <= 0:
                    await _signal(engine, task, signal.SIGKILL)
                elif not terminated:
                    await _signal(engine, task, signal.SIGTERM)
                    terminated = True
            except EngineError:
                await self._wait_for_change(task, AGAIN_SECS)
                continue
            await self._wait_for_change(task, min(left, AGAIN_SECS) if left > 0 else AGAIN_SECS)
            if left <= 0 and task.exit is None:
                await self._observe(task)  # the event of its end may have been missed

    async def clear(self, task: TaskState) -> None:
        """Kill a container that runs on after its command has exited by itself: no process may
        outlive its command.
        """
        engine = self._driver.engines[task.place.key.host]
        with contextlib.suppress(EngineError):
            await _signal(engine, task, signal.Signals.SIGKILL)
            await self._observe(task)

    async def _prepare_first_signal(self, task: TaskState, engine: HostEngine) -> bool:
        """Prepare the first signal. Return False if the command has exited by itself. Raises
        EngineError while no signal can be sent.
        """
        assert task.stop is not None
        if await asyncio.to_thread(written_code, task.folder) is not None:
            task.stop = task.kill_at = None
            await asyncio.to_thread(task.place.files.withdraw_stop, task.token)
            await self._observe(task)
            return False
        if not engine.up:
            raise EngineError("unreachable", engine.detail)
        task.stop = msgspec.structs.replace(task.stop, signaled=True)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(task.place.files.note_stop, task.token, task.stop, STOP_MARK)
        return True

    async def _wait_for_change(self, task: TaskState, secs: float) -> None:
        """Wait until the task has ended or its grace period was shortened."""
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
        if e.code not in ("notFound", "conflict"):  # it has already ended
            raise
