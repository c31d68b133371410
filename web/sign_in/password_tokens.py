"""API tokens for a name and a password, as OpenPAI's REST interface issues them."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ...protocol.api.requests import TokenCreate, TokenList, TokenRevoke
from ...protocol.api.tokens import LIVE, Scope
from ..handlers import account
from ..request.context import FrontEndContext
from .attempt_limits import AttemptLimits
from .password_check import PasswordCheck

#: Name of these tokens, and how many of a user are valid: a script may ask for one at each start, and
#: a user has at most 100 tokens of all names.
NAME, KEPT = "OpenPAI client", 20
#: Lifetime of a token without `expiration`, in seconds, as in OpenPAI.
EXPIRES_SECS = 7 * 86_400.0


class Issued(NamedTuple):
    """A new token. text: its secret form. admin: its user is an administrator of the site."""

    text: str
    uid: str
    admin: bool


class _Me(msgspec.Struct):
    role: str


class _Row(msgspec.Struct):
    id: str
    name: str
    status: str


class _Rows(msgspec.Struct):
    tokens: list[_Row]


class _Made(msgspec.Struct):
    secret: str


class PasswordTokens:
    """For all threads. limits: those of the page for the same passwords. uid_of: returns the uid of a
    name, durable.
    """

    def __init__(
        self,
        check: PasswordCheck,
        limits: AttemptLimits,
        site: FrontEndContext,
        uid_of: Callable[[str], str],
    ) -> None:
        self._check, self._limits, self._site, self._uid_of = check, limits, site, uid_of

    def issue(self, address: str, name: str, password: str, expires_secs: float | None) -> Issued:
        """Return a new token; of its name the oldest ones are revoked, so that KEPT are valid.

        address: of the client. Raises Refusal (tooManyRequests, signInRefused, signInDenied,
        signInUnavailable, and those of the site's hook) and ClientError.
        """
        self._limits.begin(address, name)
        account_name = self._check.name(name, password)
        self._limits.succeeded(address, name)
        uid = self._uid_of(account_name)
        upstream = self._site.upstream.acting(uid, admin=False)
        admin = msgspec.json.decode(upstream.get("whoami"), type=_Me).role == "admin"
        scopes: tuple[Scope, ...] = ("read", "control", "admin") if admin else ("read", "control")
        account.authorize_scopes(self._site, uid, scopes)
        known = msgspec.json.decode(upstream.post("token-list", TokenList(uid=uid)), type=_Rows)
        live = [row.id for row in known.tokens if row.name == NAME and row.status == LIVE]
        for id_ in live[: max(0, len(live) - KEPT + 1)]:
            reason = f"{NAME}: newer tokens exist"
            upstream.post("token-revoke", TokenRevoke(uid=uid, id=id_, reason=reason))
        request = TokenCreate(
            uid=uid, name=NAME, scopes=scopes, expires_secs=expires_secs or EXPIRES_SECS
        )
        made = msgspec.json.decode(upstream.post("token-create", request), type=_Made)
        self._site.log("issued an API token to u={} by PAM", uid)
        return Issued(made.secret, uid, admin)
