"""The agent's end of the socket pair with its keeper: JSON lines in and out, on the event loop.
What they mean stands elsewhere.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

_READ_BYTES = 256 * 1024


class KeeperLink:
    """`on_message(dict)` for each message, `on_eof()` once when the keeper is gone. Both are called
    from the loop.

    Takes over the descriptor. Messages may be sent before `start`. What the keeper has not read yet
    is kept; it always reads.
    """

    def __init__(
        self, fd: int, on_message: Callable[[dict[str, Any]], None], on_eof: Callable[[], None]
    ) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._socket.set_inheritable(
            False
        )  # what the agent starts must not keep the keeper's link open
        self._on_message, self._on_eof = on_message, on_eof
        self._in, self._out = bytearray(), bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing = False

    def start(self) -> None:
        """Begin to read, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)
        self._write()

    def send(self, message: dict[str, Any]) -> None:
        """Queue one message; dropped where the keeper is gone (its successor tells everything
        anew).
        """
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
