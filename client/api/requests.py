"""What the client sends and how it reads the answers; both clients, plain and asynchronous, are
made of this. No I/O, no clock.

A `Call` is one HTTP request. It is built once and sent as often as needed: its reqId makes that
safe.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec

from ...protocol.api.requests import (
    AgentList,
    AgentLogs,
    AgentStop,
    BeginSession,
    CallRequest,
    ClusterList,
    GlobalResources,
    GroupCancel,
    JobGroup,
    JobList,
    JobLog,
    JobMetrics,
    JobStory,
    JobTasks,
    RunArray,
    RunCancel,
    RunDescription,
    RunFile,
    RunFiles,
    RunMany,
    RunPlan,
    RunRelease,
    RunSimulation,
    RunSpec,
    RunStatusRequest,
    SbatchLogin,
    SbatchLoginStatus,
    SbatchLogout,
    Trace,
)
from ...protocol.errors import CODES
from .errors import ClientError, own
from .replies import GroupState, JobPage, LoggedEvent, LogPart, RunState
from .server_sent_events import Message

#: How long one request may be held open by the supervisor when it has nothing to say yet.
LONG_POLL_SECS = 20.0
LOG_LIMIT = 256 * 1024
#: An answer of an app may take so long where its request has no deadline; on top of it comes the
#: start of its agent.
CALL_SECS, AGENT_SECS = 60.0, 40.0
#: Thousands of runs have to be durable before they are answered.
BULK_SECS = 60.0
#: Files of a library may have to be read to be described.
LIBRARY_SECS = 60.0
#: What a site may take to let somebody in.
SIGN_IN_SECS = 150.0
#: The longest that a target of notifications may take for one, and a little.
NOTIFY_SECS = 620.0
#: What the caller of an app wants to hear at once: to try again would be to wait as long again, or
#: to add to the crowd.
_AT_ONCE = frozenset({"deadline", "notReady", "tooManyRequests"})


class Headers(Protocol):
    """What both clients' headers can do: find a key in any case."""

    def __getitem__(self, name: str, /) -> str | None: ...

    def get(self, name: str, /) -> str | None: ...


class Call(msgspec.Struct, frozen=True):
    """path with its query; body is JSON. wait_secs: for how long the supervisor was asked to hold
    the answer back.

    at_once: codes with which it is not sent again, although it could be.
    """

    path: str
    body: bytes | None
    wait_secs: float = 0.0
    method: str = "POST"
    at_once: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        # a body may hold a password
        return f"Call({self.method} {self.path.partition('?')[0]})"


def bad_request(sentence: str) -> ClientError:
    code = CODES["badRequest"]
    return ClientError("badRequest", sentence, code.advice, code.retry)


def run_simulation(spec: RunSpec, req_id: str, *, force_run: bool = False, serial: int = 0) -> Call:
    return _post(
        "run-simulation",
        RunSimulation(req_id=req_id, run=spec, force_run=force_run, compute_job_serial=serial),
    )


def run_many(specs: Sequence[RunSpec], req_id: str) -> Call:
    return _post("run-many", RunMany(req_id=req_id, runs=tuple(specs)))


def run_description(uid: str, description: object, req_id: str) -> Call:
    """Raises ClientError("badRequest") for what JSON cannot say."""
    try:
        return _post(
            "run-description",
            RunDescription(req_id=req_id, uid=uid, description=description),
            BULK_SECS,
        )
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise bad_request(f"the description cannot be sent: {e}") from None


def run_plan(spec: RunSpec) -> Call:
    return _post("run-plan", RunPlan(run=spec))


def run_status(
    uid: str, jid: str, serial: int = 0, wait_secs: float = 0.0, hash_: str | None = None
) -> Call:
    wait_secs = max(0.0, min(wait_secs, LONG_POLL_SECS))
    request = RunStatusRequest(
        uid=uid,
        compute_jid=jid,
        compute_job_hash=hash_,
        compute_job_serial=serial,
        wait_secs=wait_secs,
    )
    return _post("run-status", request, wait_secs)


def run_cancel(uid: str, jid: str, req_id: str, serial: int = 0, reason: str = "") -> Call:
    return _post(
        "run-cancel",
        RunCancel(
            req_id=req_id, uid=uid, compute_jid=jid, compute_job_serial=serial, reason=reason
        ),
    )


def run_release(
    uid: str, jid: str, serial: int = 0, role: str | None = None, index: int | None = None
) -> Call:
    """Raises ClientError("badRequest") where something does not have its shape."""
    fields = {
        "uid": uid,
        "computeJid": jid,
        "computeJobSerial": serial,
        "role": role,
        "index": index,
    }
    return _post("run-release", _shaped(fields, RunRelease))


def run_array(spec: RunSpec, indices: str, req_id: str) -> Call:
    return _post("run-array", RunArray(req_id=req_id, run=spec, indices=indices), BULK_SECS)


