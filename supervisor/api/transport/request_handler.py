"""The request handler of all routes: authentication, body limits, and the form of answers.

Every refusal has a code and is counted. Any other exception is logged with its traceback and
answered as `internal`.
"""

import asyncio
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import tornado.iostream
import tornado.web

from ....protocol.api.requests import RunMany, RunSpec
from ....protocol.api.tokens import PREFIX
from ....protocol.errors import Refusal
from ....protocol.ids import short_op
from ....protocol.redaction import REDACTED
from ....protocol.wire.handshake import ACTOR, FRONT_END, PEER, SIGNED_IN, TOKEN_SCOPES
from ....runtime.connections import wait_page
from ....runtime.connections.http_server import answer_unread, authenticated
from ....runtime.log.logger import Log
from ....service.settings.loader import Row
from ....service.site.secret_rotation import RotatedSecret
from ...access.authentication import Access
from ...access.device_logins import DeviceLogins
from ...access.principal import Principal, RouteScope
from ...agents.calls import Calls
from ...agents.debugging import Debugging
from ...clusters.inventory import ClusterInventory
from ...clusters.sign_in import SignIns
from ...files.disk_usage import DiskUsage
from ...files.log_compaction import LogCompaction
from ...files.retention_sweeper import RetentionSweeper
from ...files.run_dir_uploads import RunDirUploads
from ...files.uploads import Uploads
from ...metrics.exporter import MetricsExporter
from ...notifications.notifier import Notifications
from ...process.handover import Handover
from ...runs.port_leases import Leases
from ...runs.request_validation import MAX_BODY, MAX_ONE, parse_body, parse_runs
from ...runs.service import RunService
from ...runs.shells import Shells
from ...runs.site_drains import SiteDrains
from ...streams.live_updates import LiveUpdates
from ...tracing.id_lookup import Known
from ...usage.samples import UsageSamples
from .authorization import Rights, Subject, check_route, check_subjects
from .response_limits import STALL_SECS, ResponseLimits
from .shard_answers import Rule

_NO_LIMIT = 2**62
_PART = re.compile(r"\{([a-z]+)\}")
#: Number of bytes of a refused body that are read and discarded before the connection is closed.
_DISCARD_LIMIT = 4 * MAX_BODY


class ApiContext(NamedTuple):
    """The services that handlers use.

    access: authenticates senders. secret: of front ends; it signs the tickets of their pages. unsent: memory of answers that
    clients have not read yet. sign_ins, clusters: None without clusters. known: names with which
    `trace` finds agents and containers. logs_written: returns when the log files are up to date, or
    after a second. disk: the disk usage of users. settings_rows: all settings with their origins. drains: of hosts and the site.
    handover: to a standby.
    """

    runs: RunService
    calls: Calls
    live: LiveUpdates
    uploads: Uploads
    run_dir_uploads: RunDirUploads
    leases: Leases
    access: Access
    secret: RotatedSecret
    unsent: ResponseLimits
    metering: UsageSamples
    monitoring: MetricsExporter
    sign_ins: SignIns | None = None
    clusters: ClusterInventory | None = None
    notifications: Notifications | None = None
    known: Known = Known()
    logs_written: Callable[[], object] = lambda: None
    retention: RetentionSweeper | None = None
    log_compaction: LogCompaction | None = None
    disk: DiskUsage | None = None
    device_logins: DeviceLogins | None = None
    debugging: Debugging | None = None
    shells: Shells | None = None
    settings_rows: Callable[[], Sequence[Row]] = tuple
    drains: SiteDrains | None = None
    handover: Handover | None = None


class Sink(Protocol):
    """Receives a body that is too large for memory, piece by piece."""

    limit: int

    async def take(self, data: bytes) -> None:
        """Raises Refusal."""

    def abandon(self) -> None:
        """End the transfer, complete or not. May be called more than once."""


