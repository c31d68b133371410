"""Tasks in containers of their own: the TaskDriver of places of kind `container`, which no agent
speaks for but this.

What is known is in memory and in the ledger of each place (see places); what is on a host is asked
for when it comes up, at each event, and now and then. Nothing is called gone because a host cannot
be asked.
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
    PortsProbed,
    RunStatusUpdate,
    Shared,
    TaskRun,
    TaskSpec,
    ToSupervisor,
)
from ....runtime.execution.output_limit import DEFAULT_HEAD, DEFAULT_TAIL, OutputCap
from ....runtime.log.logger import Log
from ... import untrusted_files
from ...contracts import Found, Handle
from ..agents.driver import DockerDriver
from ..containers import names
from ..host.engine import EngineError, HostEngine
from .ledger import ContainerLedger, Stop
from .networks import GangNetworks
from .observer import ContainerObserver
from .poll_loop import TaskPollLoop
from .recovery import Recovery
from .start import Refused, TaskStarter
from .state import ContainerPlace, TaskState
from .stop import ContainerStopper

#: A place that is closed: what runs there has so long.
CLOSE_GRACE_SECS, CLOSE_SECS = 3.0, 30.0


class ContainerTaskController:
    """A TaskDriver, and who answers for the driver's places; see drivers.driver for what its
    methods promise. Made on the loop.
    """

    def __init__(
        self, driver: DockerDriver, log: Log, *, head: int = DEFAULT_HEAD, tail: int = DEFAULT_TAIL
    ) -> None:
        """head, tail: bytes of a task's output that stay."""
        self._driver, self._log = driver, log
        self._places: dict[AgentKey, ContainerPlace] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._looking = ContainerObserver(
            OutputCap(lambda sentence: log("{}", sentence), head, tail), self._ended, self._runs
        )
        networks = GangNetworks(driver.deployment, log)
        self._launching = TaskStarter(driver, log, networks, self._ended, self._began)
        self._stopping = ContainerStopper(driver, self._look)
        self._recovery = Recovery(driver, log)
        self._upkeep = TaskPollLoop(
            driver,
            log,
            networks,
            self._places,
            self._looking,
            self._say,
            lambda t: self._stop(t, "timeLimit", t.grace),
            lambda t: self._spawn(self._stopping.clear(t)),
        )
        driver.places = _PlaceAdapter(self)
        driver.listen(self)

    # ---- a TaskDriver

    def launch(self, place: AgentKey, token: Token, spec: TaskSpec) -> None:
        self._launch(place, None, [(token, spec)])

    def launch_gang(self, place: AgentKey, shared: Shared, tasks: Sequence[TaskRun]) -> None:
        self._launch(place, shared, [(t.token, t.spec) for t in tasks])

    def probe(self, place: AgentKey, op_id: OpId, ports: Sequence[int]) -> None:
        if self._up(place) is not None:  # in a network of their own nobody was before them
            self._later(place, PortsProbed(op_id=op_id, busy=()))

    def stop(self, place: AgentKey, token: Token, reason: str, grace_secs: float) -> None:
        there = self._places.get(place)
        if there is None:
            return
        task = there.tasks.get(token)
        if task is None:
            if not there.up:
                return
            task = there.tasks[token] = TaskState(there, token)
        if task.exit is None:
            self._stop(task, reason, grace_secs)
        else:
            self._tell(task)

    def find(self, place: AgentKey) -> None:
        there = self._up(place)
        if there is not None:
            asyncio.get_running_loop().call_soon(self._snapshot, there)

    def settle(self, place: AgentKey, tokens: tuple[Token, ...]) -> None:
        there = self._places.get(place)
        for token in tokens if there is not None else ():
            assert there is not None
            task = there.tasks.get(token)
            if task is not None and task.exit is not None:
                del there.tasks[token]
                self._upkeep.forget(token)
                if task.asked is not None:
                    self._spawn(self._upkeep.settle(task))

    def release(self, place: AgentKey, token: Token) -> None:
        there = self._places.get(place)
        task = there.tasks.get(token) if there is not None else None
        if task is not None:  # its end is not settled yet
            task.released = True
        else:
            self._spawn(self._upkeep.release(place, token))

    async def evidence(
        self, place: AgentKey, token: Token, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        folder = self._driver.root / "agent" / str(place)
        return await asyncio.to_thread(
            untrusted_files.read, folder, ("run", token.name, *name.split("/")), offset, limit
        )

    # ---- the driver's Places

    async def open(self, key: AgentKey) -> Handle:
        """Answer for this place from now on. Raises Refusal("agentUnavailable") where it cannot be
        asked now.
        """
        place = self._place(key)
        try:
            await self._answer_for(place)
        except EngineError as e:
            raise Refusal("agentUnavailable", e.sentence) from None
        return {"folder": place.files.folder}

    async def find_place(self, key: AgentKey) -> Found:
        place = self._place(key)
        engine = self._driver.engines.get(key.host)
        if engine is None:
            return Found(
                state="unknown",
                detail=f"host {key.host} is not in the pool any more: nobody can tell what is there",
            )
        if not place.up and engine.up:
            try:
                await self._answer_for(place)
            except (EngineError, OSError) as e:
                return Found(
                    state="unknown", detail=e.sentence if isinstance(e, EngineError) else str(e)
                )
        return Found(
            state="alive" if place.up else "unknown", detail=f"host {key.host}: {engine.detail}"
        )

    async def close_place(self, key: AgentKey) -> None:
        place = self._places.get(key)
        if place is None:
            return
        for task in [t for t in place.tasks.values() if t.exit is None]:
            self._stop(task, "agentStopped", CLOSE_GRACE_SECS)
        for task in list(place.tasks.values()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(task.over.wait(), CLOSE_SECS)
        self._is_down(place)
        del self._places[key]

    async def close(self) -> None:
        """Tasks live on."""
        self._upkeep.close()
        for work in list(self._work):
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    # ---- the driver's Listener

    def on_state(self, host: str, up: bool, detail: str) -> None:
        for place in self._of_host(host):
            if not up:
                self._is_down(place)

    def on_sync(self, host: str) -> None:
        self._spawn(self._reconcile(host))

    def on_event(self, host: str, event: dict[str, Any]) -> None:
        labels = (event.get("Actor") or {}).get("Attributes") or {}
        if labels.get(names.PART) != "task":
            return
        key, token = names.key_of(labels), names.token_of(labels)
        place = self._places.get(key) if key is not None else None
        task = place.tasks.get(token) if place is not None and token is not None else None
        if task is None:
            return
        match event.get("Action"):
            case "oom":
                task.ooms += 1
            case "start" | "die" | "destroy":
                self._spawn(self._look(task))

    # ---- inside: places

    def _place(self, key: AgentKey) -> ContainerPlace:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = ContainerPlace(
                key, ContainerLedger(str(self._driver.root / "agent" / str(key)))
            )
        return place

    def _up(self, key: AgentKey) -> ContainerPlace | None:
        place = self._places.get(key)
        return place if place is not None and place.up else None

    def _of_host(self, host: str) -> list[ContainerPlace]:
        return [p for p in self._places.values() if p.key.host == host]

    async def _answer_for(self, place: ContainerPlace) -> None:
        """Find out what is there, unless it is known, and say so."""
        async with place.opening:
            if place.up:
                return
            engine = self._driver.engines[place.key.host]
            boot_id = await self._recovery.known(place, engine)
            if not engine.up or self._places.get(place.key) is not place:
                return
            place.up = True
            self._driver.spokesman.up(place.key, boot_id)
            self._snapshot(place)
            for task in list(place.tasks.values()):
                self._go_on(task)
            self._upkeep.start()

    def _is_down(self, place: ContainerPlace) -> None:
        if place.up:
            place.up = False
            self._driver.spokesman.down(place.key)

    async def _reconcile(self, host: str) -> None:
        """Events may have been missed: whoever does not run any more, for all that the engine says,
        is looked at.
        """
        engine = self._driver.engines[host]
        filters = names.filters(self._driver.deployment, "task")
        try:
            for place in [p for p in self._of_host(host) if not p.up and engine.up]:
                await self._answer_for(place)
            running = {
                c["Id"]
                for c in await engine.call(
                    "list tasks that run", lambda c: c.containers(filters=filters)
                )
            }
        except (EngineError, OSError) as e:
            self._log(
                "tasks on host {} could not be looked at: {}",
                host,
                e.sentence if isinstance(e, EngineError) else str(e),
            )
            return
        for task in [
            t for p in self._of_host(host) for t in p.tasks.values() if t.begun and t.exit is None
        ]:
            if task.pid is None or task.container not in running:
                await self._look(task)
        await self._upkeep.sweep(engine)

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
            self._tell(task)
        if new:
            self._spawn(self._begin(place, new, shared))

    async def _begin(
        self, place: ContainerPlace, tasks: list[TaskState], shared: Shared | None
    ) -> None:
        try:
            await self._launching.begin(place, tasks, shared)
        except Exception as e:
            self._log.exception(
                "tasks of {} could not be launched",
                tasks[0].token.jid,
                error=e,
                jid=tasks[0].token.jid,
            )
            for task in [t for t in tasks if not t.begun]:
                await self._launching.refuse(
                    task,
                    Refused("the supervisor failed while it was starting it; its log says how"),
                )

    def _go_on(self, task: TaskState) -> None:
        """With what was under way when it was looked at last."""
        if task.exit is not None:
            return
        if task.begun:
            self._spawn(self._look(task))
        elif task.spec is None and task.container is not None:
            self._spawn(self._launching.resume(task))
        if task.stop is not None and task.begun:
            self._spawn(self._stopping.run(task))

    def _stop(self, task: TaskState, reason: str, grace_secs: float) -> None:
        """The first reason stays, the shortest grace counts."""
        kill_at = time.monotonic() + grace_secs
        first = task.stop is None
        if task.stop is None:
            task.stop = Stop(reason=reason, grace=grace_secs, signaled=False)
        task.kill_at = kill_at if task.kill_at is None else min(task.kill_at, kill_at)
        task.changed.set()
        if first and not task.begun:
            self._spawn(self._launching.forbid(task))
        elif first:
            self._spawn(self._stopping.run(task))

    def _began(self, task: TaskState) -> None:
        task.begun = True
        if task.stop is not None:
            self._spawn(self._stopping.run(task))
        self._spawn(self._look(task))

    def _runs(self, task: TaskState) -> None:
        self._log(
            "{} runs in container {}",
            str(task.token),
            (task.container or "")[:12],
            jid=task.token.jid,
        )
        self._tell(task)

    def _ended(self, task: TaskState, exit_: ExitInfo) -> None:
        if task.exit is not None:
            return
        task.exit = exit_
        task.over.set()
        task.changed.set()
        self._log("{} has ended: {}", str(task.token), exit_.sentence(), jid=task.token.jid)
        self._tell(task)
        self._spawn(self._upkeep.leave_network(task))

    async def _look(self, task: TaskState) -> None:
        engine: HostEngine = self._driver.engines[task.place.key.host]
        try:
            await self._looking.look(task, engine)
        except EngineError as e:
            self._log.trace("{} could not be looked at: {}", str(task.token), e.sentence)
        except OSError as e:
            self._log(
                "the end of {} cannot be written down: {}; it is tried again",
                str(task.token),
                e.strerror or str(e),
            )

    # ---- inside: saying

    def _snapshot(self, place: ContainerPlace) -> None:
        for page in place.snapshot() if place.up else ():
            self._driver.spokesman.said(place.key, page)

    def _tell(self, task: TaskState) -> None:
        task.told = time.monotonic()
        asyncio.get_running_loop().call_soon(self._say, task)

    def _say(self, task: TaskState) -> None:
        if task.place.up:
            self._driver.spokesman.said(task.place.key, RunStatusUpdate(execution=task.execution()))

    def _later(self, key: AgentKey, message: ToSupervisor) -> None:
        asyncio.get_running_loop().call_soon(self._driver.spokesman.said, key, message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.exception("work for tasks in containers failed", error=task.exception())


class _PlaceAdapter:
    """The driver's `Places`; `find` is another verb there."""

    def __init__(self, tasks: ContainerTaskController) -> None:
        self._tasks = tasks

    async def open(self, key: AgentKey) -> Handle:
        return await self._tasks.open(key)

    async def find(self, key: AgentKey, handle: Handle) -> Found:
        return await self._tasks.find_place(key)

    async def close_place(self, key: AgentKey) -> None:
        await self._tasks.close_place(key)
