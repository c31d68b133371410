"""Composition root of the site in one process: `Site` answers requests, and runs jobs between them.

The event loop runs only while a request is answered. Jobs run outside of it, so they may use asyncio,
read the terminal, and be debugged as long as anybody wants.
"""

import asyncio
import atexit
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from ...agent.session.state_machine import Launch
from ...db.events.state import Job
from ...db.store.memory_store import MemoryStore
from ...drivers.contracts import AgentDriver, AgentSpec, TaskDriver
from ...drivers.keeper_tasks import KeeperTaskDriver
from ...protocol.api.requests import RunSpec
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, AgentKind, Token, derived_id, parse
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.redaction import Redactor
from ...protocol.wire.messages import Alive, TaskSpec, ToAgent
from ...runtime import clock
from ...runtime.log.logger import Log, Record
from ..connections.driver_reports import DriverReports
from ..connections.hub import Hub
from ..connections.progress import Progress
from ..core.interface.causes import Cause
from ..core.interface.effects import Effect
from ..core.interface.inputs import Now
from ..core.state.configuration import CoreConfig
from ..effect_executor import EffectExecutor
from ..engine.decision_loop import Engine
from ..engine.event_feed import EventFeed
from ..files.library_sync import LibrarySync
from ..files.run_dir_reaper import RunDirReaper
from ..files.user_library import Library
from ..process.counters import Counters
from ..runs.output_reader import OutputReader
from ..runs.service import RunService
from ..usage.samples import UsageSamples
from .agent import Agent, Driver
from .requests import STARTING, WAITING, Answer, Requests

#: A site without jobs to run is quiet after this time without work (seconds).
_QUIET_SECS, _STEP_SECS = 0.05, 0.002
#: Nobody enforces deadlines of jobs: a person may debug them.
_NEVER_SECS = 1e9

#: run(spec, token): runs one task in this process, and returns its exit
Runner = Callable[[TaskSpec, Token], ExitInfo]
_T = TypeVar("_T")


