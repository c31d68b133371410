"""Sessions between users and stopped processes in containers of tasks.

No agent runs beside such a task. The records of the processes are files of the evidence, and a
session is an exec in the container, which relays bytes to the socket of one process. Nothing
listens. A session is lost with the supervisor; the process then waits for the next one.
"""

import asyncio
import contextlib
from collections.abc import Sequence

from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey, Token, execution_log_ids
from ....protocol.jobs.debugging import NOT_WAITING, SOCKETS, Stop, relay_command
from ....protocol.jobs.stop_record import MOST_BYTES, Record, names_in, parse
from ....protocol.wire.messages import (
    RELAY_BYTES,
    AttachDebugger,
    DebuggerIo,
    DebuggerOutput,
    ListStops,
    ShellIo,
    Stops,
)
from ....runtime.log.logger import Log
from ....runtime.shells.session import ShellSession
from ... import untrusted_files
from ..agents.driver import DockerDriver
from ..host.container_calls import inspect
from ..host.engine import EngineError
from ..host.exec_terminal import ExecTerminal
from .ledger import ContainerLedger

#: Sessions of all users, and stops in one answer.
MOST_SESSIONS, MOST_STOPS = 64, 500
#: Entries of the folder of sockets that are looked at: each stop has three.
MOST_ENTRIES = 3_000
#: A session ends when its user asks for nothing for this time; a debugger has this long to answer
#: the connection, and to take input; sessions have this long to end with the supervisor (seconds).
LEASE_SECS, HELLO_SECS, INPUT_SECS, CLOSE_SECS = 30.0, 20.0, 10.0, 4.0
#: Pause before input that was not accepted is sent again.
_AGAIN_SECS = 0.05


class _Session:
    """One user and one debugger. buffer: bytes between them."""

    def __init__(self, token: Token, name: str) -> None:
        self.token, self.name = token, name
        self.buffer = ShellSession(token)
        self.terminal: ExecTerminal | None = None
        self.lease: asyncio.TimerHandle | None = None
        self._first, self._reading, self._writing = b"", False, False
        self._offset = self._input_at = 0

    async def greeted(self) -> bool:
        """Return whether the debugger has accepted the connection, which it says by output."""
        self._first = await self.read(RELAY_BYTES, HELLO_SECS) or b""
        return bool(self._first)

    def trouble(self) -> str:
        """Return what the relay said before it ended."""
        return "" if self.buffer.exit is None else self.buffer.exit.detail

    async def write(self, data: bytes) -> None:
        """Raises Refusal, TimeoutError."""
        if self._writing:  # otherwise input would pile up here
            raise Refusal(
                "conflict", "this session takes input already; send more after its answer"
            )
        self._writing = True
        try:
            async with asyncio.timeout(INPUT_SECS):
                while data and self.buffer.exit is None:
                    before = self._input_at
                    op = ShellIo(op_id="", shell_id="", input_at=before, input=data)
                    self._input_at = (await self.buffer.io(op)).input_at
                    data = data[self._input_at - before :]
                    if data:
                        await asyncio.sleep(_AGAIN_SECS)
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
            op = ShellIo(op_id="", shell_id="", offset=self._offset, limit=limit, wait_secs=secs)
            answer = await self.buffer.io(op)
        finally:
            self._reading = False
        self._offset += len(answer.data)
        return answer.data if answer.data or not answer.end else None

    def close(self) -> None:
        """Close the connection. The process waits for another one."""
        if self.lease is not None:
            self.lease.cancel()
        if self.terminal is not None:
            self.terminal.hang_up()


