"""The sign-in sessions of a user, for sites that keep them."""

from typing import Annotated, Protocol

import msgspec

SignInId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]


class SignInRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A session. id: names it in requests, and is no secret. begun: unix seconds; 0 if unknown.
    browser: such as `Firefox on Linux`; empty if unknown. current: the session of the request.
    """

    id: str
    begun: float
    until: float
    browser: str
    current: bool


class OwnSignIns(Protocol):
    """The sessions that a site keeps."""

    def of(self, uid: str) -> list[SignInRow]:
        """Return the sessions of a user that have not ended, newest first."""

    def end(self, uid: str, id_: str) -> None:
        """End a session of this user. Repeating it is harmless. Raises Refusal."""
