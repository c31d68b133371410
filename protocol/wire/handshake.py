"""Headers in which the supervisor and its clients state their versions and the acting user. Other
versions ignore them.

The supervisor answers an agent's handshake with HEADER. A front end sends FRONT_END with every
request.
"""

import json

import msgspec

HEADER = "X-Jobscribe-Site"
#: Request format_header with the version of a front end.
FRONT_END = "X-Jobscribe-Front-End"
#: Request header in which the holder of the server secret names the user who really acts.
ACTOR = "X-Jobscribe-Actor"


class SiteHello(msgspec.Struct, frozen=True):
    """Version of a front end or supervisor. version: of the package jobscribe. apps: the setting
    `apps.also`.
    """

    version: str
    apps: tuple[str, ...] = ()


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
