"""The sender of a request, and the rules for what it may do. Pure.

Authenticators (`authentication`) make principals. A sign-in of another kind is another
authenticator; the rules here stay the same.
"""

from typing import Literal

import msgspec

from ...db.events.access_fold import ApiToken
from ...protocol.api.tokens import SCOPES
from ...protocol.errors import Refusal

#: Scope that a route needs. `any`: every valid sender may use it.
RouteScope = Literal["any", "read", "control", "debug", "admin"]


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a request.

    uid: its user; None for the holder of the server secret or of the monitoring token. role:
    `operator` (server secret), `secretHolder` (server secret, on behalf of `uid`), `monitor`, or the
    UserRole of the signed-in user of a front end or of a token with the scope admin, else `user`. members: users for whom a group admin
    may act. token: None for a secret. secret: fingerprint of the server secret that it presented. limited:
    a router has checked the API token of `uid`, which another shard has.
    """

    uid: str | None = None
    role: Literal["operator", "secretHolder", "monitor", "user", "groupAdmin", "admin"] = "operator"
    scopes: frozenset[str] = frozenset(SCOPES)
    members: frozenset[str] = frozenset()
    token: ApiToken | None = None
    secret: str | None = None
    limited: bool = False

    @property
    def by_token(self) -> bool:
        """Return whether its rights are those of an API token."""
        return self.token is not None or self.limited

    @property
    def trusted(self) -> bool:
        """Return whether it holds the server secret, and so may name any user."""
        return self.role in ("operator", "secretHolder")

    @property
    def all_users(self) -> bool:
        """Return whether it may see data of all users at once, and of the site."""
        return self.trusted or self.role == "admin"

    @property
    def name(self) -> str:
        """Return the user, or `operator` for the holder of the server secret, for events."""
        return self.uid or "operator"

    def may_act_for(self, uid: str) -> bool:
        return uid == self.uid or self.all_users or uid in self.members


OPERATOR = Principal()
MONITOR = Principal(role="monitor", scopes=frozenset())


def check_scope(principal: Principal, scope: RouteScope) -> None:
    """Raise Refusal("scopeMissing") unless the principal has the scope."""
    if scope == "any" or scope in principal.scopes:
        return
    sender = "this API token" if principal.by_token else "this sign-in"
    raise Refusal(
        "scopeMissing",
        f"{sender} has no scope {scope}; its scopes: {', '.join(sorted(principal.scopes))}",
    )


def check_all_users(principal: Principal) -> None:
    """Raise Refusal("forbidden") unless the principal may see data of all users."""
    if not principal.all_users:
        raise Refusal(
            "forbidden",
            "only a site administrator may do this; an API token needs the scope admin for it",
        )


def check_subject(principal: Principal, uid: str) -> None:
    """Raise Refusal("forbidden") unless the principal may act for this user.

    The answer is the same whether the user and its jobs exist or not.
    """
    if not principal.may_act_for(uid):
        raise Refusal(
            "forbidden",
            f"user {principal.uid} may not act for another user",
        )


def without_group(principal: Principal) -> Principal:
    """Return the administrator of a group as a user, so that the refusal is that of a stranger: for
    requests that act as the user.
    """
    return (
        Principal(uid=principal.uid, role="user") if principal.role == "groupAdmin" else principal
    )
