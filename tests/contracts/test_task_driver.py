"""The `TaskDriver` contract, run against keepers, containers, Slurm jobs and the fake driver.

Keepers use real processes and real connections. Slurm jobs belong to a fake Slurm that runs their
scripts as processes of this machine; tests/slurm has a real one. Containers belong to a fake daemon that runs them
as processes of this machine or, with SOAK=1, to a real daemon.
"""

import asyncio
import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
import tornado.httpserver
import tornado.netutil
from fake_slurm import USER, FakeSlurm
from process_search import pids_with

from jobscribe.agent.batch.controller import BatchController
from jobscribe.agent.files.output_reader import Evidence
from jobscribe.agent.host.port_probe import ports_in_use
from jobscribe.agent.session.state_machine import (
    Forget,
    Launch,
    Output,
    Probe,
    Send,
    Session,
    Stop,
)
from jobscribe.db.events.state import AgentRecord
from jobscribe.drivers import untrusted_files
from jobscribe.drivers.contracts import AgentSpec, Capacity, TaskDriver
from jobscribe.drivers.docker.agents.driver import DockerDriver
from jobscribe.drivers.docker.tasks.controller import ContainerTaskController
from jobscribe.drivers.fake import FakeTasks, Place
from jobscribe.drivers.keeper_tasks import KeeperTaskDriver
from jobscribe.drivers.local_agents import LocalDriver
from jobscribe.protocol.clusters.batch import BatchRequest
from jobscribe.protocol.clusters.cluster import Cluster
from jobscribe.protocol.clusters.container_pool import Pool, PoolHost
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.messages import (
    ContainerSpec,
    Execution,
    PortsProbed,
    ProbePorts,
    RunStatusUpdate,
    Shared,
    Snapshot,
    TaskRun,
    TaskSpec,
    ToAgent,
)
from jobscribe.runtime.log.logger import Log
from jobscribe.supervisor.connections.hub import Hub
from jobscribe.supervisor.connections.websocket import application
from jobscribe.supervisor.core.interface.inputs import (
    AgentConnected,
    AgentDisconnected,
    AgentMessage,
)
from jobscribe.supervisor.core.state.transaction import token_hash
from jobscribe.supervisor.process.counters import Counters

pytestmark = pytest.mark.process

KEY, OTHER = (
    AgentKey("local", "sequential", "TaskUsr1", "localhost"),
    AgentKey("local", "sequential", "TaskUsr2", "localhost"),
)
DEADLINE_SECS = 20.0
_numbers = itertools.count(1)


def token_of(key: AgentKey = KEY, serial: int = 1) -> Token:
    return Token(f"{key.uid}-task{next(_numbers):04d}-command", serial, 1, "main", 0)


