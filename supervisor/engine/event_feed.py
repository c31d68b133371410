"""Durable events for subscribers. Queues are bounded, a subscription resumes at a position, and a
slow subscriber is served from the log.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from ...db.events.events import job_stream
from ...db.store.contract import EventStore, Stored

#: Events that may wait for one subscriber.
MAX_WAITING = 2_000
PAGE = 500


class EventFeed:
    """Distributes the store's events to all subscribers."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._subscriptions: set[_Subscription] = set()
        self.close = store.listen(self._publish)

    def sizes(self) -> dict[str, int]:
        """Return the number of subscribers."""
        return {"followers": len(self._subscriptions)}

    def _publish(self, events: Sequence[Stored]) -> None:
        for subscription in self._subscriptions:
            subscription.offer(events)

    async def follow(
        self, after: int, wanted: Callable[[Stored], bool], keepalive: float
    ) -> AsyncIterator[list[Stored]]:
        """Yield wanted events with position > `after` in order, forever. Yield an empty list after
        `keepalive` seconds without any.
        """
        subscription = _Subscription(wanted)
        self._subscriptions.add(subscription)
        try:
            while True:
                async for page, position in self._catch_up(after, wanted):
                    after = position
                    if page:
                        yield page
                subscription.overflowed = False
                while not subscription.overflowed:
                    events = await subscription.take(after, keepalive)
                    if events:
                        after = events[-1].position
                    yield events
        finally:
            self._subscriptions.discard(subscription)

    async def _catch_up(
        self, after: int, wanted: Callable[[Stored], bool]
    ) -> AsyncIterator[tuple[list[Stored], int]]:
        while events := self._store.read_all(after, PAGE):
            after = events[-1].position
            yield [e for e in events if wanted(e)], after
            await asyncio.sleep(0)


class _Subscription:
    def __init__(self, wanted: Callable[[Stored], bool]) -> None:
        self._wanted = wanted
        self._waiting: deque[Stored] = deque()
        self._wake = asyncio.Event()
        self.overflowed = False

    def offer(self, events: Sequence[Stored]) -> None:
        self._waiting.extend(e for e in events if self._wanted(e))
        if len(self._waiting) > MAX_WAITING:
            self._waiting.clear()
            self.overflowed = True
        if self._waiting or self.overflowed:
            self._wake.set()

    async def take(self, after: int, keepalive: float) -> list[Stored]:
        """Return the waiting events after this position, or an empty list after `keepalive` seconds
        without any.
        """
        if not self._waiting and not self.overflowed:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), keepalive)
            except TimeoutError:
                return []
        # After an overflow some events are missing: all of them are read from the log again.
        out = [] if self.overflowed else [e for e in self._waiting if e.position > after]
        self._waiting.clear()
        return out


def selector(uid: str | None, jid: str | None) -> Callable[[Stored], bool]:
    """Return a filter for events of this job, of this user's jobs, or of all jobs."""
    if jid is not None:
        stream = job_stream(jid)
        return lambda e: e.stream == stream
    if uid is not None:
        prefix = f"job/{uid}-"
        return lambda e: e.stream.startswith(prefix)
    return lambda e: True
