"""Headers by which a supervisor and those who connect to it state their versions. Other versions
ignore them.

The supervisor answers an agent's handshake with HEADER. A front end sends FRONT_END with every
request.
"""

import json

import msgspec

HEADER = "X-Jobscribe-Site"
#: The version of jobscribe that a front end is of.
FRONT_END = "X-Jobscribe-Front-End"


class SiteHello(msgspec.Struct, frozen=True):
    """version: of jobscribe. apps: the setting `apps.also`."""

    version: str
    apps: tuple[str, ...] = ()


def header(hello: SiteHello) -> str:
    """One line of ASCII."""
    return json.dumps(msgspec.to_builtins(hello), separators=(",", ":"))


def parsed(text: str | None) -> SiteHello | None:
    """None where the supervisor says nothing, or something else: it is of another version."""
    try:
        return None if text is None else msgspec.json.decode(text, type=SiteHello)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
