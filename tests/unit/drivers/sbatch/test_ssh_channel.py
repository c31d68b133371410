"""A user's ssh connection: exact commands, bounded output, a forwarded socket, and detection of a
lost connection.
"""

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from ssh_server import Site, enter, new_log, served

from jobscribe.drivers.sbatch.login_node.channel import OUT_BYTES, ChannelError
from jobscribe.drivers.sbatch.ssh.credentials import Credentials
from jobscribe.drivers.sbatch.ssh.sign_in import connect
from jobscribe.drivers.sbatch.ssh.ssh_channel import SshChannel
from jobscribe.protocol.errors import Refusal

pytestmark = pytest.mark.process


@contextlib.asynccontextmanager
async def channel_to(site: Site) -> AsyncIterator[SshChannel]:
    site.password = "hunter2"
    async with served(site):
        channel = await enter(site.cluster(), password="hunter2")
        try:
            yield channel
        finally:
            await channel.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


NASTY = ["a b", "$HOME", "`id`", "'", '"', "\\", "*", "; exit 3", "-n", "", "ä\u2028", "!x", "#"]


async def test_a_command_gets_its_arguments_as_they_are_and_its_input() -> None:
    async with channel_to(Site()) as channel:
        ran = await channel.run(["printf", "%s\\0", *NASTY])
        assert ran.out.decode().split("\0")[:-1] == NASTY
        data = os.urandom(300_000)
        assert (await channel.run(["cat"], data)) == (0, data, b"")
        assert await channel.run(["sh", "-c", "echo out; echo err >&2; exit 7"]) == (
            7,
            b"out\n",
            b"err\n",
        )
        assert (await channel.run(["sh", "-c", "kill -TERM $$"])).code in (-15, 128 + 15)
        # unread stdin does not block the command
        assert (await channel.run(["true"], data)).code == 0
        assert (await channel.run(["no-such-command"])).code == 127


async def test_noise_of_a_profile_is_kept_as_it_is() -> None:
    async with channel_to(
        Site(
            output=lambda c: (
                0,
                b"\xff\x00 Welcome\n" + (b"" if c == "true" else b'{"a":1}\n'),
                b"mail\n",
            )
        )
    ) as channel:
        assert await channel.run(["x"]) == (0, b'\xff\x00 Welcome\n{"a":1}\n', b"mail\n")


async def test_of_a_flood_the_beginning_is_kept() -> None:
    async with channel_to(Site()) as channel:
        ran = await channel.run(["sh", "-c", f"head -c {OUT_BYTES + 100_000} /dev/zero; exit 4"])
        assert ran.code == 4 and len(ran.out) == OUT_BYTES


async def test_no_more_than_a_server_allows_are_executed_at_once() -> None:
    """sshd allows ten sessions per connection by default."""
    most, site = 0, Site()
    async with channel_to(site) as channel:

        async def one(n: int) -> bytes:
            return (await channel.run(["sh", "-c", f"sleep 0.05; echo {n}"])).out

        going = asyncio.gather(*(one(n) for n in range(30)))
        while not going.done():
            most = max(most, sum(len(c._channels) for c in site.connections))
            await asyncio.sleep(0.005)
        assert await going == [f"{n}\n".encode() for n in range(30)]
    assert 2 <= most <= 10


async def test_a_command_that_takes_too_long_is_given_up_and_others_go_on() -> None:
    async with channel_to(Site()) as channel:
        with pytest.raises(ChannelError) as e:
            await channel.run(["sleep", "60"], secs=0.3)
        assert e.value.sentence == f"sleep on {channel.host} did not end within 0.3 s"
        assert (await channel.run(["echo", "on"])).out == b"on\n" and not channel.closed


