"""Conversion of a task into the keeper's start order: command, script, input, login environment."""

import asyncio
import contextlib
import os
from collections.abc import Callable

from ...protocol.errors import Refusal
from ...protocol.ids import Token, execution_log_ids
from ...protocol.launch.job_script import (
    TEXT,
    environment_lines,
    export_lines,
    identity_variables,
    job_environment,
    script_parts,
)
from ...protocol.launch.keeper_messages import Order, ReleaseOrder, SetEnvironment, StartOrder
from ...protocol.wire.messages import Shared, SlotUse, TaskSpec
from ...runtime.execution.folder import SCRIPT
from ...runtime.log.logger import Log
from ..breakpoints.environment import with_debugger
from ..files.output_reader import Evidence
from ..host.login_environment import LoginEnvironment
from ..host.port_probe import ports_in_use
from ..profiles.environment import with_profiler
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
        send: Callable[[Order], None],
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
        #: the environment that the keeper has, and its name
        self._environment: tuple[dict[str, str] | None, str] = (None, "0")

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
            self._send(ReleaseOrder(name=token.name))

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
        evidence = self._evidence.folder / token.name
        input_ = None
        if spec.app is not None:
            input_ = job_input.input_json(spec.app, spec.run_dir, self.apps)
            spec = job_input.with_job_command(spec, evidence, job_input.import_roots())
        below = job_environment(self._login.known or {})
        spec = with_profiler(token, with_debugger(spec, below, evidence), below)
        try:
            parts = script_parts(
                token,
                spec,
                below,
                evidence,
                umask=self._login.umask,
                shared=self._script_lines(shared),
            )
        except Refusal as e:
            self._failed(token, e.sentence, None)
            return
        log("script={}/{} jid={} runDir={}", token.name, SCRIPT, token.jid, spec.run_dir)
        self._send_environment(below)
        identity = identity_variables(token, spec.run_dir, evidence)
        self._send(
            StartOrder(
                name=token.name,
                token=str(token),
                run_dir=spec.run_dir,
                command=[*spec.wrap, *_command(spec)],
                env={**(shared.env if shared is not None else {}), **spec.env, **identity},
                script=parts,
                environment=self._environment[1],
                umask=int(self._login.umask, 8),
                core=spec.core_bytes,
                limit=spec.time_limit_secs,
                grace=spec.grace_secs,
                input=input_,
                job=shared.job if shared is not None else None,
                memory=spec.memory_bytes,
                slot=slot,
            )
        )

    def _send_environment(self, variables: dict[str, str]) -> None:
        """Send the environment that all orders share, unless the keeper has it."""
        if variables != self._environment[0]:
            number = int(self._environment[1]) + 1
            self._environment = (variables, str(number))
            lines = environment_lines(variables)
            self._send(SetEnvironment(name=str(number), variables=variables, lines=lines))

    def _script_lines(self, shared: Shared | None) -> str:
        if shared is not self._shared[0]:
            self._shared = (shared, export_lines(shared.env) if shared is not None else "")
        return self._shared[1]


def _command(spec: TaskSpec) -> tuple[str, ...]:
    """Return the command. A text without bash on this machine is for sh."""
    if spec.command[:2] == TEXT and not os.access(TEXT[0], os.X_OK):
        return ("/bin/sh", *spec.command[1:])
    return spec.command
