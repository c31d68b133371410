"""Drivers with several hosts: host assignment, rebalancing, hosts that go down and come up, and
gangs that must fit on one host.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.protocol.jobs.roles import Retry
from jobscribe.protocol.wire.messages import ContainerSpec
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import (
    DriverFailed,
    DriverFound,
    HostChanged,
    RequireAgent,
    Restarted,
)
from jobscribe.supervisor.core.resources import gang_allocator, host_selection, subnets
from jobscribe.supervisor.core.resources.gang_allocator import Node, NodePool
from jobscribe.supervisor.core.resources.host_selection import HostCandidate, HostCapacity
from jobscribe.supervisor.core.status.run_status import status

NET = "10.208.0.0/12"


def place(host, sequential=1, plans=(), **fields):
    return HostCapacity(
        host=host, slots={"sequential": sequential, "parallel": 1}, plans=frozenset(plans), **fields
    )


@pytest.fixture
def two(kit):
    """Two hosts with one slot each; a user may have four runs at once."""
    return _stage(kit, place("a"), place("b"))


def _stage(kit, *places, **fields):
    slots = {("local", kind): 4 for kind in ("sequential", "parallel", "container")}
    return kit.Stage(places={"local": places}, op_run_slots=slots, **fields)


def home(stage, kit, n=1, uid=None):
    """Return the host where the run is placed or queued."""
    job = stage.job(n, uid or kit.UID)
    return (
        job.live_tasks()[0].agent_key.host if job.live_tasks() else stage.world.key_of(job.run).host
    )


def down(stage, host, *, up=False):
    return stage.tell(HostChanged("local", host, up, "it does not answer"))


def told(stage, kit, n=1):
    said = status(stage.world, stage.job(n), 1, stage.now())
    return said["queueState"], said["jobStatusMessage"]


# the choice


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ([HostCandidate(host="a"), HostCandidate(host="b")], "a"),
        ([HostCandidate(host="a", load=1), HostCandidate(host="b")], "b"),
        ([HostCandidate(host="a", load=1, slots=4), HostCandidate(host="b", load=1, slots=8)], "b"),
        # with free slots: first the user's agent of that kind (up or starting), then any other
        ([HostCandidate(host="a", slots=4), HostCandidate(host="b", slots=4, load=3, warm=2)], "b"),
        (
            [
                HostCandidate(host="a", slots=4, warm=1),
                HostCandidate(host="b", slots=4, load=3, warm=2),
            ],
            "b",
        ),
        ([HostCandidate(host="a", slots=4), HostCandidate(host="b", slots=4, load=3, warm=1)], "b"),
        # without free slots: the load
        ([HostCandidate(host="a", load=2), HostCandidate(host="b", load=3, warm=2)], "a"),
        ([HostCandidate(host="a", load=2), HostCandidate(host="b", load=2, warm=2)], "b"),
        ([HostCandidate(host="a"), HostCandidate(host="b", load=1, warm=2)], "a"),
        # a host that is down or has no memory: only if there is no other
        ([HostCandidate(host="a", down=True, warm=2), HostCandidate(host="b", load=9)], "b"),
        ([HostCandidate(host="a", down=True, load=1), HostCandidate(host="b", down=True)], "b"),
        ([HostCandidate(host="a", memory=0), HostCandidate(host="b", load=9)], "b"),
        ([HostCandidate(host="a", memory=1), HostCandidate(host="b", memory=2)], "b"),
        ([HostCandidate(host="a", memory=1), HostCandidate(host="b", memory=2, load=1)], "a"),
        ([HostCandidate(host="a", memory=0), HostCandidate(host="b", down=True)], "a"),
        ([], None),
    ],
)
def test_where_a_run_waits(options, chosen):
    assert host_selection.choose(options) == chosen


OPTIONS = st.lists(
    st.builds(
        HostCandidate,
        host=st.uuids().map(str),
        down=st.booleans(),
        slots=st.integers(1, 4),
        load=st.integers(0, 9),
        warm=st.integers(0, 2),
        memory=st.integers(0, 2),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda o: o.host,
)


@given(OPTIONS)
def test_no_choice_is_worse_than_another(options):
    best = next(o for o in options if o.host == host_selection.choose(options))
    assert not best.down or all(o.down for o in options)
    others = [o for o in options if o.down == best.down]
    assert best.memory or not any(o.memory for o in others)
    others = [o for o in others if bool(o.memory) == bool(best.memory)]
    if best.load >= best.slots:
        assert all(o.load >= o.slots for o in others) and best.load / best.slots == min(
            o.load / o.slots for o in others
        )
    else:
        assert best.warm == max(o.warm for o in others if o.load < o.slots)


@pytest.mark.parametrize(
    ("plan", "names"), [(None, "ab"), ("gold", "c"), ("blue", "cd"), ("other", "ab")]
)
def test_hosts_that_are_kept_for_a_plan_are_for_nobody_else(plan, names):
    places = [
        place("a"),
        place("b"),
        place("c", plans=("gold", "blue")),
        place("d", plans=("blue",)),
    ]
    assert "".join(p.host for p in host_selection.allowed(places, plan)) == names


# queues


def test_runs_go_to_the_host_with_the_least_load(two, kit):
    for n, uid in ((1, kit.UID), (2, kit.OTHER_UID), (3, "user0003"), (4, "user0004")):
        two.submit(n, uid=uid)
    assert [
        home(two, kit, n, uid)
        for n, uid in ((1, kit.UID), (2, kit.OTHER_UID), (3, "user0003"), (4, "user0004"))
    ] == ["a", "b", "a", "b"]


def test_a_warm_agent_is_preferred_where_a_slot_is_free(kit):
    stage = _stage(kit, place("a", 2), place("b", 2))
    stage.submit(1, uid=kit.OTHER_UID)
    stage.submit(2)
    assert (home(stage, kit, 1, kit.OTHER_UID), home(stage, kit, 2)) == ("a", "b")
    stage.submit(3)
    assert home(stage, kit, 3) == "b"


def test_slots_are_counted_on_each_host(two, kit):
    two.submit(1)
    two.up(kit.key_of(host="a"))
    two.submit(2)
    two.up(kit.key_of(host="b"))
    two.submit(3)
    assert [bool(two.job(n).live_tasks()) for n in (1, 2, 3)] == [True, True, False]
    assert told(two, kit, 3)[1].startswith("waiting for CPU resources on a:")


def test_whoever_waits_longest_gets_a_slot_that_nobody_wants_there(two, kit):
    for n in (1, 2):
        two.submit(n)
    two.up(kit.key_of(host="a")).up(kit.key_of(host="b"))
    for n in (3, 4, 5):
        two.submit(n)
    assert [home(two, kit, n) for n in (3, 4, 5)] == ["a", "b", "a"]
    two.end(two.token(2))  # on b: run 4 has the slot; on a: runs 3 and 5 wait
    assert two.job(4).live_tasks() and not two.job(3).live_tasks()
    two.end(two.token(4))
    assert home(two, kit, 3) == "b" and two.job(3).live_tasks() and not two.job(5).live_tasks()


def test_a_slot_that_somebody_waits_for_whose_agent_is_on_its_way_is_not_free(two, kit):
    two.submit(1)
    two.up(kit.key_of(host="a"))
    two.submit(2, uid=kit.OTHER_UID)
    two.submit(3)
    assert (home(two, kit, 2, kit.OTHER_UID), home(two, kit, 3)) == ("b", "a")
    two.up(kit.key_of(kit.OTHER_UID, host="b"))
    assert two.job(2, kit.OTHER_UID).live_tasks()


def test_what_moves_keeps_its_number_and_the_order(kit):
    stage = _stage(kit, place("a"), place("b"))
    for n in (1, 2, 3, 4, 5, 6):
        stage.submit(n)
    assert [home(stage, kit, n) for n in (1, 2, 3, 4, 5, 6)] == ["a", "b", "a", "b", "a", "b"]
    before = {t: n for v in stage.world.agents.values() for t, n in v.queued.items()}
    down(stage, "a")
    view = stage.world.agent(kit.key_of(host="b"))
    assert view.queued == before and list(view.queued) == sorted(before, key=before.__getitem__)
    stage.up(kit.key_of(host="b"))
    assert stage.job(1).live_tasks() and list(view.queued) == sorted(
        view.queued, key=before.__getitem__
    )


# hosts that are down


def test_new_runs_avoid_a_host_that_is_down(two, kit):
    down(two, "a")
    two.submit(1)
    two.submit(2)
    assert [home(two, kit, n) for n in (1, 2)] == ["b", "b"]
    assert {e.key.host for e in two.asked(fx.StartAgent)} <= {"b"}


def test_where_all_are_down_a_run_waits_and_is_told_for_whom(two, kit):
    down(two, "a")
    two.pass_time(60)
    down(two, "b")
    two.submit()
    assert two.asked(fx.StartAgent) == []
    state, sentence = told(two, kit)
    assert state == "host_down"
    assert (
        "a is down, since 2023-11-14 22:13:20 UTC (it does not answer)" in sentence
        and "b is down, since 2023-11-14 22:14:20" in sentence
    )
    down(two, "b", up=True)
    assert home(two, kit) == "b" and [e.key.host for e in two.asked(fx.StartAgent)] == ["b"]


def test_a_start_that_fails_on_a_host_that_is_down_uses_up_no_try(two, kit):
    two.submit()
    for _ in range(5):
        down(two, "a")
        down(two, "b")
        for key in (kit.key_of(host="a"), kit.key_of(host="b")):
            two.tell(DriverFailed(key, two.world.agent(key).record.attempt, "no answer"))
        down(two, "a", up=True)
        down(two, "b", up=True)
    assert two.state() == ("pending", None) and two.world.agent(kit.key_of(host="a")).failures == 0


def test_an_agent_found_gone_is_started_when_its_host_is_up(two, kit):
    key = kit.key_of(host="a")
    two.submit()
    two.up(key)
    two.reports(kit.running(two.token()), key=key)
    two.disconnect(key)
    down(two, "a")
    before = len(two.asked(fx.StartAgent))
    two.tell(DriverFound(key, "gone", "its process is gone"))
    assert two.world.agent(key).phase == "absent" and len(two.asked(fx.StartAgent)) == before
    down(two, "a", up=True)
    assert [e.key for e in two.asked(fx.StartAgent)[before:]] == [key]


def test_what_is_placed_stays_where_it_is(two, kit):
    two.submit()
    two.up(kit.key_of(host="a"))
    token = two.token()
    two.reports(kit.running(token), key=kit.key_of(host="a"))
    down(two, "a")
    assert two.token() == token and home(two, kit) == "a"
    two.disconnect(kit.key_of(host="a"))
    assert two.asked(fx.FindAgent) == two.asked(fx.StartAgent) == [], (
        "a host that cannot be asked is not asked"
    )
    down(two, "a", up=True)
    assert [e.key.host for e in two.asked(fx.FindAgent)] == ["a"]


@pytest.mark.parametrize("phase", ["away", "retry"])
def test_a_host_that_comes_up_is_asked_at_once(two, kit, phase):
    key = kit.key_of(host="a")
    two.submit()
    if phase == "away":
        two.up(key)
        two.disconnect(key)
        two.found("alive", key)
        asked = fx.FindAgent
    else:
        two.tell(DriverFailed(key, 1, "no answer"))
        asked = fx.StartAgent
    down(two, "a", up=True)
    assert [e.key for e in two.asked(asked)] == [key]


def test_a_call_on_a_host_that_is_down_is_refused_at_once(two, kit):
    two.tell(RequireAgent(7, kit.key_of(host="a")))
    assert two.asked(fx.ReplyRefusal) == []
    down(two, "a")
    assert two.refusal() == "agentUnavailable"
    two.tell(RequireAgent(8, kit.key_of(host="a")))
    assert (
        two.refusal() == "agentUnavailable" and two.world.agent(kit.key_of(host="a")).wanted == []
    )


def test_calls_go_where_the_run_was_or_where_an_agent_is(two, kit):
    calls = two.world.host_assignment.agent_for_calls
    assert calls("local", kit.UID, None).host == "a" and calls("local", kit.UID, "b").host == "b"
    two.submit(1, uid=kit.OTHER_UID)
    two.submit(2)
    two.up(kit.key_of(host="b"))
    assert calls("local", kit.UID, None).host == "b"
    down(two, "b")
    assert calls("local", kit.UID, "b").host == "a"


def test_a_restart_finds_homes_for_what_is_queued_beside_what_is_placed(two, kit):
    two.submit(1)
    two.up(kit.key_of(host="a"))
    two.submit(2)
    two.restart()
    two.tell(Restarted())
    assert (home(two, kit, 1), home(two, kit, 2)) == ("a", "b")


def test_a_restart_counts_what_was_placed_also_after_it_was_asked_for(two, kit):
    down(two, "a")
    two.submit(1)
    down(two, "a", up=True)
    two.submit(2)
    two.up(kit.key_of(host="a"))
    assert (home(two, kit, 1), home(two, kit, 2)) == ("b", "a")
    two.restarted()
    assert (home(two, kit, 1), home(two, kit, 2)) == ("b", "a")


# plans


def test_a_run_that_no_host_takes_is_refused_and_one_accepted_before_says_so(kit):
    stage = _stage(kit, place("a", plans=("gold",)))
    stage.submit(1)
    assert stage.refusal() == "resourceExceeded"
    stage.submit(2, active_plan="gold")
    assert home(stage, kit, 2) == "a"
    stage.policy = kit.replace(stage.policy, places={"local": (place("a", plans=("blue",)),)})
    stage.restart()
    stage.tell(Restarted())
    state, sentence = told(stage, kit, 2)
    assert (
        state == "no_host"
        and sentence
        == "no host is available for users with the plan 'gold': all hosts are reserved for other plans"
    )
    stage.cancel(2)
    assert (
        stage.state(2) == ("canceled", "cancel")
        and stage.left() == {}
        and not stage.world.host_assignment.unassigned
    )


# gangs whole on one host


def node(host, cpu=4, **fields):
    return Node(
        host=host, address=f"{host}.example", cpu=cpu, memory_mb=4000, **{"subnets": NET, **fields}
    )


def ask(room, name, *roles, plan=None):
    return gang_allocator.request(room, (name, 1), int(name.lstrip("j")), roles, 0.0, plan)


def test_a_gang_is_whole_on_one_host_with_addresses_of_its_own(kit):
    room = NodePool(nodes=(node("a"), node("b")))
    ((_, first),) = ask(room, "j1", kit.role("x", 2), kit.role("y", 1))
    ((_, second),) = ask(room, "j2", kit.role("x", 2))
    ((_, third),) = ask(room, "j3", kit.role("x", 1))
    assert [(p.host, p.address) for p in first] == [
        ("a", "10.208.0.2"),
        ("a", "10.208.0.3"),
        ("a", "10.208.0.4"),
    ]
    assert [(p.host, p.address) for p in second] == [("b", "10.208.0.2"), ("b", "10.208.0.3")]
    assert [(p.host, p.address) for p in third] == [("a", "10.208.4.2")]
    assert gang_allocator.violations(room) == []
    gang_allocator.release(room, ("j1", 1), 0.0)
    ((_, fourth),) = ask(room, "j4", kit.role("x", 3))
    assert [p.address for p in fourth] == ["10.208.0.2", "10.208.0.3", "10.208.0.4"]


def test_blocks_are_kept_after_a_restart_until_the_last_task_is_over(kit):
    room = NodePool(nodes=(node("a", 8),))
    role = kit.role("x", 2)
    ((_, places),) = ask(room, "j1", role)
    other = NodePool(nodes=(node("a", 8),))
    gang_allocator.record_placed(other, ("j1", 1), (role,), places)
    gang_allocator.release(other, ("j1", 1), 0.0, ("x", 0))
    assert (
        ask(other, "j2", role)[0][1][0].address == "10.208.4.2"
        and gang_allocator.violations(other) == []
    )
    gang_allocator.release(other, ("j1", 1), 0.0, ("x", 1))
    assert ask(other, "j3", role)[0][1][0].address == "10.208.0.2"


def test_a_gang_waits_where_all_networks_are_in_use(kit):
    room = NodePool(nodes=(node("a", 8, subnets="10.208.0.0/22"),))
    assert ask(room, "j1", kit.role("x")) and not ask(room, "j2", kit.role("x"))
    assert gang_allocator.wait_of(room, ("j2", 1)).sentence == (
        "its tasks share a network of one host, and no host has room for all of them now (all networks for gangs are in use there) "
        "(a has 7 cores, 3900 MiB of memory)"
    )
    assert gang_allocator.release(room, ("j1", 1), 0.0)


def test_addresses_of_somebody_elses_network_are_avoided_for_a_while(kit):
    room = NodePool(nodes=(node("a", 8, subnets="10.208.0.0/21"),))
    gang_allocator.avoid_block(room, "a", "10.208.0.2", 0.0)
    gang_allocator.avoid_block(room, "gone", "10.208.0.2", 0.0)
    gang_allocator.avoid_block(room, "a", "a.example", 0.0)
    assert ask(room, "j1", kit.role("x"))[0][1][0].address == "10.208.4.2"
    assert (
        not ask(room, "j2", kit.role("x"))
        and gang_allocator.next_retry(room) == gang_allocator.AVOID_BLOCK_SECS
    )
    assert (
        gang_allocator.retry(room, gang_allocator.AVOID_BLOCK_SECS - 1) == []
        and gang_allocator.violations(room) == []
    )
    ((_, places),) = gang_allocator.retry(room, gang_allocator.AVOID_BLOCK_SECS)
    assert places[0].address == "10.208.0.2" and room.usage["a"].foreign == {}


def test_a_gang_whose_addresses_were_taken_gets_others_with_its_next_attempt(kit):
    stage = _stage(kit, place("a"), nodes={"local": (node("a", 8),)})
    first = stage.placed(kit.role("x", 2), hosts=("a",), retry=Retry(platform=1))
    assert [t.address for t in stage.job().live_tasks()] == ["10.208.0.2", "10.208.0.3"]
    for token in first:
        stage.end(
            token,
            None,
            source="start",
            fault="subnetTaken",
            detail="Pool overlaps with other one on this address space",
        )
    stage.fire(timers.AttemptRetry(kit.jid_of(), stage.job().run.serial))
    stage.answer()
    assert [t.address for t in stage.job().live_tasks()] == [
        "10.208.4.2",
        "10.208.4.3",
    ] and stage.job().run.attempt == 2
    assert stage.clock[timers.NodePoolRetry("local")] > gang_allocator.AVOID_BLOCK_SECS


def test_a_gang_too_large_for_each_host_is_told_so(kit):
    assert gang_allocator.too_much((node("a"), node("b")), (kit.role("x", 6),)) == (
        "its tasks share a network of one host, and no host has room for all of them, even if nothing else runs; "
        "role x asks for 6 cores (6 x 1) (a has 4 cores, 4000 MiB of memory; b has 4 cores, 4000 MiB of memory)"
    )
    assert (
        gang_allocator.too_much(
            (node("a", subnets=None), node("b", subnets=None)), (kit.role("x", 6),)
        )
        is None
    )
    room = NodePool(nodes=(node("a"), node("b")))
    ask(room, "j1", kit.role("x", 2))
    ask(room, "j2", kit.role("x", 3))
    assert not ask(room, "j3", kit.role("x", 3))
    assert gang_allocator.wait_of(room, ("j3", 1)).sentence.startswith(
        "its tasks share a network of one host, and no host has room for all of them now"
    )


def test_gangs_have_hosts_that_are_kept_for_their_plan(kit):
    room = NodePool(nodes=(node("a"), node("b", plans=frozenset({"gold"}))))
    assert ask(room, "j1", kit.role("x"), plan="gold")[0][1][0].host == "b"
    assert ask(room, "j2", kit.role("x", 4))[0][1][0].host == "a"
    assert not ask(room, "j3", kit.role("x")), "b is not for everybody"
    assert (
        gang_allocator.too_much((node("b", plans=frozenset({"gold"})),), (kit.role("x"),))
        is not None
    )


@given(st.integers(0, 1023), st.integers(0, subnets.MEMBERS - 1))
def test_addresses_tell_their_block(block, member):
    address = subnets.address(NET, block, member)
    assert subnets.block_of(NET, address) == block
    assert not address.endswith((".0.0", ".0.1")) and subnets.subnet_of(address).endswith("/22")


def test_the_last_address_of_a_block_is_nobodys():
    assert (
        subnets.address(NET, 0, subnets.MEMBERS - 1) == "10.208.3.254"
        and subnets.blocks(NET) == 1024
    )
    assert (
        subnets.block_of(NET, "10.224.0.2") is None and subnets.block_of(NET, "a.example") is None
    )


@pytest.fixture
def boxes(kit):
    """Gangs in containers, on two hosts."""
    return _stage(
        kit,
        place("a"),
        place("b"),
        containers=frozenset({"local"}),
        nodes={"local": (node("a"), node("b"))},
    )


def container(kit, host):
    return kit.key_of(kind="container", host=host)


def test_tasks_in_containers_are_placed_without_a_probe_and_say_what_they_need(boxes, kit):
    boxes.gang(
        kit.role("x", 2, gpu=0, memory_mb=200, shm_mb=70, image="lab/x:1", volumes=("data",)),
        debug_secs=5.0,
    )
    assert [e.key for e in boxes.asked(fx.StartAgent)] == [container(kit, "a")]
    boxes.up(container(kit, "a"))
    assert boxes.probes == [] and {t.agent_key for t in boxes.job().live_tasks()} == {
        container(kit, "a")
    }
    (launch,) = boxes.asked(fx.LaunchGang)
    spec = launch.tasks[1].spec
    assert spec.box == ContainerSpec(
        image="lab/x:1",
        cpu=1,
        memory_mb=200,
        shm_mb=70,
        address="10.208.0.3",
        subnet="10.208.0.0/22",
        volumes=("data",),
        keep=True,
    )
    assert (spec.memory_bytes, spec.ports) == (None, ())
    assert boxes.world.node_pools["local"].usage["a"].ports


def test_gangs_that_only_hold_something_on_a_host_that_goes_down_ask_elsewhere(boxes, kit):
    boxes.gang(kit.role("x", 4), n=1)
    boxes.up(container(kit, "a"))
    boxes.gang(kit.role("x", 2), n=2)
    ticket = (kit.jid_of(2), boxes.job(2).run.serial)
    assert {p.host for p in boxes.world.holds[ticket].places} == {"b"} and container(
        kit, "b"
    ) in boxes.world.agents
    down(boxes, "b")
    assert ticket not in boxes.world.holds and boxes.world.node_pools["local"].usage["b"].cpu == 0
    assert boxes.job(1).live_tasks(), "what is placed stays"
    for token in boxes.tokens(1):
        boxes.end(token)
    assert {t.agent_key.host for t in boxes.job(2).live_tasks()} == {"a"}


def test_a_gang_whose_queue_is_on_a_host_that_goes_down_goes_on_elsewhere(boxes, kit):
    boxes.gang(kit.role("x", 2))
    down(boxes, "a")
    boxes.up(container(kit, "b"))
    assert {t.agent_key.host for t in boxes.job().live_tasks()} == {"b"}


def test_a_gang_waits_for_a_host_to_come_up_and_others_are_counted_all_the_same(boxes, kit):
    boxes.submit(2)
    boxes.up(kit.key_of(host="a"))
    boxes.gang(kit.role("x", 4), n=3)
    boxes.up(container(kit, "a"))
    down(boxes, "b")
    boxes.gang(kit.role("x", 4), n=4)
    assert boxes.asked(fx.ReplyRefusal) == []
    assert told(boxes, kit, 4)[0] == "resources" and "b is down" in told(boxes, kit, 4)[1]
    down(boxes, "b", up=True)
    assert {p.host for p in boxes.world.holds[kit.jid_of(4), boxes.job(4).run.serial].places} == {
        "b"
    }
