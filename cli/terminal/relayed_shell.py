"""The user's terminal of a shell that supervisor and agent relay. Which shell is opened, and the
messages about it, belong to the command.
"""

import asyncio
import base64
import contextlib
import os
import signal
import termios
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...client.async_client import AsyncClient

#: Bytes of one read of typed input, and of input that is not sent yet; then reading pauses.
_READ_BYTES, _PENDING_BYTES = 4096, 32 * 1024
#: Bytes of output in one answer.
_OUTPUT_BYTES = 64 * 1024
#: Duration of one wait for output; pause if the far end accepts no input; time limit for a hangup
#: (seconds).
_WAIT_SECS, _FULL_SECS, _HANGUP_SECS = 20.0, 0.2, 3.0
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class RelayedShell:
    """A shell between a terminal and the supervisor. fd: the terminal, for input and output."""

    def __init__(self, client: "AsyncClient", jid: str, shell_id: str, fd: int) -> None:
        self._client, self._jid, self._id, self._fd = client, jid, shell_id, fd
        self._typed = bytearray()
        self._sent = 0
        self._resized = False
        self._reading = False
        self._change = asyncio.Event()
        self._ended_by: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Relay until the shell ends, or until a signal ends this process. Return the exit status.

        Raises ClientError if supervisor or agent is lost. The terminal has its earlier mode then.
        """
        loop = asyncio.get_running_loop()
        with _raw(self._fd):
            for number in _ENDING_SIGNALS:
                loop.add_signal_handler(number, self._end_by, number)
            loop.add_signal_handler(signal.SIGWINCH, self._resize)
            tasks = {loop.create_task(self._show()), loop.create_task(self._send())}
            try:
                self._read(True)
                return await self._first(tasks)
            finally:
                self._read(False)
                for number in (*_ENDING_SIGNALS, signal.SIGWINCH):
                    loop.remove_signal_handler(number)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _first(self, tasks: "set[asyncio.Task[int]]") -> int:
        """Return the exit status. If a signal arrives first, hang up."""
        await asyncio.wait({*tasks, self._ended_by}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                return task.result()
        from ...client.api.errors import ClientError

        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_HANGUP_SECS):
                await self._client.use_shell(self._jid, self._id, input_at=self._sent, close=True)
        return 128 + self._ended_by.result()

    # ---- output

    async def _show(self) -> int:
        offset = 0
        while True:
            answer = await self._client.use_shell(
                self._jid, self._id, offset=offset, limit=_OUTPUT_BYTES, wait_secs=_WAIT_SECS
            )
            data = base64.b64decode(answer["data"])
            offset = answer["offset"] + len(data)
            _write(self._fd, data)
            if answer["end"]:
                return _status(answer)

    # ---- input

    async def _send(self) -> int:
        while True:
            await self._change.wait()
            self._change.clear()
            size: dict[str, int] = {}
            if self._resized:
                self._resized, size = False, terminal_size(self._fd)
            data = bytes(self._typed)
            answer = await self._client.use_shell(
                self._jid, self._id, input_at=self._sent, input=data, **size
            )
            accepted = answer["inputAt"] - self._sent
            del self._typed[:accepted]
            self._sent = answer["inputAt"]
            if self._typed:
                self._change.set()
                if data and not accepted:
                    await asyncio.sleep(_FULL_SECS)
            self._read(len(self._typed) < _PENDING_BYTES)

    def _read(self, on: bool) -> None:
        loop = asyncio.get_running_loop()
        if on and not self._reading:
            loop.add_reader(self._fd, self._readable)
        elif self._reading and not on:
            loop.remove_reader(self._fd)
        self._reading = on

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            self._end_by(signal.SIGHUP)
            self._read(False)
            return
        self._typed += data
        self._change.set()
        self._read(len(self._typed) < _PENDING_BYTES)

    def _resize(self) -> None:
        self._resized = True
        self._change.set()

    def _end_by(self, number: int) -> None:
        if not self._ended_by.done():
            self._ended_by.set_result(number)


def terminal_size(fd: int) -> dict[str, int]:
    """Return {"rows", "cols"} of a terminal, as options of a request. Empty if they are unknown."""
    try:
        size = os.get_terminal_size(fd)
    except OSError:
        return {}
    rows, cols = size.lines, size.columns
    return {"rows": rows, "cols": cols} if 1 <= rows <= 4096 and 1 <= cols <= 4096 else {}


def _status(answer: dict[str, Any]) -> int:
    """Return the exit status of the shell, as a shell reports it. Raises ClientError without one."""
    if answer["code"] is not None:
        return int(answer["code"])
    if answer["signal"] is not None:
        return 128 + int(answer["signal"])
    from ...client.api.errors import ClientError

    raise ClientError("agentUnavailable", answer["detail"] or "the shell ended without an exit")


@contextlib.contextmanager
def _raw(fd: int) -> Iterator[None]:
    """Let the far end interpret all keys, also Ctrl-C. Restore the terminal's mode at the end."""
    earlier = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSADRAIN)  # keys typed before are not lost
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(fd, termios.TCSADRAIN, earlier)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
