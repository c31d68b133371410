"""The agent's websocket: dial, say `alive`, carry frames both ways, dial again for as long as it takes.

Knows nothing of jobs. Where the supervisor listens is read afresh before each try, because it may come back elsewhere.
"""

import asyncio
import json
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tornado.httpclient
import tornado.iostream
import tornado.websocket

from ..protocol.codec import MAX_FRAME, Decoder, Encoder, FrameError
from ..protocol.messages import Alive
from ..runtime.log import Log

#: Pauses between tries, seconds; jittered by half, so that a thousand agents do not come at once.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
#: One of so many failures is logged: this may go on for hours.
SAY_EVERY = 60
MAX_WAITING = 20_000


class Address(msgspec.Struct, frozen=True):
    """Where to dial. `ca`: PEM file of the pinned authority, for wss."""

    url: str
    ca: str | None = None


def read_address(path: Path) -> Address:
    """The supervisor's agents listener, as it wrote it down. Raises OSError or ValueError."""
    data = json.loads(path.read_text())
    return Address(url=data["agentsUrl"], ca=data.get("agentsCa"))


class Link:
    """One agent's connection. `on_up()`, `on_message(message)`, `on_down()` are called on the loop."""

    def __init__(
        self, address_file: Path, key: str, token: str, alive: Alive, log: Log, *,
        on_up: Callable[[], None], on_message: Callable[[Any], None], on_down: Callable[[], None],
        ping_secs: float = 20.0, ping_timeout_secs: float = 10.0,
    ) -> None:
        self._file, self._key, self._token, self._alive, self._log = address_file, key, token, alive, log
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._ping = (ping_secs, min(ping_timeout_secs, ping_secs))
        self._socket: tornado.websocket.WebSocketClientConnection | None = None
        self._waiting: deque[Any] = deque()
        self._wake = asyncio.Event()

    def send(self, message: Any) -> None:
        """Queue for the live connection; without one it is dropped. A queue that overflows ends the connection: a snapshot is cheaper."""
        if self._socket is None:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.clear()
            self._socket.close(1000, "its queue is full")
            return
        self._waiting.append(message)
        self._wake.set()

    async def run(self) -> None:
        """Dial and serve, for ever."""
        pause, failures = FIRST_PAUSE, 0
        while True:
            try:
                await self._serve(await self._dial())
                pause, failures = FIRST_PAUSE, 0
            except (OSError, ValueError, KeyError, tornado.httpclient.HTTPError, tornado.websocket.WebSocketError,
                    tornado.iostream.StreamClosedError) as e:
                if failures % SAY_EVERY == 0:
                    self._log("cannot reach the supervisor: {}; trying again every {:g} s and less", _brief(e), LONGEST_PAUSE)
                failures += 1
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _dial(self) -> tornado.websocket.WebSocketClientConnection:
        address = read_address(self._file)
        tls = None
        if address.url.startswith("wss:"):
            tls = ssl.create_default_context(cafile=address.ca)
        request = tornado.httpclient.HTTPRequest(
            address.url, headers={"Authorization": "Bearer " + self._token, "X-Jobscribe-Agent": self._key},
            connect_timeout=10, request_timeout=10, ssl_options=tls,
        )
        socket = await tornado.websocket.websocket_connect(
            request, ping_interval=self._ping[0], ping_timeout=self._ping[1], max_message_size=MAX_FRAME,
        )
        # Nagle's algorithm would hold a second small message back for 40 ms
        socket.protocol.stream.set_nodelay(True)  # type: ignore[union-attr]
        return socket

    async def _serve(self, socket: tornado.websocket.WebSocketClientConnection) -> None:
        self._waiting.clear()
        self._waiting.append(self._alive)
        self._socket = socket
        writer = asyncio.get_running_loop().create_task(self._write(socket))
        decoder = Decoder("to_agent")
        self._on_up()
        try:
            while (frame := await socket.read_message()) is not None:
                if not self._read(decoder, frame):
                    break
        finally:
            self._socket = None
            writer.cancel()
            socket.close()
            self._on_down()
        self._log("connection ended: code={} reason={}", socket.close_code, socket.close_reason)

    def _read(self, decoder: Decoder, frame: bytes | str) -> bool:
        gaps = decoder.gaps
        try:
            messages: Sequence[Any] = decoder.messages(frame)  # type: ignore[arg-type]
        except FrameError as e:
            self._log("refused a frame of the supervisor: {}", e.sentence)
            if e.close:
                return False
            messages = e.messages
        for message in messages:
            self._on_message(message)
        # A lost frame of the supervisor: a new connection begins with a snapshot, which mends it.
        return decoder.gaps == gaps

    async def _write(self, socket: tornado.websocket.WebSocketClientConnection) -> None:
        encoder = Encoder()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    batch = list(self._waiting)
                    self._waiting.clear()
                    for frame in encoder.frames(batch):
                        await socket.write_message(frame, binary=True)
        except (tornado.websocket.WebSocketClosedError, tornado.iostream.StreamClosedError, FrameError) as e:
            self._log("cannot write: {}", _brief(e))
            socket.close()


def _brief(e: BaseException) -> str:
    return f"{type(e).__name__}: {str(e)[:200]}"
