"""Agents in containers on a pool of hosts: the `docker` AgentDriver.

A container for each (uid, kind), from the pool's image, with the keeper as PID 1. They outlive the
supervisor and its hosts' daemons, and are found again by id and label; when one ends, its reason is
kept before it is removed. Places of kind `container` are no process: whoever launches tasks in
containers of their own answers for them.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from ....protocol.clusters.container_pool import Pool
from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey, parse_agent_key
from ....protocol.redaction import Redactor
from ....runtime.log.logger import Log
from ... import untrusted_files
from ...contracts import AgentSpec, Capabilities, Capacity, Found, Handle, PlaceReporter
from ..containers import exit_status, names
from ..containers.uid_allocation import UnixUsers
from ..host.container_calls import inspect
from ..host.engine import EngineError, HostEngine
from ..host.log_drivers import LogDrivers
from ..images.image_store import ImageFault, ImageStore
from .container_reaper import ContainerReaper
from .container_start import ContainerStarter
from .relay_container import Relay
from .subnet_check import in_the_way

#: A keeper that was told to end has this long beyond its grace (seconds).
_KEEPER_SECS = 5.0
#: After SIGKILL nothing but the engine takes time.
_KILLED_SECS = 30.0
_LOOK_FIRST, _LOOK_SECS = 0.02, 0.25
#: SIGTERM is sent again after so long, then after twice as long.
_AGAIN_SECS = 0.25
UNIX_USERS = "unix-users.json"
#: Of one host. More of them would get in each other's way: each would take so long that it is given
#: up, and be started again.
STARTS_AT_ONCE = 4


class PlaceProvider(Protocol):
    """Who answers for places of kind `container`."""

    async def open(self, key: AgentKey) -> Handle: ...

    async def find(self, key: AgentKey, handle: Handle) -> Found: ...

    async def close_place(self, key: AgentKey) -> None: ...


class Listener(Protocol):
    """Who hears what happens on hosts besides the driver: all on the loop. See HostEngine."""

    def on_state(self, host: str, up: bool, detail: str) -> None: ...

    def on_event(self, host: str, event: dict[str, Any]) -> None: ...

    def on_sync(self, host: str) -> None: ...


class DockerDriver:
    """See drivers.driver for what its methods promise. `watch` is called once the loop runs;
    before, every host is down.
    """

    name = "docker"

    def __init__(
        self,
        pool: Pool,
        root: Path,
        user_root: str,
        *,
        deployment: str,
        address: Callable[[], Mapping[str, Any]],
        log: Log,
        redactor: Redactor,
        spokesman: PlaceReporter,
        agent_settings: dict[str, Any] | None = None,
        keeper_settings: dict[str, Any] | None = None,
    ) -> None:
        """address: what the supervisor's agents.json says. Raises Refusal("badConfig")."""
        self.pool, self.root, self.user_root, self.deployment, self.log = (
            pool,
            root,
            user_root,
            deployment,
            log,
        )
        self.spokesman = spokesman
        self.capabilities = Capabilities(
            tasks="keeper", same_machine=False, containers=True, volumes=tuple(pool.volumes)
        )
        self.unix_users = UnixUsers(root / UNIX_USERS, pool.unix_users)
        self.log_drivers = LogDrivers(pool.log_driver, log)
        self.remains = ContainerReaper(root, deployment, log, redactor)
        self.engines: dict[str, HostEngine] = {}
        self.images: dict[str, ImageStore] = {}
        self.relays: dict[str, Relay] = {}
        self.places: PlaceProvider | None = None
        self._listeners: list[Listener] = []
        self._starts: dict[str, ContainerStarter] = {}
        self._known = {h.name: asyncio.Event() for h in pool.hosts}
        self._starting: dict[AgentKey, list[asyncio.Lock]] = {}
        self._at_once = {h.name: asyncio.Semaphore(STARTS_AT_ONCE) for h in pool.hosts}
        self._ended: dict[str, asyncio.Event] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._closed = False
        for host in pool.hosts:
            engine = self.engines[host.name] = HostEngine(
                host,
                deployment=deployment,
                log=log,
                call_secs=pool.call_secs,
                on_state=self._state,
                on_event=self._event,
                on_sync=self._sync,
            )
            images = self.images[host.name] = ImageStore(engine, pool, log)
            relay = self.relays[host.name] = Relay(
                engine, images, pool, deployment, address, self.log_drivers, log
            )
            self._starts[host.name] = ContainerStarter(
                engine,
                images,
                relay,
                pool,
                root,
                user_root,
                deployment=deployment,
                unix_users=self.unix_users,
                log_drivers=self.log_drivers,
                remains=self.remains,
                agent_settings=agent_settings or {},
                keeper_settings=keeper_settings or {},
                log=log,
            )

    def listen(self, listener: Listener) -> None:
        """It hears everything of all hosts from now on."""
        self._listeners.append(listener)

    def watch(self) -> None:
        """Begin to look after the hosts."""
        for engine in self.engines.values():
            engine.start()

    # ---- the contract

    async def start(self, spec: AgentSpec) -> Handle:
        key = spec.key
        try:
            engine = await self._engine_up(key.host)
            if key.kind == "container":
                if self.places is None:
                    raise Refusal("agentUnavailable", "nobody launches tasks in containers here")
                return {
                    **await self.places.open(key),
                    "host": key.host,
                    "kind": key.kind,
                    "key": str(key),
                }
            with self._turn(key) as turn:
                async with turn, self._at_once[engine.name]:
                    return await self._starts[engine.name].start(spec)
        except (EngineError, ImageFault) as e:
            raise Refusal("agentUnavailable", self._of_host(key.host, e.sentence)) from None
        except OSError as e:
            raise Refusal(
                "agentUnavailable",
                f"the folders of {key} cannot be made: {e.filename}: {e.strerror}",
            ) from None

    async def find(self, handle: Handle) -> Found:
        key = _key(handle)
        if handle.get("kind") == "container":
            if self.places is None or key is None:
                return Found(state="unknown", detail="nobody launches tasks in containers here")
            return await self.places.find(key, handle)
        engine, id_ = self.engines.get(str(handle.get("host"))), handle.get("id")
        if engine is None or not isinstance(id_, str) or not id_:
            return Found(
                state="unknown",
                detail="its handle does not say which container it is, on a host of the pool",
            )
        if self._known[engine.name].is_set() and not engine.up:
            return Found(state="unknown", detail=self._of_host(engine.name, engine.detail))
        try:
            sentence = await self.remains.settle(engine, id_, key)
        except EngineError as e:
            return Found(state="unknown", detail=self._of_host(engine.name, e.sentence))
        if sentence is not None:
            return Found(state="gone", detail=sentence)
        return Found(
            state="alive", detail=f"container {handle.get('name', id_[:12])} on host {engine.name}"
        )

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        """Raises Refusal where nobody can tell whether anything of it is left."""
        key = _key(handle)
        if handle.get("kind") == "container":
            if self.places is not None and key is not None:
                await self.places.close_place(key)
            return
        engine, id_ = self.engines.get(str(handle.get("host"))), handle.get("id")
        if not isinstance(id_, str) or not id_:
            return
        if engine is None:
            raise Refusal(
                "agentUnavailable",
                f"host {handle.get('host')!a} is not in the pool any more: nobody can tell what is there",
            )
        try:
            await self._stop(engine, id_, grace_secs, key)
        except EngineError as e:
            raise Refusal("agentUnavailable", self._of_host(engine.name, e.sentence)) from None

    async def evidence(
        self, key: AgentKey, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        return await asyncio.to_thread(
            untrusted_files.read,
            self.root / "agent" / str(key),
            ("run", *name.split("/")),
            offset,
            limit,
        )

    def capacity(self) -> Capacity:
        return Capacity(
            sequential=sum(h.sequential for h in self.pool.hosts),
            parallel=sum(h.parallel for h in self.pool.hosts),
        )

    async def check(self) -> list[str]:
        said = await asyncio.gather(*(self._check(name) for name in self.engines))
        return [
            self._of_host(name, s)
            for name, sentences in zip(self.engines, said, strict=True)
            for s in sentences
        ]

    async def close(self) -> None:
        self._closed = True
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self.remains.close()
        await asyncio.gather(*(e.close() for e in self.engines.values()))

    # ---- inside

    async def _check(self, name: str) -> list[str]:
        sentences = await self.engines[name].check()
        if not sentences:
            try:
                await self.images[name].have(self.pool.image)
                return await in_the_way(self.engines[name], self.pool.task_subnets, self.deployment)
            except (EngineError, ImageFault) as e:
                return [e.sentence]
        return sentences

    async def _engine_up(self, host: str) -> HostEngine:
        engine = self.engines.get(host)
        if engine is None:
            raise Refusal("agentUnavailable", f"there is no host {host} in the pool")
        if not engine.up:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._known[host].wait(), self.pool.call_secs)
        if not engine.up:
            raise Refusal("agentUnavailable", self._of_host(host, engine.detail))
        return engine

    async def _stop(
        self, engine: HostEngine, id_: str, grace_secs: float, key: AgentKey | None
    ) -> None:
        said = await inspect(engine, id_)
        if said is not None and not names.is_ours(said["Config"]["Labels"], self.deployment):
            return
        if said is not None and exit_status.running(said["State"]):
            self.remains.stops(id_)
            ended = self._ended.setdefault(id_, asyncio.Event())
            try:
                await _end(engine, id_, ended, grace_secs + _KEEPER_SECS)
            finally:
                self._ended.pop(id_, None)
        await self.remains.settle(engine, id_, key)

    @contextlib.contextmanager
    def _turn(self, key: AgentKey) -> Iterator[asyncio.Lock]:
        """Of starts of one key, one at a time."""
        queue = self._starting.setdefault(key, [])
        lock = queue[0] if queue else asyncio.Lock()
        queue.append(lock)
        try:
            yield lock
        finally:
            queue.pop()
            if not queue:
                del self._starting[key]

    def _of_host(self, host: str, sentence: str) -> str:
        return sentence if f"host {host}" in sentence else f"host {host}: {sentence}"

    # ---- what hosts say

    def _state(self, host: str, up: bool, detail: str) -> None:
        self._known[host].set()
        if not up:
            self.relays[host].lost()
        self.spokesman.host(self.name, host, "up" if up else "down", detail)
        for listener in self._listeners:
            listener.on_state(host, up, detail)

    def _event(self, host: str, event: dict[str, Any]) -> None:
        for listener in self._listeners:
            listener.on_event(host, event)
        actor = event.get("Actor") or {}
        id_, action = str(actor.get("ID", "")), event.get("Action")
        part = (actor.get("Attributes") or {}).get(names.PART)
        if part == "relay" and action in ("die", "destroy"):
            self.log("host {}: the relay of its agents: {}", host, action)
            self.relays[host].lost()
            self._spawn(self._look_after_relay(host))
        if part != "agent":
            return
        if action == "oom":
            self.remains.oom(id_)
        elif action == "die":
            if (ended := self._ended.get(id_)) is not None:
                ended.set()
            else:
                self._spawn(self._bury(host, id_))

    def _sync(self, host: str) -> None:
        for listener in self._listeners:
            listener.on_sync(host)
        self.relays[host].lost()
        self._spawn(self._reconcile(host))

    async def _reconcile(self, host: str) -> None:
        """Events may have been missed: who has ended meanwhile, and what was made and never
        started? Who runs is left alone.
        """
        engine, running = self.engines[host], False
        try:
            filters = names.filters(self.deployment, "agent")
            there: list[dict[str, Any]] = await engine.call(
                "list its agents", lambda c: c.containers(all=True, filters=filters)
            )
            for summary in there:
                key = _parsed(summary.get("Labels", {}).get(names.KEY))
                if key in self._starting:
                    continue  # whoever starts it looks himself
                if await self.remains.settle(engine, summary["Id"], key) is None:
                    running = True
        except EngineError as e:
            self.log("the agents of host {} could not be looked at: {}", host, e.sentence)
            return
        if running or self.relays[host].wanted:
            await self._look_after_relay(host)

    async def _look_after_relay(self, host: str) -> None:
        try:
            await self.relays[host].ensure()
        except (EngineError, ImageFault, Refusal) as e:
            self.log(
                "{}",
                self._of_host(
                    host, f"its relay is not there, so its agents cannot be reached: {e.sentence}"
                ),
            )

    async def _bury(self, host: str, id_: str) -> None:
        try:
            await self.remains.settle(self.engines[host], id_)
        except EngineError as e:
            self.log(
                "{}",
                self._of_host(
                    host, f"why container {id_[:12]} ended could not be asked: {e.sentence}"
                ),
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log.exception("the docker driver's own work failed", error=task.exception())


async def _end(engine: HostEngine, id_: str, ended: asyncio.Event, secs: float) -> None:
    """SIGTERM, again and again, for a first process that has just started is spared it; after
    `secs` SIGKILL. Raises EngineError.
    """
    deadline, pause = asyncio.get_running_loop().time() + secs, _AGAIN_SECS
    while (left := deadline - asyncio.get_running_loop().time()) > 0:
        await _signal(engine, id_, signal.SIGTERM)
        if await _over(engine, id_, ended, min(pause, left)):
            return
        pause *= 2
    await _signal(engine, id_, signal.SIGKILL)
    if not await _over(engine, id_, ended, _KILLED_SECS):
        raise EngineError(
            "timeout", f"host {engine.name}: container {id_[:12]} was killed and does not end"
        )


async def _signal(engine: HostEngine, id_: str, number: int) -> None:
    try:
        await engine.call(
            f"send {signal.Signals(number).name} to container {id_[:12]}",
            lambda c: c.kill(id_, int(number)),
        )
    except EngineError as e:
        if e.code not in ("notFound", "conflict"):  # it has ended already
            raise


async def _over(engine: HostEngine, id_: str, ended: asyncio.Event, secs: float) -> bool:
    """Waits for its end: for the event, and by asking, for events can be missed."""
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + secs, _LOOK_FIRST
    while True:
        said = await inspect(engine, id_)
        if said is None or not exit_status.running(said["State"]):
            return True
        if loop.time() > deadline:
            return False
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), pause)
        if ended.is_set():
            await asyncio.sleep(_LOOK_FIRST)
        pause = min(2 * pause, _LOOK_SECS)


def _key(handle: Handle) -> AgentKey | None:
    return _parsed(handle.get("key"))


def _parsed(text: object) -> AgentKey | None:
    try:
        return parse_agent_key(text) if isinstance(text, str) else None
    except Refusal:
        return None
