"""What a supervisor says of itself when it lets an agent in: a header of the answer to the handshake, which other versions ignore."""

import json

import msgspec

HEADER = "X-Jobscribe-Site"


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
