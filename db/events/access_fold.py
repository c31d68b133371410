"""The fold of the stream `access`: the API tokens of all users by their id. Pure."""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from .events import AccessEvent, TokenCreated, TokenRevoked


class ApiToken(msgspec.Struct, frozen=True, kw_only=True):
    """An API token. Times are unix seconds. revoked_at: None while it is not revoked. by, parent:
    see TokenCreated.
    """

    id: str
    uid: str
    name: str
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float
    secret_hash: str
    by: str
    parent: str | None = None
    revoked_at: float | None = None

    def live(self, now: float) -> bool:
        """Return whether it is neither revoked nor expired. now: of the supervisor's clock."""
        return self.revoked_at is None and now < self.expires_at


def evolve_token(token: ApiToken | None, event: AccessEvent) -> ApiToken | None:
    """Return the token after the event; None if the token is unknown. The first revocation counts."""
    match event:
        case TokenCreated():
            return ApiToken(
                id=event.id,
                uid=event.uid,
                name=event.name,
                scopes=event.scopes,
                created_at=event.at,
                expires_at=event.expires_at,
                secret_hash=event.secret_hash,
                by=event.by,
                parent=event.parent,
            )
        case TokenRevoked():
            if token is None or token.revoked_at is not None:
                return token
            return msgspec.structs.replace(token, revoked_at=event.at)
        case _:
            assert_never(event)


def fold_tokens(events: Iterable[AccessEvent]) -> dict[str, ApiToken]:
    """Return all tokens by id."""
    tokens: dict[str, ApiToken] = {}
    for event in events:
        if (token := evolve_token(tokens.get(event.id), event)) is not None:
            tokens[event.id] = token
    return tokens
