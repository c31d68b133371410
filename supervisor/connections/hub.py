"""The hub: one live connection for each agent, with authentication, frames, queues and requests.

The hub passes agents' messages to the engine as inputs, answers (log, call, file) to the waiting
callers, progress reports to `progress`, and resource samples to `metering`. Decisions are in
`core`.
"""

import asyncio
import hmac
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tornado.websocket

from ...protocol.errors import CODES, Refusal
from ...protocol.ids import (
    AgentKey,
    Token,
    agent_log_ids,
    parse_agent_key,
    short_agent,
    short_op,
    short_uid,
)
from ...protocol.jobs.execution_state import ExecutionState
from ...protocol.version import VERSION
from ...protocol.wire import handshake, versions
from ...protocol.wire.codec import Decoder, Encoder, FrameError
from ...protocol.wire.heartbeat import Heartbeat, HeartbeatTiming
from ...protocol.wire.messages import (
    Alive,
    CallReply,
    ClusterReport,
    DebuggerOutput,
    Execution,
    FileChunk,
    FileDigest,
    FileList,
    Kill,
    LogChunk,
    OpError,
    RunAck,
    RunReport,
    RunStatusUpdate,
    Samples,
    ShellOutput,
    Snapshot,
    Stops,
    message_log_ids,
    op_name,
)
from ...runtime.log.logger import Log
from ..core.interface.inputs import (
    AgentConnected,
    AgentDisconnected,
    AgentMessage,
    FramesLost,
    Input,
)
from ..core.state.transaction import token_hash
from ..engine.decision_loop import Engine
from ..engine.deferred_inputs import are_unawaited_ends, no_run_is_queued
from ..process.counters import ConnectionMetrics, Counters, DisconnectReason, NullMetrics
from ..usage.samples import UsageSamples
from . import debug_holds
from .progress import Progress

#: Largest number of queued messages for one agent. Beyond it the connection is closed; the snapshot
#: of the next connection repairs the loss.
MAX_WAITING = 20_000

#: Largest number of requests that wait for answers of one agent.
MAX_ASKED = 1_024
#: Ops that are not logged when they are sent: readers send many each second, and a call is logged
#: with its HTTP request.
_QUIET = frozenset(
    {
        "io",
        "read_file",
        "list_files",
        "keep_file",
        "digest_file",
        "store_file",
        "analysis",
        "cancel_call",
        "list_stops",
        "debugger_io",
        "shell_io",
    }
)

#: An acknowledgement waits at most this long (seconds) for another message: alone, it would wake
#: agent and keeper.
ACK_HELD_SECS = 0.02
#: The end of a run for which nobody waits is decided at most this much later (seconds), so that it
#: shares the commit of the next request.
END_DEFERRED_SECS = 0.005
PACE = HeartbeatTiming()
#: Time limit for sending queued messages when the supervisor stops.
CLOSE_SECS = 1.0
#: Time limit for a dismissed agent to disconnect, and the polling interval.
DISMISS_SECS, _POLL_SECS = 10.0, 0.02

Answer = (
    LogChunk | CallReply | FileChunk | FileDigest | FileList | Stops | DebuggerOutput | ShellOutput
)
A = TypeVar(
    "A",
    LogChunk,
    CallReply,
    FileChunk,
    FileDigest,
    FileList,
    Stops,
    DebuggerOutput,
    ShellOutput,
)

DRIVER_NAMES = {"local": "LocalDriver", "docker": "DockerDriver", "sbatch": "SbatchDriver"}


