"""The agent's websocket: dial, say `alive`, carry frames both ways, dial again for as long as it
takes.

Knows nothing of jobs. Where the supervisor listens is read afresh before each try, because it may
come back elsewhere. In a container without a network the way there is a relay's unix socket; with
`wss` the certificate is held against the URL's host all the same.
"""

import asyncio
import random
import socket as sockets
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tornado.httpclient
import tornado.iostream
import tornado.netutil
import tornado.websocket

from ...protocol.wire.codec import MAX_FRAME, Decoder, Encoder, FrameError
from ...protocol.wire.handshake import HEADER, SiteHello, parse_header
from ...protocol.wire.heartbeat import Heartbeat, HeartbeatTiming
from ...protocol.wire.messages import Alive
from ...runtime.log.logger import Log
from .backoff import LATE, LONGEST, LONGEST_LATE, LONGEST_REFUSED, Backoff, Outcome
from .outbox import Outbox

#: A try to dial takes at most so long, however slowly the other end answers.
DIAL_SECS = 10.0
#: Between two tries, the address is looked at this often.
LOOK_SECS = 2.0
#: One of so many failures is logged: this may go on for hours.
SAY_EVERY = 60
#: Answers of a supervisor that does not let us in.
REFUSALS = (401, 403)


class Address(msgspec.Struct, frozen=True, rename={"url": "agentsUrl", "ca": "agentsCa"}):
    """Where to dial. `ca`: PEM file of the pinned authority, for wss. link: a relay's unix socket,
    which leads there.

    The others: how often each end asks whether the other is there.
    """

    url: str
    ca: str | None = None
    link: str | None = None
    ping_secs: float = msgspec.field(default=20.0, name="pingSecs")
    ping_timeout_secs: float = msgspec.field(default=10.0, name="pingTimeoutSecs")


def read_address(path: Path) -> Address:
    """The supervisor's agents listener, as it wrote it down. Raises OSError or ValueError, whatever
    the file holds.
    """
    address = msgspec.json.decode(path.read_bytes(), type=Address)
    if not address.url.startswith(("ws://", "wss://")):
        raise ValueError(f"no address of a listener: {address.url[:100]!r}")
    if address.link is not None and not address.link.startswith("/"):
        raise ValueError(f"no path of a relay's socket: {address.link[:100]!r}")
    if not 0 < address.ping_timeout_secs <= address.ping_secs:
        raise ValueError(
            f"no pace of pings: {address.ping_timeout_secs:g} within {address.ping_secs:g} s"
        )
    return address


