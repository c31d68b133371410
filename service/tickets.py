"""Short-lived signed tickets with which a web page opens its event stream: the front end signs them,
and the supervisor verifies them, both with the server's shared secret. After a rotation of the
secret, tickets of the earlier one are valid as long as it is.

Pure: the time is an argument. A ticket names a user, an expiry time, and whether the site calls the
user an administrator, and nothing else. It is
sent in a header, never in a URL, and is worthless after it expires.
"""

import hashlib
import hmac
from typing import NamedTuple

from itsdangerous import BadData, URLSafeSerializer

from ..protocol.errors import Refusal
from ..protocol.ids import parse

#: The HTTP header that carries the ticket.
HEADER = "X-Jobscribe-Ticket"
LIFE_SECS = 30.0
#: Upper limit of the remaining lifetime. A ticket with more left is refused.
LONGEST_SECS = 2 * LIFE_SECS


class Holder(NamedTuple):
    """The user of a ticket. admin: an administrator by the site's own hook."""

    uid: str
    admin: bool = False


def sign(
    secret: str, uid: str, now: float, life_secs: float = LIFE_SECS, *, admin: bool = False
) -> str:
    """Return a ticket for this user, valid until `now + life_secs` (unix seconds)."""
    content = [uid, int((now + life_secs) * 1000)]
    return _signer((secret,)).dumps([*content, "admin"] if admin else content)


def verify(secrets: tuple[str, ...], ticket: str, now: float) -> Holder:
    """Return the user whom a valid ticket names. secrets: those that may have signed it, the current
    one first. Raises Refusal("unauthenticated"). All defects but the age give the same sentence, so
    that an attacker learns nothing.
    """
    try:
        uid, until, *more = _signer(secrets).loads(ticket)
    except (BadData, ValueError):
        raise Refusal(
            "unauthenticated", "the ticket is not valid for this site; request a new one"
        ) from None
    # More than the longest lifetime is left if the clock was set back; the ticket may have expired
    # before that.
    if not 0 <= until - now * 1000 <= LONGEST_SECS * 1000:
        raise Refusal("unauthenticated", "the ticket has expired; request a new one")
    return Holder(parse("uid", uid), more == ["admin"])


def sign_peer(secret: str, address: str) -> str:
    """Return the address of a client, signed by a router."""
    return f"{address} {_peer_mark(secret, address)}"


def peer(secrets: tuple[str, ...], text: str) -> str | None:
    """Return the address that a router has signed; None if no router has."""
    address, _, mark = text.rpartition(" ")
    given = mark.encode(errors="replace")
    valid = [hmac.compare_digest(given, _peer_mark(s, address).encode()) for s in secrets]
    return address if any(valid) else None


def _peer_mark(secret: str, address: str) -> str:
    return hmac.digest(secret.encode(), b"jobscribe peer\0" + address.encode(), "sha256").hex()


def _signer(secrets: tuple[str, ...]) -> URLSafeSerializer:
    """The expiry time is part of the payload: the timed signers of itsdangerous read the clock."""
    return URLSafeSerializer(
        list(secrets[::-1]),  # itsdangerous signs with the last one
        salt="jobscribe ticket",
        signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256},
    )
