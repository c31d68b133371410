"""Conversion of a task into the keeper's start order: script, input, login environment."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from ...protocol.errors import Refusal
from ...protocol.ids import Token, execution_log_ids
from ...protocol.launch.job_script import export_lines, script
from ...protocol.wire.messages import Shared, SlotUse, TaskSpec
from ...runtime.log.logger import Log
from ..files.output_reader import Evidence
from ..host.login_environment import LoginEnvironment
from ..host.port_probe import ports_in_use
from . import job_input

#: failed(token, sentence, fault): the agent could not send the order to the keeper
Failed = Callable[[Token, str, str | None], None]


class Starter:
    """Starts tasks by the keeper. send: sends an order to the keeper."""

    def __init__(
        self,
        evidence: Evidence,
        login: LoginEnvironment,
        apps: tuple[str, ...],
        log: Log,
        send: Callable[[dict[str, Any]], None],
        failed: Failed,
    ) -> None:
        self._evidence, self._login, self.apps, self._log, self._send, self._failed = (
            evidence,
            login,
            apps,
            log,
            send,
            failed,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        #: the slots of tasks that wait for the login environment
        self._waiting: dict[Token, SlotUse | None] = {}
        #: the shared data of the last gang, as script lines: its tasks arrive in sequence
        self._shared: tuple[Shared | None, str] = (None, "")

    def prepare(self) -> None:
        """Read the login environment in advance: a new agent usually starts a job soon."""
        task = asyncio.get_running_loop().create_task(self._load_login())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def start(
        self, token: Token, spec: TaskSpec, shared: Shared | None, slot: SlotUse | None = None
    ) -> None:
        """Send the start order; read the login environment first if it is unknown."""
        log = self._log.bound(**execution_log_ids(token))
        if self._login.known is not None:
            self._start(log, token, spec, shared, slot)
            return
        self._waiting[token] = slot
        task = asyncio.get_running_loop().create_task(self._start_later(log, token, spec, shared))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def release(self, token: Token) -> None:
        """Order the start of a task that waits for a slot."""
        if token in self._waiting:
            self._waiting[token] = "held"
        else:
            self._send({"do": "release", "name": token.name})

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _load_login(self) -> None:
        with contextlib.suppress(Refusal):  # reported to the tasks that need it
            await self._login.load()

    async def _start_later(
        self, log: Log, token: Token, spec: TaskSpec, shared: Shared | None
    ) -> None:
        try:
            await self._login.load()
        except Refusal as e:
            self._failed(token, e.sentence, None)
            return
        finally:
            slot = self._waiting.pop(token)
        if self._login.sentence:
            log("login profile: {}", self._login.sentence)
        self._start(log, token, spec, shared, slot)

    def _start(
        self, log: Log, token: Token, spec: TaskSpec, shared: Shared | None, slot: SlotUse | None
    ) -> None:
        busy = ports_in_use(spec.ports)
        if busy:
            sentence = f"port{'s' * (len(busy) > 1)} {', '.join(map(str, busy))} already in use on this host"
            self._failed(token, sentence, "portTaken")
            return
        order: dict[str, Any] = {}
        evidence = self._evidence.folder / token.name
        if spec.app is not None:
            order["input"] = job_input.input_json(spec.app, spec.run_dir, self.apps)
            spec = job_input.with_job_command(spec, evidence, job_input.import_roots())
        if shared is not None:
            order["job"] = shared.job
        if spec.memory_bytes is not None:
            order["memory"] = spec.memory_bytes
        if slot is not None:
            order |= {"slot": True, "ahead": slot == "ahead"}
        try:
            text = script(
                token,
                spec,
                self._login.known or {},
                evidence,
                umask=self._login.umask,
                shared=self._script_lines(shared),
            )
        except Refusal as e:
            self._failed(token, e.sentence, None)
            return
        log(
            "cmd=('/bin/sh', {}) jid={} runDir={}",
            f"{token.name}/script.sh",
            token.jid,
            spec.run_dir,
        )
        self._send(
            {
                "do": "start",
                "name": token.name,
                "token": str(token),
                "runDir": spec.run_dir,
                "script": text,
                "limit": spec.time_limit_secs,
                "grace": spec.grace_secs,
                "core": spec.core_bytes,
                **order,
            }
        )

    def _script_lines(self, shared: Shared | None) -> str:
        if shared is not self._shared[0]:
            self._shared = (shared, export_lines(shared.env) if shared is not None else "")
        return self._shared[1]
