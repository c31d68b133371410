"""An in-memory supervisor: real engine, agent connections and run service on a store in memory. The
test plays the agents, on fake sockets.
"""

import asyncio
import itertools
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from jobscribe.db.events.state import Job
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.drivers.contracts import Capabilities
from jobscribe.protocol.api.requests import RunSimulation, RunSpec
from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.messages import Alive, Execution, RunReport, RunStatusUpdate, Snapshot
from jobscribe.protocol.wire.versions import SPOKEN
from jobscribe.runtime.log.logger import Log
from jobscribe.supervisor.agents.calls import Calls
from jobscribe.supervisor.connections.hub import Connection, Hub
from jobscribe.supervisor.connections.progress import Progress
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface.causes import Cause
from jobscribe.supervisor.core.interface.inputs import Now
from jobscribe.supervisor.core.state.configuration import CoreConfig
from jobscribe.supervisor.engine.decision_loop import Engine
from jobscribe.supervisor.engine.event_feed import EventFeed
from jobscribe.supervisor.process.counters import Counters
from jobscribe.supervisor.runs.output_reader import OutputReader
from jobscribe.supervisor.runs.service import RunService
from jobscribe.supervisor.streams.live_updates import LiveUpdates
from jobscribe.supervisor.usage.samples import UsageSamples

UID, OTHER = "user0001", "user0002"
WALL = 1_700_000_000.0
APPS = ("command", "heat", "myapp")


async def until(true: Callable[[], Any], what: str, secs: float = 10.0) -> Any:
    """Wait until `true` returns a true value, and return that value."""
    async with asyncio.timeout(secs):
        while not (found := true()):
            await asyncio.sleep(0.002)
    assert found, what
    return found


def running(token: Token) -> Execution:
    return Execution(
        token=token,
        state="running",
        op_id=op_id(token, "run"),
        pid=100,
        start_ticks=7,
        started_at=WALL,
        elapsed_secs=0.0,
    )


class Lines:
    """Collects the log lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, record: Any) -> None:
        self.lines.append(record.message)


class Socket:
    """An agent's websocket, as the agent connections see it."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self.closed: str | None = None

    async def write_message(self, frame: bytes, binary: bool) -> None:
        assert binary
        self._agent.heard += self._agent.decoder.messages(frame)

    def close(self, code: int, reason: str) -> None:
        self.closed = self.closed or reason


class Agent:
    """An agent that sends the messages chosen by the test."""

    def __init__(self, in_memory: "InMemorySupervisor", key: AgentKey) -> None:
        self.in_memory, self.key = in_memory, key
        self.heard: list[Any] = []
        self.decoder, self._encoder = Decoder("to_agent"), Encoder()
        self.socket = Socket(self)
        self.connection = Connection(
            in_memory.hub,
            self.socket,  # type: ignore[arg-type]
            key,
            in_memory.hub.next_epoch(),
            SPOKEN.newest,
        )
        self.say(
            Alive(
                agent_id="a" * 32,
                agent_key=key,
                version="1",
                host="node1",
                boot_id="boot1",
                pid=10,
                keeper_pid=9,
            )
        )

    def say(self, *messages: Any) -> None:
        for frame in self._encoder.frames(messages):
            self.connection.receive(frame)

    def synced(self, *executions: Execution) -> "Agent":
        self.say(
            Snapshot(number=next(self.in_memory.numbers), page=0, last=True, executions=executions)
        )
        return self

    def gone(self) -> None:
        self.in_memory.hub.lost(self.connection)

    def of(self, kind: type[Any]) -> list[Any]:
        return [m for m in self.heard if isinstance(m, kind)]

    async def asked(self, kind: type[Any], n: int = 1) -> Any:
        """Wait for the n-th message of this kind and return it."""
        return (
            await until(
                lambda: self.of(kind) if len(self.of(kind)) >= n else None, f"{kind.__name__} {n}"
            )
        )[n - 1]

    def running(self, token: Token) -> None:
        self.say(RunStatusUpdate(execution=running(token)))

    def ended(self, token: Token, code: int = 0, **exit_: Any) -> None:
        info = ExitInfo(code=code, started_at=WALL, ended_at=WALL + 1, **exit_)
        self.say(
            RunStatusUpdate(
                execution=Execution(
                    token=token,
                    state="ended",
                    op_id=op_id(token, "run"),
                    pid=100,
                    start_ticks=7,
                    exit=info,
                )
            )
        )

    def report(self, token: Token, **report: Any) -> None:
        self.say(RunReport(token=token, report=report, at=WALL))