class Ground:
    """A task driver with two virtual agents, its reports, and direct access to its executions.

    The code that creates the agents sets `tasks`, `silence` (stops all answers) and `stranger`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.key, self.other = KEY, OTHER
        #: whether other processes share the network of the tasks
        self.has_neighbours = True
        self.reports: list[tuple[AgentKey, RunStatusUpdate | Snapshot | PortsProbed]] = []
        self.tasks: TaskDriver
        self.silence: Callable[[], Any]
        #: open a port on the agent's host from outside the tasks; return its number
        self.stranger: Callable[[], int]
        #: only where a batch scheduler starts the tasks
        self.batch: BatchRequest | msgspec.UnsetType = msgspec.UNSET

    def report(self, key: AgentKey, message: RunStatusUpdate | Snapshot | PortsProbed) -> None:
        self.reports.append((key, message))

    def spec(self, token: Token, *command: str) -> TaskSpec:
        return TaskSpec(
            command=command,
            run_dir=str(self.run_dir(token)),
            grace_secs=0.5,
            box=ContainerSpec(),
            batch=self.batch,
        )

    def run_dir(self, token: Token) -> Path:
        return self.root / "user" / token.jid[:8] / token.jid / token.role

    def launch(self, token: Token, *command: str, key: AgentKey | None = None) -> None:
        self.tasks.launch(key or self.key, token, self.spec(token, *command))

    def executions(self, token: Token, key: AgentKey | None = None) -> list[Execution]:
        key = key or self.key
        return [
            e
            for k, m in self.reports
            if k == key and not isinstance(m, PortsProbed)
            for e in (m.executions if isinstance(m, Snapshot) else (m.execution,))
            if e.token == token
        ]

    async def until(self, true: Callable[[], Any], what: str) -> Any:
        deadline = asyncio.get_running_loop().time() + DEADLINE_SECS
        while not (found := true()):
            if asyncio.get_running_loop().time() > deadline:
                pytest.fail(f"not within {DEADLINE_SECS:g} s: {what}")
            await asyncio.sleep(0.01)
        return found

    async def reported(self, token: Token, state: str, key: AgentKey | None = None) -> Execution:
        found: list[Execution] = await self.until(
            lambda: [e for e in self.executions(token, key) if e.state == state],
            f"{token} is reported {state}",
        )
        return found[-1]

    async def snapshot(self, key: AgentKey | None = None) -> dict[Token, Execution]:
        """Request a snapshot and return its executions by token."""
        key = key or self.key
        before = len(self.reports)
        self.tasks.find(key)
        await self.until(
            lambda: [
                1
                for k, m in self.reports[before:]
                if k == key and isinstance(m, Snapshot) and m.last
            ],
            "a snapshot",
        )
        pages = [m for k, m in self.reports[before:] if k == key and isinstance(m, Snapshot)]
        return {e.token: e for page in pages for e in page.executions}

    async def output(self, token: Token, key: AgentKey | None = None) -> bytes:
        return (await self.tasks.evidence(key or self.key, token, "stdout.log", 0, 10_000))[0]


class Fake:
    """In-memory agents."""

    def __init__(self, batch_site: Ground) -> None:
        self.batch_site = batch_site

    async def open(self) -> None:
        place = Place()
        self.batch_site.tasks = FakeTasks(place, self.batch_site.report)
        self.batch_site.silence = lambda: setattr(place, "silent", True)
        self.batch_site.stranger = lambda: (place.taken.add(30_000), 30_000)[1]

    async def close(self) -> None:
        """Do nothing: this class holds no resources."""


class Keepers:
    """Agents of the local driver, connected to a hub. This object replaces the engine and the
    receivers of progress and usage.
    """

    def __init__(self, batch_site: Ground) -> None:
        self.batch_site, self.root = batch_site, batch_site.root
        self.handles: list[dict[str, Any]] = []

    async def open(self) -> None:
        self.said: Counter[str] = Counter()
        self.strangers: list[socket.socket] = []
        self.batch_site.stranger = self.listens
        log = Log("test", Redactor(), SimpleNamespace(write=lambda line: None))  # type: ignore[arg-type]
        self.hub = Hub(self, self, self, log, Counters(), lambda key: "i" * 32, 1)  # type: ignore[arg-type]
        (bound,) = tornado.netutil.bind_sockets(0, "127.0.0.1")
        self.server = tornado.httpserver.HTTPServer(application(self.hub))
        self.server.add_sockets([bound])
        address = self.root / "agents.json"
        address.write_text(
            json.dumps(
                {"agentsUrl": f"ws://127.0.0.1:{bound.getsockname()[1]}/agent", "agentsCa": None}
            )
        )
        self.driver = LocalDriver(
            self.root, address, cpu_slots=Capacity(), agent_settings={"loginSecs": 0}
        )
        self.batch_site.tasks = KeeperTaskDriver(
            lambda key, message: self.hub.send(key, message) and None,
            {"local": self.driver},
            secrets.token_bytes,
        )
        self.batch_site.silence = lambda: (
            [connection.close("silence") for connection in list(self.hub.connections.values())]
            and self.server.stop()
        )
        for key in (KEY, OTHER):
            self.handles.append(
                await self.driver.start(AgentSpec(key=key, agent_id="i" * 32, token="t" * 32))
            )
        await self.batch_site.until(lambda: self.said["snapshots"] >= 2, "both agents are there")

    def agent_record(self, key: AgentKey) -> AgentRecord:
        return AgentRecord(key=key, token_hashes=(token_hash("t" * 32),))

    def take(self, key: AgentKey, message: Any) -> None:
        """Ignore the progress and usage of tasks."""

    def tell(self, *inputs: Any) -> None:
        for input_ in inputs:
            match input_:
                case AgentMessage(
                    key=key, message=RunStatusUpdate() | Snapshot() | PortsProbed() as message
                ):
                    self.said["snapshots"] += isinstance(message, Snapshot)
                    self.batch_site.report(key, message)
                case AgentConnected() | AgentDisconnected():
                    self.said[type(input_).__name__] += 1

    def listens(self) -> int:
        self.strangers.append(socket.create_server(("127.0.0.1", 0)))
        return int(self.strangers[-1].getsockname()[1])

    async def close(self) -> None:
        for stranger in self.strangers:
            stranger.close()
        for handle in self.handles:
            await self.driver.stop(handle, 0.5)
        self.server.stop()
        await self.hub.close()
        await self.driver.close()


class Batches:
    """Two agents on a cluster, without connections: their sessions and batch controllers. A fake
    Slurm runs the batch scripts as processes of this machine. This object replaces the agent's
    process and its driver.
    """

    def __init__(self, batch_site: Ground) -> None:
        self.batch_site, self.silent = batch_site, False
        self.agents: dict[AgentKey, tuple[Session, BatchController]] = {}
        self.strangers: list[socket.socket] = []

    async def open(self) -> None:
        self.slurm = FakeSlurm()
        for key in (KEY, OTHER):
            await self.start(key)
        self.batch_site.tasks = KeeperTaskDriver(self.send, {"local": self}, secrets.token_bytes)  # type: ignore[dict-item]
        self.batch_site.silence = lambda: setattr(self, "silent", True)
        self.batch_site.stranger = self.listens
        self.batch_site.batch = BatchRequest()

    async def start(self, key: AgentKey) -> None:
        folder = self.folder(key)
        folder.mkdir(parents=True)
        session = Session()
        controller = BatchController(
            folder,
            Evidence(folder / "run"),
            SimpleNamespace(known={"PATH": os.environ["PATH"]}, umask="0077", load=_nothing),  # type: ignore[arg-type]
            (),
            Cluster(name="lab", poll_secs=0.1, poll_max_secs=0.5, call_secs=5.0),
            "test",
            Log("agent", Redactor(), SimpleNamespace(write=lambda record: None)),  # type: ignore[arg-type]
            lambda e: self.perform(key, session.record_states([e], time.monotonic())),
            run=self.slurm,
            user=USER,
        )
        self.agents[key] = session, controller
        known = await controller.start()
        self.perform(key, session.record_states(known, time.monotonic()))
        self.perform(key, session.connected(time.monotonic()))

    def send(self, key: AgentKey, message: ToAgent) -> None:
        def receive() -> None:
            if not self.silent:
                self.perform(key, self.agents[key][0].received(message, time.monotonic()))

        asyncio.get_running_loop().call_soon(receive)

    def perform(self, key: AgentKey, outputs: Sequence[Output]) -> None:
        controller = self.agents[key][1]
        for output in outputs:
            match output:
                case Send(RunStatusUpdate() | Snapshot() as message) if not self.silent:
                    self.batch_site.report(key, message)
                case Launch():
                    controller.launch(output.token, output.spec)
                case Stop():
                    controller.stop(output.token, output.reason, output.grace_secs)
                case Forget():
                    controller.forget(output.tokens)
                case Probe(ProbePorts() as op):
                    busy = tuple(ports_in_use(op.ports))
                    self.batch_site.report(key, PortsProbed(op_id=op.op_id, busy=busy))

    async def evidence(
        self, key: AgentKey, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        return untrusted_files.read(self.folder(key), ("run", *name.split("/")), offset, limit)

    def folder(self, key: AgentKey) -> Path:
        return self.batch_site.root / "agent" / str(key)

    def listens(self) -> int:
        self.strangers.append(socket.create_server(("127.0.0.1", 0)))
        return int(self.strangers[-1].getsockname()[1])

    async def close(self) -> None:
        for stranger in self.strangers:
            stranger.close()
        for _, controller in self.agents.values():
            await controller.stop_all("shutdown", 0.5)
            await controller.close()
        await self.slurm.close()


async def _nothing() -> None:
    """Do nothing: the login environment is known."""


class Containers:
    """Agents of the Docker driver. `address` is the daemon's; `image` must contain a shell."""

    def __init__(self, batch_site: Ground) -> None:
        self.batch_site = batch_site
        batch_site.key, batch_site.other = (
            AgentKey("docker", "container", k.uid, "a") for k in (KEY, OTHER)
        )
        batch_site.has_neighbours = False
        batch_site.stranger = lambda: 30_000

    async def begin(self, host: PoolHost, image: str) -> None:
        root = self.batch_site.root
        root.chmod(0o755)
        pool = Pool(
            hosts=(host,),
            image=image,
            unix_users=(200_000, 200_099) if os.geteuid() == 0 else None,
            log_driver="json-file",
        )
        log = Log("test", Redactor(), SimpleNamespace(write=lambda line: None))  # type: ignore[arg-type]
        self.driver = DockerDriver(
            pool,
            root,
            str(root / "user"),
            deployment=secrets.token_hex(4),
            address=dict,
            log=log,
            redactor=Redactor(),
            reporter=self,
        )
        self.batch_site.tasks = self.tasks = ContainerTaskController(self.driver, log)
        self.driver.watch()
        assert self.driver.places is not None
        await self.batch_site.until(lambda: self.driver.engines["a"].up, "the host is up")
        for key in (self.batch_site.key, self.batch_site.other):
            await self.driver.places.open(key)

    def up(self, place: AgentKey, boot_id: str) -> None:
        assert boot_id

    def down(self, place: AgentKey) -> None:
        """Ignore the report."""

    def host(self, *said: str) -> None:
        """Ignore the report."""

    def said(self, place: AgentKey, message: Any) -> None:
        if isinstance(message, RunStatusUpdate | Snapshot | PortsProbed):
            self.batch_site.report(place, message)

    async def end(self) -> None:
        await self.tasks.close()
        await self.driver.close()


