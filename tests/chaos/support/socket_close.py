"""Wait until closed websockets are gone. The other end sees a close first; the event loop releases
the socket a little later.
"""

import asyncio
from typing import Any

SECS = 60.0


def watched(loop: Any) -> int:
    """Return how many sockets this loop watches, including its own pipe."""
    return len(loop._selector.get_map())


async def said(before: int) -> None:
    """Wait until no more sockets are left than before."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(SECS):
        while watched(loop) > before:
            await asyncio.sleep(0.01)
