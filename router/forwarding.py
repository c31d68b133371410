"""One request to the supervisor that serves a shard, whichever of its addresses that is."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from tornado.httputil import HTTPHeaders, ResponseStartLine

from ..runtime.log.logger import Log
from ..service.site.secret_rotation import RotatedSecret
from .metrics import RouterMetrics
from .routing import Table
from .senders import Senders
from .shard_addresses import ShardAddresses
from .upstream import Answer, Collector, Lost, Message, Sink, Unreached, Upstream

#: Limit of a short request, in seconds.
_WAIT_SECS = 5.0
#: Interval in which it is looked whether another supervisor serves the shard of a request that takes longer,
#: and the limit of its answer.
LOOK_SECS, LOOK_WAIT_SECS = 2.0, 2.0


class Parts(NamedTuple):
    """The parts of a router that each request uses. wall: returns unix seconds. page: address of the page
    for a sign-in by code, if there is a front end.
    """

    table: Table
    senders: Senders
    addresses: ShardAddresses
    upstream: Upstream
    secret: RotatedSecret
    log: Log
    metrics: RouterMetrics
    wall: Callable[[], float] = time.time
    page: str | None = None


async def to_shard(
    parts: Parts, shard: int, message: Message, sink: Sink, *, once: bool = False
) -> None:
    """Send a request to the supervisor that serves this shard. Raises Unreached, Lost."""
    why: Unreached | None = None
    for _ in range(2):
        urls = parts.addresses.of(shard)
        for url in urls:
            if why is not None:
                parts.metrics.retried(shard)
            try:
                await _exchange(parts, shard, url, message, sink, once=once)
                parts.addresses.serves(shard, url)
                return
            except Unreached as e:
                why = e
        if not parts.addresses.moved(shard, urls[-1]):
            break
    raise why or Unreached("no address")


class _Begun:
    """Passes an answer on, and knows whether it has begun."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self.begun = sink, False

    async def begin(self, start_line: ResponseStartLine, headers: HTTPHeaders) -> None:
        self.begun = True
        await self._sink.begin(start_line, headers)

    async def take(self, chunk: bytes) -> None:
        await self._sink.take(chunk)


async def _exchange(
    parts: Parts, shard: int, url: str, message: Message, sink: Sink, *, once: bool
) -> None:
    """Send a request to this address. A supervisor that is frozen accepts connections and answers nothing,
    so the exchange ends when another one serves the shard. Raises Unreached, Lost.
    """
    loop, taking = asyncio.get_running_loop(), _Begun(sink)
    watch: asyncio.Task[None] | None = None

    def look() -> None:
        nonlocal watch
        watch = loop.create_task(_end_when_replaced(parts, shard, url, limit))

    timer = loop.call_later(LOOK_SECS, look)
    try:
        async with asyncio.timeout(None) as limit:
            await parts.upstream.exchange(url, message, taking, once=once)
    except TimeoutError:
        if not limit.expired():
            raise
        if taking.begun or once or message.method != "GET":
            raise Lost("another supervisor serves the shard now") from None
        raise Unreached("another supervisor serves the shard now") from None
    finally:
        timer.cancel()
        if watch is not None:
            watch.cancel()


async def _end_when_replaced(parts: Parts, shard: int, url: str, limit: "asyncio.Timeout") -> None:
    """End an exchange when a supervisor with another address serves the shard."""
    while True:
        for other in parts.addresses.others(shard, url):
            try:
                async with asyncio.timeout(LOOK_WAIT_SECS):
                    ready = Message("GET", "/readyz", HTTPHeaders())
                    answer = await parts.upstream.fetch(other, ready)
            except (Unreached, Lost, TimeoutError):
                continue
            if answer.code == 200:
                parts.addresses.serves(shard, other)
                limit.reschedule(asyncio.get_running_loop().time())
                return
        await asyncio.sleep(LOOK_SECS)


async def ask(parts: Parts, shard: int, path: str, headers: HTTPHeaders) -> Answer | None:
    """Return the answer of a shard to a short GET; None if no supervisor of it answers."""
    return await fetch(parts, shard, Message("GET", path, headers))


async def fetch(parts: Parts, shard: int, message: Message, most: int = 1 << 20) -> Answer | None:
    """Return the answer of a shard to a short request; None if no supervisor of it answers."""
    collector = Collector(most)
    try:
        async with asyncio.timeout(_WAIT_SECS):
            await to_shard(parts, shard, message, collector)
    except (Unreached, Lost, TimeoutError):
        return None
    return collector.answer()
