"""Copies users' libraries to clusters that do not share this machine's file system. Missing and
changed files are sent before a call or a run reads them. Files deleted here stay on the cluster,
where nothing reads them.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import closing

from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, agent_log_ids, base62
from ...protocol.wire.messages import FileChunk, KeepFile, ReadFile
from ...runtime.log.logger import Log
from ..connections.hub import Hub
from .user_library import Library

PIECE = 256 * 1024
#: Time limit of an agent for one piece, seconds.
PIECE_SECS = 60.0


class LibrarySync:
    """Sends library files to agents. apart: returns whether an agent has a separate file system."""

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

    async def copy_library(self, key: AgentKey, simulation_type: str) -> None:
        """Send all files of a library that the agent does not have. Never raises: a failure is
        logged, and the app reports a missing file.
        """
        log = self._log.bound(**agent_log_ids(key))
        lock = self._locks.setdefault((key, simulation_type), asyncio.Lock())
        try:
            async with lock:
                for name in await asyncio.to_thread(self._names, key.uid, simulation_type):
                    await self._send_file(key, simulation_type, name)
        except Refusal as e:
            log("the library of {} is incomplete on {}: {}", simulation_type, key.host, e.sentence)
        finally:
            if not lock.locked():
                self._locks.pop((key, simulation_type), None)

    def _names(self, uid: str, simulation_type: str) -> list[str]:
        return [f["name"] for f in self._library.files(uid, simulation_type)]

    async def _send_file(self, key: AgentKey, simulation_type: str, name: str) -> None:
        fd, info = await asyncio.to_thread(self._library.open, key.uid, simulation_type, name)
        with closing(os.fdopen(fd, "rb", buffering=0)) as file:
            if await self._remote_version(key, simulation_type, name) == (
                info.st_size,
                info.st_mtime_ns,
            ):
                return
            offset = 0
            while offset < info.st_size or offset == 0:
                data = await asyncio.to_thread(
                    os.pread, file.fileno(), min(PIECE, info.st_size - offset), offset
                )
                if not data and info.st_size:
                    raise Refusal("conflict", f"{name!r} became shorter during the transfer")
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

    async def _remote_version(
        self, key: AgentKey, simulation_type: str, name: str
    ) -> tuple[int, int] | None:
        """Return (size, mtime in ns) of the agent's copy, or None."""
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
