"""The proxy of `jobscribe up`: one address for browsers. It forwards /live to the supervisor and
everything else to the front end.

Every request must come from the unix user of this process or from root. Browsers send the cookies
of a host to all of its ports, so servers of other users on this machine receive them: a cookie
alone proves nothing here. Data flow in both directions as fast as the slower side accepts them,
without buffering whole bodies. The proxy knows only the destination of a request and the headers
that must not be forwarded, and answers itself if the destination is unreachable.
"""

import asyncio
import http.client
import re
import socket
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec
import tornado.httpserver
import tornado.httputil
import tornado.iostream
from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, RequestStartLine, ResponseStartLine

from ...client.api.errors import ClientError
from ...client.transport.address import Source
from ...protocol.errors import Refusal
from ...runtime.connections.admission import Admission, Limits
from ...runtime.connections.http_server import MAX_HEADERS, Guard, GuardedServer, Peers
from ...runtime.connections.http_server import server as http_server
from ...runtime.log.aggregation import AggregatedLines
from ...runtime.log.logger import Log
from ..request import error_responses
from .peer_gate import PeerGate

CONNECT_SECS = 5.0
#: Maximum idle time of a browser's connection, in seconds.
IDLE_SECS = 75.0
LIMITS = Limits(idle_secs=IDLE_SECS)
#: Idle connections to the front end: maximum number, and maximum age in seconds, less than its
#: server keeps them.
MOST_KEPT, KEPT_SECS = 32, 30.0
#: Maximum number of concurrent requests to the front end, and of event streams. More are refused.
MOST = 512
#: Seconds without progress after which a request body or a response is aborted.
STALL_SECS = 60.0
LARGEST_BODY = 16 * 1024 * 1024
#: Limit without sign-in: the front end's server buffers a whole body before it checks the user.
LARGEST_UNAUTHENTICATED = 64 * 1024
#: The supervisor itself enforces its upload limit.
LARGEST_UPLOAD = 2**40
UPLOADS = "/lib-file/"
_NO_LIMIT = 2**62
_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)
#: Methods for which tornado sends a body of unknown length in chunks.
_CHUNKED = ("POST", "PUT", "PATCH")
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OURS = frozenset(
    {"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-port", "forwarded"}
)

Connect = Callable[[], Awaitable[tornado.iostream.IOStream]]


class Proxy(tornado.httputil.HTTPServerConnectionDelegate):
    """Forwards requests of browsers. front: function that connects to the front end. supervisor:
    address of the supervisor, looked up for each stream.

    session: returns the key of the login session in the headers; None without one.
    """

    def __init__(
        self,
        front: Connect,
        supervisor: Source,
        session: Callable[[HTTPHeaders], str | None],
        log: Log,
    ) -> None:
        self._front, self._supervisor, self.session, self.log = front, supervisor, session, log
        self.gate = PeerGate(log)
        self._streams: dict[str, set[_ProxiedRequest]] = {}
        self.under_way = self.live = 0
        self._kept: list[tuple[float, tornado.iostream.IOStream]] = []

    def start_request(
        self, server_conn: object, request_conn: tornado.httputil.HTTPConnection
    ) -> tornado.httputil.HTTPMessageDelegate:
        assert isinstance(request_conn, HTTP1Connection)
        return _ProxiedRequest(self, request_conn, server_conn)

    def add_stream(self, key: str, stream: "_ProxiedRequest") -> None:
        """Tie this event stream to the session, so that it ends with it."""
        self._streams.setdefault(key, set()).add(stream)

    def drop_stream(self, key: str, stream: "_ProxiedRequest") -> None:
        self._streams[key].discard(stream)
        if not self._streams[key]:
            del self._streams[key]

    def end_streams(self, key: str) -> None:
        """End all event streams of an ended session."""
        for stream in list(self._streams.get(key, ())):
            stream.end()

    def route(self, path: str) -> Connect:
        return self._to_supervisor if is_live(path) else self._to_front

    def keep(self, stream: tornado.iostream.IOStream) -> None:
        """Keep an idle connection to the front end for reuse."""
        if len(self._kept) < MOST_KEPT and not stream.closed():
            # with a close callback, tornado notices a close of the idle connection
            stream.set_close_callback(lambda: None)
            self._kept.append((time.monotonic(), stream))
        else:
            stream.close()

    async def _to_front(self) -> tornado.iostream.IOStream:
        while self._kept:
            at, stream = self._kept.pop()
            if not stream.closed() and time.monotonic() - at < KEPT_SECS:
                stream.set_close_callback(None)
                return stream
            stream.close()
        return await self._front()

    async def _to_supervisor(self) -> tornado.iostream.IOStream:
        try:
            parts = urlsplit(self._supervisor().url)
        except ClientError as e:
            raise ConnectionError(e.sentence) from None
        stream = tornado.iostream.IOStream(
            socket.socket(socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET)
        )
        return await _connected(stream, (parts.hostname, parts.port))


