"""Resource usage of batch jobs: the samples that their scripts leave in the evidence, as messages.
Volatile: only the newest counts.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterable, Sequence

from ...protocol.ids import Token
from ...protocol.wire.messages import Sample, Samples
from ..slurm.usage_script import (
    EVERY_SECS,
    LATER_SECS,
    MOST_NODES,
    NODE_LOG,
    READ_BYTES,
    USAGE_LOG,
    Usage,
    parse,
)

#: Pause between two looks at the files (seconds), and tasks per message.
LOOK_SECS = EVERY_SECS / 2
TOLD_AT_ONCE = 200
#: A node whose last sample is this much older than that of another node is no longer sampled.
SILENT_SECS = 2 * LATER_SECS


class BatchUsage:
    """Reads the samples of live tasks. live: returns their tokens and evidence folders."""

    def __init__(
        self,
        live: Callable[[], Iterable[tuple[Token, str]]],
        send: Callable[[Samples], None],
    ) -> None:
        self._live, self._send = live, send
        #: time of the last sample of each task
        self._last: dict[Token, float] = {}

    async def run(self) -> None:
        """Send new samples until canceled."""
        while True:
            await asyncio.sleep(LOOK_SECS)
            tasks = list(self._live())
            self._last = {token: self._last[token] for token, _ in tasks if token in self._last}
            if not tasks:
                continue
            found = await asyncio.to_thread(self._read, tasks)
            for n in range(0, len(found), TOLD_AT_ONCE):
                self._send(Samples(samples=tuple(found[n : n + TOLD_AT_ONCE])))

    def _read(self, tasks: Sequence[tuple[Token, str]]) -> list[Sample]:
        found = []
        for token, folder in tasks:
            now = _newest(folder)
            # each node has a new sample; nodes sample at different moments
            if now and min(u.at for _, u in now) > self._last.get(token, 0.0):
                self._last[token] = max(u.at for _, u in now)
                found.append(_sample(token, now))
        return found


def _newest(folder: str) -> list[tuple[Usage | None, Usage]]:
    """Return the last two samples of each node that is still sampled; [] as long as a node of the job
    has none, because sums would be too small.
    """
    logs = _node_logs(folder)
    names = [m[0] for m in logs] or [USAGE_LOG]
    each = [usages for name in names if (usages := parse(_end_of(f"{folder}/{name}")))]
    if len(each) < max((int(m[2]) for m in logs), default=1):
        return []
    newest = max(usages[-1].at for usages in each)
    return [
        (next((u for u in reversed(usages) if u.at < usages[-1].at), None), usages[-1])
        for usages in each
        if usages[-1].at > newest - SILENT_SECS
    ]


def _node_logs(folder: str) -> list[re.Match[str]]:
    """Return the names of the files of a job on several nodes."""
    with contextlib.suppress(OSError):
        names = (NODE_LOG.fullmatch(name) for name in os.listdir(folder))
        return sorted((m for m in names if m is not None), key=lambda m: int(m[1]))[:MOST_NODES]
    return []


def _sample(token: Token, now: Sequence[tuple[Usage | None, Usage]]) -> Sample:
    """Return the sum over the nodes; of the use of GPUs their mean."""
    percents = [
        100 * max(0.0, u.cpu_secs - before.cpu_secs) / (u.at - before.at)
        for before, u in now
        if before is not None
    ]
    last = [u for _, u in now]
    gpus = sum(u.gpus for u in last)
    return Sample(
        token=token,
        at=max(u.at for u in last),
        cpu_percent=round(sum(percents), 1) if len(percents) == len(now) else None,
        cpu_secs=round(sum(u.cpu_secs for u in last), 2),
        memory_bytes=sum(u.memory for u in last),
        read_bytes=sum(u.read for u in last),
        written_bytes=sum(u.written for u in last),
        processes=sum(u.processes for u in last),
        gpu_percent=round(sum(u.gpu_percents for u in last) / gpus, 1) if gpus else None,
        gpu_memory_bytes=sum(u.gpu_memory for u in last) if gpus else None,
    )


def _end_of(path: str) -> bytes:
    """Return the end of a file, b"" if there is none. Links are not followed."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            return os.pread(fd, READ_BYTES, max(0, size - READ_BYTES))
        finally:
            os.close(fd)
    return b""
