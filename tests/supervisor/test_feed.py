"""Followers of the log: in order, nothing twice, nothing missing, however slow; a slow one is not kept waiting for in memory."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from jobscribe.db.events import Event, SupervisorStopped
from jobscribe.db.memory import MemoryStore
from jobscribe.db.store import Batch, Stored, Write
from jobscribe.supervisor import feed as feed_module
from jobscribe.supervisor.feed import Feed, selector

MINE, OTHERS = "job/user0001-sim00001-command", "job/user0002-sim00001-command"


class Log:
    """A store and what is appended to it."""

    def __init__(self) -> None:
        self.store = MemoryStore(lambda call: call())
        self.versions: dict[str, int] = {}

    def append(self, n: int, stream: str = MINE) -> None:
        for _ in range(n):
            version = self.versions.get(stream, 0)
            event: Event = SupervisorStopped(at=1.0, session=version, reason="")
            self.store.append(Batch(writes=(Write(stream, version, (event,)),)), lambda _: None)
            self.versions[stream] = version + 1


async def taken(feed: Feed, after: int, up_to: int, wanted: Callable[[Stored], bool] = lambda e: True, between: Callable[[], None] = lambda: None) -> list[int]:
    """Positions that a follower got until `up_to` came; `between` is called after every page."""
    out: list[int] = []
    pages = feed.follow(after, wanted, 5.0)
    try:
        async with asyncio.timeout(10):
            async for page in pages:
                out += positions(page)
                if out and out[-1] >= up_to:
                    return out
                between()
                await asyncio.sleep(0)
    finally:
        await pages.aclose()  # type: ignore[attr-defined]
    return out


def positions(page: Sequence[Stored]) -> list[int]:
    return [e.position for e in page]


async def test_what_was_there_and_what_comes_is_one_sequence() -> None:
    log = Log()
    log.append(1200)
    feed = Feed(log.store)
    left = iter(range(20))

    def more() -> None:
        if next(left, None) is not None:
            log.append(10)

    assert await taken(feed, 0, 1400, between=more) == list(range(1, 1401))


async def test_a_follower_that_is_too_slow_is_served_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_WAITING", 50)
    log = Log()
    feed = Feed(log.store)
    log.append(1)
    bursts = iter([200, 3, 49, 51, 700, 1, 120])

    def burst() -> None:
        log.append(next(bursts, 0))

    assert await taken(feed, 0, 1125, between=burst) == list(range(1, 1126))


async def test_what_waits_for_a_follower_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_WAITING", 50)
    log = Log()
    feed = Feed(log.store)
    log.append(1)
    pages = feed.follow(0, lambda e: True, 5.0)
    assert positions(await anext(pages)) == [1]  # type: ignore[arg-type]
    log.append(5000)
    (follower,) = feed._followers
    assert len(follower._waiting) <= 50
    await pages.aclose()  # type: ignore[attr-defined]
    assert feed._followers == set()


async def test_a_selection_holds_back_what_was_not_asked_for() -> None:
    log = Log()
    feed = Feed(log.store)
    log.append(3)
    log.append(2, OTHERS)
    log.append(2)
    assert await taken(feed, 0, 7, selector(None, "user0001-sim00001-command")) == [1, 2, 3, 6, 7]
    assert await taken(feed, 0, 5, selector("user0002", None)) == [4, 5]
    assert await taken(feed, 5, 7, selector(None, None)) == [6, 7]


async def test_where_nothing_happens_a_sign_of_life_comes() -> None:
    feed = Feed(Log().store)
    pages = feed.follow(0, lambda e: True, 0.05)
    async with asyncio.timeout(5):
        assert await anext(pages) == []  # type: ignore[arg-type]
        assert await anext(pages) == []  # type: ignore[arg-type]
    await pages.aclose()  # type: ignore[attr-defined]
