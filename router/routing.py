"""Which shards a request concerns, and the headers that they get. Pure.

The route table of the API says where a request names its users (`Subject`).
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from tornado.httputil import HTTPHeaders

from ..protocol.errors import Refusal
from ..protocol.shards import shard_of
from ..protocol.wire.handshake import (
    ACTOR,
    FRONT_END,
    HOME_TOKEN,
    PEER,
    SIGNED_IN,
    TOKEN_SCOPES,
)
from ..runtime.connections.hop_headers import FORWARDED, passed_on
from ..supervisor.api.transport.authorization import Subject
from ..supervisor.api.transport.request_handler import Route
from .senders import Sender

#: Headers that a router alone sends.
_ROUTERS = frozenset(h.lower() for h in (TOKEN_SCOPES, HOME_TOKEN, PEER)) | {
    "host",
    "content-length",
}
#: Headers of a front end, which has the server secret.
_TRUSTED = frozenset(h.lower() for h in (ACTOR, SIGNED_IN, FRONT_END))


class Found(NamedTuple):
    """A route, and the parts of the path that it names."""

    route: Route
    parts: dict[str, str]


class Table:
    """The route table, by path and method."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._plain: dict[str, list[Route]] = {}
        self._patterns: list[tuple[re.Pattern[str], Route]] = []
        for route in routes:
            if re.fullmatch(r"[\w/.-]+", route.path):
                self._plain.setdefault(route.path, []).append(route)
            else:
                self._patterns.append((re.compile(route.pattern), route))

    def find(self, path: str, method: str) -> Found:
        """Return the route; without one for this method, another one of this path, which refuses it."""
        found = [Found(route, {}) for route in self._plain.get(path, ())]
        if not found:
            found = [
                Found(route, {n: unquote(part) for n, part in match.groupdict().items()})
                for pattern, route in self._patterns
                if (match := pattern.fullmatch(path)) is not None
            ]
        return next((f for f in found if method in f.route.methods), found[0])


class Aim(NamedTuple):
    """The shards that get a request. shards: empty for any one. whole: the request is about all users of the
    site, or about those of several shards.
    """

    shards: tuple[int, ...]
    whole: bool = False


def aim(route: Route, sender: Sender, named: Iterable[str], total: int) -> Aim:
    """Return the shards of a request. named: the users whom it names, or the sender's members. Raises
    Refusal("notSharded").
    """
    shards = tuple(sorted({shard_of(uid, total) for uid in named}))
    if len(shards) == 1:
        return Aim(shards)
    if shards:
        return Aim(shards, whole=True)
    principal = sender.principal
    match route.subject:
        case (
            Subject.ALL
            | Subject.BODY_OR_ALL
            | Subject.BODY_OR_MEMBERS
            | Subject.QUERY_OR_ALL
            | Subject.USERNAMES_OR_ALL
        ) if principal is not None:
            if principal.all_users or principal.uid is None or route.subject is Subject.ALL:
                return Aim(tuple(range(total)), whole=True)
        case _:
            pass
    if sender.home is not None:
        return Aim((sender.home,))
    if principal is not None and principal.uid is not None:
        return Aim((shard_of(principal.uid, total),))
    return Aim(())


def headers_for(
    given: HTTPHeaders, sender: Sender, shard: int | None, *, secret: str, signed_peer: str
) -> HTTPHeaders:
    """Return the headers of a request for this shard. secret: the server secret. signed_peer: the
    client's address.

    No header with which a client could name another user or other scopes is passed on: those of a
    front end need the server secret, and those of a router are always its own.
    """
    removed = _ROUTERS | FORWARDED | (frozenset() if sender.secret else _TRUSTED)
    out = passed_on(given, removed)
    out[PEER] = signed_peer
    principal = sender.principal
    if sender.home is not None and shard not in (None, sender.home):
        assert principal is not None and principal.uid is not None
        out["Authorization"] = f"Bearer {secret}"
        out[SIGNED_IN] = principal.uid
        out[TOKEN_SCOPES] = ",".join(sorted(principal.scopes))
        if sender.token is not None:
            out[HOME_TOKEN] = sender.token.header()
    return out


def not_sharded(route: Route, shards: Iterable[int], total: int) -> Refusal:
    """Return the refusal of a request for several shards that has no rule to merge the answers."""
    names = ", ".join(map(str, shards))
    return Refusal(
        "notSharded",
        f"{route.path} cannot be answered for several shards at once (here {names} of {total}): name one user, or"
        " users of one shard; the supervisor of each shard answers for its own users (--root ROOT/shards/K)",
    )
