"""Messages waiting to be sent to the supervisor, bounded in number and bytes."""

import asyncio
from collections import deque
from typing import Any

from ...protocol.wire.messages import CallReply, FileChunk, FileList, LogChunk, OpError

#: Limit of waiting messages.
MAX_WAITING = 20_000
#: Limit of waiting answer bytes; an answer beyond it is refused. Readers that can wait do so above
#: ROOM_BYTES.
MAX_BYTES, LOW_WATER_BYTES = 64 * 1024 * 1024, 2 * 1024 * 1024
#: Bytes sent at once.
_PORTION = 1024 * 1024


class Outbox:
    """The send queue of one connection."""

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, low_water_bytes: int = LOW_WATER_BYTES
    ) -> None:
        self._max_bytes, self._low_water_bytes = max_bytes, low_water_bytes
        self._waiting: deque[Any] = deque()
        #: bytes waiting, and of these the bytes being sent
        self._bytes = self._sending = 0
        self._wake, self._sent = asyncio.Event(), asyncio.Event()

    def put(self, message: Any) -> bool:
        """Queue a message; return False if too many wait.

        An answer that exceeds the byte limit is replaced by an error.
        """
        if len(self._waiting) >= MAX_WAITING:
            return False
        size = _size(message)
        if size and self._bytes and self._bytes + size > self._max_bytes:
            sentence = f"more than {self._max_bytes >> 20} MiB of answers wait to be sent by the agent; try again later"
            message = OpError(op_id=message.op_id, code="tooManyRequests", error=sentence)
            size = 0
        self._waiting.append(message)
        self._bytes += size
        self._wake.set()
        return True

    async def take(self) -> list[Any]:
        """Wait for messages and return the next portion. The previous portion counts as sent."""
        self._bytes -= self._sending
        self._sending = 0
        self._sent.set()
        while not self._waiting:
            self._wake.clear()
            await self._wake.wait()
        portion: list[Any] = []
        while self._waiting and self._sending < _PORTION:
            portion.append(self._waiting.popleft())
            self._sending += _size(portion[-1])
        return portion

    async def wait_for_capacity(self) -> None:
        """Wait until the queued answer bytes are below the low-water mark."""
        while self._bytes > self._low_water_bytes:
            self._sent.clear()
            await self._sent.wait()

    def clear(self) -> None:
        """Drop all messages: there is no connection."""
        self._waiting.clear()
        self._bytes = self._sending = 0
        self._sent.set()


def _size(message: Any) -> int:
    match message:
        case CallReply():
            return len(message.reply)
        case LogChunk() | FileChunk():
            return len(message.data)
        case FileList():
            return sum(len(file.name) + 16 for file in message.files)
        case _:
            return 0
