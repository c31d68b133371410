"""Data of the page of the account that no other route has: sign-in sessions, and the document of the
supervisor's interface.
"""

import functools
import gzip
from collections.abc import Iterable

import flask
import msgspec

from ...protocol.api import requests
from ...protocol.errors import Refusal
from ..request import packed
from ..request.context import FrontEndContext, RequestContext
from ..request.own_sign_ins import SignInId, SignInRow
from ..request.page_bodies import BODIES, NoFields


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


def api_document(v: RequestContext) -> flask.Response:
    v.authorize(None)
    content = v.upstream.acting(v.uid, admin=False).get("openapi.json")
    return packed.answer(content, _packed(content), "application/json")


@functools.lru_cache(maxsize=1)
def _packed(content: bytes) -> bytes:
    return gzip.compress(content, 9, mtime=0)


def token_create(v: RequestContext) -> bytes:
    """Create a token for the signed-in user. It is used at the supervisor, which knows no hooks, so a
    site that refuses this user runs of commands gives no token for them.
    """
    body = v.body(BODIES[requests.TokenCreate])
    v.authorize(None)
    request = requests.TokenCreate(uid=v.uid, **msgspec.structs.asdict(body))
    authorize_scopes(v.site, v.uid, request.scopes)
    return v.upstream.acting(v.uid, admin=False).post("token-create", request)


def authorize_scopes(site: FrontEndContext, uid: str, scopes: Iterable[str]) -> None:
    """Raise the refusal of the site's hook against runs, for a token that may start them, or open shells
    in them.
    """
    if not {"control", "debug"}.isdisjoint(scopes) and site.may is not None:
        refusal = site.may(uid, "runSimulation", "command")
        if refusal is not None:
            raise refusal
