"""Requests to the supervisor, for synchronous callers in any threads, and file reads.

After a lost connection, or an error that allows it, the same bytes are sent again until the retry
budget is used up (see `endpoint`).
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TypeVar

import httpcore

from ..api.errors import ClientError, from_reply
from ..api.requests import Call
from . import messages
from .address import Address
from .endpoint import Endpoint
from .idle_connections import IdleConnections
from .messages import CLOSED_WHILE_IDLE, FAILURES, Headers, Reply, Request
from .network import Backend
from .plain_connection import PlainConnection
from .retry import Retry

_BACKEND = Backend()
_T = TypeVar("_T")


class Connection:
    """Sends requests to one supervisor. Persistent connections are reused; a stream has its own."""

    def __init__(self, endpoint: Endpoint, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.endpoint, self._sleep = endpoint, sleep
        self._idle: IdleConnections[PlainConnection | httpcore.HTTPConnection] = IdleConnections()

    def address(self) -> Address:
        """Return the known address of the supervisor, or wait for one within the budget."""
        return self._repeat(lambda address: address)

    def call(self, call: Call) -> Reply:
        """Return the successful answer. Raises ClientError."""
        request = messages.of_call(call)
        return self._repeat(lambda address: self._exchange(address, request), call.at_once)

    def call_once(self, call: Call) -> bytes:
        """Send a request that must not be sent twice, on its own connection. Raises ClientError."""
        return self._read_once(messages.of_call(call))

    def download(self, call: Call, idle_secs: float) -> "Response":
        """Return the successful answer before its body. The caller must close it.

        Raises ClientError.
        """
        request = messages.of_call(call, idle_secs)
        return self._repeat(lambda address: self._opened(address, request), call.at_once)

    def relayed(self, call: Call, idle_secs: float) -> "Response":
        """Return any answer before its body, also that of a refused request, whose status and body are
        those of the server. Sent once. The caller must close it. Raises ClientError without an answer.
        """
        request = messages.of_call(call, idle_secs)
        return self._opened(self.endpoint.located(), request, refusals=True)

    def upload(self, path: str, pieces: Iterable[bytes], size: int, idle_secs: float) -> bytes:
        """Send a body of `size` bytes, once. Return the successful answer.

        Raises ClientError, and any exception of `pieces`.
        """
        return self._read_once(messages.upload(path, pieces, size, idle_secs))

    def stream(self, address: Address, request: Request) -> Iterator[bytes]:
        """Yield the body of one response as it arrives. Always ends with a ClientError."""
        with self._opened(address, request) as response:
            yield from response.chunks()
        self.endpoint.forget(address.url)
        raise messages.unreachable(address.url, ConnectionError("the stream ended"))

    def pause(self, secs: float) -> None:
        self._sleep(secs)

    def pause_after(self, retry: Retry, error: ClientError, used: Address | None) -> None:
        """Wait until the next attempt, or raise `error` if no other one is allowed."""
        self._sleep(self.endpoint.pause_after(retry, error, used))

    def close(self, *, for_good: bool = False) -> None:
        """Close idle connections. for_good: from now on, close each connection after its use."""
        for connection in self._idle.clear(for_good=for_good):
            connection.close()

    def _repeat(self, once: Callable[[Address], _T], at_once: frozenset[str] = frozenset()) -> _T:
        retry = self.endpoint.retry()
        while True:
            used = None
            try:
                used = self.endpoint.located()
                return once(used)
            except ClientError as e:
                pause = self.endpoint.pause_after(retry, e, used, at_once)
            self._sleep(pause)

    def _read_once(self, request: Request) -> bytes:
        with self._opened(self.endpoint.located(), request) as response:
            return response.read()

    def _exchange(self, address: Address, request: Request) -> Reply:
        encoded = messages.encoded(request, address, self.endpoint.headers)
        try:
            if (connection := self._taken(address.url)) is not None:
                # a server may close an idle connection at any time, so that is no failure
                with contextlib.suppress(*CLOSED_WHILE_IDLE):
                    return self._sent(address.url, connection, encoded)
            return self._sent(address.url, self._new(address.url), encoded)
        except FAILURES as e:
            self.endpoint.forget(address.url)
            raise messages.failure(address.url, e) from None

    def _sent(
        self,
        url: str,
        connection: PlainConnection | httpcore.HTTPConnection,
        request: httpcore.Request,
    ) -> Reply:
        kept = False
        try:
            if isinstance(connection, PlainConnection):
                status, headers, body = connection.exchange(request)
            else:
                response = connection.handle_request(request)
                body = b"".join(response.iter_stream())
                response.close()
                status, headers = response.status, response.headers
            kept = connection.is_idle() and self._idle.put(url, connection)
        finally:
            if not kept:
                connection.close()
        if status >= 300:
            raise from_reply(status, body)
        return Reply(Headers(headers), body)

    def _new(self, url: str) -> PlainConnection | httpcore.HTTPConnection:
        origin = messages.origin(url)
        return self._connection(url) if origin.scheme == b"https" else PlainConnection(origin)

    def _taken(self, url: str) -> PlainConnection | httpcore.HTTPConnection | None:
        """Return an idle connection that the server has not closed, if there is one."""
        while True:
            connection, outdated = self._idle.take(url)
            for old in outdated:
                old.close()
            if connection is None or not connection.has_expired():
                return connection
            connection.close()

    def _opened(self, address: Address, request: Request, *, refusals: bool = False) -> "Response":
        encoded = messages.encoded(request, address, self.endpoint.headers)
        connection = self._connection(address.url)
        try:
            answer = connection.handle_request(encoded)
            response = Response(self.endpoint, address.url, connection, answer)
            if answer.status >= 300 and not refusals:
                raise from_reply(answer.status, response.read())
            return response
        except BaseException as e:
            connection.close()
            if not isinstance(e, FAILURES):
                raise
            self.endpoint.forget(address.url)
            raise messages.failure(address.url, e) from None

    def _connection(self, url: str) -> httpcore.HTTPConnection:
        """Return a connection that connects at its first request."""
        return httpcore.HTTPConnection(
            messages.origin(url), self.endpoint.tls(url), network_backend=_BACKEND
        )


class Response:
    """A response whose body is read as it arrives, on its own connection."""

    def __init__(
        self,
        endpoint: Endpoint,
        url: str,
        connection: httpcore.HTTPConnection,
        response: httpcore.Response,
    ) -> None:
        self._endpoint, self.url = endpoint, url
        self._connection, self._response = connection, response
        self.status, self.headers = response.status, Headers(response.headers)

    def __enter__(self) -> "Response":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives. Raises ClientError if it is incomplete."""
        try:
            yield from self._response.iter_stream()
        except FAILURES as e:
            self._endpoint.forget(self.url)
            raise messages.failure(self.url, e) from None

    def pieces(self, length: int) -> Iterator[bytes]:
        """Yield a body of `length` bytes as it arrives. A part never counts as the whole: raises
        ClientError if it ends early.
        """
        left = length
        try:
            for chunk in self._response.iter_stream():
                left -= len(chunk)
                yield chunk
        except httpcore.RemoteProtocolError:
            pass  # the bytes that are left tell it
        except FAILURES as e:
            raise messages.failure(self.url, e) from None
        if left > 0:
            raise messages.cut_short(self.url, left)

    def read(self) -> bytes:
        return b"".join(self.chunks())

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class FileReader:
    """An open file. size: of the whole file. length: number of bytes that `pieces` yields."""

    def __init__(self, response: Response) -> None:
        self._response, headers = response, response.headers
        try:
            self.size = headers.number("X-Jobscribe-Size")
            self.length = headers.number("Content-Length")
        except ClientError:
            self.close()
            raise
        self.etag, self.last_modified = headers.get("ETag"), headers.get("Last-Modified")

    def __enter__(self) -> "FileReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def pieces(self) -> Iterator[bytes]:
        """Yield the content.

        Raises ClientError("unreachable") if it is incomplete: the file changed, or the supervisor
        is gone.
        """
        return self._response.pieces(self.length)

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def close(self) -> None:
        self._response.close()
