"""A streamed HTTP response on its own Tornado connection.

Unlike Tornado's HTTP client, it can cancel a response that is still arriving.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any
from urllib.parse import urlsplit

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpclient import TCPClient

from ..api.errors import from_reply
from .connection import CONNECT_SECS

_CHUNK = 64 * 1024
_MAX_BODY = 2**62
_MAX_ERROR_BODY = 64 * 1024


class _Receiver(HTTPMessageDelegate):
    """Passes on one chunk at a time, so that a slow reader slows the sender down."""

    def __init__(self) -> None:
        self.status = 0
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue(1)

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        assert isinstance(start_line, ResponseStartLine)
        self.status = start_line.code

    def data_received(self, chunk: bytes) -> Awaitable[None]:
        return self.chunks.put(chunk)

    def finish(self) -> None:
        """Do nothing: the reading task ends by itself."""

    def on_connection_close(self) -> None:
        """Do nothing: the reading task ends by itself."""


async def stream_chunks(
    url: str, path: str, headers: Mapping[str, str], idle_secs: float
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of the response to a GET, until it ends or the connection is lost.

    Raises OSError if nothing answers, TimeoutError after `idle_secs` without data, ClientError for
    an error reply.
    """
    stream = await _connected(url)
    receiver = _Receiver()
    reading = asyncio.ensure_future(
        _read(stream, receiver, path, HTTPHeaders({"Host": urlsplit(url).netloc, **headers}))
    )
    try:
        body = b""
        while (chunk := await _next(receiver.chunks, reading, idle_secs)) is not None:
            if receiver.status == 200:
                yield chunk
            else:
                body = (body + chunk)[:_MAX_ERROR_BODY]
        if receiver.status not in (0, 200):
            raise from_reply(receiver.status, body)
    finally:
        stream.close()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _connected(url: str) -> IOStream:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    try:
        stream = await TCPClient().connect(
            parts.hostname or "",
            port,
            timeout=CONNECT_SECS,
            ssl_options=ssl.create_default_context() if secure else None,
        )
    except StreamClosedError as e:
        raise ConnectionError(str(e.real_error or "the connection was closed")) from None
    stream.set_nodelay(True)
    return stream


async def _read(stream: IOStream, receiver: _Receiver, path: str, headers: HTTPHeaders) -> None:
    params = HTTP1ConnectionParameters(
        no_keep_alive=True, chunk_size=_CHUNK, max_body_size=_MAX_BODY
    )
    connection = HTTP1Connection(stream, True, params)
    await connection.write_headers(RequestStartLine("GET", path, "HTTP/1.1"), headers)
    connection.finish()
    await connection.read_response(receiver)


async def _next(
    chunks: "asyncio.Queue[bytes]", reading: "asyncio.Future[None]", idle_secs: float
) -> bytes | None:
    """Return the next chunk, or None when the response is over."""
    if chunks.empty() and not reading.done():
        got = asyncio.ensure_future(chunks.get())
        try:
            both: set[asyncio.Future[Any]] = {got, reading}
            await asyncio.wait(both, timeout=idle_secs, return_when=asyncio.FIRST_COMPLETED)
            if got.done():
                return got.result()
            if not reading.done():
                raise TimeoutError(f"no data for {idle_secs:g} s")
        finally:
            got.cancel()
    return None if chunks.empty() else chunks.get_nowait()
