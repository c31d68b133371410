"""Requests of clients: each is read, its shard is found, and the answer of the shard is passed on piece
by piece.

A client sees the answers of its supervisor. If a supervisor dies within an answer, the client's
connection is closed, as it would be without a router.
"""

import asyncio
import contextlib
import http.client
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec
import tornado.iostream
from tornado.http1connection import HTTP1Connection
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from ..protocol.errors import Refusal
from ..protocol.ids import split_jid
from ..runtime.connections import wait_page
from ..runtime.connections.hop_headers import passed_on
from ..runtime.connections.http_server import answer_unread_on, known
from ..service import tickets
from ..supervisor.api.transport.authorization import found_users
from ..supervisor.api.transport.request_handler import Route
from ..supervisor.api.transport.shard_answers import Stream
from ..supervisor.runs.request_validation import MAX_BODY
from . import metrics, routing
from .access_requests import AccessRequests
from .forwarding import Parts, to_shard
from .metrics import Result, result_of
from .routing import Aim
from .senders import Sender
from .shard_addresses import no_supervisor
from .site_requests import MISSING, Asked, Reply, SiteRequests
from .upstream import Collector, Lost, Message, Unreached, Upload

#: Seconds without progress after which an answer is cut off.
STALL_SECS = 60.0
#: Interval in which the token of a stream from another shard is checked again.
CONFIRM_SECS = 10.0
_NO_LIMIT = 2**62
#: Requests that must not be sent twice: they use a one-time code.
_ONCE = frozenset({"/api/sbatch-login"})
#: Requests after which other shards have work to do (`AccessRequests`).
_FOLLOWED = frozenset({"/api/token-create", "/api/token-revoke", "/api/device-answer"})


class Own(Protocol):
    """An answer of the router itself. Raises Refusal."""

    def __call__(self) -> Awaitable[dict[str, Any]]: ...


class Router(HTTPServerConnectionDelegate):
    """own: answers of the router itself, by path."""

    def __init__(self, parts: Parts, own: dict[str, Own]) -> None:
        self.parts, self.own = parts, own

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        assert isinstance(request_conn, HTTP1Connection)
        return _Request(self, request_conn)


