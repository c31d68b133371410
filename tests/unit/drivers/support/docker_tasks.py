"""One life of the supervisor for tasks in containers: the Docker driver with its tasks, a daemon,
and the received reports.
"""

import asyncio
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.drivers.docker.agents.driver import DockerDriver
from jobscribe.drivers.docker.tasks.controller import ContainerTaskController
from jobscribe.protocol.clusters.container_pool import Pool, PoolHost
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.messages import (
    ContainerSpec,
    Execution,
    RunStatusUpdate,
    Snapshot,
    TaskSpec,
)
from jobscribe.runtime.log.logger import Log, Record

KEY = AgentKey("docker", "container", "TaskUsr1", "a")
DEADLINE_SECS = 20.0
_numbers = itertools.count(1)


def token_of(serial: int = 1, role: str = "main", index: int = 0) -> Token:
    return Token(f"{KEY.uid}-task{next(_numbers):04d}-command", serial, 1, role, index)


class Life:
    """The driver with an open virtual agent `key`. Its reports are in `heard`; those of earlier
    lives are in `before`.
    """

    def __init__(
        self,
        root: Path,
        address: str,
        *,
        image: str = "lab:1",
        deployment: str = "depl0001",
        **pool: Any,
    ) -> None:
        self.root, self.deployment = root, deployment
        self.heard: list[Any] = []
        self.records: list[Record] = []
        self.is_up = False
        host = PoolHost(name="a", address=address, cpu=8, memory_mb=8000)
        users = (200_000, 200_099) if os.geteuid() == 0 else None
        fields = {"pull": "never", "log_driver": "json-file", "unix_users": users, **pool}
        log = Log("test", Redactor(), SimpleNamespace(write=self.records.append))  # type: ignore[arg-type]
        self.driver = DockerDriver(
            Pool(hosts=(host,), image=image, **fields),
            root,
            str(root / "user"),
            deployment=deployment,
            address=dict,
            log=log,
            redactor=Redactor(),
            reporter=self,
        )
        self.tasks = ContainerTaskController(self.driver, log, head=64 * 1024, tail=64 * 1024)

    @property
    def lines(self) -> list[str]:
        return [f"{record.message}{record.traceback}" for record in self.records]

    async def open(self) -> "Life":
        self.driver.watch()
        await self.until(lambda: self.driver.engines["a"].up, "the host is up")
        assert self.driver.places is not None
        await self.driver.places.open(KEY)
        return self

    async def close(self) -> None:
        await self.tasks.close()
        await self.driver.close()

    # ---- reporter methods

    def up(self, place: AgentKey, boot_id: str) -> None:
        self.is_up = True

    def down(self, place: AgentKey) -> None:
        self.is_up = False

    def host(self, *said: str) -> None:
        """Ignore the report."""

    def said(self, place: AgentKey, message: Any) -> None:
        assert self.is_up and place == KEY
        self.heard.append(message)

    # ---- queries of the tests

    def spec(self, token: Token, *command: str, **fields: Any) -> TaskSpec:
        box = ContainerSpec(**fields.pop("box", {}))
        run_dir = str(self.root / "user" / KEY.uid / token.jid / token.role / str(token.index))
        return TaskSpec(
            command=command or ("true",), run_dir=run_dir, box=box, **{"grace_secs": 0.5, **fields}
        )

    def launch(self, *command: str, token: Token | None = None, **fields: Any) -> Token:
        token = token or token_of()
        self.tasks.launch(KEY, token, self.spec(token, *command, **fields))
        return token

    def evidence(self, token: Token) -> Path:
        return self.root / "agent" / str(KEY) / "run" / token.name

    def ledger(self, token: Token) -> Path:
        return self.root / "agent" / str(KEY) / "ledger" / token.name

    def executions(self, token: Token) -> list[Execution]:
        return [
            e
            for m in self.heard
            for e in (
                m.executions
                if isinstance(m, Snapshot)
                else (m.execution,)
                if isinstance(m, RunStatusUpdate)
                else ()
            )
            if e.token == token
        ]

    async def until(self, true: Callable[[], Any], what: str, secs: float = DEADLINE_SECS) -> Any:
        deadline = asyncio.get_running_loop().time() + secs
        while not (found := true()):
            if asyncio.get_running_loop().time() > deadline:
                pytest.fail(f"not within {secs:g} s: {what}\n" + "\n".join(self.lines[-20:]))
            await asyncio.sleep(0.01)
        return found

    async def reported(self, token: Token, state: str) -> Execution:
        found = await self.until(
            lambda: [e for e in self.executions(token) if e.state == state],
            f"{token} is reported {state}",
        )
        return found[-1]  # type: ignore[no-any-return]

    async def end_of(self, token: Token) -> ExitInfo:
        exit_ = (await self.reported(token, "ended")).exit
        assert exit_ is not None
        return exit_

    async def snapshot(self) -> dict[Token, Execution]:
        before = len(self.heard)
        self.tasks.find(KEY)
        await self.until(
            lambda: any(isinstance(m, Snapshot) and m.last for m in self.heard[before:]),
            "a snapshot",
        )
        return {
            e.token: e for m in self.heard[before:] if isinstance(m, Snapshot) for e in m.executions
        }
