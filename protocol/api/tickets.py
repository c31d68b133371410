"""Short-lived signed tickets: what a page shows to open its stream of news. The server's secret
signs, who has it can check.

Pure: the time is an argument. A ticket names a user and the moment until which it opens a stream,
and nothing else; it is no secret worth stealing after that, and it is sent in a header, never in an
address.
"""

import base64
import hashlib
import hmac
import struct

from ..errors import Refusal
from ..ids import parse

#: The header that carries it.
HEADER = "X-Jobscribe-Ticket"
LIFE_SECS = 30.0
#: None is good for longer, whatever the clock says.
LONGEST_SECS = 2 * LIFE_SECS

_END = struct.Struct(">Q")
_MAC_BYTES = 32


def sign(secret: str, uid: str, now: float, life_secs: float = LIFE_SECS) -> str:
    """A ticket of this user, good until `now + life_secs` (unix seconds)."""
    body = uid.encode() + _END.pack(int((now + life_secs) * 1000))
    return base64.urlsafe_b64encode(_mac(secret, body) + body).decode()


def opened(secret: str, ticket: str, now: float) -> str:
    """The uid that a ticket names. Raises Refusal("unauthenticated"), in one sentence for all that
    is wrong with it but its age.
    """
    no = Refusal("unauthenticated", "this is no ticket of this site; ask for a new one")
    try:
        raw = base64.b64decode(ticket.encode("ascii"), altchars=b"-_", validate=True)
    except ValueError:
        raise no from None
    mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if len(body) <= _END.size or not hmac.compare_digest(mac, _mac(secret, body)):
        raise no
    uid = parse("uid", body[: -_END.size].decode("ascii"))
    left = _END.unpack(body[-_END.size :])[0] - now * 1000
    if (
        not 0 <= left <= LONGEST_SECS * 1000
    ):  # more, and the clock was set back since: it may have been too old before
        raise Refusal("unauthenticated", "the ticket is too old; ask for a new one")
    return uid


def _mac(secret: str, body: bytes) -> bytes:
    return hmac.digest(
        hashlib.sha256(b"jobscribe ticket\0" + secret.encode()).digest(), body, "sha256"
    )
