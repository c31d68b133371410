"""The proxy of `jobscribe up` for event streams: it forwards /live to the supervisor, under the
address of the front end. `waitress_server` answers everything else, and hands over connections.

Every request must come from the unix user of this process or from root. Browsers send the cookies
of a host to all of its ports, so servers of other users on this machine receive them: a cookie
alone proves nothing here. Data flow as fast as the browser accepts them. The proxy knows only the
headers that must not be forwarded, and answers itself if the supervisor is unreachable.
"""

import asyncio
import http.client
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
from ...runtime.connections.hop_headers import FORWARDED, passed_on
from ...runtime.connections.http_server import MAX_HEADERS, Guard, GuardedServer, Peers
from ...runtime.connections.http_server import server as http_server
from ...runtime.log.aggregation import AggregatedLines
from ...runtime.log.logger import Log
from ..request import error_responses
from .peer_gate import PeerGate

CONNECT_SECS = 5.0
#: Maximum number of event streams. More are refused.
MOST = 512
#: Seconds without progress after which a response is aborted.
STALL_SECS = 60.0
_NO_LIMIT = 2**62


class Proxy(tornado.httputil.HTTPServerConnectionDelegate):
    """Forwards event streams. supervisor: its address, looked up for each stream.

    session: returns the key of the login session in the headers; None without one.
    """

    def __init__(
        self,
        supervisor: Source,
        session: Callable[[HTTPHeaders], str | None],
        log: Log,
        gate: PeerGate,
    ) -> None:
        self._supervisor, self.session, self.log, self.gate = supervisor, session, log, gate
        self._streams: dict[str, set[_ProxiedRequest]] = {}
        self.under_way = 0

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

    async def connect(self) -> tornado.iostream.IOStream:
        """Return a connection to the supervisor."""
        try:
            parts = urlsplit(self._supervisor().url)
        except ClientError as e:
            raise ConnectionError(e.sentence) from None
        stream = tornado.iostream.IOStream(
            socket.socket(socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET)
        )
        try:
            async with asyncio.timeout(CONNECT_SECS):
                await stream.connect((parts.hostname, parts.port))
        except BaseException:
            stream.close()
            raise
        return stream


class _ProxiedRequest(tornado.httputil.HTTPMessageDelegate):
    """One event stream on its way through the proxy."""

    def __init__(self, proxy: Proxy, browser: HTTP1Connection, connection: object) -> None:
        self._proxy, self._browser, self._connection = proxy, browser, connection
        #: key of the session that this event stream belongs to
        self._key: str | None = None
        self._server: HTTP1Connection | None = None
        self._counted = False
        #: whether the whole request has been read, and the whole response written
        self._request_read = self._response_written = False
        self._reading: asyncio.Task[None] | None = None
        self._what = ""

    # ---- the request

    def headers_received(self, start_line: object, headers: HTTPHeaders) -> Awaitable[None]:
        assert isinstance(start_line, RequestStartLine)
        self._what = f"{start_line.method} {start_line.path.partition('?')[0]}"
        self._browser.set_close_callback(self.on_connection_close)
        return self._begin(start_line, headers)

    async def _begin(self, start_line: RequestStartLine, headers: HTTPHeaders) -> None:
        try:
            self._check(start_line, headers)
            self._proxy.under_way += 1
            self._counted = True
            if (key := self._proxy.session(headers)) is not None:
                self._key = key
                self._proxy.add_stream(key, self)
            stream = await self._proxy.connect()
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
        self._reading = asyncio.get_running_loop().create_task(self._read(self._server))
        await _quietly(
            self._server.write_headers(
                RequestStartLine("GET", start_line.path, "HTTP/1.1"), self._forwarded(headers)
            )
        )

    def _check(self, start_line: RequestStartLine, headers: HTTPHeaders) -> None:
        self._proxy.gate.check(self._connection, self._browser.stream.socket)
        if "Content-Length" in headers or "Transfer-Encoding" in headers:
            raise Refusal("badRequest", "an event stream takes no body")
        if self._proxy.under_way >= MOST:
            raise Refusal("tooManyRequests", "too many concurrent requests")
        if start_line.method != "GET" or not is_live(start_line.path):
            raise Refusal("notFound", f"there is nothing at {ascii(start_line.path)[:80]}")
        if not start_line.path.isascii():
            raise Refusal("badRequest", "the address must be ASCII")

    def _forwarded(self, headers: HTTPHeaders) -> HTTPHeaders:
        sent = passed_on(headers, FORWARDED)
        sent["X-Forwarded-For"], sent["X-Forwarded-Proto"] = (
            self._browser.stream.socket.getpeername()[0],
            "http",
        )
        sent["X-Forwarded-Host"] = headers.get("Host", "")
        sent["Connection"] = "close"
        return sent

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return None  # the body of a refused request

    def finish(self) -> None:
        self._request_read = True
        if self._response_written:
            self._browser.finish()
        elif self._server is not None and not self._server.stream.closed():
            self._server.finish()

    def on_connection_close(self) -> None:
        """Abort the request of a browser that closed its connection."""
        self._over()

    # ---- the answer

    async def _read(self, server: HTTP1Connection) -> None:
        answer = _Answer(self)
        try:
            await server.read_response(answer)
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
        return self._taking(self._browser.write_headers(start_line, passed_on(headers)))

    def continue_answer(self, chunk: bytes) -> Awaitable[None]:
        return self._taking(self._browser.write(chunk))

    async def _taking(self, written: Awaitable[None]) -> None:
        """Wait for the browser to accept data, with a limit."""
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
        self.begun = self.finished = False

    def headers_received(self, start_line: object, headers: HTTPHeaders) -> Awaitable[None] | None:
        assert isinstance(start_line, ResponseStartLine)
        if start_line.code < 200:
            return None
        self.begun = True
        return self._request.begin_answer(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._request.continue_answer(chunk)

    def finish(self) -> None:
        if self.begun:
            self.finished = True
            self._request.end_answer()


def is_live(path: str) -> bool:
    return path.partition("?")[0] == "/live"


async def _quietly(written: Awaitable[None]) -> None:
    """Ignore a closed connection; its reader notices it."""
    try:
        await written
    except tornado.iostream.StreamClosedError:
        return


class HandedStream(tornado.iostream.IOStream):
    """A connection from which `data` has been read already."""

    def __init__(self, sock: socket.socket, data: bytes) -> None:
        self._data = data
        super().__init__(sock)

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        if not self._data:
            return super().read_from_fd(buf)
        piece, self._data = self._data[: len(buf)], self._data[len(buf) :]
        buf[: len(piece)] = piece
        return len(piece)


def server_of(proxy: Proxy, limits: Limits) -> tornado.httpserver.HTTPServer:
    """Return the server of connections that are handed over, each for one event stream. Needs a
    running event loop.
    """
    said = AggregatedLines(proxy.log)
    admission = Admission(
        limits,
        time.monotonic(),
        lambda reason, sentence: None if reason == "idle" else said.add(sentence),
    )
    return http_server(GuardedServer(Guard(admission, Peers()), proxy, None), keep_alive=False)


def adopt(
    server: tornado.httpserver.HTTPServer, sock: socket.socket, address: object, data: bytes
) -> None:
    """Serve a connection that begins with `data`. Call it in the server's loop."""
    server.handle_stream(HandedStream(sock, data), address)  # type: ignore[arg-type]
