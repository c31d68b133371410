"""Ports leased to simulations: stable per simulation, recorded, released, and never
shared or already in use.
"""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from jobscribe.protocol.api.requests import GlobalResources
from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.runs import port_leases as leases_module
from jobscribe.supervisor.runs.port_leases import PER_USER, Leases

pytestmark = pytest.mark.process

UID, OTHER = "user0001", "user0002"


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ports() -> list[int]:
    """Return ports of this machine that are free now."""
    sockets = [socket.socket() for _ in range(12)]
    for s in sockets:
        s.bind(("", 0))
    found = sorted(s.getsockname()[1] for s in sockets)
    for s in sockets:
        s.close()
    return found


class Book:
    """Leases in a file, and requests for them."""

    def __init__(self, path: Path, ports: list[int]) -> None:
        self.path, self.ports, self.clock = path / "leases.json", ports, Clock()
        self.open()

    def open(self) -> None:
        """Load the leases, as a starting supervisor does."""
        self.leases = Leases(self.path, self.clock, lease_secs=100.0, ports=self.ports)

    async def ask(
        self,
        sid: str = "sim00001",
        n: int = 1,
        *,
        uid: str = UID,
        release: bool = False,
        type_: str = "heat",
    ) -> list[int]:
        said = await self.leases.ask(
            GlobalResources(
                uid=uid, simulation_type=type_, simulation_id=sid, ports=n, release=release
            )
        )
        assert said["ip"] == "127.0.0.1"
        assert (said["until"] is None) == release
        got: Any = said["ports"]
        return list(got)


@pytest.fixture
def book(tmp_path: Path, ports: list[int]) -> Book:
    return Book(tmp_path, ports)


async def test_a_simulation_has_the_same_ports_each_time(book: Book) -> None:
    first = await book.ask(n=3)
    assert len(set(first)) == 3 and set(first) <= set(book.ports)
    assert await book.ask(n=3) == first
    assert await book.ask(n=2) == first[:2]
    assert (await book.ask(n=5))[:3] == first


async def test_no_two_simulations_have_the_same_port(book: Book) -> None:
    asked = [
        ("sim00001", UID, "heat"),
        ("sim00002", UID, "heat"),
        ("sim00001", OTHER, "heat"),
        ("sim00001", UID, "myapp"),
    ]
    got = [p for sid, uid, type_ in asked for p in await book.ask(sid, 3, uid=uid, type_=type_)]
    assert len(got) == len(set(got)) == 12
    with pytest.raises(Refusal, match="fewer than 1 ports are free") as e:
        await book.ask("sim00009")
    assert e.value.code == "tooManyRequests"


async def test_they_outlive_the_supervisor(book: Book) -> None:
    first = await book.ask(n=2)
    book.open()
    assert not set(await book.ask("sim00002", 3)) & set(first)
    assert await book.ask(n=2) == first


async def test_what_is_given_back_is_free_and_giving_back_again_is_harmless(book: Book) -> None:
    await book.ask(n=12)
    assert await book.ask(release=True) == []
    assert await book.ask(release=True) == []
    book.open()
    assert len(await book.ask("sim00002", 12)) == 12


async def test_who_does_not_ask_again_in_time_loses_them(book: Book) -> None:
    await book.ask(n=12)
    book.clock.now += 99
    assert len(await book.ask(n=12)) == 12, "asking again renews the lease"
    book.clock.now += 99
    with pytest.raises(Refusal):
        await book.ask("sim00002")
    book.clock.now += 2
    assert len(await book.ask("sim00002", 12)) == 12


async def test_a_port_that_somebody_uses_is_not_leased_but_its_holder_may_use_it(
    book: Book,
) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", book.ports[0]))
        s.listen()
        got = await book.ask(n=11)
        assert book.ports[0] not in got
    with socket.socket() as s:
        s.bind(("127.0.0.1", got[0]))
        s.listen()
        assert await book.ask(n=11) == got


async def test_a_user_cannot_take_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "_usable", lambda port: True)
    book = Book(tmp_path, list(range(1, 200)))
    for n in range(PER_USER // 16):
        await book.ask(f"sim{n:05d}", 16)
    with pytest.raises(Refusal, match=f"{PER_USER} ports at once") as e:
        await book.ask("sim00099")
    assert e.value.code == "tooManyRequests"
    assert len(await book.ask("sim00099", 16, uid=OTHER)) == 16


async def test_a_disk_that_refuses_changes_nothing(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, before = await book.ask(n=2), book.path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(leases_module, "write_atomically", full)
        for ask in (book.ask("sim00002"), book.ask(release=True)):
            with pytest.raises(Refusal, match="No space left") as e:
                await ask
            assert e.value.code == "storageUnavailable"
    assert book.path.read_bytes() == before
    assert await book.ask(n=2) == first


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'[{"uid": 1}]', b"\xff"])
def test_a_damaged_file_is_not_taken_for_an_empty_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "leases.json").write_bytes(content)
    with pytest.raises(Refusal, match=r"leases.json is damaged") as e:
        Book(tmp_path, [1])
    assert e.value.code == "badConfig"


async def test_the_file_is_for_its_owner_only(book: Book) -> None:
    await book.ask()
    assert book.path.stat().st_mode & 0o777 == 0o600
    (lease,) = json.loads(book.path.read_text())
    assert set(lease) == {"uid", "simulationType", "simulationId", "ports", "until"}
