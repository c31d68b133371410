"""API tokens of users: their form, scopes and limits. Pure.

A token is `jst_<id>_<secret>`. The id may be shown and logged; the secret is shown once, to its
user, and only its digest is stored.
"""

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from typing import Annotated, Literal, get_args

import msgspec

from ..errors import Refusal
from ..fields import Form
from ..ids import base62

#: What a token may do: read, submit and control runs, debug them, and use its user's role for other
#: users and the site. No scope includes another one.
Scope = Literal["read", "control", "debug", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
#: Role of a user at a site. A group admin may act for the members of the groups.
UserRole = Literal["user", "groupAdmin", "admin"]

DAY_SECS = 86_400.0
DEFAULT_SECS, MAX_SECS = 90 * DAY_SECS, 366 * DAY_SECS
#: Tokens of one user that are neither expired nor revoked.
MAX_LIVE = 100
#: Random bytes for an id and for a secret.
ID_BYTES, SECRET_BYTES = 8, 32
PREFIX = "jst_"
#: Status of a token in lists, if it is neither revoked nor expired.
LIVE = "live"
_TOKEN = re.compile(r"jst_([A-Za-z0-9]{8})_([A-Za-z0-9_-]{43})", re.ASCII)

TokenId = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{8}\Z"), Form("the id of a token: 8 letters or digits")
]
TokenName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9_. @-]{0,62}[A-Za-z0-9_.@-])?\Z"),
    Form("letters, digits, blanks and _ . @ - (at most 64), beginning with a letter or digit"),
]


class TokenText(msgspec.Struct, frozen=True):
    """The two parts of a token."""

    id: str
    secret: str

    def __str__(self) -> str:
        return f"{PREFIX}{self.id}_{self.secret}"

    def __repr__(self) -> str:
        return f"TokenText({self.id})"


def generate(entropy: bytes) -> TokenText:
    """Return a new token. entropy: ID_BYTES + SECRET_BYTES random bytes."""
    secret = urlsafe_b64encode(entropy[ID_BYTES : ID_BYTES + SECRET_BYTES]).decode().rstrip("=")
    return TokenText(base62(entropy[:ID_BYTES], ID_BYTES), secret)


def parse(text: str) -> TokenText:
    """Return the parts of a token. Raises Refusal("unauthenticated") for another text."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise Refusal(
            "unauthenticated",
            f"the API token is incomplete or damaged: it has {len(text)} characters, a token has"
            f" {len(PREFIX) + 8 + 1 + 43}",
        )
    return TokenText(match[1], match[2])


def digest(secret: str) -> str:
    """Return the stored form of a secret: its SHA-256 in hex. A secret has 256 random bits, so a
    slow hash would add nothing.
    """
    return hashlib.sha256(secret.encode("ascii", "replace")).hexdigest()


def matches(secret: str, stored: str) -> bool:
    """Compare a secret with its stored form, in constant time."""
    return hmac.compare_digest(digest(secret), stored)
