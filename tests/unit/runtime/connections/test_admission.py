"""Which connections stay open when there are too many: limits per unix user or address, and the
order of eviction.
"""

import pytest

from jobscribe.runtime.connections import admission as module
from jobscribe.runtime.connections.admission import (
    Admission,
    Limits,
    Peer,
    TrackedConnection,
    is_scarce,
)

ALICE, BOB, ROOT = Peer("unix user 1001"), Peer("unix user 1002"), Peer("unix user 0", own=True)
PROXY = Peer("unix user 33", trusted=True)


class Door:
    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []
        self.all = Admission(
            Limits(10, 30, 300, per_peer=3),
            1000.0,
            lambda why, sentence: self.ended.append((why, sentence)),
        )
        self.closed: set[int] = set()
        self.time = 1000.0
        self._number = 0

    def enter(self, peer: Peer, *, scarce: bool = False) -> tuple[int, TrackedConnection | None]:
        self._number += 1
        number = self._number
        return number, self.all.enter(
            peer, lambda: self.closed.add(number), lambda: number in self.closed, scarce=scarce
        )

    def known(self, peer: Peer, *, idle: bool = False) -> TrackedConnection:
        entry = self.enter(peer)[1]
        assert entry is not None
        entry.answering()
        entry.authenticated()
        if idle:
            entry.waiting()
        return entry

    def after(self, secs: float) -> None:
        """Advance the clock by this many seconds, with sweeps."""
        until = self.time + secs
        while self.time < until:
            self.time += module.SWEEP_SECS
            self.all.sweep(self.time)

    def reasons(self) -> list[str]:
        return [why for why, _ in self.ended]


@pytest.fixture
def door() -> Door:
    return Door()


def test_a_peer_that_has_its_share_loses_its_own_oldest(door: Door) -> None:
    for _ in range(5):
        assert door.enter(ALICE)[1] is not None
    door.enter(BOB)
    assert door.closed == {1, 2}
    assert door.ended[0] == (
        "perPeer",
        "a connection of unix user 1001 was closed: the peer had 3 unauthenticated connections",
    )
    assert door.all.sizes() == {"connections": 4, "strangers": 4, "peers": 2}


@pytest.mark.parametrize("peer", [ROOT, PROXY])
def test_the_owner_and_the_sites_proxy_have_no_share(door: Door, peer: Peer) -> None:
    for _ in range(50):
        door.enter(peer)
    assert not door.closed


def test_who_is_authenticated_does_not_count(door: Door) -> None:
    for _ in range(1000):
        door.known(ALICE)
    door.enter(ALICE)
    assert not door.closed and door.all.sizes()["strangers"] == 1


def test_without_descriptors_the_greediest_gives_way_and_never_what_is_at_work(door: Door) -> None:
    at_work, owners = door.known(ALICE), [door.enter(ROOT)[0] for _ in range(9)]
    bobs = [door.enter(BOB)[0] for _ in range(2)]
    assert door.enter(ALICE, scarce=True)[1] is not None
    assert door.closed == {bobs[0]}
    for _ in range(2 + 9):
        assert door.enter(ROOT, scarce=True)[1] is not None
    assert set(owners) <= door.closed and not at_work.closed()


def test_without_descriptors_an_idle_one_gives_way_and_then_only_the_owner_comes_in(
    door: Door,
) -> None:
    door.known(ALICE)
    idle = door.known(BOB, idle=True)
    assert door.enter(ALICE, scarce=True)[1] is not None
    assert idle.closed()
    door.all.make_room()
    assert door.enter(BOB, scarce=True)[1] is None
    assert door.enter(ROOT, scarce=True)[1] is not None
    assert door.reasons() == ["descriptors"] * 3


def test_strangers_of_many_addresses_have_a_limit_together(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNAUTHENTICATED", 4)
    for n in range(6):
        door.enter(Peer(f"192.0.2.{n}"))
    assert len(door.closed) == 2 and set(door.reasons()) == {"strangers"}


def test_a_request_that_arrives_while_the_process_is_stopped_is_read_before_its_deadline() -> None:
    closed: list[str] = []
    admission = Admission(Limits(1, 30, 300), 0.0, lambda why, _: closed.append(why))
    assert admission.enter(ALICE, lambda: None, lambda: False, scarce=False) is not None
    admission.sweep(60.0)
    assert not closed, "what has arrived meanwhile is read now"
    admission.sweep(61.0)
    assert closed == ["headers"]


def test_every_state_has_its_deadline(door: Door) -> None:
    silent, idle, busy = door.enter(ALICE)[1], door.known(ALICE, idle=True), door.known(ALICE)
    sends, stopped = door.known(BOB), door.known(BOB)
    assert silent is not None
    stopped.reading()
    for _ in range(20):
        sends.reading()
        door.after(5)
    assert (silent.closed(), stopped.closed(), sends.closed(), idle.closed()) == (
        True,
        True,
        False,
        False,
    )
    assert door.reasons() == ["headers", "body"]
    sends.answering()
    door.after(1000)
    assert (sends.closed(), idle.closed(), busy.closed()) == (False, True, False)


def test_a_strangers_body_has_one_deadline(door: Door) -> None:
    stranger = door.enter(ALICE)[1]
    assert stranger is not None
    stranger.answering()
    for _ in range(3):
        stranger.reading()
        door.after(5)
    assert stranger.closed()


def test_a_process_that_was_stopped_blames_nobody(door: Door) -> None:
    door.enter(ALICE)
    door.time += 3600
    door.after(5)
    assert not door.closed
    door.after(6)
    assert door.closed


def test_descriptors_stay_scarce_while_a_stranger_has_a_spare_one(door: Door) -> None:
    for peer in (PROXY, PROXY, PROXY):
        door.enter(peer)
    spare, entry = door.enter(PROXY, scarce=True)
    assert door.closed == {1} and entry is not None
    door.enter(PROXY)  # uses the descriptor of the connection that was closed
    assert door.closed == {1, 2}
    entry.authenticated()
    door.enter(PROXY)
    assert door.closed == {1, 2}, f"{spare} is no stranger's any more"


@pytest.mark.parametrize(
    ("descriptor", "limit", "scarce"),
    [
        (63, 128, False),
        (64, 128, True),
        (895, 1024, False),
        (896, 1024, True),
        (65_279, 65_536, False),
        (65_280, 65_536, True),
    ],
)
def test_some_descriptors_stay_spare(descriptor: int, limit: int, scarce: bool) -> None:
    assert is_scarce(descriptor, limit) is scarce
