"""Sessions between users and debuggers of stopped processes: who is attached to which process, for how
long, and the bytes between a message and a connection. How a process is reached is up to the caller.
"""

import abc
import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from ...protocol.errors import Refusal
from ...protocol.ids import Token, execution_log_ids
from ...protocol.wire.messages import RELAY_BYTES, AttachDebugger, DebuggerIo, DebuggerOutput
from ..log.logger import Log

#: A session ends when its user asks for nothing for this time; a debugger has this long to answer
#: the connection, and to take input (seconds).
LEASE_SECS, HELLO_SECS, INPUT_SECS = 30.0, 20.0, 10.0


class DebugSession(abc.ABC):
    """One user and one debugger. A subclass has the connection."""

    def __init__(self, token: Token, name: str) -> None:
        self.token, self.name = token, name
        self.lease: asyncio.TimerHandle | None = None
        self._first, self._reading, self._writing = b"", False, False

    async def greeted(self) -> bool:
        """Return whether the debugger has accepted the connection, which it says by output."""
        self._first = await self.read(RELAY_BYTES, HELLO_SECS) or b""
        return bool(self._first)

    async def write(self, data: bytes) -> None:
        """Raises TimeoutError, Refusal, and what `send` raises."""
        if self._writing:  # otherwise input would pile up here
            raise Refusal(
                "conflict", "this session takes input already; send more after its answer"
            )
        self._writing = True
        try:
            async with asyncio.timeout(INPUT_SECS):
                await self.send(data)
        finally:
            self._writing = False

    async def read(self, limit: int, secs: float) -> bytes | None:
        """Return output; nothing if there is none in time, None at the end. Raises Refusal."""
        if self._reading:
            raise Refusal("conflict", "this session is being read already")
        if self._first:
            data, self._first = self._first[:limit], self._first[limit:]
            return data
        self._reading = True
        try:
            return await self.receive(limit, secs)
        finally:
            self._reading = False

    @abc.abstractmethod
    async def send(self, data: bytes) -> None:
        """Return when the debugger has taken all of it."""

    @abc.abstractmethod
    async def receive(self, limit: int, secs: float) -> bytes | None:
        """Return output as `read` does."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection. The process waits for another one."""


S = TypeVar("S", bound=DebugSession)


class DebugSessions(Generic[S]):
    """The sessions of one agent or driver, on its event loop. most: their number. full: the refusal of
    one more.
    """

    def __init__(self, log: Log, most: int, full: str) -> None:
        self._log, self._most, self._full = log, most, full
        self._sessions: dict[str, S] = {}
        self._attaching: set[tuple[Token, str]] = set()

    def all(self) -> tuple[S, ...]:
        return tuple(self._sessions.values())

    async def attach(
        self, op: AttachDebugger, connect: Callable[[], Awaitable[S]]
    ) -> DebuggerOutput:
        """Begin a session. Raises Refusal: debuggerTaken, tooManyRequests, and those of `connect`."""
        place = (op.token, op.name)
        if place in self._attaching or any((s.token, s.name) == place for s in self.all()):
            raise Refusal(
                "debuggerTaken", "another session is attached to it; one at a time is possible"
            )
        if len(self._sessions) + len(self._attaching) >= self._most:
            raise Refusal("tooManyRequests", self._full)
        self._attaching.add(place)
        try:
            session = await connect()
        finally:
            self._attaching.discard(place)
        self._sessions[op.session] = session
        self._extend(op.session)
        self._log.bound(**execution_log_ids(op.token))("debugger session {} begins", op.name)
        return DebuggerOutput(op_id=op.op_id)

    async def relay(self, op: DebuggerIo) -> DebuggerOutput:
        """Pass input on, and return output. Raises Refusal("conflict")."""
        session = self._sessions.get(op.session)
        if session is None:
            return DebuggerOutput(op_id=op.op_id, end=True, reason="the session is over")
        if op.close:
            self._end(op.session, "its user left")
            return DebuggerOutput(op_id=op.op_id, end=True, reason="detached")
        self._extend(op.session)
        data: bytes | None
        try:
            if op.data:
                await session.write(op.data)
            data = await session.read(op.limit, op.wait_secs) if op.limit else b""
        except (OSError, TimeoutError):
            data = None
        if op.session in self._sessions:
            self._extend(op.session)
        if data is None:
            self._end(op.session, "the debugger has ended")
            return DebuggerOutput(op_id=op.op_id, end=True, reason="the debugger has ended")
        return DebuggerOutput(op_id=op.op_id, data=data)

    def close(self, why: str) -> None:
        """End all sessions."""
        for id_ in list(self._sessions):
            self._end(id_, why)

    def _extend(self, id_: str) -> None:
        session = self._sessions[id_]
        if session.lease is not None:
            session.lease.cancel()
        session.lease = asyncio.get_running_loop().call_later(
            LEASE_SECS, self._end, id_, "its user is gone"
        )

    def _end(self, id_: str, why: str) -> None:
        session = self._sessions.pop(id_, None)
        if session is None:
            return
        if session.lease is not None:
            session.lease.cancel()
        session.close()
        log = self._log.bound(**execution_log_ids(session.token))
        log("debugger session {} ends: {}", session.name, why)
