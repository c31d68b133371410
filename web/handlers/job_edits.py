"""Requests of the page of a job that read or change its definition and its files: the definition
without secrets, a new job from it, and files for its run directory.
"""

from typing import Any

import msgspec

from ...client.api.requests import put_run_file
from ...client.api.run_specs import newest_request
from ...protocol.api import requests
from ...protocol.api.requests import RunSpec
from ...protocol.errors import Refusal
from ...protocol.ids import ComputeJid, ReqId, Uid, derived_id
from ...schema.fields import InvalidDocument, Problem
from ...schema.jobs.description import Description, build_runs
from ...schema.jobs.job_file import Definition, define, parse_definition
from ..request import shown_paths
from ..request.context import RequestContext
from . import library, page_data

#: Maximum bytes of one part of an upload; proxies limit bodies.
MAX_PART = 8 * 2**20
_SID_LENGTH = 8


class JobNamed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One job."""

    compute_jid: ComputeJid


class SiteJobNamed(JobNamed, frozen=True, kw_only=True, rename="camel"):
    """One job of a user."""

    uid: Uid


class JobClone(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Submit this definition as a new job. compute_jid: the job from which it comes. Repeating it
    with the same reqId is harmless. Problems of the definition are in `problems` of the error.
    """

    req_id: ReqId
    compute_jid: ComputeJid
    definition: dict[str, Any]


def job_definition(v: RequestContext) -> dict[str, Any]:
    """Return the job file that describes the job again. Values that look like secrets are replaced
    by references.
    """
    v.authorize(None)
    return _shown(_definition(v, v.body(JobNamed).compute_jid))


def site_job_definition(v: RequestContext) -> dict[str, Any]:
    """Return the same of a job of the user `uid`."""
    body = v.body(SiteJobNamed)
    v.authorize(None)
    v.act_as_user()
    named = requests.JobStory(uid=body.uid, compute_jid=body.compute_jid)
    return _shown(define(newest_request(v.upstream.object("job-story", named))))


def _shown(found: Definition) -> dict[str, Any]:
    withheld = [
        {"name": w.name, "where": w.where, "reference": w.reference} for w in found.withheld
    ]
    return {
        "definition": found.data,
        "app": found.app,
        "notes": found.notes,
        "withheld": withheld,
    }


def job_clone(v: RequestContext) -> bytes:
    """Submit a changed definition of a job as a new job."""
    body = v.body(JobClone)
    spec = _spec(v, body, _definition(v, body.compute_jid).app)
    v.authorize(spec.simulation_type)
    # a site that restricts the start of runs restricts this one, too
    v.authorize(spec.simulation_type, "runSimulation")
    if v.site.plan is not None:
        spec = msgspec.structs.replace(spec, active_plan=v.site.plan(v.uid))
    v.log(body.compute_jid, {"reqId": body.req_id, "computeJid": body.compute_jid})
    started = requests.RunSimulation(req_id=body.req_id, run=spec)
    return shown_paths.body(v.upstream.post("run-simulation", started))


def put_job_file(v: RequestContext) -> bytes:
    """Store a part of a file in the run directory. The last part completes it."""
    v.authorize(None)
    jid = page_data.own_jid(v, v.id("computeJid"))
    length = v.request.content_length
    if length is None or length > MAX_PART:
        raise Refusal("badRequest", f"a part of a file has a length of at most {MAX_PART} bytes")
    fields = {
        "uid": v.uid,
        "computeJid": jid,
        "name": v.query("name"),
        "sha256": v.query("sha256"),
        "size": v.number("size", 2**53),
        "offset": v.number("offset", 2**53),
        "replace": v.query("replace") == "true",
    }
    try:
        request = msgspec.convert(fields, requests.PutRunFile)
    except msgspec.ValidationError as e:
        raise Refusal("badRequest", f"the request is not valid: {e}") from None
    v.log(jid, {"computeJid": jid, "name": request.name, "size": request.size})
    return v.upstream.upload(put_run_file(request), library.pieces(v, length), length)


def _definition(v: RequestContext, jid: str) -> Definition:
    named = requests.JobStory(uid=v.uid, compute_jid=page_data.own_jid(v, jid))
    return define(newest_request(v.upstream.object("job-story", named)))


def _spec(v: RequestContext, body: JobClone, app: bool) -> RunSpec:
    """Return the run of a definition. The same request has the same simulation. Raises Refusal with
    all problems.
    """
    try:
        parsed = parse_definition(body.definition, app)
        sid = derived_id(body.req_id.encode(), key=v.uid.encode())[:_SID_LENGTH]
        if isinstance(parsed, Description):
            runs = [r for job in build_runs(parsed, v.uid, lambda: sid) for r in job.specs]
            if len(runs) != 1:
                said = f"it has {len(runs)} runs"
                raise InvalidDocument([Problem(path="", problem=said, right="one job")])
            return runs[0]
    except InvalidDocument as e:
        raise Refusal("badRequest", e.sentence, {"problems": e.problems}) from None
    inner = parsed.data or {}
    inner = {**inner, "simulationId": sid} if "simulationId" in inner else inner
    return msgspec.structs.replace(parsed, uid=v.uid, simulation_id=sid, data=inner)
