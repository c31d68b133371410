"""Sign-in to clusters, and the sign-in request in a run's status.

The request bodies contain secrets. They are never logged or stored.
"""

import re
from typing import Any

import msgspec

from ....protocol.api.requests import RunSpec, SbatchLogin, SbatchLoginStatus, SbatchLogout
from ....protocol.errors import Refusal
from ....protocol.jobs.status import ACTIVE
from ...clusters.sign_in import DRIVER, SignIns
from ..transport.request_handler import Handler

#: Largest sign-in request, with a key and its certificate.
MAX_BYTES = 128 * 1024
_PLACE = re.compile(r"`(\$[.\w]*)`$")


async def sbatch_login(h: Handler) -> Any:
    request: SbatchLogin = _parsed_once(h, SbatchLogin)
    h.log_call("sbatchLogin", request.uid, request.uid)
    if h.runs.draining:
        raise Refusal("draining", "the supervisor is stopping")
    return {"state": "ok", **await _sign_ins(h).login(request)}


async def sbatch_login_status(h: Handler) -> Any:
    request: SbatchLoginStatus = _parsed_once(h, SbatchLoginStatus)
    return {"state": "ok", **_sign_ins(h).status(request)}


async def sbatch_logout(h: Handler) -> Any:
    request: SbatchLogout = _parsed_once(h, SbatchLogout)
    h.log_call("sbatchLogout", request.uid, request.uid)
    return {"state": "ok", **await _sign_ins(h).logout(request)}


def with_sign_in(h: Handler, reply: dict[str, Any], uid: str, jid: str) -> dict[str, Any]:
    """Add to a status reply the `cluster` of the run, and `srException` if its user must sign in."""
    sign_ins = h.services.sign_ins
    if sign_ins is None or reply.get("computeJobSerial") is None or reply.get("superseded"):
        return reply
    run = h.runs.job(uid, jid).job.run
    if run is None or run.spec.driver != DRIVER:
        return reply
    reply = {**reply, "cluster": sign_ins.cluster_named(_cluster(run.spec))}
    needed = sign_ins.needed(uid, reply["cluster"]) if reply["state"] in ACTIVE else None
    if needed is None:
        return reply
    about = {
        "computeJid": jid,
        "computeJobSerial": run.serial,
        "simulationType": run.spec.simulation_type,
        "simulationId": run.spec.simulation_id,
        "computeModel": run.spec.compute_model,
    }
    return {**reply, "srException": {**needed, "params": {**needed["params"], **about}}}


def _cluster(spec: RunSpec) -> str | None:
    return None if isinstance(spec.batch, msgspec.UnsetType) else spec.batch.cluster


def _sign_ins(h: Handler) -> SignIns:
    if h.services.sign_ins is None:
        raise Refusal(
            "badRequest", "this supervisor has no clusters; its operator can add the driver sbatch"
        )
    return h.services.sign_ins


def _parsed_once(h: Handler, type_: type[Any]) -> Any:
    """Return the request and overwrite its body.

    A refusal names only the place of an invalid field, because its name or value may be a password.
    """
    try:
        return h.parsed(type_, MAX_BYTES)
    except Refusal as e:
        if e.code != "badRequest":
            raise
        found = _PLACE.search(e.sentence)
        raise Refusal(
            "badRequest",
            "this is not a valid sign-in request" + (f": see {found[1]}" if found else ""),
        ) from None
    finally:
        h.forget_body()
