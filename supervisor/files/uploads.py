"""Asynchronous access to libraries, for handlers on the event loop. All disk access runs in
threads, and a request body is written as it arrives.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

from ...protocol.api.requests import LibFile
from ...protocol.errors import Refusal
from ..agents.calls import OpenFile
from .user_library import Library, Upload

#: Maximum concurrent uploads of one user.
PER_USER = 4
#: Bytes of a body to collect before a write.
_GATHERED = 1024 * 1024


class Quotas(Protocol):
    """Disk quotas of users, and their measurement (`disk_meter`)."""

    def reserve(self, uid: str, size: int) -> None:
        """Count the bytes of an upload in progress. Raises Refusal("quotaExceeded")."""

    def unreserve(self, uid: str, size: int) -> None:
        """Stop counting them."""

    def uploaded(self, uid: str, part: str, size: int) -> str | None:
        """Count a stored file in a part of the user's files. Return a warning for the reply, if there is one."""

    def changed(self, uid: str, part: str) -> None:
        """Measure a part of the user's files soon."""


class Uploads:
    """Uploads, downloads and listings of libraries. One per process. quotas: None: no limits."""

    def __init__(self, library: Library, quotas: Quotas | None = None) -> None:
        self._library, self._quotas = library, quotas
        #: called with user, app and name when a file was stored
        self.heard: Callable[[str, str, str], None] = lambda uid, simulation_type, name: None
        self._in_progress: Counter[str] = Counter()
        self._closing: set[asyncio.Task[None]] = set()
        #: By user. A listing may occupy one of few threads for seconds.
        self._listing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def begin(
        self, uid: str, simulation_type: str, name: str, size: int = 0, over: str | None = None
    ) -> "Receiver":
        """Start an upload. size: its bytes, as announced by the sender; 0: unknown. over: see
        `Library.upload`. Raises Refusal.
        """
        if self._in_progress[uid] >= PER_USER:
            raise Refusal(
                "tooManyRequests",
                f"{PER_USER} uploads of this user are in progress, which is the limit; try again later",
            )
        space = Space(self._quotas, uid, f"{simulation_type}/lib")
        space.grow(min(size, self._library.limit))
        self._in_progress[uid] += 1
        try:
            upload = await asyncio.to_thread(self._library.upload, uid, simulation_type, name, over)
        except BaseException:
            space.close()
            self._release(uid)
            raise
        return Receiver(
            upload,
            self._library.limit,
            lambda receiver: self._ended(uid, receiver),
            space,
            lambda: self.heard(uid, simulation_type, name),
        )

    async def delete(self, uid: str, simulation_type: str, name: str) -> None:
        await asyncio.to_thread(self._library.delete, uid, simulation_type, name)
        if self._quotas is not None:
            self._quotas.changed(uid, f"{simulation_type}/lib")

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
        task.add_done_callback(lambda _: receiver.space.removed())

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


class Space:
    """The space that one upload takes of its user's quota until it is over. part: of the user's
    files, where the file is stored.
    """

    def __init__(self, quotas: Quotas | None, uid: str, part: str) -> None:
        self._quotas, self._uid, self._part = quotas, uid, part
        self._size = 0

    def grow(self, size: int) -> None:
        """Reserve space for this number of bytes. Raises Refusal("quotaExceeded")."""
        if self._quotas is not None and size > self._size:
            self._quotas.reserve(self._uid, size - self._size)
            self._size = size

    def stored(self, size: int) -> str | None:
        """Count the stored file instead. Return a warning for the reply, if there is one."""
        self.close()
        return None if self._quotas is None else self._quotas.uploaded(self._uid, self._part, size)

    def close(self) -> None:
        if self._quotas is not None:
            self._quotas.unreserve(self._uid, self._size)
        self._size = 0

    def removed(self) -> None:
        """The temporary file is gone, which may have been measured."""
        if self._quotas is not None:
            self._quotas.changed(self._uid, self._part)


class Receiver:
    """One upload. Its pieces are written one after the other. limit: bytes. stored: called when the
    file is visible.
    """

    def __init__(
        self,
        upload: Upload,
        limit: int,
        ended: Callable[["Receiver"], None],
        space: Space | None = None,
        stored: Callable[[], None] = lambda: None,
    ) -> None:
        self.limit, self._stored = limit, stored
        self.space, self._received = space or Space(None, "", ""), 0
        self._upload, self._ended = upload, ended
        self._gathered = bytearray()
        self._turn = asyncio.Lock()
        self._abandoned = False

    async def take(self, data: bytes) -> None:
        """Add data. Raises Refusal."""
        self._received += len(data)
        self.space.grow(self._received)
        self._gathered += data
        if len(self._gathered) >= _GATHERED:
            await self._write()

    async def finish(self) -> dict[str, Any]:
        """Make the file visible, complete and durable. Return {"name", "size", "sha256"}, and
        "quotaWarning" if there is one. Raises Refusal.
        """
        await self._write()
        async with self._turn:
            found = await asyncio.to_thread(self._upload.finish)
        warning = self.space.stored(found["size"])
        self._stored()
        return found if warning is None else {**found, "quotaWarning": warning}

    def abandon(self) -> None:
        """End the upload. An unfinished file is removed in the background."""
        if not self._abandoned:
            self._abandoned = True
            self.space.close()
            self._ended(self)

    async def close(self) -> None:
        async with self._turn:  # a write may be in progress
            await asyncio.to_thread(self._upload.close)

    async def _write(self) -> None:
        data, self._gathered = bytes(self._gathered), bytearray()
        async with self._turn:
            if not self._abandoned:
                await asyncio.to_thread(self._upload.write, data)
