"""API tokens, the sender's own identity, and the audit trail."""

from collections.abc import Iterable
from typing import Any

from ....db.events.access_fold import ApiToken
from ....db.records.event_text import data
from ....protocol.api.requests import AuditPage, TokenCreate, TokenList, TokenRevoke
from ....protocol.errors import Refusal
from ...access.authentication import Access
from ..transport.request_handler import Handler


async def whoami(h: Handler) -> Any:
    me = h.principal
    return {
        "state": "ok",
        "uid": me.uid,
        "role": me.role,
        "scopes": sorted(me.scopes),
        "token": None if me.token is None else token_row(h, me.token),
    }


async def token_create(h: Handler) -> Any:
    request: TokenCreate = h.parsed(TokenCreate)
    h.log_call("tokenCreate", request.uid, request.uid)
    access = h.services.access
    check_admin_scope(access, request.uid, request.scopes)
    text, token = await access.tokens.create(
        h.principal, request.uid, request.name, dict.fromkeys(request.scopes), request.expires_secs
    )
    return {"state": "ok", "secret": str(text), **token_row(h, token)}


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


async def audit(h: Handler) -> Any:
    request: AuditPage = h.parsed(AuditPage)
    found, after = h.services.access.audit.page(
        request.after, request.limit, request.since_secs, request.actor
    )
    return {"state": "ok", "events": data(found), "next": after}


def token_row(h: Handler, token: ApiToken) -> dict[str, Any]:
    """Return a token without its digest."""
    now = h.runs.now().wall
    status = "live" if token.live(now) else "revoked" if token.revoked_at is not None else "expired"
    return {
        "id": token.id,
        "uid": token.uid,
        "name": token.name,
        "scopes": list(token.scopes),
        "createdAt": token.created_at,
        "expiresAt": token.expires_at,
        "createdBy": token.by,
        "status": status,
    }
