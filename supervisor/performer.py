"""Carries out durable effects: replies, messages, timers, drivers' verbs. What comes of them is told to the engine as inputs."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, assert_never

from ..drivers.driver import AgentDriver, AgentSpec, TaskDriver
from ..protocol.errors import Refusal
from ..protocol.ids import AgentKey, op_id, short_agent, short_op, short_uid
from ..protocol.redaction import Redactor
from ..runtime.log import Log
from .core.effects import (
    AgentReady,
    ClearTimer,
    Count,
    Effect,
    EndConnection,
    FindAgent,
    FindTasks,
    LaunchGang,
    LaunchTask,
    Probe,
    RemoveRunDir,
    ReplyRefusal,
    ReplyStatus,
    SetTimer,
    SettleTasks,
    StartAgent,
    StopAgent,
    StopTask,
    TaskEffect,
)
from .core.inputs import DriverFailed, DriverFound, DriverStarted, DriverStopped, TimerFired
from .desk import Desk
from .engine import Engine
from .hub import DRIVER_NAMES, Hub
from .metrics import Counters
from .purging import Purging

#: An agent that is ended has so long before it is killed.
STOP_GRACE_SECS = 3.0


class Performer:
    """One per process; bound to the engine, hub and desk by the composition root."""

    def __init__(
        self, drivers: dict[str, AgentDriver], agent_id: Callable[[AgentKey], str], redactor: Redactor, log: Log, counters: Counters,
    ) -> None:
        self._drivers, self._agent_id, self._redactor, self._log, self._counters = drivers, agent_id, redactor, log, counters
        self._timers: dict[tuple[Any, ...], asyncio.TimerHandle] = {}
        self._work: set[asyncio.Task[None]] = set()
        #: who launches tasks, by the name of the driver they were placed with
        self.tasks: dict[str, TaskDriver] = {}
        self.engine: Engine
        self.hub: Hub
        self.purging: Purging
        self.desk: Desk

    def bind(self, engine: Engine, hub: Hub, desk: Desk, purging: Purging, tasks: dict[str, TaskDriver]) -> None:
        """They need each other: the rest of the making."""
        self.engine, self.hub, self.desk, self.purging, self.tasks = engine, hub, desk, purging, tasks

    def perform(self, effect: Effect) -> None:
        match effect:
            case ReplyStatus() | ReplyRefusal() | AgentReady():
                self.desk.perform(effect)
            case LaunchTask() | LaunchGang() | Probe() | StopTask() | FindTasks() | SettleTasks():
                self._task(effect)
            case SetTimer():
                self._set(effect.timer, effect.secs)
            case ClearTimer():
                self._clear(effect.timer)
            case StartAgent():
                self._spawn(self._start(effect))
            case FindAgent():
                self._spawn(self._find(effect))
            case StopAgent():
                self._spawn(self._stop(effect))
            case RemoveRunDir():
                self.purging.remove(effect.run_dir, effect.serial)
            case EndConnection():
                self.hub.end(effect.key, effect.epoch, effect.reason)
            case Count():
                self._counters.add(effect.what)
                self._log("{}: {}", effect.what, effect.detail)
            case _:
                assert_never(effect)

    def sizes(self) -> dict[str, int]:
        """What is under way, counted."""
        return {"timers": len(self._timers), "work": len(self._work)}

    # ---- tasks

    def _task(self, effect: TaskEffect) -> None:
        tasks = self.tasks.get(effect.key.driver)
        if tasks is None:
            self._counters.add("noTaskDriver")
            self._log("the driver {} is not configured here: {} is not performed", effect.key.driver, type(effect).__name__)
            return
        match effect:
            case LaunchTask():
                op = short_op(op_id(effect.token, "run"))
                self._log("_Op(run, {}) runDir={} jid={}", op, effect.spec.run_dir, effect.token.jid, jid=effect.token.jid, op=op)
                tasks.launch(effect.key, effect.token, effect.spec)
            case LaunchGang():
                first = effect.tasks[0].token
                op = short_op(effect.tasks[0].op_id)
                self._log("_Op(run, {}) and {} more of its attempt jid={}", op, len(effect.tasks) - 1, first.jid, jid=first.jid, op=op)
                tasks.launch_gang(effect.key, effect.shared, effect.tasks)
            case Probe():
                tasks.probe(effect.key, effect.op_id, effect.ports)
            case StopTask():
                tasks.stop(effect.key, effect.token, effect.reason, effect.grace_secs)
            case FindTasks():
                tasks.find(effect.key)
            case SettleTasks():
                tasks.settle(effect.key, effect.tokens)
            case _:
                assert_never(effect)

    # ---- timers

    def _set(self, timer: tuple[Any, ...], secs: float) -> None:
        self._clear(timer)
        self._timers[timer] = asyncio.get_running_loop().call_later(secs, self._fired, timer)

    def _clear(self, timer: tuple[Any, ...]) -> None:
        handle = self._timers.pop(timer, None)
        if handle is not None:
            handle.cancel()

    def _fired(self, timer: tuple[Any, ...]) -> None:
        self._timers.pop(timer, None)
        self.engine.tell(TimerFired(timer))

    # ---- drivers

    async def _start(self, effect: StartAgent) -> None:
        agent_id = self._redactor.add(self._agent_id(effect.key))
        self._redactor.add(effect.token)
        name = DRIVER_NAMES.get(effect.key.driver, effect.key.driver)
        self._log("{}(a={} k={} u={} []) start attempt={}", name, short_agent(agent_id), effect.key.kind, short_uid(effect.key.uid),
                  effect.attempt, uid=effect.key.uid)
        driver = self._drivers.get(effect.key.driver)
        try:
            if driver is None:
                raise Refusal("agentUnavailable", f"the driver {effect.key.driver} is not configured here")
            handle = await driver.start(AgentSpec(key=effect.key, agent_id=agent_id, token=effect.token))
        except Refusal as e:
            self._log("{} could not be started: {}", str(effect.key), e.sentence, uid=effect.key.uid)
            self.engine.tell(DriverFailed(effect.key, effect.attempt, e.sentence))
        except OSError as e:
            self._log.exception("{} could not be started", str(effect.key), error=e)
            self.engine.tell(DriverFailed(effect.key, effect.attempt, f"{type(e).__name__}: {e.strerror}"))
        else:
            self.engine.tell(DriverStarted(effect.key, effect.attempt, handle))

    async def _find(self, effect: FindAgent) -> None:
        driver = self._drivers.get(effect.key.driver)
        if driver is None:
            self.engine.tell(DriverFound(effect.key, "unknown", f"the driver {effect.key.driver} is not configured here"))
            return
        try:
            found = await driver.find(effect.handle)
        except Exception as e:
            # a driver's own fault: nobody may be called gone for it
            self._log.exception("{} cannot be looked for", str(effect.key), error=e)
            self.engine.tell(DriverFound(effect.key, "unknown", f"{type(e).__name__}"))
            return
        self._log("{} is {}: {}", str(effect.key), found.state, found.detail, uid=effect.key.uid)
        self.engine.tell(DriverFound(effect.key, found.state, found.detail))

    async def _stop(self, effect: StopAgent) -> None:
        driver = self._drivers.get(effect.key.driver)
        try:
            if driver is not None:
                await driver.stop(effect.handle, STOP_GRACE_SECS)
        except Exception as e:
            # it is asked for again by the core's timer
            self._log.exception("{} cannot be stopped", str(effect.key), error=e)
            return
        self.engine.tell(DriverStopped(effect.key))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.exception("an effect failed", error=task.exception())

    async def close(self) -> None:
        for timer in list(self._timers):
            self._clear(timer)
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
