"""The requests of both clients, and the decoding of answers. No I/O, no clock.

A `Call` is one HTTP request. It is built once and may be sent several times; its reqId makes
repetitions safe.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec

from ...protocol.api.requests import (
    AgentList,
    AgentLogs,
    AgentStop,
    AuditPage,
    BeginSession,
    CallRequest,
    ClusterList,
    DebugAttach,
    DebugIo,
    DebugList,
    DeviceStart,
    DiskReport,
    GlobalResources,
    GroupCancel,
    JobCore,
    JobGroup,
    JobList,
    JobLog,
    JobMetrics,
    JobStory,
    JobTag,
    JobTasks,
    PutRunFile,
    RunArray,
    RunCancel,
    RunDescription,
    RunFile,
    RunFileDigest,
    RunFilePart,
    RunFiles,
    RunMany,
    RunPlan,
    RunPurge,
    RunRelease,
    RunSimulation,
    RunSpec,
    RunStatusRequest,
    SbatchLogin,
    SbatchLoginStatus,
    SbatchLogout,
    ShellOpen,
    ShellUse,
    TokenCreate,
    TokenList,
    TokenRevoke,
    Trace,
    UsageGroup,
    UsageReport,
)
from ...protocol.api.site_requests import DrainChange, Handover
from ...protocol.errors import CODES, Refusal
from ...protocol.ids import parse
from ...protocol.jobs.registry_login import RegistryLogin
from ...runtime.struct_types import resolve
from .errors import ClientError, own
from .replies import GroupState, JobPage, LoggedEvent, LogPart, RunState
from .server_sent_events import Message

#: How long an agent may take to reach a debugger.
ATTACH_SECS = 40.0
#: Longest time of a long poll.
LONG_POLL_SECS = 20.0
LOG_LIMIT = 256 * 1024
#: Time limit of a call without a deadline, and of the start of its agent before it.
CALL_SECS, AGENT_SECS = 60.0, 40.0
#: Time limit of requests for many runs, which must be durable before the answer.
BULK_SECS = 60.0
#: Time limit of library requests, which may read whole files.
LIBRARY_SECS = 60.0
#: Seconds that a pass over all folders may take, and an exchange of the event log.
SWEEP_SECS, EXCHANGE_SECS = 3600.0, 600.0
#: Time limit of a sign-in.
SIGN_IN_SECS = 150.0
#: Time limit of a test notification: the longest time limit of a target, and 20 s.
NOTIFY_SECS = 620.0
#: Codes after which an app call is not retried: a retry would double the waiting time or the load.
_AT_ONCE = frozenset({"deadline", "notReady", "tooManyRequests"})


class Headers(Protocol):
    """HTTP headers of both clients, with case-insensitive names."""

    def __getitem__(self, name: str, /) -> str | None: ...

    def get(self, name: str, /) -> str | None: ...


class Call(msgspec.Struct, frozen=True):
    """One HTTP request. path: with its query. body: JSON. wait_secs: how long the supervisor may
    delay the answer. at_once: codes for which it is not sent again. headers: of this request only.
    """

    path: str
    body: bytes | None
    wait_secs: float = 0.0
    method: str = "POST"
    at_once: frozenset[str] = frozenset()
    headers: Mapping[str, str] = {}

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


def run_description(
    uid: str, description: object, req_id: str, credentials: Mapping[str, RegistryLogin]
) -> Call:
    """Raises ClientError("badRequest") for values that JSON cannot express."""
    try:
        return _post(
            "run-description",
            RunDescription(
                req_id=req_id,
                uid=uid,
                description=description,
                credentials=dict(credentials) or msgspec.UNSET,
            ),
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
    """Raises ClientError("badRequest") for invalid values."""
    fields = {
        "uid": uid,
        "computeJid": jid,
        "computeJobSerial": serial,
        "role": role,
        "index": index,
    }
    return _post("run-release", _shaped(fields, RunRelease))


def run_purge(uid: str, jid: str, serial: int = 0) -> Call:
    """Raises ClientError("badRequest") for invalid values."""
    return _post(
        "run-purge", _shaped({"uid": uid, "computeJid": jid, "computeJobSerial": serial}, RunPurge)
    )


def job_tag(uid: str, jid: str, add: Sequence[str], remove: Sequence[str]) -> Call:
    """Raises ClientError("badRequest") for invalid values."""
    fields = {"uid": uid, "computeJid": jid, "add": _tags(add), "remove": _tags(remove)}
    return _post("job-tag", _shaped(fields, JobTag))


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(parse("tag", tag) for tag in tags)
    except Refusal as e:
        raise bad_request(e.sentence) from None


def run_array(spec: RunSpec, indices: str, req_id: str) -> Call:
    return _post("run-array", RunArray(req_id=req_id, run=spec, indices=indices), BULK_SECS)


def group_request(
    uid: str, sid: str, status: str | None, after: str | None, limit: int, wait_secs: float
) -> JobGroup:
    """Raises ClientError("badRequest") for invalid values."""
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
    """Raises ClientError("badRequest") for invalid values."""
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
    tags: Sequence[str] = (),
) -> JobList:
    """Raises ClientError("badRequest") for an invalid tag."""
    return JobList(
        uid=uid,
        status=status,
        active=active,
        before=before,
        limit=limit,
        commands=True if commands else msgspec.UNSET,
        tags=_tags(tags) if tags else msgspec.UNSET,
    )


def job_list(request: JobList) -> Call:
    return _post("job-list", request)


def job_log(request: JobLog) -> Call:
    return _post("job-log", request, request.wait_secs)


def job_core(request: JobCore) -> Call:
    return _post("job-core", request, AGENT_SECS)


def job_metrics(
    uid: str,
    jid: str,
    serial: int,
    series: bool,
    role: str | None,
    index: int | None,
    attempt: int,
) -> Call:
    request = JobMetrics(
        uid=uid,
        compute_jid=jid,
        compute_job_serial=serial,
        attempt=attempt,
        series=series,
        role=role,
        index=index,
    )
    return _post("job-metrics", request)


def usage(uid: str | None, since: str | None, until: str | None, by: Sequence[UsageGroup]) -> Call:
    """Raises ClientError("badRequest") for invalid values."""
    fields = {"uid": uid, "since": since, "until": until, "by": list(by)}
    return _post("usage", _shaped(fields, UsageReport))


def disk_usage(uid: str | None) -> Call:
    return _post("disk-usage", DiskReport(uid=uid))


def job_tasks(uid: str, jid: str, serial: int = 0, attempt: int = 0) -> Call:
    return _post(
        "job-tasks", JobTasks(uid=uid, compute_jid=jid, compute_job_serial=serial, attempt=attempt)
    )


def shell_open(uid: str, jid: str, shell_id: str, options: Mapping[str, Any]) -> Call:
    return _post("shell-open", ShellOpen(uid=uid, compute_jid=jid, shell_id=shell_id, **options))


def shell_use(uid: str, jid: str, shell_id: str, options: Mapping[str, Any]) -> Call:
    request = ShellUse(uid=uid, compute_jid=jid, shell_id=shell_id, **options)
    return _post("shell-use", request, request.wait_secs)


def job_story(uid: str, jid: str) -> Call:
    return _post("job-story", JobStory(uid=uid, compute_jid=jid))


def job_why(uid: str, jid: str) -> Call:
    return _post("job-why", RunStatusRequest(uid=uid, compute_jid=jid))


def debug_list(uid: str, jid: str | None) -> Call:
    return _post("debug-list", DebugList(uid=uid, compute_jid=jid))


def debug_attach(uid: str, jid: str, id_: str) -> Call:
    return _post("debug-attach", DebugAttach(uid=uid, compute_jid=jid, id=id_), ATTACH_SECS)


def debug_io(uid: str, session: str, data: str, limit: int, wait_secs: float, close: bool) -> Call:
    request = DebugIo(
        uid=uid, session=session, data=data, limit=limit, wait_secs=wait_secs, close=close
    )
    return _post("debug-io", request, wait_secs)


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


def run_file_digest(request: RunFileDigest) -> Call:
    return msgspec.structs.replace(_post("run-file-digest", request, AGENT_SECS), at_once=_AT_ONCE)


def run_file_part(request: RunFilePart) -> Call:
    call = _post("run-file-part", request, AGENT_SECS)
    return msgspec.structs.replace(call, at_once=_AT_ONCE | {"conflict"})


def put_run_file(request: PutRunFile) -> str:
    """Return the path with its query, for a body from `offset` on."""
    fields = msgspec.to_builtins(request)
    texts = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in fields.items()}
    return "/api/put-run-file?" + urlencode(texts)


def run_files(request: RunFiles) -> Call:
    return msgspec.structs.replace(_post("run-files", request, AGENT_SECS), at_once=_AT_ONCE)


def sbatch_login(
    uid: str, cluster: str | None, username: str, secrets: Mapping[str, str | None]
) -> Call:
    """Return a sign-in, which must be sent once only. secrets: fields of SbatchLogin.

    Raises ClientError("badRequest") without any secret in its sentence.
    """
    try:
        resolve(SbatchLogin)
        request = SbatchLogin(
            uid=uid, cluster=cluster, username=username, **{k: v for k, v in secrets.items() if v}
        )
        return _post(
            "sbatch-login", msgspec.convert(msgspec.to_builtins(request), SbatchLogin), SIGN_IN_SECS
        )
    except (msgspec.ValidationError, UnicodeEncodeError) as e:
        place = str(e).rpartition("`$.")[2].rstrip("`") if "`$." in str(e) else "a value"
        raise bad_request(f"these credentials are invalid: {place} has a wrong form") from None


def sbatch_logout(uid: str, cluster: str | None) -> Call:
    """Raises ClientError("badRequest") for invalid values."""
    return _post(
        "sbatch-logout", _shaped({"uid": uid, "cluster": cluster}, SbatchLogout), SIGN_IN_SECS
    )


def clusters(uid: str) -> Call:
    return _post("clusters", ClusterList(uid=uid))


def sbatch_login_status(uid: str, cluster: str | None) -> Call:
    """Raises ClientError("badRequest") for invalid values."""
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
    """Return a check of every host, which may take long."""
    return Call("/api/pool-check", None, BULK_SECS, method="GET")


def drains() -> Call:
    return Call("/api/site-drains", None, method="GET")


def drain(begin: bool, driver: str, host: str, reason: str) -> Call:
    """Raises ClientError("badRequest") for invalid values."""
    fields = {"drain": begin, "driver": driver, "host": host, "reason": reason}
    return _post("site-drain", _shaped(fields, DrainChange))


def supervisors() -> Call:
    return Call("/api/site-supervisors", None, method="GET")


def hand_over(supervisor: str) -> Call:
    """Raises ClientError("badRequest") for an invalid name."""
    return _post("site-handover", _shaped({"supervisor": supervisor}, Handover))


def notify() -> Call:
    return Call("/api/notify", None, method="GET")


def notify_test(name: str) -> Call:
    """Return a test notification, which is not retried because each one reaches a person."""
    return Call(
        "/api/notify-test", msgspec.json.encode({"name": name}), NOTIFY_SECS, at_once=_AT_ONCE
    )


def whoami() -> Call:
    return Call("/api/whoami", None, method="GET")


def token_create(uid: str, name: str, scopes: Sequence[str], expires_secs: float | None) -> Call:
    """Return a creation, which must be sent once only. Raises ClientError("badRequest") for invalid
    values.
    """
    fields = {"uid": uid, "name": name, "scopes": list(scopes), "expiresSecs": expires_secs}
    return _post("token-create", _shaped(fields, TokenCreate))


def device_start(name: str, scopes: Sequence[str], expires_secs: float | None) -> Call:
    """Raises ClientError("badRequest") for invalid values."""
    fields = {"name": name, "scopes": list(scopes), "expiresSecs": expires_secs}
    _shaped(fields, DeviceStart)
    query = [("name", name), *(("scope", scope) for scope in scopes)]
    if expires_secs is not None:
        query.append(("expiresSecs", str(expires_secs)))
    return Call("/api/device-start?" + urlencode(query), None)


def device_token() -> Call:
    """Return a poll of the device login whose device code is the client's token."""
    return Call("/api/device-token", None)


