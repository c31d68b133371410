"""The relay between agents without network access and the supervisor: data in both directions, end
of stream, limits per unix user, and shutdown.

A real relay process connects to a listener of the test. Connections of another unix user come from
a process of that user.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobscribe.agent import relay
from jobscribe.agent.relay import Settings

pytestmark = pytest.mark.process

ME, SOMEBODY_ELSE = os.getuid(), 54321
#: Most tests allow this number of simultaneous connections per unix user.
SHARE = 8
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Running:
    """A relay of this test, and the listener that it connects to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process, self.port, self.said = folder, None, 0, folder / "said"
        self.path = str(folder / relay.SOCKET)
        self.listener: asyncio.Server | None = None
        self.writers: list[asyncio.StreamWriter] = []

    async def listen(self, serve: Serve, port: int = 0) -> None:
        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writers.append(writer)
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await serve(reader, writer)

        self.listener = await asyncio.start_server(served, "127.0.0.1", port)
        self.port = self.listener.sockets[0].getsockname()[1]

    async def deaf(self) -> None:
        """Close the listener behind the relay."""
        assert self.listener is not None
        self.listener.close()
        for writer in self.writers:
            writer.transport.abort()

    def begin(self, through: tuple[str, ...], said: dict[str, Any]) -> None:
        with self.said.open("ab") as out:
            self.process = subprocess.Popen(
                [*through, sys.executable, "-P", "-m", "jobscribe.agent.relay", json.dumps(said)],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )

    async def start(self, through: tuple[str, ...] = (), **more: Any) -> None:
        said = {
            "url": "ws://supervisor/agent",
            "connect": f"127.0.0.1:{self.port}",
            "ca": None,
            "folder": str(self.folder),
            "connectionsOfUser": SHARE,
            "pingSecs": 20.0,
            "pingTimeoutSecs": 10.0,
            **more,
        }
        self.begin(through, said)
        await self.until(
            lambda: f" {self.process.pid} " in self.words() and "relay from" in self.words(),
            "the relay does not begin",
        )

    async def until(self, true: Callable[[], bool], otherwise: str, secs: float = 10.0) -> None:
        deadline = time.monotonic() + secs
        while not true():
            assert time.monotonic() < deadline, f"{otherwise}: {self.words()}"
            await asyncio.sleep(0.01)

    def words(self) -> str:
        return self.said.read_text() if self.said.exists() else ""

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self) -> int:
        """Return the relay's resident anonymous memory in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(self.path), 10)
        self.writers.append(writer)
        return reader, writer

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
async def there() -> AsyncIterator[Running]:
    folder = Path(
        tempfile.mkdtemp(prefix="jobscribe-relay-")
    )  # other unix users cannot read pytest's folders
    folder.chmod(0o755)
    running = Running(folder)
    yield running
    if running.process is not None and running.process.poll() is None:
        running.process.kill()
        running.process.wait()
    if running.listener is not None:
        await running.deaf()
    shutil.rmtree(folder)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo all data, then the end of stream."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _answer(there: Running, text: bytes = b"hello") -> bool:
    """Return whether a new connection is served."""
    reader, writer = await there.open()
    try:
        writer.write(text)
        return await asyncio.wait_for(reader.readexactly(len(text)), 10) == text
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    finally:
        writer.transport.abort()


async def test_bytes_go_both_ways_in_order_and_each_half_ends_for_itself(there: Running) -> None:
    await there.listen(_echo)
    await there.start()
    reader, writer = await there.open()
    sent = os.urandom(3_000_000)

    async def send() -> None:
        writer.write(sent)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    assert await asyncio.wait_for(reader.read(-1), 20) == sent
    await sending
    writer.close()


async def test_what_is_said_while_the_supervisor_is_dialed_is_not_lost(there: Running) -> None:
    await there.listen(_echo)
    await there.start(
        through=_with(
            "d = relay._Connection._dial", "relay._Connection._dial = lambda self: _late(d, self)"
        )
    )
    assert await _answer(there, b"said at once")


async def test_what_agents_read_is_theirs_to_read_and_whole(there: Running) -> None:
    await there.listen(_echo)
    before = os.umask(0o077)
    try:
        await there.start(ca="-----BEGIN CERTIFICATE-----\n")
    finally:
        os.umask(before)
    modes = {
        n: stat.S_IMODE((there.folder / n).stat().st_mode)
        for n in (relay.ADDRESS, relay.CA, relay.SOCKET)
    }
    assert modes == {relay.ADDRESS: 0o644, relay.CA: 0o644, relay.SOCKET: 0o666}
    assert json.loads((there.folder / relay.ADDRESS).read_text()) == {
        "agentsUrl": "ws://supervisor/agent",
        "agentsCa": str(there.folder / relay.CA),
        "link": there.path,
        "pingSecs": 20.0,
        "pingTimeoutSecs": 10.0,
    }
    assert (there.folder / relay.CA).read_text() == "-----BEGIN CERTIFICATE-----\n"
    assert sorted(p.name for p in there.folder.iterdir()) == sorted(
        [relay.ADDRESS, relay.CA, relay.SOCKET, "said"]
    )


async def test_who_does_not_read_is_waited_for_and_costs_no_more_than_its_buffers(
    there: Running,
) -> None:
    """Offer 64 MB over 4 connections to an agent that does not read. When the agent reads, it gets
    everything.
    """
    size, given = 16_000_000, []

    async def pour(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(size // 100_000):
            writer.write(b"x" * 100_000)
            await writer.drain()
            given.append(100_000)
        writer.write_eof()

    await there.listen(pour)
    await there.start()
    before = there.memory()
    stalled = []
    for _ in range(4):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(there.path)
        sock.setblocking(False)
        stalled.append(sock)
    poured = -1
    while poured != len(given):  # until the buffers are full
        poured = len(given)
        await asyncio.sleep(0.5)
    assert 0 < sum(given) < 4 * size, "nothing is pushed back"
    assert there.memory() - before < 4 * 1024 * 1024
    loop = asyncio.get_running_loop()
    for sock in stalled:
        got = 0
        while data := await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 10):
            got += len(data)
        assert got == size
        sock.close()


async def test_who_says_nothing_that_is_answered_is_ended(there: Running) -> None:
    """A slow loris: data arrives slowly and never completes a request."""

    ended: list[float] = []

    async def mute(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        try:
            await reader.read(-1)
        finally:
            ended.append(time.monotonic())

    await there.listen(mute)
    await there.start(through=_with(FIRST_BYTE_SECS=0.7))
    reader, writer = await there.open()
    began = time.monotonic()

    async def dribble() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)

    dribbling = asyncio.create_task(dribble())
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(1), 10) == b""
    assert time.monotonic() - began >= 0.6
    dribbling.cancel()
    await there.until(lambda: "did not answer unix user" in there.words(), "it is not said")
    await there.until(lambda: bool(ended), "the far side stays")


async def test_an_answered_connection_stays_though_it_is_silent(there: Running) -> None:
    await there.listen(_echo)
    await there.start(through=_with(FIRST_BYTE_SECS=0.3, HALF_SECS=0.3))
    reader, writer = await there.open()
    writer.write(b"a")
    assert await asyncio.wait_for(reader.readexactly(1), 10) == b"a"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 1.0)
    writer.write(b"b")
    assert await asyncio.wait_for(reader.readexactly(1), 10) == b"b"
    writer.close()


async def test_a_half_that_ended_does_not_keep_the_other_for_ever(there: Running) -> None:
    async def talks_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"!")
        await reader.read(-1)
        await asyncio.sleep(60)

    await there.listen(talks_on)
    await there.start(through=_with(HALF_SECS=0.3))
    reader, writer = await there.open()
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(-1), 10) == b"!"


async def test_a_user_has_its_share_of_connections_and_nobody_elses(there: Running) -> None:
    """Another unix user opens 200 connections: those above the limit are closed at once. An agent
    is served meanwhile.
    """
    if ME != 0:
        pytest.skip("only root can be two unix users: run the tests as root")
    await there.listen(_echo)
    await there.start(connectionsOfUser=16)
    with _flooding(there.path, 200) as flood:
        assert (await asyncio.to_thread(flood.stdout.readline)).split() == [b"16", b"of", b"200"]
        for _ in range(5):
            assert await _answer(there)
        assert there.descriptors() < 16 + 2 * 16 + 10
    await there.until(
        lambda: (
            f"refused: unix user {SOMEBODY_ELSE} has 16 connections, its limit" in there.words()
        ),
        "it is not said",
    )
    assert there.words().count("refused") <= 2, "each refusal has a line of its own"


async def test_a_user_dials_so_often_and_no_more(there: Running) -> None:
    """For connections that end at once, the supervisor sees the allowed rate only. The user is
    accepted again later.
    """
    accepted: list[float] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(time.monotonic())
        await _echo(reader, writer)

    await there.listen(count)
    await there.start(through=_with(REFILL_SECS=2.0))
    began = time.monotonic()
    for _ in range(300):
        await _answer(there)
    took = time.monotonic() - began
    assert SHARE <= len(accepted) <= SHARE + took * SHARE / 2.0 + 1
    await there.until(
        lambda: "dials more often than 4 times a second" in there.words(), "it is not said"
    )
    deadline = time.monotonic() + 10
    while not await _answer(there):
        assert time.monotonic() < deadline, "it is never let in again"
        await asyncio.sleep(0.1)


async def test_all_together_have_a_bound_as_well(there: Running) -> None:
    await there.listen(_echo)
    await there.start(connections=3)
    held = []
    for _ in range(3):
        reader, writer = await there.open()
        writer.write(b"x")
        assert await asyncio.wait_for(reader.readexactly(1), 10) == b"x"
        held.append(writer)
    assert not await _answer(there)
    held.pop().close()
    deadline = time.monotonic() + 10
    while not await _answer(there):
        assert time.monotonic() < deadline, "what is given back is not given to the next"
        await asyncio.sleep(0.05)
    assert "refused: all 3 connections are in use" in there.words()
    for writer in held:
        writer.close()


async def test_few_descriptors_are_a_bound_of_connections_not_its_end(there: Running) -> None:
    await there.listen(_echo)
    await there.start(
        through=("/bin/sh", "-c", 'ulimit -n 40; exec "$@"', "sh"), connectionsOfUser=30
    )
    assert "at most 4 connections" in there.words()
    held = [await there.open() for _ in range(30)]
    await there.until(
        lambda: "refused: all 4 connections are in use" in there.words(),
        "more are carried than it has descriptors for",
    )
    for _, writer in held:
        writer.transport.abort()
    deadline = time.monotonic() + 15
    while not await _answer(there):
        assert time.monotonic() < deadline, there.words()
        await asyncio.sleep(0.1)


async def test_a_supervisor_that_is_away_is_said_once_and_found_again(there: Running) -> None:
    await there.listen(_echo)
    port = there.port
    await there.start(connectionsOfUser=100)
    await there.deaf()
    for _ in range(20):
        assert not await _answer(there)
    assert there.words().count("cannot be reached: Connection refused") == 1
    await there.listen(_echo, port)
    assert await _answer(there)


async def test_sigterm_ends_it_within_a_second_and_the_next_takes_its_place(there: Running) -> None:
    """The next relay starts before the first ends, and takes over all new connections."""
    await there.listen(_echo)
    await there.start()
    reader, writer = await there.open()
    writer.write(b"x")
    assert await asyncio.wait_for(reader.readexactly(1), 10) == b"x"
    first = there.process
    await there.start()
    assert await _answer(there)
    began = time.monotonic()
    first.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(first.wait, 10) == 0
    assert time.monotonic() - began < 5.0
    assert await asyncio.wait_for(reader.read(1), 10) == b""
    assert await _answer(there)
    assert there.end() == 0
    with pytest.raises(ConnectionRefusedError):
        await there.open()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ('{"url": "ws://x"}', "must be host:port"),
        ('{"url": "http://x", "connect": "a:1"}', "must be a websocket URL"),
        ('{"url": "ws://x", "connect": "a:1", "ca": 1}', "a PEM text"),
        ('{"url": "ws://x", "connect": "a:0"}', "must be host:port"),
        ('{"url": "ws://x", "connect": "a:1", "connections": 0}', "above 0"),
    ],
)
def test_wrong_settings_are_named(said: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(said)


def test_addresses_of_every_kind() -> None:
    for connect, host in (
        ("10.0.0.1:1", "10.0.0.1"),
        ("[::1]:1", "::1"),
        ("some.where:1", "some.where"),
    ):
        assert Settings(json.dumps({"url": "wss://x", "connect": connect})).host == host


def _with(*changes: str, **constants: float) -> tuple[str, ...]:
    """Return a command that runs the relay with changed constants or other changes. The caller
    appends the interpreter's arguments, `-P -m module JSON`.
    """
    code = "\n".join(
        [
            "import asyncio, sys",
            "from jobscribe.agent import relay",
            "async def _late(dial, carried):",
            "    await asyncio.sleep(0.3)",
            "    await dial(carried)",
            *(f"relay.{k} = {v}" for k, v in constants.items()),
            *changes,
            "sys.argv = ['relay', sys.argv[-1]]",
            "sys.exit(relay.main())",
        ]
    )
    return (sys.executable, "-P", "-c", code)


@contextlib.contextmanager
def _flooding(path: str, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """Open `count` connections as another user, send data on each, report the number of answered
    ones, and hold them.
    """
    code = (
        "import os, socket, sys\n"
        f"os.setgroups([]); os.setgid({SOMEBODY_ELSE}); os.setuid({SOMEBODY_ELSE})\n"
        "held, served = [], 0\n"
        "for _ in range(int(sys.argv[2])):\n"
        "    s = socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect(sys.argv[1]); held.append(s)\n"
        "    try:\n"
        "        s.send(b'x'); served += s.recv(1) == b'x'\n"
        "    except OSError: pass\n"
        "print(served, 'of', len(held), flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, path, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
