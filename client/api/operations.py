"""The operations of both clients, each written once as a generator of steps. No I/O, no clock.

An operation yields a step and gets its result. A step that fails raises ClientError inside the
operation. `Client` and `AsyncClient` perform the steps.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from ...protocol.api.requests import BeginSession, CallRequest, GlobalResources, RunFiles, RunSpec
from ...protocol.jobs.registry_login import RegistryLogin
from ...protocol.wire.messages import JobCmd, Stream
from . import random_ids, requests
from .cursors import LogCursor, PollBackoff
from .errors import ClientError, from_body, is_error, own
from .replies import GroupState, JobPage, RunState
from .requests import LONG_POLL_SECS, Call, Headers
from .run_specs import command_spec

#: Number of runs of a group in one answer.
GROUP_PAGE = 1000


class Answer(Protocol):
    """The result of the step `Call`."""

    @property
    def headers(self) -> Headers: ...

    @property
    def body(self) -> bytes: ...


class Once(msgspec.Struct, frozen=True):
    """Send a call that must not be sent twice. Result: the body."""

    call: Call


class GetUid(msgspec.Struct, frozen=True):
    """Result: the user of the client."""


class GetTime(msgspec.Struct, frozen=True):
    """Result: monotonic seconds."""


class Pause(msgspec.Struct, frozen=True):
    secs: float


class Part(msgspec.Struct, frozen=True):
    """One value for the caller of an operation that yields several."""

    value: Any


Step = Call | Once | GetUid | GetTime | Pause | Part
Object = dict[str, Any]
_T = TypeVar("_T")
_P = ParamSpec("_P")
Steps = Generator[Step, Any, _T]


class Progress(Generic[_T]):
    """An operation in progress. step: to be performed next; None at the end, with `result`."""

    result: _T

    def __init__(self, steps: Steps[_T]) -> None:
        self._steps = steps
        self.step: Step | None = None
        self._advance(lambda: next(steps))

    def resume(self, outcome: object) -> None:
        """Continue with the result of the step, or with its ClientError."""
        if isinstance(outcome, ClientError):
            self._advance(lambda: self._steps.throw(outcome))
        else:
            self._advance(lambda: self._steps.send(outcome))

    def _advance(self, resume: Callable[[], Step]) -> None:
        try:
            self.step = resume()
        except StopIteration as e:
            self.step, self.result = None, e.value


# ---- one request


def ask(call: Call) -> Steps[Object]:
    """Return the JSON object of the answer."""
    reply: Answer = yield call
    return requests.object_of(reply.body)


def for_user(
    request: Callable[Concatenate[str, _P], Call], *args: _P.args, **options: _P.kwargs
) -> Steps[Object]:
    """Return the JSON object of the answer to a request of the client's user."""
    uid: str = yield GetUid()
    return (yield from ask(request(uid, *args, **options)))


def for_users(request: Callable[[str | None], Call], all_users: bool) -> Steps[Object]:
    """Return the JSON object of the answer to a request about this user, or all users."""
    uid: str | None = None if all_users else (yield GetUid())
    return (yield from ask(request(uid)))


def field(name: str, answer: Steps[Object]) -> Steps[Any]:
    """Return one field of the answer."""
    return (yield from answer)[name]


def state(answer: Steps[Object]) -> Steps[RunState]:
    return requests.state_from((yield from answer))


# ---- runs


def spec(command: Sequence[str], options: dict[str, Any]) -> Steps[RunSpec]:
    uid: str = yield GetUid()
    sid = options.pop("simulation_id", None) or random_ids.simulation_id()
    return command_spec(uid, sid, command, options)


def submit_run(
    spec: RunSpec, *, force_run: bool = False, serial: int = 0, req_id: str | None = None
) -> Steps[RunState]:
    req_id = req_id or random_ids.req_id()
    return state(ask(requests.run_simulation(spec, req_id, force_run=force_run, serial=serial)))


def run_many(specs: Sequence[RunSpec]) -> Steps[list[RunState | ClientError]]:
    if not specs:
        return []
    runs = (yield from ask(requests.run_many(specs, random_ids.req_id()))).get("runs")
    if not isinstance(runs, list) or len(runs) != len(specs):
        raise own("notASupervisor", "the answer to run-many does not name each run")
    return list(map(_submitted, runs))


def submit_description(
    description: object, req_id: str | None, credentials: Mapping[str, RegistryLogin]
) -> Steps[dict[str, list[RunState | ClientError]]]:
    req_id = req_id or random_ids.req_id()
    body = yield from for_user(requests.run_description, description, req_id, credentials)
    return {name: list(map(_submitted, runs)) for name, runs in requests.runs_by_job(body).items()}


