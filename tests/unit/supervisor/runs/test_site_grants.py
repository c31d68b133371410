"""A supervisor agrees with the other shards on its part of a limit, and tells the core: first less in the core,
then less in the table; first more in the table, then more in the core.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from jobscribe.protocol.grants import Read, Row, Table, Use, Write
from jobscribe.protocol.shards import Shard
from jobscribe.supervisor.core.interface.effects import GrantsApplied
from jobscribe.supervisor.core.interface.inputs import GrantsChanged
from jobscribe.supervisor.core.state.configuration import CoreConfig
from jobscribe.supervisor.core.state.world import World
from jobscribe.supervisor.runs import site_grants
from jobscribe.supervisor.runs.site_grants import SiteGrants

LIMIT = "slots.local_sequential"


class Site:
    """The core and the table, and the order in which they hear of limits."""

    def __init__(self, rows: dict[int, Row]) -> None:
        self.world = World(CoreConfig(moving=frozenset((LIMIT,))))
        self.rows, self.turn, self.heard = rows, 0, list[tuple[str, int]]()
        self.use, self.decides, self.answers = Use(0, 0), True, True
        self.notices: list[str] = []
        self.grants = SiteGrants(
            self,  # type: ignore[arg-type]
            self,
            Shard(0, 2),
            {LIMIT: 8},
            lambda what, sentence: self.notices.append(f"{what}: {sentence}"),
        )

    def tell(self, input_: GrantsChanged) -> None:
        for grant in input_.grants.values():
            self.heard.append(("core", grant.limit))
        if self.decides:
            self.grants.applied(GrantsApplied(input_.number, {LIMIT: self.use}))

    def perform(self, step: Read | Write, done: Callable[[Any], None]) -> None:
        if not self.answers:
            done(None)
        elif isinstance(step, Read):
            done(Table(self.turn, {LIMIT: self.rows}))
        else:
            self.turn += 1
            self.rows = {**self.rows, 0: step.rows[LIMIT]}
            self.heard.append(("row", step.rows[LIMIT].granted))
            done(True)

    def close(self) -> None:
        self.heard.append(("closed", 0))

    async def turns(self, secs: float = 0.02) -> list[tuple[str, int]]:
        """Let time pass; return what was heard."""
        self.heard.clear()
        await asyncio.sleep(secs)
        return [*self.heard]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_grants, "LOOK_SECS", 0.001)
    monkeypatch.setattr(site_grants, "READ_SECS", 0.001)
    monkeypatch.setattr(site_grants, "ANSWER_SECS", 0.005)


def test_the_row_is_raised_before_the_core_and_lowered_after_it() -> None:
    async def life() -> None:
        site = Site({1: Row(0, 0, 0, 8)})
        site.use = Use(0, 9)
        site.grants.start()
        heard = await site.turns()
        assert heard[:2] == [("row", 7), ("core", 7)], "the other shard keeps a quarter of its part"
        site.use = Use(6, 9)
        site.rows = {**site.rows, 1: Row(0, 0, 8, 8)}
        heard = await site.turns()
        rows = [n for what, n in heard if what == "row"]
        core = [n for what, n in heard if what == "core"]
        assert rows[-1] == 6 and core[-1] == 4, "what runs is left alone"
        assert heard.index(("core", 4)) < heard.index(("row", 6))
        site.use = Use(2, 9)
        assert ("row", 4) in await site.turns()
        await site.grants.close()
        assert site.heard[-1] == ("closed", 0)

    asyncio.run(life())


def test_nothing_is_raised_while_the_core_or_the_database_does_not_answer() -> None:
    async def life() -> None:
        site = Site({1: Row(0, 0, 0, 8)})
        site.use, site.decides = Use(0, 9), False
        site.grants.start()
        assert await site.turns() == []
        site.decides, site.answers = True, False
        assert await site.turns() == []
        site.answers = True
        assert ("core", 7) in await site.turns()
        site.answers = False
        assert {n for _, n in await site.turns()} == {7}, "each shard keeps what it has"
        await site.grants.close()

    asyncio.run(life())


def test_more_use_than_the_shard_may_have_is_reported_once() -> None:
    async def life() -> None:
        site = Site({0: Row(3, 0, 0, 8), 1: Row(5, 5, 5, 8)})
        site.use = Use(4, 4)
        site.grants.start()
        assert ("core", 3) in await site.turns()
        assert site.notices == [
            f"grantExceeded: 4 of {LIMIT} are used, and this shard may use 3: nothing new starts until less is used"
        ]
        site.use = Use(3, 3)
        await site.turns()
        assert len(site.notices) == 1 and not site.grants.holder.exceeded()
        await site.grants.close()

    asyncio.run(life())
