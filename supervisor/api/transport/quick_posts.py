"""A short way for the most frequent requests: authenticated POSTs with a small JSON body and a JSON
answer. Everything else, and every request that is unusual, goes to the request handler.

A Tornado request handler takes as much time as the answer of a status request. The rules are the
same: no body before authentication, limits of bodies and of unread answers, refusals with a code,
and metrics.
"""

import asyncio
import http.client
import inspect
import re
import time
from collections.abc import Awaitable, Iterable
from typing import Any, cast

import msgspec
import tornado.httputil
from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPHeaders, RequestStartLine, ResponseStartLine

from ....protocol.errors import Refusal
from ....protocol.wire.handshake import ACTOR, FRONT_END, PEER, SIGNED_IN, TOKEN_SCOPES
from ....runtime.connections.http_server import known
from ....runtime.connections.quick_requests import Head, QuickRequests
from ....runtime.log.logger import Log
from ...access.principal import Principal
from ...runs.request_validation import MAX_ONE, parse_body
from .authorization import check_route, check_subjects
from .request_handler import ApiContext, Handler, Route, log_request, logged_call, with_own_plan

_LENGTH = re.compile(r"[0-9]{1,7}", re.ASCII)
_HEADERS = {
    "Content-Type": "application/json",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}
_REASONS = {code: reason.encode() for code, reason in http.client.responses.items()}
#: Head of an answer: code, reason, size.
_HEAD = (
    b"HTTP/1.1 %d %b\r\n"
    + "".join(f"{name}: {value}\r\n" for name, value in _HEADERS.items()).encode()
    + b"Content-Length: %d\r\n\r\n"
)
#: Sizes of a body, in bytes.
_SIZES = range(1, MAX_ONE + 1)


class QuickPosts(tornado.httputil.HTTPServerConnectionDelegate):
    """Answers requests to the `quick` ones of `routes`; `others` answers all other requests."""

    def __init__(
        self,
        services: ApiContext,
        routes: Iterable[Route],
        others: tornado.httputil.HTTPServerConnectionDelegate,
    ) -> None:
        self.services, self.others = services, others
        self.routes = {route.path: route for route in routes if route.quick}

    def start_request(
        self, server_conn: object, request_conn: tornado.httputil.HTTPConnection
    ) -> tornado.httputil.HTTPMessageDelegate:
        assert isinstance(request_conn, HTTP1Connection)
        return _Request(self, server_conn, request_conn)

    def take(self, connection: QuickRequests, head: Head) -> "_Request | None":
        """Return a request that is answered here, before Tornado reads it."""
        found = self.route(head.line, head.headers)
        if found is None:
            return None
        request = _Request(self, None, connection)
        request.begin(found, head.headers)
        return request

    def on_close(self, server_conn: object) -> None:
        self.others.on_close(server_conn)

    def route(
        self, start_line: RequestStartLine, headers: HTTPHeaders
    ) -> tuple[Route, Principal] | None:
        """Return route and sender of a request that is answered here."""
        route = self.routes.get(start_line.path) if start_line.method == "POST" else None
        if route is None or "Transfer-Encoding" in headers or "Expect" in headers:
            return None
        size = headers.get("Content-Length", "")
        if not (_LENGTH.fullmatch(size) and int(size) in _SIZES):
            return None
        try:
            sender = self.services.access.principal(
                headers.get("Authorization", ""),
                headers.get(ACTOR),
                headers.get(SIGNED_IN),
                monitors=False,
                peer=None,
                scopes=headers.get(TOKEN_SCOPES),
            )
            check_route(sender, route.rights)
        except Refusal:
            return None  # the request handler refuses it
        return route, sender


