"""Child processes of an asyncio loop that may have to be killed while another process holds their
pipes.

`Process.wait` also waits until the pipes are closed, which a process that has left the child's
group may never do. So every wait here has a limit, and the pipes are closed on this side.
"""

import asyncio
import contextlib
import os
from asyncio.subprocess import Process
from signal import Signals


def signal_group(child: Process, number: Signals) -> None:
    """Send a signal to a child that leads its process group, and to the group. Does nothing if it
    is gone or belongs to another user.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


async def wait_ended(child: Process, secs: float) -> bool:
    """Return whether the child has ended and its pipes are closed within this time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(secs):
            await child.wait()
            return True
    return False


def close_pipes(child: Process) -> None:
    """Close this side of the child's pipes. Otherwise the loop would watch a pipe that another
    process holds, as long as the loop runs.
    """
    transport = getattr(child, "_transport", None)  # asyncio has no public access to it
    if transport is not None:
        transport.close()
