"""Addresses of Unix sockets: `http+unix://` with the quoted path, as other HTTP clients write them."""

from urllib.parse import quote, unquote

_SCHEME = "http+unix://"


def unix_url(path: str) -> str:
    """Return the address of the supervisor at this socket."""
    return _SCHEME + quote(path, safe="")


def unix_path(url: str) -> str | None:
    """Return the absolute path of the socket; None for another address."""
    if not url.startswith(_SCHEME):
        return None
    path = unquote(url[len(_SCHEME) :])
    return path if path.startswith("/") else None