class Site:
    """A site for one user. run: runs tasks. The files of runs are in a new folder until `close`."""

    def __init__(self, uid: str, run: Runner) -> None:
        _check_thread()
        parse("uid", uid)  # folders have its name
        self.uid, self._run = uid, run
        self.folder = tempfile.mkdtemp(prefix="jobscribe-in-process-")
        self._loop = asyncio.new_event_loop()
        self._work: deque[tuple[Agent, Launch]] = deque()
        self._agents: list[Agent] = []
        self._answering = False
        self._ask(self._compose())
        atexit.register(self.close)

    async def _compose(self) -> None:
        redactor, counters = Redactor(), Counters()
        log = Log("in-process", redactor, _NoLog())
        self._store = MemoryStore(self._deliver)
        self._engine = Engine(_policy(), self._store, self)
        progress = Progress(self._engine, counters)
        usage = UsageSamples(self._engine, counters, time.monotonic)
        self._hub = Hub(self._engine, progress, usage, log, counters, _agent_id, 1)
        reports = DriverReports(log, counters, _agent_id)
        reports.bind(self._engine, usage, self._hub.next_epoch)
        drivers: dict[str, AgentDriver] = {Driver.name: Driver(self._start_agent)}
        keeper = KeeperTaskDriver(self._send, drivers, secrets.token_bytes)
        tasks: dict[str, TaskDriver] = {Driver.name: keeper}
        users = os.path.join(self.folder, "user")
        self.service = RunService(
            self._engine,
            EventFeed(self._store),
            OutputReader(self._hub, tasks, secrets.token_bytes),
            progress,
            counters,
            log,
            self.now,
            user_root=users,
            apps=("command",),
            drivers=drivers,
            evidence_root=os.path.join(self.folder, "agent"),
        )
        library = Library(users, limit=2**40, owner=lambda uid: None)
        reaper = RunDirReaper(
            self._engine,
            self._store,
            log,
            self.now,
            user_root=users,
            agents_root=os.path.join(self.folder, "agent"),
            after_secs=None,
            every_secs=_NEVER_SECS,
        )
        self._executor = EffectExecutor(
            drivers,
            tasks,
            self._engine,
            self._hub,
            reports,
            self.service,
            reaper,
            LibrarySync(library, self._hub, log, users, secrets.token_bytes, lambda key: False),
            redactor,
            log,
            counters,
            agent_id=_agent_id,
            driver_called=lambda *call: None,
        )
        self.service.check_options = _check
        self._requests = Requests(self.service, self.uid, users)
        self._engine.start()

    # ---- requests

    def request(self, method: str, path: str, body: bytes | None) -> Answer:
        """Answer a request, and run the jobs that it starts, to their end."""
        _check_thread()
        if self._answering:
            raise Refusal("notHere", "a job in the process of its client cannot use that client")
        self._answering = True
        try:
            name = path.removeprefix("/api/").partition("?")[0]
            if name in WAITING and body:
                fields = msgspec.json.decode(body)
                self._run_jobs(fields.pop("waitSecs", 0.0))
                body = msgspec.json.encode(fields)
            answer = self._ask(self._requests.answer(method, path, body))
            if name in STARTING:
                self._run_jobs(0.0)
            return answer
        finally:
            self._answering = False

    def pause(self, secs: float) -> None:
        """Run jobs that are due within this time, or wait."""
        self._ask(asyncio.sleep(secs))
        self._run_jobs(0.0)

    def _run_jobs(self, secs: float) -> None:
        """Run jobs until none is active. If the active ones wait for a time, wait for at most `secs`
        seconds.
        """
        end = time.monotonic() + max(secs, _QUIET_SECS)
        while self._active() and time.monotonic() < end:
            self._ask(asyncio.sleep(_STEP_SECS))
            while self._work:
                self._next_job()
                end = time.monotonic() + max(secs, _QUIET_SECS)

    def _active(self) -> bool:
        found = self._store.jobs(uid=None, status=None, active=True, before=None, limit=1)
        return bool(found)

    def close(self) -> None:
        """End the site. Its jobs, events and files are gone."""
        if self._loop.is_closed():
            return
        if self._answering:
            raise Refusal("notHere", "a job in the process of its client cannot close that client")
        self._ask(self._executor.close())
        self._ask(self._hub.close())
        self._loop.close()
        atexit.unregister(self.close)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _next_job(self) -> None:
        agent, launch = self._work.popleft()
        began, token = time.time(), launch.token
        self._tell(lambda: agent.started(token, began))
        exit_ = ExitInfo(source="start", detail="it was interrupted")
        try:
            exit_ = self._run(launch.spec, token)
        except KeyboardInterrupt:
            exit_ = ExitInfo(signal=signal.SIGINT, source="keeper")
            raise
        finally:
            times = {"started_at": began, "ended_at": time.time()}
            ended = msgspec.structs.replace(exit_, **times)
            self._tell(lambda: agent.ended(token, began, ended))

    def _tell(self, act: Callable[[], None]) -> None:
        async def told() -> None:
            act()
            await asyncio.sleep(0)

        self._ask(told())

    def _ask(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._loop.run_until_complete(work)

    def _start_agent(self, spec: AgentSpec) -> None:
        self._agents.append(Agent(self._hub, spec, lambda *task: self._work.append(task)))

    def _deliver(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def _send(self, key: AgentKey, message: ToAgent) -> None:
        self._hub.send(key, message)

    # ---- the engine's ports

    def now(self) -> Now:
        return Now(time.time(), time.monotonic(), clock.boot_id(), secrets.token_bytes(32))

    def perform(self, effect: Effect, cause: Cause) -> None:
        self._executor.perform(effect, cause)

    def projected(self, job: Job, position: int, at: float) -> None:
        self.service.projected(job)

    def connections(self) -> list[tuple[AgentKey, int, Alive]]:
        return self._hub.alive()

    def fatal(self, refusal: Refusal) -> None:
        raise refusal

    def noticed(self, what: str, detail: str) -> None:
        return None

    def broken(self, error: Exception) -> None:
        raise error


def _check_thread() -> None:
    """Refuse a thread whose event loop runs, because jobs and requests would wait for each other."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Refusal(
        "notHere",
        "an event loop runs in this thread, as in a notebook; use a client in one process in a script,"
        " or in a thread of its own",
    )


def _check(spec: RunSpec) -> None:
    """Refuse what one process does not have."""
    if spec.roles:
        raise Refusal(
            "notHere",
            "a run with roles needs processes of its own; start a supervisor ('jobscribe up'), or try"
            " one task with 'jobscribe job simulate'",
        )
    if spec.profile:
        raise Refusal(
            "notHere",
            "a job in the process of its client is profiled with the client"
            " ('python -m cProfile -m jobscribe.cli run --in-process ...'); leave out --profile",
        )


class _NoLog:
    def write(self, record: Record) -> None:
        return None


def _agent_id(key: AgentKey) -> str:
    return derived_id(str(key).encode(), key=b"in process")


def _policy() -> CoreConfig:
    kinds = (AgentKind.SEQUENTIAL, AgentKind.PARALLEL)
    one = {(Driver.name, kind): 1 for kind in kinds}
    return CoreConfig(
        cpu_slots=one,
        op_run_slots=one,
        limit_slack_secs=_NEVER_SECS,
        op_reply_secs=_NEVER_SECS,
    )
