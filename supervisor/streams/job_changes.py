"""The names of all jobs that change durably, for front ends that keep statuses in memory.

A reader gets every name after its first line, at least once, but no statuses. A reader that is too
slow is ended: it must drop what it keeps and read again.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from ...protocol.errors import Refusal

#: Interval of lines without a name, which tell that the stream works.
ALIVE_SECS = 1.0
#: Maximum streams, and names that one reader has not read yet.
MOST, WAITING = 64, 10_000


class JobChanges:
    """All open streams. One per process."""

    def __init__(self, *, alive_secs: float = ALIVE_SECS) -> None:
        self._alive = alive_secs
        self._readers: set[ChangeReader] = set()
        self._closing = False

    def __len__(self) -> int:
        return len(self._readers)

    def changed(self, jid: str) -> None:
        for reader in self._readers:
            reader.add(jid)

    @contextmanager
    def reader(self) -> Iterator["ChangeReader"]:
        """Open a reader. Raises Refusal (tooManyRequests, draining)."""
        if self._closing:
            raise Refusal("draining", "the supervisor is stopping; try again after the restart")
        if len(self._readers) >= MOST:
            raise Refusal("tooManyRequests", f"{MOST} front ends read the changes of jobs already")
        reader = ChangeReader()
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    async def stream(self, reader: "ChangeReader") -> AsyncGenerator[bytes, None]:
        """Yield lines: a computeJid each, empty at the start and when nothing has changed."""
        yield b"\n"
        while not (reader.ended or self._closing):
            yield await reader.lines(self._alive)

    def close(self) -> None:
        """End all streams."""
        self._closing = True
        for reader in self._readers:
            reader.end()


class ChangeReader:
    """The names that one front end has not received yet."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._awake = asyncio.Event()
        self.ended = False

    def add(self, jid: str) -> None:
        self._names[jid] = None
        if len(self._names) > WAITING:
            self.ended = True
        self._awake.set()

    def end(self) -> None:
        self.ended = True
        self._awake.set()

    async def lines(self, secs: float) -> bytes:
        """Return the new names, or an empty line after `secs` without any."""
        try:
            async with asyncio.timeout(secs):
                await self._awake.wait()
        except TimeoutError:
            return b"\n"
        self._awake.clear()
        names, self._names = self._names, {}
        return "".join(f"{jid}\n" for jid in names).encode() or b"\n"