def token_list(uid: str) -> Call:
    return _post("token-list", TokenList(uid=uid))


def token_revoke(uid: str, id_: str, reason: str) -> Call:
    """Raises ClientError("badRequest") for invalid values."""
    return _post("token-revoke", _shaped({"uid": uid, "id": id_, "reason": reason}, TokenRevoke))


def audit(after: int, since_secs: float | None, actor: str | None) -> Call:
    """Raises ClientError("badRequest") for invalid values."""
    fields = {"after": after, "sinceSecs": since_secs, "actor": actor}
    return _post("audit", _shaped(fields, AuditPage))


def notify_retry(name: str) -> Call:
    return Call("/api/notify-retry", msgspec.json.encode({"name": name}))


def retention() -> Call:
    return Call("/api/retention", None, method="GET")


def retention_sweep(dry_run: bool) -> Call:
    return Call("/api/retention-sweep", msgspec.json.encode({"dryRun": dry_run}), SWEEP_SECS)


def log_exchange(keep: bool) -> Call:
    body = msgspec.json.encode({"keep": keep})
    return Call("/api/log-exchange", body, EXCHANGE_SECS, at_once=frozenset({"conflict"}))


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
    """Return the JSON object of a successful reply. Raises ClientError("notASupervisor")."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    if not isinstance(body, dict):
        raise own("notASupervisor", "the answer is not a JSON object")
    return body


def state_from(body: dict[str, Any]) -> RunState:
    state: RunState = _converted(body, RunState)
    return msgspec.structs.replace(state, raw=body)


def group_state(raw: bytes) -> GroupState:
    body = object_of(raw)
    state: GroupState = _converted(body, GroupState)
    return msgspec.structs.replace(state, raw=body)


def runs_by_job(body: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the answers for the runs of each job of a description. Raises ClientError."""
    jobs: dict[str, list[dict[str, Any]]] = _converted(
        body.get("jobs"), dict[str, list[dict[str, Any]]]
    )
    return jobs


