"""Who closes a websocket is heard of by its other end first: the socket itself is gone a little
later, and not before the loop has let go of it.
"""

import asyncio
from typing import Any

SECS = 60.0


def watched(loop: Any) -> int:
    """How many sockets (and its own pipe) this loop looks at."""
    return len(loop._selector.get_map())


async def said(before: int) -> None:
    """Returns when no more sockets are left than there were before."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(SECS):
        while watched(loop) > before:
            await asyncio.sleep(0.01)
