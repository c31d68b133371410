"""Why a run is as it is, for a page: what `job why` says, without the folders and commands that
only operators can use.
"""

from typing import Any

import msgspec

from ...protocol.api.requests import RunStatusRequest
from ...protocol.ids import compute_jid
from ..request import schemas
from ..request.context import RequestContext
from . import runs


def run_why(v: RequestContext) -> schemas.WhyReply:
    """Of the current run of a simulation, or of the one with this serial."""
    type_, sid, model_name = v.id("simulationType"), v.id("simulationId"), v.id("computeModel")
    v.allowed(type_)
    model = v.site.simulations.slot(type_, model_name)
    serial = runs.serial(v, type_, sid, model.name, v.number("computeJobSerial", 2**53))
    request = RunStatusRequest(
        uid=v.uid, compute_jid=compute_jid(v.uid, sid, model.name), compute_job_serial=serial
    )
    return msgspec.convert(_told(v.upstream.object("job-why", request)), schemas.WhyReply)


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    """What a user can act on. Paths of logs are of machines he does not see; what he can type needs
    a command line of the site's.
    """
    told = {
        k: v
        for k, v in answer.items()
        if k in schemas.WhyReply.__struct_encode_fields__ and v is not None
    }
    told["try"] = [line for line in answer["try"] if not line.startswith(_COMMANDS)]
    return told


_COMMANDS = ("jobscribe ", "docker ", "scontrol ", "sacct ", "journalctl ")
