"""Expiry of certificate files. No TLS connection is made here."""

import datetime
import ssl
from collections.abc import Iterator

from ..settings.settings import Settings

#: A certificate is reported this long before it expires, in seconds.
SOON_SECS = 14 * 86400.0


def expiry(path: str) -> float | None:
    """Return the time at which the first certificate in a PEM file expires, in unix seconds; None
    if it cannot be read.

    Python can decode a certificate without a connection only by this function of its `ssl` module.
    """
    decode = getattr(getattr(ssl, "_ssl", None), "_test_decode_cert", None)
    if decode is None:
        return None
    try:
        return float(ssl.cert_time_to_seconds(decode(path)["notAfter"]))
    except (OSError, ValueError, KeyError):
        return None


def expiry_sentence(path: str, expires: float, now: float) -> str | None:
    """Return a sentence about a certificate that has expired or will soon; else None."""
    left = expires - now
    if left > SOON_SECS:
        return None
    at = f"{datetime.datetime.fromtimestamp(expires, datetime.UTC):%Y-%m-%d %H:%M} UTC"
    if left <= 0:
        return f"the certificate {path} has expired at {at}: new connections fail"
    days = int(left // 86400)
    return f"the certificate {path} expires at {at}, in {f'{days} days' if days else 'less than a day'}"


def expiry_warnings(settings: Settings, now: float) -> Iterator[str]:
    """Yield a sentence for each certificate of a listener that has expired or will soon."""
    s = settings.supervisor
    for path in dict.fromkeys(p for p in (s.agents_tls_cert, s.tls_cert) if p is not None):
        expires = expiry(path)
        sentence = None if expires is None else expiry_sentence(path, expires, now)
        if sentence is not None:
            yield sentence
