"""The agents' end of the supervisor: handshake, one live connection an agent, frames in and out, bounded queues, readers.

Decides nothing. What an agent says is told to the engine; what comes back for a reader of logs is handed to that reader.
"""

import asyncio
import hmac
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import tornado.web
import tornado.websocket

from ..protocol.codec import MAX_FRAME, Decoder, Encoder, FrameError
from ..protocol.errors import Refusal
from ..protocol.ids import AgentKey, parse_agent_key, short_agent, short_op, short_uid
from ..protocol.messages import Alive, Execution, LogChunk, OpError, RunStatusUpdate, Snapshot, op_name
from ..runtime.log import Log
from .core.inputs import AgentConnected, AgentDisconnected, AgentGap, AgentSaid, Input
from .core.world import token_hash
from .engine import Engine
from .metrics import Counters

#: Messages that may wait for one agent; beyond it the connection is ended (a snapshot mends what was lost).
MAX_WAITING = 20_000

#: At the end, messages have so long to get out.
CLOSE_SECS = 1.0
#: Who has connected and does not say `alive` in time is sent away.
ALIVE_SECS = 10.0

DRIVER_NAMES = {"local": "LocalDriver", "docker": "DockerDriver", "sbatch": "SbatchDriver"}


class Connection:
    """One authenticated websocket of an agent: its codec, its outgoing queue."""

    def __init__(self, hub: "Hub", socket: tornado.websocket.WebSocketHandler, key: AgentKey, epoch: int) -> None:
        self.hub, self.socket, self.key, self.epoch = hub, socket, key, epoch
        self.alive: Alive | None = None
        self.ops: dict[str, str] = {}
        self._encoder, self._decoder = Encoder(), Decoder("to_supervisor")
        self._gaps = 0
        self._waiting: deque[Any] = deque()
        self._flushing = False

    def pkdebug_str(self) -> str:
        agent = short_agent(self.alive.agent_id) if self.alive else "?"
        ops = ", ".join(f"_Op({name}, {short_op(op)})" for op, name in list(self.ops.items())[:8])
        name = DRIVER_NAMES.get(self.key.driver, self.key.driver)
        return f"{name}(a={agent} k={self.key.kind} u={short_uid(self.key.uid)} [{ops}])"

    def send(self, message: Any) -> None:
        """Queue one message; frames are made of whatever waits when the loop comes round."""
        if len(self._waiting) >= MAX_WAITING:
            self.hub.counters.add("agentQueueFull")
            self.close("its queue is full")
            return
        self._waiting.append(message)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._start_flush)

    def _start_flush(self) -> None:
        self.hub.spawn(self._flush())

    async def _flush(self) -> None:
        try:
            while self._waiting:
                batch = list(self._waiting)
                self._waiting.clear()
                for frame in self._encoder.frames(batch):
                    await asyncio.wait_for(self.socket.write_message(frame, binary=True), self.hub.write_secs)
        except (tornado.websocket.WebSocketClosedError, TimeoutError, FrameError) as e:
            self.close(f"cannot be written: {type(e).__name__}")
        finally:
            self._flushing = False
            if self._waiting:
                self._flushing = True
                asyncio.get_running_loop().call_soon(self._start_flush)

    def receive(self, frame: bytes | str) -> None:
        """One frame. A bad one is counted; a peer out of step loses its connection."""
        try:
            messages: Sequence[Any] = self._decoder.messages(frame)  # type: ignore[arg-type]
        except FrameError as e:
            self.hub.counters.add("rejected." + e.code)
            self.hub.log("{} refused frame: {}", self, e.sentence)
            if e.close:
                self.close(e.code)
                return
            messages = e.messages
        inputs: list[Input] = []
        if self._decoder.gaps != self._gaps:
            self._gaps = self._decoder.gaps
            inputs.append(AgentGap(self.key, self.epoch))
        for message in messages:
            self._one(message, inputs)
        if inputs and self.hub.connections.get(self.key) is self:
            self.hub.engine.tell(*inputs)

    def _one(self, message: Any, inputs: list[Input]) -> None:
        if isinstance(message, Alive):
            self._alive(message, inputs)
        elif self.alive is None:
            self.hub.counters.add("rejected.malformed")
            self.close("the first message must be alive")
        elif isinstance(message, LogChunk | OpError) and message.op_id in self.hub.readers:
            self.hub.answer(message)
        else:
            self._log_receipt(message)
            inputs.append(AgentSaid(self.key, self.epoch, message))

    def _alive(self, message: Alive, inputs: list[Input]) -> None:
        if message.agent_key != self.key or message.agent_id != self.hub.agent_id(self.key):
            self.hub.counters.add("rejected.foreignToken")
            self.close("its id is not the one of its key")
            return
        self.alive = message
        self.hub.log("{} opName=alive o=None", self, op="alive", uid=self.key.uid)
        self.hub.replace(self)
        inputs.append(AgentConnected(self.key, self.epoch, message))

    def _log_receipt(self, message: Any) -> None:
        if isinstance(message, RunStatusUpdate):
            e: Execution = message.execution
            self.hub.log("{} opName={} o={} jid={} state={}", self, op_name(message), short_op(e.op_id), e.token.jid, e.state,
                         jid=e.token.jid, op=short_op(e.op_id), uid=self.key.uid)
            if e.state == "ended":
                self.ops.pop(e.op_id, None)
        elif isinstance(message, Snapshot):
            self.hub.log("{} opName=snapshot o=None executions={} page={}", self, len(message.executions), message.page, uid=self.key.uid)
        elif isinstance(message, OpError):
            op = short_op(message.op_id)
            self.hub.log("{} opName=error o={} {}: {}", self, op, message.code, message.error, op=op)

    def close(self, reason: str) -> None:
        self.hub.log("{} connection ended: {}", self, reason)
        self.socket.close(1000, reason[:100])
        self.hub.lost(self)


