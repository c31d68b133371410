"""Tornado's HTTP server with `admission`: every connection has deadlines, and no body is read
before its sender is authenticated.

The application calls `authenticated(request)` once it knows the sender. Until then it gets no byte
of a body on any route: the request is answered and the connection closed.
"""

import asyncio
import http.client
import os
import pwd
import resource
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

import tornado.httpserver
import tornado.httputil
import tornado.iostream
from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPHeaders, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream

from .admission import SWEEP_SECS, Admission, Peer, TrackedConnection, is_scarce
from .quick_requests import Head, QuickRequests, Taken
from .socket_owner import owner

#: Time and bytes for which input of a refused sender is read and discarded before the connection is
#: closed. Otherwise the answer would be lost.
LINGER_SECS, LINGER_BYTES = 2.0, 16 * 1024 * 1024
#: Limit of one request's headers in bytes, which bounds the memory of unauthenticated requests.
#: Browsers send the cookies of all servers on a machine.
MAX_HEADERS = 64 * 1024
#: struct ucred: pid, uid, gid
_CREDENTIALS = struct.Struct("iII")
_ENTRY = "jobscribe_entry"
_QUICK = "_jobscribe_quick"
#: The same for the answer to a body that is not read.
_UNREAD = "_jobscribe_unread"