class Connection:
    """One authenticated websocket of an agent, with its codec and outgoing queue. protocol: the
    version that both ends use.
    """

    def __init__(
        self,
        hub: "Hub",
        socket: tornado.websocket.WebSocketHandler,
        key: AgentKey,
        epoch: int,
        protocol: int,
    ) -> None:
        self.hub, self.socket, self.key, self.epoch = hub, socket, key, epoch
        self.alive: Alive | None = None
        #: adds the ids of this connection to each line
        self.log = hub.log.bound(**agent_log_ids(key))
        self.ops: dict[str, str] = {}
        #: requests that wait for this agent's answer, by opId
        self.asked: dict[str, asyncio.Future[Answer]] = {}
        self.protocol = protocol
        self._encoder = Encoder(protocol=protocol)
        self._decoder = Decoder("to_supervisor", protocol=protocol)
        self._gaps = self._ignored = 0
        self.heart = Heartbeat(
            hub.pace,
            asyncio.get_running_loop().time(),
            ahead=random.random() * hub.pace.interval / 2,
        )
        #: time of the loop at which the agent sent anything
        self.heard = asyncio.get_running_loop().time()
        self._waiting: deque[Any] = deque()
        self._flushing = False
        #: ended executions to acknowledge, each once, and the timer for that
        self._acknowledged: dict[Token, None] = {}
        self._later: asyncio.TimerHandle | None = None

    @property
    def holds(self) -> bool:
        """Return whether the agent holds the allocations of failed tasks."""
        return self.alive is not None and self.alive.debug_holds is True

    def pkdebug_str(self) -> str:
        agent = short_agent(self.alive.agent_id) if self.alive else "?"
        ops = ", ".join(f"_Op({name}, {short_op(op)})" for op, name in list(self.ops.items())[:8])
        name = DRIVER_NAMES.get(self.key.driver, self.key.driver)
        return f"{name}(a={agent} k={self.key.kind} u={short_uid(self.key.uid)} [{ops}])"

    def send(self, message: Any) -> None:
        """Queue one message. All messages of one round of the loop share a frame.

        Acknowledgements wait for the next message, because nobody waits for them.
        """
        if len(self._waiting) + len(self._acknowledged) >= MAX_WAITING:
            self.hub.counters.add("agentQueueFull")
            self.close("the queue of its messages is full", "queueFull")
            return
        if not isinstance(message, RunAck):
            self._queue_acknowledgements()
            self._waiting.append(message)
            self.flush()
            return
        self._acknowledged.update(dict.fromkeys(message.tokens))
        if self._later is None:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(ACK_HELD_SECS, self.flush)

    def _queue_acknowledgements(self) -> None:
        if self._acknowledged:
            self._waiting.append(RunAck(tokens=tuple(self._acknowledged)))
            self.drop_acknowledgements()

    def drop_acknowledgements(self) -> None:
        """Forget the acknowledgements that wait."""
        self._acknowledged.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def flush(self) -> None:
        """Write what is queued, and the acknowledgements that wait."""
        self._queue_acknowledgements()
        if self._waiting and not self._flushing:
            self._flushing = True
            self.hub.spawn(self._flush())

    async def _flush(self) -> None:
        try:
            while self._waiting:
                self._queue_acknowledgements()
                batch = list(self._waiting)
                self._waiting.clear()
                self.hub.links.messages("out", len(batch))
                for frame in self._encoder.frames(batch):
                    self.hub.links.frame("out", len(frame))
                    async with asyncio.timeout(self.hub.write_secs):
                        await self.socket.write_message(frame, binary=True)
        except (tornado.websocket.WebSocketClosedError, TimeoutError, FrameError) as e:
            self.close(f"cannot write to it: {type(e).__name__}", "notWritten")
        finally:
            self._flushing = False
            if self._waiting:
                self.flush()

    def record_receipt(self) -> None:
        """Record that the agent sent anything."""
        self.heard = asyncio.get_running_loop().time()
        self.heart.record_receipt()

    def receive(self, frame: bytes | str) -> None:
        """Handle one frame. A bad frame is counted; some errors also close the connection."""
        self.record_receipt()
        self.hub.links.frame("in", len(frame))
        try:
            messages: Sequence[Any] = self._decoder.messages(frame)  # type: ignore[arg-type]
        except FrameError as e:
            self.hub.counters.add("rejected." + e.code)
            self.log("{} sent a bad frame: {}", self, e.sentence)
            if e.close:
                self.close(e.code, "badFrame")
                return
            messages = e.messages
        self.hub.links.messages("in", len(messages))
        if (ignored := self._decoder.ignored - self._ignored) > 0:
            self._ignored += ignored
            self.hub.counters.add("unknownField", ignored)
        inputs: list[Input] = []
        if self._decoder.gaps != self._gaps:
            self._gaps = self._decoder.gaps
            inputs.append(FramesLost(self.key, self.epoch))
        for message in messages:
            self._handle(message, inputs)
        if inputs and self.hub.connections.get(self.key) is self:
            self.hub.tell(self.key, inputs)

    def _handle(self, message: Any, inputs: list[Input]) -> None:
        if isinstance(message, Alive):
            self._handle_alive(message, inputs)
        elif self.alive is None:
            self.hub.counters.add("rejected.malformed")
            self.close("its first message was not alive")
        elif isinstance(message, RunReport | Samples | ClusterReport):
            self._handle_report(message)
        elif isinstance(message, Answer) or (
            isinstance(message, OpError) and message.op_id in self.asked
        ):
            self._handle_answer(message)
        else:
            self._log_receipt(message)
            inputs.append(AgentMessage(self.key, self.epoch, message))

    def _handle_answer(self, message: Answer | OpError) -> None:
        """Pass an answer to the waiting caller; drop it if no caller waits."""
        future = self.asked.get(message.op_id)
        if future is None or future.done():
            self.hub.counters.add("unknownAnswer")
        elif not isinstance(message, OpError):
            future.set_result(message)
        elif message.code in CODES:
            future.set_exception(Refusal(message.code, message.error))
        else:
            self.log_of(message)(
                "{} refused op={} with an unknown code: {}",
                self,
                short_op(message.op_id),
                message.code,
            )
            future.set_exception(
                Refusal(
                    "internal",
                    f"its agent refused with an unknown code: {message.error}",
                )
            )

    def _handle_report(self, message: RunReport | Samples | ClusterReport) -> None:
        if self.hub.connections.get(self.key) is not self:
            return  # an older connection, whose report may be outdated
        try:
            match message:
                case Samples():
                    self.hub.metering.take(self.key, message)
                case ClusterReport():
                    self.hub.on_cluster_report(self.key, message)
                case RunReport():
                    self.hub.progress.take(self.key, message)
        except Refusal as e:
            self.hub.counters.add(e.code)
            self.log("{} {}", self, e.sentence)
            self.close(e.sentence)

    def fail_requests(self) -> None:
        """End all waiting requests with Refusal("agentUnavailable")."""
        for future in self.asked.values():
            if not future.done():
                future.set_exception(
                    Refusal(
                        "agentUnavailable",
                        "the agent disconnected before it answered",
                    )
                )

    def _handle_alive(self, message: Alive, inputs: list[Input]) -> None:
        # the token identifies the agent; its agent id may come from an earlier key of this root
        if message.agent_key != self.key:
            self.hub.counters.add("rejected.foreignToken")
            self.close("its agent key does not match its token")
            return
        current = self.hub.connections.get(self.key)
        if current is not None and current.epoch > self.epoch:
            # this connection is older than the current one; its first message was delayed
            self.hub.counters.add("agentOutdated")
            self.close("this agent has a newer connection")
            return
        self.alive = message
        self.log = self.log.bound(agent=message.agent_id)
        self.log("{} opName=alive o=None", self)
        if message.version != VERSION:
            self.log(
                "{} runs jobscribe {}, this supervisor runs {}; both use protocol version {}",
                self,
                message.version,
                VERSION,
                self.protocol,
            )
        self.hub.replace(self)
        inputs.append(AgentConnected(self.key, self.epoch, message))

    def log_of(self, message: Any) -> Log:
        """Return the log of one message: each line has the ids of its op and its execution."""
        return self.log.bound(**message_log_ids(message))

    def _log_receipt(self, message: Any) -> None:
        log = self.log_of(message)
        if isinstance(message, RunStatusUpdate):
            e: Execution = message.execution
            log(
                "{} opName={} o={} jid={} state={}",
                self,
                op_name(message),
                short_op(e.op_id),
                e.token.jid,
                "ending" if e.ending else e.state,
            )
            if e.state == ExecutionState.ENDED:
                self.ops.pop(e.op_id, None)
        elif isinstance(message, Snapshot):
            log(
                "{} opName=snapshot o=None executions={} page={}",
                self,
                len(message.executions),
                message.page,
            )
        elif isinstance(message, OpError):
            log(
                "{} opName=error o={} {}: {}",
                self,
                short_op(message.op_id),
                message.code,
                message.error,
            )

    def close(self, reason: str, why: DisconnectReason = "refused") -> None:
        self.log("{} connection ended: {}", self, reason)
        self.socket.close(1000, reason[:100])
        self.hub.lost(self, why)


