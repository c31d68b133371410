"""Requests and streams on Tornado for the asynchronous client, with the retries of `connection`."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeVar

from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest, HTTPResponse

from ..api.errors import ClientError, from_reply
from ..api.requests import Call
from .address import Address, Source
from .chunked_response import stream_chunks
from .connection import ANSWER_SECS, CONNECT_SECS, OnTrouble, headers_for, unreachable
from .retry import Retry

#: Each long poll holds a connection; with Tornado's default of 10 they would block other requests.
MAX_CONNECTIONS = 1000

_T = TypeVar("_T")


class AsyncConnection:
    """Sends requests with retries. budget_secs: how long to retry, from the first failure."""

    def __init__(
        self, source: Source, *, budget_secs: float, on_trouble: OnTrouble | None = None
    ) -> None:
        self.source, self.budget_secs, self.on_trouble = source, budget_secs, on_trouble
        self._address: Address | None = None
        self._http: AsyncHTTPClient | None = None

    async def address(self) -> Address:
        """Return the known address of the supervisor, or wait for one within the budget."""
        return await self._repeat(self._located)

    async def call(self, call: Call) -> HTTPResponse:
        """Return the successful answer. Raises ClientError."""

        async def once() -> HTTPResponse:
            return await self._once(call)

        return await self._repeat(once, call.at_once)

    async def call_once(self, call: Call) -> HTTPResponse:
        """Send a request that must not be sent twice. Raises ClientError."""
        return await self._once(call)

    async def stream(
        self, path: str, headers: Mapping[str, str], idle_secs: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a stream, without retries. Always ends with a ClientError."""
        address = await self._located()
        chunks = stream_chunks(address.url, path, headers_for(address) | dict(headers), idle_secs)
        try:
            async for chunk in chunks:
                yield chunk
        except OSError as e:
            self._address = None
            raise unreachable(address.url, e) from None
        finally:
            await chunks.aclose()
        self._address = None
        raise unreachable(address.url, ConnectionError("the stream ended"))

    async def after_failure(self, retry: Retry, error: ClientError) -> None:
        """Wait until the next retry, or raise `error` if no retry is allowed."""
        now = time.monotonic()
        delay = retry.failed(error, now, random.random())
        if delay is None:
            raise error
        if self.on_trouble is not None:
            self.on_trouble(error, now - (retry.since or now) + delay)
        await asyncio.sleep(delay)

    async def has_new_address(self, error: ClientError) -> bool:
        """Return whether a refused token is outdated: a restarted supervisor may use the old port."""
        if error.code != "unauthenticated" or self._address is None:
            return False
        old, self._address = self._address, None
        try:
            return await self._located() != old
        except ClientError:
            return False

    def close(self) -> None:
        if self._http is not None:
            self._http.close()

    async def _repeat(
        self, once: Callable[[], Awaitable[_T]], at_once: frozenset[str] = frozenset()
    ) -> _T:
        retry = Retry(self.budget_secs)
        while True:
            try:
                return await once()
            except ClientError as e:
                if e.code in at_once:
                    raise
                if not await self.has_new_address(e):
                    await self.after_failure(retry, e)

    async def _located(self) -> Address:
        if self._address is None:
            self._address = self.source()
        return self._address

    async def _once(self, call: Call) -> HTTPResponse:
        address = await self._located()
        if self._http is None:
            self._http = AsyncHTTPClient(force_instance=True, max_clients=MAX_CONNECTIONS)
        request = HTTPRequest(
            address.url + call.path,
            method=call.method,
            body=call.body,
            follow_redirects=False,
            headers=headers_for(address)
            | ({} if call.body is None else {"Content-Type": "application/json"}),
            connect_timeout=CONNECT_SECS,
            request_timeout=call.wait_secs + ANSWER_SECS,
        )
        try:
            response = await self._http.fetch(request, raise_error=False)
        except (OSError, HTTPError) as e:
            self._address = None
            raise unreachable(address.url, e) from None
        if response.code >= 300:
            raise from_reply(response.code, response.body or b"")
        return response
