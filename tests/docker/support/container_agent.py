"""One agent in a container of the image, with its relay and a test supervisor that speaks the
protocol. No driver.

Containers have the product's settings as far as these tests need them: no network, read-only root,
no capabilities, a unix user unknown to the image, a memory limit, the configuration as one line on
stdin.
"""

import asyncio
import contextlib
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket

from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.messages import (
    Execution,
    Run,
    RunAck,
    RunStatusUpdate,
    Snapshot,
    TaskSpec,
)

UNIX_USER = 123456
#: Of these tests alone: an agent of another test may dial a port that is used again here.
TOKEN = os.urandom(16).hex()
WAIT_SECS = 60.0


class Supervisor:
    """Supervisor on loopback. `executions` has the newest execution of each token; `connections`
    counts agent connections.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, serve_token: str = TOKEN) -> None:
        self.executions: dict[str, Execution] = {}
        self.heard: list[Any] = []
        self.connections = 0
        self.token = serve_token
        self._socket: _Socket | None = None
        self._encoder = Encoder(protocol=1)
        sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
        self.port = int(sockets[0].getsockname()[1])
        application = tornado.web.Application(
            [(r"/agent", _Socket, {"owner": self})], log_function=lambda _: None
        )
        self._server = tornado.httpserver.HTTPServer(application, ssl_options=tls)
        self._server.add_sockets(sockets)

    def came(self, socket: "_Socket") -> None:
        self._socket, self._encoder = socket, Encoder(protocol=1)
        self.connections += 1

    def went(self, socket: "_Socket") -> None:
        if self._socket is socket:
            self._socket = None

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def took(self, message: Any) -> None:
        self.heard.append(message)
        found = (
            message.executions
            if isinstance(message, Snapshot)
            else [message.execution]
            if isinstance(message, RunStatusUpdate)
            else []
        )
        for execution in found:
            self.executions[str(execution.token)] = execution

    def send(self, message: Any) -> None:
        assert self._socket is not None, "no agent is connected"
        for frame in self._encoder.frames([message]):
            self._socket.write_message(frame, binary=True)

    def drop(self) -> None:
        if self._socket is not None:
            self._socket.close()

    async def close(self) -> None:
        self._server.stop()
        self.drop()
        await self._server.close_all_connections()


class _Socket(tornado.websocket.WebSocketHandler):
    def initialize(self, owner: Supervisor) -> None:
        self._owner, self._decoder = owner, Decoder("to_supervisor", protocol=1)

    def prepare(self) -> None:
        if self.request.headers.get("Authorization") != f"Bearer {self._owner.token}":
            self.set_status(403)
            self.finish()

    def open(self, *_: str, **__: str) -> None:
        self._owner.came(self)

    def on_close(self) -> None:
        self._owner.went(self)

    def on_message(self, message: str | bytes) -> None:
        assert isinstance(message, bytes)
        for said in self._decoder.messages(message):
            self._owner.took(said)


class Place:
    """A host with a relay, and the folders of one user. docker: the docker command for the host."""

    def __init__(
        self, docker: tuple[str, ...], image: str, name: str, uid: int = UNIX_USER
    ) -> None:
        self.docker, self.image, self.name, self.uid = docker, image, name, uid
        self.root = Path(tempfile.mkdtemp(prefix="jobscribe-image-", dir="/var/tmp"))
        self.root.chmod(0o755)
        self.key = AgentKey("docker", "sequential", "ImageUs1", "a")
        self.home, self.folder = (
            self.root / "user" / self.key.uid,
            self.root / "agent" / str(self.key),
        )
        for folder in (self.home, self.folder):
            folder.mkdir(parents=True)
            os.chown(folder, uid, uid)
        self.supervisor = Supervisor()
        self._containers: list[str] = []
        self._said: dict[str, subprocess.Popen[bytes]] = {}
        self._serial = 0

    def do(self, *arguments: str, check: bool = True, text: bytes | None = None) -> str:
        done = subprocess.run(
            [*self.docker, *arguments], input=text, capture_output=True, check=False
        )
        assert done.returncode == 0 or not check, done.stderr.decode()
        return (done.stdout + done.stderr).decode().strip()

    async def asked(self, *arguments: str, **more: Any) -> str:
        return await asyncio.to_thread(self.do, *arguments, **more)

    async def relay(self, name: str = "relay", **more: Any) -> str:
        """Start a relay and return its name; an earlier relay keeps running."""
        said = {
            "url": f"ws://127.0.0.1:{self.supervisor.port}/agent",
            "connect": f"127.0.0.1:{self.supervisor.port}",
            "ca": None,
            "pingSecs": 20.0,
            "pingTimeoutSecs": 10.0,
            **more,
        }
        container = f"{self.name}-{name}"
        await self._run(
            container,
            "--network",
            "host",
            "--volume",
            f"{self.name}:/run/jobscribe",
            self.image,
            "relay",
            json.dumps(said),
        )
        await until(
            lambda: "relay from" in self.do("logs", container),
            lambda: f"no relay: {self.do('logs', container, check=False)}",
        )
        return container

    def config(self) -> dict[str, Any]:
        return {
            "cgroups": {"use": "auto"},
            "agent": {
                "agentKey": str(self.key),
                "agentId": "a" * 32,
                "token": TOKEN,
                "addressFile": "/run/jobscribe/agents.json",
                "cacheDir": str(self.folder),
                "apps": [],
                "home": str(self.home),
            },
        }

    async def agent(
        self,
        name: str = "agent",
        *,
        memory: str = "200m",
        options: tuple[str, ...] = (),
        silent: bool = False,
    ) -> str:
        """Return the container's name once it runs and has its configuration. silent: leave that to
        `tell`.
        """
        container = f"{self.name}-{name}"
        await self._run(
            container,
            *self.as_agent(memory),
            *options,
            self.image,
            "keeper",
            "--root",
            str(self.root),
            "--folder",
            str(self.folder),
            line=None if silent else json.dumps(self.config()).encode() + b"\n",
            silent=silent,
        )
        return container

    def as_agent(self, memory: str) -> tuple[str, ...]:
        return (
            "--network",
            "none",
            "--interactive",
            "--volume",
            f"{self.name}:/run/jobscribe:ro",
            "--memory",
            memory,
            "--memory-swap",
            memory,
            "--user",
            f"{self.uid}:{self.uid}",
            "--volume",
            f"{self.home}:{self.home}",
            "--volume",
            f"{self.folder}:{self.folder}",
        )

    async def _run(
        self, container: str, *arguments: str, line: bytes | None = None, silent: bool = False
    ) -> None:
        self._containers.append(container)
        await self.asked(
            "create",
            "--name",
            container,
            "--read-only",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
            "--tmpfs",
            "/tmp:size=64m,mode=1777",
            "--pids-limit",
            "200",
            *arguments,
        )
        if line is None and not silent:
            await self.asked("start", container)
            return
        self.attach(container)
        if line is not None:
            self.tell(container, line)

    def attach(self, container: str) -> None:
        """Start the container with its stdin connected to us."""
        self._said[container] = subprocess.Popen(
            [*self.docker, "start", "--attach", "--interactive", container],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def tell(self, container: str, line: bytes) -> None:
        stdin = self._said[container].stdin
        assert stdin is not None
        stdin.write(line)
        stdin.flush()

    def token(self) -> Token:
        self._serial += 1
        return Token(f"{self.key.uid}-ImageSi1-heat", self._serial, 1, "main", 0)

    def start(self, command: str, **more: Any) -> Token:
        """Give the agent a run of this shell command."""
        token = self.token()
        run_dir = self.home / "heat" / "ImageSi1" / str(token.serial)
        spec = TaskSpec(command=("/bin/sh", "-c", command), run_dir=str(run_dir), **more)
        self.supervisor.send(Run(op_id=op_id(token, "run"), token=token, spec=spec))
        return token

    async def end_of(self, token: Token) -> ExitInfo:
        def ended() -> bool:
            found = self.supervisor.executions.get(str(token))
            return found is not None and found.state == "ended"

        await until(ended, lambda: f"{token} does not end: {self.logs()}")
        exit_ = self.supervisor.executions[str(token)].exit
        assert exit_ is not None
        if self.supervisor.connected:
            self.supervisor.send(RunAck(tokens=(token,)))
        return exit_

    async def done(self, command: str, **more: Any) -> ExitInfo:
        return await self.end_of(self.start(command, **more))

    def output(self, token: Token, stream: str = "stdout") -> str:
        return (self.folder / "run" / token.name / f"{stream}.log").read_text()

    def logs(self) -> str:
        return "\n".join(f"== {c}\n{self.do('logs', c, check=False)}" for c in self._containers)

    async def connected(self) -> None:
        await until(lambda: self.supervisor.connected, lambda: f"no agent comes: {self.logs()}")

    async def close(self) -> None:
        for attached in self._said.values():
            attached.kill()
            attached.communicate()
        await self.asked("rm", "--force", *self._containers, check=False)
        await self.asked("volume", "rm", self.name, check=False)
        await self.supervisor.close()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.root)


async def until(
    true: Callable[[], object], otherwise: Callable[[], str], secs: float = WAIT_SECS
) -> None:
    deadline = time.monotonic() + secs
    while not await asyncio.to_thread(true):
        assert time.monotonic() < deadline, otherwise()
        await asyncio.sleep(0.01)