def page_of(raw: bytes) -> JobPage:
    page: JobPage = _converted(object_of(raw), JobPage)
    for row in page.jobs:
        # supervisors of the previous version send `status` only
        row.setdefault("state", row.get("status"))
    return page


class _Note(msgspec.Struct, frozen=True):
    word: str
    sentence: str


def log_part(stream: str, headers: Headers, data: bytes) -> LogPart:
    """Return a piece of a log, with its task if one was placed. Raises ClientError."""
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
            resolve(_Note)
            note = msgspec.json.decode(said, type=_Note)
            part = msgspec.structs.replace(part, note=note.word, sentence=note.sentence)
        attempt, role, index = (
            headers.get(f"X-Jobscribe-{k}") for k in ("Attempt", "Role", "Index")
        )
        if not attempt or not role or not index:
            return part
        return msgspec.structs.replace(part, attempt=int(attempt), role=role, index=int(index))
    except (KeyError, ValueError, msgspec.DecodeError):
        raise own("notASupervisor", "the answer to job-log lacks its X-Jobscribe headers") from None


def logged_event(message: Message) -> LoggedEvent:
    resolve(LoggedEvent)
    try:
        return msgspec.json.decode(message.data.encode(), type=LoggedEvent)
    except msgspec.DecodeError as e:
        raise own("notASupervisor", f"the event stream contains invalid data: {e}") from None


def _shaped(fields: dict[str, Any], type_: Any) -> Any:
    resolve(type_)
    try:
        return msgspec.convert(fields, type_)
    except msgspec.ValidationError as e:
        raise bad_request(str(e)) from None


def _converted(body: Any, type_: Any) -> Any:
    resolve(type_)
    try:
        return msgspec.convert(body, type_)
    except msgspec.ValidationError as e:
        code = CODES["malformed"]
        raise ClientError(
            "malformed", f"cannot decode the supervisor's answer: {e}", code.advice, code.retry
        ) from None
