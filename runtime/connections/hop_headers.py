"""Headers of HTTP requests and answers that a proxy must not forward. Pure."""

from tornado.httputil import HTTPHeaders

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
#: Headers that name the client; each proxy sets its own.
FORWARDED = frozenset(
    {"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-port", "forwarded"}
)


def passed_on(headers: HTTPHeaders, more: frozenset[str] = frozenset()) -> HTTPHeaders:
    """Return the headers to forward, without those of this connection and those in `more`, which only
    the proxy may set. more: small letters.
    """
    named = {
        name.strip().lower()
        for value in headers.get_list("Connection")
        for name in value.split(",")
    }
    kept = HTTPHeaders()
    for name, value in headers.get_all():
        if name.lower() not in _HOP_BY_HOP | named | more:
            kept.add(name, value)
    return kept
