"""Data of the page of the account that no other route has: sign-in sessions, and the document of the
supervisor's interface.
"""

import msgspec

from ...protocol.errors import Refusal
from ..request.context import RequestContext
from ..request.own_sign_ins import SignInId, SignInRow
from ..request.page_bodies import NoFields


class SignIns(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Sign-in sessions, newest first. kept: whether this site keeps them; a site that embeds the
    blueprint signs people in itself.
    """

    state: str = "ok"
    kept: bool
    sign_ins: list[SignInRow]


class SignInEnd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End a session. Repeating it is harmless."""

    id: SignInId


def sign_ins(v: RequestContext) -> SignIns:
    v.body(NoFields)
    v.authorize(None)
    kept = v.site.sign_ins
    return SignIns(kept=kept is not None, sign_ins=[] if kept is None else kept.of(v.uid))


def sign_in_end(v: RequestContext) -> SignIns:
    """End a session, and return those that are left."""
    body = v.body(SignInEnd)
    v.authorize(None)
    kept = v.site.sign_ins
    if kept is None:
        raise Refusal("notFound", "this site keeps no sign-in sessions")
    kept.end(v.uid, body.id)
    v.log(None, {"signIn": body.id})
    return SignIns(kept=True, sign_ins=kept.of(v.uid))


def api_document(v: RequestContext) -> bytes:
    v.authorize(None)
    return v.upstream.acting(v.uid, admin=False).get("openapi.json")
