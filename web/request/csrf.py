"""Check against cross-site request forgery: a request that changes state must come from a page of
this site. Independent of the route.

Two independent checks. A form of another site can send neither JSON nor a custom header without a
preflight request, which is never answered. And if the browser states the origin of a request, the
origin must be this site.
"""

from urllib.parse import urlsplit

from werkzeug.datastructures import Headers

from ...protocol.errors import Refusal

#: Required header for requests without a JSON body: uploads and deletions.
HEADER = "X-Jobscribe"
_PORTS = {"http": 80, "https": 443}


def check(headers: Headers, host: str, *, wants_json: bool) -> None:
    """Raise Refusal("crossSite") for a request of another site. host: Host header of the request."""
    if wants_json:
        if (headers.get("Content-Type") or "").partition(";")[
            0
        ].strip().lower() != "application/json":
            raise Refusal("crossSite", "this request must be JSON (Content-Type: application/json)")
    elif HEADER not in headers:
        raise Refusal("crossSite", f"this request must have the header {HEADER}")
    check_origin(headers, host)


def check_origin(headers: Headers, host: str, *, required: bool = False) -> None:
    """Raise Refusal("crossSite") if the stated origin is another site. required: also if no
    origin is stated.
    """
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None and site != "same-origin":
        raise Refusal("crossSite", "this request comes from another site")
    if origin is not None and not _same(origin, host):
        raise Refusal("crossSite", "this request comes from another site")
    if required and site is None and origin is None:
        raise Refusal("crossSite", "this request does not state its origin")


def _same(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
        there, here = (parts.hostname, parts.port), urlsplit(f"//{host}")
        standard = _PORTS.get(parts.scheme)
        return (
            standard is not None
            and there[0] is not None
            and (there[0], there[1] or standard) == (here.hostname, here.port or standard)
        )
    except ValueError:
        return False
