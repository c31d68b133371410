"""What every answer has in common: who may ask, how, how much, and the form of a refusal.

Every refusal has a code and is counted; whatever else goes wrong is logged with its trace and
answered as `internal`.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import msgspec
import tornado.iostream
import tornado.web

from ....protocol.api.requests import RunMany
from ....protocol.errors import Refusal
from ....protocol.ids import short_op
from ....protocol.redaction import REDACTED
from ....protocol.wire.handshake import FRONT_END
from ....runtime.connections.http_server import authenticated
from ...agents.calls import Calls
from ...clusters.inventory import ClusterInventory
from ...clusters.sign_in import SignIns
from ...files.uploads import Uploads
from ...metrics.exporter import MetricsExporter
from ...notifications.notifier import Notifications
from ...runs.port_leases import Leases
from ...runs.request_validation import MAX_BODY, MAX_ONE, parse_body, parse_runs
from ...runs.service import RunService
from ...streams.live_updates import LiveUpdates
from ...tracing.id_lookup import Known
from ...usage.samples import UsageSamples
from .response_limits import STALL_SECS, ResponseLimits

_NO_LIMIT = 2**62
#: Of a body that is refused, so much is read and thrown away before the connection is ended.
_DROPPED_AT_MOST = 4 * MAX_BODY


class ApiContext(NamedTuple):
    """What handlers may use. secret: of front ends; it signs their pages' tickets, too. sign_ins:
    where there are clusters.

    known: by what `trace` finds agents and containers. logs_written: returns when all that was
    logged is in its file (or after a moment).
    """

    desk: RunService
    calls: Calls
    live: LiveUpdates
    uploads: Uploads
    leases: Leases
    secret: str
    unsent: ResponseLimits
    metering: UsageSamples
    monitoring: MetricsExporter
    sign_ins: SignIns | None = None
    clusters: ClusterInventory | None = None
    notifications: Notifications | None = None
    known: Known = Known()
    logs_written: Callable[[], object] = lambda: None


class Sink(Protocol):
    """Takes a body that is too large to be kept, piece by piece."""

    limit: int

    async def take(self, data: bytes) -> None:
        """Raises Refusal."""

    def abandon(self) -> None:
        """Nothing more comes, finished or not. May be called more than once."""


class Route(NamedTuple):
    """path: a pattern. open: whoever asks, without the secret. sink: where the body of a PUT goes,
    instead of into memory.

    monitors: the token of those who monitor is enough. streams: it is answered for as long as
    somebody reads.
    """

    path: str
    action: Callable[["Handler"], Awaitable[Any]]
    methods: tuple[str, ...] = ("POST",)
    open: bool = False
    sink: Callable[["Handler"], Awaitable[Sink]] | None = None
    monitors: bool = False
    streams: bool = False


class ServerReq:
    """Who asks for what, as the log shows it."""

    def __init__(self, api: str, jid: str) -> None:
        self.api, self.jid = api, jid

    def pkdebug_str(self) -> str:
        return f"ServerReq(api_{self.api}, {self.jid})"


@tornado.web.stream_request_body
class Handler(tornado.web.RequestHandler):
    """One route: what every answer has in common. A body is taken in only of who has the secret,
    and not beyond the limit.
    """

    def initialize(self, services: ApiContext, route: Route) -> None:
        self.services, self.route = services, route
        self.desk = services.desk
        self.sink: Sink | None = None
        #: called when the client has gone away before it had its answer
        self.on_gone: Callable[[], object] = lambda: None
        #: the user who asks, as far as his answers may be large
        self.owner = ""
        self._body = bytearray()
        self._taken = 0
        self._refusal: Refusal | None = None

    def prepare(self) -> Awaitable[None] | None:
        # the limit is ours: tornado's own answer would have neither code nor sentence
        self.request.connection.set_max_body_size(_NO_LIMIT)  # type: ignore[union-attr]
        try:
            if not self._authenticate():
                return None  # of a stranger's body nothing comes here
        except Refusal as e:
            self._refusal = e
            return None
        if self.route.sink is not None and self.request.method == "PUT":
            return self._open_sink(self.route.sink)
        self._expect_body()
        return None

    async def _open_sink(self, sink: Callable[["Handler"], Awaitable[Sink]]) -> None:
        try:
            self.sink = await sink(self)
        except (Refusal, tornado.web.HTTPError) as e:
            self._refusal = self._as_refusal(e)
        except Exception as e:
            self._refusal = self._internal(e)
        self._expect_body()

    def _expect_body(self) -> None:
        declared = self.request.headers.get("Content-Length", "")
        self._grown_to(int(declared) if declared.isdecimal() else 0)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._taken += len(chunk)
        self._grown_to(self._taken)
        if self._refusal is not None:
            return None
        if self.sink is not None:
            return self._pour(self.sink, chunk)
        self._body += chunk
        return None

    async def _pour(self, sink: Sink, chunk: bytes) -> None:
        try:
            await sink.take(chunk)
        except Refusal as e:
            self._refusal = e
        except Exception as e:
            self._refusal = self._internal(e)

    def _grown_to(self, size: int) -> None:
        """What is refused anyway is dropped, so that its sender can read the answer; up to a limit."""
        limit = MAX_BODY if self.sink is None else self.sink.limit
        if size > limit and self._refusal is None:
            self._body.clear()
            self._refusal = Refusal(
                "tooLarge", f"a request of {size} bytes or more is over the limit of {limit}"
            )
        if size > _DROPPED_AT_MOST and self._refusal is not None and not self._finished:
            self.set_header("Connection", "close")
            self._refuse(self._refusal)

    def on_connection_close(self) -> None:
        super().on_connection_close()  # who waits for the rest of the body does not wait any more
        self.on_gone()
        self.on_finish()

    def on_finish(self) -> None:
        if self.sink is not None:
            self.sink.abandon()

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")

    async def post(self) -> None:
        await self._answer()

    async def get(self) -> None:
        await self._answer()

    async def put(self) -> None:
        await self._answer()

    async def delete(self) -> None:
        await self._answer()

    async def _answer(self) -> None:
        try:
            if self._refusal is not None:
                raise self._refusal
            if self.request.method not in self.route.methods:
                raise Refusal(
                    "methodNotAllowed",
                    f"{self.request.path} takes {' or '.join(self.route.methods)}",
                )
            body = await self.route.action(self)
            if body is not None:
                self._json(200, body)
        except (Refusal, tornado.web.HTTPError) as e:
            self._refuse(self._as_refusal(e))
        except (tornado.iostream.StreamClosedError, asyncio.CancelledError):
            raise
        except Exception as e:
            self._json(500, self._internal(e).body())

    def _as_refusal(self, error: Refusal | tornado.web.HTTPError) -> Refusal:
        if isinstance(error, Refusal):
            return error
        return Refusal(
            "badRequest",
            f"the address cannot be understood: {ascii(error.log_message)[1:-1][:200]}",
        )

    def _internal(self, error: Exception) -> Refusal:
        """A fault of ours: its trace is for the log."""
        self.desk.counters.add("internal")
        self.desk.log.exception("{} {} failed", self.request.method, self.request.path, error=error)
        return Refusal("internal", "something went wrong inside; the log has it")

    def _refuse(self, refusal: Refusal) -> None:
        self.desk.counters.add("refused." + refusal.code)
        self.desk.log("{} {} refused: {}", self.request.method, self.request.path, refusal.sentence)
        self._json(refusal.http, refusal.body())

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """What tornado refuses by itself, in our form."""
        if status_code == 405:
            self._refuse(
                Refusal(
                    "methodNotAllowed",
                    f"{ascii(self.request.method)[1:-1][:20]} is used nowhere here",
                )
            )
        else:
            self._refuse(
                Refusal("badRequest", f"the request cannot be understood (HTTP {status_code})")
            )

    def _authenticate(self) -> bool:
        """False: nobody need say here who he is, and nobody did."""
        given = self.request.headers.get("Authorization", "")
        known = hmac.compare_digest(given.encode(), ("Bearer " + self.services.secret).encode())
        if known and (version := self.request.headers.get(FRONT_END)) is not None:
            self.services.monitoring.health.front_end(version)
        if known or (self.route.monitors and self.services.monitoring.admits(given)):
            self.authenticated()
            return True
        if not self.route.open:
            raise Refusal("unauthenticated", "the secret is missing or wrong")
        return False

    def authenticated(self) -> None:
        """It is known who asks: a body may be read, and the connection stays."""
        authenticated(self.request)

    def _json(self, code: int, body: Any) -> None:
        if self._finished:
            return
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        try:
            self.services.unsent.check(self.owner, len(data))
        except Refusal as e:
            self._refuse(e)
            return
        self.set_status(code)
        self.set_header("Content-Type", "application/json")
        self.end(data)

    def end(self, data: bytes) -> None:
        """The last of the answer; it has its time to be taken."""
        self.finish(data)
        stream = getattr(self.request.connection, "stream", None)
        if stream is not None:
            self.services.unsent.watch(stream, self.owner, len(data))

    def argument(self, name: str) -> str | None:
        """A value of the query exactly as it was sent, once; None where there is none. Raises
        Refusal("badRequest").

        Tornado's own would put blanks in place of control characters, and cut blanks off: another
        name than the one that was sent.
        """
        given = self.request.query_arguments.get(name, [])
        if len(given) > 1:
            raise Refusal("badRequest", f"{name} is there {len(given)} times; send it once")
        return self._text(name, given[0]) if given else None

    def arguments(self, name: str) -> list[str]:
        """All values, in order. Raises Refusal("badRequest")."""
        return [self._text(name, value) for value in self.request.query_arguments.get(name, [])]

    def _text(self, name: str, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Refusal("badRequest", f"{name} is no UTF-8: {ascii(value[:40])[1:]}") from None

    def parsed(self, type_: type[Any], limit: int = MAX_ONE) -> Any:
        return parse_body(bytes(self._body), type_, limit)

    def forget_body(self) -> None:
        """It holds secrets."""
        self._body[:] = bytes(len(self._body))
        self._body.clear()

    async def parsed_runs(self) -> RunMany:
        return await parse_runs(bytes(self._body))

    async def send(self) -> None:
        """What was written, to the client; raises StreamClosedError when it is gone or does not
        take it.
        """
        try:
            async with asyncio.timeout(STALL_SECS):
                await self.flush()
        except TimeoutError:
            self.desk.counters.add("stalled")
            self.cut()
            raise tornado.iostream.StreamClosedError from None

    def cut(self) -> None:
        """End the connection in the middle of an answer: the client sees that something is missing."""
        self.request.connection.close()  # type: ignore[union-attr]

    def log_request(self, api: str, request: Any, jid: str) -> None:
        """The lines by which the debugging guide follows a request."""
        content = msgspec.to_builtins(request)
        self.desk.log(
            "class=ServerReq content={}",
            {"api": "api_" + api, **content, "serverSecret": REDACTED},
            jid=jid,
        )
        self.desk.log("{}", ServerReq(api, jid), jid=jid)

    def log_call(
        self, api: str, about: str, uid: str, op: str | None = None, jid: str | None = None
    ) -> None:
        """One line for a request of which nothing is kept. op: of the call that it leads to; jid:
        of the job that it reads.
        """
        if op is None:
            self.desk.log("{}", ServerReq(api, about), jid=jid, uid=uid)
        else:
            self.desk.log(
                "{} _Op(analysis, {})", ServerReq(api, about), short_op(op), jid=jid, uid=uid, op=op
            )