class Hub:
    """All live connections, by agent key."""

    def __init__(self, engine: Engine, log: Log, counters: Counters, agent_id: Callable[[AgentKey], str],
                 session: int, *, write_secs: float = 30.0) -> None:
        self.engine, self.log, self.counters, self.agent_id = engine, log, counters, agent_id
        self.write_secs = write_secs
        self.connections: dict[AgentKey, Connection] = {}
        self.readers: dict[str, asyncio.Future[LogChunk]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # epochs grow over restarts of the supervisor, too
        self._epoch = session << 24

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log.exception("a connection's writer failed", error=task.exception())

    def next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def authenticate(self, key_text: str | None, authorization: str | None) -> AgentKey:
        """Whose connection is this? Raises Refusal("unauthenticated"), the same for an unknown agent and a wrong token."""
        no = Refusal("unauthenticated", "this is not the token of that agent")
        if not key_text or not authorization or not authorization.startswith("Bearer "):
            raise no
        try:
            key = parse_agent_key(key_text)
        except Refusal:
            raise no from None
        given = token_hash(authorization.removeprefix("Bearer "))
        valid = [hmac.compare_digest(given, known) for known in self.engine.agent_record(key).token_hashes]
        if not any(valid):
            raise no
        return key

    def replace(self, connection: Connection) -> None:
        older = self.connections.get(connection.key)
        self.connections[connection.key] = connection
        if older is not None and older is not connection:
            older.socket.close(1000, "a newer connection of this agent")

    def lost(self, connection: Connection) -> None:
        """It is gone, for whatever reason; told once."""
        if self.connections.get(connection.key) is connection:
            del self.connections[connection.key]
            self.engine.tell(AgentDisconnected(connection.key, connection.epoch))

    def end(self, key: AgentKey, epoch: int, reason: str) -> None:
        connection = self.connections.get(key)
        if connection is not None and connection.epoch == epoch:
            connection.close(reason)

    def send(self, key: AgentKey, message: Any) -> bool:
        """Send on the live connection; False when there is none."""
        connection = self.connections.get(key)
        if connection is None:
            return False
        name, op = op_name(message), getattr(message, "op_id", None)
        if name == "run":
            connection.ops[message.op_id] = name
        if op is not None and name != "io":
            self.log("{} _Op({}, {}) {}", connection, name, short_op(op), _about(message), op=short_op(op), uid=key.uid)
        connection.send(message)
        return True

    async def read(self, key: AgentKey, message: Any, timeout: float) -> LogChunk:
        """Send a reader's op and wait for its answer; raises Refusal."""
        future: asyncio.Future[LogChunk] = asyncio.get_running_loop().create_future()
        self.readers[message.op_id] = future
        try:
            if not self.send(key, message):
                raise Refusal("agentUnavailable", "its agent is not connected now")
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise Refusal("deadline", f"no answer from its agent within {timeout:g} s") from None
        finally:
            self.readers.pop(message.op_id, None)

    def answer(self, message: LogChunk | OpError) -> None:
        future = self.readers.get(message.op_id)
        if future is None or future.done():
            return
        if isinstance(message, LogChunk):
            future.set_result(message)
        else:
            future.set_exception(Refusal(message.code, message.error))

    def alive(self) -> list[tuple[AgentKey, int, Alive]]:
        return [(c.key, c.epoch, c.alive) for c in self.connections.values() if c.alive is not None]

    async def close(self) -> None:
        """What waits to be sent gets a moment, then every connection ends."""
        await asyncio.sleep(0)  # what was queued just now begins to be written
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=CLOSE_SECS)
        for connection in list(self.connections.values()):
            connection.socket.close(1001, "the supervisor stops")
        self.connections.clear()
        for task in list(self._tasks):
            task.cancel()


