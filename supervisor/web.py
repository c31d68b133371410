"""The supervisor's own HTTP interface, for front ends and the command line: JSON in, JSON out, one secret in a header.

A handler parses, asks the engine, and writes the answer; it decides nothing. Every refusal has a code and is counted;
whatever else goes wrong is logged with its trace and answered as `internal`.
"""

import asyncio
import hmac
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import tornado.iostream
import tornado.web

from ..db.events import job_stream
from ..db.job import Job
from ..db.store import Stored
from ..db.story import story
from ..drivers.driver import AgentDriver
from ..protocol.errors import Refusal
from ..protocol.ids import parse, split_jid
from ..protocol.redaction import REDACTED
from ..protocol.requests import JobList, JobLog, JobStory, RunCancel, RunMany, RunSimulation, RunSpec, RunStatusRequest, Trace
from ..runtime.log import Log
from .core.effects import ReplyRefusal, ReplyStatus
from .core.inputs import Cancel, Input, Now, Submit
from .core.status import missing, status
from .engine import Durable, Engine
from .feed import Feed, selector
from .metrics import Counters
from .outputs import Outputs
from .requests import check_spec, parse_body
from .trace import trace
from .why import why

KEEPALIVE_SECS = 15.0
#: Runs of one bulk request that are decided in one go; between these the loop serves others.
SLICE = 64


