"""Children of an asyncio loop that may have to be ended, although somebody else holds their pipes.

`Process.wait` also waits until the pipes are closed, which a process that has left the child's
group may never do: it is never waited for without a bound, and the pipes are closed on this side.
"""

import asyncio
import contextlib
import os
from asyncio.subprocess import Process
from signal import Signals


def tell_group(child: Process, number: Signals) -> None:
    """A signal for a child that leads its process group, and for the group. Nothing where it is
    gone, or another user's.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


async def gone(child: Process, secs: float) -> bool:
    """Whether it and its pipes are over after so long at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(secs):
            await child.wait()
            return True
    return False


def close_pipes(child: Process) -> None:
    """Nothing more is read or written. Without it a pipe that somebody holds would be watched for
    as long as the loop runs.
    """
    transport = getattr(child, "_transport", None)  # asyncio has no public way to it
    if transport is not None:
        transport.close()
