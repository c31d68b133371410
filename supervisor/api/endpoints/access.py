"""API tokens, device logins, the sender's own identity, and the audit trail.

The sender of the first two requests of a device login has no token yet, so they have no body: bodies
of unknown senders are never read.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from ....db.events.access_fold import ApiToken
from ....db.records.event_text import data
from ....protocol.api import cursors
from ....protocol.api.requests import (
    AuditPage,
    CreatedTokensRevoke,
    DeviceAnswer,
    DeviceBegin,
    DeviceEnd,
    DeviceShow,
    DeviceStart,
    TokenCreate,
    TokenList,
    TokenRevoke,
)
from ....protocol.api.tokens import LIVE
from ....protocol.errors import Refusal
from ....protocol.wire.handshake import HOME_TOKEN
from ...access.api_tokens import HomeToken
from ...access.authentication import Access
from ...access.device_logins import DeviceLogin, DeviceLogins
from ...access.principal import Principal
from ...core.interface.drains import SITE
from ...runs.request_validation import parse_body
from ..transport.request_handler import Handler

_BEARER = "Bearer "


async def whoami(h: Handler) -> Any:
    """Return the user, the role and the scopes of the sender."""
    me = h.principal
    return {
        "state": "ok",
        "uid": me.uid,
        "role": me.role,
        "scopes": sorted(me.scopes),
        "members": sorted(me.members),
        "token": None if me.token is None else token_row(h, me.token),
        "siteDrain": _site_drain(h),
    }


def _site_drain(h: Handler) -> dict[str, Any] | None:
    """Return since when and why the site starts no new runs, or None."""
    found = h.runs.engine.world.drains.get(SITE)
    return None if found is None else {"at": found.at, "reason": found.reason}


async def token_create(h: Handler) -> Any:
    request: TokenCreate = h.parsed(TokenCreate)
    h.log_call("tokenCreate", request.uid, request.uid)
    access = h.services.access
    access.check_shard(request.uid)
    home = _home(h, request.uid)
    check_admin_scope(access, request.uid, request.scopes)
    text, token = await access.tokens.create(
        h.principal,
        request.uid,
        request.name,
        dict.fromkeys(request.scopes),
        request.expires_secs,
        home,
    )
    return {"state": "ok", "secret": str(text), **token_row(h, token)}


def _home(h: Handler, uid: str) -> HomeToken | None:
    """Return the sender's token of another shard, which a router has checked; None for others. Raises
    Refusal("notSharded") for the request of an earlier router.
    """
    if not h.principal.limited:
        return None
    home = HomeToken.of_header(h.request.headers.get(HOME_TOKEN))
    if home is None:
        raise Refusal(
            "notSharded",
            f"the API token of {h.principal.uid} is in another shard of the site than user {uid}, and its router does"
            " not name it: restart the router with this version of jobscribe",
        )
    return home


def check_admin_scope(access: Access, uid: str, scopes: Iterable[str]) -> None:
    """Raise Refusal("forbidden") for the scope admin of a user without a role."""
    if "admin" in scopes and access.users.role(uid) == "user":
        raise Refusal(
            "forbidden",
            f"user {uid} is no administrator, so a token cannot have the scope admin",
        )


async def token_list(h: Handler) -> Any:
    request: TokenList = h.parsed(TokenList)
    return {
        "state": "ok",
        "tokens": [token_row(h, token) for token in h.services.access.tokens.of(request.uid)],
    }


async def token_revoke(h: Handler) -> Any:
    request: TokenRevoke = h.parsed(TokenRevoke)
    h.log_call("tokenRevoke", request.id, request.uid)
    token, others = await h.services.access.tokens.revoke(
        h.principal, request.uid, request.id, request.reason
    )
    return {"state": "ok", **token_row(h, token), "alsoRevoked": [t.id for t in others]}


async def created_tokens_revoke(h: Handler) -> Any:
    """Revoke what tokens created, for a router: tokens of one shard create tokens in others."""
    check_router(h)
    request: CreatedTokensRevoke = h.parsed(CreatedTokensRevoke)
    h.log_call("createdTokensRevoke", ",".join(request.ids[:5]), request.by)
    _logins(h).revoke(request.ids)
    found, revoked = await h.services.access.tokens.revoke_created(request.by, request.ids)
    return {"state": "ok", "ids": found, "revoked": revoked}


def check_router(h: Handler) -> None:
    """Raise Refusal("forbidden") for a sender without the server secret."""
    if h.principal.role != "operator":
        raise Refusal("forbidden", "only a router of the site, with the server secret, may do this")


async def device_begin(h: Handler) -> Any:
    """Begin the login of a machine with the codes of a router."""
    check_router(h)
    request: DeviceBegin = h.parsed(DeviceBegin)
    begun = _logins(h).begin(
        _peer(h),
        request.name,
        dict.fromkeys(request.scopes),
        request.expires_secs,
        (request.device_code, request.user_code),
        request.page,
    )
    return {"state": "ok", **begun}


async def device_end(h: Handler) -> Any:
    """Forget the login of a machine that was answered in another shard."""
    check_router(h)
    _logins(h).end(h.parsed(DeviceEnd).user_code)
    return {"state": "ok"}


async def device_start(h: Handler) -> Any:
    """Begin the login of a machine, which a person approves in a browser."""
    request = device_request(h.argument("name"), h.arguments("scope"), h.argument("expiresSecs"))
    return {
        "state": "ok",
        **_logins(h).begin(
            _peer(h), request.name, dict.fromkeys(request.scopes), request.expires_secs
        ),
    }


def device_request(name: str | None, scopes: list[str], lifetime: str | None) -> DeviceStart:
    """Return the request with these query arguments. Raises Refusal("badRequest")."""
    try:
        secs = None if lifetime is None else float(lifetime)
    except ValueError:
        raise Refusal("badRequest", "expiresSecs must be a number of seconds") from None
    given = {"name": name, "scopes": scopes, "expiresSecs": secs}
    return parse_body(msgspec.json.encode(given), DeviceStart)


async def device_token(h: Handler) -> Any:
    """Return the API token of an approved login of a machine."""
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
    home = None
    if request.approve:
        check_admin_scope(h.services.access, request.uid, login.scopes)
        home = _home(h, request.uid)
    h.log_call("deviceApprove" if request.approve else "deviceDeny", login.name, request.uid)
    by = h.principal
    if by.uid is None:  # a front end, for the person who is signed in there
        by = Principal(uid=request.uid, role="secretHolder")
    logins.answer(login, by, request.uid, approve=request.approve, home=home)
    return {"state": "ok", "name": login.name, "approved": request.approve}


async def audit(h: Handler) -> Any:
    request: AuditPage = h.parsed(AuditPage)
    before = None if request.before is msgspec.UNSET else request.before
    start = request.after
    if isinstance(request.cursor, str):
        at = cursors.position(request.cursor)
        start, before = (at, None) if before is None else (0, at)
    found, after = h.services.access.audit.page(
        start, request.limit, request.since_secs, request.actor, before
    )
    return {"state": "ok", "events": data(found), "next": after, "cursor": cursors.text(after)}


def token_row(h: Handler, token: ApiToken) -> dict[str, Any]:
    """Return a token without its digest."""
    now = h.runs.now().wall
    status = LIVE if token.live(now) else "revoked" if token.revoked_at is not None else "expired"
    return {
        "id": token.id,
        "uid": token.uid,
        "name": token.name,
        "scopes": list(token.scopes),
        "createdAt": token.created_at,
        "expiresAt": token.expires_at,
        "createdBy": token.by,
        "lastUsedAt": h.services.access.tokens.last_use(token),
        "status": status,
    }


def _logins(h: Handler) -> DeviceLogins:
    logins = h.services.device_logins
    assert logins is not None
    return logins


def _peer(h: Handler) -> str:
    return h.peer
