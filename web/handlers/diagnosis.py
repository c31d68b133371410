"""Diagnosis of a run for a page: the result of `job why`, without paths and commands for operators."""

from typing import Any

import msgspec

from ...protocol.api.requests import RunStatusRequest
from ...protocol.ids import compute_jid
from ..request import schemas
from ..request.context import RequestContext
from . import runs


def run_why(v: RequestContext) -> schemas.WhyReply:
    """Return the diagnosis of the current run of a simulation, or of the run with this serial."""
    type_, sid, model_name = v.id("simulationType"), v.id("simulationId"), v.id("computeModel")
    v.authorize(type_)
    model = v.site.simulations.slot(type_, model_name)
    serial = runs.serial(v, type_, sid, model.name, v.number("computeJobSerial", 2**53))
    request = RunStatusRequest(
        uid=v.uid, compute_jid=compute_jid(v.uid, sid, model.name), compute_job_serial=serial
    )
    return msgspec.convert(for_users(v.upstream.object("job-why", request)), schemas.WhyReply)


def for_users(answer: dict[str, Any]) -> dict[str, Any]:
    """Keep the parts that a user can act on: without paths on machines, and without commands for
    the site's command line.
    """
    kept = {
        k: v
        for k, v in answer.items()
        if k in schemas.WhyReply.__struct_encode_fields__ and v is not None
    }
    kept["try"] = [line for line in answer["try"] if not line.startswith(_COMMANDS)]
    return kept


_COMMANDS = ("jobscribe ", "docker ", "scontrol ", "sacct ", "journalctl ")
