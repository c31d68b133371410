"""JSON lines over one end of a socket pair: never blocks, with bounded buffers."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .event_loop import Loop

#: Backpressure limit: with more queued bytes the channel is full until `on_room` is called.
_OUT_BYTES = 1 << 20
#: The C library maps larger buffers anew for each read.
_READ_BYTES = 64 << 10
#: Length limit of a received line (a start order with its script).
_LINE_BYTES = 32 << 20


class Channel:
    """Calls `on_message(dict)` for every line, `on_eof()` once, and `on_room()` when a full channel
    accepts messages again.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: Loop,
        on_message: Callable[[dict[str, Any]], None],
        on_eof: Callable[[], None],
        on_drained: Callable[[], None],
    ) -> None:
        self._sock, self._loop = sock, loop
        self._on_message, self._on_eof, self._on_drained = on_message, on_eof, on_drained
        self._in, self._out = bytearray(), bytearray()
        self._full = self._writing = self._finishing = False
        sock.setblocking(False)
        loop.watch(sock.fileno(), selectors.EVENT_READ, self._ready)

    @property
    def full(self) -> bool:
        return self._full

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    def send(self, message: dict[str, Any]) -> None:
        """Queue one message and write as much as possible without blocking."""
        if self.closed or self._finishing:
            return
        self._out += json.dumps(message).encode() + b"\n"
        if not self._writing:
            self._write()
        self._full = self._full or len(self._out) > _OUT_BYTES

    def finish(self) -> None:
        """Send nothing more; the other end reads the queued messages and then EOF."""
        self._finishing = True
        if not self.closed and not self._out:
            with contextlib.suppress(OSError):  # the other end has closed already
                self._sock.shutdown(socket.SHUT_WR)

    def drain(self) -> None:
        """Read everything that is buffered; for use after the sender has ended."""
        while not self.closed and self._read():
            pass

    def close(self) -> None:
        if not self.closed:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()

    def _ready(self, events: int) -> None:
        if self.closed:  # closed by an earlier callback in the same turn
            return
        if events & selectors.EVENT_WRITE:
            self._write()
        if events & selectors.EVENT_READ and not self.closed:
            self._read()

    def _write(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out[: 1 << 18])]
        except BlockingIOError:
            pass
        except OSError:  # the other end has closed; its last messages may still be here
            self.drain()
            if not self.closed:
                self._end()
            return
        self._watch_writable(bool(self._out))
        if self._finishing:
            self.finish()
        if self._full and len(self._out) < _OUT_BYTES // 2:
            self._full = False
            self._on_drained()

    def _watch_writable(self, wanted: bool) -> None:
        if wanted != self._writing:
            self._writing = wanted
            self._loop.watch(
                self._sock.fileno(),
                selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0),
                self._ready,
            )

    def _read(self) -> bool:
        """Read once; return False if there was nothing to read."""
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        searched = len(self._in)
        self._in += data
        if not data or (b"\n" not in data and len(self._in) > _LINE_BYTES):
            self._end()
            return True
        if self._in.find(b"\n", searched) < 0:
            return True
        lines = self._in.split(b"\n")
        self._in = lines.pop()
        for line in lines:
            if line and not self.closed:
                self._on_message(_parse(line))
        return True

    def _end(self) -> None:
        self.close()
        self._on_eof()


def _parse(line: bytes | bytearray) -> dict[str, Any]:
    """Return the message, or an empty one (refused as an unknown order) if the line is invalid."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
