"""A supervisor in this process with the fake driver, and in-process agents that connect to its hub
over real sockets.
"""

import asyncio
import itertools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tornado.httpclient
import tornado.websocket

from jobscribe.db.events.events import agent_stream
from jobscribe.drivers.contracts import AgentSpec
from jobscribe.drivers.fake import FakeDriver, Place
from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.handshake import PROTOCOLS
from jobscribe.protocol.wire.messages import Alive, Execution, Run, RunStatusUpdate, Snapshot
from jobscribe.protocol.wire.versions import SPOKEN, UNSTATED, Protocols, common
from jobscribe.runtime.event_loop_lag import LoopLag
from jobscribe.service.settings.settings import (
    LimitSettings,
    Settings,
    SlotSettings,
    SupervisorSettings,
)
from jobscribe.service.systemd import Notifier
from jobscribe.supervisor import app, configuration
from jobscribe.supervisor.process import root_identity
from jobscribe.supervisor.process.event_log import event_log
from jobscribe.supervisor.process.root_directory import RootDirectory

DEADLINE_SECS = 15.0
_numbers = itertools.count(1)


async def until(true: Callable[[], Any], what: str, secs: float = DEADLINE_SECS) -> Any:
    deadline = asyncio.get_running_loop().time() + secs
    while not (found := true()):
        if asyncio.get_running_loop().time() > deadline:
            pytest.fail(f"not within {secs:g} s: {what}")
        await asyncio.sleep(0.01)
    return found


