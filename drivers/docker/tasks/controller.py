"""Tasks in containers of their own: the TaskDriver for keys of kind `container`, which have no
agent.

State is in memory and in the ledger of each place (see `ledger`). The containers of a host are
queried when it comes up, at each event, and periodically. No task counts as gone because its host
cannot be reached.
"""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey, OpId, Token
from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.wire.messages import (
    AttachDebugger,
    DebuggerIo,
    DebuggerOutput,
    ListStops,
    OpenShell,
    PortsProbed,
    RunStatusUpdate,
    Shared,
    ShellIo,
    ShellOutput,
    SlotUse,
    Stops,
    TaskRun,
    TaskSpec,
    ToSupervisor,
)
from ....runtime.execution.output_limit import DEFAULT_HEAD, DEFAULT_TAIL, OutputCap
from ....runtime.log.logger import Log
from ... import untrusted_files
from ...contracts import Found, FoundState, Handle
from ..agents.driver import DockerDriver
from ..containers import names
from ..host.engine import EngineError, HostEngine
from .debuggers import ContainerDebuggers
from .ledger import ContainerLedger
from .networks import GangNetworks
from .observer import ContainerObserver
from .poll_loop import TaskPollLoop
from .recovery import Recovery
from .shells import ContainerShells
from .start import Refused, TaskStarter
from .state import ContainerPlace, TaskState
from .stop import ContainerStopper

#: Grace period of tasks whose place is closed, and the maximum wait for their end, in seconds.
CLOSE_GRACE_SECS, CLOSE_SECS = 3.0, 30.0


