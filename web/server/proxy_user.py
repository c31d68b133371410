"""The user of a request by the header of the site's reverse proxy, which has authenticated it.

`waitress_server` removes the header from requests of other senders.
"""

import flask

from .user_ids import MOST_CHARS


class ProxyUser:
    """A user hook. header: its name."""

    def __init__(self, header: str) -> None:
        self._header = header

    def __call__(self, request: flask.Request) -> str | None:
        """Return the name in the header; None without a valid one."""
        name = (request.headers.get(self._header) or "").strip()
        return name if 0 < len(name) <= MOST_CHARS and name.isprintable() else None