class QueryField(NamedTuple):
    """A query argument in the OpenAPI document. schema: its JSON schema."""

    name: str
    about: str
    schema: Mapping[str, Any] = {"type": "string"}
    required: bool = False


#: Media types of answers.
JSON, BYTES, TEXT, EVENTS = (
    "application/json",
    "application/octet-stream",
    "text/plain",
    "text/event-stream",
)


class Route(NamedTuple):
    """One address. path: a regular expression, in which `{name}` stands for a part. scope: that the sender needs; None if the address
    is open to senders without a secret or token. subject: where its requests name their users.
    sink: opens the receiver of a PUT body. monitors: the monitoring token is accepted, too.
    streams: the answer lasts as long as the client reads. quick: `quick_posts` may answer: the
    action uses only `parsed`, `log_request`, `log_call`, `on_gone`, `owner`, `services`, `runs` and `log`.
    errors: returns the body for a refusal. takes: type of the JSON body. query: its query arguments,
    of which an entry may be a struct whose fields are arguments. gives: media type of the answer.
    polls, as_user, shared: see Rights. merge: how a router makes one answer of those of several shards.
    """

    path: str
    action: Callable[["Handler"], Any]
    scope: RouteScope | None
    subject: Subject
    methods: tuple[str, ...] = ("POST",)
    sink: Callable[["Handler"], Awaitable[Sink]] | None = None
    monitors: bool = False
    streams: bool = False
    quick: bool = False
    errors: Callable[[Refusal], Any] = Refusal.body
    takes: type[msgspec.Struct] | None = None
    query: tuple[QueryField | type[msgspec.Struct], ...] = ()
    gives: str = JSON
    polls: bool = False
    as_user: bool = False
    shared: bool = False
    merge: Rule | None = None

    @property
    def pattern(self) -> str:
        """Return the path as a regular expression."""
        return _PART.sub(r"(?P<\1>[^/~]+)", self.path)

    @property
    def rights(self) -> Rights:
        """Return what it demands of an authenticated sender."""
        name = self.path.removeprefix("/api/").removeprefix("/")
        scope = self.scope or "any"
        return Rights(name, scope, self.subject, self.polls, self.as_user, self.shared)


class ServerReq:
    """A request in log lines: name of the API call and computeJid."""

    def __init__(self, api: str, jid: str) -> None:
        self.api, self.jid = api, jid

    def pkdebug_str(self) -> str:
        return f"ServerReq(api_{self.api}, {self.jid})"


