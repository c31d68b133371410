"""Device logins: a machine begins one and polls; a person shows it and answers. The sender of the
first two has no token yet, so they have no body: bodies of unknown senders are never read.
"""

from typing import Any

import msgspec

from ....protocol.api.requests import DeviceAnswer, DeviceShow, DeviceStart
from ....protocol.errors import Refusal
from ...access.device_logins import DeviceLogin, DeviceLogins
from ...access.principal import Principal
from ...runs.request_validation import parse_body
from ..transport.request_handler import Handler
from .access import check_admin_scope, token_row

_BEARER = "Bearer "


async def device_start(h: Handler) -> Any:
    lifetime = h.argument("expiresSecs")
    try:
        secs = None if lifetime is None else float(lifetime)
    except ValueError:
        raise Refusal("badRequest", "expiresSecs must be a number of seconds") from None
    given = {"name": h.argument("name"), "scopes": h.arguments("scope"), "expiresSecs": secs}
    request = parse_body(msgspec.json.encode(given), DeviceStart)
    return {
        "state": "ok",
        **_logins(h).begin(
            _peer(h), request.name, dict.fromkeys(request.scopes), request.expires_secs
        ),
    }


async def device_token(h: Handler) -> Any:
    code = h.request.headers.get("Authorization", "").removeprefix(_BEARER)
    found = await _logins(h).poll(_peer(h), code)
    if isinstance(found, DeviceLogin):
        return {"state": "authorizationPending", "interval": found.interval}
    text, token = found
    h.log_call("deviceToken", token.id, token.uid)
    return {"state": "ok", "secret": str(text), **token_row(h, token)}


async def device_show(h: Handler) -> Any:
    request: DeviceShow = h.parsed(DeviceShow)
    login = _logins(h).find(request.uid, request.user_code)
    return {
        "state": "ok",
        "userCode": login.user_code,
        "name": login.name,
        "scopes": list(login.scopes),
        "expiresSecs": login.expires_secs,
        "address": login.address,
    }


async def device_answer(h: Handler) -> Any:
    request: DeviceAnswer = h.parsed(DeviceAnswer)
    logins = _logins(h)
    login = logins.find(request.uid, request.user_code)
    if request.approve:
        check_admin_scope(h.services.access, request.uid, login.scopes)
    h.log_call("deviceApprove" if request.approve else "deviceDeny", login.name, request.uid)
    by = h.principal
    if by.uid is None:  # a front end, for the person who is signed in there
        by = Principal(uid=request.uid, role="secretHolder")
    logins.answer(login, by, request.uid, approve=request.approve)
    return {"state": "ok", "name": login.name, "approved": request.approve}


def _logins(h: Handler) -> DeviceLogins:
    logins = h.services.device_logins
    assert logins is not None
    return logins


def _peer(h: Handler) -> str:
    return h.request.remote_ip or ""
