"""What waits to be sent to the supervisor: bounded in number and in bytes, whatever many readers
ask for and however slowly it is taken.
"""

import asyncio
from collections import deque
from typing import Any

from ...protocol.wire.messages import CallReply, FileChunk, FileList, LogChunk, OpError

#: Messages that may wait.
MAX_WAITING = 20_000
#: Bytes of answers that may wait; one more is refused. Who can wait before he reads does so while
#: there are more than ROOM_BYTES.
MAX_BYTES, ROOM_BYTES = 64 * 1024 * 1024, 2 * 1024 * 1024
#: Bytes that are sent in one go.
_PORTION = 1024 * 1024


class Outbox:
    """One per link."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, room_bytes: int = ROOM_BYTES) -> None:
        self._max_bytes, self._room_bytes = max_bytes, room_bytes
        self._waiting: deque[Any] = deque()
        #: bytes of what waits, and of these what is being sent
        self._bytes = self._sending = 0
        self._wake, self._sent = asyncio.Event(), asyncio.Event()

    def put(self, message: Any) -> bool:
        """False when there are too many."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        size = _size(message)
        if size and self._bytes and self._bytes + size > self._max_bytes:
            sentence = (
                f"more than {self._max_bytes >> 20} MiB of answers wait to be sent by its agent"
            )
            message = OpError(op_id=message.op_id, code="tooManyRequests", error=sentence)
            size = 0
        self._waiting.append(message)
        self._bytes += size
        self._wake.set()
        return True

    async def take(self) -> list[Any]:
        """What is next, as soon as there is something. What was taken before has been sent."""
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

    async def room(self) -> None:
        """Returns when a large answer would not wait behind many others."""
        while self._bytes > self._room_bytes:
            self._sent.clear()
            await self._sent.wait()

    def clear(self) -> None:
        """There is nobody (any more) to send it to."""
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
