"""Shells in containers that do not behave: no engine is needed."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.drivers.docker.host import exec_terminal
from jobscribe.drivers.docker.host.exec_terminal import HEAD_BYTES, ExecTerminal
from jobscribe.drivers.docker.tasks.shells import ContainerShells, _ShellContainer
from jobscribe.protocol.ids import Token
from jobscribe.runtime.shells.session import OUTPUT_LIMIT, ShellSession

TOKEN = Token("ann00001-sim00001-command", 1, 1, "main", 0)


class Connection:
    """The driver's end of a connection to a container. far: the end of the container."""

    early = b""

    def __init__(self) -> None:
        self.connection, self.far = socket.socketpair()
        self.connection.setblocking(False)
        self.far.setblocking(False)

    def send(self, data: bytes) -> int:
        return self.connection.send(data)

    def close(self) -> None:
        self.connection.close()


class Container:
    """A container in which a shell was started. obeys: its shell ends when it is hung up."""

    def __init__(self, *, obeys: bool = True) -> None:
        self.shell, self.guard, self.obeys = Connection(), Connection(), obeys
        self.session = ShellSession(TOKEN)
        self.terminal = ExecTerminal(self, "c", "e", self.shell, self.guard, self.session)  # type: ignore[arg-type]
        self.session.attach(self.terminal)

    async def call(self, what: str, work: Any) -> Any:
        if what == "hang up a shell" and self.obeys:
            self.shell.far.shutdown(socket.SHUT_RDWR)
        return {"Running": not self.obeys, "ExitCode": 0}

    async def says(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.shell.far, data)

    async def ends(self) -> None:
        async with asyncio.timeout(30):
            await self.terminal.ended.wait()
        self.shell.far.close()
        self.guard.far.close()


async def test_a_shell_whose_output_nobody_reads_ends_when_it_is_hung_up() -> None:
    container = Container()
    says = asyncio.ensure_future(container.says(b"7\n" + bytes(4 * OUTPUT_LIMIT)))
    async with asyncio.timeout(30):
        while not container.session._paused:
            await asyncio.sleep(0.01)
    container.session.hang_up()
    await container.ends()
    assert container.session.exit is not None and container.session.exit.code == 0
    assert len(container.session._output) < 2 * OUTPUT_LIMIT
    await asyncio.gather(says, return_exceptions=True)


async def test_a_shell_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIVE_UP_SECS", "_EXIT_TRIES", "_AGAIN_SECS"):
        monkeypatch.setattr(exec_terminal, name, 0)
    container = Container(obeys=False)
    container.session.hang_up()
    await container.ends()
    assert container.session.exit is not None and "lost" in container.session.exit.detail


async def test_input_waits_until_the_session_of_the_shell_is_known() -> None:
    """The terminal would echo it before the first line, and the shell could not be hung up."""
    container, loop = Container(), asyncio.get_running_loop()
    container.terminal.write(b"typed early\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(loop.sock_recv(container.shell.far, 100), 0.2)
    await container.says(b"7\n")
    async with asyncio.timeout(30):
        assert await loop.sock_recv(container.shell.far, 100) == b"typed early\n"
    container.session.hang_up()
    await container.ends()


async def test_output_without_a_first_line_is_limited_like_all_output() -> None:
    container = Container()
    await container.says(b"1" * HEAD_BYTES)
    async with asyncio.timeout(30):
        while len(container.session._output) < HEAD_BYTES:
            await asyncio.sleep(0.01)
    assert container.terminal._head is None
    container.shell.far.shutdown(socket.SHUT_RDWR)
    await container.ends()


async def test_a_sweep_leaves_a_shell_container_that_was_made_meanwhile() -> None:
    shells = ContainerShells(SimpleNamespace(deployment="d"), None)  # type: ignore[arg-type]
    calls: list[str] = []

    class Engine:
        async def call(self, what: str, work: Any) -> Any:
            calls.append(what)
            shells._containers[TOKEN] = _ShellContainer("new", self)  # type: ignore[arg-type]
            return [{"Id": "1", "Names": ["/new"]}, {"Id": "2", "Names": ["/old"]}]

    await shells.sweep(Engine())  # type: ignore[arg-type]
    assert calls == ["list shell containers", "remove container 2"]


async def test_a_new_shell_does_not_enter_a_container_that_is_being_removed() -> None:
    class Engine:
        async def call(self, what: str, work: Any) -> Any:
            return None

    shells = ContainerShells(SimpleNamespace(deployment="d"), None)  # type: ignore[arg-type]
    shells._create = _made  # type: ignore[method-assign]
    made = [_ShellContainer(name, Engine()) for name in ("first", "second")]  # type: ignore[arg-type]
    place, op = SimpleNamespace(uid="ann00001"), SimpleNamespace(token=TOKEN, shell_id="s" * 32)
    shells._containers[TOKEN] = made[0]
    made[0].id = "first"
    args: Any = (place, op, Engine(), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{ContainerShells.__module__}.names.shell_labels", lambda *_: {})
        _, release = await shells._shell_container(*args)
        release()
        entered, _ = await shells._shell_container(*args)
    assert entered != "first"
    await asyncio.gather(*shells._work)


async def _made(container: _ShellContainer, dead: Any, labels: Any) -> None:
    container.id = "second"
