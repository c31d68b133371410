"""Shells in tasks with containers of their own.

A running task is entered in its container. A failed task that is held for debugging has none that
runs: its shells share a *shell container* with the same image, user, mounts and limits, which joins
the network of the gang while other tasks use it. Nothing else is left of the task, because its root
file system is read-only and its /tmp was in memory.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey, Token, execution_log_ids
from ....protocol.wire.messages import OpenShell, ShellIo, ShellOutput
from ....runtime.execution.folder import SCRIPT
from ....runtime.inspection.command_line import command_line
from ....runtime.log.logger import Log
from ....runtime.shells.session import ShellSession, ShellTable
from ..agents.driver import DockerDriver
from ..containers import names, specifications
from ..host.container_calls import inspect, remove
from ..host.engine import EngineError, HostEngine
from ..host.exec_terminal import Attachment, ExecTerminal
from .ledger import ContainerLedger
from .ssh_entry import ssh_command

#: Wait for shells that end with the supervisor (seconds).
CLOSE_SECS = 4.0
_MISSING = (
    "the task has no container: it has not started yet ('jobscribe job why' says why), or somebody"
    " removed the container; its output is there: 'jobscribe job logs'"
)


class _ShellContainer:
    """A shell container. keeper: its standard input, which ends it. shells: those that use it."""

    def __init__(self, name: str, engine: HostEngine) -> None:
        self.name, self.engine = name, engine
        self.shells = 0
        self.id: str | None = None
        self.keeper: Attachment | None = None
        self.lock = asyncio.Lock()


class ContainerShells:
    """The shells of one driver. Use it on the event loop."""

    def __init__(self, driver: DockerDriver, log: Log) -> None:
        self._driver, self._log = driver, log
        self._table = ShellTable(self._start)
        self._opening: dict[str, AgentKey] = {}
        self._containers: dict[Token, _ShellContainer] = {}
        self._terminals: dict[ExecTerminal, Token] = {}
        self._work: set[asyncio.Task[None]] = set()

    async def answer(self, place: AgentKey, op: OpenShell | ShellIo) -> ShellOutput:
        """Raises Refusal."""
        if isinstance(op, ShellIo):
            return await self._table.io(op)
        self._opening[op.shell_id] = place
        try:
            return await self._table.open(op)
        finally:
            self._opening.pop(op.shell_id, None)

    def leave(self, token: Token) -> None:
        """End the shells in the files of an ended task."""
        container = self._containers.get(token)
        if container is not None:
            self._spawn(self._remove(token, container))

    async def sweep(self, engine: HostEngine) -> None:
        """Remove shell containers that no shell uses. They are left if the engine was stopped while
        it removed them.
        """
        filters = names.filters(self._driver.deployment, "shell")
        listed: list[dict[str, Any]] = await engine.call(
            "list shell containers", lambda c: c.containers(all=True, filters=filters)
        )
        # after the list: it has no container that was made since
        ours = {c.name for c in self._containers.values()}
        for summary in listed:
            if not ours & {name.lstrip("/") for name in summary.get("Names") or ()}:
                await remove(engine, summary["Id"], force=True)

    async def close(self) -> None:
        """Hang up all shells."""
        self._table.close()
        ends = [asyncio.ensure_future(t.ended.wait()) for t in self._terminals]
        if ends:
            await asyncio.wait(ends, timeout=CLOSE_SECS)
        for token, container in list(self._containers.items()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._remove(token, container), CLOSE_SECS)
        for work in [*ends, *self._work]:
            work.cancel()

    # ---- inside

    async def _start(self, op: OpenShell, session: ShellSession) -> ExecTerminal:
        place, token = self._opening[op.shell_id], op.token
        engine = self._driver.engines.get(place.host)
        if engine is None or not await engine.is_up():
            raise Refusal("agentUnavailable", f"host {place.host} cannot be reached now")
        files = ContainerLedger(str(self._driver.root / "agent" / str(place)))
        try:
            container, release = await self._container(place, op, engine, files)
            command, pipes = _command(op, files.evidence(token)), _is_ssh(op)
            try:
                terminal = await ExecTerminal.start(
                    engine, container, command, {"TERM": op.term}, session, tty=not pipes
                )
            except BaseException:
                release()
                raise
        except EngineError as e:
            raise Refusal("agentUnavailable", e.sentence) from None
        if not pipes:
            terminal.resize(op.rows, op.cols)
        self._terminals[terminal] = token
        self._spawn(self._follow(terminal, release))
        what = "shell" if isinstance(op.program, msgspec.UnsetType) else op.program.name
        self._log.bound(**execution_log_ids(token))("{} {} starts", what, op.shell_id[:4])
        return terminal

    async def _container(
        self, place: AgentKey, op: OpenShell, engine: HostEngine, files: ContainerLedger
    ) -> tuple[str, Callable[[], None]]:
        """Return the container to enter, and what to call when its shell has ended. Raises Refusal,
        EngineError.
        """
        id_ = await asyncio.to_thread(files.container, op.token)
        known = None if id_ is None else await inspect(engine, id_)
        if id_ is None or known is None:
            raise Refusal("notHere", _MISSING)
        if known["State"].get("Running"):
            return id_, lambda: None
        if not isinstance(op.program, msgspec.UnsetType) and not _is_ssh(op):
            raise Refusal("notReady", "the task's container does not run; a running one is needed")
        if await asyncio.to_thread(files.settled_until, op.token) is None:
            raise Refusal("agentUnavailable", "the task is about to start or to end; try again")
        return await self._shell_container(place, op, engine, known)

    async def _shell_container(
        self, place: AgentKey, op: OpenShell, engine: HostEngine, dead: dict[str, Any]
    ) -> tuple[str, Callable[[], None]]:
        token, deployment = op.token, self._driver.deployment
        container = self._containers.get(token)
        if container is None:
            name = names.shell(place.uid, token, op.shell_id, deployment)
            container = self._containers[token] = _ShellContainer(name, engine)
        container.shells += 1

        def release() -> None:
            container.shells -= 1
            if container.shells == 0:
                self._forget(token, container)  # now: the next shell makes its own
                self._spawn(self._remove(token, container))

        try:
            async with container.lock:
                if container.id is None:
                    labels = names.shell_labels(deployment, place, token, time.time())
                    await self._create(container, dead, labels)
        except BaseException:
            release()
            raise
        assert container.id is not None
        return container.id, release

    async def _create(
        self, container: _ShellContainer, dead: dict[str, Any], labels: dict[str, str]
    ) -> None:
        engine, pool = container.engine, self._driver.pool
        network = dead["HostConfig"]["NetworkMode"]
        found = network not in ("none", "host", pool.network) and await engine.call(
            f"look for network {network}", lambda c: c.networks(filters={"name": [f"^{network}$"]})
        )
        creation = specifications.shell_container(
            pool, dead, name=container.name, labels=labels, network=network if found else None
        )

        def work(client: Any) -> tuple[str, Attachment]:
            id_ = client.create_container_from_config(creation.config, creation.name)["Id"]
            # before the start, so that process 1 has an input that ends with this process
            keeper = Attachment(client.attach_socket(id_, params={"stdin": 1, "stream": 1}))
            try:
                client.start(id_)
            except BaseException:
                keeper.close()
                raise
            return id_, keeper

        container.id, container.keeper = await engine.call(f"make container {creation.name}", work)

    def _forget(self, token: Token, container: _ShellContainer) -> None:
        if self._containers.get(token) is container:
            del self._containers[token]

    async def _remove(self, token: Token, container: _ShellContainer) -> None:
        self._forget(token, container)
        if container.keeper is not None:
            container.keeper.close()
        with contextlib.suppress(EngineError):  # a sweep removes it later
            await remove(container.engine, container.id or container.name, force=True)

    async def _follow(self, terminal: ExecTerminal, release: Callable[[], None]) -> None:
        await terminal.ended.wait()
        self._terminals.pop(terminal, None)
        release()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


def _is_ssh(op: OpenShell) -> bool:
    return not isinstance(op.program, msgspec.UnsetType) and op.program.name == "ssh"


def _command(op: OpenShell, evidence: str) -> list[str]:
    if isinstance(op.program, msgspec.UnsetType):
        return ["/bin/sh", f"{evidence}/{SCRIPT}", "--shell"]
    if op.program.name == "ssh":
        return ssh_command(evidence)
    return command_line(op.program, op.token, here=False)