class Hub:
    """The live connections, by agent key."""

    def __init__(
        self,
        engine: Engine,
        progress: Progress,
        metering: UsageSamples,
        log: Log,
        counters: Counters,
        agent_id: Callable[[AgentKey], str],
        session: int,
        *,
        pace: HeartbeatTiming = PACE,
        write_secs: float = 30.0,
        apps: Sequence[str] = (),
    ) -> None:
        """pace: timing of heartbeats (see `heartbeat`). apps: the setting `apps.also`, sent to
        agents in the handshake.
        """
        self.engine, self.progress, self.metering, self.log, self.counters = (
            engine,
            progress,
            metering,
            log,
            counters,
        )
        self.agent_id = agent_id
        self.pace, self.write_secs = pace, write_secs
        self.hello = handshake.format_header(handshake.hello(VERSION, tuple(apps)))
        self.connections: dict[AgentKey, Connection] = {}
        #: set by the composition root
        self.links: ConnectionMetrics = NullMetrics()
        #: receives reports about clusters; set by the composition root
        self.on_cluster_report: Callable[[AgentKey, ClusterReport], None] = lambda key, report: None
        #: whether a client waits for this job; set by the composition root
        self.is_watched: Callable[[str], bool] = lambda jid: True
        #: when the deferred inputs of the engine are due (time of the loop), and the timer for that
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # epochs grow across restarts of the supervisor
        self._epoch = session << 24

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log.exception("writing to an agent failed", error=task.exception())

    def next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def authenticate(self, key_text: str | None, authorization: str | None) -> AgentKey:
        """Return the agent of this connection.

        Raises Refusal("unauthenticated"), the same for an unknown agent and a wrong token.
        """
        refusal = Refusal("unauthenticated", "unknown agent or wrong token")
        if not key_text or not authorization or not authorization.startswith("Bearer "):
            raise refusal
        try:
            key = parse_agent_key(key_text)
        except Refusal:
            raise refusal from None
        given = token_hash(authorization.removeprefix("Bearer "))
        valid = [
            hmac.compare_digest(given, known)
            for known in self.engine.agent_record(key).token_hashes
        ]
        if not any(valid):
            raise refusal
        return key

    def protocol_for(self, stated: str | None) -> int:
        """Return the protocol version for an agent that states this range. Raises
        Refusal("protocolVersion") without a common version.
        """
        theirs = versions.parse_range(stated)
        protocol = versions.common(versions.SPOKEN, theirs)
        if protocol is None:
            raise Refusal(
                "protocolVersion",
                versions.refusal(
                    f"this supervisor (jobscribe {VERSION})",
                    versions.SPOKEN,
                    "the agent",
                    theirs,
                ),
            )
        return protocol

    def replace(self, connection: Connection) -> None:
        """Make this the live connection of its agent, and close an older one."""
        older = self.connections.get(connection.key)
        self.connections[connection.key] = connection
        self.links.connected(connection.key)
        if older is not None and older is not connection:
            self.links.lost(connection.key, "replaced")
            older.socket.close(1000, "a newer connection of this agent")
            older.fail_requests()

    def lost(self, connection: Connection, why: DisconnectReason = "closed") -> None:
        """Remove a closed connection, and tell the engine once."""
        connection.fail_requests()
        connection.drop_acknowledgements()
        if self.connections.get(connection.key) is connection:
            del self.connections[connection.key]
            self.links.lost(connection.key, why)
            self.engine.tell(AgentDisconnected(connection.key, connection.epoch))

    def tell(self, key: AgentKey, inputs: Sequence[Input]) -> None:
        """Tell the engine what arrived in one frame of an agent, at once or with the next request."""
        if not (
            are_unawaited_ends(inputs, self.is_watched) and no_run_is_queued(self.engine.world, key)
        ):
            self.engine.tell(*inputs)
            return
        loop = asyncio.get_running_loop()
        if not self.engine.deferred:
            self._due = loop.time() + END_DEFERRED_SECS
        self.engine.deferred.add(inputs)
        if self._timer is None:
            self._timer = loop.call_at(self._due, self._tell_deferred)

    def _tell_deferred(self) -> None:
        self._timer = None
        if self.engine.deferred and asyncio.get_running_loop().time() < self._due:
            # earlier ones were told with a request
            self._timer = asyncio.get_running_loop().call_at(self._due, self._tell_deferred)
        else:
            self.engine.tell_deferred()

    def end(self, key: AgentKey, epoch: int, reason: str) -> None:
        connection = self.connections.get(key)
        if connection is not None and connection.epoch == epoch:
            connection.close(reason, "ended")

    def send(self, key: AgentKey, message: Any) -> bool:
        """Send on the live connection. Return False if there is none."""
        connection = self.connections.get(key)
        if connection is None:
            return False
        if not connection.holds and debug_holds.needs_holds(message):
            ends = debug_holds.refused(message)
            self.engine.tell(*(AgentMessage(key, connection.epoch, end) for end in ends))
            return True
        name, op = op_name(message), getattr(message, "op_id", None)
        if name == "run":
            connection.ops[message.op_id] = name
        elif name == "run_tasks":
            connection.ops.update((task.op_id, "run") for task in message.tasks)
        if op is not None and name not in _QUIET:
            connection.log_of(message)(
                "{} _Op({}, {}) {}", connection, name, short_op(op), _target(message)
            )
        connection.send(message)
        return True

    async def dismiss(self, key: AgentKey, secs: float = DISMISS_SECS) -> bool:
        """Stop this agent, but not its jobs.

        Return True when it has disconnected; False if it is not connected or does not disconnect.
        """
        if not self.send(key, Kill(reason="its user has signed out")):
            return False
        for _ in range(round(secs / _POLL_SECS)):
            if key not in self.connections:
                return True
            await asyncio.sleep(_POLL_SECS)
        return False

    async def ask(
        self, key: AgentKey, message: Any, timeout: float, kind: type[A], *, give_up: Any = None
    ) -> A:
        """Send a request and return its answer, which must be of this kind. Raises Refusal.

        give_up: message to send if the time is over or the caller is canceled.
        """
        connection = self.connections.get(key)
        if connection is None:
            raise Refusal("agentUnavailable", "its agent is not connected now")
        if connection.protocol < versions.LATER_REQUESTS.get(op_name(message), 0):
            raise Refusal(
                "agentOutdated",
                f"its agent runs an earlier version of jobscribe, which does not know {op_name(message)}",
            )
        if len(connection.asked) >= MAX_ASKED:
            raise Refusal(
                "tooManyRequests", f"{MAX_ASKED} requests wait for the same agent already"
            )
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        connection.asked[message.op_id] = future
        began, status = asyncio.get_running_loop().time(), "error"
        try:
            self.send(key, message)
            async with asyncio.timeout(timeout):
                answer = await future
            status = "ok"
        except TimeoutError:
            status = "deadline"
            self._give_up(connection, give_up)
            raise Refusal("deadline", f"no answer from its agent within {timeout:g} s") from None
        except asyncio.CancelledError:
            status = "canceled"
            self._give_up(connection, give_up)
            raise
        finally:
            self.links.op(op_name(message), status, asyncio.get_running_loop().time() - began)
            del connection.asked[message.op_id]
        if not isinstance(answer, kind):
            self.counters.add("unknownAnswer")
            raise Refusal(
                "internal", f"its agent answered {op_name(message)} with {op_name(answer)}"
            )
        return answer

    def _give_up(self, connection: Connection, message: Any) -> None:
        if message is not None and self.connections.get(connection.key) is connection:
            self.send(connection.key, message)

    def alive(self) -> list[tuple[AgentKey, int, Alive]]:
        return [(c.key, c.epoch, c.alive) for c in self.connections.values() if c.alive is not None]

    def sizes(self) -> dict[str, int]:
        """Return the numbers of connections, ops, waiting requests and writing tasks."""
        all_ = self.connections.values()
        return {
            "connections": len(all_),
            "ops": sum(len(c.ops) for c in all_),
            "asked": sum(len(c.asked) for c in all_),
            "tasks": len(self._tasks),
        }

    async def close(self) -> None:
        """Close all connections, after a short time for queued messages."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in self.connections.values():
            connection.flush()
        await asyncio.sleep(0)  # starts to write messages that were queued in this round
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=CLOSE_SECS)
        for connection in list(self.connections.values()):
            connection.socket.close(1001, "the supervisor stops")
            connection.fail_requests()
        self.connections.clear()
        for task in list(self._tasks):
            task.cancel()


def _target(message: Any) -> str:
    spec = getattr(message, "spec", None)
    if spec is not None:
        return f"runDir={spec.run_dir}"
    token = getattr(message, "token", None)
    return "" if token is None else f"jid={token.jid} serial={token.serial}"
