"""Setup for tests of the sbatch driver: real keepers on this machine, and stub Slurm commands that
always succeed.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

from jobscribe.drivers.contracts import AgentSpec
from jobscribe.drivers.sbatch.driver import SbatchDriver
from jobscribe.drivers.sbatch.login_node.channel import LocalChannel
from jobscribe.protocol.clusters.cluster import Cluster, Clusters, LoginHost
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime import processes
from jobscribe.runtime.log.logger import Direct, Log

KEY = AgentKey("sbatch", "parallel", "DriverU1", "hpc")
TOKEN, AGENT_ID = "SecretTokenOfTheAgent0123456789a", "SecretAgentId0123456789abcdefghi"
SPEC = AgentSpec(key=KEY, agent_id=AGENT_ID, token=TOKEN)
HOST = LoginHost(host="login.example", keys=("ssh-ed25519 AAAA",))
SYSTEM_PYTHON = "/usr/bin/python3"
#: the code archive is the same for all tests, so it is built once
CODES: dict[Any, Any] = {}


_ENVIRONMENT = LocalChannel._environment


def without_profile(channel: LocalChannel) -> dict[str, str]:
    """Return the channel's environment. For the current user, skip the login profile: it is slow
    and may hold locks when killed.
    """
    own = {} if channel._prefix else {"HOME": "/", "SHELL": "/bin/sh"}
    return _ENVIRONMENT(channel) | own


class Ssh(LocalChannel):
    """A fake ssh connection: it runs commands on this machine as this user, and can be cut."""

    def __init__(self, prefix: tuple[str, ...] = (), user: str | None = None) -> None:
        super().__init__(prefix, user)
        self.forwards: list[tuple[str, str, int]] = []
        self.argvs: list[str] = []

    async def run(self, argv: Any, stdin: bytes = b"", secs: float = 30.0) -> Any:
        self.argvs.append(" ".join(argv))
        return await super().run(argv, stdin, secs)

    async def forward(self, path: str, host: str, port: int) -> None:
        self.forwards.append((path, host, port))


class SbatchAgents:
    def __init__(self, root: Path) -> None:
        self.root, self.scratch = root, root / "scratch"
        self.scratch.mkdir()
        self.base = self.scratch / "jobscribe-test"
        self.address = {
            "agentsUrl": "ws://127.0.0.1:9/agent",
            "agentsCa": None,
            "pingSecs": 20.0,
            "pingTimeoutSecs": 10.0,
        }
        self.redactor = Redactor([TOKEN, AGENT_ID])
        self.signed_in: list[AgentKey] = []
        self.drivers: list[SbatchDriver] = []
        self.bin = root / "bin"
        self.bin.mkdir()
        for name in ("sbatch", "squeue", "sacct", "scancel", "sinfo", "scontrol"):
            self.command(name, "exit 0")

    def command(self, name: str, line: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.bin / name).chmod(0o755)

    def cluster(self, **more: Any) -> Cluster:
        said: dict[str, Any] = {
            "folder": str(self.scratch),
            "environment": {"PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin"},
        }
        if more.get("access") == "ssh":
            said |= {"login": (HOST,), "pythons": (SYSTEM_PYTHON,)}
        return Cluster(name="hpc", **(said | more))

    def driver(self, cluster: Cluster | None = None) -> SbatchDriver:
        (self.root / "agents.json").write_text(json.dumps(self.address))
        driver = SbatchDriver(
            Clusters(clusters=(cluster or self.cluster(),)),
            self.root,
            str(self.root / "user"),
            deployment="test",
            address=lambda: self.address,
            log=Log("supervisor", self.redactor, Direct()),
            redactor=self.redactor,
            agent_settings={"loginSecs": 0},
            keeper_settings={"lease": {"renewSecs": 0.1, "leftSecs": 1.0}},
            signed_in=self.signed_in.append,
        )
        driver._codes._made = CODES
        self.drivers.append(driver)
        return driver

    def folder(self, key: AgentKey = KEY) -> Path:
        return self.base / "agent" / str(key)

    def keepers(self) -> list[int]:
        return self.named(b"agent.keeper") + self.named(b"jobscribe keeper")

    def agents(self) -> list[int]:
        """Return the agents' pids. Only children of keepers count, because a process that an agent
        has just forked shows the agent's arguments for a moment.
        """
        keepers, table = self.keepers(), processes.table()
        return [
            pid
            for pid in self.named(b"jobscribe agent")
            if (p := table.get(pid)) is not None and p.parent in keepers
        ]

    def named(self, name: bytes) -> list[int]:
        """Return the pids of processes below this root with `name` in their arguments. Ended
        processes have no arguments.
        """
        root, out = str(self.root).encode(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            line = processes._read(f"/proc/{pid}/cmdline")
            if root in line and name in line:
                out.append(int(pid))
        return sorted(out)


async def until(condition: Any, what: str, secs: float = 30.0) -> None:
    deadline = asyncio.get_running_loop().time() + secs
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {secs:g} s: {what}"
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def made_ground() -> AsyncIterator[SbatchAgents]:
    root = Path(tempfile.mkdtemp(prefix="js-sbatch-", dir="/tmp"))
    root.chmod(0o755)
    batch_site = SbatchAgents(root)
    try:
        with mock.patch.object(LocalChannel, "_environment", without_profile):
            yield batch_site
    finally:
        for driver in batch_site.drivers:
            await driver.close()
        for _ in range(200):
            left = batch_site.named(b"")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            await asyncio.sleep(0.02)
        shutil.rmtree(root)