class Peers:
    """Identifies the peer of a connection. trusted: unix users, addresses and networks of a site's
    own proxies. Raises KeyError for an unknown user.
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._own = {0, os.geteuid()}
        self._uids: set[int] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for word in trusted:
            try:
                self._networks.append(ip_network(word, strict=False))
            except ValueError:
                self._uids.add(pwd.getpwnam(word).pw_uid)

    def of(self, sock: socket.socket) -> Peer:
        try:
            if sock.family == socket.AF_UNIX:
                return self._local(sock)
            ip, port = sock.getpeername()[:2]
            uid = owner((ip, port), sock.getsockname()[:2])
        except (OSError, ValueError):
            return Peer("a peer that has disconnected")
        if uid is not None:
            return self._user(uid)
        address = ip_address(ip.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        trusted = any(mapped in network for network in self._networks)
        if mapped.version == 6:  # a peer usually controls its whole /64 network
            return Peer(str(ip_network((int(mapped) >> 64 << 64, 64))), trusted=trusted)
        return Peer(str(mapped), trusted=trusted)

    def _user(self, uid: int) -> Peer:
        return Peer(f"unix user {uid}", own=uid in self._own, trusted=uid in self._uids)

    def _local(self, sock: socket.socket) -> Peer:
        """Return the peer of a Unix socket, as the kernel knows it. Raises OSError."""
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return self._user(_CREDENTIALS.unpack(data)[1])


class Guard:
    """Admission of all listeners of one process. Needs a running loop."""

    def __init__(self, admission: Admission, peers: Peers) -> None:
        self.admission, self.peers = admission, peers
        self._sweeping = False

    def entered(self, connection: HTTP1Connection) -> TrackedConnection | None:
        """Admit a new connection. Return None if it was closed."""
        stream = connection.stream
        if not self._sweeping:
            self._sweeping = True
            self._sweep()
        scarce = is_scarce(stream.socket.fileno(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        entry = self.admission.enter(
            self.peers.of(stream.socket), stream.close, stream.closed, scarce=scarce
        )
        if entry is None:
            stream.close()
        return entry

    def _sweep_again(self) -> None:
        if len(self.admission):
            self._sweep()
        else:
            self._sweeping = False

    def _sweep(self) -> None:
        self.admission.sweep(time.monotonic())
        asyncio.get_running_loop().call_later(self._pause(), self._sweep_again)

    def _pause(self) -> float:
        limits = self.admission.limits
        return min(SWEEP_SECS, limits.request_secs / 2, limits.body_secs / 2, limits.idle_secs / 2)


class GuardedServer(tornado.httputil.HTTPServerConnectionDelegate):
    """Wraps an application.

    unread(start line): returns the answer (HTTP status, body) to an unauthenticated request with a
    body. None: the application needs no other authentication than the unix user. Then the owner's
    connections count as authenticated, and the application refuses all others. quick: takes requests
    before Tornado reads them, see `quick_requests`.
    """

    def __init__(
        self,
        guard: Guard,
        inner: tornado.httputil.HTTPServerConnectionDelegate,
        unread: Callable[[RequestStartLine], tuple[int, bytes]] | None,
        quick: Callable[[QuickRequests, Head], Taken | None] | None = None,
    ) -> None:
        self._guard, self._inner, self.unread, self._quick = guard, inner, unread, quick

    def start_request(
        self, server_conn: object, request_conn: tornado.httputil.HTTPConnection
    ) -> tornado.httputil.HTTPMessageDelegate:
        assert isinstance(request_conn, HTTP1Connection)
        entry: TrackedConnection | None = getattr(request_conn.context, _ENTRY, None)
        if entry is None:
            entry = self._guard.entered(request_conn)
            setattr(request_conn.context, _ENTRY, entry)
            if entry is not None and entry.peer.own and self.unread is None:
                entry.authenticated()
                entry.waiting()
            # TLS may hold bytes that the loop does not hear of
            if entry is not None and self._quick and type(request_conn.stream) is IOStream:
                quick = QuickRequests(request_conn.stream, request_conn.context, entry, self._quick)
                setattr(request_conn.context, _QUICK, quick)
        else:
            entry.waiting()
        if (begun := _quick_of(request_conn)) is not None:
            begun.next_request()
        inner = self._inner.start_request(server_conn, request_conn)
        return inner if entry is None else _Message(self, inner, request_conn, entry)


class _Message(tornado.httputil.HTTPMessageDelegate):
    """Delegate for one request."""

    def __init__(
        self,
        guarded: GuardedServer,
        inner: tornado.httputil.HTTPMessageDelegate,
        connection: HTTP1Connection,
        entry: TrackedConnection,
    ) -> None:
        self._guarded, self._inner, self._connection, self._entry = (
            guarded,
            inner,
            connection,
            entry,
        )

    async def headers_received(self, start_line: Any, headers: HTTPHeaders) -> None:
        if (quick := _quick_of(self._connection)) is not None:
            await quick.answered()
        self._entry.answering()
        setattr(self._connection.context, _UNREAD, None)
        ready = self._inner.headers_received(start_line, headers)
        if ready is not None:
            await ready
        if (
            "Transfer-Encoding" not in headers
            and headers.get("Content-Length", "0").strip("0") == ""
        ):
            return
        stream: tornado.iostream.IOStream | None = (
            self._connection.stream
        )  # none: a websocket has it
        if stream is None or stream.closed() or self._connection._write_finished:
            return
        if not self._entry.known and self._guarded.unread is not None:
            length = headers.get("Content-Length", "")
            expected = int(length) if length.isascii() and length.isdecimal() else LINGER_BYTES
            answer = getattr(self._connection.context, _UNREAD, None)
            status, body = self._guarded.unread(start_line) if answer is None else answer()
            await self._refuse(status, body, expected)
        else:
            self._entry.reading()

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        taken = self._inner.data_received(chunk)
        if taken is not None:
            return self._wait_until_taken(taken)
        self._entry.reading()
        return None

    async def _wait_until_taken(self, taken: Awaitable[None]) -> None:
        """Wait until the application takes the data. The sender has no deadline meanwhile."""
        self._entry.answering()
        await taken
        self._entry.reading()

    def finish(self) -> None:
        self._entry.answering()
        self._inner.finish()

    def on_connection_close(self) -> None:
        self._inner.on_connection_close()

    async def _refuse(self, status: int, body: bytes, expected: int) -> None:
        """Answer without reading the body, and close. expected: bytes that the sender is about to
        send.
        """
        headers = HTTPHeaders(
            {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Connection": "close",
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
            }
        )
        line = ResponseStartLine("HTTP/1.1", status, http.client.responses[status])
        self._connection.write_headers(line, headers, body)
        stream = self._connection.detach()
        self._inner.on_connection_close()
        await _linger(stream, min(expected, LINGER_BYTES))


def _quick_of(connection: HTTP1Connection) -> QuickRequests | None:
    quick: QuickRequests | None = getattr(connection.context, _QUICK, None)
    return quick


async def _linger(stream: tornado.iostream.IOStream, left: int) -> None:
    try:
        async with asyncio.timeout(LINGER_SECS):
            while left > 0:
                left -= len(await stream.read_bytes(64 * 1024, partial=True))
    except (tornado.iostream.StreamClosedError, TimeoutError):
        pass
    finally:
        stream.close()


def authenticated(request: tornado.httputil.HTTPServerRequest) -> None:
    """Mark the sender of this request as authenticated: its body may be read, and its connection
    stays open.
    """
    known(request.connection)


def answer_unread(
    request: tornado.httputil.HTTPServerRequest, answer: Callable[[], tuple[int, bytes]]
) -> None:
    """Set the answer (HTTP status, body) to this request of an unauthenticated sender, if it has a
    body, which is not read. Without it, the server's own answer is sent.
    """
    answer_unread_on(request.connection, answer)


def answer_unread_on(connection: object, answer: Callable[[], tuple[int, bytes]]) -> None:
    """Do the same for the request that this connection reads."""
    setattr(getattr(connection, "context", None), _UNREAD, answer)


def known(connection: object) -> None:
    entry: TrackedConnection | None = getattr(getattr(connection, "context", None), _ENTRY, None)
    if entry is not None:
        entry.authenticated()


def server(
    guarded: GuardedServer,
    *,
    tls: ssl.SSLContext | None = None,
    body: int | None = None,
    keep_alive: bool = True,
) -> tornado.httpserver.HTTPServer:
    """Return the HTTP server. body: limit in bytes, unless the application sets another one.
    keep_alive: whether a connection serves more than one request.
    """
    made = tornado.httpserver.HTTPServer(
        guarded,
        ssl_options=tls,
        max_body_size=body,
        max_header_size=MAX_HEADERS,
        no_keep_alive=not keep_alive,
    )
    # Tornado's own timeouts are off: `admission` has timeouts that depend on authentication.
    made.conn_params.header_timeout = None
    return made
