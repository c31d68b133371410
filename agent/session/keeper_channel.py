"""The agent's end of the socket pair with its keeper: JSON lines on the event loop.

Does not interpret the messages.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

#: The C library maps larger buffers anew for each read.
_READ_BYTES = 64 * 1024


class KeeperLink:
    """Calls `on_message(dict)` for each message, and `on_eof()` once when the keeper has ended, both
    from the loop.

    Owns the descriptor. Messages may be sent before `start`. Unread messages are buffered without
    limit, as the keeper always reads.
    """

    def __init__(
        self, fd: int, on_message: Callable[[dict[str, Any]], None], on_eof: Callable[[], None]
    ) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        # processes started by the agent must not keep the keeper's socket open
        self._socket.set_inheritable(False)
        self._on_message, self._on_eof = on_message, on_eof
        self._in, self._out = bytearray(), bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing = False

    def start(self) -> None:
        """Start reading, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)
        self._write()

    def send(self, message: dict[str, Any]) -> None:
        """Queue one message; dropped if the keeper has ended (the next one reports all state)."""
        if self._socket.fileno() < 0:
            return
        self._out += json.dumps(message).encode() + b"\n"
        if self._loop is not None and not self._writing:
            self._write()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            self._socket.close()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        searched = len(self._in)
        self._in += data
        if self._in.find(b"\n", searched) < 0:
            return
        lines = self._in.split(b"\n")
        self._in = lines.pop()
        for line in lines:
            self._on_message(json.loads(line))

    def _write(self) -> None:
        assert self._loop is not None
        try:
            while self._out:
                del self._out[: self._socket.send(self._out[:_READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._end()
            return
        if bool(self._out) != self._writing:
            self._writing = bool(self._out)
            if self._writing:
                self._loop.add_writer(self._socket, self._write)
            else:
                self._loop.remove_writer(self._socket)

    def _end(self) -> None:
        if self._socket.fileno() >= 0:
            self.close()
            self._on_eof()
