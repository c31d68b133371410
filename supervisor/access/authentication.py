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
from ...service.site.secret_rotation import RotatedSecret
from ...service.site.users_file import Users
from .api_tokens import ApiTokens
from .audit import AuditTrail
from .principal import MONITOR, Principal
from .request_rates import RequestRates

_BEARER = "Bearer "


class Access:
    """Authenticates senders. monitors: returns whether a header has the token for monitoring.
    open_lists: users may read what a route shares (`Route.shared`) of all users.
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
    ) -> None:
        self._secret = secret
        self._monitors, self.tokens, self.users, self.audit = monitors, tokens, users, audit
        self.rates, self.open_lists = rates, open_lists

    def principal(
        self,
        authorization: str,
        actor: str | None,
        signed_in: str | None = None,
        *,
        monitors: bool,
        peer: str | None = None,
    ) -> Principal:
        """Return the sender with these headers. monitors: the token for monitoring is accepted. peer:
        its address, to which a failure is counted; None: the request will be examined again.

        Raises Refusal: unauthenticated, tokenExpired, tokenRevoked, badRequest, tooManyRequests.
        """
        try:
            principal = self._authenticated(authorization, actor, signed_in, monitors=monitors)
        except Refusal:
            if peer is not None:
                self.rates.failure(peer)
            raise
        if principal.token is not None:
            self.rates.request(principal.token.id)
        return principal

    def _authenticated(
        self, authorization: str, actor: str | None, signed_in: str | None, *, monitors: bool
    ) -> Principal:
        if authorization.startswith(_BEARER + PREFIX):
            return self._token_holder(authorization.removeprefix(_BEARER))
        secret = self._secret.holder(authorization)
        if secret is not None:
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

    def person(self, uid: str) -> Principal:
        """Return a user whom a front end names, with the role that the user has now and all scopes
        that a token of this user may have.
        """
        role = self.users.role(uid)
        return Principal(
            uid=uid,
            role=role,
            scopes=frozenset(SCOPES if role != "user" else (s for s in SCOPES if s != "admin")),
            members=self.users.members_of(uid),
        )

    def _token_holder(self, text: str) -> Principal:
        return self.holder(self.tokens.authenticate(parse(text)))

    def holder(self, token: ApiToken) -> Principal:
        """Return the holder of a live token, with the role that its user has now."""
        role: Literal["user", "groupAdmin", "admin"] = "user"
        members: frozenset[str] = frozenset()
        if "admin" in token.scopes:
            role, members = self.users.role(token.uid), self.users.members_of(token.uid)
        return Principal(
            uid=token.uid,
            role=role,
            scopes=frozenset(token.scopes),
            members=members,
            token=token,
        )
