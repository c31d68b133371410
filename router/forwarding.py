"""One request to the supervisor that serves a shard, whichever of its addresses that is."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from tornado.httputil import HTTPHeaders

from ..runtime.log.logger import Log
from ..service.site.secret_rotation import RotatedSecret
from .metrics import RouterMetrics
from .routing import Table
from .senders import Senders
from .shard_addresses import ShardAddresses
from .upstream import Answer, Collector, Lost, Message, Sink, Unreached, Upstream

#: Limit of a short request, in seconds.
_WAIT_SECS = 5.0


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
                await parts.upstream.exchange(url, message, sink, once=once)
                parts.addresses.serves(shard, url)
                return
            except Unreached as e:
                why = e
        if not parts.addresses.moved(shard, urls[-1]):
            break
    raise why or Unreached("no address")


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
