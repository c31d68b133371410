"""Clusters: list, sign-in and sign-out. Credentials are passed on once, and neither logged nor
stored.
"""

from typing import Any

import msgspec

from ...client.api.errors import ClientError
from ...client.api.requests import SIGN_IN_SECS
from ...protocol.api import requests
from ...protocol.errors import Refusal
from ...protocol.ids import compute_jid
from ..request import error_responses, schemas
from ..request.context import RequestContext
from .runs import SR_EXCEPTION

#: Maximum bytes of a sign-in.
MAX_BODY = 128 * 1024
#: Error reasons known to clients, which then show their form again.
_REASONS = {"signInRefused": "invalid-creds", "signInUnreachable": "general-connection-error"}


def clusters(v: RequestContext) -> dict[str, Any]:
    """Return the clusters; an empty list if the site has none."""
    v.authorize(None)
    try:
        return v.upstream.object("clusters", requests.ClusterList(uid=v.uid))
    except ClientError as e:
        if e.code in ("notFound", "badRequest"):
            return {"clusters": []}
        raise


def sbatch_login(v: RequestContext) -> schemas.LoginReply | dict[str, Any]:
    """Sign in. The request is never repeated: a second wrong password may lock an account, and a
    one-time code is valid once.
    """
    body = v.secret_body(schemas.SbatchLogin, MAX_BODY)
    v.authorize(body.simulation_type)
    cluster = _cluster(v, body)
    status = _status(v, cluster)
    if status.ready and (
        status.access != "ssh" or status.user in (None, body.sbatch_credentials.username)
    ):
        return schemas.LoginReply(cluster=status.cluster, user=status.user)
    request = _request(v.uid, cluster, body.sbatch_credentials)
    try:
        reply = v.upstream.once("sbatch-login", request, SIGN_IN_SECS)
    except ClientError as e:
        reason = _REASONS.get(e.code)
        if reason is None:
            raise
        refusal = error_responses.from_supervisor(e)
        v.site.counts.add("refused." + refusal.code)
        v.log(None, {"cluster": status.cluster, "reason": reason})
        return {"state": SR_EXCEPTION, SR_EXCEPTION: _exception(reason, refusal, status, body)}
    v.log(None, {"cluster": status.cluster, "reason": "ok"})
    return msgspec.convert(reply, schemas.LoginReply)


def sbatch_login_status(v: RequestContext) -> schemas.LoginStatusReply:
    body = v.body(schemas.SbatchLoginStatus)
    v.authorize(body.simulation_type)
    return _status(v, _cluster(v, body))


def sbatch_logout(v: RequestContext) -> schemas.LogoutReply:
    body = v.body(schemas.SbatchLogout)
    v.authorize(None)
    reply = v.upstream.once(
        "sbatch-logout", requests.SbatchLogout(uid=v.uid, cluster=body.cluster), SIGN_IN_SECS
    )
    ended = msgspec.convert(reply, schemas.LogoutReply)
    v.log(None, {"cluster": ended.cluster, "signedOut": ended.signed_out})
    return ended


def _status(v: RequestContext, cluster: str | None) -> schemas.LoginStatusReply:
    request = requests.SbatchLoginStatus(uid=v.uid, cluster=cluster)
    return msgspec.convert(
        v.upstream.object("sbatch-login-status", request), schemas.LoginStatusReply
    )


def _cluster(
    v: RequestContext, body: schemas.SbatchLogin | schemas.SbatchLoginStatus
) -> str | None:
    """Return the named cluster, or the cluster of the run the client asks for; None for the first
    cluster.
    """
    model = body.compute_model or body.report
    if (
        body.cluster is not None
        or body.simulation_type is None
        or body.simulation_id is None
        or model is None
    ):
        return body.cluster
    try:
        name = v.site.simulations.slot(body.simulation_type, model).name
        jid = compute_jid(v.uid, body.simulation_id, name)
        reply = v.upstream.object(
            "run-status", requests.RunStatusRequest(uid=v.uid, compute_jid=jid)
        )
    except (Refusal, ClientError):
        return None
    found = reply.get("cluster")
    return found if isinstance(found, str) else None


def _request(
    uid: str, cluster: str | None, given: schemas.SbatchCredentials
) -> requests.SbatchLogin:
    """Build the request. Empty fields count as missing, because clients send their whole form."""
    fields = {name: getattr(given, name) or None for name in given.__struct_fields__}
    return msgspec.structs.replace(
        requests.SbatchLogin(uid=uid, cluster=cluster, username=given.username), **fields
    )


def _exception(
    reason: str, refusal: Refusal, status: schemas.LoginStatusReply, body: schemas.SbatchLogin
) -> dict[str, Any]:
    params = {
        "isModal": True,
        "isSbatchLogin": True,
        "reason": reason,
        "cluster": status.cluster,
        "host": status.host,
        "sentence": refusal.sentence,
        "advice": error_responses.body(refusal)["advice"],
        "simulationType": body.simulation_type,
        "simulationId": body.simulation_id,
        "computeModel": body.compute_model or body.report,
    }
    return {"routeName": "sbatchLogin", "params": params}
