"""What goes on beside tasks in containers: output is capped, limits hold, what they take is told,
what is over is removed.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from ....protocol.ids import AgentKey, Token
from ....protocol.wire.messages import Samples
from ....runtime.log.logger import Log
from ..agents.driver import DockerDriver
from ..containers import names
from ..host.container_calls import remove
from ..host.engine import EngineError, HostEngine
from .ledger import ContainerLedger
from .networks import GangNetworks
from .observer import ContainerObserver, exits
from .sampler import EVERY_SECS, Sampling
from .state import ContainerPlace, TaskState

TICK_SECS, CAP_SECS, SWEEP_SECS = 0.5, 2.0, 30.0
#: What starts is told so often, and an end as long as it is not settled.
STARTING_SECS, ENDED_SECS = 10.0, 5.0
#: A container whose command has ended by itself is killed after so long, again and again.
LEFT_SECS = 5.0
#: The container of a failed task that asked to stay, unless it is released before (a week).
KEEP_SECS = 604_800.0
#: Of so many tasks one message tells.
_TOLD_AT_ONCE = 200


class TaskPollLoop:
    """say: a task again. late: it is over its time limit. clear: its command has ended, and its
    container runs on.
    """

    def __init__(
        self,
        driver: DockerDriver,
        log: Log,
        networks: GangNetworks,
        places: Mapping[AgentKey, ContainerPlace],
        looking: ContainerObserver,
        say: Callable[[TaskState], None],
        late: Callable[[TaskState], None],
        clear: Callable[[TaskState], None],
    ) -> None:
        self._driver, self._log, self._networks, self._places, self._looking = (
            driver,
            log,
            networks,
            places,
            looking,
        )
        self._say, self._late, self._clear = say, late, clear
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
        """Its end is durable elsewhere: nothing of it stays but its evidence, and, where that is
        wanted, its container for a while.
        """
        until = self._kept_until(task)
        await asyncio.to_thread(task.place.files.settle, task.token, until)
        task.place.kept[task.token] = until, task.container
        if until <= time.time():
            await self._drop(task.place, task.token)

    async def release(self, key: AgentKey, token: Token) -> None:
        """It need not stay any longer than other failed ones do; where its place is closed or its
        host away, the next sweep comes by.
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
                await self._drop(place, token)

    async def leave_network(self, task: TaskState) -> None:
        """It is over; the last of its attempt takes the bridge away."""
        name = task.asked.network if task.asked is not None else None
        if name is None or any(
            t.exit is None and t.asked is not None and t.asked.network == name
            for t in task.place.tasks.values()
        ):
            return
        same = [
            t
            for t in task.place.tasks.values()
            if t.exit is None and _attempt(t.token) == _attempt(task.token)
        ]
        if not same:
            await self._networks.drop(name, self._driver.engines[task.place.key.host])

    async def sweep(self, engine: HostEngine) -> None:
        """Remove what is due, of places that nobody has opened since the supervisor was started,
        too.
        """
        if not engine.up:
            return
        for place in [p for p in self._places.values() if p.key.host == engine.name]:
            for token in [t for t, (until, _) in place.kept.items() if until <= time.time()]:
                await self._drop(place, token)
        try:
            await self._sweep_strangers(engine)
            await self._sweep_networks(engine)
        except EngineError as e:
            self._log.trace("host {} could not be tidied: {}", engine.name, e.sentence)

    # ---- inside

    async def _every(self, secs: float, work: Callable[[], Any]) -> None:
        while True:
            await asyncio.sleep(secs)
            try:
                await work()
            except Exception as e:
                self._log.exception("the upkeep of tasks in containers failed", error=e)

    def _end_what_is_left(self, task: TaskState, now: float) -> None:
        """Of a task whose command has ended by itself. A job may have written its exit code and
        gone on.
        """
        if (
            task.exit is None
            and task.stop is None
            and task.exit_seen is not None
            and now - task.exit_seen >= LEFT_SECS
        ):
            task.exit_seen = now
            self._clear(task)

    def _tasks(self, host: str | None = None) -> list[TaskState]:
        return [
            t
            for p in self._places.values()
            if p.up and host in (None, p.key.host)
            for t in p.tasks.values()
        ]

    async def _tick(self) -> None:
        now = time.monotonic()
        running = [t for t in self._tasks() if t.state == "running" and t.exited is None]
        for task in await asyncio.to_thread(exits, running, now) if running else ():
            self._log(
                "the command of {} has ended, and its container is still there",
                str(task.token),
                jid=task.token.jid,
            )
            self._say(task)
        for task in self._tasks():
            self._end_what_is_left(task, now)
            quiet = {"starting": STARTING_SECS, "ended": ENDED_SECS}.get(task.state)
            if quiet is not None and now - task.told >= quiet:
                task.told = now
                self._say(task)
            limit, elapsed = task.asked.limit if task.asked is not None else None, task.elapsed()
            runs = task.state == "running" and task.exit_seen is None and task.stop is None
            if runs and limit is not None and elapsed is not None and elapsed >= limit:
                self._late(task)

    async def _cap(self) -> None:
        running = [t for t in self._tasks() if t.state == "running"]
        if running:
            await asyncio.to_thread(self._looking.cap, running)

    async def _sample(self, host: str) -> None:
        running = [t for t in self._tasks(host) if t.state == "running"]
        found = await self._sampling.look(self._driver.engines[host], running) if running else []
        for place in {t.place for t, _ in found}:
            mine = [s for t, s in found if t.place is place]
            for n in range(0, len(mine), _TOLD_AT_ONCE):
                self._driver.spokesman.said(
                    place.key, Samples(samples=tuple(mine[n : n + _TOLD_AT_ONCE]))
                )

    def _kept_until(self, task: TaskState) -> float:
        exit_, secs = task.exit, self._driver.pool.keep_failed_secs
        if (
            exit_ is None
            or exit_.succeeded
            or exit_.stop_reason is not None
            or exit_.source in ("start", "lost")
            or task.container is None
        ):
            return 0.0
        if task.asked is not None and task.asked.keep and not task.released:
            secs = KEEP_SECS
        return 0.0 if secs == 0 else (exit_.ended_at or time.time()) + secs

    async def _drop(self, place: ContainerPlace, token: Token) -> None:
        """Container first: what is not in the ledger any more is nobody's."""
        if token not in place.kept:
            return  # somebody else dropped it meanwhile
        _, container = place.kept[token]
        try:
            if container is not None:
                await remove(self._driver.engines[place.key.host], container, force=True)
        except EngineError:
            return  # the next sweep comes by
        await asyncio.to_thread(place.files.strike, token)
        place.kept.pop(token, None)

    async def _sweep_strangers(self, engine: HostEngine) -> None:
        filters = names.filters(self._driver.deployment, "task")
        listed: list[dict[str, Any]] = await engine.call(
            "list tasks", lambda c: c.containers(all=True, filters=filters)
        )
        for summary in listed:
            key, token = names.key_of(summary.get("Labels")), names.token_of(summary.get("Labels"))
            if (
                key is None
                or token is None
                or key in self._places
                or summary.get("State") not in ("exited", "created", "dead")
            ):
                continue
            files = ContainerLedger(str(self._driver.root / "agent" / str(key)))
            until = await asyncio.to_thread(files.settled_until, token)
            if until is not None and until <= time.time() and key not in self._places:
                await remove(engine, summary["Id"], force=True)
                await asyncio.to_thread(files.strike, token)

    async def _sweep_networks(self, engine: HostEngine) -> None:
        """Of gangs that are over. Those of places that nobody has opened yet stay, for what is
        there may run.
        """
        for network in await self._networks.of_deployment(engine):
            key = names.key_of(network.get("Labels"))
            place = self._places.get(key) if key is not None else None
            jid = (network.get("Labels") or {}).get(names.JID)
            if (
                place is not None
                and place.up
                and not any(t.exit is None and t.token.jid == jid for t in place.tasks.values())
            ):
                await self._networks.drop(network["Name"], engine)


def _attempt(token: Token) -> tuple[str, int, int]:
    return token.jid, token.serial, token.attempt