@tornado.web.stream_request_body
class Handler(tornado.web.RequestHandler):
    """Handles requests of one route. A body is read only after authentication, up to the limit."""

    def initialize(self, services: ApiContext, route: Route) -> None:
        self.services, self.route = services, route
        self.runs = services.runs
        #: each line has the ids of the request, as soon as its body is parsed
        self.log = services.runs.log
        self.sink: Sink | None = None
        #: called when the client disconnects before the answer is complete
        self.on_gone: Callable[[], object] = lambda: None
        #: user to whom large answers are charged
        self.owner = ""
        #: the sender; only an open route is reached without one
        self.principal: Principal
        self._authorized = False
        self._body = bytearray()
        self._received = 0
        self._refusal: Refusal | None = None

    def prepare(self) -> Awaitable[None] | None:
        # `_check_size` has the limit: Tornado's own error response has no code and no sentence
        self.request.connection.set_max_body_size(_NO_LIMIT)  # type: ignore[union-attr]
        try:
            if not self._authenticate():
                return None  # the body of an unauthenticated request is never read
        except Refusal as e:
            self._refusal = e
            own_form = self.route.errors is not Refusal.body
            if own_form or PREFIX in self.request.headers.get("Authorization", ""):
                answer_unread(self.request, functools.partial(self._unread, e))
            return None
        if self.route.sink is not None and self.request.method == "PUT":
            return self._open_sink(self.route.sink)
        self._expect_body()
        return None

    async def _open_sink(self, sink: Callable[["Handler"], Awaitable[Sink]]) -> None:
        try:
            await self._authorize()
            self.sink = await sink(self)
        except (Refusal, tornado.web.HTTPError) as e:
            self._refusal = self._as_refusal(e)
        except Exception as e:
            self._refusal = self._internal(e)
        self._expect_body()

    def _expect_body(self) -> None:
        declared = self.request.headers.get("Content-Length", "")
        self._check_size(int(declared) if declared.isdecimal() else 0)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._received += len(chunk)
        self._check_size(self._received)
        if self._refusal is not None:
            return None
        if self.sink is not None:
            return self._pass_on(self.sink, chunk)
        self._body += chunk
        return None

    async def _pass_on(self, sink: Sink, chunk: bytes) -> None:
        try:
            await sink.take(chunk)
        except Refusal as e:
            self._refusal = e
        except Exception as e:
            self._refusal = self._internal(e)

    def _check_size(self, size: int) -> None:
        """Refuse a body that is too large.

        The rest of a refused body is read and discarded up to a limit, because many clients read
        the answer only after they have sent everything.
        """
        limit = MAX_BODY if self.sink is None else self.sink.limit
        if size > limit and self._refusal is None:
            self._body.clear()
            self._refusal = Refusal(
                "tooLarge", f"a request of {size} bytes or more is over the limit of {limit}"
            )
        if size > _DISCARD_LIMIT and self._refusal is not None and not self._finished:
            self.set_header("Connection", "close")
            self._refuse(self._refusal)

    def on_connection_close(self) -> None:
        super().on_connection_close()  # ends the wait for the rest of the body
        self.on_gone()
        self.on_finish()

    def on_finish(self) -> None:
        if self.sink is not None:
            self.sink.abandon()

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")

    async def post(self, **_: str) -> None:
        await self._answer()

    async def get(self, **_: str) -> None:
        await self._answer()

    async def put(self, **_: str) -> None:
        await self._answer()

    async def delete(self, **_: str) -> None:
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
            await self._authorize()
            body = self.route.action(self)
            if inspect.isawaitable(body):
                body = await body
            if body is not None:
                self._json(200, body)
        except (Refusal, tornado.web.HTTPError) as e:
            self._refuse(self._as_refusal(e))
        except (tornado.iostream.StreamClosedError, asyncio.CancelledError):
            raise
        except Exception as e:
            self._json(500, self.route.errors(self._internal(e)))

    def _as_refusal(self, error: Refusal | tornado.web.HTTPError) -> Refusal:
        if isinstance(error, Refusal):
            return error
        return Refusal(
            "badRequest",
            f"the address cannot be understood: {ascii(error.log_message)[1:-1][:200]}",
        )

    def _internal(self, error: Exception) -> Refusal:
        """Log an unexpected exception with its traceback. Return the refusal for the client."""
        self.runs.counters.add("internal")
        self.log.exception("{} {} failed", self.request.method, self.request.path, error=error)
        return Refusal("internal", "internal error in the supervisor; its log has the details")

    def _refuse(self, refusal: Refusal) -> None:
        self._count(refusal)
        if "retryAfterSecs" in refusal.more:
            self.set_header("Retry-After", str(refusal.more["retryAfterSecs"]))
        accept = self.request.headers.get("Accept", "")
        if wait_page.is_wanted(self.request.method or "", accept, refusal.http):
            self.set_status(refusal.http)
            for name, value in wait_page.headers().items():
                self.set_header(name, value)
            self.finish(wait_page.page(refusal.sentence))
            return
        self._json(refusal.http, self.route.errors(refusal))

    def _count(self, refusal: Refusal) -> None:
        self.runs.counters.add("refused." + refusal.code)
        self.log("{} {} refused: {}", self.request.method, self.request.path, refusal.sentence)

    def _unread(self, refusal: Refusal) -> tuple[int, bytes]:
        """Count a refusal of which the sender's API token is the reason. Return the answer."""
        self._count(refusal)
        return refusal.http, msgspec.json.encode(self.route.errors(refusal))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Give Tornado's own error responses a code and a sentence."""
        if status_code == 405:
            self._refuse(
                Refusal(
                    "methodNotAllowed",
                    f"no address takes the method {ascii(self.request.method)[1:-1][:20]}",
                )
            )
        else:
            self._refuse(
                Refusal("badRequest", f"the request cannot be understood (HTTP {status_code})")
            )

    def _authenticate(self) -> bool:
        """Return whether the sender is authenticated; False is possible on open routes only.

        Raises Refusal: unauthenticated, tokenExpired, tokenRevoked, scopeMissing, forbidden,
        tooManyRequests.
        """
        headers = self.request.headers
        try:
            self.principal = self.services.access.principal(
                headers.get("Authorization", ""),
                headers.get(ACTOR),
                headers.get(SIGNED_IN),
                monitors=self.route.monitors,
                peer=None if self.route.scope is None else self.peer,
                scopes=headers.get(TOKEN_SCOPES),
            )
        except Refusal:
            if self.route.scope is not None:
                raise
            return False
        if self.principal.trusted and (version := headers.get(FRONT_END)) is not None:
            self.services.monitoring.health.front_end(version)
        self.authenticated()
        if self.principal.role != "monitor":
            check_route(self.principal, self.route.rights)
        return True

    async def _authorize(self) -> None:
        """Check that the sender may act for the users that the request names. Acts for other users
        are then on record. Raises Refusal.
        """
        if self.route.scope is None or self._authorized:
            return
        self._authorized = True
        if self.principal.uid is None and self.services.access.shard is None:
            return  # the server secret without an actor, or the token for monitoring
        given = bytes(self._body)
        body = await check_subjects(
            self.services.access,
            self.principal,
            self.route.rights,
            self.peer,
            given,
            self.part if self.route.subject is Subject.PATH else self.argument,
        )
        if body is not given:
            self.forget_body()
            self._body += body

    @property
    def peer(self) -> str:
        """Return the address of the client, also behind a router."""
        return self.services.access.peer(
            self.request.headers.get(PEER), self.request.remote_ip or ""
        )

    @property
    def sender(self) -> Principal | None:
        """Return the authenticated sender, which an open route may lack."""
        return getattr(self, "principal", None)

    def admitted(self) -> bool:
        """Return whether the sender is still authenticated, for answers that last long."""
        return self.services.access.admits(self.principal)

    def authenticated(self) -> None:
        """Mark the client as authenticated: its body may be read, and its connection stays open."""
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
        """Write the last part of the answer. A client that does not read it in time is cut off."""
        self.finish(data)
        stream = getattr(self.request.connection, "stream", None)
        if stream is not None:
            self.services.unsent.watch(stream, self.owner, len(data))

    def argument(self, name: str) -> str | None:
        """Return the value of a query argument, unchanged; None if there is none.

        Tornado's own method replaces control characters and strips blanks, which changes names.
        An absent `uid` is the sender's own, unless the route gives the sender data of all users.
        Raises Refusal("badRequest") if the argument occurs twice or is not UTF-8.
        """
        given = self.request.query_arguments.get(name, [])
        if len(given) > 1:
            raise Refusal(
                "badRequest", f"the argument {name} occurs {len(given)} times; send it once"
            )
        if given:
            return self._text(name, given[0])
        subject = self.route.subject
        own = subject is Subject.QUERY or (
            subject is Subject.QUERY_OR_ALL and not self.principal.all_users
        )
        return self.principal.uid if own and name == "uid" else None

    def part(self, name: str) -> str:
        """Return a part of the path, decoded."""
        part: str = self.path_kwargs[name]
        return part

    def reply(self, code: int, body: Any) -> None:
        """Answer with this HTTP code instead of 200."""
        self._json(code, body)

    @property
    def raw_body(self) -> bytes:
        return bytes(self._body)

    def arguments(self, name: str) -> list[str]:
        """Return all values of a query argument, in order. Raises Refusal("badRequest")."""
        return [self._text(name, value) for value in self.request.query_arguments.get(name, [])]

    def _text(self, name: str, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Refusal(
                "badRequest", f"the argument {name} is not UTF-8: {ascii(value[:40])[1:]}"
            ) from None

    def parsed(self, type_: type[Any], limit: int = MAX_ONE) -> Any:
        assert type_ is self.route.takes, "the OpenAPI document names this type"
        return with_own_plan(self.sender, parse_body(bytes(self._body), type_, limit))

    def forget_body(self) -> None:
        """Overwrite the body, which contains secrets."""
        self._body[:] = bytes(len(self._body))
        self._body.clear()

    async def parsed_runs(self) -> RunMany:
        request = await parse_runs(bytes(self._body))
        runs = tuple(with_own_plan(self.sender, run) for run in request.runs)
        return msgspec.structs.replace(request, runs=runs)

    async def send(self) -> None:
        """Send the written data. Raises StreamClosedError if the client is gone or does not read."""
        try:
            async with asyncio.timeout(STALL_SECS):
                await self.flush()
        except TimeoutError:
            self.runs.counters.add("stalled")
            self.cut()
            raise tornado.iostream.StreamClosedError from None

    def cut(self) -> None:
        """Close the connection within an answer, so that the client sees that data is missing."""
        self.request.connection.close()  # type: ignore[union-attr]

    def log_request(self, api: str, request: Any, jid: str) -> None:
        """Log a request. docs/debugging.md follows requests by these lines."""
        self.log = log_request(self.log, api, request, jid)

    def log_call(
        self, api: str, about: str, uid: str, op: str | None = None, jid: str | None = None
    ) -> None:
        """Log a request that stores nothing. op: id of its call; jid: of the job that it reads."""
        self.log = logged_call(self.log, api, about, uid, op, jid)


def with_own_plan(sender: Principal | None, request: Any) -> Any:
    """Return a request without a plan, unless the front end sends it: only the site knows which plan
    its user has. A token's user could name any.
    """
    if sender is None or not sender.by_token:
        return request
    if isinstance(run := getattr(request, "run", None), RunSpec):
        return msgspec.structs.replace(request, run=with_own_plan(sender, run))
    if getattr(request, "active_plan", None) is not None:
        return msgspec.structs.replace(request, active_plan=None)
    return request


def log_request(log: Log, api: str, request: Any, jid: str) -> Log:
    """Log a request with its content, without defaults. Return the log with its id."""
    log = log.bound(jid=jid)
    content = _stated(request)
    log("class=ServerReq content={}", {"api": "api_" + api, **content, "serverSecret": REDACTED})
    log("{}", ServerReq(api, jid))
    return log


def _stated(value: Any) -> Any:
    """Return a request as plain data, without fields that have their default: to redact and format
    them takes longer than all that the request states.
    """
    if not isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    fields = _defaults(type(value))
    given = [(name, getattr(value, field), default) for field, name, default in fields]
    return {name: _stated(v) for name, v, default in given if v != default}


@functools.cache
def _defaults(type_: type[msgspec.Struct]) -> list[tuple[str, str, Any]]:
    """Return name, encoded name and default of each field; NODEFAULT where it has none."""
    return [
        (
            f.name,
            f.encode_name,
            f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory(),
        )
        for f in msgspec.structs.fields(type_)
    ]


def logged_call(log: Log, api: str, about: str, uid: str, op: str | None, jid: str | None) -> Log:
    """Log a request that stores nothing. Return the log with its ids."""
    log = log.bound(uid=uid, jid=jid, op=op)
    if op is None:
        log("{}", ServerReq(api, about))
    else:
        log("{} _Op(analysis, {})", ServerReq(api, about), short_op(op))
    return log
