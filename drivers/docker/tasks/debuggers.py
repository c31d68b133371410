"""Sessions between users and stopped processes in containers of tasks.

No agent runs beside such a task. The records of the processes are files of the evidence, and a
session is an exec in the container, which relays bytes to the socket of one process. Nothing
listens. A session is lost with the supervisor; the process then waits for the next one.
"""

import asyncio
from collections.abc import Sequence

from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey, Token
from ....protocol.jobs.debugging import NOT_WAITING, SOCKETS, Stop, relay_command
from ....protocol.jobs.stop_record import MOST_BYTES, Record, names_in, parse
from ....protocol.wire.messages import (
    AttachDebugger,
    DebuggerIo,
    DebuggerOutput,
    ListStops,
    ShellIo,
    Stops,
)
from ....runtime.log.logger import Log
from ....runtime.shells.debug_sessions import DebugSession, DebugSessions
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
#: Sessions have this long to end with the supervisor, in seconds.
CLOSE_SECS = 4.0
#: Pause before input that was not accepted is sent again.
_AGAIN_SECS = 0.05


class _Session(DebugSession):
    """buffer: bytes between the user and the debugger."""

    def __init__(self, token: Token, name: str) -> None:
        super().__init__(token, name)
        self.buffer = ShellSession(token)
        self.terminal: ExecTerminal | None = None
        self._offset = self._input_at = 0

    def trouble(self) -> str:
        """Return what the relay said before it ended."""
        return "" if self.buffer.exit is None else self.buffer.exit.detail

    async def send(self, data: bytes) -> None:
        while data and self.buffer.exit is None:
            before = self._input_at
            op = ShellIo(op_id="", shell_id="", input_at=before, input=data)
            self._input_at = (await self.buffer.io(op)).input_at
            data = data[self._input_at - before :]
            if data:
                await asyncio.sleep(_AGAIN_SECS)

    async def receive(self, limit: int, secs: float) -> bytes | None:
        op = ShellIo(op_id="", shell_id="", offset=self._offset, limit=limit, wait_secs=secs)
        answer = await self.buffer.io(op)
        self._offset += len(answer.data)
        return answer.data if answer.data or not answer.end else None

    def close(self) -> None:
        if self.terminal is not None:
            self.terminal.hang_up()


class ContainerDebuggers:
    """The debugging sessions of one driver. Use it on the event loop."""

    def __init__(self, driver: DockerDriver, log: Log) -> None:
        self._driver = driver
        full = f"{MOST_SESSIONS} debugging sessions in containers exist already"
        self._sessions: DebugSessions[_Session] = DebugSessions(log, MOST_SESSIONS, full)

    async def answer(
        self, place: AgentKey, op: ListStops | AttachDebugger | DebuggerIo
    ) -> Stops | DebuggerOutput:
        """Raises Refusal."""
        match op:
            case ListStops():
                return await asyncio.to_thread(self._list, place, op)
            case AttachDebugger():
                return await self._sessions.attach(op, lambda: self._connected(place, op))
            case DebuggerIo():
                return await self._sessions.relay(op)

    async def close(self) -> None:
        """End all sessions."""
        ends = [
            asyncio.ensure_future(s.terminal.ended.wait())
            for s in self._sessions.all()
            if s.terminal is not None
        ]
        self._sessions.close("the supervisor ends")
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
