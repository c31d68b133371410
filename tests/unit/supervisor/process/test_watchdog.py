"""The supervisor sends watchdog pings only while its loop runs and the store's writer answers. A
refusal by the store counts as an answer.
"""

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.service.systemd import Notifier
from jobscribe.supervisor.process.watchdog import SIGNS, Watchdog

EVERY = 0.2


class Bench:
    """A watchdog over a real store with a blockable disk, and a listener in place of systemd."""

    def __init__(self, place: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(place / "notify"))
        self.socket.setblocking(False)
        self.disk = threading.Event()
        self.disk.set()
        self.failing = False
        (place / "db").mkdir()
        self.store = SqliteStore(
            place / "db" / "events.sqlite",
            asyncio.get_running_loop().call_soon_threadsafe,
            point=self._point,
        )
        notifier = Notifier(
            {"NOTIFY_SOCKET": str(place / "notify"), "WATCHDOG_USEC": str(int(EVERY * SIGNS * 1e6))}
        )
        self.watchdog = Watchdog(notifier, self.store, lambda: "all is well")

    def _point(self, name: str) -> None:
        self.disk.wait(30)
        if self.failing and name == "taken":
            raise OSError(28, "No space left on device")

    async def heard(self, secs: float) -> str:
        """Return one message; empty if none arrives within `secs`."""
        try:
            async with asyncio.timeout(secs):
                return (await asyncio.get_running_loop().sock_recv(self.socket, 4096)).decode()
        except TimeoutError:
            return ""

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.socket.recv(4096):
                continue

    async def signs(self, number: int) -> None:
        """Wait for this many watchdog pings."""
        while number:
            said = await self.heard(20)
            assert said, "no sign of life within 20 s"
            number -= said == "WATCHDOG=1"

    def close(self) -> None:
        self.disk.set()
        self.watchdog.close()
        self.store.close()
        self.socket.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory() as place:
        made = Bench(Path(place))
        yield made
        made.close()


async def test_it_says_so_again_and_again_with_how_things_stand(bench: Bench) -> None:
    bench.watchdog.start()
    await bench.signs(3)
    assert await bench.heard(20) == "STATUS=all is well"


async def test_nothing_is_left_in_the_log_by_asking(bench: Bench) -> None:
    bench.watchdog.start()
    await bench.signs(3)
    assert bench.store.head() == 0 and bench.store.read_all() == []


async def test_a_store_that_does_not_answer_ends_the_signs_until_it_does(bench: Bench) -> None:
    bench.watchdog.start()
    await bench.signs(1)
    bench.disk.clear()
    # a ping that was under way may still arrive
    await bench.heard(EVERY)
    await asyncio.sleep(2 * EVERY)
    bench.drain()
    assert await bench.heard(5 * EVERY) == ""
    bench.disk.set()
    await bench.signs(1)


async def test_a_full_disk_is_no_reason_to_be_ended(bench: Bench) -> None:
    bench.failing = True
    bench.watchdog.start()
    await bench.signs(2)


async def test_from_the_stop_on_nothing_else_is_said(bench: Bench) -> None:
    bench.watchdog.start()
    await bench.signs(1)
    bench.watchdog.close()
    await asyncio.sleep(0)
    said = []
    while message := await bench.heard(3 * EVERY):
        said.append(message.splitlines()[0])
    assert said[-1] == "STOPPING=1"
