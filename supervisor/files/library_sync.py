"""Libraries of users on clusters that do not see this machine's files: what is not there yet, or
not as it is here, is sent before whatever may read it. What was deleted here stays there, and
nothing reads it.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import closing

from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, base62
from ...protocol.wire.messages import FileChunk, KeepFile, ReadFile
from ...runtime.log.logger import Log
from ..connections.hub import Hub
from .user_library import Library

PIECE = 256 * 1024
#: An agent may take so long for one piece (seconds).
PIECE_SECS = 60.0


class LibrarySync:
    """apart: does an agent see other files than we do?"""

    def __init__(
        self,
        library: Library,
        hub: Hub,
        log: Log,
        user_root: str,
        entropy: Callable[[int], bytes],
        apart: Callable[[AgentKey], bool],
    ) -> None:
        self._library, self._hub, self._log, self._user_root, self._entropy = (
            library,
            hub,
            log,
            user_root,
            entropy,
        )
        self.apart = apart
        self._locks: dict[tuple[AgentKey, str], asyncio.Lock] = {}

    def folder(self, uid: str, simulation_type: str) -> str:
        return os.path.join(self._user_root, uid, simulation_type, "lib")

    async def bring(self, key: AgentKey, simulation_type: str) -> None:
        """Returns when the agent has all of it. Never raises: what could not be brought is not
        there, which the app says.
        """
        lock = self._locks.setdefault((key, simulation_type), asyncio.Lock())
        try:
            async with lock:
                for name in await asyncio.to_thread(self._names, key.uid, simulation_type):
                    await self._one(key, simulation_type, name)
        except Refusal as e:
            self._log(
                "the library of {} is not whole on {}: {}",
                simulation_type,
                key.host,
                e.sentence,
                uid=key.uid,
            )
        finally:
            if not lock.locked():
                self._locks.pop((key, simulation_type), None)

    def _names(self, uid: str, simulation_type: str) -> list[str]:
        return [f["name"] for f in self._library.files(uid, simulation_type)]

    async def _one(self, key: AgentKey, simulation_type: str, name: str) -> None:
        fd, info = await asyncio.to_thread(self._library.open, key.uid, simulation_type, name)
        with closing(os.fdopen(fd, "rb", buffering=0)) as file:
            if await self._there(key, simulation_type, name) == (info.st_size, info.st_mtime_ns):
                return
            offset = 0
            while offset < info.st_size or offset == 0:
                data = await asyncio.to_thread(
                    os.pread, file.fileno(), min(PIECE, info.st_size - offset), offset
                )
                if not data and info.st_size:
                    raise Refusal("conflict", f"{name!r} became shorter while it was sent")
                await self._hub.ask(
                    key,
                    KeepFile(
                        op_id=self._op(),
                        lib_dir=self.folder(key.uid, simulation_type),
                        name=name,
                        offset=offset,
                        data=data,
                        size=info.st_size,
                        mtime_ns=info.st_mtime_ns,
                    ),
                    PIECE_SECS,
                    FileChunk,
                )
                offset += len(data)
                if not data:
                    return

    async def _there(
        self, key: AgentKey, simulation_type: str, name: str
    ) -> tuple[int, int] | None:
        """Size and time of what the agent has."""
        op = ReadFile(
            op_id=self._op(),
            run_dir=self.folder(key.uid, simulation_type),
            name=name,
            offset=0,
            limit=0,
        )
        try:
            found = await self._hub.ask(key, op, PIECE_SECS, FileChunk)
        except Refusal as e:
            if e.code != "notFound":
                raise
            return None
        return found.size, found.mtime_ns

    def _op(self) -> str:
        return base62(self._entropy(32), 32)
