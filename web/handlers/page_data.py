"""Data of the pages: requests that are passed on to the supervisor with the signed-in user, and
their answers, unchanged but for paths of machines.
"""

from collections.abc import Callable
from typing import Any

import flask
import msgspec

from ...client.api.errors import ClientError
from ...client.api.run_specs import newest_request
from ...protocol.api import requests
from ...protocol.errors import Refusal
from ...protocol.ids import ReqId, parse, split_jid
from ...protocol.jobs.status import ACTIVE
from ..request import shown_paths
from ..request.context import RequestContext
from ..request.page_bodies import BODIES, SITE_BODIES, NoFields
from . import diagnosis, downloads

Handler = Callable[[RequestContext], Any]
#: Maximum bytes of a request with the text of a job file.
MAX_TEXT = 3 * 1024 * 1024
#: The app of the runs that a job file describes.
_COMMAND = "command"
#: Requests that change a job, and the route for jobs of apps that does the same.
_ALSO = {"run-cancel": "runCancel"}
#: A request with one of these fields is about jobs; its answer may have paths.
_ABOUT_JOBS = frozenset({"compute_jid", "id", "words", "text"})


class JobRetry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Start the job again with the same request. Repeating it with the same reqId is harmless."""

    req_id: ReqId
    compute_jid: str


def forward(name: str, type_: type[msgspec.Struct]) -> Handler:
    """Return a handler that passes a request on to `/api/<name>` of the supervisor."""

    def handler(v: RequestContext) -> bytes:
        return shown_paths.body(v.upstream.post(name, _request(v, type_)))

    return handler


def in_person(name: str, type_: type[msgspec.Struct]) -> Handler:
    """Return a handler that sends a request about the signed-in user as this user, who is then named
    in the audit trail, and gets no more than the role allows.
    """

    def handler(v: RequestContext) -> bytes:
        return v.upstream.acting(v.uid, admin=False).post(name, _request(v, type_))

    return handler


def change(name: str, type_: type[msgspec.Struct]) -> Handler:
    """Return a handler for a request that changes the job `computeJid`."""

    def handler(v: RequestContext) -> bytes:
        request = _request(v, type_)
        jid = str(msgspec.structs.asdict(request)["compute_jid"])
        _authorize_as_other(v, name, jid)
        v.log(jid, {"computeJid": jid})
        try:
            return shown_paths.body(v.upstream.post(name, request))
        finally:
            v.site.statuses.drop(jid)

    return handler


def site_data(
    name: str,
    type_: type[msgspec.Struct] | None,
    *,
    changes: bool = False,
    without: frozenset[str] = frozenset(),
) -> Handler:
    """Return a handler for a request that may be about other users or the site. The supervisor
    decides by the role of the signed-in user. type_: None for a GET of the supervisor. changes: it
    changes the job `computeJid`. without: fields of the answer, or of the objects in its lists, that
    pages do not get.
    """

    about_jobs = type_ is not None and bool(_ABOUT_JOBS & set(type_.__struct_fields__))

    def shown(answer: bytes) -> bytes:
        answer = _reduced(answer, without) if without else answer
        return shown_paths.body(answer) if about_jobs or without else answer

    def handler(v: RequestContext) -> bytes:
        if type_ is None:
            v.body(NoFields)
            v.authorize(None)
            v.act_as_user()
            return shown(v.upstream.get(name))
        request = _site_request(v, type_)
        if not changes:
            return shown(v.upstream.post(name, request))
        jid = str(msgspec.structs.asdict(request)["compute_jid"])
        _authorize_as_other(v, name, jid)
        v.log(jid, {"computeJid": jid})
        try:
            return shown(v.upstream.post(name, request))
        finally:
            v.site.statuses.drop(jid)

    return handler


def _reduced(answer: bytes, without: frozenset[str]) -> bytes:
    def kept(value: Any) -> Any:
        if isinstance(value, list):
            return [kept(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            k: kept(v) if isinstance(v, list) else v for k, v in value.items() if k not in without
        }

    return msgspec.json.encode(kept(msgspec.json.decode(answer)))


def job_why(v: RequestContext) -> dict[str, Any]:
    return _why(v, _request(v, requests.RunStatusRequest))


def site_job_why(v: RequestContext) -> dict[str, Any]:
    return _why(v, _site_request(v, requests.RunStatusRequest))


def _why(v: RequestContext, asked: msgspec.Struct) -> dict[str, Any]:
    v.authorize(None, "runWhy")
    why = v.upstream.object("job-why", asked)
    shown: dict[str, Any] = shown_paths.value(diagnosis.for_users(why))
    return shown


def job_log(v: RequestContext) -> flask.Response:
    """Return a piece of output; its place is in the headers."""
    return _log(v, _request(v, requests.JobLog))


def site_job_log(v: RequestContext) -> flask.Response:
    return _log(v, _site_request(v, requests.JobLog))


def _log(v: RequestContext, request: msgspec.Struct) -> flask.Response:
    v.authorize(None, "runLog")
    reply = v.upstream.reply("job-log", request)
    answer = downloads.text(flask.Response(reply.body), "output.log", reply)
    for name in ("Next-Offset", "Dropped", "Attempt", "Role", "Index", "End", "Note"):
        if (value := reply.headers.get("X-Jobscribe-" + name)) is not None:
            answer.headers["X-Jobscribe-" + name] = value
    return answer


def job_text(name: str, type_: type[msgspec.Struct], *, starts: bool = False) -> Handler:
    """Return a handler for a request about runs that a user describes, with the plan of the user's
    account. starts: it starts the runs.
    """

    def handler(v: RequestContext) -> bytes:
        body = v.body(BODIES[type_], MAX_TEXT)
        v.authorize(_COMMAND)
        if starts:
            # a site that restricts the start of runs restricts this one, too
            v.authorize(_COMMAND, "runSimulation")
            v.log(None, {"reqId": getattr(body, "req_id", None)})
        plan = None if v.site.plan is None else v.site.plan(v.uid)
        request = type_(uid=v.uid, active_plan=plan, **msgspec.structs.asdict(body))
        try:
            return _without_paths(v.upstream.post(name, request))
        except ClientError as e:
            if "problems" not in e.more:
                raise
            # the problems of the text are for its author
            found: dict[str, object] = {n: e.more.get(n, []) for n in ("problems", "warnings")}
            raise Refusal(e.code, e.sentence, found) from None

    return handler


def _without_paths(answer: bytes) -> bytes:
    """Return an answer without the paths in its `jobs`. The rest of it repeats the user's own text."""
    said = msgspec.json.decode(answer)
    if "jobs" in said:
        said["jobs"] = shown_paths.value(said["jobs"])
        for job in said["jobs"]:
            if "lines" in job:  # of a dry run
                job["lines"] = [line.removesuffix(", in ") for line in job["lines"]]
    return msgspec.json.encode(said)