def _about(message: Any) -> str:
    spec = getattr(message, "spec", None)
    if spec is not None:
        return f"runDir={spec.run_dir}"
    token = getattr(message, "token", None)
    return "" if token is None else f"jid={token.jid} serial={token.serial}"


class AgentSocket(tornado.websocket.WebSocketHandler):
    """`/agent`: the websocket an agent dials."""

    def initialize(self, hub: Hub) -> None:
        self.hub = hub
        self.connection: Connection | None = None

    def check_origin(self, origin: str) -> bool:
        return False  # browsers send one; agents do not

    async def prepare(self) -> None:
        try:
            self.key = self.hub.authenticate(self.request.headers.get("X-Jobscribe-Agent"), self.request.headers.get("Authorization"))
        except Refusal as e:
            self.hub.counters.add("rejected." + e.code)
            self.hub.log("an agent's connection was refused: {}", e.sentence)
            self.set_status(401)
            self.finish()

    def open(self, *args: str, **kwargs: str) -> None:
        self.set_nodelay(True)
        self.connection = Connection(self.hub, self, self.key, self.hub.next_epoch())
        asyncio.get_running_loop().call_later(ALIVE_SECS, self._silent)

    def _silent(self) -> None:
        if self.connection is not None and self.connection.alive is None:
            self.connection.close("it did not say alive")

    def on_message(self, message: str | bytes) -> None:
        if self.connection is not None:
            self.connection.receive(message)

    def on_close(self) -> None:
        if self.connection is not None:
            self.hub.lost(self.connection)


def application(hub: Hub, ping_secs: float, ping_timeout_secs: float) -> tornado.web.Application:
    """The agents' listener."""
    return tornado.web.Application(
        [(r"/agent", AgentSocket, {"hub": hub})],
        websocket_ping_interval=ping_secs, websocket_ping_timeout=min(ping_secs, ping_timeout_secs),
        websocket_max_message_size=MAX_FRAME, log_function=lambda handler: None,
    )