def unix(path: str) -> Connect:
    """Return a function that connects to the server at this unix socket."""

    async def connect() -> tornado.iostream.IOStream:
        return await _connected(tornado.iostream.IOStream(socket.socket(socket.AF_UNIX)), path)

    return connect


async def _connected(
    stream: tornado.iostream.IOStream, address: object
) -> tornado.iostream.IOStream:
    try:
        async with asyncio.timeout(CONNECT_SECS):
            await stream.connect(address)
    except BaseException:
        stream.close()
        raise
    return stream


class _ProxiedRequest(tornado.httputil.HTTPMessageDelegate):
    """One request and its response on their way through the proxy."""

    def __init__(self, proxy: Proxy, browser: HTTP1Connection, connection: object) -> None:
        self._proxy, self._browser, self._connection = proxy, browser, connection
        #: key of the session that this event stream belongs to
        self._key: str | None = None
        self._server: HTTP1Connection | None = None
        self._counted = False
        self._watching: asyncio.TimerHandle | None = None
        #: whether the whole request has been read, and the whole response written
        self._request_read = self._response_written = False
        self._taken = 0
        self._limit, self._excess = LARGEST_BODY, "tooLarge"
        self._sends_body = True
        self._reading: asyncio.Task[None] | None = None
        self._what = ""
        self._may_keep = False

    # ---- the request

    def headers_received(self, start_line: object, headers: HTTPHeaders) -> Awaitable[None]:
        assert isinstance(start_line, RequestStartLine)
        self._what = f"{start_line.method} {start_line.path.partition('?')[0]}"
        self._may_keep = not is_live(start_line.path)
        # apply our own limits, because tornado's error response has no code and no sentence
        self._browser.set_max_body_size(_NO_LIMIT)
        self._browser.set_close_callback(self.on_connection_close)
        if "Content-Length" in headers or "Transfer-Encoding" in headers:
            self._watch()
        return self._begin(start_line, headers)

    async def _begin(self, start_line: RequestStartLine, headers: HTTPHeaders) -> None:
        try:
            self._check(start_line, headers)
            self._proxy.under_way += 1
            self._proxy.live += not self._may_keep
            self._counted = True
            if not self._may_keep and (key := self._proxy.session(headers)) is not None:
                self._key = key
                self._proxy.add_stream(key, self)
            stream = await self._proxy.route(start_line.path)()
        except Refusal as e:
            self._refuse(e)
            return
        except (OSError, tornado.iostream.StreamClosedError) as e:  # TimeoutError is an OSError
            self._proxy.log("{}: no connection: {}", self._what, e)
            self._refuse(
                Refusal(
                    "supervisorUnavailable",
                    "this part of the site is unavailable at the moment; active runs continue",
                )
            )
            return
        if self._browser.stream.closed():
            stream.close()
            return
        stream.set_nodelay(True)
        params = HTTP1ConnectionParameters(
            no_keep_alive=True, max_header_size=MAX_HEADERS, max_body_size=_NO_LIMIT
        )
        self._server = HTTP1Connection(stream, True, params)
        sent = self._forwarded(start_line, headers)
        self._sends_body = start_line.method in _CHUNKED or "Content-Length" in sent
        self._reading = asyncio.get_running_loop().create_task(self._read(self._server))
        await _quietly(
            self._server.write_headers(
                RequestStartLine(start_line.method, start_line.path, "HTTP/1.1"), sent
            )
        )

    def _check(self, start_line: RequestStartLine, headers: HTTPHeaders) -> None:
        self._limit, limit = LARGEST_UNAUTHENTICATED, self._limit
        self._proxy.gate.check(self._connection, self._browser.stream.socket)
        self._limit = limit
        declared = headers.get("Content-Length")
        if declared is not None and (
            not _LENGTH.fullmatch(declared) or "Transfer-Encoding" in headers
        ):
            # ambiguous lengths allow request smuggling
            raise tornado.httputil.HTTPInputError("a body must have one length, in digits")
        if (
            self._proxy.under_way - self._proxy.live if self._may_keep else self._proxy.live
        ) >= MOST:
            raise Refusal("tooManyRequests", "too many concurrent requests")
        if not start_line.path.isascii():
            raise Refusal("badRequest", "the address must be ASCII")
        length = int(declared or 0)
        if "Transfer-Encoding" not in headers and length <= LARGEST_UNAUTHENTICATED:
            return
        if self._proxy.session(headers) is None:
            self._limit, self._excess = LARGEST_UNAUTHENTICATED, "unauthenticated"
        elif start_line.path.startswith(UPLOADS):
            self._limit = LARGEST_UPLOAD
        if length > self._limit:
            raise self._too_large()

    def _too_large(self) -> Refusal:
        limited = " without sign-in" if self._excess == "unauthenticated" else ""
        return Refusal(self._excess, f"a request{limited} is limited to {self._limit} bytes")

    def _forwarded(self, start_line: RequestStartLine, headers: HTTPHeaders) -> HTTPHeaders:
        sent = _passed_on(headers, _OURS)
        sent["X-Forwarded-For"], sent["X-Forwarded-Proto"] = (
            self._browser.stream.socket.getpeername()[0],
            "http",
        )
        sent["X-Forwarded-Host"] = headers.get("Host", "")
        if not self._may_keep:
            sent["Connection"] = "close"
        return sent

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._taken += len(chunk)
        if self._taken > 4 * self._limit:
            self._browser.close()  # refused, but it continues to send
        elif self._taken > self._limit and not self._response_written:
            self._refuse(self._too_large())
        elif self._server is not None and self._sends_body and not self._server.stream.closed():
            return _quietly(self._server.write(chunk))
        return None

    def finish(self) -> None:
        self._request_read = True
        if self._watching is not None:
            self._watching.cancel()
        if self._response_written:
            self._browser.finish()
        elif self._server is not None and not self._server.stream.closed():
            self._server.finish()

    def _watch(self, taken: int = -1) -> None:
        """Abort a request whose body has stalled. taken: bytes received at the last check."""
        if self._request_read or self._browser.stream.closed():
            return
        if taken == self._taken:
            self._proxy.log("{}: the request body stalled", self._what)
            self._browser.close()
            self._over()
            return
        self._watching = asyncio.get_running_loop().call_later(STALL_SECS, self._watch, self._taken)

    def on_connection_close(self) -> None:
        """Abort the request of a browser that closed its connection."""
        self._over()

    # ---- the answer

    async def _read(self, server: HTTP1Connection) -> None:
        answer = _Answer(self)
        try:
            still_open = await server.read_response(answer)
            if (
                still_open
                and self._may_keep
                and answer.may_keep
                and answer.finished
                and self._request_read
            ):
                self._server = None
                self._proxy.keep(server.detach())
        except tornado.iostream.StreamClosedError:
            pass  # the browser closed its connection, so no response is possible
        finally:
            if not answer.begun:
                self._refuse(
                    Refusal(
                        "supervisorUnavailable",
                        "this part of the site was stopped before it answered; repeat the request",
                    )
                )
            elif not answer.finished:
                self._browser.close()
            self._over()

    def begin_answer(self, start_line: ResponseStartLine, headers: HTTPHeaders) -> Awaitable[None]:
        return self._taking(
            self._browser.write_headers(start_line, _passed_on(headers, frozenset()))
        )

    def continue_answer(self, chunk: bytes) -> Awaitable[None]:
        return self._taking(self._browser.write(chunk))

    async def _taking(self, written: Awaitable[None]) -> None:
        """Wait for the browser to accept data, with a limit, because a worker may wait for this
        response.
        """
        try:
            async with asyncio.timeout(STALL_SECS):
                await _quietly(written)
        except TimeoutError:
            self._proxy.log("{}: the browser does not read the response", self._what)
            self._browser.close()
            self._over()

    def end_answer(self) -> None:
        """Finish the response only after the whole request was read: an earlier close may discard
        the response.
        """
        self._response_written = True
        if self._request_read and not self._browser.stream.closed():
            self._browser.finish()

    def _refuse(self, refusal: Refusal) -> None:
        self._over()
        if self._response_written or self._browser.stream.closed():
            return
        body = msgspec.json.encode(error_responses.body(refusal))
        headers = HTTPHeaders(
            {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
            }
        )
        self._browser.write_headers(
            ResponseStartLine("HTTP/1.1", refusal.http, http.client.responses[refusal.http]),
            headers,
            body,
        )
        self.end_answer()

    def _over(self) -> None:
        """Close the connection to the server and free the slot."""
        if self._counted:
            self._counted = False
            self._proxy.under_way -= 1
            self._proxy.live -= not self._may_keep
        if self._key is not None:
            self._proxy.drop_stream(self._key, self)
            self._key = None
        if self._server is not None:
            self._server.close()

    def end(self) -> None:
        """Abort this stream because its session has ended."""
        self._browser.close()
        self._over()


