"""The supervisor's own HTTP interface, for front ends and the command line: JSON in, JSON out, one secret in a header.

A handler parses, asks the engine, and writes the answer; it decides nothing. Every refusal has a code and is counted;
whatever else goes wrong is logged with its trace and answered as `internal`.
"""

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import tornado.iostream
import tornado.web

from ..db.events import job_stream
from ..db.store import Stored
from ..db.story import story
from ..protocol.errors import Refusal
from ..protocol.ids import parse
from ..protocol.redaction import REDACTED
from ..protocol.requests import JobList, JobLog, JobStory, RunCancel, RunMany, RunSimulation, RunStatusRequest, Trace
from .desk import Desk
from .feed import selector
from .requests import MAX_BODY, parse_body
from .trace import trace

KEEPALIVE_SECS = 15.0
_NO_LIMIT = 2**62
#: Of a body that is refused, so much is read and thrown away before the connection is ended.
_DROPPED_AT_MOST = 4 * MAX_BODY
_POSITION = re.compile(r"-?[0-9]{1,18}\Z")


class ServerReq:
    """Who asks for what, as the log shows it."""

    def __init__(self, api: str, jid: str) -> None:
        self.api, self.jid = api, jid

    def pkdebug_str(self) -> str:
        return f"ServerReq(api_{self.api}, {self.jid})"


@tornado.web.stream_request_body
class _Handler(tornado.web.RequestHandler):
    """One route: what every answer has in common. A body is taken in only of who has the secret, and not beyond the limit."""

    def initialize(self, desk: Desk, secret: str, action: Callable[["_Handler"], Awaitable[Any]], open_: bool = False) -> None:
        self.desk, self._secret, self._action, self._open = desk, secret, action, open_
        self._body = bytearray()
        self._taken = 0
        self._refusal: Refusal | None = None

    def prepare(self) -> None:
        # the limit is ours: tornado's own answer would have neither code nor sentence
        self.request.connection.set_max_body_size(_NO_LIMIT)  # type: ignore[union-attr]
        declared = self.request.headers.get("Content-Length", "")
        try:
            self._authenticate()
        except Refusal as e:
            self._refusal = e
        self._grown_to(int(declared) if declared.isdecimal() else 0)

    def data_received(self, chunk: bytes) -> None:
        self._taken += len(chunk)
        self._grown_to(self._taken)
        if self._refusal is None:
            self._body += chunk

    def _grown_to(self, size: int) -> None:
        """What is refused anyway is dropped, so that its sender can read the answer; up to a limit."""
        if size > MAX_BODY and self._refusal is None:
            self._body.clear()
            self._refusal = Refusal("tooLarge", f"a request of {size} bytes or more is over the limit of {MAX_BODY}")
        if size > _DROPPED_AT_MOST and not self._finished:
            assert self._refusal is not None
            self.set_header("Connection", "close")
            self._refuse(self._refusal)

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")

    async def post(self) -> None:
        await self._answer()

    async def get(self) -> None:
        await self._answer()

    async def _answer(self) -> None:
        try:
            if self._refusal is not None:
                raise self._refusal
            body = await self._action(self)
            if body is not None:
                self._json(200, body)
        except Refusal as e:
            self._refuse(e)
        except tornado.web.HTTPError as e:
            self._refuse(Refusal("badRequest", f"the address cannot be understood: {ascii(e.log_message)[1:-1][:200]}"))
        except (tornado.iostream.StreamClosedError, asyncio.CancelledError):
            raise
        except Exception as e:
            self.desk.counters.add("internal")
            self.desk.log.exception("{} {} failed", self.request.method, self.request.path, error=e)
            self._json(500, Refusal("internal", "something went wrong inside; the log has it").body())

    def _refuse(self, refusal: Refusal) -> None:
        self.desk.counters.add("refused." + refusal.code)
        self.desk.log("{} {} refused: {}", self.request.method, self.request.path, refusal.sentence)
        self._json(refusal.http, refusal.body())

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """What tornado refuses by itself, in our form."""
        if status_code == 405:
            self._refuse(Refusal("methodNotAllowed", f"{ascii(self.request.method)[1:-1][:20]} is used nowhere here"))
        else:
            self._refuse(Refusal("badRequest", f"the request cannot be understood (HTTP {status_code})"))

    def _authenticate(self) -> None:
        if self._open:
            return
        given = self.request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), ("Bearer " + self._secret).encode()):
            raise Refusal("unauthenticated", "the secret is missing or wrong")

    def _json(self, code: int, body: Any) -> None:
        if not self._finished:
            self.set_status(code)
            self.set_header("Content-Type", "application/json")
            self.finish(msgspec.json.encode(body))

    def parsed(self, type_: type[Any]) -> Any:
        if self.request.method != "POST":
            raise Refusal("methodNotAllowed", f"{self.request.path} takes POST")
        return parse_body(bytes(self._body), type_)

    def log_request(self, api: str, request: Any, jid: str) -> None:
        """The lines by which the debugging guide follows a request."""
        content = msgspec.to_builtins(request)
        self.desk.log("class=ServerReq content={}", {"api": "api_" + api, **content, "serverSecret": REDACTED}, jid=jid)
        self.desk.log("{}", ServerReq(api, jid), jid=jid)


async def _run_simulation(h: _Handler) -> Any:
    request: RunSimulation = h.parsed(RunSimulation)
    spec = request.run
    h.log_request("runSimulation", request, f"{spec.uid}-{spec.simulation_id}-{spec.compute_model}")
    return await h.desk.submit(request)


