"""Subscribers to the log: in order, no duplicates, no gaps, at any speed. A slow subscriber does
not fill the memory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from jobscribe.db.events.events import Event, SupervisorStopped
from jobscribe.db.store.contract import Batch, Stored, Write
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.supervisor.engine import event_feed as feed_module
from jobscribe.supervisor.engine.event_feed import EventFeed, selector

MINE, OTHERS = "job/user0001-sim00001-command", "job/user0002-sim00001-command"


class Log:
    """A store, and methods that append events."""

    def __init__(self) -> None:
        self.store = MemoryStore(lambda call: call())
        self.versions: dict[str, int] = {}

    def append(self, n: int, stream: str = MINE) -> None:
        for _ in range(n):
            version = self.versions.get(stream, 0)
            event: Event = SupervisorStopped(at=1.0, session=version, reason="")
            self.store.append(Batch(writes=(Write(stream, version, (event,)),)), lambda _: None)
            self.versions[stream] = version + 1


class Reader:
    """Reads a feed in its own task; `got` has the positions so far."""

    def __init__(
        self,
        feed: EventFeed,
        after: int = 0,
        wanted: Callable[[Stored], bool] = lambda e: True,
        keepalive: float = 30.0,
    ) -> None:
        self.got: list[int] = []
        self.pages = 0
        #: called for every page, while the feed waits for its reader
        self.between: Callable[[], None] = lambda: None
        self._task = asyncio.get_running_loop().create_task(
            self._read(feed.follow(after, wanted, keepalive))
        )

    async def _read(self, pages: AsyncIterator[list[Stored]]) -> None:
        async for page in pages:
            self.got += positions(page)
            self.pages += 1
            self.between()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():
                await asyncio.sleep(0)

    async def end(self) -> list[int]:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.got


def positions(page: Sequence[Stored]) -> list[int]:
    return [e.position for e in page]


async def test_what_was_there_and_what_comes_is_one_sequence() -> None:
    log = Log()
    log.append(1200)
    reader = Reader(EventFeed(log.store))
    left = iter(range(20))

    def more() -> None:
        """Append while earlier events are still being read: the feed gets each event both as a
        notification and from the log.
        """
        if next(left, None) is not None:
            log.append(10)

    reader.between = more
    await reader.until(lambda: reader.got[-1:] == [1400])
    log.append(1)
    await reader.until(lambda: reader.got[-1:] == [1401])
    assert await reader.end() == list(range(1, 1402))


async def test_a_follower_that_is_too_slow_is_served_from_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The subscriber waits for news when more events arrive at once than its buffer holds."""
    monkeypatch.setattr(feed_module, "MAX_WAITING", 50)
    log = Log()
    log.append(1)
    feed = EventFeed(log.store)
    reader = Reader(feed)
    for burst in (200, 3, 49, 50, 51, 700, 1, 120):
        await reader.until(lambda: len(reader.got) == log.versions[MINE] and _waits(feed))
        log.append(burst)
    await reader.until(lambda: len(reader.got) >= log.versions[MINE])
    assert await reader.end() == list(range(1, log.versions[MINE] + 1))


def _waits(feed: EventFeed) -> bool:
    """Return whether the only subscriber has read everything and waits for news."""
    (follower,) = feed._subscriptions
    return bool(follower._wake._waiters)  # type: ignore[attr-defined]


async def test_what_waits_for_a_follower_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_WAITING", 50)
    log = Log()
    feed = EventFeed(log.store)
    log.append(1)
    pages = feed.follow(0, lambda e: True, 5.0)
    assert positions(await anext(pages)) == [1]  # type: ignore[arg-type]
    log.append(5000)
    (follower,) = feed._subscriptions
    assert len(follower._waiting) <= 50
    await pages.aclose()  # type: ignore[attr-defined]
    assert feed._subscriptions == set()


async def test_a_selection_holds_back_what_was_not_asked_for() -> None:
    log = Log()
    feed = EventFeed(log.store)
    log.append(3)
    log.append(2, OTHERS)
    readers = (
        Reader(feed, 0, selector(None, "user0001-sim00001-command")),
        Reader(feed, 0, selector("user0002", None)),
        Reader(feed, 4, selector(None, None)),
    )
    for reader in readers:
        await reader.until(lambda reader=reader: reader.pages > 0)  # type: ignore[misc]
    log.append(2)
    log.append(1, OTHERS)
    await readers[2].until(lambda: readers[2].got[-1] == 8)
    assert [await r.end() for r in readers] == [[1, 2, 3, 6, 7], [4, 5, 8], [5, 6, 7, 8]]


async def test_where_nothing_happens_a_sign_of_life_comes() -> None:
    feed = EventFeed(Log().store)
    pages = feed.follow(0, lambda e: True, 0.05)
    async with asyncio.timeout(5):
        assert await anext(pages) == []  # type: ignore[arg-type]
        assert await anext(pages) == []  # type: ignore[arg-type]
    await pages.aclose()  # type: ignore[attr-defined]