class _Answer(tornado.httputil.HTTPMessageDelegate):
    """The server's response as it arrives."""

    def __init__(self, request: _ProxiedRequest) -> None:
        self._request = request
        self.begun = self.finished = self.may_keep = False

    def headers_received(self, start_line: object, headers: HTTPHeaders) -> Awaitable[None] | None:
        assert isinstance(start_line, ResponseStartLine)
        if start_line.code < 200:
            return None
        self.begun = True
        self.may_keep = (
            start_line.version == "HTTP/1.1" and headers.get("Connection", "").lower() != "close"
        )
        return self._request.begin_answer(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._request.continue_answer(chunk)

    def finish(self) -> None:
        if self.begun:
            self.finished = True
            self._request.end_answer()


def is_live(path: str) -> bool:
    return path.partition("?")[0] == "/live"


def _passed_on(headers: HTTPHeaders, more: frozenset[str]) -> HTTPHeaders:
    """Return the headers to forward, without those of this connection and those that only the proxy
    may set.
    """
    named = {
        name.strip().lower()
        for value in headers.get_list("Connection")
        for name in value.split(",")
    }
    kept = HTTPHeaders()
    for name, value in headers.get_all():
        if name.lower() not in _HOP_BY_HOP | named | more:
            kept.add(name, value)
    return kept


async def _quietly(written: Awaitable[None]) -> None:
    """Ignore a closed connection; its reader notices it."""
    try:
        await written
    except tornado.iostream.StreamClosedError:
        return


def serve(
    proxy: Proxy, listening: socket.socket, limits: Limits = LIMITS
) -> tornado.httpserver.HTTPServer:
    """Serve requests of this socket through the proxy. Needs a running event loop."""
    said = AggregatedLines(proxy.log)
    admission = Admission(
        limits,
        time.monotonic(),
        lambda reason, sentence: None if reason == "idle" else said.add(sentence),
    )
    server = http_server(GuardedServer(Guard(admission, Peers()), proxy, None))
    listening.setblocking(False)
    server.add_sockets([listening])
    return server
