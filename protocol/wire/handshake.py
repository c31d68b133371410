"""Headers in which the supervisor and its clients state their versions and the acting user. Other
versions ignore them.

An agent states its protocol versions in PROTOCOLS, and the supervisor answers its handshake with
HEADER: both then use the highest common version. Version 0.1 states none. A front end sends
FRONT_END with every request.
"""

import json

import msgspec

from .versions import SPOKEN, UNSTATED, Protocols

#: Request header with the range of protocol versions of an agent.
PROTOCOLS = "X-Jobscribe-Protocols"
#: HTTP status for an agent whose range has no version in common with the supervisor's.
NO_COMMON_VERSION = 426
HEADER = "X-Jobscribe-Site"
#: Request format_header with the version of a front end.
FRONT_END = "X-Jobscribe-Front-End"
#: Request header in which the holder of the server secret names the user who really acts.
ACTOR = "X-Jobscribe-Actor"
#: Request header in which a front end, which holds the server secret, names its signed-in user: the
#: request may do what this user's role allows.
SIGNED_IN = "X-Jobscribe-Signed-In"
#: Request header in which a front end that forwards requests states its own address, for links in the
#: answer.
PUBLIC_URL = "X-Jobscribe-Public-Url"
#: Request header beside it, of a router: the scopes of the API token of this user. The request may do
#: what the token allows.
TOKEN_SCOPES = "X-Jobscribe-Scopes"
#: Request header beside it: id of this API token and when it expires, in unix seconds.
HOME_TOKEN = "X-Jobscribe-Token"
#: Request header of a router: the address of its client, signed with the server secret.
PEER = "X-Jobscribe-Peer"


class SiteHello(msgspec.Struct, frozen=True):
    """Version of a supervisor. version: of the package jobscribe. apps: the setting `apps.also`.
    protocols: oldest and newest protocol version.
    """

    version: str
    apps: tuple[str, ...] = ()
    protocols: tuple[int, int] = UNSTATED

    @property
    def spoken(self) -> Protocols:
        """Return the range of protocol versions."""
        return Protocols(*self.protocols)


def hello(version: str, apps: tuple[str, ...], spoken: Protocols = SPOKEN) -> SiteHello:
    """Return the hello of a supervisor."""
    return SiteHello(version, apps, (spoken.oldest, spoken.newest))


def format_header(hello: SiteHello) -> str:
    """Encode the header value: one line of ASCII."""
    return json.dumps(msgspec.to_builtins(hello), separators=(",", ":"))


def parse_header(text: str | None) -> SiteHello | None:
    """Return the decoded header, or None if the supervisor sent none or an unknown format (another
    version).
    """
    try:
        return None if text is None else msgspec.json.decode(text, type=SiteHello)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
