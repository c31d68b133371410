"""Authentication of requests: the server secret, the monitoring token, or an API token of a user.

A sign-in of another kind (for example a proxy's header) becomes another branch of `principal`.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from ...db.events.access_fold import ApiToken
from ...protocol.api.tokens import PREFIX, SCOPES, parse
from ...protocol.errors import Refusal
from ...protocol.ids import parse as parse_id
from ...protocol.shards import Shard
from ...service import tickets
from ...service.site.secret_rotation import RotatedSecret
from ...service.site.users_file import Users
from .api_tokens import ApiTokens
from .audit import AuditTrail
from .principal import MONITOR, Principal
from .request_rates import RequestRates

_BEARER = "Bearer "


class Access:
    """Authenticates senders. monitors: returns whether a header has the token for monitoring.
    open_lists: users may read what a route shares (`Route.shared`) of all users. shard: whose users are
    served here; None: all.
    """

    def __init__(
        self,
        secret: RotatedSecret,
        monitors: Callable[[str], bool],
        tokens: ApiTokens,
        users: Users,
        audit: AuditTrail,
        rates: RequestRates,
        *,
        open_lists: bool = False,
        shard: Shard | None = None,
    ) -> None:
        self._secret = secret
        self._monitors, self.tokens, self.users, self.audit = monitors, tokens, users, audit
        self.rates, self.open_lists, self.shard = rates, open_lists, shard

    def peer(self, header: str | None, address: str) -> str:
        """Return the address of a client: the one that a router has signed in this header, else that of
        its connection.
        """
        if header is None:
            return address
        return tickets.peer(self._secret.accepted(), header) or address

    def check_shard(self, uid: str) -> None:
        """Raise Refusal("wrongShard") for a user of another shard."""
        if self.shard is not None and not self.shard.has(uid):
            raise Refusal(
                "wrongShard",
                f"user {uid} does not belong to {self.shard.name}, which this supervisor serves",
            )

    def principal(
        self,
        authorization: str,
        actor: str | None,
        signed_in: str | None = None,
        *,
        monitors: bool,
        peer: str | None = None,
        scopes: str | None = None,
    ) -> Principal:
        """Return the sender with these headers. monitors: the token for monitoring is accepted. peer:
        its address, to which a failure is counted; None: the request will be examined again. scopes: of
        the token of `signed_in`, from a router.

        Raises Refusal: unauthenticated, tokenExpired, tokenRevoked, badRequest, tooManyRequests.
        """
        try:
            principal = self._authenticated(
                authorization, actor, signed_in, scopes, monitors=monitors
            )
        except Refusal:
            if peer is not None:
                self.rates.failure(peer)
            raise
        if principal.token is not None:
            self.rates.request(principal.token.id)
        return principal

    def _authenticated(
        self,
        authorization: str,
        actor: str | None,
        signed_in: str | None,
        scopes: str | None,
        *,
        monitors: bool,
    ) -> Principal:
        if authorization.startswith(_BEARER + PREFIX):
            return self._token_holder(authorization.removeprefix(_BEARER))
        secret = self._secret.holder(authorization)
        if secret is not None:
            if signed_in is not None and scopes is not None:
                return self._limited(parse_id("uid", signed_in), scopes, secret)
            if signed_in is not None:
                return self._person(parse_id("uid", signed_in), secret)
            if actor is None:
                return Principal(secret=secret)
            return Principal(uid=parse_id("uid", actor), role="secretHolder", secret=secret)
        if monitors and self._monitors(authorization):
            return MONITOR
        raise Refusal("unauthenticated", "the secret is missing or wrong")

    def admits(self, principal: Principal) -> bool:
        """Return whether a sender that was authenticated earlier still is."""
        if principal.token is not None:
            return self.tokens.live(principal.token)
        return principal.secret is None or self._secret.knows(principal.secret)

    def _person(self, uid: str, secret: str) -> Principal:
        return msgspec.structs.replace(self.person(uid), secret=secret)

    def _limited(self, uid: str, scopes: str, secret: str) -> Principal:
        given = frozenset(s for s in SCOPES if s in scopes.split(","))
        return msgspec.structs.replace(
            token_user(self.users, uid, given), secret=secret, limited=True
        )

    def person(self, uid: str) -> Principal:
        """Return a user whom a front end names, with the role that the user has now and all scopes
        that a token of this user may have.
        """
        return person(self.users, uid)

    def _token_holder(self, text: str) -> Principal:
        return self.holder(self.tokens.authenticate(parse(text)))

    def holder(self, token: ApiToken) -> Principal:
        """Return the holder of a live token, with the role that its user has now."""
        found = token_user(self.users, token.uid, frozenset(token.scopes))
        return msgspec.structs.replace(found, token=token)


def person(users: Users, uid: str) -> Principal:
    """Return a user who is signed in at a front end."""
    role = users.role(uid)
    return Principal(
        uid=uid,
        role=role,
        scopes=frozenset(SCOPES if role != "user" else (s for s in SCOPES if s != "admin")),
        members=users.members_of(uid),
    )


def token_user(users: Users, uid: str, scopes: frozenset[str]) -> Principal:
    """Return a user with the rights of an API token with these scopes."""
    role: Literal["user", "groupAdmin", "admin"] = "user"
    members: frozenset[str] = frozenset()
    if "admin" in scopes:
        role, members = users.role(uid), users.members_of(uid)
    return Principal(uid=uid, role=role, scopes=scopes, members=members)
