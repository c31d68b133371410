"""Computations of an app while the page waits: analysis of a run, and the app's own methods. The
result is returned unchanged.
"""

from typing import Any

from ...protocol.api.requests import BeginSession, CallRequest
from ...protocol.ids import compute_jid
from ...protocol.wire.messages import JobCmd
from ..request import schemas
from ..request.context import RequestContext


def analysis_job(v: RequestContext) -> bytes:
    body = v.body(schemas.AnalysisJob)
    v.authorize(body.simulation_type)
    model = v.site.simulations.model(body.simulation_type, body.report)
    return v.upstream.call(
        CallRequest(
            uid=v.uid,
            job_cmd="analysis_job",
            simulation_type=body.simulation_type,
            compute_model=model.name,
            compute_jid=compute_jid(v.uid, body.simulation_id, model.name),
            compute_job_serial=body.compute_job_serial,
            method=body.method,
            data={"models": body.models} if body.models else {},
            args=body.args,
            deadline_secs=body.deadline_secs,
        )
    )


def stateless_compute(v: RequestContext) -> bytes:
    return _compute(v, "stateless_compute")


def stateful_compute(v: RequestContext) -> bytes:
    return _compute(v, "stateful_compute")


def _compute(v: RequestContext, job_cmd: JobCmd) -> bytes:
    body = v.body(schemas.Compute)
    v.authorize(body.simulation_type)
    v.site.simulations.app(body.simulation_type)
    return v.upstream.call(
        CallRequest(
            uid=v.uid,
            job_cmd=job_cmd,
            simulation_type=body.simulation_type,
            method=body.method,
            data={"models": body.models} if body.models else {},
            args=body.args,
            deadline_secs=body.deadline_secs,
        )
    )


def begin_session(v: RequestContext) -> dict[str, Any]:
    """Start an agent in advance, because the user is about to work."""
    v.body(schemas.Body)
    return v.upstream.object("begin-session", BeginSession(uid=v.uid))
