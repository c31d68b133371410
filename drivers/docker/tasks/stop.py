"""Performs the steps that the life of a task requires: its stop (SIGTERM to all processes, the grace
period, then SIGKILL of the container until it has ended), its time limit, and the end of a container
that outlives its command. `protocol.execution` decides on the steps.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable

from ....protocol.execution.lifecycle import Step
from ....runtime.execution.folder import written_code
from ..agents.driver import DockerDriver
from ..host.engine import EngineError, HostEngine
from .init_script import STOP_MARK
from .state import TaskState

#: Pause between two SIGKILLs, or two tries to reach the host, in seconds.
AGAIN_SECS = 2.0


class ContainerStopper:
    """observe(task): inspect its container. bar_start(task): see TaskStarter."""

    def __init__(
        self,
        driver: DockerDriver,
        observe: Callable[[TaskState], Awaitable[None]],
        bar_start: Callable[[TaskState], Awaitable[bool]],
    ) -> None:
        self._driver, self._observe, self._bar_start = driver, observe, bar_start

    async def run(self, task: TaskState) -> None:
        """Perform the steps of a task, and return when it has ended. Waits while the host is down."""
        try:
            await self._run(task, self._driver.engines[task.place.key.host])
        finally:
            task.attended = False

    async def _run(self, task: TaskState, engine: HostEngine) -> None:
        life = task.life
        while not life.ended:
            task.changed.clear()
            now = time.monotonic()
            step = life.next_step(now)
            try:
                if await self._perform(task, step, engine):
                    continue
                again = step is Step.KILL
            except (EngineError, OSError):
                again = True
            await _wait(task, AGAIN_SECS if again else life.wake_at(now) - now)
            # an event of its end may have been missed, or the host was down
            if again and engine.up and not life.ended:
                await self._observe(task)

    async def _perform(self, task: TaskState, step: Step, engine: HostEngine) -> bool:
        """Perform a step. Return whether the next one may follow at once. Raises EngineError and
        OSError; the step is then repeated.
        """
        life, files = task.life, task.place.files
        match step:
            case Step.RECORD_STOP:
                # A job that has filled the disk is stopped without the record; the log has the
                # reason. An unused token has no record until `bar_start` uses it.
                await _record(task, signaled=False)
                life.stop_recorded()
            case Step.BAR_START:
                if not await self._bar_start(task):
                    life.start_not_barred()
            case Step.CHECK_EXIT:
                await self._check_exit(task, engine)
            case Step.WITHDRAW_STOP:
                await asyncio.to_thread(files.withdraw_stop, task.token)
                life.stop_withdrawn()
                await self._observe(task)
            case Step.RECORD_SIGNAL:
                await _record(task, STOP_MARK, signaled=True)
                life.signal_recorded()
            case Step.TERMINATE if not life.terminated:
                await _signal(engine, task, signal.SIGTERM)
                life.signal_sent(step)
            case Step.KILL:
                await _signal(engine, task, signal.SIGKILL)
                life.signal_sent(step)
                return False
            case _:
                return False
        return True

    async def _check_exit(self, task: TaskState, engine: HostEngine) -> None:
        """Look for the exit of the command. Raises EngineError while no signal can be sent, because
        the command may exit until then.
        """
        found = await asyncio.to_thread(written_code, task.folder) is not None
        if task.life.ended:
            return
        if found:
            task.life.exited(time.monotonic())
        elif not engine.up:
            raise EngineError("unreachable", engine.detail)
        else:
            task.life.exit_missing()


async def _record(task: TaskState, mark: str | None = None, *, signaled: bool) -> None:
    """Record the stop. A full disk does not prevent it."""
    record = task.stop_record(signaled=signaled)
    with contextlib.suppress(OSError):
        await asyncio.to_thread(task.place.files.note_stop, task.token, record, mark)


async def _wait(task: TaskState, secs: float) -> None:
    """Wait for a change."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(task.changed.wait(), None if secs == float("inf") else secs)


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
