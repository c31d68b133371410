"""HTTP messages of both connections: requests as httpcore takes them, replies, and failures.

No I/O: `connection` and `async_connection` send and receive.
"""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import httpcore
import msgspec

from ...protocol.api.unix_addresses import unix_path
from ..api.errors import ClientError, own
from ..api.requests import Call, bad_request
from .address import Address

CONNECT_SECS = 5.0
#: Time limit of an answer, on top of the time of a long poll.
ANSWER_SECS = 30.0
JSON = {"Content-Type": "application/json"}

#: What the library raises when the supervisor, the network or the request is at fault.
FAILURES = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
    OSError,
)
#: What a reused connection raises if the server closed it before the request. Not a timeout: then the
#: server may work on the request.
CLOSED_WHILE_IDLE = (httpcore.NetworkError, httpcore.RemoteProtocolError, ConnectionError)

Body = bytes | Iterable[bytes] | None


class Request(msgspec.Struct, frozen=True):
    """One HTTP request. path: with its query. idle_secs: longest silence of the server. A body that
    is not bytes needs a `Content-Length`.
    """

    method: str
    path: str
    headers: Mapping[str, str] = {}
    body: Body = None
    idle_secs: float = ANSWER_SECS

    def __repr__(self) -> str:
        # a body may hold a password
        return f"Request({self.method} {self.path.partition('?')[0]})"


class Headers:
    """Headers of a reply; names are case-insensitive."""

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._values = {name.lower().decode("latin-1"): value for name, value in pairs}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()].decode("latin-1")

    def get(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return None if value is None else value.decode("latin-1")

    def required(self, name: str) -> str:
        """Return a header of every supervisor. Raises ClientError("notASupervisor")."""
        value = self.get(name)
        if value is None:
            raise own("notASupervisor", f"the answer lacks the header {name}")
        return value

    def number(self, name: str) -> int:
        """Return a number that every supervisor sends. Raises ClientError("notASupervisor")."""
        value = self.required(name)
        if not (value.isascii() and value.isdigit()):
            raise own("notASupervisor", f"the header {name} of the answer is not a number")
        return int(value)


class Reply(msgspec.Struct, frozen=True):
    headers: Headers
    body: bytes


def of_call(call: Call, idle_secs: float | None = None) -> Request:
    """Return the request of a call. idle_secs: None for the time limit of its answer."""
    headers = call.headers if call.body is None else {**JSON, **call.headers}
    if idle_secs is None:
        idle_secs = call.wait_secs + ANSWER_SECS
    return Request(call.method, call.path, headers, call.body, idle_secs)


def upload(path: str, pieces: Iterable[bytes], size: int, idle_secs: float) -> Request:
    """Return a request with a body of `size` bytes."""
    headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
    return Request("PUT", path, headers, _exactly(pieces, size), idle_secs)


def _exactly(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the pieces. Raises ClientError("badRequest") if they are not `size` bytes in total."""
    sent = 0
    for piece in pieces:
        sent += len(piece)
        if sent > size:
            break
        yield piece
    if sent != size:
        less = "less" if sent < size else "more"
        raise bad_request(f"the upload has {less} than the {size} bytes of its declared size")


@functools.lru_cache(64)
def origin(url: str) -> httpcore.Origin:
    """Return scheme, host and port. The host of an address of `unix_url` is the socket's path.

    Raises ClientError("badRequest") for an invalid address.
    """
    if (path := unix_path(url)) is not None:
        return httpcore.Origin(b"http", os.fsencode(path), 80)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise bad_request(f"the address {url!r} is invalid: {e}") from None
    if not host or parts.scheme not in ("http", "https") or parts.path or parts.query:
        raise bad_request(f"the address must be http://host:port or https://host:port; got {url!r}")
    return httpcore.Origin(
        parts.scheme.encode(), host.encode("idna"), port or (443 if parts.scheme == "https" else 80)
    )


@functools.lru_cache(64)
def _head(address: Address) -> list[tuple[bytes, bytes]]:
    """Return the headers of every request to this address."""
    headers = {
        "Host": "localhost"
        if unix_path(address.url)
        else urlsplit(address.url).netloc.rpartition("@")[2],
        "Accept": "*/*",
    }
    if address.token:  # a login without one begins with an anonymous request
        headers["Authorization"] = f"Bearer {address.token}"
    return _pairs(headers)


def _pairs(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]


def encoded(request: Request, address: Address, more: Mapping[str, str]) -> httpcore.Request:
    """Return the request for this supervisor. more: further headers.

    Raises ClientError("badRequest") for a header or path that cannot be sent.
    """
    to, idle = origin(address.url), request.idle_secs
    try:
        headers = [*_head(address), *_pairs(more), *_pairs(request.headers)]
        if isinstance(request.body, bytes):
            headers.append((b"Content-Length", b"%d" % len(request.body)))
        elif request.body is None and request.method in ("POST", "PUT"):
            headers.append((b"Content-Length", b"0"))
        target = request.path.encode("ascii")
        return httpcore.Request(
            request.method,
            httpcore.URL(scheme=to.scheme, host=to.host, port=to.port, target=target),
            headers=headers,
            content=request.body,
            extensions={"timeout": {"connect": CONNECT_SECS, "read": idle, "write": idle}},
        )
    except UnicodeEncodeError as e:
        raise bad_request(f"a header or path cannot be sent: {e.reason}") from None


def failure(url: str, cause: BaseException) -> ClientError:
    """Return the error for an exception in FAILURES."""
    if isinstance(cause, httpcore.LocalProtocolError):
        return bad_request(f"the request is invalid: {cause}")
    return unreachable(url, cause)


def cut_short(url: str, left: int) -> ClientError:
    """Return the error of a body that lacks `left` bytes."""
    return own("unreachable", f"no answer from {url}: the content ended {left} bytes too early")


def unreachable(url: str, cause: BaseException) -> ClientError:
    """Return the error of a supervisor that does not answer, with the reason that the system gave."""
    at: BaseException | None = cause
    while at is not None and getattr(at, "strerror", None) is None:
        at = at.__cause__
    timed_out = "timed out" if isinstance(cause, httpcore.TimeoutException) else ""
    text = getattr(at, "strerror", None) or timed_out or str(cause) or type(cause).__name__
    return own("unreachable", f"no answer from {url}: {text}")
