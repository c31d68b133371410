"""The API tokens of all users: folded from the log at the start, and changed only by durable events."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ...db.events.access_fold import ApiToken, evolve_token, fold_tokens
from ...db.events.events import ACCESS, AccessEvent, TokenCreated, TokenRevoked
from ...protocol.api.tokens import (
    DEFAULT_SECS,
    ID_BYTES,
    MAX_LIVE,
    SECRET_BYTES,
    Scope,
    TokenText,
    digest,
    generate,
    matches,
)
from ...protocol.errors import Refusal
from ..engine.decision_loop import Engine
from .principal import Principal
from .streams import StreamWriter

#: Compared for an unknown id, so that it takes the same time as a known one.
_NO_DIGEST = digest("")


class HomeToken(NamedTuple):
    """An API token of another shard, which a router has checked. expires_at: unix seconds."""

    id: str
    expires_at: float

    def header(self) -> str:
        """Return it as the header HOME_TOKEN."""
        return f"{self.id} {self.expires_at!r}"

    @classmethod
    def of_header(cls, text: str | None) -> "HomeToken | None":
        """Return the token of a header; None without one, as from an earlier router."""
        id_, _, at = (text or "").partition(" ")
        try:
            return cls(id_, float(at)) if id_ else None
        except ValueError:
            return None


class ApiTokens:
    """wall: unix seconds of the supervisor's clock, which alone decides about expiry. entropy:
    returns random bytes.
    """

    def __init__(
        self, engine: Engine, wall: Callable[[], float], entropy: Callable[[int], bytes]
    ) -> None:
        self._wall, self._entropy = wall, entropy
        self._writer = StreamWriter(engine, ACCESS)
        #: unix seconds of the last use since the start
        self._used: dict[str, float] = {}
        #: one creation at a time, so that the limit of a user holds
        self._lock = asyncio.Lock()
        events = (s.event for s in engine.store.read(ACCESS))
        self._tokens = fold_tokens(e for e in events if isinstance(e, AccessEvent))

    def sizes(self) -> dict[str, int]:
        return {"tokens": len(self._tokens)}

    def live(self, token: ApiToken) -> bool:
        """Return whether the token is valid now."""
        return self._tokens[token.id].live(self._wall())

    def expired(self, home: HomeToken) -> bool:
        """Return whether a token of another shard has expired."""
        return self._wall() >= home.expires_at

    def authenticate(self, text: TokenText) -> ApiToken:
        """Return the live token. Raises Refusal: unauthenticated, tokenExpired, tokenRevoked.

        Only the holder of the secret learns more than `unauthenticated`.
        """
        token = self._tokens.get(text.id)
        if not matches(text.secret, _NO_DIGEST if token is None else token.secret_hash):
            token = None
        if token is None:
            raise Refusal("unauthenticated", "this API token is unknown here")
        if token.revoked_at is not None:
            raise Refusal("tokenRevoked", f"the API token {token.id} was revoked")
        if not token.live(self._wall()):
            raise Refusal(
                "tokenExpired",
                f"the API token {token.id} expired {self._wall() - token.expires_at:.0f} s ago"
                " by the supervisor's clock",
            )
        self._used[token.id] = self._wall()
        return token

    def last_use(self, token: ApiToken) -> float | None:
        """Return when a request had this token; None if it had none since the start."""
        return self._used.get(token.id)

    def all(self) -> list[ApiToken]:
        """Return the tokens of all users."""
        return list(self._tokens.values())

    def ended(self) -> dict[str, float]:
        """Return the revoked tokens that have not expired, with the ends of their lives in unix seconds: tokens
        of other shards that they created may live as long.
        """
        now = self._wall()
        return {
            t.id: t.expires_at
            for t in self._tokens.values()
            if t.revoked_at is not None and now < t.expires_at
        }

    def creators_elsewhere(self) -> set[str]:
        """Return the tokens of other shards that created live tokens of this one."""
        now = self._wall()
        return {
            t.parent
            for t in self._tokens.values()
            if t.parent is not None and t.parent not in self._tokens and t.live(now)
        }

    def of(self, uid: str) -> list[ApiToken]:
        """Return the tokens of a user, oldest first."""
        return sorted(
            (t for t in self._tokens.values() if t.uid == uid), key=lambda t: (t.created_at, t.id)
        )

    async def create(
        self,
        by: Principal,
        uid: str,
        name: str,
        scopes: Iterable[Scope],
        expires_secs: float | None,
        home: HomeToken | None = None,
    ) -> tuple[TokenText, ApiToken]:
        """Return a new token with its text, which is not stored. home: the token of `by`, if another
        shard has it. Raises Refusal: scopeMissing and badRequest beyond the rights of the token `by`,
        tokenLimit.
        """
        async with self._lock:
            if by.token is not None and not self.live(by.token):
                raise Refusal("tokenRevoked", f"the API token {by.token.id} is no longer valid")
            now = self._wall()
            parent = home if by.token is None else HomeToken(by.token.id, by.token.expires_at)
            event, text = self._created(by, parent, uid, name, tuple(scopes), expires_secs, now)
            await self._writer.append(event)
            token = self._apply(event)
            assert token is not None
            return text, token

    async def revoke(
        self, by: Principal, uid: str, id_: str, reason: str
    ) -> tuple[ApiToken, list[ApiToken]]:
        """Revoke this token of the user, and all tokens that it created, directly or not: who has
        learnt its secret may have created some. Return it, and the others revoked with it.
        Repeating it is harmless. Raises Refusal("notFound"), also for a token of another user.
        """
        token = self._tokens.get(id_)
        if token is None or token.uid != uid:
            raise Refusal(
                "notFound",
                f"user {uid} has no API token {id_}",
                {"advice": "'jobscribe auth token list' shows the ids"},
            )
        async with self._lock:  # no creation is under way whose token would be missed
            living = [t for t in (token, *self._created_by(id_)) if t.revoked_at is None]
            because = f"its creator {id_} was revoked"
            await self._revoke(by.name, {t.id: reason if t.id == id_ else because for t in living})
            return self._tokens[id_], [self._tokens[t.id] for t in living if t.id != id_]

    async def revoke_created(self, by: str, ids: Iterable[str]) -> tuple[list[str], list[str]]:
        """Revoke all tokens that these tokens created, directly or not; they may be those of other shards.
        Return all of these, and the ones that were not revoked before. Repeating it is harmless.
        """
        async with self._lock:
            found = {t.id: (t, id_) for id_ in ids for t in self._created_by(id_)}
            living = {
                t.id: f"its creator {creator} was revoked"
                for t, creator in found.values()
                if t.revoked_at is None
            }
            await self._revoke(by, living)
            return sorted(found), sorted(living)

    async def _revoke(self, by: str, reasons: dict[str, str]) -> None:
        now = self._wall()
        events = [TokenRevoked(at=now, id=i, by=by, reason=why) for i, why in reasons.items()]
        if events:
            await self._writer.append(*events)
        for event in events:
            self._apply(event)

    def _created_by(self, id_: str) -> Iterator[ApiToken]:
        """Yield the tokens that this token created, theirs, and so on."""
        for token in [t for t in self._tokens.values() if t.parent == id_]:
            yield token
            yield from self._created_by(token.id)

    def _apply(self, event: AccessEvent) -> ApiToken | None:
        token = evolve_token(self._tokens.get(event.id), event)
        if token is not None:
            self._tokens[event.id] = token
        return token

    def _created(
        self,
        by: Principal,
        parent: HomeToken | None,
        uid: str,
        name: str,
        scopes: tuple[Scope, ...],
        expires_secs: float | None,
        now: float,
    ) -> tuple[TokenCreated, TokenText]:
        missing = [s for s in scopes if s not in by.scopes]
        if missing:
            raise Refusal(
                "scopeMissing",
                f"a token gives only scopes that it has; yours lacks {', '.join(missing)}",
            )
        expires_at = now + (DEFAULT_SECS if expires_secs is None else expires_secs)
        if parent is not None and expires_at > parent.expires_at:
            if expires_secs is not None:
                left = parent.expires_at - now
                raise Refusal(
                    "badRequest",
                    f"a token gives no token that outlives it; yours expires in {left:.0f} s",
                )
            expires_at = parent.expires_at
        live = sum(t.live(now) for t in self._tokens.values() if t.uid == uid)
        if live >= MAX_LIVE:
            raise Refusal("tokenLimit", f"user {uid} has {live} API tokens, the maximum")
        text = generate(self._entropy(ID_BYTES + SECRET_BYTES))
        while text.id in self._tokens:
            text = generate(self._entropy(ID_BYTES + SECRET_BYTES))
        event = TokenCreated(
            at=now,
            id=text.id,
            uid=uid,
            name=name,
            scopes=scopes,
            expires_at=expires_at,
            secret_hash=digest(text.secret),
            by=by.name,
            parent=None if parent is None else parent.id,
        )
        return event, text
