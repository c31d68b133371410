"""Sessions between users and stopped jobs: bytes from the supervisor's messages to a debugger's unix
socket and back. Nothing listens on the network.

A session has no state that matters: if it is lost with its agent or supervisor, the job waits for
the next one until its time is over. Output that the user does not read stays in the job's socket,
so a flood needs no memory here.
"""

import asyncio
import contextlib
import os
import re
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from pathlib import Path
from signal import Signals

from ...protocol.errors import Refusal
from ...protocol.ids import Token
from ...protocol.jobs.debugging import NOT_WAITING, Stop, relay_command
from ...protocol.jobs.stop_record import Record
from ...protocol.wire.messages import (
    RELAY_BYTES,
    AttachDebugger,
    DebuggerIo,
    DebuggerOutput,
    ListStops,
    Stops,
)
from ...runtime.child_processes import close_pipes, signal_group
from ...runtime.log.logger import Log
from ...runtime.shells.debug_sessions import DebugSession, DebugSessions
from ..slurm import command_lines
from . import records
from .environment import sockets

#: Sessions of one agent, and stops in one answer.
MOST_SESSIONS, MOST_STOPS = 32, 500
_GONE_SECS = 1.0
_JOB, _NODE = re.compile(r"[0-9_+]{1,32}\Z"), re.compile(r"[A-Za-z0-9._-]{1,255}\Z")


class Session(DebugSession):
    """A connection on this machine, or one by a process that relays it."""

    def __init__(
        self,
        op: AttachDebugger,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        process: Process | None,
    ) -> None:
        super().__init__(op.token, op.name)
        self._reader, self._writer, self._process = reader, writer, process

    async def trouble(self) -> str:
        """Return what the relay on the node said before it ended."""
        if self._process is None or self._process.stderr is None:
            return ""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_GONE_SECS):
                return (await self._process.stderr.read(2000)).decode("utf-8", "replace").strip()
        return ""

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self, limit: int, secs: float) -> bytes | None:
        try:
            async with asyncio.timeout(secs):
                return await self._reader.read(limit) or None
        except TimeoutError:
            return b""
        except OSError:
            return None

    def close(self) -> None:
        self._writer.close()
        if self._process is not None:
            signal_group(self._process, Signals.SIGKILL)
            close_pipes(self._process)


class Sessions:
    """All sessions of one agent.

    folder: parent of the evidence folders. environment: for commands of the batch scheduler, which
    starts the jobs; None if the keeper does.
    """

    def __init__(
        self,
        folder: Path,
        log: Log,
        environment: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self._folder, self._environment = folder, environment
        full = f"the agent has {MOST_SESSIONS} debugging sessions already"
        self._sessions: DebugSessions[Session] = DebugSessions(log, MOST_SESSIONS, full)

    async def answer(self, op: ListStops | AttachDebugger | DebuggerIo) -> Stops | DebuggerOutput:
        """Raises Refusal."""
        match op:
            case ListStops():
                return await asyncio.to_thread(self._list, op)
            case AttachDebugger():
                return await self._sessions.attach(op, lambda: self._connected(op))
            case DebuggerIo():
                return await self._sessions.relay(op)

    def close(self, why: str) -> None:
        """End all sessions: their users cannot be reached."""
        self._sessions.close(why)

    # ---- inside

    def _list(self, op: ListStops) -> Stops:
        found: list[tuple[Token, Stop]] = []
        for token in op.tokens:
            for stop in records.stops(sockets(self._folder / token.name), token):
                if len(found) == MOST_STOPS:
                    return Stops(op_id=op.op_id, found=tuple(found), more=True)
                found.append((token, stop))
        return Stops(op_id=op.op_id, found=tuple(found))

    async def _connected(self, op: AttachDebugger) -> Session:
        evidence = self._folder / op.token.name
        folder = sockets(evidence)
        record = await asyncio.to_thread(records.find, folder, op.name)
        if record is None:
            raise Refusal("notFound", NOT_WAITING)
        try:
            if self._environment is None:
                session = await _direct(op, record)
            else:
                session = await self._on_node(op, record, evidence)
        except (OSError, ValueError) as e:
            reason = getattr(e, "strerror", None) or str(e)
            raise Refusal("notFound", f"{NOT_WAITING} ({reason})") from None
        if not await session.greeted():
            said = await session.trouble()
            session.close()
            raise Refusal("notFound", f"{NOT_WAITING}{f' ({said[:500]})' if said else ''}")
        return session

    async def _on_node(self, op: AttachDebugger, record: Record, evidence: Path) -> Session:
        """Reach the socket by a step of the batch job on the node of the process."""
        assert self._environment is not None
        if not _JOB.match(record.slurm_job) or not _NODE.match(record.node):
            raise Refusal("notHere", "its record names no job of Slurm and no node to reach it by")
        process = await asyncio.create_subprocess_exec(
            *command_lines.enter(record.slurm_job, record.node, terminal=False),
            *relay_command(evidence, record.python, record.folder, op.name),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd="/",
            env=dict(self._environment()),
            start_new_session=True,
            limit=RELAY_BYTES,
        )
        assert process.stdin is not None and process.stdout is not None
        return Session(op, process.stdout, process.stdin, process)


async def _direct(op: AttachDebugger, record: Record) -> Session:
    """Connect on this machine. The path is short, whatever that of the folder is. Raises OSError."""
    folder = os.open(record.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        path = f"/proc/self/fd/{folder}/{op.name}.sock"
        reader, writer = await asyncio.open_unix_connection(path, limit=RELAY_BYTES)
    finally:
        os.close(folder)
    return Session(op, reader, writer, None)
