"""Connections that a standby forwards to a holder on another machine, byte by byte. Only TLS: the
holder decrypts, and sees the standby's address.
"""

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit

CONNECT_SECS = 5.0
_CHUNK = 64 * 1024


class Forwarder:
    """All forwarded connections of this process."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def forward(self, connection: socket.socket, address: str) -> None:
        """Forward a connection to `scheme://host:port`, and own it from now on."""
        task = asyncio.get_running_loop().create_task(_forward(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _forward(connection: socket.socket, address: str) -> None:
    parts = urlsplit(address)
    writers: list[asyncio.StreamWriter] = []
    try:
        reader, writer = await asyncio.open_connection(sock=connection)
        writers.append(writer)
        async with asyncio.timeout(CONNECT_SECS):
            far_reader, far_writer = await asyncio.open_connection(parts.hostname, parts.port)
        writers.append(far_writer)
        # the first end closes both: TLS and HTTP/1.1 have their own ends of messages
        ways = [
            asyncio.ensure_future(_copy(reader, far_writer)),
            asyncio.ensure_future(_copy(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
    except (OSError, TimeoutError):
        pass
    finally:
        for writer in writers:
            writer.close()
        if not writers:
            with contextlib.suppress(OSError):
                connection.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            await writer.drain()