class _Request(HTTPMessageDelegate):
    """One request of a client, and the sink of its answer."""

    def __init__(self, router: Router, client: HTTP1Connection) -> None:
        self._router, self._parts, self._client = router, router.parts, client
        self._line: RequestStartLine
        self._headers: HTTPHeaders
        self._route: Route
        self._path_parts: dict[str, str] = {}
        self._query: dict[str, list[str]] = {}
        self._sender = Sender(None)
        self._body = bytearray()
        self._size = 0
        self._refusal: Refusal | None = None
        self._upload: Upload | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun = self._gone = False
        self._since, self._shard = time.monotonic(), metrics.NONE
        #: what the client got, for metrics
        self._result: Result = "gone"
        self._counted = False

    # ---- the request

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None]:
        assert isinstance(start_line, RequestStartLine)
        self._line, self._headers = start_line, headers
        self._client.set_max_body_size(_NO_LIMIT)
        self._client.set_close_callback(self.on_connection_close)
        return self._begin()

    async def _begin(self) -> None:
        path, _, query = self._line.path.partition("?")
        self._route, self._path_parts = self._parts.table.find(path, self._line.method)
        try:
            self._query = parse_qs(query, keep_blank_values=True)
            self._sender = await self._parts.senders.of(
                self._headers,
                self._peer,
                monitors=self._route.monitors,
                needed=self._route.scope is not None,
            )
            if self._sender.principal is not None:
                known(self._client)
            if self._route.sink is not None and self._line.method == "PUT":
                await self._begin_upload()
        except Refusal as e:
            self._refusal = e
            answer = e.http, msgspec.json.encode(self._error(e))
            answer_unread_on(self._client, lambda: answer)
            self._result = self._result_of(e)
            self._count()
        except Exception as e:
            self._refusal = self._internal(e)

    async def _begin_upload(self) -> None:
        """Open the connection for a body that is too large for memory."""
        shard = self._only(await self._aim(b""))
        message = Message(self._line.method, self._line.path, await self._headers_for(shard), None)
        if (length := self._headers.get("Content-Length")) is not None:
            message.headers["Content-Length"] = length
        try:
            upload = await self._opened(shard)
        except Unreached:
            raise no_supervisor([shard]) from None
        upload.begin(message)
        self._upload, self._shard = upload, str(shard)
        self._run(self._passing(lambda: upload.answer(self), shard))

    async def _opened(self, shard: int) -> Upload:
        why: Unreached | None = None
        for _ in range(2):
            urls = self._parts.addresses.of(shard)
            for url in urls:
                if why is not None:
                    self._parts.metrics.retried(shard)
                try:
                    return await self._parts.upstream.open(url)
                except Unreached as e:
                    why = e
            if not self._parts.addresses.moved(shard, urls[-1]):
                break
        raise why or Unreached("no address")

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        if self._refusal is not None:
            return None
        if self._upload is not None:
            return self._uploading(self._upload, chunk)
        self._size += len(chunk)
        if self._size > MAX_BODY:
            self._body.clear()
            self._refusal = Refusal(
                "tooLarge",
                f"a request of {self._size} bytes or more is over the limit of {MAX_BODY}",
            )
            return None
        self._body += chunk
        return None

    async def _uploading(self, upload: Upload, chunk: bytes) -> None:
        """Wait for the supervisor to accept data, with a limit."""
        try:
            async with asyncio.timeout(STALL_SECS):
                await upload.write(chunk)
        except TimeoutError:
            self._client.close()

    def finish(self) -> None:
        if self._upload is not None:
            self._upload.finish()
        elif self._refusal is not None:
            self._refuse(self._refusal)
            self._count()
        else:
            self._run(self._act())

    def on_connection_close(self) -> None:
        """End the work for a client that is gone."""
        self._gone = True
        if self._task is not None:
            self._task.cancel()

    def _run(self, work: Any) -> None:
        self._task = asyncio.ensure_future(work)

    # ---- its shard

    @property
    def _peer(self) -> str:
        return getattr(self._client.context, "remote_ip", None) or ""

    def _argument(self, name: str) -> str | None:
        """Return a part of the path or of the query. The supervisor refuses one that occurs twice."""
        if name in self._path_parts:
            return self._path_parts[name]
        values = self._query.get(name, [])
        return values[0] if values else None

    async def _aim(self, body: bytes) -> Aim:
        total = self._parts.addresses.total
        if self._route.path == "/live":
            return self._aim_live(total)
        principal = self._sender.principal
        if principal is None or principal.role == "monitor":
            return routing.aim(self._route, self._sender, (), total)
        found = await found_users(principal, self._route.subject, body, self._argument)
        named = {uid for uid, _ in found.named}
        if not found.given and principal.uid is not None:
            named.add(principal.uid)
        return routing.aim(self._route, self._sender, named, total)

    def _aim_live(self, total: int) -> Aim:
        """Return the shards of a stream for a page, whose sender may have a ticket."""
        ticket = self._headers.get(tickets.HEADER)
        viewer = self._sender.principal
        if ticket is not None or viewer is None:
            viewer = self._parts.senders.viewer(ticket or "", self._parts.wall())
            known(self._client)
        wide = self._argument("of")
        if wide == "all" or (wide == "group" and viewer.role == "groupAdmin"):
            return Aim(tuple(range(total)), whole=True)
        jids = [*self._query.get("computeJid", []), *self._query.get("logs", [])]
        named = {split_jid(jid)[0] for jid in jids} or {viewer.uid or ""}
        return routing.aim(self._route, self._sender, named, total)

    def _only(self, aim: Aim) -> int:
        """Return the only shard. Raises Refusal("notSharded")."""
        if aim.whole:
            raise routing.not_sharded(self._route, aim.shards, self._parts.addresses.total)
        return aim.shards[0] if aim.shards else 0

    async def _headers_for(self, shard: int) -> HTTPHeaders:
        sender = self._sender
        if sender.home not in (None, shard):
            # the router vouches for the token: its shard checks it now
            sender = self._sender = await self._parts.senders.confirmed(self._headers, self._peer)
        secret = self._parts.secret.current
        return routing.headers_for(
            self._headers,
            sender,
            shard,
            secret=secret,
            signed_peer=tickets.sign_peer(secret, self._peer),
        )

    # ---- the answer

    async def _act(self) -> None:
        path = self._line.path.partition("?")[0]
        if self._line.method == "GET" and (own := self._router.own.get(path)) is not None:
            await self._answering(self._answer_own(own))
            return
        await self._answering(self._forward())

    async def _answer_own(self, own: Own) -> None:
        await self._send_json(200, await own())

    async def _forward(self) -> None:
        body = bytes(self._body)
        path = self._route.path
        if path == "/api/device-start":
            await self._reply(await self._access().device_start(self._line.path.partition("?")[2]))
            return
        if path == "/api/device-token":
            code = self._headers.get("Authorization", "")
            await self._reply(await self._access().device_token(code))
            return
        aim = await self._aim(body)
        self._shard = metrics.ALL if aim.whole else str((*aim.shards, metrics.NONE)[0])
        if self._route.streams:
            self._parts.metrics.stream(self._shard, 1)
        try:
            await self._to(aim, body)
        finally:
            if self._route.streams:
                self._parts.metrics.stream(self._shard, -1)

    async def _to(self, aim: Aim, body: bytes) -> None:
        path = self._route.path
        if aim.whole:
            await self._whole(body, aim)
            return
        if not aim.shards:
            await self._to_any(body)
            return
        shard = self._only(aim)
        message = Message(self._line.method, self._line.path, await self._headers_for(shard), body)
        if path in _FOLLOWED:
            await self._followed(shard, message, body)
            return
        once = path in _ONCE
        vouched = self._route.streams and self._sender.home not in (None, shard)
        watch = asyncio.ensure_future(self._watch_token()) if vouched else None
        try:
            await self._passing(
                lambda: to_shard(self._parts, shard, message, self, once=once), shard
            )
        finally:
            if watch is not None:
                watch.cancel()

    def _access(self) -> AccessRequests:
        return AccessRequests(
            self._parts, tickets.sign_peer(self._parts.secret.current, self._peer)
        )

    async def _followed(self, shard: int, message: Message, body: bytes) -> None:
        """Answer a request after which other shards have work to do."""
        collector, access = Collector(1 << 20), self._access()
        try:
            await to_shard(self._parts, shard, message, collector)
        except Unreached:
            raise no_supervisor([shard]) from None
        answer = collector.answer()
        if answer.code != 200:
            await self.begin(ResponseStartLine("HTTP/1.1", answer.code, ""), answer.headers)
            await self.take(answer.body)
            self._end()
            return
        match self._route.path:
            case "/api/token-create":
                if self._sender.home not in (None, shard):
                    senders = self._parts.senders
                    await access.created(
                        shard, answer, lambda: senders.confirmed(self._headers, self._peer)
                    )
            case "/api/token-revoke":
                principal = self._sender.principal
                by = "operator" if principal is None else principal.name
                await self._reply(await access.revoked(answer, by))
                return
            case _:
                await access.answered(shard, body)
        await self._reply(Reply(answer.body))

    async def _to_any(self, body: bytes) -> None:
        """Pass on a request that concerns no user to the first shard that is served."""
        for shard in (shards := range(self._parts.addresses.total)):
            headers = await self._headers_for(shard)
            message = Message(self._line.method, self._line.path, headers, body)
            try:
                await to_shard(self._parts, shard, message, self)
            except Unreached:
                continue
            self._end()
            return
        raise no_supervisor(shards)

    async def _whole(self, body: bytes, aim: Aim) -> None:
        """Answer a request for several shards."""
        if self._sender.home is not None:
            # the router vouches for the token: its shard checks it now
            self._sender = await self._parts.senders.confirmed(self._headers, self._peer)
        secret = self._parts.secret.current
        signed = tickets.sign_peer(secret, self._peer)
        path, _, query = self._line.path.partition("?")
        asked = Asked(
            self._route,
            self._line.method,
            path,
            query,
            body,
            self._headers,
            lambda shard: routing.headers_for(
                self._headers, self._sender, shard, secret=secret, signed_peer=signed
            ),
            self._sender.principal is not None
            and self._sender.principal.role in ("monitor", "operator"),
        )
        site = SiteRequests(self._parts)
        if isinstance(rule := self._route.merge, Stream):
            await self._stream(site.stream(asked, rule, aim))
            return
        await self._reply(await site.answer(asked, aim))

    async def _reply(self, reply: Reply) -> None:
        headers = HTTPHeaders(
            {
                "Content-Type": reply.kind,
                "Content-Length": str(len(reply.content)),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
            }
        )
        if reply.missing:
            headers[MISSING] = ",".join(map(str, reply.missing))
        await self.begin(ResponseStartLine("HTTP/1.1", 200, "OK"), headers)
        await self.take(reply.content)
        self._end()

    async def _stream(self, blocks: AsyncGenerator[bytes, None]) -> None:
        """Pass on a stream of several shards. It ends with the token of its reader."""
        watch = (
            asyncio.ensure_future(self._watch_token()) if self._sender.home is not None else None
        )
        headers = HTTPHeaders(
            {
                "Content-Type": self._route.gives,
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
                "X-Content-Type-Options": "nosniff",
            }
        )
        try:
            async with contextlib.aclosing(blocks):
                async for block in blocks:
                    if not self._begun:
                        await self.begin(ResponseStartLine("HTTP/1.1", 200, "OK"), headers)
                    if block:
                        await self.take(block)
            self._client.close()
        finally:
            if watch is not None:
                watch.cancel()

    async def _watch_token(self) -> None:
        """End a stream from another shard when the token of its reader is not valid any more."""
        while True:
            await asyncio.sleep(CONFIRM_SECS)
            try:
                await self._parts.senders.confirmed(self._headers, self._peer)
            except Refusal as e:
                if e.http in (401, 403):
                    self._parts.log("a stream ended: {}", e.sentence)
                    self._client.close()
                    return

    async def _passing(self, send: Callable[[], Awaitable[None]], shard: int) -> None:
        """Pass the answer of a shard on to the client."""
        await self._answering(self._pass(send, shard))

    async def _pass(self, send: Callable[[], Awaitable[None]], shard: int) -> None:
        try:
            await send()
        except Unreached:
            raise no_supervisor([shard]) from None
        self._end()

    async def _answering(self, work: Awaitable[None]) -> None:
        """Answer a request, or refuse it. An answer that cannot be completed is cut."""
        try:
            await work
        except Refusal as e:
            self._refuse(e)
        except Lost as e:
            self._result = "lost"
            self._parts.log("{} {}: {}", self._line.method, self._route.path, e)
            self._client.close()
        except tornado.iostream.StreamClosedError:
            self._client.close()
        except asyncio.CancelledError:
            raise
        except Exception as e:
            self._refuse(self._internal(e))
        finally:
            self._count()

    def _count(self) -> None:
        """Count the request once."""
        if not self._counted:
            self._counted = True
            secs = None if self._route.streams else time.monotonic() - self._since
            self._parts.metrics.answered(self._shard, self._result, secs)

    async def begin(self, start_line: ResponseStartLine, headers: HTTPHeaders) -> None:
        if start_line.code == 401 and self._sender.home is not None:
            self._parts.senders.forget(self._headers)
        self._begun, self._result = True, result_of(start_line.code)
        await self._taking(self._client.write_headers(start_line, passed_on(headers)))

    async def take(self, chunk: bytes) -> None:
        await self._taking(self._client.write(chunk))

    async def _taking(self, written: Awaitable[None]) -> None:
        """Wait for the client to accept data, with a limit."""
        try:
            async with asyncio.timeout(STALL_SECS):
                await written
        except TimeoutError:
            self._client.close()
            raise tornado.iostream.StreamClosedError from None

    def _end(self) -> None:
        if not self._client.stream.closed():
            self._client.set_close_callback(None)
            self._client.finish()

    def _error(self, refusal: Refusal) -> Any:
        return self._route.errors(refusal)

    def _internal(self, error: Exception) -> Refusal:
        self._parts.log.exception("{} {} failed", self._line.method, self._route.path, error=error)
        return Refusal("internal", "internal error in the router; its log has the details")

    def _refuse(self, refusal: Refusal) -> None:
        if self._gone or self._client.stream is None or self._client.stream.closed():
            return
        if self._begun:
            self._client.close()
            return
        self._parts.log("{} {} refused: {}", self._line.method, self._route.path, refusal.sentence)
        accept = self._headers.get("Accept", "")
        if wait_page.is_wanted(self._line.method, accept, refusal.http):
            self._write(refusal.http, wait_page.page(refusal.sentence), wait_page.headers())
        else:
            after = refusal.more.get("retryAfterSecs")
            self._write_json(refusal.http, self._error(refusal), after)
        self._result = self._result_of(refusal)

    def _result_of(self, refusal: Refusal) -> Result:
        """Return the result for metrics. The shard that nobody serves is counted, also if the sender's token
        alone is there.
        """
        if refusal.code != "noSupervisor":
            return result_of(refusal.http)
        missing = refusal.more.get("missing")
        if isinstance(missing, list) and len(missing) == 1:
            self._shard = str(missing[0])
        return "noSupervisor"

    async def _send_json(self, code: int, body: Any) -> None:
        self._write_json(code, body, None)

    def _write_json(self, code: int, body: Any, retry_after: object) -> None:
        headers = {
            "Content-Type": "application/json",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        if retry_after is not None:
            headers["Retry-After"] = str(retry_after)
        self._write(code, msgspec.json.encode(body), headers)

    def _write(self, code: int, data: bytes, headers: dict[str, str]) -> None:
        self._begun, self._result = True, result_of(code)
        self._client.write_headers(
            ResponseStartLine("HTTP/1.1", code, http.client.responses[code]),
            HTTPHeaders({**headers, "Content-Length": str(len(data))}),
            b"" if self._line.method == "HEAD" else data,
        )
        with contextlib.suppress(tornado.iostream.StreamClosedError):
            self._end()
