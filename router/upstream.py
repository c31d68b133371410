"""Connections to the supervisors of shards: one request at a time on each, and reuse of idle ones.

Retries follow the rules of the clients: a request that found a connection closed is sent again on
another one; a request that may have been read is not.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Awaitable
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
import tornado.iostream
from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from ..runtime.connections.http_server import MAX_HEADERS

CONNECT_SECS = 5.0
#: Idle connections to one supervisor, and the time for which they are kept. Supervisors close them
#: later.
MOST_IDLE, IDLE_SECS = 64, 60.0
#: Largest answer that is read whole before it is known whether the supervisor serves.
_SMALL = 64 * 1024
_NO_LIMIT = 2**62
_PARAMETERS = HTTP1ConnectionParameters(max_header_size=MAX_HEADERS, max_body_size=_NO_LIMIT)


class Unreached(Exception):
    """The supervisor has not read the request: the next address may be tried."""


class Lost(Exception):
    """The connection ended before the answer was complete: the supervisor may have done the request."""


class Message(NamedTuple):
    """A request. path: with its query. body: None if the caller writes one."""

    method: str
    path: str
    headers: HTTPHeaders
    body: bytes | None = b""


class Sink(Protocol):
    """Takes an answer as it arrives."""

    async def begin(self, start_line: ResponseStartLine, headers: HTTPHeaders) -> None: ...

    async def take(self, chunk: bytes) -> None: ...


class Answer(NamedTuple):
    """A whole answer."""

    code: int
    headers: HTTPHeaders
    body: bytes


class Collector:
    """A sink that keeps the answer in memory, up to a limit. Raises Lost beyond it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.code, self.headers, self._parts, self._size = 0, HTTPHeaders(), list[bytes](), 0

    async def begin(self, start_line: ResponseStartLine, headers: HTTPHeaders) -> None:
        self.code, self.headers = start_line.code, headers

    async def take(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > self._most:
            raise Lost(f"an answer has more than {self._most} bytes")
        self._parts.append(chunk)

    def answer(self) -> Answer:
        return Answer(self.code, self.headers, b"".join(self._parts))


class Upstream:
    """All connections of this process to supervisors."""

    def __init__(self) -> None:
        self._idle: dict[str, list[tuple[float, tornado.iostream.IOStream]]] = {}
        self._tls: ssl.SSLContext | None = None

    async def exchange(self, url: str, message: Message, sink: Sink, *, once: bool = False) -> None:
        """Send a request with its whole body, and pass the answer on. once: it must not be sent twice.
        Raises Unreached, Lost, and what the sink raises.
        """
        while not once and (stream := self._taken(url)) is not None:
            with contextlib.suppress(Unreached):
                await self._on(url, stream, message, sink)
                return
        await self._on(url, await self._connected(url), message, sink, fresh=True)

    async def fetch(self, url: str, message: Message, most: int = 1 << 20) -> Answer:
        """Send a request and return the whole answer. Raises Unreached, Lost."""
        collector = Collector(most)
        await self.exchange(url, message, collector)
        return collector.answer()

    async def open(self, url: str) -> "Upload":
        """Return a new connection for a request whose body is written piece by piece. Raises Unreached."""
        return Upload(await self._connected(url), _host(url))

    def close(self) -> None:
        for kept in self._idle.values():
            for _, stream in kept:
                stream.close()
        self._idle.clear()

    async def _on(
        self,
        url: str,
        stream: tornado.iostream.IOStream,
        message: Message,
        sink: Sink,
        *,
        fresh: bool = False,
    ) -> None:
        connection, reader = HTTP1Connection(stream, True, _PARAMETERS), _Reader(sink)
        message.headers["Host"] = _host(url)
        body = message.body or b""
        if body or message.method in ("POST", "PUT"):
            message.headers["Content-Length"] = str(len(body))
        kept = False
        try:
            connection.write_headers(
                RequestStartLine(message.method, message.path, "HTTP/1.1"),
                message.headers,
                body or None,
            )
            connection.finish()
            with contextlib.suppress(tornado.iostream.StreamClosedError):
                await connection.read_response(reader)
            await reader.settle(fresh=fresh)
            kept = reader.reusable and not stream.closed()
        finally:
            if kept:
                connection.detach()
                self._keep(url, stream)
            else:
                connection.close()

    def _taken(self, url: str) -> tornado.iostream.IOStream | None:
        kept = self._idle.get(url, [])
        while kept:
            since, stream = kept.pop()
            if not stream.closed() and time.monotonic() - since < IDLE_SECS:
                return stream
            stream.close()
        return None

    def _keep(self, url: str, stream: tornado.iostream.IOStream) -> None:
        kept = self._idle.setdefault(url, [])
        if len(kept) < MOST_IDLE:
            # a stream notices its end only while something reads, or wants to know
            stream.set_close_callback(lambda: None)
            kept.append((time.monotonic(), stream))
        else:
            stream.close()

    async def _connected(self, url: str) -> tornado.iostream.IOStream:
        parts = urlsplit(url)
        family = socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET
        stream = tornado.iostream.IOStream(socket.socket(family))
        try:
            async with asyncio.timeout(CONNECT_SECS):
                await stream.connect((parts.hostname, parts.port))
                stream.set_nodelay(True)
                if parts.scheme == "https":
                    self._tls = self._tls or ssl.create_default_context()
                    return await stream.start_tls(False, self._tls, parts.hostname)
        except (OSError, tornado.iostream.StreamClosedError) as e:  # TimeoutError is an OSError
            _close(stream)
            raise Unreached(str(e)) from None
        except BaseException:
            _close(stream)
            raise
        return stream


class Upload:
    """A request whose body is written piece by piece, while the answer is read."""

    def __init__(self, stream: tornado.iostream.IOStream, host: str) -> None:
        self._connection = HTTP1Connection(stream, True, _PARAMETERS)
        self._host = host

    def begin(self, message: Message) -> None:
        """Send the head, before any piece of the body."""
        message.headers["Host"] = self._host
        self._connection.write_headers(
            RequestStartLine(message.method, message.path, "HTTP/1.1"), message.headers
        )

    async def answer(self, sink: Sink) -> None:
        """Return when the answer is complete. Raises Lost."""
        reader = _Reader(sink)
        try:
            with contextlib.suppress(tornado.iostream.StreamClosedError):
                await self._connection.read_response(reader)
            await reader.settle(fresh=True)
        finally:
            self._connection.close()

    async def write(self, chunk: bytes) -> None:
        if not self._connection.stream.closed():
            with contextlib.suppress(tornado.iostream.StreamClosedError):
                await self._connection.write(chunk)

    def finish(self) -> None:
        if not self._connection.stream.closed():
            self._connection.finish()


class _Reader(HTTPMessageDelegate):
    """Reads one answer. A refusal with 503 is kept until it is known whether it is that of a standby."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held: tuple[ResponseStartLine, HTTPHeaders] | None = None
        self._body = b""
        self._begun = self._complete = False
        self._failed: BaseException | None = None
        self.reusable = False

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        assert isinstance(start_line, ResponseStartLine)
        if start_line.code < 200:
            return None
        self._begun = True
        self.reusable = headers.get("Connection", "").lower() != "close" and (
            "Content-Length" in headers or "Transfer-Encoding" in headers
        )
        size = headers.get("Content-Length", "")
        if start_line.code == 503 and size.isdecimal() and int(size) <= _SMALL:
            self._held = start_line, headers
            return None
        return self._passing(self._sink.begin(start_line, headers))

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        if self._held is not None:
            self._body += chunk
            return None
        return self._passing(self._sink.take(chunk))

    def finish(self) -> None:
        self._complete = self._begun

    async def _passing(self, taken: Awaitable[None]) -> None:
        """Wait for the sink. Its exception ends the exchange; Tornado would log it."""
        if self._failed is None:
            try:
                await taken
            except (Exception, asyncio.CancelledError) as e:
                self._failed = e
        elif hasattr(taken, "close"):
            taken.close()

    async def settle(self, *, fresh: bool) -> None:
        """Raise what happened, if the answer is not complete. fresh: False for a reused connection,
        which the supervisor may have closed before it read the request.
        """
        if self._failed is not None:
            raise self._failed
        if not self._begun and not fresh:
            raise Unreached("the connection was closed")
        if not self._complete:
            raise Lost("the connection ended before the answer")
        if self._held is not None:
            if _is_standby(self._body):
                raise Unreached("the supervisor stands by")
            await self._sink.begin(*self._held)
            await self._sink.take(self._body)


def _close(stream: tornado.iostream.IOStream) -> None:
    """Close a stream, unless TLS has its socket: then the stream of TLS closes it."""
    if stream.socket is not None:
        stream.close()


def _is_standby(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=dict[str, object]).get("code") == "noSupervisor"
    except msgspec.DecodeError:
        return False


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]
