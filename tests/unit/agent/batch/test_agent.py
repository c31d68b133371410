"""The whole agent with a fake Slurm. The test plays its keeper and its supervisor."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket
from fake_slurm import FakeSlurm

from jobscribe.agent import process
from jobscribe.agent.batch import controller
from jobscribe.protocol.clusters.batch import BatchRequest
from jobscribe.protocol.clusters.cluster import Cluster
from jobscribe.protocol.ids import Token, op_id
from jobscribe.protocol.version import VERSION
from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.handshake import HEADER, format_header, hello
from jobscribe.protocol.wire.messages import (
    AppInput,
    Cancel,
    ClusterReport,
    FileChunk,
    Kill,
    LogChunk,
    PortsProbed,
    ProbePorts,
    ReadFile,
    ReadLog,
    Run,
    RunAck,
    RunReport,
    RunStatusUpdate,
    RunTasks,
    Shared,
    Snapshot,
    TaskRun,
    TaskSpec,
)

pytestmark = pytest.mark.process

SECS = 20.0
OP = "o" * 32


def token(serial: int = 7, index: int = 0, role: str = "main", model: str = "command") -> Token:
    return Token(f"user1234-sim12345-{model}", serial, 1, role, index)


class Seat:
    """An in-process agent. The test holds the keeper's end of its socket and listens for its
    connection.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.heard, self.orders = place, [], []  # type: ignore[var-annotated]
        self.folder = place / "base" / "agent" / "sbatch.parallel.user1234@lab"
        self.folder.mkdir(parents=True)
        self.handler: Any = None
        self.encoder = Encoder()

    async def start(self) -> None:
        seat = self

        class Handler(tornado.websocket.WebSocketHandler):
            def prepare(self) -> None:
                self.set_header(HEADER, format_header(hello(VERSION, ())))

            def open(self) -> None:  # type: ignore[override]
                seat.handler, seat.decoder, seat.encoder = self, Decoder("to_supervisor"), Encoder()

            def on_message(self, message: Any) -> None:
                seat.heard += seat.decoder.messages(message)

        sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
        self.server = tornado.httpserver.HTTPServer(tornado.web.Application([("/", Handler)]))
        self.server.add_sockets(sockets)
        address = self.place / "agents.json"
        address.write_text(
            json.dumps({"agentsUrl": f"ws://127.0.0.1:{sockets[0].getsockname()[1]}/"})
        )
        self.keeper, theirs = socket.socketpair()
        self.keeper.setblocking(False)
        agent = process._Agent(
            theirs.detach(), str(self.place), SimpleNamespace(begin=lambda log: None)
        )  # type: ignore[arg-type]
        cluster = Cluster(name="lab", poll_secs=0.1, poll_max_secs=0.5)
        config = {
            "agentKey": "sbatch.parallel.user1234@lab",
            "agentId": "a" * 32,
            "token": "secret",
            "addressFile": str(address),
            "cacheDir": str(self.place),
            "loginSecs": 0,
            "batch": {"cluster": msgspec.to_builtins(cluster), "deployment": "test"},
            "paths": [["/supervisors/user", str(self.place / "here")]],
        }
        greeting = {
            "is": "hello",
            "agent": config,
            "folder": str(self.folder),
            "keeperPid": 1,
            "executions": [],
        }
        await asyncio.get_running_loop().sock_sendall(
            self.keeper, json.dumps(greeting).encode() + b"\n"
        )
        self.serving = asyncio.create_task(agent.serve())
        await self.until(lambda: self.handler)

    async def close(self) -> None:
        self.keeper.close()
        await asyncio.wait_for(self.serving, SECS)
        self.server.stop()
        await self.server.close_all_connections()

    async def until(self, condition: Any) -> Any:
        async with asyncio.timeout(SECS):
            while not (value := condition()):
                assert not self.serving.done(), self.serving
                await asyncio.sleep(0.01)
        return value

    async def hears(self, kind: type, **fields: Any) -> Any:
        def found() -> Any:
            return next(
                (
                    m
                    for m in self.heard
                    if isinstance(m, kind) and all(getattr(m, k) == v for k, v in fields.items())
                ),
                None,
            )

        return await self.until(found)

    async def end(self, t: Token) -> Any:
        def found() -> Any:
            mine = (m.execution for m in self.heard if isinstance(m, RunStatusUpdate))
            return next((e for e in mine if e.token == t and e.state == "ended"), None)

        return await self.until(found)

    async def say(self, message: Any) -> None:
        for frame in self.encoder.frames([message]):
            await self.handler.write_message(frame, binary=True)

    def spec(self, shell: str, **more: Any) -> TaskSpec:
        return TaskSpec(
            command=("/bin/sh", "-c", shell),
            run_dir="/supervisors/user/user1234/command/sim12345/command",
            batch=BatchRequest(),
            **more,
        )

    async def run(self, t: Token, spec: TaskSpec) -> None:
        await self.say(Run(op_id=op_id(t, "run"), token=t, spec=spec))


