"""The agent's end of the connection, and the driver that starts it: the agent's session and codec,
without a keeper and without a websocket.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import cast

import tornado.websocket

from ...agent.session.state_machine import Forget, Launch, Output, Probe, Quit, Send, Session
from ...drivers.contracts import AgentSpec, Capabilities, Capacity, Found, FoundState, Handle
from ...protocol.ids import AgentKey, Token, op_id
from ...protocol.jobs.execution_state import ExecutionState
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.version import VERSION
from ...protocol.wire.codec import Decoder, Encoder
from ...protocol.wire.messages import Alive, Execution, PortsProbed, ToSupervisor
from ...protocol.wire.versions import SPOKEN
from ...runtime import clock
from ..connections.hub import Connection, Hub


class Agent:
    """One agent. launched: takes each task to run; its outcome is told by `started` and `ended`."""

    def __init__(
        self, hub: Hub, spec: AgentSpec, launched: Callable[["Agent", Launch], None]
    ) -> None:
        self._launched, self._session = launched, Session()
        self._encoder = Encoder(protocol=SPOKEN.newest)
        self._decoder = Decoder("to_agent", protocol=SPOKEN.newest)
        key = hub.authenticate(str(spec.key), f"Bearer {spec.token}")
        # the hub writes frames to this object, as to a websocket
        websocket = cast(tornado.websocket.WebSocketHandler, self)
        self._connection = Connection(hub, websocket, key, hub.next_epoch(), SPOKEN.newest)
        alive = Alive(
            agent_id=spec.agent_id,
            agent_key=spec.key,
            version=VERSION,
            host=socket.gethostname(),
            boot_id=clock.boot_id(),
            pid=os.getpid(),
            keeper_pid=os.getpid(),
        )
        self._send(alive)
        self._perform(self._session.connected(time.monotonic()))

    async def write_message(self, frame: bytes, binary: bool) -> None:
        """Receive a frame of the supervisor."""
        for message in self._decoder.messages(frame):
            self._perform(self._session.received(message, time.monotonic()))

    def close(self, code: int, reason: str) -> None:
        """End the connection. The process is about to end, too."""

    def started(self, token: Token, at: float) -> None:
        self._report(token, ExecutionState.RUNNING, at, None)

    def ended(self, token: Token, at: float, exit_: ExitInfo) -> None:
        self._report(token, ExecutionState.ENDED, at, exit_)

    def _report(
        self, token: Token, state: ExecutionState, at: float, exit_: ExitInfo | None
    ) -> None:
        execution = Execution(
            token=token,
            state=state,
            op_id=op_id(token, "run"),
            pid=os.getpid(),
            start_ticks=1,
            started_at=at,
            exit=exit_,
        )
        self._perform(self._session.record_states([execution], time.monotonic()))

    def _perform(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Send(message=message):
                    self._send(message)
                case Launch():
                    self._launched(self, output)
                case Probe(op=op):
                    self._send(PortsProbed(op_id=op.op_id, busy=()))
                case Forget() | Quit():
                    pass
                case _:  # files, calls and debuggers: the site has no such routes
                    pass

    def _send(self, message: ToSupervisor) -> None:
        for frame in self._encoder.frames([message]):
            asyncio.get_running_loop().call_soon(self._connection.receive, frame)


class Driver:
    """An `AgentDriver` (see drivers.contracts). start_agent: connects an agent."""

    name = "local"
    capabilities = Capabilities(tasks="keeper", same_machine=True)

    def __init__(self, start_agent: Callable[[AgentSpec], None]) -> None:
        self._start_agent = start_agent

    async def start(self, spec: AgentSpec) -> Handle:
        asyncio.get_running_loop().call_soon(self._start_agent, spec)
        return {"pid": os.getpid()}

    async def find(self, handle: Handle) -> Found:
        return Found(state=FoundState.ALIVE, detail="it is this process")

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        return None

    async def evidence(
        self, key: AgentKey, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        return b"", 0  # the output of jobs is that of the process

    def capacity(self) -> Capacity:
        return Capacity(sequential=1, parallel=1)

    async def check(self) -> list[str]:
        return []

    async def close(self) -> None:
        return None
