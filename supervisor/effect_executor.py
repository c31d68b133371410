"""Executes durable effects: replies, messages to agents, timers and driver calls. Results go to the
engine as inputs.

No decisions are made here.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, assert_never

from ..drivers.contracts import AgentDriver, AgentSpec, FoundState, TaskDriver
from ..protocol.errors import Refusal
from ..protocol.ids import (
    AgentKey,
    agent_log_ids,
    execution_log_ids,
    op_id,
    short_agent,
    short_op,
    short_uid,
)
from ..protocol.redaction import Redactor
from ..protocol.wire.messages import Kill
from ..runtime.log.logger import Log
from .connections.driver_reports import DriverReports
from .connections.hub import DRIVER_NAMES, Hub
from .core.interface.causes import Cause
from .core.interface.effects import (
    AcknowledgeTasks,
    AgentReady,
    CheckPorts,
    ClearTimer,
    DiscardHeldTask,
    Effect,
    EndConnection,
    EvictAgent,
    FindAgent,
    GrantsApplied,
    IncrementCounter,
    LaunchGang,
    LaunchTask,
    ListTasks,
    RemoveRunDir,
    ReplyRefusal,
    ReplyStatus,
    SetTimer,
    StartAgent,
    StopAgent,
    StopTask,
    TaskEffect,
)
from .core.interface.inputs import (
    DriverFailed,
    DriverFound,
    DriverStarted,
    DriverStopped,
    EvictionRefused,
    SignInNeeded,
    TimerFired,
)
from .core.interface.timers import Timer
from .engine.decision_loop import Engine
from .files.library_sync import LibrarySync
from .files.run_dir_reaper import RunDirReaper
from .process.counters import Counters
from .runs.service import RunService

#: Seconds between the request to stop an agent and its kill.
STOP_GRACE_SECS = 3.0
#: The code of a driver's Refusal when the user must sign in first.
SIGN_IN = "signInNeeded"

T = TypeVar("T")


class EffectExecutor:
    """Executor of all effects of one process."""

    def __init__(
        self,
        drivers: dict[str, AgentDriver],
        task_drivers: dict[str, TaskDriver],
        engine: Engine,
        hub: Hub,
        driver_reports: DriverReports,
        run_service: RunService,
        run_dir_reaper: RunDirReaper,
        library_sync: LibrarySync,
        redactor: Redactor,
        log: Log,
        counters: Counters,
        *,
        agent_id: Callable[[AgentKey], str],
        driver_called: Callable[[str, str, str, bool, float], None],
    ) -> None:
        """task_drivers: by the name of the driver that placed the task. library_sync: copies users'
        libraries to clusters that do not share their file system.

        driver_called: called after each driver call with driver, host, verb, whether it failed, and
        seconds.
        """
        self._drivers, self._task_drivers = drivers, task_drivers
        self._engine, self._hub, self._driver_reports = engine, hub, driver_reports
        self._run_service, self._run_dir_reaper = run_service, run_dir_reaper
        self._library_sync = library_sync
        self._redactor, self._log, self._counters = redactor, log, counters
        self._agent_id, self._driver_called = agent_id, driver_called
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._work: set[asyncio.Task[None]] = set()
        self.grants_applied: Callable[[GrantsApplied], object] = lambda effect: None

    def perform(self, effect: Effect, cause: Cause) -> None:
        """Perform one effect. All log lines about it name the cause."""
        match effect:
            case ReplyStatus() | ReplyRefusal() | AgentReady():
                self._run_service.perform(effect)
            case (
                LaunchTask()
                | LaunchGang()
                | CheckPorts()
                | StopTask()
                | ListTasks()
                | AcknowledgeTasks()
                | DiscardHeldTask()
            ):
                self._perform_task_effect(effect, cause)
            case SetTimer():
                self._set_timer(effect.timer, effect.secs, cause)
            case ClearTimer():
                self._clear_timer(effect.timer)
            case StartAgent():
                log = self._log_of(effect, cause)
                self._spawn(self._start(effect, log), log)
            case FindAgent():
                log = self._log_of(effect, cause)
                self._spawn(self._find(effect, log), log)
            case StopAgent():
                log = self._log_of(effect, cause)
                self._spawn(self._stop(effect, log), log)
            case EvictAgent():
                self._evict(effect, cause)
            case RemoveRunDir():
                self._run_dir_reaper.remove(effect.run_dir, effect.serial, effect.executions)
            case EndConnection():
                self._hub.end(effect.key, effect.epoch, effect.reason)
                self._driver_reports.end(effect.key, effect.epoch, effect.reason)
            case GrantsApplied():
                self.grants_applied(effect)
            case IncrementCounter():
                self._counters.add(effect.what)
                log = self._log_of(effect, cause)
                log("{}: {}", effect.what, effect.detail)
            case _:
                assert_never(effect)

    def sizes(self) -> dict[str, int]:
        """Return the number of timers and of tasks in progress."""
        return {"timers": len(self._timers), "work": len(self._work)}

    def _log_of(self, effect: Effect, cause: Cause) -> Log:
        """Return the log of one effect: each line has its cause, its agent and its execution."""
        ids: dict[str, str] = {}
        match effect:
            case LaunchTask() | StopTask() | DiscardHeldTask():
                ids = execution_log_ids(effect.token)
            case LaunchGang():
                ids = execution_log_ids(effect.tasks[0].token)
            case _:
                pass
        key = getattr(effect, "key", None)
        return self._log.bound(cause=cause, **ids, **({} if key is None else agent_log_ids(key)))

    # ---- tasks

    def _perform_task_effect(self, effect: TaskEffect, cause: Cause) -> None:
        tasks = self._task_drivers.get(effect.key.driver)
        if tasks is None:
            self._counters.add("noTaskDriver")
            self._log_of(effect, cause)(
                "the driver {} is not configured: the effect {} was skipped",
                effect.key.driver,
                type(effect).__name__,
            )
            return
        match effect:
            case LaunchTask():
                log, op = self._log_of(effect, cause), short_op(op_id(effect.token, "run"))
                log("_Op(run, {}) runDir={} jid={}", op, effect.spec.run_dir, effect.token.jid)
                app = effect.spec.app
                if app is not None and self._library_sync.apart(effect.key):
                    self._spawn(self._launch_with_library(tasks, effect, app.simulation_type), log)
                else:
                    tasks.launch(effect.key, effect.token, effect.spec, effect.slot)
            case LaunchGang():
                first = effect.tasks[0].token
                op = short_op(effect.tasks[0].op_id)
                self._log_of(effect, cause)(
                    "_Op(run, {}) and {} more of its attempt jid={}",
                    op,
                    len(effect.tasks) - 1,
                    first.jid,
                )
                tasks.launch_gang(effect.key, effect.shared, effect.tasks)
            case CheckPorts():
                tasks.probe(effect.key, effect.op_id, effect.ports)
            case StopTask():
                tasks.stop(effect.key, effect.token, effect.reason, effect.grace_secs)
            case ListTasks():
                tasks.find(effect.key)
            case AcknowledgeTasks():
                tasks.settle(effect.key, effect.tokens)
            case DiscardHeldTask():
                tasks.release(effect.key, effect.token)
            case _:
                assert_never(effect)

    async def _launch_with_library(
        self, tasks: TaskDriver, effect: LaunchTask, simulation_type: str
    ) -> None:
        """Copy the library, then launch. If a stop arrives before the launch, the token never
        starts.
        """
        await self._library_sync.copy_library(effect.key, simulation_type)
        tasks.launch(effect.key, effect.token, effect.spec, effect.slot)

    # ---- timers

    def _set_timer(self, timer: Timer, secs: float, cause: Cause) -> None:
        self._clear_timer(timer)
        self._timers[timer] = asyncio.get_running_loop().call_later(
            secs, self._timer_fired, timer, cause
        )

    def _clear_timer(self, timer: Timer) -> None:
        handle = self._timers.pop(timer, None)
        if handle is not None:
            handle.cancel()

    def _timer_fired(self, timer: Timer, cause: Cause) -> None:
        self._timers.pop(timer, None)
        self._engine.tell(TimerFired(timer, cause))

    # ---- drivers

    async def _start(self, effect: StartAgent, log: Log) -> None:
        agent_id = self._redactor.add(self._agent_id(effect.key))
        self._redactor.add(effect.token)
        name = DRIVER_NAMES.get(effect.key.driver, effect.key.driver)
        log = log.bound(agent=agent_id)
        log(
            "{}(a={} k={} u={} []) start attempt={}",
            name,
            short_agent(agent_id),
            effect.key.kind,
            short_uid(effect.key.uid),
            effect.attempt,
        )
        driver = self._drivers.get(effect.key.driver)
        try:
            if driver is None:
                raise Refusal(
                    "agentUnavailable", f"the driver {effect.key.driver} is not configured here"
                )
            spec = AgentSpec(key=effect.key, agent_id=agent_id, token=effect.token)
            handle = await self._timed(effect.key, "start", driver.start(spec))
        except Refusal as e:
            log(
                "{} could not be started: {}",
                str(effect.key),
                e.sentence,
            )
            if e.code == SIGN_IN:
                self._engine.tell(SignInNeeded(effect.key, effect.attempt, e.sentence))
            else:
                self._engine.tell(DriverFailed(effect.key, effect.attempt, e.sentence))
        except OSError as e:
            log.exception("{} could not be started", str(effect.key), error=e)
            self._engine.tell(
                DriverFailed(effect.key, effect.attempt, f"{type(e).__name__}: {e.strerror}")
            )
        else:
            self._engine.tell(DriverStarted(effect.key, effect.attempt, handle))

    async def _find(self, effect: FindAgent, log: Log) -> None:
        driver = self._drivers.get(effect.key.driver)
        if driver is None:
            self._engine.tell(
                DriverFound(
                    effect.key,
                    FoundState.UNKNOWN,
                    f"the driver {effect.key.driver} is not configured here",
                )
            )
            return
        try:
            found = await self._timed(effect.key, "find", driver.find(effect.handle))
        except Exception as e:
            # A bug in the driver is no proof that the agent is gone.
            log.exception("{} could not be located", str(effect.key), error=e)
            self._engine.tell(DriverFound(effect.key, FoundState.UNKNOWN, f"{type(e).__name__}"))
            return
        log("{} is {}: {}", str(effect.key), found.state, found.detail)
        self._engine.tell(DriverFound(effect.key, found.state, found.detail, found.sign_in))

    def _evict(self, effect: EvictAgent, cause: Cause) -> None:
        """Stop an idle agent unless it owes an answer. Requests for an agent in this phase wait
        until it is gone.
        """
        connection = self._hub.connections.get(effect.key)
        if connection is None and effect.handle:
            log = self._log_of(effect, cause)
            self._spawn(self._stop(StopAgent(effect.key, effect.handle), log), log)
        elif connection is None or connection.epoch != effect.epoch:
            return
        elif connection.asked:
            self._engine.tell(EvictionRefused(effect.key, effect.epoch))
        else:
            connection.log("{} is stopped: {}", connection, effect.reason, cause=cause)
            self._hub.send(effect.key, Kill(reason=effect.reason))

    async def _stop(self, effect: StopAgent, log: Log) -> None:
        driver = self._drivers.get(effect.key.driver)
        try:
            if driver is not None:
                await self._timed(effect.key, "stop", driver.stop(effect.handle, STOP_GRACE_SECS))
        except Refusal as e:
            log("{} cannot be stopped: {}", str(effect.key), e.sentence)
            if e.code == SIGN_IN:
                self._engine.tell(SignInNeeded(effect.key, None, e.sentence))
            return
        except Exception as e:
            # the core's timer asks again
            log.exception("{} cannot be stopped", str(effect.key), error=e)
            return
        self._engine.tell(DriverStopped(effect.key))

    async def _timed(self, key: AgentKey, verb: str, work: Awaitable[T]) -> T:
        began, failed = time.monotonic(), True
        try:
            result = await work
            failed = False
            return result
        finally:
            self._driver_called(key.driver, key.host, verb, failed, time.monotonic() - began)

    def _spawn(self, work: Coroutine[Any, Any, None], log: Log) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(partial(self._work_ended, log))

    def _work_ended(self, log: Log, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.exception("an effect failed", error=task.exception())

    async def close(self) -> None:
        for timer in list(self._timers):
            self._clear_timer(timer)
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