class _Request(tornado.httputil.HTTPMessageDelegate):
    """One request. An action uses the public part like that of a `Handler`."""

    def __init__(
        self, server: QuickPosts, server_conn: object, conn: HTTP1Connection | QuickRequests
    ) -> None:
        self.services, self.runs = server.services, server.services.runs
        self.log: Log = server.services.runs.log if server.services.runs else None  # type: ignore[assignment]
        self.owner = ""
        self.on_gone: Any = lambda: None
        self._server, self._server_conn, self._conn = server, server_conn, conn
        #: delegate of a request that is not answered here
        self._other: tornado.httputil.HTTPMessageDelegate | None = None
        self._route: Route
        self.principal: Principal
        self._body = b""
        self._peer: str | None = None
        self._began = 0.0
        self._answering: asyncio.Task[None] | None = None

    def parsed(self, type_: type[Any], limit: int = MAX_ONE) -> Any:
        assert type_ is self._route.takes, "the OpenAPI document names this type"
        return with_own_plan(self.principal, parse_body(self._body, type_, limit))

    def log_request(self, api: str, request: Any, jid: str) -> None:
        self.log = log_request(self.log, api, request, jid)

    def log_call(
        self, api: str, about: str, uid: str, op: str | None = None, jid: str | None = None
    ) -> None:
        self.log = logged_call(self.log, api, about, uid, op, jid)

    # ---- messages of the connection

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        assert isinstance(start_line, RequestStartLine)
        found = self._server.route(start_line, headers)
        if found is None:
            assert isinstance(self._conn, HTTP1Connection)
            self._other = self._server.others.start_request(self._server_conn, self._conn)
            return self._other.headers_received(start_line, headers)
        self.begin(found, headers)
        return None

    def begin(self, found: tuple[Route, Principal], headers: HTTPHeaders) -> None:
        (self._route, self.principal), self._began = found, time.monotonic()
        self._peer = headers.get(PEER)
        if self.principal.trusted and (version := headers.get(FRONT_END)) is not None:
            self.services.monitoring.health.front_end(version)
        known(self._conn)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        if self._other is not None:
            return self._other.data_received(chunk)
        self._body += chunk
        return None

    def received(self, body: bytes) -> None:
        self._body = body
        self.finish()

    def finish(self) -> None:
        if self._other is not None:
            self._other.finish()
            return
        try:
            answer = (
                self._route.action(cast(Handler, self))
                if self.principal.uid is None and self.services.access.shard is None
                else self._authorized()
            )
        except Exception as e:
            self._failed(e)
            return
        if inspect.isawaitable(answer):
            if isinstance(self._conn, HTTP1Connection):
                self._conn.set_close_callback(self.on_connection_close)
            self._answering = asyncio.ensure_future(self._await(answer))
        else:
            self._json(200, answer)

    def on_connection_close(self) -> None:
        if self._other is not None:
            self._other.on_connection_close()
        else:
            self.on_gone()

    # ---- the answer

    async def _authorized(self) -> Any:
        """Act after the check that the sender may act for the user whom the request names."""
        address = getattr(self._conn.context, "remote_ip", None) or ""
        peer = self.services.access.peer(self._peer, address)
        self._body = await check_subjects(
            self.services.access,
            self.principal,
            self._route.rights,
            peer,
            self._body,
            lambda name: None,
        )
        answer = self._route.action(cast(Handler, self))
        return await answer if inspect.isawaitable(answer) else answer

    async def _await(self, answer: Awaitable[Any]) -> None:
        try:
            body = await answer
        except Exception as e:
            self._failed(e)
        else:
            if body is not None:
                self._json(200, body)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Refusal):
            self.runs.counters.add("refused." + error.code)
            self.log("POST {} refused: {}", self._route.path, error.sentence)
        else:
            self.runs.counters.add("internal")
            self.log.exception("POST {} failed", self._route.path, error=error)
            error = Refusal("internal", "internal error in the supervisor; its log has the details")
        self._json(error.http, error.body())

    def _json(self, code: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        stream = self._conn.stream
        if stream is None or stream.closed():
            return
        try:
            self.services.unsent.check(self.owner, len(data))
        except Refusal as e:
            self._failed(e)
            return
        if isinstance(self._conn, QuickRequests):
            self._conn.answer(_HEAD % (code, _REASONS[code], len(data)), data)
        else:
            headers = HTTPHeaders({**_HEADERS, "Content-Length": str(len(data))})
            self._conn.set_close_callback(None)
            self._conn.write_headers(
                ResponseStartLine("HTTP/1.1", code, http.client.responses[code]), headers, data
            )
            self._conn.finish()
        self.services.unsent.watch(stream, self.owner, len(data))
        self.services.monitoring.instruments.http.labels(
            "POST", self._route.path, str(code)
        ).observe(time.monotonic() - self._began)
