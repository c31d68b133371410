"""Bytes between two file descriptors and a program that the supervisor relays, without a terminal.
Which program is opened, and the messages about it, belong to the command.
"""

import asyncio
import base64
import contextlib
import os
import select
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...client.async_client import AsyncClient

#: Bytes of one request, and of input that is not sent yet; then reading pauses.
_BYTES, _PENDING_BYTES = 64 * 1024, 256 * 1024
#: Duration of one wait for output; pause if the far end accepts no input; time limit for a hangup
#: (seconds).
_WAIT_SECS, _FULL_SECS, _HANGUP_SECS = 20.0, 0.05, 3.0
_HEAD_BYTES = 4096
#: OpenSSH ends its proxy by SIGHUP, often before the proxy has read the last input.
_ENDING_SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)


class RelayedStream:
    """A program between a source and a sink. source, sink: pipes or sockets.

    greeting: the first input of the program. welcome: gets the first line of its output, before the
    rest is written; it raises for a wrong one.
    """

    def __init__(
        self,
        client: "AsyncClient",
        jid: str,
        shell_id: str,
        ends: tuple[int, int],
        greeting: bytes,
        welcome: Callable[[bytes], None],
    ) -> None:
        self._client, self._jid, self._id = client, jid, shell_id
        self._source, self._sink = ends
        self._unsent, self._sent = bytearray(greeting), 0
        self._welcome: Callable[[bytes], None] | None = welcome
        self._head = b""
        self._reading = self._over = False
        self._change = asyncio.Event()
        self._change.set()

    async def run(self) -> dict[str, Any] | None:
        """Relay until the program or the source ends, or a signal arrives. Return the last answer with
        its exit; None if the program did not end by itself. Raises ClientError, OSError.
        """
        loop = asyncio.get_running_loop()
        for number in _ENDING_SIGNALS:
            loop.add_signal_handler(number, self._end)
        send, show = loop.create_task(self._send()), loop.create_task(self._show())
        try:
            self._read(True)
            await asyncio.wait({send, show}, return_when=asyncio.FIRST_COMPLETED)
            if show.done():
                return show.result()
            send.result()
            return None
        finally:
            self._read(False)
            for number in _ENDING_SIGNALS:
                loop.remove_signal_handler(number)
            for task in (send, show):
                task.cancel()
            await asyncio.gather(send, show, return_exceptions=True)
            if not show.done() or show.cancelled() or show.exception() is not None:
                await self._hang_up()

    async def _hang_up(self) -> None:
        from ...client.api.errors import ClientError

        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_HANGUP_SECS):
                await self._client.use_shell(self._jid, self._id, input_at=self._sent, close=True)

    # ---- output

    async def _show(self) -> dict[str, Any]:
        offset = 0
        while True:
            answer = await self._client.use_shell(
                self._jid, self._id, offset=offset, limit=_BYTES, wait_secs=_WAIT_SECS
            )
            data = base64.b64decode(answer["data"])
            offset = answer["offset"] + len(data)
            self._write(data)
            if answer["end"]:
                return answer

    def _write(self, data: bytes) -> None:
        if self._welcome is not None:
            self._head += data
            line, newline, data = self._head.partition(b"\n")
            if not newline and len(line) < _HEAD_BYTES:
                return
            welcome, self._welcome = self._welcome, None
            welcome(line)
        while data:
            data = data[os.write(self._sink, data) :]

    # ---- input

    async def _send(self) -> None:
        while self._unsent or not self._over:
            await self._change.wait()
            self._change.clear()
            while self._unsent:
                data = bytes(self._unsent[:_BYTES])
                answer = await self._client.use_shell(
                    self._jid, self._id, input_at=self._sent, input=data
                )
                accepted = answer["inputAt"] - self._sent
                del self._unsent[:accepted]
                self._sent = answer["inputAt"]
                if not accepted:
                    await asyncio.sleep(_FULL_SECS)
                self._read(not self._over and len(self._unsent) < _PENDING_BYTES)

    def _read(self, on: bool) -> None:
        loop = asyncio.get_running_loop()
        if on and not self._reading:
            loop.add_reader(self._source, self._readable)
        elif self._reading and not on:
            loop.remove_reader(self._source)
        self._reading = on

    def _end(self) -> None:
        """Send what the source has now, then end."""
        while not self._over and select.select([self._source], [], [], 0)[0]:
            self._readable()
        self._over = True
        self._read(False)
        self._change.set()

    def _readable(self) -> None:
        try:
            data = os.read(self._source, _BYTES)
        except OSError:  # the user's program is gone
            data = b""
        self._over = not data
        self._unsent += data
        self._change.set()
        self._read(not self._over and len(self._unsent) < _PENDING_BYTES)