class Desk:
    """What handlers share: the way to the engine and back, and reads of durable state."""

    def __init__(
        self, engine: Engine, feed: Feed, outputs: Outputs, counters: Counters, log: Log, now: Callable[[], Now], *,
        user_root: str, apps: tuple[str, ...], drivers: dict[str, AgentDriver], evidence_root: str,
    ) -> None:
        self.engine, self.feed, self.outputs, self.counters, self.log, self.now = engine, feed, outputs, counters, log, now
        self.user_root, self.apps, self.drivers, self.evidence_root = user_root, apps, drivers, evidence_root
        self.draining = False
        self._handles = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        #: handles of bulk requests: they are told less, for describing a waiting run means counting who is ahead of it
        self._brief: set[int] = set()
        self._watchers: dict[str, set[asyncio.Event]] = {}

    # ---- effects

    def perform(self, effect: ReplyStatus | ReplyRefusal) -> None:
        future = self._waiting.pop(effect.handle, None)
        if future is None or future.done():
            return
        if isinstance(effect, ReplyRefusal):
            future.set_exception(effect.refusal)
            return
        entry = self.engine.durable(effect.jid)
        if effect.handle in self._brief:
            self._brief.discard(effect.handle)
            state = entry.job.status if entry is not None else "missing"
            future.set_result({"computeJid": effect.jid, "computeJobSerial": effect.serial, "state": state})
            return
        future.set_result(missing(effect.jid, "noRun") if entry is None else self.describe(entry, serial=effect.serial))

    def projected(self, job: Job) -> None:
        """A job changed durably: whoever waits for it looks again."""
        for event in self._watchers.get(job.jid, ()):
            event.set()

    # ---- requests

    async def submit(self, request: RunSimulation) -> dict[str, Any]:
        future, input_ = self._submission(request)
        self.engine.tell(input_)
        return await future

    async def submit_many(self, request: RunMany) -> list[dict[str, Any]]:
        """All in order; each is accepted or refused by itself."""
        futures: list[asyncio.Future[dict[str, Any]] | Refusal] = []
        for first in range(0, len(request.runs), SLICE):
            inputs: list[Input] = []
            for n, spec in enumerate(request.runs[first : first + SLICE], first):
                try:
                    future, input_ = self._submission(RunSimulation(req_id=f"{request.req_id}.{n}", run=spec))
                    self._brief.add(input_.handle)
                    futures.append(future)
                    inputs.append(input_)
                except Refusal as e:
                    self.counters.add("refused." + e.code)
                    futures.append(e)
            if inputs:
                self.engine.tell(*inputs)
            await asyncio.sleep(0)
        return [f.body() if isinstance(f, Refusal) else await _or_refusal(f) for f in futures]

    async def cancel(self, request: RunCancel) -> dict[str, Any]:
        handle, future = self._handle()
        self.engine.tell(Cancel(handle, request))
        return await future

    def _submission(self, request: RunSimulation) -> tuple[asyncio.Future[dict[str, Any]], Submit]:
        check_spec(request.run, self.apps)
        if request.run.driver not in self.drivers:
            raise Refusal("badRequest", f"there is no driver {request.run.driver!r}; there are: {', '.join(self.drivers)}")
        handle, future = self._handle()
        return future, Submit(handle, request, self._run_dir(request.run))

    def _handle(self) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        if self.draining:
            raise Refusal("draining", "the supervisor is stopping")
        handle = next(self._handles)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[handle] = future
        return handle, future

    def _run_dir(self, spec: RunSpec) -> str:
        return os.path.join(self.user_root, spec.uid, spec.simulation_type, spec.simulation_id, spec.compute_model)

    # ---- reads

    def job(self, uid: str, jid: str) -> Durable:
        """The durable job; not there and not yours are the same answer."""
        entry = self.engine.durable(jid) if split_jid(jid)[0] == uid else None
        if entry is None:
            raise Refusal("notFound", f"there is no job {jid}")
        return entry

    def describe(self, entry: Durable, *, hash_: str | None = None, serial: int = 0) -> dict[str, Any]:
        return status(self.engine.world, entry.job, entry.position, self.now(), hash_=hash_, serial=serial)

    async def status(self, request: RunStatusRequest) -> dict[str, Any]:
        """At once, or as soon as the run is over (at the latest after wait_secs)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_secs
        changed = asyncio.Event()
        watchers = self._watchers.setdefault(request.compute_jid, set())
        watchers.add(changed)
        try:
            while True:
                entry = self.job(request.uid, request.compute_jid)
                reply = self.describe(entry, hash_=request.compute_job_hash, serial=request.compute_job_serial)
                if reply["over"] or loop.time() >= deadline:
                    return reply
                changed.clear()
                await _wait(changed, deadline - loop.time())
        finally:
            watchers.discard(changed)
            if not watchers:
                self._watchers.pop(request.compute_jid, None)

    def why(self, request: RunStatusRequest) -> dict[str, Any]:
        entry = self.job(request.uid, request.compute_jid)
        reply = self.describe(entry, hash_=request.compute_job_hash, serial=request.compute_job_serial)
        run = entry.job.run
        tasks = run.attempts[-1].tasks if run and run.attempts else ()
        folder = os.path.join(self.evidence_root, str(tasks[0].agent_key), "run", tasks[0].token.name) if tasks else None
        return {**why(reply, entry.job, folder), "status": reply}


async def _wait(event: asyncio.Event, secs: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), max(0.0, secs))
    except TimeoutError:
        return  # the caller looks at the clock


async def _or_refusal(future: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
    try:
        return await future
    except Refusal as e:
        return e.body()


class ServerReq:
    """Who asks for what, as the log shows it."""

    def __init__(self, api: str, jid: str) -> None:
        self.api, self.jid = api, jid

    def pkdebug_str(self) -> str:
        return f"ServerReq(api_{self.api}, {self.jid})"


class _Handler(tornado.web.RequestHandler):
    """One route: what every answer has in common."""

    def initialize(self, desk: Desk, secret: str, action: Callable[["_Handler"], Awaitable[Any]], open_: bool = False) -> None:
        self.desk, self._secret, self._action, self._open = desk, secret, action, open_

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")

    async def post(self) -> None:
        await self._answer("POST")

    async def get(self) -> None:
        await self._answer("GET")

    async def _answer(self, method: str) -> None:
        try:
            self._authenticate()
            body = await self._action(self)
            if body is not None:
                self._json(200, body)
        except Refusal as e:
            self.desk.counters.add("refused." + e.code)
            self.desk.log("{} {} refused: {}", method, self.request.path, e.sentence)
            self._json(e.http, e.body())
        except (tornado.iostream.StreamClosedError, asyncio.CancelledError):
            raise
        except Exception as e:
            self.desk.counters.add("internal")
            self.desk.log.exception("{} {} failed", method, self.request.path, error=e)
            self._json(500, Refusal("internal", "something went wrong inside; the log has it").body())

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
        return parse_body(self.request.body, type_)

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
    entry = h.desk.job(request.uid, request.compute_jid)
    chunk = await h.desk.outputs.read(entry.job, request)
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
    wanted = selector(parse("uid", uid) if uid else None, parse("computeJid", jid) if jid else None)
    h.set_header("Content-Type", "text/event-stream")
    h.set_header("X-Accel-Buffering", "no")
    await h.flush()
    pages: AsyncIterator[list[Stored]] = h.desk.feed.follow(after, wanted, KEEPALIVE_SECS)
    try:
        async for page in pages:
            h.write("".join(map(_sse, page)) if page else ": nothing new\n\n")
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
    try:
        after = int(text)
    except ValueError:
        raise Refusal("badRequest", f"a position is a number; got {ascii(text)[:40]}") from None
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


