"""Resource usage of batch jobs: the samples that their scripts leave in the evidence, as messages.
Volatile: only the newest counts.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Sequence

from ...protocol.ids import Token
from ...protocol.wire.messages import Sample, Samples
from ..slurm.usage_script import EVERY_SECS, READ_BYTES, USAGE_LOG, Usage, parse

#: Pause between two looks at the files (seconds), and tasks per message.
LOOK_SECS = EVERY_SECS / 2
TOLD_AT_ONCE = 200


class BatchUsage:
    """Reads the samples of live tasks. live: returns their tokens and evidence folders."""

    def __init__(
        self,
        live: Callable[[], Iterable[tuple[Token, str]]],
        send: Callable[[Samples], None],
    ) -> None:
        self._live, self._send = live, send
        #: the last sample of each task
        self._last: dict[Token, Usage] = {}

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
            usages = parse(_end_of(f"{folder}/{USAGE_LOG}"))
            last = self._last.get(token)
            new = [u for u in usages if last is None or u.at > last.at]
            if not new:
                continue
            before = next((u for u in reversed(usages) if u.at < new[-1].at), None)
            self._last[token] = new[-1]
            found.append(_sample(token, before, new[-1]))
        return found


def _sample(token: Token, before: Usage | None, now: Usage) -> Sample:
    percent = (
        None
        if before is None
        else 100 * max(0.0, now.cpu_secs - before.cpu_secs) / (now.at - before.at)
    )
    return Sample(
        token=token,
        at=now.at,
        cpu_percent=None if percent is None else round(percent, 1),
        cpu_secs=now.cpu_secs,
        memory_bytes=now.memory,
        read_bytes=now.read,
        written_bytes=now.written,
        processes=now.processes,
        gpu_percent=None,
        gpu_memory_bytes=None,
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