def _submitted(answer: Object) -> RunState | ClientError:
    return from_body(answer) if is_error(answer) else requests.state_from(answer)


def status(jid: str, serial: int, wait_secs: float, hash_: str | None = None) -> Steps[RunState]:
    return state(for_user(requests.run_status, jid, serial, wait_secs, hash_))


def wait(jid: str, serial: int, timeout: float | None) -> Steps[RunState]:
    return _wait(lambda secs: status(jid, serial, secs), lambda state: state.finished, timeout)


def cancel(jid: str, serial: int, reason: str) -> Steps[RunState]:
    return state(for_user(requests.run_cancel, jid, random_ids.req_id(), serial, reason))


def _wait(
    poll: Callable[[float], Steps[_T]], over: Callable[[_T], bool], timeout: float | None
) -> Steps[_T]:
    """Send long polls until the state is over, or for `timeout` seconds. Return the last state."""
    begun: float = yield GetTime()
    end = None if timeout is None else begun + timeout
    backoff = PollBackoff()
    while True:
        left = LONG_POLL_SECS if end is None else end - begun
        state = yield from poll(left)
        if over(state) or left <= 0:
            return state
        now: float = yield GetTime()
        pause = backoff.after(now - begun)
        yield Pause(pause if end is None else max(0.0, min(pause, end - now)))
        begun = yield GetTime()


# ---- groups


def submit_array(spec: RunSpec, indices: str, req_id: str | None) -> Steps[Object]:
    return ask(requests.run_array(spec, indices, req_id or random_ids.req_id()))


def group(
    sid: str, status: str | None, after: str | None, limit: int, wait_secs: float
) -> Steps[GroupState]:
    uid: str = yield GetUid()
    request = requests.group_request(uid, sid, status, after, limit, wait_secs)
    reply: Answer = yield requests.job_group(request)
    return requests.group_state(reply.body)


def group_runs(sid: str, status: str | None) -> Steps[None]:
    """Emit each GroupRun."""
    after: str | None = None
    while True:
        page = yield from group(sid, status, after, GROUP_PAGE, 0.0)
        for run in page.runs:
            yield Part(run)
        after = page.next
        if after is None:
            return


def wait_group(sid: str, timeout: float | None) -> Steps[GroupState]:
    return _wait(lambda secs: group(sid, None, None, 0, secs), lambda state: state.over, timeout)


def cancel_group(
    sid: str,
    indices: str | None,
    models: Sequence[str] | None,
    status: str | None,
    reason: str,
    req_id: str | None,
) -> Steps[Object]:
    uid: str = yield GetUid()
    request = requests.cancel_request(
        uid, sid, req_id or random_ids.req_id(), indices, models, status, reason
    )
    return (yield from ask(requests.group_cancel(request)))


# ---- apps


def apps() -> Steps[list[str]]:
    return [str(name) for name in (yield from ask(requests.apps())).get("apps", [])]


def begin_session(driver: str) -> Steps[Object]:
    return for_user(lambda uid: requests.begin_session(BeginSession(uid=uid, driver=driver)))


def call(job_cmd: JobCmd, simulation_type: str, fields: dict[str, Any]) -> Steps[bytes]:
    uid: str = yield GetUid()
    reply: Answer = yield requests.call(
        CallRequest(uid=uid, job_cmd=job_cmd, simulation_type=simulation_type, **fields)
    )
    return reply.body


def global_resources(
    simulation_type: str, simulation_id: str, ports: int, release: bool
) -> Steps[Object]:
    return for_user(
        lambda uid: requests.global_resources(
            GlobalResources(
                uid=uid,
                simulation_type=simulation_type,
                simulation_id=simulation_id,
                ports=ports,
                release=release,
            )
        )
    )


# ---- clusters


def sign_in(username: str, cluster: str | None, secrets: dict[str, str | None]) -> Steps[Object]:
    # this request also finds a restarted supervisor
    there = yield from for_user(requests.sbatch_login_status, cluster)
    ready = bool(there.get("ready"))
    if ready and (there.get("access") != "ssh" or there.get("user") in (None, username)):
        return {**there, "loginSuccess": True}
    if ready:  # the request will be refused, so it needs no secret
        secrets = {}
    uid: str = yield GetUid()
    body: bytes = yield Once(requests.sbatch_login(uid, cluster, username, secrets))
    return requests.object_of(body)


# ---- files


