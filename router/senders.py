"""The senders of requests: who they are, and the shard that has their API token.

A token is looked up by `whoami` at each shard. The answer is remembered for routing alone: the shard
checks the token in each request that it gets, and `confirmed` asks again before the router vouches for
the token at another shard.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from tornado.httputil import HTTPHeaders

from ..protocol.api.tokens import PREFIX
from ..protocol.errors import CODES, Refusal
from ..protocol.ids import parse as parse_id
from ..protocol.shards import shard_of
from ..protocol.wire.handshake import ACTOR, PEER, SIGNED_IN
from ..service import tickets
from ..service.site.users_file import Users
from ..supervisor.access.api_tokens import HomeToken
from ..supervisor.access.authentication import person, token_user
from ..supervisor.access.principal import MONITOR, Principal
from ..supervisor.access.request_rates import RequestRates
from ..supervisor.process.site_secrets import SiteSecrets
from .shard_addresses import no_supervisor
from .upstream import Answer

#: Time for which the shard of a token is remembered, and the number of tokens.
KNOWN_SECS, MOST_KNOWN = 10.0, 10_000
_BEARER = "Bearer "

#: Asks a shard for `whoami`; None if no supervisor of it answers.
Ask = Callable[[int, HTTPHeaders], Awaitable[Answer | None]]


class Sender(NamedTuple):
    """The sender of a request. home: the shard that has its API token. principal: None for an unknown
    sender of an open route. token: the API token.
    """

    principal: Principal | None
    home: int | None = None
    token: HomeToken | None = None

    @property
    def secret(self) -> bool:
        """Return whether it has the server secret."""
        return self.principal is not None and self.principal.secret is not None


class _Token(msgspec.Struct, rename="camel"):
    id: str
    expires_at: float


class _Whoami(msgspec.Struct):
    uid: str
    scopes: tuple[str, ...]
    token: _Token | None = None


class Senders:
    """total: number of shards. mono: seconds."""

    def __init__(
        self,
        secrets: SiteSecrets,
        users: Users,
        rates: RequestRates,
        ask: Ask,
        total: int,
        mono: Callable[[], float],
    ) -> None:
        self._secrets, self._users, self._rates = secrets, users, rates
        self._ask, self._total, self._mono = ask, total, mono
        self._known: dict[bytes, tuple[float, Sender]] = {}

    async def of(self, headers: HTTPHeaders, peer: str, *, monitors: bool, needed: bool) -> Sender:
        """Return the sender with these headers. monitors: the token for monitoring is accepted. needed:
        an unknown sender is refused. Raises Refusal: unauthenticated, tokenExpired, tokenRevoked,
        badRequest, tooManyRequests, noSupervisor.
        """
        authorization = headers.get("Authorization", "")
        if authorization.startswith(_BEARER + PREFIX):
            return await self._holder(authorization, peer)
        secret = self._secrets.server.holder(authorization)
        if secret is not None:
            return Sender(self._trusted(headers, secret))
        if monitors and self._secrets.metrics.holder(authorization) is not None:
            return Sender(MONITOR)
        if needed:
            self._rates.failure(peer)
            raise Refusal("unauthenticated", "the secret is missing or wrong")
        return Sender(None)

    def viewer(self, ticket: str, now: float) -> Principal:
        """Return the user of a ticket of a front end. Raises Refusal("unauthenticated")."""
        found = self._secrets.server.try_all(lambda keys: tickets.verify(keys, ticket, now))
        if found.admin:
            return Principal(uid=found.uid, role="secretHolder")
        return person(self._users, found.uid)

    async def confirmed(self, headers: HTTPHeaders, peer: str) -> Sender:
        """Return the sender after the shard of its token has checked it now. Raises Refusal."""
        authorization = headers.get("Authorization", "")
        self._known.pop(_digest(authorization), None)
        return await self._holder(authorization, peer)

    def forget(self, headers: HTTPHeaders) -> None:
        """Forget the shard of a token that its shard refused."""
        self._known.pop(_digest(headers.get("Authorization", "")), None)

    def _trusted(self, headers: HTTPHeaders, secret: str) -> Principal:
        signed_in, actor = headers.get(SIGNED_IN), headers.get(ACTOR)
        if signed_in is not None:
            found = person(self._users, parse_id("uid", signed_in))
            return msgspec.structs.replace(found, secret=secret)
        if actor is not None:
            return Principal(uid=parse_id("uid", actor), role="secretHolder", secret=secret)
        return Principal(secret=secret)

    async def _holder(self, authorization: str, peer: str) -> Sender:
        digest, now = _digest(authorization), self._mono()
        found = self._known.get(digest)
        if found is not None and now - found[0] < KNOWN_SECS:
            return found[1]
        sender = await self._looked_up(authorization, peer)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[digest] = now, sender
        return sender

    async def _looked_up(self, authorization: str, peer: str) -> Sender:
        def headers() -> HTTPHeaders:
            signed = tickets.sign_peer(self._secrets.server.current, peer)
            return HTTPHeaders({"Authorization": authorization, PEER: signed})

        shards = range(self._total)
        answers = await asyncio.gather(*(self._ask(shard, headers()) for shard in shards))
        for shard, answer in zip(shards, answers, strict=True):
            if answer is not None and answer.code == 200:
                who = msgspec.json.decode(answer.body, type=_Whoami)
                if shard_of(who.uid, self._total) == shard:
                    token = (
                        None if who.token is None else HomeToken(who.token.id, who.token.expires_at)
                    )
                    user = token_user(self._users, who.uid, frozenset(who.scopes))
                    return Sender(user, shard, token)
        missing = [s for s, answer in zip(shards, answers, strict=True) if answer is None]
        refused = [_refusal(a) for a in answers if a is not None and a.code != 200]
        for refusal in refused:
            if refusal.code != "unauthenticated":
                raise refusal
        if missing:
            raise no_supervisor(missing)
        raise (
            refused[0] if refused else Refusal("unauthenticated", "this API token is unknown here")
        )


class _Refused(msgspec.Struct):
    code: str = "internal"
    error: str = ""
    retry_after_secs: float | None = msgspec.field(default=None, name="retryAfterSecs")


def _refusal(answer: Answer) -> Refusal:
    """Return the refusal that a shard sent."""
    try:
        found = msgspec.json.decode(answer.body, type=_Refused)
    except msgspec.DecodeError:
        found = _Refused(error=f"a supervisor answered with HTTP {answer.code}")
    more = {} if found.retry_after_secs is None else {"retryAfterSecs": found.retry_after_secs}
    return Refusal(found.code if found.code in CODES else "internal", found.error, more)


def _digest(authorization: str) -> bytes:
    return hashlib.sha256(authorization.encode()).digest()
