"""Requests to the supervisor on httpcore, for one event loop. `connection` is the synchronous one."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import TypeVar, cast

import httpcore

from ..api.errors import ClientError, from_reply
from ..api.requests import Call
from . import messages
from .address import Address
from .endpoint import Endpoint
from .idle_connections import IdleConnections
from .messages import CLOSED_WHILE_IDLE, FAILURES, Headers, Reply, Request
from .network import AsyncBackend
from .retry import Retry

#: Maximum number of concurrent requests; others wait. A long poll holds its connection for seconds.
MAX_CONNECTIONS = 1000

_BACKEND = AsyncBackend()
_T = TypeVar("_T")


class AsyncConnection:
    """Sends requests to one supervisor. Persistent connections are reused; a stream has its own."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._idle: IdleConnections[httpcore.AsyncHTTPConnection] = IdleConnections()
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        self._closing: asyncio.Task[None] | None = None

    async def address(self) -> Address:
        """Return the known address of the supervisor, or wait for one within the budget."""

        async def known(address: Address) -> Address:
            return address

        return await self._repeat(known)

    async def call(self, call: Call) -> Reply:
        """Return the successful answer. Raises ClientError."""
        request = messages.of_call(call)

        async def once(address: Address) -> Reply:
            async with self._free:
                return await self._exchange(address, request)

        return await self._repeat(once, call.at_once)

    async def call_once(self, call: Call) -> bytes:
        """Send a request that must not be sent twice, on its own connection. Raises ClientError."""
        opened = await self._opened(self.endpoint.located(), messages.of_call(call))
        async with contextlib.aclosing(opened) as response:
            return await response.read()

    async def download(self, call: Call, idle_secs: float) -> "AsyncResponse":
        """Return the successful answer before its body. The caller must close it.

        Raises ClientError.
        """
        request = messages.of_call(call, idle_secs)
        return await self._repeat(lambda address: self._opened(address, request), call.at_once)

    async def stream(self, address: Address, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the body of one response as it arrives. Always ends with a ClientError."""
        async with (
            contextlib.aclosing(await self._opened(address, request)) as response,
            contextlib.aclosing(response.chunks()) as chunks,
        ):
            async for chunk in chunks:
                yield chunk
        self.endpoint.forget(address.url)
        raise messages.unreachable(address.url, ConnectionError("the stream ended"))

    async def pause(self, secs: float) -> None:
        await asyncio.sleep(secs)

    async def pause_after(self, retry: Retry, error: ClientError, used: Address | None) -> None:
        """Wait until the next attempt, or raise `error` if no other one is allowed."""
        await asyncio.sleep(self.endpoint.pause_after(retry, error, used))

    def close(self) -> None:
        """Close idle connections soon: a task of the running loop does it. Without a running loop,
        they were lost with theirs.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._idle.clear()
        else:
            self._closing = loop.create_task(self.aclose())

    async def aclose(self) -> None:
        """Close idle connections."""
        for connection in self._idle.clear():
            await connection.aclose()

    async def _repeat(
        self,
        once: Callable[[Address], Awaitable[_T]],
        at_once: frozenset[str] = frozenset(),
    ) -> _T:
        retry = self.endpoint.retry()
        while True:
            used = None
            try:
                used = self.endpoint.located()
                return await once(used)
            except ClientError as e:
                pause = self.endpoint.pause_after(retry, e, used, at_once)
            await asyncio.sleep(pause)

    async def _exchange(self, address: Address, request: Request) -> Reply:
        encoded = messages.encoded(request, address, self.endpoint.headers)
        try:
            if (connection := await self._taken(address.url)) is not None:
                # a server may close an idle connection at any time, so that is no failure
                with contextlib.suppress(*CLOSED_WHILE_IDLE):
                    return await self._sent(address.url, connection, encoded)
            return await self._sent(address.url, self._connection(address.url), encoded)
        except FAILURES as e:
            self.endpoint.forget(address.url)
            raise messages.failure(address.url, e) from None

    async def _sent(
        self, url: str, connection: httpcore.AsyncHTTPConnection, request: httpcore.Request
    ) -> Reply:
        kept = False
        try:
            response = await connection.handle_async_request(request)
            body = b"".join([chunk async for chunk in response.aiter_stream()])
            await response.aclose()
            kept = connection.is_idle() and self._idle.put(url, connection)
        finally:
            if not kept:
                await connection.aclose()
        if response.status >= 300:
            raise from_reply(response.status, body)
        return Reply(Headers(response.headers), body)

    async def _taken(self, url: str) -> httpcore.AsyncHTTPConnection | None:
        """Return an idle connection that the server has not closed, if there is one."""
        while True:
            connection, outdated = self._idle.take(url)
            for old in outdated:
                await old.aclose()
            if connection is None or not connection.has_expired():
                return connection
            await connection.aclose()

    async def _opened(self, address: Address, request: Request) -> "AsyncResponse":
        encoded = messages.encoded(request, address, self.endpoint.headers)
        connection = self._connection(address.url)
        try:
            answer = await connection.handle_async_request(encoded)
            response = AsyncResponse(self.endpoint, address.url, connection, answer)
            if answer.status >= 300:
                raise from_reply(answer.status, await response.read())
            return response
        except BaseException as e:
            await connection.aclose()
            if not isinstance(e, FAILURES):
                raise
            self.endpoint.forget(address.url)
            raise messages.failure(address.url, e) from None

    def _connection(self, url: str) -> httpcore.AsyncHTTPConnection:
        """Return a connection that connects at its first request."""
        return httpcore.AsyncHTTPConnection(
            messages.origin(url), self.endpoint.tls(url), network_backend=_BACKEND
        )


class AsyncResponse:
    """A response whose body is read as it arrives, on its own connection."""

    def __init__(
        self,
        endpoint: Endpoint,
        url: str,
        connection: httpcore.AsyncHTTPConnection,
        response: httpcore.Response,
    ) -> None:
        self._endpoint, self.url = endpoint, url
        self._connection, self._response = connection, response
        assert isinstance(response.stream, AsyncIterable)
        self._body = cast(AsyncGenerator[bytes, None], aiter(response.stream))
        self.headers = Headers(response.headers)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raises ClientError if it is incomplete."""
        try:
            async for chunk in self._body:
                yield chunk
        except FAILURES as e:
            self._endpoint.forget(self.url)
            raise messages.failure(self.url, e) from None

    async def pieces(self, length: int) -> AsyncGenerator[bytes, None]:
        """Yield a body of `length` bytes as it arrives. A part never counts as the whole: raises
        ClientError if it ends early.
        """
        left = length
        try:
            async for chunk in self._body:
                left -= len(chunk)
                yield chunk
        except httpcore.RemoteProtocolError:
            pass  # the bytes that are left tell it
        except FAILURES as e:
            raise messages.failure(self.url, e) from None
        if left > 0:
            raise messages.cut_short(self.url, left)

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def aclose(self) -> None:
        await self._body.aclose()
        await self._response.aclose()
        await self._connection.aclose()


class AsyncFileReader:
    """An open file. size: of the whole file. length: number of bytes that `pieces` yields."""

    def __init__(self, response: AsyncResponse) -> None:
        self._response, headers = response, response.headers
        try:
            self.size = headers.number("X-Jobscribe-Size")
            self.length = headers.number("Content-Length")
        except ClientError:
            self.close()
            raise
        self.etag, self.last_modified = headers.get("ETag"), headers.get("Last-Modified")

    async def __aenter__(self) -> "AsyncFileReader":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._response.aclose()

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the content.

        Raises ClientError("unreachable") if it is incomplete: the file changed, or the supervisor
        is gone.
        """
        return self._response.pieces(self.length)

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    def close(self) -> None:
        """Close the connection soon; `async with` waits for it."""
        self._closing = asyncio.ensure_future(self._response.aclose())
