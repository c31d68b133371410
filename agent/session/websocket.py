"""The agent's websocket: connect, send `alive`, exchange frames, reconnect without end.

Knows nothing about jobs. The supervisor's address file is read before each attempt, because the
address may change. In a container without a network the connection goes through a relay's Unix
socket; with `wss` the certificate is still verified against the URL's host.
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

from ...protocol.version import VERSION
from ...protocol.wire import versions
from ...protocol.wire.codec import MAX_FRAME, Decoder, Encoder, FrameError
from ...protocol.wire.handshake import (
    HEADER,
    NO_COMMON_VERSION,
    PROTOCOLS,
    SiteHello,
    parse_header,
)
from ...protocol.wire.heartbeat import Heartbeat, HeartbeatTiming
from ...protocol.wire.messages import Alive
from ...runtime.log.logger import Log
from .backoff import LATE, LONGEST, LONGEST_LATE, LONGEST_REFUSED, Backoff, Outcome
from .outbox import Outbox

#: Time limit of a connection attempt (seconds).
DIAL_SECS = 10.0
#: Interval (seconds) of checks for a new address between two attempts.
LOOK_SECS = 2.0
#: Only every 60th failure is logged: failures may continue for hours.
SAY_EVERY = 60
#: HTTP status codes of a supervisor that refuses the agent.
REFUSALS = (401, 403, NO_COMMON_VERSION)
#: Maximum length (characters) of the supervisor's sentence in the log.
SENTENCE_CHARS = 600


class Address(msgspec.Struct, frozen=True, rename={"url": "agentsUrl", "ca": "agentsCa"}):
    """The address file. ca: PEM file of the pinned authority, for wss. link: Unix socket of a relay.
    others: URLs of other supervisors of the site, of which one serves at a time.

    ping_secs, ping_timeout_secs: heartbeat interval and timeout of each end.
    """

    url: str
    ca: str | None = None
    link: str | None = None
    others: tuple[str, ...] = msgspec.field(default=(), name="agentsOthers")
    ping_secs: float = msgspec.field(default=20.0, name="pingSecs")
    ping_timeout_secs: float = msgspec.field(default=10.0, name="pingTimeoutSecs")


def read_address(path: Path) -> Address:
    """Read the address that the supervisor wrote. Raises OSError or ValueError."""
    address = msgspec.json.decode(path.read_bytes(), type=Address)
    for url in (address.url, *address.others):
        if not url.startswith(("ws://", "wss://")):
            raise ValueError(f"not a websocket URL: {url[:100]!r}")
    if address.link is not None and not address.link.startswith("/"):
        raise ValueError(f"not an absolute path of a relay's socket: {address.link[:100]!r}")
    if not 0 < address.ping_timeout_secs <= address.ping_secs:
        raise ValueError(
            f"invalid ping settings: timeout {address.ping_timeout_secs:g} s, interval {address.ping_secs:g} s"
        )
    return address


class Link:
    """The connection of one agent. Calls `on_up()`, `on_message(message)`, `on_down()` on the loop."""

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
        #: address of the file at the newest attempt to connect
        self._url = ""
        #: number of attempts that failed since the file changed: each takes the next address
        self._turn = 0
        #: the supervisor's settings for agents, of the newest connection; None: it is of an earlier
        #: version, which sends none
        self.site: SiteHello | None = None

    def send(self, message: Any) -> None:
        """Queue a message; dropped without a connection. A full queue closes the connection: a
        snapshot is cheaper.
        """
        if self._socket is None:
            return
        if not self._outbox.put(message):
            self._outbox.clear()
            self._socket.close(1000, "the agent's send queue is full")

    async def wait_for_capacity(self) -> None:
        """Wait until few answers are queued. Call it before creating a large answer."""
        await self._outbox.wait_for_capacity()

    async def run(self) -> None:
        """Connect and serve forever."""
        backoff, loop = Backoff(), asyncio.get_running_loop()
        while True:
            try:
                before = _stamp(self._file)
                socket, pace, protocol = await self._dial_unless_changed(before)
            except (
                OSError,
                ValueError,
                tornado.httpclient.HTTPError,
                tornado.websocket.WebSocketError,
                tornado.iostream.StreamClosedError,
            ) as e:
                self._turn += 1
                self._log_failure(backoff, e)
                pause = backoff.failed(_outcome(e), random.random())
            else:
                begun = loop.time()
                await self._serve(socket, pace, protocol, before)
                pause = backoff.ended(loop.time() - begun, random.random())
            if await self._wait_for_new_address(pause):
                backoff = Backoff()

    async def _wait_for_new_address(self, secs: float) -> bool:
        """Wait for `secs`; return True early if the address file changed. Then the supervisor has
        restarted or found this agent.
        """
        loop = asyncio.get_running_loop()
        until, before = loop.time() + secs, _stamp(self._file)
        while (left := until - loop.time()) > 0:
            await asyncio.sleep(min(left, LOOK_SECS))
            if _stamp(self._file) != before:
                return True
        return False

    async def _changed(self, before: tuple[int, int] | None) -> None:
        """Return when the address file is another one than `before`."""
        while True:
            if _stamp(self._file) not in (before, None):
                return
            await asyncio.sleep(LOOK_SECS)

    async def _dial_unless_changed(
        self, before: tuple[int, int] | None
    ) -> tuple[tornado.websocket.WebSocketClientConnection, HeartbeatTiming, int]:
        """Dial, and give up when another supervisor takes over: the one that was dialled may be frozen."""
        loop = asyncio.get_running_loop()
        dial, changed = loop.create_task(self._dial()), loop.create_task(self._changed(before))
        try:
            await asyncio.wait({dial, changed}, return_when=asyncio.FIRST_COMPLETED)
            if not dial.done():
                raise ConnectionAbortedError("the supervisor's address has changed")
            return dial.result()
        except asyncio.CancelledError:
            dial.add_done_callback(_close_late)
            raise
        finally:
            dial.cancel()
            changed.cancel()

    def _log_failure(self, backoff: Backoff, e: Exception) -> None:
        if backoff.failures % SAY_EVERY == 0:
            longest = (
                LONGEST_LATE
                if backoff.failures >= LATE
                else LONGEST_REFUSED
                if _outcome(e) == "refused"
                else LONGEST
            )
            self._log(
                "cannot reach the supervisor: {}; retrying at least every {:g} s",
                _brief(e),
                longest,
            )

    async def _dial(
        self,
    ) -> tuple[tornado.websocket.WebSocketClientConnection, HeartbeatTiming, int]:
        """Return a connection, the timing of its heartbeats and its protocol version."""
        address = read_address(self._file)
        if address.url != self._url:
            self._url, self._turn = address.url, 0
        urls = (address.url, *address.others)
        url = urls[self._turn % len(urls)]
        tls = None
        if url.startswith("wss:"):
            tls = ssl.create_default_context(cafile=address.ca)
        request = tornado.httpclient.HTTPRequest(
            url,
            headers={
                "Authorization": "Bearer " + self._token,
                "X-Jobscribe-Agent": self._key,
                PROTOCOLS: str(versions.SPOKEN),
            },
            connect_timeout=DIAL_SECS,
            request_timeout=DIAL_SECS,
            ssl_options=tls,
        )
        # no pings or timeouts of Tornado's: they use the wall clock, and would pause for a day when
        # the clock is set back by one
        async with asyncio.timeout(1.5 * DIAL_SECS):
            resolver = None if address.link is None else _RelayResolver(address.link)
            connecting = asyncio.ensure_future(
                tornado.websocket.websocket_connect(
                    request,
                    max_message_size=MAX_FRAME,
                    resolver=resolver,  # type: ignore[arg-type]
                )
            )
            try:
                socket = await asyncio.shield(connecting)
            except asyncio.CancelledError:  # too late, or not wanted any more
                connecting.add_done_callback(_close_late)
                raise
        stream = socket.protocol.stream if socket.protocol is not None else None
        if stream is None or stream.closed():
            socket.close()
            raise tornado.iostream.StreamClosedError
        # Nagle's algorithm would delay a second small message by 40 ms
        stream.set_nodelay(True)
        self.site = None if socket.headers is None else parse_header(socket.headers.get(HEADER))
        try:
            protocol = _protocol(self.site)
        except _NoCommonVersion:
            socket.close()
            raise
        return socket, HeartbeatTiming(address.ping_secs, address.ping_timeout_secs), protocol

    async def _serve(
        self,
        socket: tornado.websocket.WebSocketClientConnection,
        pace: HeartbeatTiming,
        protocol: int,
        address: tuple[int, int] | None,
    ) -> None:
        """Serve a connection. address: stamp of the file that it was made with."""
        self._outbox.clear()
        self._outbox.put(self._alive)
        self._socket = socket
        loop = asyncio.get_running_loop()
        heart = Heartbeat(pace, loop.time(), ahead=random.random() * pace.interval / 2)
        socket.on_pong = lambda data: heart.record_receipt()  # type: ignore[method-assign]
        helpers = [
            loop.create_task(self._write(socket, Encoder(protocol=protocol))),
            loop.create_task(self._watch(socket, heart, pace)),
            loop.create_task(self._follow(socket, address)),
        ]
        decoder = Decoder("to_agent", protocol=protocol)
        self._on_up()
        try:
            while (frame := await socket.read_message()) is not None:
                if heart.was_suspended(loop.time()):
                    self._log(
                        "this agent was suspended; it reconnects to get missed messages again"
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
        """Drop a connection whose other end does not answer, without a closing handshake."""
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
                    self._log("this agent was suspended; it reconnects")
                    _drop(socket)

    async def _follow(
        self,
        socket: tornado.websocket.WebSocketClientConnection,
        stamp: tuple[int, int] | None,
    ) -> None:
        """Drop the connection when the file names another supervisor: that one serves the site."""
        url = self._url
        while True:
            await self._changed(stamp)
            stamp = _stamp(self._file)
            try:
                if read_address(self._file).url == url:
                    continue
            except (OSError, ValueError):
                continue
            self._log("another supervisor serves the site; this agent connects to it")
            _drop(socket)
            return

    def _read(self, decoder: Decoder, frame: bytes | str) -> bool:
        gaps = decoder.gaps
        try:
            messages: Sequence[Any] = decoder.messages(frame)  # type: ignore[arg-type]
        except FrameError as e:
            self._log("invalid frame from the supervisor: {}", e.sentence)
            if e.close:
                return False
            messages = e.messages
        for message in messages:
            self._on_message(message)
        # After a lost frame the agent reconnects: the snapshot repairs its state.
        return decoder.gaps == gaps

    async def _write(
        self, socket: tornado.websocket.WebSocketClientConnection, encoder: Encoder
    ) -> None:
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


class _NoCommonVersion(ValueError):
    """The supervisor speaks no protocol version that this agent speaks."""


def _protocol(site: SiteHello | None) -> int:
    """Return the protocol version of a connection to this supervisor. Raises _NoCommonVersion."""
    theirs = versions.UNSTATED if site is None else site.spoken
    protocol = versions.common(versions.SPOKEN, theirs)
    if protocol is None:
        named = "the supervisor" if site is None else f"the supervisor (jobscribe {site.version})"
        raise _NoCommonVersion(
            versions.refusal(f"this agent (jobscribe {VERSION})", versions.SPOKEN, named, theirs)
        )
    return protocol


class _RelayResolver:
    """A resolver for Tornado that returns one Unix socket for every host."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def resolve(
        self, host: str, port: int, family: int = sockets.AF_UNSPEC
    ) -> list[tuple[int, str]]:
        return [(sockets.AF_UNIX, self._path)]

    def close(self) -> None:
        """Do nothing; Tornado calls it."""


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _outcome(e: Exception) -> Outcome:
    return (
        "refused"
        if (isinstance(e, tornado.httpclient.HTTPError) and e.code in REFUSALS)
        or isinstance(e, _NoCommonVersion)
        else "unreachable"
    )


def _drop(socket: tornado.websocket.WebSocketClientConnection) -> None:
    if socket.protocol is not None and socket.protocol.stream is not None:
        socket.protocol.stream.close()


def _close_late(done: asyncio.Future[Any]) -> None:
    """Close a connection that nobody waits for any more. Its result is the socket, alone or first."""
    if not done.cancelled() and done.exception() is None:
        made = done.result()
        (made[0] if isinstance(made, tuple) else made).close()


def _brief(e: BaseException) -> str:
    if isinstance(e, _NoCommonVersion):
        return str(e)
    if isinstance(e, tornado.httpclient.HTTPError) and e.code == NO_COMMON_VERSION and e.response:
        sentence = e.response.body[: 4 * SENTENCE_CHARS].decode(errors="replace")
        return "".join(c for c in sentence if c.isprintable())[:SENTENCE_CHARS]
    return f"{type(e).__name__}: {str(e)[:200]}"