@pytest.fixture
async def seat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Seat]:
    slurm = FakeSlurm()
    monkeypatch.setattr(controller, "Commands", lambda env: slurm)
    monkeypatch.setattr(process, "log_uncaught", lambda log: None)
    made = Seat(tmp_path)
    made.slurm = slurm  # type: ignore[attr-defined]
    await made.start()
    yield made
    await made.close()
    await slurm.close()


async def test_a_run_with_translated_paths_its_log_its_files_and_its_acknowledgement(
    seat: Seat,
) -> None:
    t = token()
    here = seat.place / "here" / "user1234" / "command" / "sim12345" / "command"
    await seat.run(
        t,
        seat.spec(
            "pwd; echo $WHERE; echo data >out.txt; exit 3",
            env={"WHERE": "x=/supervisors/user/user1234:/supervisors/users"},
        ),
    )
    end = await seat.end(t)
    assert end.exit.code == 3 and end.batch.run_dir == str(here)
    await seat.say(ReadLog(op_id=OP, token=t, stream="stdout", offset=0, limit=1000))
    chunk = await seat.hears(LogChunk)
    assert (
        chunk.data.decode() == f"{here}\nx={seat.place}/here/user1234:/supervisors/users\n"
        and chunk.end
    )
    await seat.say(
        ReadFile(
            op_id=OP,
            run_dir="/supervisors/user/user1234/command/sim12345/command",
            name="out.txt",
            offset=0,
            limit=100,
        )
    )
    assert (await seat.hears(FileChunk)).data == b"data\n"
    ledger = list((seat.folder / "batch").iterdir())
    await seat.say(RunAck(tokens=(t,)))
    await seat.until(lambda: not list((seat.folder / "batch").iterdir()))
    assert len(ledger) == 1


async def test_what_the_cluster_has_comes_by_itself_and_with_every_connection(seat: Seat) -> None:
    first = await seat.hears(ClusterReport)
    assert first.news.version == "22.05.8"
    seat.heard.clear()
    seat.handler.close()
    await seat.hears(ClusterReport)
    assert [m for m in seat.heard if isinstance(m, Snapshot)]


async def test_an_apps_run_reports_while_it_runs(seat: Seat) -> None:
    seat.slurm.completing = 1.0  # type: ignore[attr-defined]
    t = token(model="heatAnimation")
    data = {
        "simulationType": "heat",
        "models": {"heatAnimation": {"frames": 3}},
        "report": "heatAnimation",
    }
    app = AppInput(simulation_type="heat", compute_model="heatAnimation", data=data)
    spec = TaskSpec(
        command=(),
        app=app,
        run_dir="/supervisors/user/user1234/heat/sim12345/heatAnimation",
        batch=BatchRequest(),
    )
    await seat.run(t, spec)
    end = await seat.end(t)
    said = json.loads((seat.folder / "run" / t.name / "input.json").read_text())
    assert said["runDir"] == str(seat.place / "here/user1234/heat/sim12345/heatAnimation")
    assert (end.exit.source, end.exit.code) == ("script", 0) and end.exit.report, end
    assert [m for m in seat.heard if isinstance(m, RunReport)], end


async def test_the_tasks_of_a_gang_are_one_submission(seat: Seat) -> None:
    seat.slurm.hold = True  # type: ignore[attr-defined]
    tasks = [token(index=n, role="worker") for n in range(3)]
    runs = tuple(TaskRun(op_id=op_id(t, "run"), token=t, spec=seat.spec("true")) for t in tasks)
    await seat.say(RunTasks(op_id=OP, shared=Shared(env={"A": "@worker-0@"}, job="{}"), tasks=runs))
    await seat.until(lambda: seat.slurm.jobs)  # type: ignore[attr-defined]
    for t in tasks:
        await seat.say(Cancel(op_id=op_id(t, "cancel"), token=t, reason="cancel", grace_secs=1.0))
    for t in tasks:
        end = await seat.end(t)
        assert (end.exit.source, end.exit.stop_reason) == ("start", "cancel")
    assert seat.slurm.count("sbatch") == 1 and [j.state for j in seat.slurm.jobs.values()] == [
        "CANCELLED"
    ]  # type: ignore[attr-defined]


async def test_ports_of_the_login_node_are_nobodys_business(seat: Seat) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        await seat.say(ProbePorts(op_id=OP, ports=(taken.getsockname()[1],)))
        assert (await seat.hears(PortsProbed)).busy == ()


async def test_told_to_end_with_its_jobs_it_ends_them_first(seat: Seat) -> None:
    t = token()
    await seat.run(t, seat.spec("sleep 60"))
    await seat.until(
        lambda: [
            m
            for m in seat.heard
            if isinstance(m, RunStatusUpdate) and m.execution.state == "running"
        ]
    )
    await seat.say(Kill(reason="idle", stop_jobs=True))
    said = b""
    async with asyncio.timeout(SECS):
        while b'"quit"' not in said:
            said += await asyncio.get_running_loop().sock_recv(seat.keeper, 65536)
    assert (await seat.end(t)).exit.stop_reason == "shutdown"