def job_retry(v: RequestContext) -> bytes:
    """Submit the request of the newest run once more. Refused while the job waits or runs."""
    body = v.body(JobRetry)
    jid = own_jid(v, body.compute_jid)
    story = v.upstream.object("job-story", requests.JobStory(uid=v.uid, compute_jid=jid))
    spec = newest_request(story)
    if not _is_repeated(story, body.req_id):
        asked = requests.RunStatusRequest(uid=v.uid, compute_jid=jid)
        state = v.upstream.object("run-status", asked)["state"]
        if state in ACTIVE:
            raise Refusal("conflict", f"{jid} is {state}; cancel it or wait for its end")
    v.authorize(spec.simulation_type)
    # a site that restricts the start of runs restricts this one, too
    v.authorize(spec.simulation_type, "runSimulation")
    if v.site.plan is not None:
        spec = msgspec.structs.replace(spec, active_plan=v.site.plan(v.uid))
    v.log(jid, {"reqId": body.req_id, "computeJid": jid})
    again = requests.RunSimulation(req_id=body.req_id, run=spec, force_run=True)
    try:
        return shown_paths.body(v.upstream.post("run-simulation", again))
    finally:
        v.site.statuses.drop(jid)


def job_file(v: RequestContext) -> flask.Response:
    """Send a file below the run directory as a download."""
    v.authorize(None)
    return _file(v, own_jid(v, v.id("computeJid")))


