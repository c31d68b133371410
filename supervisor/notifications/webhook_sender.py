"""Telling by HTTP: one POST, signed. The status line decides; whatever comes behind it is neither
kept nor waited for at any length.
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

#: Of an answer, so much is read, and so much kept to be shown.
MOST_READ, MOST_SHOWN = 64 * 1024, 500
_HEADER_BYTES = 16 * 1024
#: On top of the time that the client keeps by itself.
_GRACE_SECS = 5.0
_GONE, _BUSY = 410, (429, 503)


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Of the time and the body, so that neither can be changed, nor an old message be sent again
    later.
    """
    return (
        "sha256="
        + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    )


class Webhook:
    """secret: signs. headers: sent along. wall: for the timestamp."""

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

    async def send(self, letter: Notification) -> DeliveryResult:
        heard = _Heard()
        timestamp = str(int(self._wall()))
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            "User-Agent": f"jobscribe/{VERSION}",
            "Idempotency-Key": letter.id,
            "X-Jobscribe-Id": letter.id,
            "X-Jobscribe-Event": letter.event,
            "X-Jobscribe-Timestamp": timestamp,
        }
        if self._secret is not None:
            headers["X-Jobscribe-Signature"] = signature(self._secret, timestamp, letter.body)
        request = tornado.httpclient.HTTPRequest(
            self._url,
            method="POST",
            headers=HTTPHeaders(headers),
            body=letter.body,
            follow_redirects=False,
            decompress_response=False,
            connect_timeout=self._target.timeout_secs,
            request_timeout=self._target.timeout_secs,
            ssl_options=self._tls,
            header_callback=heard.header,
            streaming_callback=heard.chunk,
        )
        error: Exception | None = None
        try:
            async with asyncio.timeout(self._target.timeout_secs + _GRACE_SECS):
                await self._client.fetch(request, raise_error=False)
        except Exception as e:  # whatever it is, the status line may have come before
            error = e
        return self._outcome(heard, error)

    def _outcome(self, heard: "_Heard", error: Exception | None) -> DeliveryResult:
        answer = self._redactor.text(heard.text())
        code = heard.code
        if code is None:
            return DeliveryResult(False, _trouble(error, self._target.timeout_secs))
        if 200 <= code < 300:
            return DeliveryResult(True, f"it answered with HTTP {code}", answer)
        asked = _asked(heard.headers.get("Retry-After"), self._wall()) if code in _BUSY else 0.0
        if 300 <= code < 400:
            said = f"it answered with HTTP {code}, a redirect, which is not followed; put the address it is to go to into the file"
        elif code == _GONE:
            said = f"it answered with HTTP {code}: it will not take this one"
        else:
            said = f"it answered with HTTP {code}" + (
                f" and asks for {asked:g} s of quiet" if asked else ""
            )
        return DeliveryResult(False, said, answer, asked, final=code == _GONE)


class _Heard:
    """What has come of an answer so far."""

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
    """Each question in a thread of its own: a name server that does not answer holds up nobody
    else.
    """

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
    """There is no such host."""


def _trouble(error: Exception | None, secs: float) -> str:
    match error:
        case TimeoutError() | HTTPTimeoutError():
            return f"it did not answer within {secs:g} s"
        case _Unresolved():
            return "the name of its host cannot be resolved"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not to be trusted: {error.verify_message}; name its authority in caFile"
        case ssl.SSLError():
            return f"it speaks no TLS that can be understood ({error.reason})"
        case ConnectionRefusedError():
            return "it refuses the connection"
        case HTTPStreamClosedError():
            return "it ended the connection without an answer that can be understood"
        case OSError():
            return f"it cannot be reached: {error.strerror or type(error).__name__}"
        case _:
            return f"it gave no answer that can be understood ({type(error).__name__})"


def _asked(text: str | None, wall: float) -> float:
    """Seconds, from a number of them or a date."""
    if text is None:
        return 0.0
    if text.strip().isdecimal():
        return float(text.strip()[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - wall)
    except (ValueError, TypeError, OverflowError):
        return 0.0
