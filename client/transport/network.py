"""Sockets of httpcore that send the head of a request with the beginning of its body.

A host that begins with / is the path of a Unix socket.

httpcore writes both separately. One segment less saves system calls of client and server.
"""

import contextlib
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

_Options = Iterable[Any] | None


class _Head:
    """Bytes of a request that wait for the next ones."""

    def __init__(self) -> None:
        self._held: bytes | None = None

    def to_send(self, buffer: bytes) -> bytes:
        """Return the bytes to send now. The first bytes of a request are held."""
        if self._held is None:
            self._held = buffer
            return b""
        held, self._held = self._held, b""
        return held + buffer

    def answered(self) -> bytes:
        """Return the held bytes, which are sent before the answer is read."""
        held, self._held = self._held or b"", None
        return held


class Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream, self._head = stream, _Head()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if held := self._head.answered():
            # the server may have answered before it closed
            with contextlib.suppress(httpcore.WriteError):
                self._stream.write(held, timeout)
        return self._stream.read(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer and (now := self._head.to_send(buffer)):
            self._stream.write(now, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        return Stream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class Backend(httpcore.SyncBackend):
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: _Options = None,
    ) -> httpcore.NetworkStream:
        if host.startswith("/"):
            return Stream(super().connect_unix_socket(host, timeout, socket_options))
        return Stream(super().connect_tcp(host, port, timeout, local_address, socket_options))


class AsyncStream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream, self._head = stream, _Head()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if held := self._head.answered():
            # the server may have answered before it closed
            with contextlib.suppress(httpcore.WriteError):
                await self._stream.write(held, timeout)
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer and (now := self._head.to_send(buffer)):
            await self._stream.write(now, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return AsyncStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class AsyncBackend(httpcore.AnyIOBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: _Options = None,
    ) -> httpcore.AsyncNetworkStream:
        if host.startswith("/"):
            return AsyncStream(await super().connect_unix_socket(host, timeout, socket_options))
        stream = await super().connect_tcp(host, port, timeout, local_address, socket_options)
        return AsyncStream(stream)