class OnPaper:
    """A fake daemon. A started container runs its task's script as a process of this machine."""

    def __init__(self, batch_site: Ground) -> None:
        self.batch_site, self.containers = batch_site, Containers(batch_site)
        self.running: list[subprocess.Popen[bytes]] = []

    async def open(self) -> None:
        from fake_docker import FakeDocker

        self.fake = FakeDocker(self.batch_site.root)
        self.fake.on_start = lambda c: threading.Thread(
            target=self.play, args=(c,), daemon=True
        ).start()
        self.batch_site.silence = self.silence
        await self.containers.begin(
            PoolHost(name="a", address=self.fake.address, cpu=8, memory_mb=8000), "lab:1"
        )

    def play(self, container: Any) -> None:
        evidence = Path(container.config["Cmd"][0]).parent
        words = [
            "/bin/sh",
            "-c",
            'exec >>"$0/stdout.log" 2>>"$0/signal" 3>>"$0/stderr.log"; exec /bin/sh "$0/script.sh"',
            str(evidence),
        ]
        process = subprocess.Popen(words, start_new_session=True)
        self.running.append(process)
        told = False
        while process.poll() is None:
            if container.status != "running":
                os.killpg(process.pid, signal.SIGKILL)
            elif (signal.SIGTERM in container.signals or (evidence / "stop").exists()) and not told:
                told = True
                os.killpg(process.pid, signal.SIGTERM)
            threading.Event().wait(0.01)
        self.fake.finish(container.id, process.returncode % 256)

    def silence(self) -> None:
        self.fake.trouble(".", "disconnect")
        self.fake.break_connections()
        self.containers.tasks.on_state("a", False, "it broke the connection off")

    async def close(self) -> None:
        await self.containers.end()
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.to_thread(process.wait)
        self.fake.relent()
        await asyncio.to_thread(self.fake.close)


