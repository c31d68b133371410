"""Short-lived signed tickets with which a web page opens its event stream. The server's shared
secret signs and verifies them.

Pure: the time is an argument. A ticket names a user and an expiry time, and nothing else. It is
sent in a header, never in a URL, and is worthless after it expires.
"""

import base64
import hashlib
import hmac
import struct

from ..errors import Refusal
from ..ids import parse

#: The HTTP header that carries the ticket.
HEADER = "X-Jobscribe-Ticket"
LIFE_SECS = 30.0
#: Upper limit of the remaining lifetime. A ticket with more left is refused.
LONGEST_SECS = 2 * LIFE_SECS

_END = struct.Struct(">Q")
_MAC_BYTES = 32


def sign(secret: str, uid: str, now: float, life_secs: float = LIFE_SECS) -> str:
    """Return a ticket for this user, valid until `now + life_secs` (unix seconds)."""
    body = uid.encode() + _END.pack(int((now + life_secs) * 1000))
    return base64.urlsafe_b64encode(_mac(secret, body) + body).decode()


def verify(secret: str, ticket: str, now: float) -> str:
    """Return the uid that a valid ticket names. Raises Refusal("unauthenticated"). All defects but
    the age give the same sentence, so that an attacker learns nothing.
    """
    invalid = Refusal("unauthenticated", "the ticket is not valid for this site; request a new one")
    try:
        raw = base64.b64decode(ticket.encode("ascii"), altchars=b"-_", validate=True)
    except ValueError:
        raise invalid from None
    mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if len(body) <= _END.size or not hmac.compare_digest(mac, _mac(secret, body)):
        raise invalid
    uid = parse("uid", body[: -_END.size].decode("ascii"))
    left = _END.unpack(body[-_END.size :])[0] - now * 1000
    # More than the longest lifetime is left if the clock was set back; the ticket may have expired
    # before that.
    if not 0 <= left <= LONGEST_SECS * 1000:
        raise Refusal("unauthenticated", "the ticket has expired; request a new one")
    return uid


def _mac(secret: str, body: bytes) -> bytes:
    return hmac.digest(
        hashlib.sha256(b"jobscribe ticket\0" + secret.encode()).digest(), body, "sha256"
    )
