"""Nothing leaves a listener of a supervisor whose lease is lost, in answers and in streams."""

import asyncio

import tornado.httpserver
import tornado.netutil
import tornado.web

from jobscribe.supervisor.standby.sending import check_sends


class Lost(ConnectionError):
    """Stands for the end of the process."""


class _Answer(tornado.web.RequestHandler):
    async def get(self) -> None:
        self.write("part")
        if self.request.path == "/stream":
            await self.flush()
            _streaming.set()
            await _go_on.wait()
            self.write("rest")


_streaming, _go_on = asyncio.Event(), asyncio.Event()


async def test_nothing_is_sent_after_the_lease_is_lost() -> None:
    lost = False

    def check() -> None:
        if lost:
            raise Lost

    server = tornado.httpserver.HTTPServer(tornado.web.Application([(r".*", _Answer)]))
    check_sends(server, check)
    (listener,) = tornado.netutil.bind_sockets(0, "127.0.0.1")
    server.add_socket(listener)
    port = listener.getsockname()[1]

    async def ask(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        return reader, writer

    async def rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        out = await reader.read()
        writer.close()
        return out

    assert b"part" in await rest(*await ask("/"))
    stream = await ask("/stream")
    await _streaming.wait()
    lost = True
    _go_on.set()
    assert b"rest" not in await rest(*stream)
    assert await rest(*await ask("/")) == b""
    server.stop()
    await server.close_all_connections()