class RealHost:
    """Containers of a real daemon on the hosts of tests/docker (SOAK=1 only)."""

    shared: ClassVar[list[Any]] = []

    def __init__(self, batch_site: Ground) -> None:
        self.batch_site, self.containers = batch_site, Containers(batch_site)

    async def open(self) -> None:
        from docker_hosts import BASE, Hosts

        if not RealHost.shared:
            RealHost.shared.append(Hosts())
            await asyncio.to_thread(RealHost.shared[0].up)
        self.host = RealHost.shared[0].hosts["a"]
        self.batch_site.silence = lambda: (
            self.host.freeze(),
            self.containers.tasks.on_state("a", False, "it does not answer"),
        )
        await self.containers.begin(
            PoolHost(name="a", address=f"unix://{self.host.sock}", cpu=2, memory_mb=2000), BASE
        )

    async def close(self) -> None:
        await asyncio.to_thread(self.host.well)
        await self.containers.end()
        await asyncio.to_thread(self.host.clear, [self.containers.driver.deployment])


@pytest.fixture(scope="module", autouse=True)
def _no_host_is_left() -> Iterator[None]:
    yield
    while RealHost.shared:
        RealHost.shared.pop().clean()


GROUNDS = [Fake, Keepers, OnPaper, *([RealHost] if os.environ.get("SOAK") == "1" else [])]
#: In Slurm, the tasks of a gang are one job, whose steps need srun: see tests/slurm.
one_by_one = pytest.mark.parametrize(
    "batch_site", GROUNDS, ids=lambda g: g.__name__.lower(), indirect=True
)