async def test_an_end_from_outside_is_told_and_nothing_is_pretended() -> None:
    site = Site()
    async with channel_to(site) as channel:
        told: list[str] = []
        channel.when_closed(lambda: told.append("first"))
        running = asyncio.ensure_future(channel.run(["sleep", "60"]))
        await asyncio.sleep(0.2)
        site.connections[0].abort()
        with pytest.raises(ChannelError, match="ended while sleep was running there"):
            await asyncio.wait_for(running, 10)
        assert channel.closed
        with pytest.raises(ChannelError, match=r"has ended; sign in again"):
            await channel.run(["true"])
        channel.when_closed(lambda: told.append("late"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert told == ["first", "late"]
        await channel.close()
        await channel.close()
        assert told == ["first", "late"]


async def test_a_connection_over_which_nothing_comes_any_more_is_noticed() -> None:
    """The connection is half open: no packet reports that the host is gone."""
    async with served(Site(password="hunter2")) as site:
        frozen = asyncio.Event()

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    if frozen.is_set():
                        continue
                    writer.write(data)
            writer.close()

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", site.port)
            await asyncio.gather(carry(reader, back), carry(there, writer))

        between = await asyncio.start_server(accepted, "127.0.0.1", 0)
        cluster = site.cluster(
            login=(
                type(site.login())(
                    host="127.0.0.1",
                    port=between.sockets[0].getsockname()[1],
                    keys=site.login().keys,
                ),
            )
        )
        channel = await connect(
            cluster, Credentials(user="ann", password="hunter2"), new_log()[0], keepalive_secs=0.2
        )
        ended = asyncio.Event()
        channel.when_closed(ended.set)
        await asyncio.sleep(1.2)
        assert not ended.is_set()  # a host that answers keeps its connection
        frozen.set()
        await asyncio.wait_for(ended.wait(), 10)
        assert channel.closed
        between.close()


async def test_a_socket_there_leads_to_an_address_here(folder: Path) -> None:
    async def listener(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"supervisor: " + await reader.readline())
        writer.close()

    here = await asyncio.start_server(listener, "127.0.0.1", 0)
    path = folder / "room" / "js.sock"
    async with channel_to(Site()) as channel:
        for _ in range(2):  # the second forward replaces the first
            await channel.forward(str(path), "127.0.0.1", here.sockets[0].getsockname()[1])
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"hello\n")
            assert await asyncio.wait_for(reader.read(), 10) == b"supervisor: hello\n"
            writer.close()
    assert path.is_socket() or not path.exists()
    async with channel_to(Site()) as channel:  # a socket left by an earlier connection is replaced
        await channel.forward(str(path), "127.0.0.1", here.sockets[0].getsockname()[1])
    here.close()


async def test_sockets_that_cannot_be_made_say_why(folder: Path) -> None:
    async with channel_to(Site()) as channel:
        with pytest.raises(ChannelError, match="too long for a unix socket"):
            await channel.forward(f"{folder}/{'x' * 120}", "127.0.0.1", 1)
        (folder / "elsewhere").mkdir()
        (folder / "link").symlink_to(folder / "elsewhere")
        with pytest.raises(ChannelError, match="not a folder of your own"):
            await channel.forward(f"{folder}/link/s", "127.0.0.1", 1)
        (folder / "own").mkdir()
        (folder / "own" / "file").write_text("precious")
        with pytest.raises(ChannelError, match="exists and is not a socket"):
            await channel.forward(f"{folder}/own/file", "127.0.0.1", 1)
        assert (folder / "own" / "file").read_text() == "precious"
    async with channel_to(Site(options={"forward": False})) as channel:
        with pytest.raises(ChannelError, match="AllowStreamLocalForwarding"):
            await channel.forward(f"{folder}/s/s", "127.0.0.1", 1)


async def test_nothing_is_left_open_after_a_refusal() -> None:
    before = asyncio.all_tasks()
    site = Site(password="x")
    async with served(site):
        for _ in range(3):
            with pytest.raises(Refusal):
                await enter(site.cluster(), password="y")
        until = asyncio.get_running_loop().time() + 10
        while not all(c.is_closed() for c in site.connections):
            assert asyncio.get_running_loop().time() < until
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert asyncio.all_tasks() == before