class InMemorySupervisor:
    """The engine's ports. `started`: agents with a requested start; `launched`: tasks."""

    def __init__(
        self,
        *,
        call_secs: float = 5.0,
        per_user: int = 4,
        agent_start_secs: float = 10.0,
        live: dict[str, float] | None = None,
        slots: int = 500,
    ) -> None:
        self.numbers = itertools.count(1)
        self.mono = 1000.0
        self.counters, self.lines = Counters(), Lines()
        self.log = Log("supervisor", Redactor(), self.lines)
        self.store = MemoryStore(lambda call: call())
        wide = {("local", "sequential"): slots, ("local", "parallel"): slots}
        policy = CoreConfig(
            agent_start_secs=agent_start_secs,
            agent_start_tries=1,
            cpu_slots=wide,
            op_run_slots=wide,
        )
        self.engine = Engine(policy, self.store, self)
        self.progress = Progress(self.engine, self.counters)
        self.metering = UsageSamples(self.engine, self.counters, lambda: self.mono)
        self.hub = Hub(
            self.engine,
            self.progress,
            self.metering,
            self.log,
            self.counters,
            lambda key: "a" * 32,
            1,
        )
        drivers: Any = {
            "local": SimpleNamespace(capabilities=Capabilities(tasks="keeper", same_machine=True))
        }
        self.desk = RunService(
            self.engine,
            EventFeed(self.store),
            OutputReader(self.hub, {}, os.urandom),
            self.progress,
            self.counters,
            self.log,
            self.now,
            user_root="/users",
            apps=APPS,
            drivers=drivers,
            evidence_root="/evidence",
        )
        self.live = LiveUpdates(self.desk, **(live or {}))
        self.progress.heard = self.live.progressed
        changes = self.live.changes
        self.desk.kept = changes.watch
        self.engine.decided, self.engine.folded = changes.decided, changes.folded
        self.calls = Calls(
            self.desk, self.hub, self.counters, os.urandom, call_secs=call_secs, per_user=per_user
        )
        self.started: list[fx.StartAgent] = []
        self.launched: list[Token] = []
        self.engine.start()

    # ---- ports

    def now(self) -> Now:
        return Now(WALL + next(self.numbers) / 1000, self.mono, "boot0", os.urandom(32))

    def perform(self, effect: Any, cause: Cause) -> None:
        match effect:
            case fx.ReplyStatus() | fx.ReplyRefusal() | fx.AgentReady():
                self.desk.perform(effect)
            case fx.StartAgent():
                self.started.append(effect)
            case fx.LaunchTask():
                self.launched.append(effect.token)
            case fx.IncrementCounter():
                self.counters.add(effect.what)
            case fx.EndConnection():
                self.hub.end(effect.key, effect.epoch, effect.reason)
            case _:
                pass  # no timers and no drivers here

    def projected(self, job: Job, position: int, at: float) -> None:
        self.desk.projected(job)
        self.metering.settle(job)
        self.live.changed(job, position)

    def connections(self) -> list[Any]:
        return self.hub.alive()

    def fatal(self, refusal: Any) -> None:
        raise AssertionError(refusal)

    def noticed(self, what: str, detail: str) -> None:
        self.counters.add(what)

    def broken(self, error: Exception) -> None:
        raise error

    # ---- helpers

    def key(self, uid: str = UID, kind: str = "sequential") -> AgentKey:
        return AgentKey("local", kind, uid, "localhost")

    def agent(self, uid: str = UID, kind: str = "sequential") -> Agent:
        """Return an agent that is up and has no executions."""
        return Agent(self, self.key(uid, kind)).synced()

    async def submitted(self, n: int = 1, uid: str = UID, **fields: Any) -> str:
        """Submit a run and wait until it is durable; return its computeJid."""
        fields = {"command": ("true",), **fields}
        spec = RunSpec(uid=uid, simulation_id=f"sim{n:05d}", **fields)
        reply = await self.desk.submit(
            RunSimulation(req_id=f"request-{next(self.numbers)}", run=spec, force_run=True)
        )
        return str(reply["computeJid"])

    async def running(self, agent: Agent, n: int = 1, **fields: Any) -> tuple[str, Token]:
        """Start a run of this agent's user; return its computeJid and token."""
        jid = await self.submitted(n, agent.key.uid, **fields)
        token = next(t for t in reversed(self.launched) if t.jid == jid)
        agent.running(token)
        return jid, token

    def serial(self, jid: str) -> int:
        entry = self.engine.durable(jid)
        assert entry is not None and entry.job.run is not None
        return entry.job.run.serial