async def _run_many(h: _Handler) -> Any:
    request: RunMany = h.parsed(RunMany)
    h.desk.log("class=ServerReq api=api_runMany reqId={} runs={}", request.req_id, len(request.runs))
    replies = await h.desk.submit_many(request)
    return {"state": "ok", "runs": replies}


async def _run_status(h: _Handler) -> Any:
    return await h.desk.status(h.parsed(RunStatusRequest))


async def _run_cancel(h: _Handler) -> Any:
    request: RunCancel = h.parsed(RunCancel)
    h.log_request("runCancel", request, request.compute_jid)
    return await h.desk.cancel(request)


async def _job_list(h: _Handler) -> Any:
    request: JobList = h.parsed(JobList)
    rows = h.desk.engine.store.jobs(
        uid=request.uid, status=request.status, active=request.active, before=request.before, limit=request.limit,
    )
    return {"jobs": rows, "next": rows[-1].position if len(rows) == request.limit else None}


async def _job_log(h: _Handler) -> Any:
    request: JobLog = h.parsed(JobLog)
    chunk = await h.desk.read_log(request)
    h.set_header("Content-Type", "application/octet-stream")
    for name, value in (("Offset", chunk.offset), ("Next-Offset", chunk.next_offset), ("Dropped", chunk.dropped)):
        h.set_header("X-Jobscribe-" + name, str(value))
    h.set_header("X-Jobscribe-End", "true" if chunk.end else "false")
    h.finish(chunk.data)


async def _job_story(h: _Handler) -> Any:
    request: JobStory = h.parsed(JobStory)
    h.desk.job(request.uid, request.compute_jid)
    events = h.desk.engine.store.read(job_stream(request.compute_jid))
    return {"computeJid": request.compute_jid, "events": [_event(e) for e in events], "lines": story(events)}


async def _job_why(h: _Handler) -> Any:
    return h.desk.why(h.parsed(RunStatusRequest))


async def _trace(h: _Handler) -> Any:
    request: Trace = h.parsed(Trace)
    return trace(h.desk.engine.store, request.id, request.uid)


def _event(stored: Stored) -> dict[str, Any]:
    return {"position": stored.position, "stream": stored.stream, "version": stored.version, "event": stored.event}


async def _events(h: _Handler) -> Any:
    """Server-sent events: durable, in order, resumable by position."""
    after = _position(h)
    uid, jid = h.get_query_argument("uid", None), h.get_query_argument("computeJid", None)
    wanted = selector(None if uid is None else parse("uid", uid), None if jid is None else parse("computeJid", jid))
    h.set_header("Content-Type", "text/event-stream")
    h.set_header("X-Accel-Buffering", "no")
    # where it begins is said at once, so that a reader who is cut off before the first event misses nothing
    h.write(f"id: {after}\n\n")
    await h.flush()
    pages: AsyncIterator[list[Stored]] = h.desk.feed.follow(after, wanted, KEEPALIVE_SECS)
    try:
        async for page in pages:
            h.write("".join(map(_sse, page)) or ": nothing new\n\n")
            await h.flush()
    except tornado.iostream.StreamClosedError:
        return None
    finally:
        await pages.aclose()  # type: ignore[attr-defined]
    return None


def _sse(stored: Stored) -> str:
    data = msgspec.json.encode(_event(stored)).decode()
    return f"id: {stored.position}\nevent: {stored.event.__struct_config__.tag}\ndata: {data}\n\n"


def _position(h: _Handler) -> int:
    text = h.request.headers.get("Last-Event-ID") or h.get_query_argument("after", "0")
    if not _POSITION.match(text):
        raise Refusal("badRequest", f"a position is a number; got {ascii(text)[:40]}")
    after = int(text)
    return h.desk.engine.store.head() if after < 0 else after


async def _livez(h: _Handler) -> Any:
    return {"state": "ok"}


async def _readyz(h: _Handler) -> Any:
    if h.desk.draining:
        raise Refusal("draining", "the supervisor is stopping")
    if h.desk.engine.paused:
        raise Refusal("storageUnavailable", "the store cannot be written now")
    return {"state": "ok", "head": h.desk.engine.store.head(), "counters": h.desk.counters.all()}


async def _nothing(h: _Handler) -> Any:
    raise Refusal("notFound", f"there is nothing at {ascii(h.request.path)[:80]}")


ROUTES: tuple[tuple[str, Callable[[_Handler], Awaitable[Any]], bool], ...] = (
    ("/api/run-simulation", _run_simulation, False),
    ("/api/run-many", _run_many, False),
    ("/api/run-status", _run_status, False),
    ("/api/run-cancel", _run_cancel, False),
    ("/api/job-list", _job_list, False),
    ("/api/job-log", _job_log, False),
    ("/api/job-story", _job_story, False),
    ("/api/job-why", _job_why, False),
    ("/api/trace", _trace, False),
    ("/api/events", _events, False),
    ("/livez", _livez, True),
    ("/readyz", _readyz, True),
    ("/.*", _nothing, True),
)


def application(desk: Desk, secret: str) -> tornado.web.Application:
    """The API listener."""
    routes = [(path, _Handler, {"desk": desk, "secret": secret, "action": action, "open_": open_}) for path, action, open_ in ROUTES]
    return tornado.web.Application(routes, log_function=lambda handler: None)


