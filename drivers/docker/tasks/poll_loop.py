"""Periodic work on tasks in containers: limit output, look for exits, sample resource usage, repeat
reports, remove ended containers.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ....protocol.ids import AgentKey, Token
from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.wire.messages import Samples
from ....runtime.log.logger import Log
from ..agents.driver import DockerDriver
from ..containers import names
from ..host.container_calls import remove
from ..host.engine import EngineError, HostEngine
from .ledger import ContainerLedger
from .networks import GangNetworks
from .observer import ContainerObserver, find_exited, find_notices
from .sampler import EVERY_SECS, Sampling
from .state import ContainerPlace, TaskState

TICK_SECS, CAP_SECS, SWEEP_SECS = 0.5, 2.0, 30.0
#: How long the container of a failed task is held for debugging, unless it is released (one week).
KEEP_SECS = 604_800.0
#: Maximum number of samples in one message.
_SAMPLES_PER_MESSAGE = 200


class TaskPollLoop:
    """Periodic work on tasks. report: report the state of a task. attend: perform its steps until it
    has ended.
    """

    def __init__(
        self,
        driver: DockerDriver,
        log: Log,
        networks: GangNetworks,
        places: Mapping[AgentKey, ContainerPlace],
        observer: ContainerObserver,
        report: Callable[[TaskState], None],
        attend: Callable[[TaskState], None],
    ) -> None:
        self._driver, self._log, self._networks, self._places, self._observer = (
            driver,
            log,
            networks,
            places,
            observer,
        )
        self._report, self._attend = report, attend
        self._sampling = Sampling()
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if not self._loops:
            loop = asyncio.get_running_loop()
            self._loops.append(loop.create_task(self._every(TICK_SECS, self._tick)))
            self._loops.append(loop.create_task(self._every(CAP_SECS, self._cap)))
            for name in self._driver.engines:
                self._loops.append(
                    loop.create_task(self._every(EVERY_SECS, lambda name=name: self._sample(name)))  # type: ignore[misc]
                )
                self._loops.append(
                    loop.create_task(
                        self._every(
                            SWEEP_SECS,
                            lambda name=name: self.sweep(self._driver.engines[name]),  # type: ignore[misc]
                        )
                    )
                )

    def close(self) -> None:
        for loop in self._loops:
            loop.cancel()

    def forget(self, token: Token) -> None:
        self._sampling.forget(token)

    async def settle(self, task: TaskState) -> None:
        """Remove everything but the evidence, because the end is durable elsewhere. The container
        of a failed task is kept for a while.
        """
        until = self._kept_until(task)
        await asyncio.to_thread(task.place.files.settle, task.token, until)
        task.place.kept[task.token] = until, task.container
        if until <= time.time():
            await self._remove_container(task.place, task.token)

    async def release(self, key: AgentKey, token: Token) -> None:
        """Stop holding a container for debugging. It is then removed after the same time as other
        failed ones. If its place is closed or its host is down, the next sweep removes it.
        """
        place, files = (
            self._places.get(key),
            ContainerLedger(str(self._driver.root / "agent" / str(key))),
        )
        until = await asyncio.to_thread(files.settled_until, token)
        if until:
            until = min(until, time.time() + self._driver.pool.keep_failed_secs)
            await asyncio.to_thread(files.settle, token, until)
        if until is not None and place is not None and token in place.kept:
            place.kept[token] = until, place.kept[token][1]
            if until <= time.time():
                await self._remove_container(place, token)

    async def release_network(self, task: TaskState) -> None:
        """Remove the network after the last task of the attempt."""
        name = task.request.network if task.request is not None else None
        if name is None or any(
            t.request is not None and t.request.network == name for t in task.place.table.live()
        ):
            return
        if not any(_attempt(t.token) == _attempt(task.token) for t in task.place.table.live()):
            await self._networks.remove(name, self._driver.engines[task.place.key.host])

    async def sweep(self, engine: HostEngine) -> None:
        """Remove containers and networks that are due, including those of places that were not
        opened since the supervisor started.
        """
        if not engine.up:
            return
        for place in [p for p in self._places.values() if p.key.host == engine.name]:
            for token in [t for t, (until, _) in place.kept.items() if until <= time.time()]:
                await self._remove_container(place, token)
        try:
            await self._sweep_orphans(engine)
            await self._sweep_networks(engine)
        except EngineError as e:
            self._log.trace("host {} could not be cleaned up: {}", engine.name, e.sentence)

    # ---- inside

    async def _every(self, secs: float, work: Callable[[], Any]) -> None:
        while True:
            await asyncio.sleep(secs)
            try:
                await work()
            except Exception as e:
                self._log.exception("periodic work on tasks in containers failed", error=e)

    def _tasks(self, host: str | None = None) -> list[TaskState]:
        return [
            t
            for p in self._places.values()
            if p.up and host in (None, p.key.host)
            for t in p.tasks.values()
        ]

    async def _tick(self) -> None:
        running = [t for t in self._tasks() if t.running and t.life.own_exit is None]
        exited = await asyncio.to_thread(find_exited, running) if running else []
        with_ssh = [t for t in running if t.box.ssh_port is not msgspec.UNSET]
        noticed = await asyncio.to_thread(find_notices, with_ssh) if with_ssh else []
        for task, notices in noticed:
            task.notices = notices
            if task.running:
                self._report(task)
        now = time.monotonic()
        for task, exit_ in exited:
            self._note_exited(task, exit_, now)
        for task in self._tasks():
            if task.life.report_due(now):
                self._report(task)

    def _note_exited(self, task: TaskState, exit_: ExitInfo, now: float) -> None:
        """Record that a command has exited, and report it if its container still exists after some
        time. A stop without a signal looks for the exit itself, before its own next step.
        """
        life = task.life
        if life.ended or (life.stopping and not life.signaled):
            return
        if not life.exiting:
            life.exited(now)
            self._attend(task)
        if life.exit_due(now):
            life.exit_reported(exit_)
            task.log(
                "the command of {} has exited, but its container still exists", str(task.token)
            )
            self._report(task)

    async def _cap(self) -> None:
        running = [t for t in self._tasks() if t.running]
        if running:
            await asyncio.to_thread(self._observer.cap, running)

    async def _sample(self, host: str) -> None:
        running = [t for t in self._tasks(host) if t.running]
        found = await self._sampling.sample(self._driver.engines[host], running) if running else []
        for place in {t.place for t, _ in found}:
            mine = [s for t, s in found if t.place is place]
            for n in range(0, len(mine), _SAMPLES_PER_MESSAGE):
                self._driver.reporter.said(
                    place.key, Samples(samples=tuple(mine[n : n + _SAMPLES_PER_MESSAGE]))
                )

    def _kept_until(self, task: TaskState) -> float:
        exit_, secs = task.life.exit, self._driver.pool.keep_failed_secs
        if (
            exit_ is None
            or exit_.succeeded
            or exit_.stop_reason is not None
            or exit_.source in ("start", "lost")
            or task.container is None
        ):
            return 0.0
        if task.request is not None and task.request.keep and not task.released:
            secs = KEEP_SECS
        return 0.0 if secs == 0 else (exit_.ended_at or time.time()) + secs

    async def _remove_container(self, place: ContainerPlace, token: Token) -> None:
        """Remove the container, then the ledger entry: a container without an entry would be an
        orphan.
        """
        if token not in place.kept:
            return  # removed meanwhile
        _, container = place.kept[token]
        engine = self._driver.engines[place.key.host]
        try:
            removed = container is None or await remove(engine, container, force=True)
        except EngineError:
            removed = False
        if not removed:
            return  # the next sweep tries again
        await asyncio.to_thread(place.files.remove_entry, token)
        place.kept.pop(token, None)

    async def _sweep_orphans(self, engine: HostEngine) -> None:
        filters = names.filters(self._driver.deployment, "task")
        listed: list[dict[str, Any]] = await engine.call(
            "list tasks", lambda c: c.containers(all=True, filters=filters)
        )
        for summary in listed:
            key, token = (
                names.parse_agent_label(summary.get("Labels")),
                names.parse_token_label(summary.get("Labels")),
            )
            if (
                key is None
                or token is None
                or key in self._places
                or summary.get("State") not in ("exited", "created", "dead")
            ):
                continue
            files = ContainerLedger(str(self._driver.root / "agent" / str(key)))
            until = await asyncio.to_thread(files.settled_until, token)
            due = until is not None and until <= time.time() and key not in self._places
            if due and await remove(engine, summary["Id"], force=True):
                await asyncio.to_thread(files.remove_entry, token)

    async def _sweep_networks(self, engine: HostEngine) -> None:
        """Remove the networks of ended gangs. Networks of unopened places stay, because their tasks
        may run.
        """
        for network in await self._networks.list_networks(engine):
            key = names.parse_agent_label(network.get("Labels"))
            place = self._places.get(key) if key is not None else None
            jid = (network.get("Labels") or {}).get(names.JID)
            if (
                place is not None
                and place.up
                and not any(t.token.jid == jid for t in place.table.live())
            ):
                await self._networks.remove(network["Name"], engine)


def _attempt(token: Token) -> tuple[str, int, int]:
    return token.jid, token.serial, token.attempt
