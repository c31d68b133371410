"""The parts of the site's limits that this shard has: agrees on them with the other shards, and tells
the core. `protocol.grants` decides.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, assert_never

from ...protocol.grants import Answer, Holder, Read, Table, Tell, Use, Write
from ...protocol.shards import Shard
from ..core.interface.effects import GrantsApplied
from ..core.interface.grants import Grant
from ..core.interface.inputs import GrantsChanged
from ..core.scheduling import site_limits
from ..engine.decision_loop import Engine

#: Interval of looks at the demand; and at the table, without a demand.
LOOK_SECS, READ_SECS = 0.25, 0.5
#: A core that cannot decide now does not answer; it is told again.
ANSWER_SECS = 2.0


class Database(Protocol):
    """The shard's rows in the database (`db.postgres.site_tables.tables`)."""

    def perform(self, step: Read | Write, done: Callable[[Table | bool | None], None]) -> None:
        """Perform a step; `done` gets its answer."""

    def close(self) -> None:
        """Release the connection."""


class SiteGrants:
    """The grants of this shard. capacities: limits of the whole site in the settings, by name."""

    def __init__(
        self,
        engine: Engine,
        database: Database,
        shard: Shard,
        capacities: Mapping[str, int],
        noticed: Callable[[str, str], object],
    ) -> None:
        self._engine, self._database, self._noticed = engine, database, noticed
        self.holder = Holder(*shard, capacities)
        self._number = 0
        self._use: asyncio.Future[Mapping[str, Use]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._exceeded: frozenset[str] = frozenset()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._noticed("grantsFailed", f"this shard keeps its limits from now on: {error!r}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._database.close)

    def applied(self, effect: GrantsApplied) -> None:
        """Hear the answer of the core to the limits that it was told."""
        waiting = self._use
        if waiting is not None and not waiting.done() and effect.number == self._number:
            waiting.set_result(effect.use)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self._turn()
            self._report()
            while True:
                await asyncio.sleep(LOOK_SECS)
                due = self.holder.is_due(site_limits.use(self._engine.world))
                if due or loop.time() - begun >= READ_SECS:
                    break

    async def _turn(self) -> None:
        steps = self.holder.turn()
        answer: Answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            match step:
                case Tell():
                    answer = await self._told(step)
                case Read() | Write():
                    answer = await self._performed(step)
                case _:
                    assert_never(step)

    async def _told(self, step: Tell) -> Mapping[str, Use] | None:
        self._number += 1
        waiting = self._use = asyncio.get_running_loop().create_future()
        grants = {
            name: Grant(limit=step.limits[name], capacity=share.capacity, others=share.others)
            for name, share in self.holder.shares.items()
        }
        self._engine.tell(GrantsChanged(grants, self._number))
        # wait_for would lose a cancellation that arrives with the answer
        await asyncio.wait((waiting,), timeout=ANSWER_SECS)
        return waiting.result() if waiting.done() else None

    async def _performed(self, step: Read | Write) -> Table | bool | None:
        done: asyncio.Future[Table | bool | None] = asyncio.get_running_loop().create_future()

        def answered(answer: Table | bool | None) -> None:
            if not done.done():
                done.set_result(answer)

        self._database.perform(step, answered)
        return await done

    def _report(self) -> None:
        exceeded = self.holder.exceeded()
        for name in sorted(exceeded - self._exceeded):
            used, has = self.holder.use[name].used, self.holder.shares[name].granted
            self._noticed(
                "grantExceeded",
                f"{used} of {name} are used, and this shard may use {has}: nothing new starts until less is used",
            )
        self._exceeded = exceeded