def group_request(
    uid: str, sid: str, status: str | None, after: str | None, limit: int, wait_secs: float
) -> JobGroup:
    """Raises ClientError("badRequest") where something does not have its shape."""
    fields = {"uid": uid, "simulationId": sid, "status": status, "after": after, "limit": limit}
    made: JobGroup = _shaped(fields, JobGroup)
    return msgspec.structs.replace(made, wait_secs=wait_secs)


def cancel_request(
    uid: str,
    sid: str,
    req_id: str,
    indices: str | None,
    models: Sequence[str] | None,
    status: str | None,
    reason: str,
) -> GroupCancel:
    """The same for a cancel."""
    fields = {
        "uid": uid,
        "simulationId": sid,
        "reqId": req_id,
        "indices": indices,
        "models": models,
        "status": status,
        "reason": reason,
    }
    made: GroupCancel = _shaped(fields, GroupCancel)
    return made


def job_group(request: JobGroup) -> Call:
    wait_secs = max(0.0, min(request.wait_secs, LONG_POLL_SECS))
    return _post("job-group", msgspec.structs.replace(request, wait_secs=wait_secs), wait_secs)


def group_cancel(request: GroupCancel) -> Call:
    return _post("group-cancel", request, BULK_SECS)


def job_page(
    uid: str | None,
    status: Any,
    active: bool | None,
    before: int | None,
    limit: int,
    commands: bool,
) -> JobList:
    return JobList(
        uid=uid,
        status=status,
        active=active,
        before=before,
        limit=limit,
        commands=True if commands else msgspec.UNSET,
    )


def job_list(request: JobList) -> Call:
    return _post("job-list", request)


def job_log(request: JobLog) -> Call:
    return _post("job-log", request, request.wait_secs)


def job_metrics(
    uid: str, jid: str, serial: int, series: bool, role: str | None, index: int | None
) -> Call:
    request = JobMetrics(
        uid=uid, compute_jid=jid, compute_job_serial=serial, series=series, role=role, index=index
    )
    return _post("job-metrics", request)


def job_tasks(uid: str, jid: str, serial: int = 0, attempt: int = 0) -> Call:
    return _post(
        "job-tasks", JobTasks(uid=uid, compute_jid=jid, compute_job_serial=serial, attempt=attempt)
    )


def job_story(uid: str, jid: str) -> Call:
    return _post("job-story", JobStory(uid=uid, compute_jid=jid))


def job_why(uid: str, jid: str) -> Call:
    return _post("job-why", RunStatusRequest(uid=uid, compute_jid=jid))


def trace(id_: str, uid: str | None, logs: bool) -> Call:
    return _post("trace", Trace(id=id_, uid=uid, logs=logs))


def call(request: CallRequest) -> Call:
    made = _post("call", request, (request.deadline_secs or CALL_SECS) + AGENT_SECS)
    return msgspec.structs.replace(made, at_once=_AT_ONCE)


def begin_session(request: BeginSession) -> Call:
    return _post("begin-session", request)


def global_resources(request: GlobalResources) -> Call:
    return _post("global-resources", request)


def run_file(request: RunFile) -> Call:
    return msgspec.structs.replace(_post("run-file", request, AGENT_SECS), at_once=_AT_ONCE)


def run_files(request: RunFiles) -> Call:
    return msgspec.structs.replace(_post("run-files", request, AGENT_SECS), at_once=_AT_ONCE)


def sbatch_login(
    uid: str, cluster: str | None, username: str, secrets: Mapping[str, str | None]
) -> Call:
    """To be sent once. secrets: fields of SbatchLogin by their Python names. Raises
    ClientError("badRequest"), which shows none of them.
    """
    try:
        request = SbatchLogin(
            uid=uid, cluster=cluster, username=username, **{k: v for k, v in secrets.items() if v}
        )
        return _post(
            "sbatch-login", msgspec.convert(msgspec.to_builtins(request), SbatchLogin), SIGN_IN_SECS
        )
    except (msgspec.ValidationError, UnicodeEncodeError) as e:
        place = str(e).rpartition("`$.")[2].rstrip("`") if "`$." in str(e) else "what was typed"
        raise bad_request(
            f"this is not what one signs in with: {place} does not have its form"
        ) from None


def sbatch_logout(uid: str, cluster: str | None) -> Call:
    """Raises ClientError("badRequest") where something does not have its shape."""
    return _post(
        "sbatch-logout", _shaped({"uid": uid, "cluster": cluster}, SbatchLogout), SIGN_IN_SECS
    )


def clusters(uid: str) -> Call:
    return _post("clusters", ClusterList(uid=uid))


def sbatch_login_status(uid: str, cluster: str | None) -> Call:
    """Raises ClientError("badRequest") where something does not have its shape."""
    return _post(
        "sbatch-login-status", _shaped({"uid": uid, "cluster": cluster}, SbatchLoginStatus)
    )


def apps() -> Call:
    return Call("/api/apps", None, method="GET")


def agents(uid: str | None) -> Call:
    return _post("agents", AgentList(uid=uid))


def agent_stop(agent: str, uid: str | None) -> Call:
    return _post("agent-stop", AgentStop(agent=agent, uid=uid))