class InProcessSupervisor:
    """A supervisor that its composition root builds, except for the driver."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
        self.place = Place()
        monkeypatch.setattr(
            configuration,
            "LocalDriver",
            lambda *_, cpu_slots, **__: FakeDriver(self.place, name="local", cpu_slots=cpu_slots),
        )
        self.settings = Settings(
            root=str(folder),
            supervisor=SupervisorSettings(port=0, development=True),
            limits=LimitSettings(**limits),
            slots=SlotSettings(local_sequential=4),
        )
        self.root = RootDirectory(self.settings.root)
        events = event_log(self.root.path, self.settings)
        self.supervisor = app._Supervisor(
            self.settings,
            self.root,
            root_identity.compare(self.root, events),
            events,
            None,
            Notifier({}),
            LoopLag(),
        )
        self.agents: list[Agent] = []

    async def open(self) -> None:
        await self.supervisor.start()
        for number in (signal.SIGTERM, signal.SIGINT):  # the test handles these signals
            asyncio.get_running_loop().remove_signal_handler(number)
        self.url = self.supervisor.url
        self.agents_url = json.loads((self.root / "agents.json").read_text())["agentsUrl"]

    async def close(self) -> None:
        for agent in self.agents:
            agent.close()
        await self.supervisor.close()
        self.root.close()

    async def post(self, path: str, **body: Any) -> Any:
        reply = await tornado.httpclient.AsyncHTTPClient().fetch(
            f"{self.url}/api/{path}",
            method="POST",
            body=json.dumps(body),
            raise_error=False,
            headers={"Authorization": "Bearer " + self.supervisor._secrets.server.current},
        )
        said = json.loads(reply.body)
        assert reply.code == 200, said
        return said

    async def submit(self, uid: str = "WireUsr1", **fields: Any) -> dict[str, Any]:
        run = {"uid": uid, "simulationId": f"w{next(_numbers):07d}", "command": ["true"], **fields}
        reply: dict[str, Any] = await self.post(
            "run-simulation", reqId=f"request-{next(_numbers)}", run=run
        )
        return {**reply, "uid": uid}

    async def status(self, run: dict[str, Any], **fields: Any) -> dict[str, Any]:
        said: dict[str, Any] = await self.post(
            "run-status", uid=run["uid"], computeJid=run["computeJid"], **fields
        )
        return said

    @property
    def counters(self) -> dict[str, int]:
        return self.supervisor._counters.all()

    @property
    def head(self) -> int:
        return self.supervisor._store.head()

    def token_of(self, run: dict[str, Any]) -> Token:
        return Token(run["computeJid"], run["computeJobSerial"], 1, "main", 0)

    async def started(self, uid: str = "WireUsr1") -> AgentSpec:
        """Return the agent spec that the driver got for this user."""
        entry = await until(
            lambda: self.place.living(AgentKey("local", "sequential", uid, "localhost")),
            f"an agent of {uid} is started",
        )
        await until(
            lambda: self.agent_events(uid).count("AgentStarted") >= 1, "its start is on record"
        )
        spec: AgentSpec = entry.spec
        return spec

    async def agent(self, uid: str = "WireUsr1", **changes: Any) -> "Agent":
        """Return a connected agent that has sent no message yet."""
        agent = Agent(await self.started(uid), self.agents_url, **changes)
        self.agents.append(agent)
        await agent.connect()
        return agent

    def stories(self) -> dict[str, list[str]]:
        out: dict[str, list[str]] = {}
        for stored in self.supervisor._store.read_all(0, 100_000):
            out.setdefault(stored.stream, []).append(type(stored.event).__name__)
        return out

    def agent_events(self, uid: str) -> list[str]:
        return self.stories().get(
            agent_stream(AgentKey("local", "sequential", uid, "localhost")), []
        )


class Agent:
    """An in-process agent. token, key_text: values for the handshake, if they differ from the
    correct ones. protocols: the range that it states; None: it states none.
    """

    def __init__(
        self,
        spec: AgentSpec,
        url: str,
        *,
        token: str | None = None,
        key_text: str | None = None,
        protocols: Protocols | None = SPOKEN,
    ) -> None:
        self.spec, self.url = spec, url
        self.token, self.key_text = token or spec.token, key_text or str(spec.key)
        self._stated = {} if protocols is None else {PROTOCOLS: str(protocols)}
        protocol = common(SPOKEN, protocols or UNSTATED) or SPOKEN.newest
        self._encoder = Encoder(protocol=protocol)
        self._decoder = Decoder("to_agent", protocol=protocol)
        self._snapshots = itertools.count(1)
        self.socket: tornado.websocket.WebSocketClientConnection | None = None
        self.received: list[Any] = []

    async def connect(self, **headers: str) -> "Agent":
        request = tornado.httpclient.HTTPRequest(
            self.url,
            headers={
                "Authorization": "Bearer " + self.token,
                "X-Jobscribe-Agent": self.key_text,
                **self._stated,
                **headers,
            },
            connect_timeout=5,
            request_timeout=5,
        )
        self.socket = await tornado.websocket.websocket_connect(request)
        return self

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()

    async def say(self, *messages: Any) -> None:
        for frame in self._encoder.frames(messages):
            await self.raw(frame)

    async def raw(self, frame: bytes | str) -> None:
        assert self.socket is not None
        await self.socket.write_message(frame, binary=isinstance(frame, bytes))

    async def alive(self, **changes: Any) -> None:
        fields = {
            "agent_id": self.spec.agent_id,
            "agent_key": self.spec.key,
            "version": "1",
            "host": "node1",
            "boot_id": "boot1",
            "pid": 10,
            "keeper_pid": 9,
        }
        await self.say(Alive(**{**fields, **changes}))

    async def snapshot(self, *executions: Execution) -> None:
        await self.say(
            Snapshot(number=next(self._snapshots), page=0, last=True, executions=executions)
        )

    async def present(self, *executions: Execution) -> "Agent":
        await self.alive()
        await self.snapshot(*executions)
        return self

    async def next(self, type_: type[Any], secs: float = DEADLINE_SECS) -> Any:
        """Return the next message of this type. Earlier messages of other types are added to
        `received`.
        """
        assert self.socket is not None
        async with asyncio.timeout(secs):
            while True:
                for n, message in enumerate(self.received):
                    if isinstance(message, type_):
                        return self.received.pop(n)
                frame = await self.socket.read_message()
                assert frame is not None, (
                    f"the connection ended ({self.socket.close_reason}) before a {type_.__name__} came"
                )
                self.received += self._decoder.messages(frame)  # type: ignore[arg-type]

    async def ended(self, secs: float = DEADLINE_SECS) -> str | None:
        """Wait until the supervisor closes the connection. Return its reason; fail if the
        connection stays open.
        """
        assert self.socket is not None
        async with asyncio.timeout(secs):
            while (frame := await self.socket.read_message()) is not None:
                self.received += self._decoder.messages(frame)  # type: ignore[arg-type]
        return self.socket.close_reason

    async def run(self) -> Run:
        op: Run = await self.next(Run)
        return op

    async def report(self, token: Token, state: str, *, code: int = 0, pid: int = 100) -> None:
        await self.say(RunStatusUpdate(execution=execution(token, state, code=code, pid=pid)))


def execution(token: Token, state: str, *, code: int = 0, pid: int = 100) -> Execution:
    exit_ = ExitInfo(code=code, started_at=1.7e9, ended_at=1.7e9 + 1) if state == "ended" else None
    return Execution(
        token=token,
        state=state,
        op_id=op_id(token, "run"),
        pid=pid,
        start_ticks=pid * 7,
        started_at=1.7e9,  # type: ignore[arg-type]
        elapsed_secs=0.5,
        exit=exit_,
    )