@pytest.fixture(params=[*GROUNDS, Batches], ids=lambda g: g.__name__.lower())
async def batch_site(request: pytest.FixtureRequest) -> AsyncIterator[Ground]:
    root = Path(tempfile.mkdtemp(prefix="sys-tasks-", dir="/tmp"))
    batch_site = Ground(root)
    places = request.param(batch_site)
    try:
        await places.open()
        yield batch_site
    finally:
        await places.close()
        deadline = time.monotonic() + DEADLINE_SECS
        while (left := pids_with(str(root))) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)  # a reaper ends shortly after its keeper
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(root)
    assert not left


@pytest.mark.parametrize(
    ("command", "code"), [(("true",), 0), (("false",), 1), (("no-such-command-anywhere",), 127)]
)
async def test_what_was_launched_is_reported_to_its_end(
    batch_site: Ground, command: tuple[str, ...], code: int
) -> None:
    token = token_of()
    batch_site.launch(token, *command)
    exit_ = (await batch_site.reported(token, "ended")).exit
    assert exit_ is not None and (exit_.code, exit_.stop_reason) == (code, None)


async def test_a_token_is_launched_once_however_often_it_is_asked_for(batch_site: Ground) -> None:
    token = token_of()
    for _ in range(3):
        batch_site.launch(token, "sleep", "600")
    first = await batch_site.reported(token, "running")
    before = len(batch_site.executions(token))
    batch_site.launch(token, "sleep", "600")
    await batch_site.until(
        lambda: len(batch_site.executions(token)) > before, "asking again is answered"
    )
    assert {
        (e.pid, e.start_ticks) for e in batch_site.executions(token) if e.state == "running"
    } == {(first.pid, first.start_ticks)}
    batch_site.tasks.stop(batch_site.key, token, "cancel", 0.5)
    await batch_site.reported(token, "ended")


async def test_a_token_that_was_settled_is_not_launched_again(batch_site: Ground) -> None:
    token = token_of()
    batch_site.launch(token, "echo", "once")
    await batch_site.reported(token, "ended")
    batch_site.tasks.settle(batch_site.key, (token,))
    assert token not in await batch_site.snapshot()
    batch_site.reports.clear()
    batch_site.launch(token, "echo", "twice")
    exit_ = (await batch_site.reported(token, "ended")).exit
    assert exit_ is not None
    assert await batch_site.output(token) == b"once\n"


async def test_an_end_is_told_again_until_it_is_settled(batch_site: Ground) -> None:
    token = token_of()
    batch_site.launch(token, "false")
    ended = await batch_site.reported(token, "ended")
    for _ in range(2):
        known = (await batch_site.snapshot())[token]
        assert (
            known.state == "ended"
            and known.exit is not None
            and ended.exit is not None
            and known.exit.code == ended.exit.code == 1
        )
    batch_site.tasks.settle(batch_site.key, (token,))
    assert token not in await batch_site.snapshot()


async def test_what_runs_cannot_be_settled_away(batch_site: Ground) -> None:
    token = token_of()
    batch_site.launch(token, "sleep", "600")
    await batch_site.reported(token, "running")
    batch_site.tasks.settle(batch_site.key, (token,))
    assert (await batch_site.snapshot())[token].state == "running"
    batch_site.tasks.stop(batch_site.key, token, "cancel", 0.5)
    await batch_site.reported(token, "ended")


