"""Was this request sent by a page of this site? What changes something must show it; nothing here
knows what is asked for.

Two lines of defence, either of which would do: a form of another site can send neither JSON nor a
header of ours without being asked for by a preflight request, which is never answered; and where
the browser says from where a request comes, it must be here.
"""

from urllib.parse import urlsplit

from werkzeug.datastructures import Headers

from ...protocol.errors import Refusal

#: Goes with what has no JSON body: uploads and deletions.
HEADER = "X-Jobscribe"
_PORTS = {"http": 80, "https": 443}


def check(headers: Headers, host: str, *, wants_json: bool) -> None:
    """Raises Refusal("crossSite"). host: the request's own, as its sender wrote it."""
    if wants_json:
        if (headers.get("Content-Type") or "").partition(";")[
            0
        ].strip().lower() != "application/json":
            raise Refusal("crossSite", "this request must be JSON (Content-Type: application/json)")
    elif HEADER not in headers:
        raise Refusal("crossSite", f"this request must have the header {HEADER}")
    check_origin(headers, host)


def check_origin(headers: Headers, host: str, *, must_be_said: bool = False) -> None:
    """Raises Refusal("crossSite") unless the request comes from this site, as far as it says."""
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None and site != "same-origin":
        raise Refusal("crossSite", "this request comes from another site")
    if origin is not None and not _same(origin, host):
        raise Refusal("crossSite", "this request comes from another site")
    if must_be_said and site is None and origin is None:
        raise Refusal("crossSite", "this request does not say from where it comes")


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
