"""The credentials of one sign-in. Lives in its own module so that the sign-in and the attempts at
its hosts can both import it.
"""

from typing import Any

import msgspec


class Credentials(msgspec.Struct, kw_only=True):
    """A user name with its secrets. Its representation shows none of them. `connect` empties it, on
    success and on failure.
    """

    user: str
    password: str | None = None
    code: str | None = None
    key: str | None = None
    passphrase: str | None = None
    certificate: str | None = None

    def __repr__(self) -> str:
        return "Credentials()"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []

    #: representation in logs
    pkdebug_str = __repr__

    def forget(self) -> None:
        self.password = self.code = self.key = self.passphrase = self.certificate = None