async def test_a_stop_ends_it_and_keeps_the_reason(batch_site: Ground) -> None:
    token = token_of()
    batch_site.launch(token, "sleep", "600")
    await batch_site.reported(token, "running")
    for _ in range(2):
        batch_site.tasks.stop(batch_site.key, token, "timeLimit", 0.5)
    exit_ = (await batch_site.reported(token, "ended")).exit
    assert exit_ is not None and (exit_.signal, exit_.stop_reason) == (signal.SIGTERM, "timeLimit")


async def test_what_was_stopped_before_it_was_launched_never_starts(batch_site: Ground) -> None:
    token = token_of()
    batch_site.tasks.stop(batch_site.key, token, "cancel", 0.5)
    await batch_site.reported(token, "ended")
    batch_site.launch(token, "echo", "too late")
    batch_site.tasks.settle(batch_site.key, (token,))
    await batch_site.snapshot()
    batch_site.launch(token, "echo", "too late")
    await batch_site.snapshot()
    assert {e.state for e in batch_site.executions(token)} <= {"starting", "ended"}
    assert await batch_site.output(token) == b""


async def test_a_stop_of_what_has_ended_changes_nothing(batch_site: Ground) -> None:
    token = token_of()
    batch_site.launch(token, "true")
    await batch_site.reported(token, "ended")
    batch_site.tasks.stop(batch_site.key, token, "cancel", 0.5)
    known = (await batch_site.snapshot())[token]
    assert known.exit is not None and (known.exit.code, known.exit.stop_reason) == (0, None)


async def test_a_snapshot_has_everything_of_its_place_and_nothing_of_another(
    batch_site: Ground,
) -> None:
    mine, theirs = [token_of() for _ in range(5)], token_of(OTHER)
    for token in mine:
        batch_site.launch(token, "true")
    batch_site.launch(theirs, "true", key=batch_site.other)
    for token in mine:
        await batch_site.reported(token, "ended")
    await batch_site.reported(theirs, "ended", batch_site.other)
    assert set(await batch_site.snapshot()) == set(mine)
    assert set(await batch_site.snapshot(batch_site.other)) == {theirs}


async def test_evidence_is_read_in_pieces_and_is_empty_where_there_is_none(
    batch_site: Ground,
) -> None:
    token, unknown = token_of(), token_of()
    batch_site.launch(token, "echo", "0123456789")
    await batch_site.reported(token, "ended")
    assert await batch_site.tasks.evidence(batch_site.key, token, "stdout.log", 0, 4) == (
        b"0123",
        11,
    )
    assert await batch_site.tasks.evidence(batch_site.key, token, "stdout.log", 8, 100) == (
        b"89\n",
        11,
    )
    assert await batch_site.tasks.evidence(batch_site.key, token, "stdout.log", 11, 100) == (
        b"",
        11,
    )
    batch_site.tasks.settle(batch_site.key, (token,))
    assert token not in await batch_site.snapshot()
    assert await batch_site.output(token) == b"0123456789\n", (
        "what is settled is forgotten, what it wrote is not"
    )
    assert await batch_site.tasks.evidence(batch_site.key, unknown, "stdout.log", 0, 4) == (b"", 0)
    assert await batch_site.tasks.evidence(batch_site.other, token, "stdout.log", 0, 4) == (b"", 0)


async def test_a_place_that_cannot_answer_reports_nothing_and_nothing_is_called_gone(
    batch_site: Ground,
) -> None:
    token = token_of()
    batch_site.launch(token, "sleep", "600")
    await batch_site.reported(token, "running")
    batch_site.silence()
    batch_site.reports.clear()
    batch_site.tasks.find(batch_site.key)
    batch_site.launch(token_of(), "true")
    await asyncio.sleep(0.2)  # nothing may happen in this time
    assert not [e for e in batch_site.executions(token) if e.state == "ended"]
    assert not [m for _, m in batch_site.reports if isinstance(m, Snapshot)]


async def test_evidence_of_a_driver_that_is_not_configured_is_refused() -> None:
    tasks = KeeperTaskDriver(lambda key, message: None, {}, secrets.token_bytes)
    with pytest.raises(Refusal) as refused:
        await tasks.evidence(KEY, token_of(), "stdout.log", 0, 1)
    assert refused.value.code == "agentUnavailable"