class ContainerTaskController:
    """A TaskDriver, and the PlaceProvider of the driver. See drivers.contracts for the contract of
    the methods. Create it on the event loop.
    """

    def __init__(
        self, driver: DockerDriver, log: Log, *, head: int = DEFAULT_HEAD, tail: int = DEFAULT_TAIL
    ) -> None:
        """head, tail: bytes of a task's output that are kept."""
        self._driver, self._log = driver, log
        self._places: dict[AgentKey, ContainerPlace] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._observer = ContainerObserver(
            OutputCap(lambda sentence: log("{}", sentence), head, tail),
            self._on_ended,
            self._on_running,
        )
        networks = GangNetworks(driver.deployment, log)
        self._starter = TaskStarter(
            driver, networks, self._on_ended, self._on_started, self._report
        )
        self._stopper = ContainerStopper(driver, self._observe, self._starter.bar_start)
        self._recovery = Recovery(driver)
        self._shells = ContainerShells(driver, log)
        self._debuggers = ContainerDebuggers(driver, log)
        self._poll_loop = TaskPollLoop(
            driver,
            log,
            networks,
            self._places,
            self._observer,
            self._report,
            self._attend,
        )
        driver.places = _PlaceAdapter(self)
        driver.listen(self)

    # ---- TaskDriver

    def launch(
        self, place: AgentKey, token: Token, spec: TaskSpec, slot: SlotUse | None = None
    ) -> None:
        self._launch(place, None, [(token, spec)])

    def launch_gang(self, place: AgentKey, shared: Shared, tasks: Sequence[TaskRun]) -> None:
        self._launch(place, shared, [(t.token, t.spec) for t in tasks])

    def probe(self, place: AgentKey, op_id: OpId, ports: Sequence[int]) -> None:
        if self._up(place) is not None:  # a gang has its own network, where all ports are free
            self._send_later(place, PortsProbed(op_id=op_id, busy=()))

    def stop(self, place: AgentKey, token: Token, reason: str, grace_secs: float) -> None:
        found = self._places.get(place)
        if found is None:
            return
        task = found.tasks.get(token)
        if task is None:
            if not found.up:
                return
            task = found.tasks[token] = TaskState(found, token)
        if task.life.ended:
            self._report(task)
        else:
            self._stop(task, reason, grace_secs)

    def find(self, place: AgentKey) -> None:
        found = self._up(place)
        if found is not None:
            asyncio.get_running_loop().call_soon(self._snapshot, found)

    def settle(self, place: AgentKey, tokens: tuple[Token, ...]) -> None:
        found = self._places.get(place)
        if found is None:
            return
        known = found.tasks.copy()
        for token in found.table.settle(tokens):
            self._poll_loop.forget(token)
            if known[token].request is not None:
                self._spawn(self._poll_loop.settle(known[token]))

    def release(self, place: AgentKey, token: Token) -> None:
        self._shells.leave(token)
        found = self._places.get(place)
        task = found.tasks.get(token) if found is not None else None
        if task is not None:  # its end is not acknowledged yet
            task.released = True
        else:
            self._spawn(self._poll_loop.release(place, token))

    async def evidence(
        self, place: AgentKey, token: Token, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        folder = self._driver.root / "agent" / str(place)
        return await asyncio.to_thread(
            untrusted_files.read, folder, ("run", token.name, *name.split("/")), offset, limit
        )

    async def shell(self, place: AgentKey, op: OpenShell | ShellIo) -> ShellOutput:
        return await self._shells.answer(place, op)

    async def debug(
        self, place: AgentKey, op: ListStops | AttachDebugger | DebuggerIo
    ) -> Stops | DebuggerOutput:
        return await self._debuggers.answer(place, op)

    # ---- PlaceProvider of the driver

    async def open(self, key: AgentKey) -> Handle:
        """Report for this place from now on. Raises Refusal("agentUnavailable") if its host cannot
        be queried now.
        """
        place = self._place(key)
        try:
            await self._open_place(place)
        except EngineError as e:
            raise Refusal("agentUnavailable", e.sentence) from None
        return {"folder": place.files.folder}

    async def find_place(self, key: AgentKey) -> Found:
        place = self._place(key)
        engine = self._driver.engines.get(key.host)
        if engine is None:
            return Found(
                state=FoundState.UNKNOWN,
                detail=f"host {key.host} is no longer in the pool, so the state of its containers is unknown",
            )
        if not place.up and engine.up:
            try:
                await self._open_place(place)
            except (EngineError, OSError) as e:
                return Found(
                    state=FoundState.UNKNOWN,
                    detail=e.sentence if isinstance(e, EngineError) else str(e),
                )
        return Found(
            state=FoundState.ALIVE if place.up else FoundState.UNKNOWN,
            detail=f"host {key.host}: {engine.detail}",
        )

    async def close_place(self, key: AgentKey) -> None:
        place = self._places.get(key)
        if place is None:
            return
        for task in place.table.live():
            self._stop(task, "agentStopped", CLOSE_GRACE_SECS)
        for task in list(place.tasks.values()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(task.ended.wait(), CLOSE_SECS)
        self._mark_down(place)
        del self._places[key]

    async def close(self) -> None:
        """Stop the driver. Tasks continue."""
        await asyncio.gather(self._shells.close(), self._debuggers.close())
        self._poll_loop.close()
        for work in list(self._background):
            work.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    # ---- Listener of the driver

    def on_state(self, host: str, up: bool, detail: str) -> None:
        for place in self._places_on(host):
            if not up:
                self._mark_down(place)

    def on_sync(self, host: str) -> None:
        self._spawn(self._reconcile(host))

    def on_event(self, host: str, event: dict[str, Any]) -> None:
        labels = (event.get("Actor") or {}).get("Attributes") or {}
        if labels.get(names.PART) != "task":
            return
        key, token = names.parse_agent_label(labels), names.parse_token_label(labels)
        place = self._places.get(key) if key is not None else None
        task = place.tasks.get(token) if place is not None and token is not None else None
        if task is None:
            return
        match event.get("Action"):
            case "oom":
                task.oom_kills += 1
            case "start" | "die" | "destroy":
                self._spawn(self._observe(task))

    # ---- inside: places

    def _place(self, key: AgentKey) -> ContainerPlace:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = ContainerPlace(
                key, ContainerLedger(str(self._driver.root / "agent" / str(key))), self._log
            )
        return place

    def _up(self, key: AgentKey) -> ContainerPlace | None:
        place = self._places.get(key)
        return place if place is not None and place.up else None

    def _places_on(self, host: str) -> list[ContainerPlace]:
        return [p for p in self._places.values() if p.key.host == host]

    async def _open_place(self, place: ContainerPlace) -> None:
        """Find the tasks of a place, unless they are known, and report them."""
        async with place.opening:
            if place.up:
                return
            engine = self._driver.engines[place.key.host]
            boot_id = await self._recovery.load(place, engine)
            if not engine.up or self._places.get(place.key) is not place:
                return
            place.up = True
            self._driver.reporter.up(place.key, boot_id)
            self._snapshot(place)
            for task in list(place.tasks.values()):
                self._continue(task)
            self._poll_loop.start()

    def _mark_down(self, place: ContainerPlace) -> None:
        if place.up:
            place.up = False
            self._driver.reporter.down(place.key)

    async def _reconcile(self, host: str) -> None:
        """Inspect the tasks that the engine does not list as running, because events may have been
        missed.
        """
        engine = self._driver.engines[host]
        filters = names.filters(self._driver.deployment, "task")
        try:
            for place in [p for p in self._places_on(host) if not p.up and engine.up]:
                await self._open_place(place)
            running = {
                c["Id"]
                for c in await engine.call(
                    "list tasks that run", lambda c: c.containers(filters=filters)
                )
            }
        except (EngineError, OSError) as e:
            self._log(
                "tasks on host {} could not be listed: {}",
                host,
                e.sentence if isinstance(e, EngineError) else str(e),
            )
            return
        for task in [t for p in self._places_on(host) for t in p.table.live()]:
            if task.start_requested and (task.pid is None or task.container not in running):
                await self._observe(task)
        await self._shells.sweep(engine)
        await self._poll_loop.sweep(engine)

    # ---- inside: tasks

    def _launch(
        self, key: AgentKey, shared: Shared | None, wanted: Sequence[tuple[Token, TaskSpec]]
    ) -> None:
        place = self._up(key)
        if place is None:
            return
        new = []
        for token, spec in wanted:
            task = place.tasks.get(token)
            if task is None:
                task = place.tasks[token] = TaskState(place, token, spec)
                new.append(task)
            self._report(task)
        if new:
            self._spawn(self._start_all(place, new, shared))

    async def _start_all(
        self, place: ContainerPlace, tasks: list[TaskState], shared: Shared | None
    ) -> None:
        try:
            await self._starter.start_all(place, tasks, shared)
        except Exception as e:
            tasks[0].log.exception("tasks of {} could not be launched", tasks[0].token.jid, error=e)
            for task in [t for t in tasks if not t.start_requested]:
                await self._starter.fail_start(
                    task,
                    Refused(
                        "the supervisor failed during the start; see the stack trace in its log"
                    ),
                )

    def _continue(self, task: TaskState) -> None:
        """Continue the work on a recovered task."""
        if task.life.ended:
            return
        if task.start_requested:
            self._spawn(self._observe(task))
        elif task.spec is None and task.container is not None:
            self._spawn(self._starter.resume(task))
        if task.start_requested or task.life.stopping:
            self._attend(task)

    def _stop(self, task: TaskState, reason: str, grace_secs: float) -> None:
        if task.life.stop(reason, grace_secs, time.monotonic()):
            self._attend(task)

    def _attend(self, task: TaskState) -> None:
        """Perform the steps of a task until it has ended."""
        task.changed.set()
        if not task.attended:
            task.attended = True
            self._spawn(self._stopper.run(task))

    def _on_started(self, task: TaskState) -> None:
        task.start_requested = True
        self._attend(task)
        self._spawn(self._observe(task))

    def _on_running(self, task: TaskState) -> None:
        task.log("{} runs in container {}", str(task.token), (task.container or "")[:12])
        self._report(task)

    def _on_ended(self, task: TaskState, exit_: ExitInfo) -> None:
        if task.life.ended:
            return
        task.finish(exit_)
        task.log("{} has ended: {}", str(task.token), exit_.sentence())
        self._report(task)
        self._spawn(self._poll_loop.release_network(task))

    async def _observe(self, task: TaskState) -> None:
        engine: HostEngine = self._driver.engines[task.place.key.host]
        try:
            await self._observer.observe(task, engine)
        except EngineError as e:
            task.log.trace("{} could not be inspected: {}", str(task.token), e.sentence)
        except OSError as e:
            task.log(
                "the exit of {} cannot be written to disk: {}; this is tried again",
                str(task.token),
                e.strerror or str(e),
            )

    # ---- inside: reporting

    def _snapshot(self, place: ContainerPlace) -> None:
        for page in place.snapshot() if place.up else ():
            self._driver.reporter.said(place.key, page)

    def _report(self, task: TaskState) -> None:
        task.life.reported(time.monotonic())
        asyncio.get_running_loop().call_soon(self._send, task)

    def _send(self, task: TaskState) -> None:
        if task.place.up:
            self._driver.reporter.said(task.place.key, RunStatusUpdate(execution=task.execution()))

    def _send_later(self, key: AgentKey, message: ToSupervisor) -> None:
        asyncio.get_running_loop().call_soon(self._driver.reporter.said, key, message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.exception(
                "a background task of the docker task driver failed", error=task.exception()
            )


class _PlaceAdapter:
    """The PlaceProvider of the driver. A separate class, because its `find` differs from that of a
    TaskDriver.
    """

    def __init__(self, tasks: ContainerTaskController) -> None:
        self._tasks = tasks

    async def open(self, key: AgentKey) -> Handle:
        return await self._tasks.open(key)

    async def find(self, key: AgentKey, handle: Handle) -> Found:
        return await self._tasks.find_place(key)

    async def close_place(self, key: AgentKey) -> None:
        await self._tasks.close_place(key)