class Link:
    """One agent's connection. `on_up()`, `on_message(message)`, `on_down()` are called on the loop."""

    def __init__(
        self,
        address_file: Path,
        key: str,
        token: str,
        alive: Alive,
        log: Log,
        *,
        on_up: Callable[[], None],
        on_message: Callable[[Any], None],
        on_down: Callable[[], None],
    ) -> None:
        self._file, self._key, self._token, self._alive, self._log = (
            address_file,
            key,
            token,
            alive,
            log,
        )
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._socket: tornado.websocket.WebSocketClientConnection | None = None
        self._outbox = Outbox()
        #: what the supervisor of the newest connection said of itself; None: nothing (it is of an
        #: earlier version)
        self.site: SiteHello | None = None

    def send(self, message: Any) -> None:
        """Queue for the live connection; without one it is dropped. A queue that overflows ends the
        connection: a snapshot is cheaper.
        """
        if self._socket is None:
            return
        if not self._outbox.put(message):
            self._outbox.clear()
            self._socket.close(1000, "its queue is full")

    async def room(self) -> None:
        """Returns when a large answer would not wait behind many others: whoever makes one waits
        for this first.
        """
        await self._outbox.room()

    async def run(self) -> None:
        """Dial and serve, for ever."""
        backoff, loop = Backoff(), asyncio.get_running_loop()
        while True:
            try:
                socket, pace = await self._dial()
            except (
                OSError,
                ValueError,
                tornado.httpclient.HTTPError,
                tornado.websocket.WebSocketError,
                tornado.iostream.StreamClosedError,
            ) as e:
                self._say_failure(backoff, e)
                pause = backoff.failed(_outcome(e), random.random())
            else:
                begun = loop.time()
                await self._serve(socket, pace)
                pause = backoff.ended(loop.time() - begun, random.random())
            if await self._has_new_address(pause):
                backoff = Backoff()

    async def _has_new_address(self, secs: float) -> bool:
        """Wait so long, or until the supervisor has written where it is now: then it has been
        started again, or found this agent.
        """
        loop = asyncio.get_running_loop()
        until, before = loop.time() + secs, _stamp(self._file)
        while (left := until - loop.time()) > 0:
            await asyncio.sleep(min(left, LOOK_SECS))
            if _stamp(self._file) != before:
                return True
        return False

    def _say_failure(self, backoff: Backoff, e: Exception) -> None:
        if backoff.failures % SAY_EVERY == 0:
            longest = (
                LONGEST_LATE
                if backoff.failures >= LATE
                else LONGEST_REFUSED
                if _outcome(e) == "refused"
                else LONGEST
            )
            self._log(
                "cannot reach the supervisor: {}; trying again every {:g} s and less",
                _brief(e),
                longest,
            )

    async def _dial(self) -> tuple[tornado.websocket.WebSocketClientConnection, HeartbeatTiming]:
        address = read_address(self._file)
        tls = None
        if address.url.startswith("wss:"):
            tls = ssl.create_default_context(cafile=address.ca)
        request = tornado.httpclient.HTTPRequest(
            address.url,
            headers={"Authorization": "Bearer " + self._token, "X-Jobscribe-Agent": self._key},
            connect_timeout=DIAL_SECS,
            request_timeout=DIAL_SECS,
            ssl_options=tls,
        )
        # no pings of Tornado's: they count on the wall clock, and pause for a day when it is set
        # back by one
        async with asyncio.timeout(
            1.5 * DIAL_SECS
        ):  # Tornado's own timeouts count on the wall clock
            resolver = None if address.link is None else _Through(address.link)
            socket = await tornado.websocket.websocket_connect(
                request,
                max_message_size=MAX_FRAME,
                resolver=resolver,  # type: ignore[arg-type]
            )
        stream = socket.protocol.stream if socket.protocol is not None else None
        if stream is None or stream.closed():
            raise tornado.iostream.StreamClosedError
        # Nagle's algorithm would hold a second small message back for 40 ms
        stream.set_nodelay(True)
        return socket, HeartbeatTiming(address.ping_secs, address.ping_timeout_secs)

    async def _serve(
        self, socket: tornado.websocket.WebSocketClientConnection, pace: HeartbeatTiming
    ) -> None:
        self._outbox.clear()
        self._outbox.put(self._alive)
        self._socket = socket
        self.site = None if socket.headers is None else parse_header(socket.headers.get(HEADER))
        loop = asyncio.get_running_loop()
        heart = Heartbeat(pace, loop.time(), ahead=random.random() * pace.interval / 2)
        socket.on_pong = lambda data: heart.record_receipt()  # type: ignore[method-assign]
        helpers = [
            loop.create_task(self._write(socket)),
            loop.create_task(self._watch(socket, heart, pace)),
        ]
        decoder = Decoder("to_agent")
        self._on_up()
        try:
            while (frame := await socket.read_message()) is not None:
                if heart.was_suspended(loop.time()):
                    self._log(
                        "this agent stood still; what was said to it meanwhile is asked for again"
                    )
                    break
                heart.record_receipt()
                if not self._read(decoder, frame):
                    break
        finally:
            self._socket = None
            for task in helpers:
                task.cancel()
            socket.close()
            self._outbox.clear()
            self._on_down()
        self._log("connection ended: code={} reason={}", socket.close_code, socket.close_reason)

    async def _watch(
        self,
        socket: tornado.websocket.WebSocketClientConnection,
        heart: Heartbeat,
        pace: HeartbeatTiming,
    ) -> None:
        """End a connection whose other end does not answer, at once: there is nobody to say goodbye
        to.
        """
        while True:
            await asyncio.sleep(pace.step)
            match heart.check(asyncio.get_running_loop().time()):
                case "ask":
                    try:
                        socket.ping()
                    except (
                        tornado.websocket.WebSocketClosedError,
                        tornado.iostream.StreamClosedError,
                    ):
                        return
                case "gone":
                    self._log("the supervisor does not answer")
                    _drop(socket)
                case "slept":
                    self._log("this agent stood still; it connects again")
                    _drop(socket)

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
                for frame in encoder.frames(await self._outbox.take()):
                    await socket.write_message(frame, binary=True)
        except (
            tornado.websocket.WebSocketClosedError,
            tornado.iostream.StreamClosedError,
            FrameError,
        ) as e:
            self._log("cannot write: {}", _brief(e))
            socket.close()


class _Through:
    """What Tornado asks for the addresses of a host: whatever it is called, the way there is this
    socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    async def resolve(
        self, host: str, port: int, family: int = sockets.AF_UNSPEC
    ) -> list[tuple[int, str]]:
        return [(sockets.AF_UNIX, self._path)]

    def close(self) -> None:
        """There is nothing to give back."""


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _outcome(e: Exception) -> Outcome:
    return (
        "refused"
        if isinstance(e, tornado.httpclient.HTTPError) and e.code in REFUSALS
        else "unreachable"
    )


def _drop(socket: tornado.websocket.WebSocketClientConnection) -> None:
    if socket.protocol is not None and socket.protocol.stream is not None:
        socket.protocol.stream.close()


def _brief(e: BaseException) -> str:
    return f"{type(e).__name__}: {str(e)[:200]}"
