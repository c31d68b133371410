"""Delivery by HTTP: one signed POST. The status line decides; the reply body is read only briefly
and not kept.
"""

import asyncio
import email.utils
import hashlib
import hmac
import socket
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import tornado.httpclient
import tornado.netutil
from tornado.httputil import HTTPHeaders
from tornado.simple_httpclient import HTTPStreamClosedError, HTTPTimeoutError, SimpleAsyncHTTPClient

from ...protocol.redaction import Redactor
from ...protocol.version import VERSION
from ...runtime.one_shot_thread import in_thread
from ...service.site.notification_file import Target
from .sender import DeliveryResult, Notification

#: Maximum bytes of a reply to read, and to keep for people.
MOST_READ, MOST_SHOWN = 64 * 1024, 500
_HEADER_BYTES = 16 * 1024
#: Extra time beyond the client's own time limit.
_GRACE_SECS = 5.0
_GONE, _BUSY = 410, (429, 503)


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Sign the time and the body, so that a receiver detects changed or replayed messages."""
    return (
        "sha256="
        + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    )


class Webhook:
    """The webhook of one target. secret: signing key. headers: additional headers. wall: clock for
    the timestamp.
    """

    def __init__(
        self,
        target: Target,
        *,
        secret: str | None,
        headers: dict[str, str],
        redactor: Redactor,
        wall: Callable[[], float],
    ) -> None:
        self._target, self._secret, self._headers, self._redactor, self._wall = (
            target,
            secret,
            headers,
            redactor,
            wall,
        )
        assert target.url is not None
        self._url = target.url
        self._tls = (
            ssl.create_default_context(cafile=target.ca_file)
            if urlsplit(target.url).scheme == "https"
            else None
        )
        self._client = SimpleAsyncHTTPClient(
            force_instance=True,
            max_clients=target.max_parallel + 1,
            resolver=_Resolver(),
            max_buffer_size=2 * MOST_READ,
            max_body_size=MOST_READ,
            max_header_size=_HEADER_BYTES,
        )

    def close(self) -> None:
        self._client.close()

    async def send(self, notification: Notification) -> DeliveryResult:
        reply = _Reply()
        timestamp = str(int(self._wall()))
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            "User-Agent": f"jobscribe/{VERSION}",
            "Idempotency-Key": notification.id,
            "X-Jobscribe-Id": notification.id,
            "X-Jobscribe-Event": notification.event,
            "X-Jobscribe-Timestamp": timestamp,
        }
        if self._secret is not None:
            headers["X-Jobscribe-Signature"] = signature(self._secret, timestamp, notification.body)
        request = tornado.httpclient.HTTPRequest(
            self._url,
            method="POST",
            headers=HTTPHeaders(headers),
            body=notification.body,
            follow_redirects=False,
            decompress_response=False,
            connect_timeout=self._target.timeout_secs,
            request_timeout=self._target.timeout_secs,
            ssl_options=self._tls,
            header_callback=reply.header,
            streaming_callback=reply.chunk,
        )
        error: Exception | None = None
        try:
            async with asyncio.timeout(self._target.timeout_secs + _GRACE_SECS):
                await self._client.fetch(request, raise_error=False)
        except Exception as e:  # the status line may have come before any error
            error = e
        return self._outcome(reply, error)

    def _outcome(self, reply: "_Reply", error: Exception | None) -> DeliveryResult:
        answer = self._redactor.text(reply.text())
        code = reply.code
        if code is None:
            return DeliveryResult(False, _error_sentence(error, self._target.timeout_secs))
        if 200 <= code < 300:
            return DeliveryResult(True, f"HTTP {code}", answer)
        asked = (
            _retry_after(reply.headers.get("Retry-After"), self._wall()) if code in _BUSY else 0.0
        )
        if 300 <= code < 400:
            said = (
                f"HTTP {code}: redirects are not followed; set the final URL in the file of targets"
            )
        elif code == _GONE:
            said = f"HTTP {code}: the target permanently rejects this notification"
        else:
            said = f"HTTP {code}" + (
                f"; the target requests a pause of {asked:g} s" if asked else ""
            )
        return DeliveryResult(False, said, answer, asked, final=code == _GONE)


class _Reply:
    """The part of a reply that has arrived."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.headers = HTTPHeaders()
        self._body = bytearray()

    def header(self, line: str) -> None:
        if line.startswith("HTTP/"):
            code = int(line.split()[1])
            self.code = code if code >= 200 else None
        elif line.strip():
            self.headers.parse_line(line)

    def chunk(self, data: bytes) -> None:
        self._body += data[: MOST_SHOWN - len(self._body)]

    def text(self) -> str:
        return self._body.decode("utf-8", "replace")


class _Resolver(tornado.netutil.Resolver):
    """Resolves each name in its own thread: a name server that does not answer blocks nothing else."""

    def initialize(self) -> None:
        pass

    async def resolve(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[tuple[int, Any]]:
        def ask() -> list[tuple[int, Any]] | None:
            try:
                return [
                    (int(f), address)
                    for f, _, _, _, address in socket.getaddrinfo(
                        host, port, family, socket.SOCK_STREAM
                    )
                ]
            except (OSError, UnicodeError):
                return None

        found = await in_thread(ask)
        if not found:
            raise _Unresolved
        return found

    def close(self) -> None:
        pass


class _Unresolved(OSError):
    """The host name does not exist."""


def _error_sentence(error: Exception | None, secs: float) -> str:
    match error:
        case TimeoutError() | HTTPTimeoutError():
            return f"no answer within {secs:g} s"
        case _Unresolved():
            return "the host name cannot be resolved"
        case ssl.SSLCertVerificationError():
            return f"the certificate is not trusted: {error.verify_message}; set its certificate authority in caFile"
        case ssl.SSLError():
            return f"TLS failed ({error.reason})"
        case ConnectionRefusedError():
            return "connection refused"
        case HTTPStreamClosedError():
            return "the target closed the connection without a valid HTTP answer"
        case OSError():
            return f"the target cannot be reached: {error.strerror or type(error).__name__}"
        case _:
            return f"no valid HTTP answer ({type(error).__name__})"


def _retry_after(text: str | None, wall: float) -> float:
    """Return seconds from a Retry-After header: a number or a date."""
    if text is None:
        return 0.0
    if text.strip().isdecimal():
        return float(text.strip()[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - wall)
    except (ValueError, TypeError, OverflowError):
        return 0.0
