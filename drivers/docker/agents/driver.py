"""Agents in containers on a pool of hosts: the `docker` AgentDriver.

Each (uid, kind) has one container, made from the pool's image, with the keeper as PID 1. Containers
outlive the supervisor and the Docker daemons, and are found again by id and label. When one ends,
its reason is stored before it is removed. Keys of kind `container` have no agent process: the task
driver reports for them.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from ....protocol.clusters.container_pool import Pool
from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey, AgentKind, Token, parse_agent_key
from ....protocol.jobs.registry_login import LoginRef, RegistryLogin
from ....protocol.redaction import Redactor
from ....protocol.wire.messages import TaskSpec
from ....runtime.log.logger import Log
from ... import untrusted_files
from ...contracts import (
    AgentSpec,
    Capabilities,
    Capacity,
    Found,
    FoundState,
    Handle,
    HostState,
    PlaceReporter,
)
from ..containers import exit_status, names
from ..containers.uid_allocation import UnixUsers
from ..host.container_calls import inspect
from ..host.engine import EngineError, HostEngine
from ..host.log_drivers import LogDrivers
from ..images.image_store import ImageFault, ImageStore
from .container_reaper import ContainerReaper
from .container_start import ContainerStarter
from .relay_container import Relay
from .subnet_check import subnet_conflicts

#: Time after the grace period for a keeper to end, in seconds.
_KEEPER_EXTRA_SECS = 5.0
#: Time for the engine to report the end after SIGKILL, in seconds.
_KILLED_SECS = 30.0
_FIRST_POLL_SECS, _POLL_SECS = 0.02, 0.25
#: SIGTERM is repeated after this time, in seconds; the pause doubles each time.
_RESIGNAL_SECS = 0.25
UNIX_USERS = "unix-users.json"
#: Concurrent starts on one host. More starts would slow each other down until they time out and are
#: repeated.
STARTS_AT_ONCE = 4


#: Returns a task with its debugger and profile, and the files for them by path below its evidence.
Staged = Callable[[Token, TaskSpec, str], tuple[TaskSpec, Mapping[str, bytes]]]


class PlaceProvider(Protocol):
    """Reports for keys of kind `container`."""

    async def open(self, key: AgentKey) -> Handle: ...

    async def find(self, key: AgentKey, handle: Handle) -> Found: ...

    async def close_place(self, key: AgentKey) -> None: ...


class Listener(Protocol):
    """Receives the events of hosts, on the event loop. See HostEngine."""

    def on_state(self, host: str, up: bool, detail: str) -> None: ...

    def on_event(self, host: str, event: dict[str, Any]) -> None: ...

    def on_sync(self, host: str) -> None: ...


class DockerDriver:
    """See drivers.contracts for the contract of the methods. Call `watch` once the event loop runs;
    until then every host counts as down.
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
        reporter: PlaceReporter,
        agent_settings: dict[str, Any] | None = None,
        keeper_settings: dict[str, Any] | None = None,
        logins: Callable[[str, LoginRef], Mapping[str, RegistryLogin] | None] = lambda *_: None,
        staged: Staged = lambda token, spec, evidence: (spec, {}),
    ) -> None:
        """address: returns the content of the supervisor's agents.json. Raises
        Refusal("badConfig"). logins: returns a user's credentials by registry, None if they are lost.
        staged: returns a task in a container of its own with debugger and profile, and the files for
        them below the evidence.
        """
        self.logins, self.staged = logins, staged
        self.pool, self.root, self.user_root, self.deployment, self.log = (
            pool,
            root,
            user_root,
            deployment,
            log,
        )
        self.reporter = reporter
        self.capabilities = Capabilities(
            tasks="keeper", same_machine=False, containers=True, volumes=tuple(pool.volumes)
        )
        self.unix_users = UnixUsers(root / UNIX_USERS, pool.unix_users)
        self.log_drivers = LogDrivers(pool.log_driver, log)
        self.reaper = ContainerReaper(root, deployment, log, redactor)
        self.engines: dict[str, HostEngine] = {}
        self.images: dict[str, ImageStore] = {}
        self.relays: dict[str, Relay] = {}
        self.places: PlaceProvider | None = None
        self._listeners: list[Listener] = []
        self._starters: dict[str, ContainerStarter] = {}
        self._start_queues: dict[AgentKey, list[asyncio.Lock]] = {}
        self._start_slots = {h.name: asyncio.Semaphore(STARTS_AT_ONCE) for h in pool.hosts}
        self._ended: dict[str, asyncio.Event] = {}
        self._background: set[asyncio.Task[None]] = set()
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
            self._starters[host.name] = ContainerStarter(
                engine,
                images,
                relay,
                pool,
                root,
                user_root,
                deployment=deployment,
                unix_users=self.unix_users,
                log_drivers=self.log_drivers,
                reaper=self.reaper,
                agent_settings=agent_settings or {},
                keeper_settings=keeper_settings or {},
                log=log,
            )

    def listen(self, listener: Listener) -> None:
        """Register a listener for all events of all hosts."""
        self._listeners.append(listener)

    def watch(self) -> None:
        """Start the connections to all hosts."""
        for engine in self.engines.values():
            engine.start()

    # ---- the contract

    async def start(self, spec: AgentSpec) -> Handle:
        key = spec.key
        try:
            engine = await self._engine_up(key.host)
            if key.kind == AgentKind.CONTAINER:
                if self.places is None:
                    raise Refusal(
                        "agentUnavailable", "the task driver for containers is not running"
                    )
                return {
                    **await self.places.open(key),
                    "host": key.host,
                    "kind": key.kind,
                    "key": str(key),
                }
            with self._start_lock(key) as turn:
                async with turn, self._start_slots[engine.name]:
                    return await self._starters[engine.name].start(spec)
        except (EngineError, ImageFault) as e:
            raise Refusal("agentUnavailable", self._with_host(key.host, e.sentence)) from None
        except OSError as e:
            raise Refusal(
                "agentUnavailable",
                f"the folders of {key} cannot be created: {e.filename}: {e.strerror}",
            ) from None

    async def find(self, handle: Handle) -> Found:
        key = _handle_key(handle)
        if handle.get("kind") == "container":
            if self.places is None or key is None:
                return Found(
                    state=FoundState.UNKNOWN, detail="the task driver for containers is not running"
                )
            return await self.places.find(key, handle)
        engine, id_ = self.engines.get(str(handle.get("host"))), handle.get("id")
        if engine is None or not isinstance(id_, str) or not id_:
            return Found(
                state=FoundState.UNKNOWN,
                detail="its handle names no container on a host of the pool",
            )
        if engine.known.is_set() and not engine.up:
            return Found(
                state=FoundState.UNKNOWN, detail=self._with_host(engine.name, engine.detail)
            )
        try:
            sentence = await self.reaper.reap(engine, id_, key)
        except EngineError as e:
            return Found(state=FoundState.UNKNOWN, detail=self._with_host(engine.name, e.sentence))
        if sentence is not None:
            return Found(state=FoundState.GONE, detail=sentence)
        return Found(
            state=FoundState.ALIVE,
            detail=f"container {handle.get('name', id_[:12])} on host {engine.name}",
        )

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        """Raises Refusal if the driver cannot tell whether the container is gone."""
        key = _handle_key(handle)
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
                f"host {handle.get('host')!a} is no longer in the pool, so the state of its containers is unknown",
            )
        try:
            await self._stop(engine, id_, grace_secs, key)
        except EngineError as e:
            raise Refusal("agentUnavailable", self._with_host(engine.name, e.sentence)) from None

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
        results = await asyncio.gather(*(self._check(name) for name in self.engines))
        return [
            self._with_host(name, s)
            for name, sentences in zip(self.engines, results, strict=True)
            for s in sentences
        ]

    async def close(self) -> None:
        self._closed = True
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.reaper.close()
        await asyncio.gather(*(e.close() for e in self.engines.values()))

    # ---- inside

    async def _check(self, name: str) -> list[str]:
        sentences = await self.engines[name].check()
        if not sentences:
            try:
                await self.images[name].ensure(self.pool.image)
                return await subnet_conflicts(
                    self.engines[name], self.pool.task_subnets, self.deployment
                )
            except (EngineError, ImageFault) as e:
                return [e.sentence]
        return sentences

    async def _engine_up(self, host: str) -> HostEngine:
        engine = self.engines.get(host)
        if engine is None:
            raise Refusal("agentUnavailable", f"there is no host {host} in the pool")
        if not await engine.is_up():
            raise Refusal("agentUnavailable", self._with_host(host, engine.detail))
        return engine

    async def _stop(
        self, engine: HostEngine, id_: str, grace_secs: float, key: AgentKey | None
    ) -> None:
        container = await inspect(engine, id_)
        if container is not None and not names.is_ours(
            container["Config"]["Labels"], self.deployment
        ):
            return
        if container is not None and exit_status.running(container["State"]):
            self.reaper.expect_stop(id_)
            ended = self._ended.setdefault(id_, asyncio.Event())
            try:
                await _terminate(engine, id_, ended, grace_secs + _KEEPER_EXTRA_SECS)
            finally:
                self._ended.pop(id_, None)
        await self.reaper.reap(engine, id_, key)

    @contextlib.contextmanager
    def _start_lock(self, key: AgentKey) -> Iterator[asyncio.Lock]:
        """Return a lock that serialises the starts of one key."""
        queue = self._start_queues.setdefault(key, [])
        lock = queue[0] if queue else asyncio.Lock()
        queue.append(lock)
        try:
            yield lock
        finally:
            queue.pop()
            if not queue:
                del self._start_queues[key]

    def _with_host(self, host: str, sentence: str) -> str:
        return sentence if f"host {host}" in sentence else f"host {host}: {sentence}"

    # ---- events of hosts

    def _state(self, host: str, up: bool, detail: str) -> None:
        if not up:
            self.relays[host].invalidate()
        self.reporter.host(self.name, host, HostState.UP if up else HostState.DOWN, detail)
        for listener in self._listeners:
            listener.on_state(host, up, detail)

    def _event(self, host: str, event: dict[str, Any]) -> None:
        for listener in self._listeners:
            listener.on_event(host, event)
        actor = event.get("Actor") or {}
        id_, action = str(actor.get("ID", "")), event.get("Action")
        labels = actor.get("Attributes") or {}
        part = labels.get(names.PART)
        if part == "relay" and action in ("die", "destroy"):
            self.log("host {}: the agents' relay container: {}", host, action)
            self.relays[host].invalidate()
            self._spawn(self._ensure_relay(host))
        if part != "agent":
            return
        if action == "oom":
            self.reaper.count_oom(id_)
        elif action == "die":
            if (ended := self._ended.get(id_)) is not None:
                ended.set()
            else:
                key, name = _parse_key(labels.get(names.KEY)), str(labels.get("name", ""))
                self._spawn(self._reap_ended(host, id_, key, name))

    def _sync(self, host: str) -> None:
        for listener in self._listeners:
            listener.on_sync(host)
        self.relays[host].invalidate()
        self._spawn(self._reconcile(host))

    async def _reconcile(self, host: str) -> None:
        """Reap agents that ended, and containers that were created but not started, while events
        were missed. Running ones are left alone.
        """
        engine, running = self.engines[host], False
        try:
            filters = names.filters(self.deployment, "agent")
            containers: list[dict[str, Any]] = await engine.call(
                "list its agents", lambda c: c.containers(all=True, filters=filters)
            )
            for summary in containers:
                key = _parse_key(summary.get("Labels", {}).get(names.KEY))
                if key in self._start_queues:
                    continue  # the start itself checks the container
                if await self.reaper.reap(engine, summary["Id"], key) is None:
                    running = True
        except EngineError as e:
            self.log("the agents of host {} could not be listed: {}", host, e.sentence)
            return
        if running or self.relays[host].wanted:
            await self._ensure_relay(host)

    async def _ensure_relay(self, host: str) -> None:
        try:
            await self.relays[host].ensure()
        except (EngineError, ImageFault, Refusal) as e:
            self.log(
                "{}",
                self._with_host(
                    host, f"its agents cannot be reached, because the relay failed: {e.sentence}"
                ),
            )

    async def _reap_ended(self, host: str, id_: str, key: AgentKey | None, name: str) -> None:
        """key, name: of the event. A container that was removed at once cannot be inspected."""
        try:
            await self.reaper.reap(self.engines[host], id_, key, name)
        except EngineError as e:
            self.log(
                "{}",
                self._with_host(
                    host, f"container {id_[:12]} ended for an unknown reason: {e.sentence}"
                ),
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log.exception(
                "a background task of the docker driver failed", error=task.exception()
            )


async def _terminate(engine: HostEngine, id_: str, ended: asyncio.Event, secs: float) -> None:
    """Send SIGTERM repeatedly, because a process that has just started ignores it; after `secs`
    send SIGKILL. Raises EngineError.
    """
    deadline, pause = asyncio.get_running_loop().time() + secs, _RESIGNAL_SECS
    while (left := deadline - asyncio.get_running_loop().time()) > 0:
        await _signal(engine, id_, signal.SIGTERM)
        if await _wait_for_end(engine, id_, ended, min(pause, left)):
            return
        pause *= 2
    await _signal(engine, id_, signal.SIGKILL)
    if not await _wait_for_end(engine, id_, ended, _KILLED_SECS):
        raise EngineError(
            "timeout", f"host {engine.name}: container {id_[:12]} does not end after SIGKILL"
        )


async def _signal(engine: HostEngine, id_: str, number: int) -> None:
    try:
        await engine.call(
            f"send {signal.Signals(number).name} to container {id_[:12]}",
            lambda c: c.kill(id_, int(number)),
        )
    except EngineError as e:
        if e.code not in ("notFound", "conflict"):  # it has already ended
            raise


async def _wait_for_end(engine: HostEngine, id_: str, ended: asyncio.Event, secs: float) -> bool:
    """Wait for the end of the container, by event and by polling, because events can be missed."""
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + secs, _FIRST_POLL_SECS
    while True:
        container = await inspect(engine, id_)
        if container is None or not exit_status.running(container["State"]):
            return True
        if loop.time() > deadline:
            return False
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), pause)
        if ended.is_set():
            await asyncio.sleep(_FIRST_POLL_SECS)
        pause = min(2 * pause, _POLL_SECS)


def _handle_key(handle: Handle) -> AgentKey | None:
    return _parse_key(handle.get("key"))


def _parse_key(text: object) -> AgentKey | None:
    try:
        return parse_agent_key(text) if isinstance(text, str) else None
    except Refusal:
        return None
