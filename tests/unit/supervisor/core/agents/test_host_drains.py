"""Hosts, or the site, that get no new runs for a while: what runs goes on, new runs wait, and they
start when the drain is over.
"""

import pytest

from jobscribe.supervisor.core.interface.drains import SITE, Drain
from jobscribe.supervisor.core.interface.inputs import DrainsChanged, HostChanged
from jobscribe.supervisor.core.resources.gang_allocator import Node
from jobscribe.supervisor.core.resources.host_selection import HostCapacity
from jobscribe.supervisor.core.status.run_status import status

DRAIN = Drain(by="admin001", at=1_700_000_000.0, reason="new disks")


@pytest.fixture
def two(kit):
    """Two hosts with two slots each."""
    places = [HostCapacity(host=h, slots={"sequential": 2, "parallel": 1}) for h in "ab"]
    slots = {("local", kind): 8 for kind in ("sequential", "parallel", "container")}
    nodes = {
        "local": tuple(
            Node(
                host=h,
                address="127.0.0.1",
                cpu=4,
                memory_mb=4096,
                first_port=30_000,
                last_port=30_009,
            )
            for h in "ab"
        )
    }
    return kit.Stage(places={"local": places}, op_run_slots=slots, nodes=nodes)


def drain(stage, *hosts):
    stage.tell(DrainsChanged({(("local", h) if h else SITE): DRAIN for h in hosts}))


def told(stage, n=1):
    said = status(stage.world, stage.job(n), 1, stage.now())
    return said["queueState"], said["jobStatusMessage"]


def where(stage, kit, n):
    return [t.agent_key.host for t in stage.job(n).live_tasks()]


def test_a_drained_site_accepts_runs_that_start_when_the_drain_is_over(two, kit):
    two.submit(1)
    two.up(kit.key_of(host="a")).up(kit.key_of(host="b"))
    drain(two, "")
    for n in (2, 3):
        two.submit(n)
    assert where(two, kit, 1) == ["a"]  # what runs goes on
    assert [where(two, kit, n) for n in (2, 3)] == [[], []]
    state, sentence = told(two, 2)
    assert state == "drained"
    assert sentence == (
        "this site starts no new runs until an administrator ends the drain,"
        " since 2023-11-14 22:13:20 UTC: new disks"
    )
    two.end(two.token(1))
    assert where(two, kit, 2) == []
    two.restarted()
    two.up(kit.key_of(host="a")).up(kit.key_of(host="b"))
    assert told(two, 2)[0] == "drained" and where(two, kit, 3) == []
    drain(two)
    assert all(where(two, kit, n) for n in (2, 3))


def test_runs_leave_a_drained_host_for_another(two, kit):
    for n in range(1, 7):
        two.submit(n)
    two.up(kit.key_of(host="a")).up(kit.key_of(host="b"))
    assert [where(two, kit, n) for n in (5, 6)] == [[], []]
    drain(two, "a")
    two.submit(7)
    for n in range(1, 5):
        two.end(two.token(n))
    assert {h for n in (5, 6, 7) for h in where(two, kit, n)} == {"b"}
    drain(two, "a", "b")
    two.submit(8)
    assert told(two, 8)[1].startswith("a, b get no new runs until")
    drain(two, "b")
    assert where(two, kit, 8) == ["a"]


def test_runs_that_wait_for_their_agent_leave_a_drained_host(two, kit):
    for n in (1, 2):
        two.submit(n)
    assert {two.world.key_of(two.job(n).run).host for n in (1, 2)} == {"a"}
    drain(two, "a")
    assert {two.world.key_of(two.job(n).run).host for n in (1, 2)} == {"b"}
    two.up(kit.key_of(host="b"))
    assert [where(two, kit, n) for n in (1, 2)] == [["b"], ["b"]]


def test_runs_leave_a_drained_host_when_the_drain_of_the_site_is_over(two, kit):
    two.up(kit.key_of(host="a")).up(kit.key_of(host="b"))
    drain(two, "")
    for n in range(1, 7):
        two.submit(n)
    drain(two, "", "a")
    drain(two, "a")
    placed = [n for n in range(1, 7) if where(two, kit, n)]
    assert {h for n in placed for h in where(two, kit, n)} == {"b"} and len(placed) == 2
    # also those that wait: the slots of b may never be free without a waiting run
    waiting = set(range(1, 7)) - set(placed)
    assert {two.world.key_of(two.job(n).run).host for n in waiting} == {"b"}


def test_a_drained_host_that_was_down_stays_drained(two, kit):
    drain(two, "a")
    two.tell(HostChanged("local", "a", False, "off"))
    two.tell(HostChanged("local", "a", True, "on"))
    for n in (1, 2, 3):
        two.submit(n)
    two.up(kit.key_of(host="b"))
    assert [where(two, kit, n) for n in (1, 2, 3)] == [["b"], ["b"], []]


def test_gangs_get_no_places_on_drained_hosts(two, kit):
    drain(two, "a")
    two.gang(kit.role("w", 2, cpu=2), n=1)
    two.gang(kit.role("w", 1, cpu=2), n=2)
    for key in sorted({k for k, v in two.world.agents.items() if v.needed}):
        two.up(key)
    two.answer()
    assert set(where(two, kit, 1)) == {"b"} and where(two, kit, 2) == []
    assert told(two, 2)[0] == "resources"
    drain(two, "")
    assert told(two, 2)[0] == "drained"
    drain(two)
    for key in sorted({k for k, v in two.world.agents.items() if v.needed and not v.known}):
        two.up(key)
    two.answer()
    assert where(two, kit, 2) == ["a"]


def test_no_run_is_placed_ahead_on_a_drained_host(two, kit):
    two.agents_run_ahead = True
    for n in range(1, 10):
        two.submit(n)
    for host in "ab":
        view = two.world.agent(kit.key_of(host=host))
        view.run_secs = 0.001
    drain(two, "")
    two.up(kit.key_of(host="a")).up(kit.key_of(host="b"))
    assert not any(where(two, kit, n) for n in range(1, 10))