def gang_of(
    batch_site: Ground, *commands: tuple[str, ...], **fields: Any
) -> tuple[list[Token], Shared, list[TaskRun]]:
    """Return the tokens, shared fields and tasks of one attempt."""
    first = token_of()
    tokens = [Token(first.jid, 1, 1, "a", n) for n in range(len(commands))]
    runs = [
        TaskRun(
            op_id=op_id(t, "run"),
            token=t,
            spec=TaskSpec(
                command=c,
                run_dir=str(batch_site.run_dir(t) / str(t.index)),
                grace_secs=0.5,
                **fields,
            ),
        )
        for t, c in zip(tokens, commands, strict=True)
    ]
    return tokens, Shared(env={"JOBSCRIBE_TEST_SHARED": "yes"}, job="{}"), runs


@one_by_one
async def test_a_gang_is_launched_task_by_task_each_once(batch_site: Ground) -> None:
    tokens, shared, runs = gang_of(batch_site, ("true",), ("false",), ("sleep", "600"))
    for _ in range(2):
        batch_site.tasks.launch_gang(batch_site.key, shared, runs)
    first, second = [(await batch_site.reported(t, "ended")).exit for t in tokens[:2]]
    assert first is not None and second is not None and (first.code, second.code) == (0, 1)
    pids = {
        (e.pid, e.start_ticks) for e in batch_site.executions(tokens[2]) if e.state == "running"
    } or {(e.pid, e.start_ticks) for e in [await batch_site.reported(tokens[2], "running")]}
    assert len(pids) == 1
    # launch again after two of the tasks have ended and are settled
    batch_site.tasks.settle(batch_site.key, tuple(tokens[:2]))
    assert set(await batch_site.snapshot()) == {tokens[2]}
    batch_site.reports.clear()
    batch_site.tasks.launch_gang(batch_site.key, shared, runs)
    for token in tokens[:2]:
        await batch_site.reported(token, "ended")
    assert all(e.state != "running" for t in tokens[:2] for e in batch_site.executions(t))
    batch_site.tasks.stop(batch_site.key, tokens[2], "decided", 0.5)
    exit_ = (await batch_site.reported(tokens[2], "ended")).exit
    assert exit_ is not None and exit_.stop_reason == "decided"


@one_by_one
async def test_a_task_of_a_gang_that_was_stopped_before_is_not_launched_and_the_others_are(
    batch_site: Ground,
) -> None:
    tokens, shared, runs = gang_of(batch_site, ("echo", "one"), ("echo", "two"))
    batch_site.tasks.stop(batch_site.key, tokens[0], "decided", 0.5)
    batch_site.tasks.launch_gang(batch_site.key, shared, runs)
    await batch_site.reported(tokens[0], "ended")
    await batch_site.reported(tokens[1], "ended")
    assert (await batch_site.output(tokens[0]), await batch_site.output(tokens[1])) == (
        b"",
        b"two\n",
    )


async def test_a_probe_is_answered_once_with_the_ports_that_somebody_listens_on(
    batch_site: Ground,
) -> None:
    taken = batch_site.stranger()
    for n, ports in enumerate(((), (taken,), (1, taken))):
        op = f"{n}".rjust(32, "p")
        before = len(batch_site.reports)
        batch_site.tasks.probe(batch_site.key, op, ports)
        found = await batch_site.until(
            lambda op=op: [
                (k, m)
                for k, m in batch_site.reports
                if isinstance(m, PortsProbed) and m.op_id == op
            ],
            "an answer",
        )
        ((key, said),) = found
        assert (
            key == batch_site.key
            and set(said.busy) <= set(ports)
            and (taken in said.busy) == (batch_site.has_neighbours and taken in ports)
        )
        assert not [m for _, m in batch_site.reports[before:] if isinstance(m, RunStatusUpdate)]


@one_by_one
async def test_a_place_that_cannot_answer_answers_no_probe_and_launches_no_gang(
    batch_site: Ground,
) -> None:
    batch_site.silence()
    batch_site.reports.clear()
    tokens, shared, runs = gang_of(batch_site, ("true",))
    batch_site.tasks.probe(batch_site.key, "p" * 32, (1,))
    batch_site.tasks.launch_gang(batch_site.key, shared, runs)
    await asyncio.sleep(0.2)  # nothing may happen in this time
    assert not [
        m for _, m in batch_site.reports if isinstance(m, PortsProbed)
    ] and not batch_site.executions(tokens[0])