class ContainerDebuggers:
    """The debugging sessions of one driver. Use it on the event loop."""

    def __init__(self, driver: DockerDriver, log: Log) -> None:
        self._driver, self._log = driver, log
        self._sessions: dict[str, _Session] = {}
        self._attaching: set[tuple[Token, str]] = set()

    async def answer(
        self, place: AgentKey, op: ListStops | AttachDebugger | DebuggerIo
    ) -> Stops | DebuggerOutput:
        """Raises Refusal."""
        match op:
            case ListStops():
                return await asyncio.to_thread(self._list, place, op)
            case AttachDebugger():
                return await self._attach(place, op)
            case DebuggerIo():
                return await self._relay(op)

    async def close(self) -> None:
        """End all sessions."""
        sessions = list(self._sessions)
        ends = [
            asyncio.ensure_future(s.terminal.ended.wait())
            for s in self._sessions.values()
            if s.terminal is not None
        ]
        for id_ in sessions:
            self._end(id_, "the supervisor ends")
        if ends:
            await asyncio.wait(ends, timeout=CLOSE_SECS)
        for work in ends:
            work.cancel()

    # ---- inside

    def _list(self, place: AgentKey, op: ListStops) -> Stops:
        found: list[tuple[Token, Stop]] = []
        for token in op.tokens:
            folder = self._driver.root / "agent" / str(place) / "run" / token.name
            for name in names_in(untrusted_files.names(folder, [SOCKETS], MOST_ENTRIES)):
                record = self._record(place, token, name)
                if record is None:
                    continue
                if len(found) == MOST_STOPS:
                    return Stops(op_id=op.op_id, found=tuple(found), more=True)
                found.append((token, record.stop(token, name)))
        return Stops(op_id=op.op_id, found=tuple(found))

    def _record(self, place: AgentKey, token: Token, name: str) -> Record | None:
        parts: Sequence[str] = ("run", token.name, SOCKETS, f"{name}.json")
        folder = self._driver.root / "agent" / str(place)
        return parse(untrusted_files.read(folder, parts, 0, MOST_BYTES)[0])

    async def _attach(self, place: AgentKey, op: AttachDebugger) -> DebuggerOutput:
        key = (op.token, op.name)
        taken = key in self._attaching or any(
            (s.token, s.name) == key for s in self._sessions.values()
        )
        if taken:
            raise Refusal(
                "debuggerTaken", "another session is attached to it; one at a time is possible"
            )
        if len(self._sessions) + len(self._attaching) >= MOST_SESSIONS:
            raise Refusal(
                "tooManyRequests",
                f"{MOST_SESSIONS} debugging sessions in containers exist already",
            )
        self._attaching.add(key)
        try:
            session = await self._connected(place, op)
        finally:
            self._attaching.discard(key)
        self._sessions[op.session] = session
        self._extend(op.session)
        self._log.bound(**execution_log_ids(op.token))("debugger session {} begins", op.name)
        return DebuggerOutput(op_id=op.op_id)

    async def _connected(self, place: AgentKey, op: AttachDebugger) -> _Session:
        record = await asyncio.to_thread(self._record, place, op.token, op.name)
        if record is None:
            raise Refusal("notFound", NOT_WAITING)
        engine = self._driver.engines.get(place.host)
        if engine is None or not await engine.is_up():
            raise Refusal("agentUnavailable", f"host {place.host} cannot be reached now")
        files = ContainerLedger(str(self._driver.root / "agent" / str(place)))
        session = _Session(op.token, op.name)
        try:
            id_ = await asyncio.to_thread(files.container, op.token)
            known = None if id_ is None else await inspect(engine, id_)
            if id_ is None or known is None or not known["State"].get("Running"):
                raise Refusal("notFound", NOT_WAITING)
            command = relay_command(files.evidence(op.token), record.python, record.folder, op.name)
            session.terminal = await ExecTerminal.start(
                engine, id_, command, {}, session.buffer, tty=False
            )
        except EngineError as e:
            raise Refusal("agentUnavailable", e.sentence) from None
        session.buffer.attach(session.terminal)
        if not await session.greeted():
            said = session.trouble()
            session.close()
            raise Refusal("notFound", f"{NOT_WAITING}{f' ({said[:500]})' if said else ''}")
        return session

    async def _relay(self, op: DebuggerIo) -> DebuggerOutput:
        session = self._sessions.get(op.session)
        if session is None:
            return DebuggerOutput(op_id=op.op_id, end=True, reason="the session is over")
        if op.close:
            self._end(op.session, "its user left")
            return DebuggerOutput(op_id=op.op_id, end=True, reason="detached")
        self._extend(op.session)
        data: bytes | None = b""
        with contextlib.suppress(TimeoutError):
            if op.data:
                data = None  # unless all of it is taken in time
                await session.write(op.data)
            data = await session.read(op.limit, op.wait_secs) if op.limit else b""
        if op.session in self._sessions:
            self._extend(op.session)
        if data is None:
            self._end(op.session, "the debugger has ended")
            return DebuggerOutput(op_id=op.op_id, end=True, reason="the debugger has ended")
        return DebuggerOutput(op_id=op.op_id, data=data)

    def _extend(self, id_: str) -> None:
        session = self._sessions[id_]
        if session.lease is not None:
            session.lease.cancel()
        session.lease = asyncio.get_running_loop().call_later(
            LEASE_SECS, self._end, id_, "its user is gone"
        )

    def _end(self, id_: str, why: str) -> None:
        session = self._sessions.pop(id_, None)
        if session is not None:
            session.close()
            self._log.bound(**execution_log_ids(session.token))(
                "debugger session {} ends: {}", session.name, why
            )
