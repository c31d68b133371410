"""Debian's Firefox for Playwright, which drives it by WebDriver BiDi (channel `moz-firefox`).

Run as a program, it stands for Firefox: it starts Firefox and passes BiDi messages on, except for
commands that this Firefox does not know; those are answered as done.
"""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application
from tornado.websocket import WebSocketClientConnection, WebSocketHandler, websocket_connect

FIREFOX = "/usr/bin/firefox-esr"
#: Playwright's options of contexts that Firefox has no commands for.
CONTEXT = {"color_scheme": "null"}
_LISTENS = re.compile(rb"WebDriver BiDi listening on (ws://\S+)")
_UNKNOWN = frozenset({"emulation.setMediaFeaturesOverride"})
_LARGEST = 1 << 28


def executable(folder: Path) -> str:
    """Write a program for Playwright's `executable_path` and return its path."""
    path = folder / "firefox"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{os.path.abspath(__file__)}" "$@"\n')
    path.chmod(0o755)
    return str(path)


class _Relay(WebSocketHandler):
    firefox = ""
    _other: WebSocketClientConnection

    def check_origin(self, origin: str) -> bool:
        return True

    async def open(self, *_: str) -> None:
        self._other = await websocket_connect(
            self.firefox + self.request.path, max_message_size=_LARGEST
        )
        self._task = asyncio.ensure_future(self._answers())

    async def _answers(self) -> None:
        while (message := await self._other.read_message()) is not None:
            await self.write_message(message)
        self.close()

    async def on_message(self, message: str | bytes) -> None:
        command = json.loads(message)
        if command["method"] in _UNKNOWN:
            await self.write_message({"type": "success", "id": command["id"], "result": {}})
        else:
            await self._other.write_message(message)

    def on_close(self) -> None:
        self._other.close()


async def main() -> int:
    firefox = await asyncio.create_subprocess_exec(
        FIREFOX, *sys.argv[1:], stderr=asyncio.subprocess.PIPE, limit=_LARGEST
    )
    assert firefox.stderr is not None
    async for line in firefox.stderr:
        if found := _LISTENS.search(line):
            _Relay.firefox = found[1].decode()
            (socket,) = bind_sockets(0, "127.0.0.1")
            server = HTTPServer(Application([("/.*", _Relay)], websocket_max_message_size=_LARGEST))
            server.add_socket(socket)
            port = socket.getsockname()[1]
            line = line.replace(found[1], f"ws://127.0.0.1:{port}".encode())
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
    return await firefox.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