def site_job_file(v: RequestContext) -> flask.Response:
    v.authorize(None)
    v.act_as_user()
    return _file(v, v.id("computeJid"))


def job_output(v: RequestContext) -> flask.Response:
    """Send the whole output of a task as a download."""
    v.authorize(None)
    return _output(v, own_jid(v, v.id("computeJid")))


def site_job_output(v: RequestContext) -> flask.Response:
    v.authorize(None)
    v.act_as_user()
    return _output(v, v.id("computeJid"))


def _file(v: RequestContext, jid: str) -> flask.Response:
    v.authorize(None, "downloadRunFile")
    owner, name = split_jid(jid)[0], v.query("name")[:1024]
    return downloads.send_file(v, requests.RunFile(uid=owner, compute_jid=jid, name=name))


def _output(v: RequestContext, jid: str) -> flask.Response:
    v.authorize(None, "runLog")
    fields = {
        "uid": split_jid(jid)[0],
        "computeJid": jid,
        "stream": v.query("stream", "stdout"),
        "attempt": v.number("attempt", 1_000_000),
        "index": v.number("index", 2**31),
        "role": v.query("role") or None,
    }
    try:
        request = msgspec.convert(fields, requests.JobLog)
    except msgspec.ValidationError as e:
        raise Refusal("badRequest", f"the request is not valid: {e}") from None
    return downloads.whole_log(v, request)


def _request(v: RequestContext, type_: type[msgspec.Struct]) -> msgspec.Struct:
    """Return the request of the body for the signed-in user. Raises Refusal."""
    body = v.body(BODIES[type_])
    v.authorize(None)
    fields = {n: getattr(body, n) for n in body.__struct_fields__}
    if jid := fields.get("compute_jid"):
        own_jid(v, jid)
    return type_(uid=v.uid, **fields)


def _site_request(v: RequestContext, type_: type[msgspec.Struct]) -> msgspec.Struct:
    """Return the request of the body, which names its user. Raises Refusal."""
    body = v.body(SITE_BODIES[type_])
    v.authorize(None)
    v.act_as_user()
    return type_(**msgspec.structs.asdict(body))


def _authorize_as_other(v: RequestContext, name: str, jid: str) -> None:
    """Raise the refusal of the site's hook against the route for apps that does the same. A site
    that restricts it restricts the pages, too.
    """
    api = _ALSO.get(name)
    if api is None or v.site.may is None:
        return
    v.authorize(None, api)
    asked = requests.RunStatusRequest(uid=split_jid(jid)[0], compute_jid=jid)
    simulation_type = v.upstream.object("run-status", asked).get("simulationType")
    if simulation_type is not None:
        v.authorize(simulation_type)
        v.authorize(simulation_type, api)


def _is_repeated(story: dict[str, Any], req_id: str) -> bool:
    """Return whether the newest run of the job is the result of this request."""
    found = [e["event"] for e in story["events"] if e["event"]["type"] == "RunRequested"]
    return bool(found) and found[-1]["reqId"] == req_id


def own_jid(v: RequestContext, jid: str) -> str:
    """Return the id of a job of this user. Raises Refusal."""
    if split_jid(parse("computeJid", jid))[0] != v.uid:
        raise Refusal("notFound", f"there is no job {jid}")
    return jid