def agent_logs(
    agent: str, uid: str | None, part: Any, previous: bool, offset: int, tail: int
) -> Call:
    return _post(
        "agent-logs",
        AgentLogs(agent=agent, uid=uid, part=part, previous=previous, offset=offset, tail=tail),
    )


def pool() -> Call:
    return Call("/api/pool", None, method="GET")


def health() -> Call:
    return Call("/health", None, method="GET")


def pool_check() -> Call:
    """Every host is asked, which may take its time."""
    return Call("/api/pool-check", None, BULK_SECS, method="GET")


def notify() -> Call:
    return Call("/api/notify", None, method="GET")


def notify_test(name: str) -> Call:
    """Each is a message to somebody: one that is refused for now is not sent again."""
    return Call(
        "/api/notify-test", msgspec.json.encode({"name": name}), NOTIFY_SECS, at_once=_AT_ONCE
    )


def notify_retry(name: str) -> Call:
    return Call("/api/notify-retry", msgspec.json.encode({"name": name}))


def lib_files(uid: str, simulation_type: str) -> Call:
    return Call(
        "/api/lib-files?" + urlencode({"uid": uid, "simulationType": simulation_type}),
        None,
        LIBRARY_SECS,
        "GET",
    )


def lib_file(uid: str, simulation_type: str, name: str, method: str) -> Call:
    query = urlencode({"uid": uid, "simulationType": simulation_type, "name": name})
    return Call("/api/lib-file?" + query, None, LIBRARY_SECS, method)


def events_path(after: int, uid: str | None, jid: str | None) -> str:
    query = {"after": after, "uid": uid, "computeJid": jid}
    return "/api/events?" + urlencode({k: v for k, v in query.items() if v is not None})


def _post(name: str, request: msgspec.Struct, wait_secs: float = 0.0) -> Call:
    return Call(path=f"/api/{name}", body=msgspec.json.encode(request), wait_secs=wait_secs)


def object_of(raw: bytes) -> dict[str, Any]:
    """The JSON object of a successful reply. Raises ClientError("notASupervisor")."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    if not isinstance(body, dict):
        raise own("notASupervisor", "the answer is not a JSON object")
    return body


def state_of(raw: bytes) -> RunState:
    return state_from(object_of(raw))


def state_from(body: dict[str, Any]) -> RunState:
    state: RunState = _converted(body, RunState)
    return msgspec.structs.replace(state, raw=body)


def group_state(raw: bytes) -> GroupState:
    body = object_of(raw)
    state: GroupState = _converted(body, GroupState)
    return msgspec.structs.replace(state, raw=body)


def runs_by_job(body: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What became of the runs of each job of a description. Raises ClientError."""
    jobs: dict[str, list[dict[str, Any]]] = _converted(
        body.get("jobs"), dict[str, list[dict[str, Any]]]
    )
    return jobs


def page_of(raw: bytes) -> JobPage:
    page: JobPage = _converted(object_of(raw), JobPage)
    for row in page.jobs:
        # a supervisor of the version before says `status` only
        row.setdefault("state", row.get("status"))
    return page


class _Note(msgspec.Struct, frozen=True):
    word: str
    sentence: str


def log_part(stream: str, headers: Headers, data: bytes) -> LogPart:
    """A piece of a log. Whose it is, is told where something was placed already."""
    try:
        offset, next_offset, dropped = (
            int(headers[f"X-Jobscribe-{k}"] or "") for k in ("Offset", "Next-Offset", "Dropped")
        )
        part = LogPart(
            stream=stream,
            data=data,
            offset=offset,
            next_offset=next_offset,
            dropped=dropped,
            end=headers["X-Jobscribe-End"] == "true",
        )
        if said := headers.get("X-Jobscribe-Note"):
            note = msgspec.json.decode(said, type=_Note)
            part = msgspec.structs.replace(part, note=note.word, sentence=note.sentence)
        attempt, role, index = (
            headers.get(f"X-Jobscribe-{k}") for k in ("Attempt", "Role", "Index")
        )
        if not attempt or not role or not index:
            return part
        return msgspec.structs.replace(part, attempt=int(attempt), role=role, index=int(index))
    except (KeyError, ValueError, msgspec.DecodeError):
        raise own(
            "notASupervisor", "an answer to job-log without its X-Jobscribe headers"
        ) from None


def logged_event(message: Message) -> LoggedEvent:
    try:
        return msgspec.json.decode(message.data.encode(), type=LoggedEvent)
    except msgspec.DecodeError as e:
        raise own("notASupervisor", f"the stream of events holds something else: {e}") from None


def _shaped(fields: dict[str, Any], type_: Any) -> Any:
    try:
        return msgspec.convert(fields, type_)
    except msgspec.ValidationError as e:
        raise bad_request(str(e)) from None


def _converted(body: Any, type_: Any) -> Any:
    try:
        return msgspec.convert(body, type_)
    except msgspec.ValidationError as e:
        code = CODES["malformed"]
        raise ClientError(
            "malformed", f"the supervisor's answer is not understood: {e}", code.advice, code.retry
        ) from None
