"""A proxy between agents and the supervisor's agent listener that damages traffic, by whole frames
or inside a frame.

It parses websockets only to find the end of a frame. Data frames may be delayed, repeated, swapped
with the next one, sent slowly, lost with their connection, or cut in the middle. A whole link may
be held (half-open: nothing passes and nothing is closed) or cut. A seed decides the harms, and the
proxy counts them. It runs in its own thread.
"""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

#: Harms that end the connection.
CUTS = ("lost", "cut")


@dataclass(frozen=True)
class Harm:
    """Probability of each harm for one data frame. `late_secs` and `slow_rate` (bytes per second)
    set the severity.
    """

    late: float = 0.0
    repeat: float = 0.0
    swap: float = 0.0
    slow: float = 0.0
    lost: float = 0.0
    cut: float = 0.0
    late_secs: float = 0.05
    slow_rate: float = 20_000.0

    def fate(self, chance: random.Random) -> str:
        x = chance.random()
        for name in ("late", "repeat", "swap", "slow", *CUTS):
            x -= getattr(self, name)
            if x < 0:
                return name
        return "pass"


NONE = Harm()


@dataclass(eq=False)
class _Pair:
    """Both ends of one connection."""

    writers: list[asyncio.StreamWriter]
    #: per direction: a frame held back until the next one arrives, to be sent after it
    kept: dict[str, bytes] = field(default_factory=dict)

    def close(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class HarmfulProxy:
    """`with HarmfulProxy(port) as proxy` listens at `proxy.port`. `done` counts harms by name and
    direction.
    """

    def __init__(self, target_port: int, seed: int = 0, harm: Harm = NONE) -> None:
        self.target, self.port, self.harm = target_port, 0, harm
        self.done: Counter[str] = Counter()
        self.made = 0
        self._chance = random.Random(seed)
        self._pairs: set[_Pair] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._up = threading.Event()

    def __enter__(self) -> "HarmfulProxy":
        self._thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    # ---- called by tests, from their own thread

    def reseed(self, seed: int, harm: Harm) -> None:
        def change() -> None:
            self._chance, self.harm = random.Random(seed), harm

        self._call(change)

    def hold(self) -> None:
        """From now on pass nothing in either direction and close nothing; new connections are
        accepted and get no data.
        """
        self._call(self._passing.clear)

    def release(self) -> None:
        """Pass the held data of connections that still exist."""
        self._call(self._passing.set)

    def cut(self) -> None:
        """End every connection at once."""
        self._call(lambda: [pair.close() for pair in list(self._pairs)])

    @property
    def open(self) -> int:
        return len(self._pairs)

    def _call(self, what: Callable[[], Any]) -> None:
        done = threading.Event()

        def call() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(call)
        assert done.wait(10)

    # ---- the thread

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._over, self._passing = asyncio.Event(), asyncio.Event()
        self._passing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=1 << 22)
        self.port = server.sockets[0].getsockname()[1]
        self._up.set()
        await self._over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pair in list(self._pairs):
            pair.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._keep(self._connection(reader, writer))

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passing.wait()
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target, limit=1 << 22)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair([writer, back])
        self._pairs.add(pair)
        self.made += 1
        try:
            ways = [
                self._keep(self._carry("up", reader, back, pair)),
                self._keep(self._carry("down", there, writer, pair)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            await self._passing.wait()  # a held link does not reveal that one end is gone
        finally:
            pair.close()
            self._pairs.discard(pair)
            for way in ways:
                way.cancel()

    async def _carry(
        self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: _Pair
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, OSError):
            await self._give(writer, await reader.readuntil(b"\r\n\r\n"))
            async for frame, is_data in _frames(reader):
                await self._frame(way, frame, is_data, writer, pair)

    async def _frame(
        self, way: str, frame: bytes, is_data: bool, writer: asyncio.StreamWriter, pair: _Pair
    ) -> None:
        fate = self.harm.fate(self._chance) if is_data else "pass"
        if fate != "pass":
            self.done[f"{fate} {way}"] += 1
        match fate:
            case "late":
                await asyncio.sleep(self._chance.random() * self.harm.late_secs)
            case "repeat":
                await self._give(writer, frame)
            case "slow":
                for i in range(0, len(frame), 64):
                    await self._give(writer, frame[i : i + 64])
                    await asyncio.sleep(64 / self.harm.slow_rate)
                return
            case "swap" if way not in pair.kept:
                pair.kept[way] = frame
                self._keep(self._give_kept(way, writer, pair))
                return
            case "lost":
                pair.close()
                return
            case "cut":
                await self._give(writer, frame[: max(1, int(len(frame) * self._chance.random()))])
                await writer.drain()
                for w in pair.writers:  # the half frame arrives before the end
                    w.close()
                return
        await self._give(writer, frame)
        if way in pair.kept:
            await self._give(writer, pair.kept.pop(way))

    async def _give_kept(self, way: str, writer: asyncio.StreamWriter, pair: _Pair) -> None:
        """Send a held-back frame although no other frame came to swap with."""
        await asyncio.sleep(0.1)
        frame = pair.kept.pop(way, None)
        if frame is not None:
            with contextlib.suppress(ConnectionError):
                await self._give(writer, frame)

    async def _give(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self._passing.wait()
        writer.write(data)
        await writer.drain()


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield whole frames as on the wire, and whether each is a data frame (not a ping, pong or
    close).
    """
    while True:
        head = await reader.readexactly(2)
        length, masked = head[1] & 0x7F, head[1] & 0x80
        if length > 125:
            more = await reader.readexactly(2 if length == 126 else 8)
            head, length = head + more, int.from_bytes(more, "big")
        yield head + await reader.readexactly(length + (4 if masked else 0)), head[0] & 0x0F < 8
