"""Bytes that a standby forwards to a holder on another machine."""

import asyncio
import socket

from jobscribe.supervisor.standby.forwarding import Forwarder


async def test_bytes_pass_both_ways_and_either_end_ends_both() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data.upper())
            if data == b"end":
                break
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"wss://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    forwarder = Forwarder()

    async def client(to: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        near, far = socket.socketpair()
        far.setblocking(False)
        forwarder.forward(far, to)
        return await asyncio.open_connection(sock=near)

    async with asyncio.timeout(60):
        reader, writer = await client(address)
        for word in (b"hello", b"end"):
            writer.write(word)
            assert await reader.readexactly(len(word)) == word.upper()
        assert await reader.read() == b"", "the holder has closed it"
        writer.close()
        reader, writer = await client(address)
        writer.write(b"hello")
        await reader.readexactly(5)
        await forwarder.close()
        assert await reader.read() == b"", "the standby takes over"
        writer.close()
        reader, writer = await client("https://127.0.0.1:1")
        assert await reader.read() == b"", "there is no holder"
        writer.close()
    await forwarder.close()
    server.close()