def files(jid: str, serial: int) -> Steps[None]:
    """Emit the description of each file."""
    uid: str = yield GetUid()
    after: str | None = ""
    while after is not None:
        request = RunFiles(uid=uid, compute_jid=jid, compute_job_serial=serial, after=after)
        page = yield from ask(requests.run_files(request))
        serial, after = page["computeJobSerial"], page["next"]
        for file in page["files"]:
            yield Part(file)


def lib_files(simulation_type: str) -> Steps[list[Object]]:
    files: list[Object] = (yield from for_user(requests.lib_files, simulation_type)).get(
        "files", []
    )
    return files


# ---- queries


def jobs(
    all_users: bool,
    status: str | None,
    active: bool | None,
    before: int | None,
    limit: int,
    commands: bool,
    tags: Sequence[str],
) -> Steps[JobPage]:
    uid: str | None = None if all_users else (yield GetUid())
    request = requests.job_page(uid, status, active, before, limit, commands, tags)
    reply: Answer = yield requests.job_list(request)
    return requests.page_of(reply.body)


def tag(jid: str, add: Sequence[str], remove: Sequence[str]) -> Steps[list[str]]:
    tags: list[str] = (yield from for_user(requests.job_tag, jid, add, remove))["tags"]
    return tags


def logs(jid: str, stream: Stream, notes: bool, options: dict[str, Any]) -> Steps[None]:
    """Emit each LogPart. options: of LogCursor."""
    uid: str = yield GetUid()
    cursor = LogCursor(uid, jid, stream, **options)
    backoff = PollBackoff()
    while not cursor.done:
        begun: float = yield GetTime()
        reply: Answer = yield requests.job_log(cursor.request())
        part = requests.log_part(stream, reply.headers, reply.body)
        cursor.took(part)
        if part.data or part.dropped or (notes and part.note):
            backoff.reset()
            yield Part(part)
        if cursor.idle:
            if (yield from status(jid, 0, 0.0)).finished:
                cursor.run_over()
            else:
                now: float = yield GetTime()
                yield Pause(backoff.after(now - begun))


# ---- access


def own_uid() -> Steps[str]:
    """Return the user of the API token. Raises ClientError("badRequest") for the server secret."""
    uid = (yield from ask(requests.whoami())).get("uid")
    if not isinstance(uid, str):
        raise requests.bad_request("the server secret belongs to no user; name the user (uid)")
    return uid


def create_token(name: str, scopes: Sequence[str], expires_secs: float | None) -> Steps[Object]:
    uid: str = yield GetUid()
    body: bytes = yield Once(requests.token_create(uid, name, scopes, expires_secs))
    return requests.object_of(body)


def device_token() -> Steps[Object]:
    body: bytes = yield Once(requests.device_token())
    return requests.object_of(body)


def debug_attach(jid: str, id_: str) -> Steps[Object]:
    uid: str = yield GetUid()
    body: bytes = yield Once(requests.debug_attach(uid, jid, id_))
    return requests.object_of(body)


def debug_io(session: str, data: str, limit: int, wait_secs: float, close: bool) -> Steps[Object]:
    uid: str = yield GetUid()
    body: bytes = yield Once(requests.debug_io(uid, session, data, limit, wait_secs, close))
    return requests.object_of(body)


def audit(since_secs: float | None, actor: str | None) -> Steps[None]:
    """Emit each audit event."""
    after: int | None = 0
    while after is not None:
        page = yield from ask(requests.audit(after, since_secs, actor))
        for event in page["events"]:
            yield Part(event)
        after = page["next"]


# ---- operators


def agent_logs(
    agent: str, uid: str | None, keeper: bool, previous: bool, offset: int, tail: int
) -> Steps[Object]:
    part = "keeper" if keeper else "agent"
    return ask(requests.agent_logs(agent, uid, part, previous, offset, tail))


def drain(begin: bool, host: str | None, driver: str | None, reason: str) -> Steps[list[Object]]:
    """Return the drains after a change. driver: None for that of the pool with the host, or of its
    drain. Raises ClientError: notFound, badRequest for a host of several drivers.
    """
    if host is not None and driver is None:
        known = yield from ask(requests.pool() if begin else requests.drains())
        rows = known["hosts" if begin else "drains"]
        found = sorted({row["driver"] for row in rows if row["host"] == host})
        if len(found) > 1:
            raise requests.bad_request(
                f"{host} is a host of {' and '.join(found)}; name the driver"
            )
        driver = found[0] if found else "local"
    reply = yield from ask(requests.drain(begin, driver or "", host or "", reason))
    drains: list[Object] = reply["drains"]
    return drains
