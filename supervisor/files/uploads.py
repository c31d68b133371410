"""Asynchronous access to libraries, for handlers on the event loop. All disk access runs in
threads, and a request body is written as it arrives.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any
from weakref import WeakValueDictionary

from ...protocol.api.requests import LibFile
from ...protocol.errors import Refusal
from ..agents.calls import OpenFile
from .user_library import Library, Upload

#: Maximum concurrent uploads of one user.
PER_USER = 4
#: Bytes of a body to collect before a write.
_GATHERED = 1024 * 1024


class Uploads:
    """Uploads, downloads and listings of libraries. One per process."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._in_progress: Counter[str] = Counter()
        self._closing: set[asyncio.Task[None]] = set()
        #: By user. A listing may occupy one of few threads for seconds.
        self._listing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def begin(self, uid: str, simulation_type: str, name: str) -> "Receiver":
        """Start an upload. Raises Refusal."""
        if self._in_progress[uid] >= PER_USER:
            raise Refusal(
                "tooManyRequests",
                f"{PER_USER} uploads of this user are in progress, which is the limit; try again later",
            )
        self._in_progress[uid] += 1
        try:
            upload = await asyncio.to_thread(self._library.upload, uid, simulation_type, name)
        except BaseException:
            self._release(uid)
            raise
        return Receiver(upload, self._library.limit, lambda receiver: self._ended(uid, receiver))

    async def delete(self, uid: str, simulation_type: str, name: str) -> None:
        await asyncio.to_thread(self._library.delete, uid, simulation_type, name)

    async def read(self, request: LibFile) -> OpenFile:
        """Open a file of a library. `chunks` reads as fast as the client takes the bytes. Raises
        Refusal.
        """
        fd, info = await asyncio.to_thread(
            self._library.open, request.uid, request.simulation_type, request.name
        )
        rest = max(0, info.st_size - request.offset)
        length = rest if request.length is None else min(request.length, rest)
        return OpenFile(
            size=info.st_size,
            mtime_ns=info.st_mtime_ns,
            length=length,
            chunks=_chunks(fd, request.offset, length),
        )

    async def files(self, uid: str, simulation_type: str) -> list[dict[str, Any]]:
        turn = self._listing.setdefault(uid, asyncio.Lock())
        async with turn:
            return await asyncio.to_thread(self._library.files, uid, simulation_type)

    async def close(self) -> None:
        """Wait until the temporary files of interrupted uploads are removed."""
        await asyncio.gather(*self._closing)

    def _ended(self, uid: str, receiver: "Receiver") -> None:
        task = asyncio.get_running_loop().create_task(receiver.close())
        self._closing.add(task)
        task.add_done_callback(lambda _: self._closed(uid, task))

    def _closed(self, uid: str, task: "asyncio.Task[None]") -> None:
        self._closing.discard(task)
        self._release(uid)

    def _release(self, uid: str) -> None:
        self._in_progress[uid] -= 1
        if not self._in_progress[uid]:
            del self._in_progress[uid]


async def _chunks(fd: int, offset: int, length: int) -> AsyncGenerator[bytes, None]:
    try:
        end = offset + length
        while offset < end:
            data = await asyncio.to_thread(os.pread, fd, min(_GATHERED, end - offset), offset)
            if not data:
                raise Refusal("conflict", "the file became shorter during the read; read it again")
            offset += len(data)
            yield data
    finally:
        os.close(fd)


class Receiver:
    """One upload. Its pieces are written one after the other. limit: bytes."""

    def __init__(self, upload: Upload, limit: int, ended: Callable[["Receiver"], None]) -> None:
        self.limit = limit
        self._upload, self._ended = upload, ended
        self._gathered = bytearray()
        self._turn = asyncio.Lock()
        self._abandoned = False

    async def take(self, data: bytes) -> None:
        """Add data. Raises Refusal."""
        self._gathered += data
        if len(self._gathered) >= _GATHERED:
            await self._write()

    async def finish(self) -> dict[str, Any]:
        """Make the file visible, complete and durable. Return {"name", "size", "sha256"}. Raises
        Refusal.
        """
        await self._write()
        async with self._turn:
            return await asyncio.to_thread(self._upload.finish)

    def abandon(self) -> None:
        """End the upload. An unfinished file is removed in the background."""
        if not self._abandoned:
            self._abandoned = True
            self._ended(self)

    async def close(self) -> None:
        async with self._turn:  # a write may be in progress
            await asyncio.to_thread(self._upload.close)

    async def _write(self) -> None:
        data, self._gathered = bytes(self._gathered), bytearray()
        async with self._turn:
            if not self._abandoned:
                await asyncio.to_thread(self._upload.write, data)
