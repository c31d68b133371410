"""Gang allocator: all or nothing, in order, never over capacity. Also the sentences that say why a
gang waits or is too large.
"""

import itertools
import os
from collections import Counter

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from jobscribe.protocol.jobs.roles import Port, TaskPlace, TaskRole
from jobscribe.service.settings.loader import load
from jobscribe.supervisor.configuration import local_node
from jobscribe.supervisor.core.resources import gang_allocator
from jobscribe.supervisor.core.resources.gang_allocator import AVOID_SECS, Node, NodePool

EXAMPLES = 2_000 if os.environ.get("SOAK") == "1" else 100


def node(host="n1", cpu=8, memory_mb=8_000, gpus=0, ports=2_768):
    n = int(host.lstrip("n"))
    return Node(
        host=host,
        address=f"10.0.0.{n}",
        cpu=cpu,
        memory_mb=memory_mb,
        gpus=tuple(f"{host}-gpu{i}" for i in range(gpus)),
        first_port=30_000,
        last_port=30_000 + ports - 1,
    )


def role(name="worker", tasks=1, cpu=1, memory_mb=100, gpu=0, ports=()):
    return TaskRole(
        name=name,
        tasks=tasks,
        command=("true",),
        cpu=cpu,
        memory_mb=memory_mb,
        gpu=gpu,
        ports=tuple(ports),
    )


def fixed(begin, count=1, label="rpc"):
    return Port(label=label, begin=begin, count=count)


#: A role whose tasks need only this port.
def only(begin, name="ps", tasks=1, cpu=1):
    return role(name, tasks, cpu, ports=[fixed(begin, label="http"), fixed(begin + 1, label="ssh")])


def ask(room, name, *roles, number=None, mono=0.0):
    """Request capacity for job `name`; the default number is the one in its name."""
    number = int(name.lstrip("j")) if number is None else number
    return gang_allocator.request(room, (name, 1), number, roles, mono)


def hosts(grants):
    """Return the hosts of the tasks of the only gang that was granted."""
    ((_, places),) = grants
    return [p.host for p in places]


def names(grants):
    return [jid for (jid, _), _ in grants]


def ports_of(places):
    return [(p.host, n) for p in places for numbers in p.ports.values() for n in numbers]


# ports


def test_ports_are_assigned_in_turn_from_the_start_port_of_the_node():
    here = msgspec.structs.replace(node(ports=6), start_port=30_003)
    room = NodePool(nodes=(here,))
    for name, wanted in (
        ("j1", [30_003, 30_004]),
        ("j2", [30_000, 30_005]),
        ("j3", [30_001, 30_002]),
    ):
        ((_, places),) = ask(room, name, role())
        assert sorted(n for _, n in ports_of(places)) == wanted


def test_each_start_of_a_supervisor_assigns_the_ports_of_this_machine_from_another_one():
    """Two supervisors of a machine may check the ports of their gangs at the same time."""
    settings = load({"resources.local_ports": "30000-32000"}, env={})
    starts = {local_node(settings).start_port for _ in range(50)}
    assert len(starts) > 1 and all(30_000 <= port <= 32_000 for port in starts)


# choice of hosts


@pytest.mark.parametrize(
    ("nodes", "roles", "where"),
    [
        ([node("n1"), node("n2")], [role(tasks=3)], ["n1", "n1", "n1"]),
        ([node("n1", cpu=2), node("n2")], [role(tasks=3)], ["n1", "n1", "n2"]),
        # larger tasks first, in any order of the roles: 6 and 2 on n1, 5 and 3 on n2
        (
            [node("n1"), node("n2")],
            [role("a", cpu=2), role("b", cpu=3), role("c", cpu=5), role("d", cpu=6)],
            ["n1", "n2", "n2", "n1"],
        ),
        (
            [node("n1", cpu=6), node("n2", cpu=6)],
            [role("a", 2, cpu=3), role("b", 3, cpu=2)],
            ["n1", "n1", "n2", "n2", "n2"],
        ),
        # the largest task on the first host that fits blocks the rest: backtracking finds a way
        (
            [node("n1", cpu=10), node("n2", cpu=7)],
            [role("a", cpu=6), role("b", 2, cpu=5)],
            ["n2", "n1", "n1"],
        ),
        (
            [node("n1", cpu=9), node("n2", cpu=7)],
            [role("a", 3, cpu=3), role("b", cpu=4), role("c", cpu=3)],
            ["n1", "n1", "n1", "n2", "n2"],
        ),
        # the scarce resource differs between nodes
        (
            [node("n1", memory_mb=300), node("n2", cpu=2)],
            [role("fat", memory_mb=5_000), role("busy", cpu=6)],
            ["n2", "n1"],
        ),
        # tasks without GPU prefer nodes without GPU
        ([node("n1", gpus=2), node("n2", cpu=2)], [role("plain", 3)], ["n1", "n2", "n2"]),
        # dynamic ports count, too: two for each task
        ([node("n1", ports=4), node("n2")], [role(tasks=3)], ["n1", "n1", "n2"]),
        # a fixed port exists once on each host
        (
            [node("n1"), node("n2"), node("n3")],
            [role("ps", 3, ports=[fixed(8_080)])],
            ["n1", "n2", "n3"],
        ),
        (
            [node("n1"), node("n2")],
            [role("a", ports=[fixed(8_080, 3)]), role("b", ports=[fixed(8_082)])],
            ["n1", "n2"],
        ),
    ],
)
def test_each_task_goes_to_one_node_that_has_all_it_needs(nodes, roles, where):
    room = NodePool(tuple(nodes))
    grants = ask(room, "j1", *roles)
    assert hosts(grants) == where
    assert [(p.role, p.index) for p in grants[0][1]] == [
        (r.name, i) for r in roles for i in range(r.tasks)
    ]
    assert all(p.address == f"10.0.0.{p.host[1:]}" for p in grants[0][1])
    assert gang_allocator.too_much(nodes, roles) is None
    assert gang_allocator.violations(room) == []


def test_a_task_has_the_gpus_it_asks_for_and_nobody_else_has_them():
    room = NodePool((node("n1", gpus=3), node("n2", gpus=2)))
    ((_, first),) = ask(room, "j1", role(tasks=2, gpu=2))
    assert [p.gpus for p in first] == [("n1-gpu0", "n1-gpu1"), ("n2-gpu0", "n2-gpu1")]
    ((_, second),) = ask(room, "j2", role(gpu=1))
    assert second[0].gpus == ("n1-gpu2",)
    gang_allocator.release(room, ("j1", 1), 0.0, ("worker", 0))
    ((_, third),) = ask(room, "j3", role(gpu=1))
    assert third[0].gpus == ("n1-gpu0",)


def test_many_roles_are_shared_out_where_no_node_runs_out_of_one_thing_only():
    """The tasks want 250 of 251 cores and 90 % of the memory of each host; each role needs a
    different amount of memory.
    """
    nodes = [node(f"n{i}", cpu=251, memory_mb=27_700) for i in (1, 2, 3, 4)]
    roles = [role(f"r{i}", 10, memory_mb=50 + i) for i in range(100)]
    assert gang_allocator.too_much(nodes, roles) is None
    assert Counter(hosts(ask(NodePool(tuple(nodes)), "j1", *roles))).keys() == {
        "n1",
        "n2",
        "n3",
        "n4",
    }


def test_a_thousand_tasks_on_64_nodes():
    room = NodePool(tuple(node(f"n{i}", cpu=16, memory_mb=1_600) for i in range(1, 65)))
    ((_, places),) = ask(room, "j1", role("a", 500), role("b", 500))
    assert len(places) == len({(p.role, p.index) for p in places}) == 1_000
    assert len(set(ports_of(places))) == 2_000
    assert max(Counter(p.host for p in places).values()) == 16


# ports


def test_ports_are_given_in_turn_and_one_given_back_rests():
    room = NodePool((node(ports=6),))
    ((_, a),) = ask(room, "j1", role())
    assert a[0].ports == {"http": (30_000,), "ssh": (30_001,)}
    gang_allocator.release(room, ("j1", 1), 0.0)
    ((_, b),) = ask(room, "j2", role())
    assert b[0].ports == {"http": (30_002,), "ssh": (30_003,)}
    ((_, c),) = ask(room, "j3", role())
    assert ports_of(c) == [("n1", 30_004), ("n1", 30_005)]
    ((_, d),) = ask(room, "j4", role())
    assert ports_of(d) == [("n1", 30_000), ("n1", 30_001)]


def test_ports_of_one_label_ascend_also_at_the_end_of_the_range():
    room = NodePool((node(ports=8),))
    ask(room, "j1", role(ports=[Port(label="data", count=3)]))
    gang_allocator.release(room, ("j1", 1), 0.0)
    ((_, places),) = ask(room, "j2", role(ports=[Port(label="data", count=4)]))
    assert places[0].ports == {
        "data": (30_000, 30_005, 30_006, 30_007),
        "http": (30_001,),
        "ssh": (30_002,),
    }


def test_a_port_with_a_number_may_lie_among_those_given_in_turn():
    room = NodePool((node(ports=6),))
    ((_, places),) = ask(room, "j1", role("ps", ports=[fixed(30_001, 2)]), role("worker"))
    assert places[0].ports["rpc"] == (30_001, 30_002)
    assert sorted(n for _, n in ports_of(places)) == [
        30_000,
        30_001,
        30_002,
        30_003,
        30_004,
        30_005,
    ]
    assert ask(room, "j2", role()) == []
    assert gang_allocator.wait_of(room, ("j2", 1)).code == "ports"


def test_ports_of_strangers_are_avoided_for_a_while_and_the_gang_gets_others_on_the_same_hosts():
    room = NodePool((node("n1", cpu=1), node("n2")))
    ((ticket, before),) = ask(room, "j1", role(tasks=2, ports=[Port(label="data", count=2)]))
    assert ports_of(before)[:4] == [("n1", n) for n in (30_000, 30_001, 30_002, 30_003)]
    after, others = gang_allocator.ports_taken(
        room, ticket, {"n1": [30_000, 30_003, 30_004], "n2": [31_000]}, mono=5.0
    )
    assert others == []
    assert after[0].ports == {"data": (30_001, 30_005), "http": (30_002,), "ssh": (30_006,)}
    assert (after[1], [p.host for p in after]) == (before[1], [p.host for p in before])
    assert gang_allocator.violations(room) == []
    # nobody waits, but who begins to wait now relies on this retry
    assert gang_allocator.next_retry(room) == 5.0 + AVOID_SECS
    gang_allocator.release(room, ticket, 6.0)
    assert room.usage["n1"].avoided.keys() == {30_000, 30_003, 30_004}
    gang_allocator.retry(room, 5.0 + AVOID_SECS)
    assert room.usage["n1"].avoided == room.usage["n2"].avoided == {}
    assert gang_allocator.next_retry(room) is None


def test_without_other_ports_a_gang_gives_everything_back_and_waits_again():
    room = NodePool((node(ports=4, cpu=3),))
    ((ticket, _),) = ask(room, "j1", role(tasks=2))
    assert ask(room, "j2", role(cpu=3)) == []
    assert gang_allocator.ports_taken(room, ticket, {"n1": [30_001]}, mono=5.0) == (None, [])
    assert gang_allocator.wait_of(room, ticket).code == "ports"
    assert gang_allocator.wait_of(room, ("j2", 1)).ahead == 1, "it keeps its number"
    assert gang_allocator.usage(room) == [
        {"host": "n1", "cpu": [0, 3], "memory_mb": [0, 8_000], "gpus": [0, 0], "ports": 0}
    ]
    assert gang_allocator.next_retry(room) == 5.0 + AVOID_SECS
    assert gang_allocator.retry(room, 5.0 + AVOID_SECS - 0.1) == []
    assert names(gang_allocator.retry(room, 5.0 + AVOID_SECS)) == ["j1"]


def test_too_few_other_ports_are_not_enough():
    room = NodePool((node(ports=5),))
    ((ticket, _),) = ask(room, "j1", role(tasks=2))
    places, grants = gang_allocator.ports_taken(room, ticket, {"n1": [30_000, 30_002]}, mono=0.0)
    assert (places, grants, room.usage["n1"].ports) == (None, [], {})


def test_what_a_gang_gives_back_goes_to_whoever_is_first_now():
    room = NodePool((node(ports=4),))
    ((ticket, _),) = ask(room, "j5", role(tasks=2))
    assert ask(room, "j3", role()) == []
    places, others = gang_allocator.ports_taken(room, ticket, {"n1": [30_000]}, mono=0.0)
    assert (places, names(others)) == (None, ["j3"])
    assert gang_allocator.wait_of(room, ticket).ahead == 0


def test_a_port_with_a_number_that_a_stranger_has_is_looked_for_on_another_host():
    room = NodePool((node("n1"), node("n2")))
    ((ticket, _),) = ask(room, "j1", role(ports=[fixed(8_080)]))
    places, grants = gang_allocator.ports_taken(room, ticket, {"n1": [8_080]}, mono=0.0)
    assert (places, hosts(grants)) == (None, ["n2"])
    places, grants = gang_allocator.ports_taken(room, ticket, {"n2": [8_080]}, mono=1.0)
    assert (places, grants) == (None, [])
    assert gang_allocator.wait_of(room, ticket).sentence == (
        "task worker/0 asks for port 8080: free on 0 of 2 hosts (something else listens on port 8080 on n1; something else listens on "
        "port 8080 on n2)"
    )
    assert hosts(gang_allocator.retry(room, AVOID_SECS)) == ["n1"]


def test_ports_taken_from_who_has_no_place_are_avoided_all_the_same():
    room = NodePool((node(ports=2),))
    assert gang_allocator.ports_taken(
        room, ("nobody", 1), {"n1": [30_000], "gone": [30_000]}, mono=0.0
    ) == (
        None,
        [],
    )
    assert ask(room, "j1", role()) == []
    assert names(gang_allocator.retry(room, AVOID_SECS)) == ["j1"]


# order of the queue


def test_lowest_number_goes_first_and_holds_up_those_behind_it():
    room = NodePool((node(cpu=4),))
    ask(room, "j1", role(tasks=3))
    assert [ask(room, name, role(cpu=c)) for name, c in (("j4", 1), ("j3", 1), ("j2", 4))] == [
        [(("j4", 1), room_places(room, "j4"))],
        [],
        [],
    ]
    assert [gang_allocator.wait_of(room, (j, 1)).ahead for j in ("j2", "j3")] == [0, 1]
    assert gang_allocator.release(room, ("j4", 1), 0.0) == [], "3 would fit, but 2 is first"
    assert names(gang_allocator.release(room, ("j1", 1), 0.0)) == ["j2"]
    assert names(gang_allocator.release(room, ("j2", 1), 0.0)) == ["j3"]


def room_places(room, name):
    return tuple(room.claims[name, 1].placements.values())


def test_who_is_first_and_goes_lets_the_next_ones_in():
    room = NodePool((node(cpu=4),))
    ask(room, "j1", role(cpu=2))
    for name, cpu in (("j2", 4), ("j3", 1), ("j4", 1)):
        assert ask(room, name, role(cpu=cpu)) == []
    assert gang_allocator.release(room, ("j4", 1), 0.0) == []
    assert ask(room, "j5", role()) == []
    assert names(gang_allocator.release(room, ("j2", 1), 0.0)) == ["j3", "j5"]


def test_a_gang_gets_all_or_nothing():
    room = NodePool((node(cpu=4),))
    ask(room, "j1", role())
    assert ask(room, "j2", role("a", 2), role("b", 2)) == []
    assert gang_allocator.usage(room)[0]["cpu"] == [1, 4]


def test_seats_are_given_back_one_by_one():
    room = NodePool((node(cpu=4, gpus=1),))
    ask(room, "j1", role("a", 2), role("b", cpu=2, gpu=1))
    ask(room, "j2", role(cpu=3))
    assert gang_allocator.release(room, ("j1", 1), 0.0, ("b", 0)) == []
    assert gang_allocator.usage(room) == [
        {"host": "n1", "cpu": [2, 4], "memory_mb": [200, 8_000], "gpus": [0, 1], "ports": 4}
    ]
    assert gang_allocator.release(room, ("j1", 1), 0.0, ("b", 0)) == []
    assert gang_allocator.usage(room)[0]["cpu"] == [2, 4]
    assert names(gang_allocator.release(room, ("j1", 1), 0.0, ("a", 1))) == ["j2"]
    assert gang_allocator.release(room, ("j1", 1), 0.0, ("a", 0)) == []
    assert room.claims.keys() == {("j2", 1)}


def test_asking_twice_and_giving_back_what_is_not_held_change_nothing():
    room = NodePool((node(cpu=2),))
    assert names(ask(room, "j1", role(cpu=2))) == ["j1"]
    assert ask(room, "j1", role(cpu=2)) == []
    assert ask(room, "j2", role()) == []
    assert ask(room, "j2", role()) == []
    assert gang_allocator.release(room, ("nobody", 1), 0.0) == []
    assert gang_allocator.release(room, ("j2", 1), 0.0, ("worker", 0)) == []
    assert (
        gang_allocator.wait_of(room, ("j1", 1))
        is gang_allocator.wait_of(room, ("nobody", 1))
        is None
    )
    assert names(gang_allocator.release(room, ("j1", 1), 0.0)) == ["j2"]


def test_gangs_that_come_and_go_do_not_pile_up():
    room = NodePool((node(cpu=2),))
    for n in range(200):
        ask(room, f"j{n}", role(), number=n)
        if n % 3 == 0:
            gang_allocator.ports_taken(room, (f"j{n}", 1), {"n1": [30_000 + n]}, float(n))
        if n >= 10:
            gang_allocator.release(room, (f"j{n - 10}", 1), float(n))
    for n in range(190, 200):
        gang_allocator.release(room, (f"j{n}", 1), 1_000.0)
    assert (room.claims, room.queue) == ({}, [])
    books = room.usage["n1"]
    assert (books.cpu, books.memory_mb, books.gpus, books.ports, books.avoided) == (
        0,
        0,
        {},
        {},
        {},
    )


# after a restart


def place(host, name="worker", index=0, ports=(30_000, 30_001), gpus=()):
    return TaskPlace(
        role=name,
        index=index,
        host=host,
        address="10.0.0.1",
        ports={"http": ports[:1], "ssh": ports[1:]},
        gpus=tuple(gpus),
    )


def test_what_was_placed_before_a_restart_is_held_even_without_room():
    """Restored places may exceed the capacity. No gang gets in until enough is released."""
    room = NodePool((node(cpu=4, gpus=1),))
    gang_allocator.record_placed(
        room, ("j1", 1), [role(tasks=3, cpu=2, gpu=1)], [place("n1", index=0, gpus=["n1-gpu0"])]
    )
    gang_allocator.record_placed(
        room,
        ("j1", 1),
        [role(tasks=3, cpu=2, gpu=1)],
        [place("n1", index=0, gpus=["n1-gpu0"]), place("n1", index=2, ports=(30_002, 30_003))],
    )
    gang_allocator.record_placed(
        room, ("j2", 1), [role(cpu=3, gpu=1)], [place("n1", gpus=["n1-gpu0"])]
    )
    assert gang_allocator.usage(room) == [
        {"host": "n1", "cpu": [7, 4], "memory_mb": [300, 8_000], "gpus": [1, 1], "ports": 4}
    ]
    assert gang_allocator.violations(room) == []
    assert ask(room, "j3", role(cpu=1, gpu=1)) == []
    assert (
        gang_allocator.wait_of(room, ("j3", 1)).sentence
        == "task worker/0 asks for 1 core: 0 of 4 are free on n1; task worker/0 asks for 1 GPU: 0 of 1 are free on n1"
    )
    assert gang_allocator.release(room, ("j1", 1), 0.0, ("worker", 2)) == []
    assert gang_allocator.release(room, ("j2", 1), 0.0) == []
    assert (
        gang_allocator.wait_of(room, ("j3", 1)).sentence
        == "task worker/0 asks for 1 GPU: 0 of 1 are free on n1"
    )
    ((_, places),) = gang_allocator.release(room, ("j1", 1), 0.0)
    assert places[0].gpus == ("n1-gpu0",)
    assert gang_allocator.violations(room) == []


def test_a_host_that_is_gone_holds_nothing_up():
    room = NodePool((node("n2", cpu=1),))
    gang_allocator.record_placed(
        room, ("j1", 1), [role(tasks=2)], [place("n1"), place("n2", index=1)]
    )
    assert gang_allocator.usage(room)[0]["cpu"] == [1, 1]
    assert gang_allocator.ports_taken(room, ("j1", 1), {"n1": [31_000]}, 0.0)[0] is not None
    assert ask(room, "j2", role()) == []
    assert gang_allocator.release(room, ("j1", 1), 0.0, ("worker", 0)) == []
    assert names(gang_allocator.release(room, ("j1", 1), 0.0, ("worker", 1))) == ["j2"]
    assert room.claims.keys() == {("j2", 1)}


def test_what_was_kept_and_must_give_everything_back_goes_before_all_others():
    room = NodePool((node(ports=2),))
    gang_allocator.record_placed(room, ("j1", 1), [role()], [place("n1")])
    ask(room, "j0", role(), number=0)
    assert gang_allocator.ports_taken(room, ("j1", 1), {"n1": [30_000]}, 0.0) == (None, [])
    assert (
        gang_allocator.wait_of(room, ("j1", 1)).ahead,
        gang_allocator.wait_of(room, ("j0", 1)).ahead,
    ) == (0, 1)
    assert names(gang_allocator.retry(room, AVOID_SECS)) == ["j1"]


def test_keeping_nothing_keeps_nothing_and_who_is_kept_does_not_wait():
    room = NodePool((node(cpu=1),))
    gang_allocator.record_placed(room, ("j1", 1), [role()], [])
    assert room.claims == {}
    ask(room, "j2", role())
    ask(room, "j3", role())
    gang_allocator.record_placed(room, ("j3", 1), [role()], [place("n1", ports=(30_010, 30_011))])
    assert (room.queue, gang_allocator.wait_of(room, ("j3", 1))) == ([], None)
    assert gang_allocator.violations(room) == []


# requests that are too large


TWO = [node("n1", cpu=8, memory_mb=4_000, gpus=2), node("n2", cpu=4, memory_mb=9_000)]


@pytest.mark.parametrize(
    ("nodes", "roles", "sentence"),
    [
        ([], [role()], "there is no host where tasks may run"),
        ([node()], [role(cpu=9)], "role worker asks for 9 cores for each task: n1 has 8"),
        (
            TWO,
            [role("a"), role("b", cpu=9)],
            "role b asks for 9 cores for each task: the most that one host has is 8 (n1)",
        ),
        (
            TWO,
            [role(memory_mb=9_001)],
            "role worker asks for 9001 MiB of memory for each task: the most that one host has is 9000 (n2)",
        ),
        (
            TWO,
            [role(gpu=3)],
            "role worker asks for 3 GPUs for each task: the most that one host has is 2 (n1)",
        ),
        ([node()], [role(gpu=1)], "role worker asks for 1 GPU for each task: n1 has 0"),
        (
            [node(ports=4)],
            [role(ports=[Port(label="x", count=3)])],
            "role worker asks for 5 ports for each task: n1 has 4",
        ),
        (
            TWO,
            [role(tasks=13)],
            "role worker asks for 13 cores (13 x 1): all 2 hosts together have 12, the largest of them 8 (n1)",
        ),
        (
            TWO,
            [role("a", 2, cpu=2), role("b", 3, cpu=3)],
            "the roles ask for 13 cores together (most of it role b: 3 x 3): all 2 hosts together have 12, the largest of them 8 (n1)",
        ),
        (
            [node(memory_mb=350)],
            [role(tasks=4)],
            "role worker asks for 400 MiB of memory (4 x 100): n1 has 350",
        ),
        ([node(ports=4)], [role(tasks=3)], "role worker asks for 6 ports (3 x 2): n1 has 4"),
        # each resource fits on some host, but not all of them on one host
        (
            TWO,
            [role(cpu=5, memory_mb=5_000)],
            "role worker asks for 5 cores, 5000 MiB of memory and 2 ports for each task: no host has all of it (n1 has 8 cores, 4000 MiB of memory, "
            "2768 ports; n2 has 4 cores, 9000 MiB of memory, 2768 ports)",
        ),
        # the totals fit, the single tasks do not
        (
            [node("n1", cpu=5), node("n2", cpu=5)],
            [role(tasks=3, cpu=3)],
            "if nothing else ran, 2 of its 3 tasks would fit; beside them, task worker/2 asks for 3 cores: the most that one host has free is "
            "2 of 5 (n1); 4 are free in all, but on several hosts",
        ),
        # fixed ports
        (
            [node()],
            [role("ps", 2, ports=[fixed(8_080)])],
            "role ps asks for port 8080 for 2 tasks: one task on each host can have it, and of hosts there is one (n1)",
        ),
        (
            TWO,
            [role("a", 2, ports=[fixed(8_080, 4)]), role("b", ports=[fixed(8_083)])],
            "role a and role b ask for port 8083 for 3 tasks: one task on each host can have it, and of hosts there are 2",
        ),
        (
            [node(ports=3)],
            [role(ports=[fixed(30_000, 2)])],
            "role worker asks for 1 core, 100 MiB of memory, 2 ports and the ports 30000-30001 for each task: no host has all of it (n1 has 8 cores, "
            "8000 MiB of memory, 3 ports)",
        ),
        (
            [node(ports=5)],
            [role("ps", ports=[fixed(30_001, 2)]), role("worker")],
            "if nothing else ran, 1 of its 2 tasks would fit; beside them, task worker/0 asks for 2 ports: 1 of 5 is free on n1",
        ),
        (
            [node("n1", cpu=1), node("n2")],
            [role("ps", 2, cpu=2, ports=[fixed(8_080)])],
            "if nothing else ran, 1 of its 2 tasks would fit; beside them, task ps/1 asks for 2 cores, 100 MiB of memory, 2 ports and port 8080: "
            "no host has all of it free (n1 has 1 core, 8000 MiB of memory, 2768 ports; n2 has 6 cores, 7900 MiB of memory, 2766 ports, but another "
            "task of this run has port 8080 on n2)",
        ),
    ],
)
def test_what_could_never_be_placed_is_said_with_numbers(nodes, roles, sentence):
    assert gang_allocator.too_much(nodes, roles) == sentence
    assert ask(NodePool(tuple(nodes)), "j1", *roles) == []


@pytest.mark.parametrize(
    ("ports", "sentence"),
    [
        (
            [fixed(1_023)],
            "role worker asks for port 1023 (rpc): ports below 1024 are reserved for the system",
        ),
        (
            [fixed(65_535, 2)],
            "role worker asks for the ports 65535-65536 (rpc): the highest port is 65535",
        ),
        (
            [fixed(8_080), fixed(8_000, 100, label="more")],
            "role worker asks for port 8080 under two labels: a task has each port once",
        ),
        ([Port(label="x"), Port(label="x")], "role worker names its ports x twice"),
    ],
)
def test_ports_that_nobody_can_have_are_refused(ports, sentence):
    assert gang_allocator.too_much([node()], [role("before"), role(ports=ports)]) == sentence


@pytest.mark.parametrize(
    "roles",
    [
        [role(cpu=8)],
        [role(tasks=12)],
        [role(gpu=2)],
        [role(ports=[fixed(1_024)])],
        [role(ports=[fixed(65_535)])],
        [role(tasks=2, ports=[fixed(8_080)])],
        [role("a", ports=[fixed(8_080)]), role("b", ports=[fixed(8_080)])],
    ],
)
def test_what_just_fits_is_not_too_much(roles):
    assert gang_allocator.too_much(TWO, roles) is None
    assert len(ask(NodePool(tuple(TWO)), "j1", *roles)) == 1


# why a gang waits


@pytest.mark.parametrize(
    ("nodes", "there", "wants", "code", "sentence"),
    [
        (
            [node()],
            [role(cpu=6)],
            [role(cpu=4)],
            "insufficient",
            "task worker/0 asks for 4 cores: 2 of 8 are free on n1",
        ),
        (
            [node()],
            [role(cpu=7)],
            [role(tasks=4)],
            "insufficient",
            "role worker asks for 4 cores (4 x 1): 1 of 8 is free on n1",
        ),
        (
            [node(), node("n2")],
            [role(tasks=2, cpu=7)],
            [role(cpu=3)],
            "insufficient",
            "task worker/0 asks for 3 cores: the most that one host has free is 1 of 8 (n1); 2 of 16 are free in all",
        ),
        (
            [node(cpu=8), node("n2", cpu=8)],
            [role("a", cpu=6), role("b", cpu=5)],
            [role(cpu=4)],
            "fragmented",
            "task worker/0 asks for 4 cores: the most that one host has free is 3 of 8 (n2); 5 are free in all, but on several hosts",
        ),
        (
            [node(cpu=8), node("n2", cpu=7)],
            [role("a", cpu=5), role("b", cpu=4)],
            [role("x", 3, cpu=2)],
            "fragmented",
            "2 of its 3 tasks would fit; beside them, task x/2 asks for 2 cores: the most that one host has free is 1 of 8 (n1); 2 are free in all, but on several hosts",
        ),
        (
            [node(), node("n2")],
            [role("fat", memory_mb=7_500), role("busy", cpu=8)],
            [role(cpu=3, memory_mb=1_000)],
            "fragmented",
            "task worker/0 asks for 3 cores, 1000 MiB of memory and 2 ports: no host has all of it free (n1 has 0 cores, 7900 MiB of memory, 2766 ports; "
            "n2 has 7 cores, 500 MiB of memory, 2766 ports)",
        ),
        (
            [node(gpus=2)],
            [role(gpu=1, memory_mb=7_000)],
            [role(gpu=2, memory_mb=2_000)],
            "insufficient",
            "task worker/0 asks for 2000 MiB of memory: 1000 of 8000 are free on n1; task worker/0 asks for 2 GPUs: 1 of 2 is free on n1",
        ),
        (
            [node(ports=4)],
            [role()],
            [role(tasks=2)],
            "ports",
            "role worker asks for 4 ports (2 x 2): 2 of 4 are free on n1",
        ),
        (
            [node(ports=3), node("n2", ports=3)],
            [role(tasks=2)],
            [role()],
            "ports",
            "task worker/0 asks for 2 ports: the most that one host has free is 1 of 3 (n1); 2 are free in all, but on several hosts",
        ),
        (
            [node()],
            [role(ports=[fixed(8_080, 3)])],
            [role("ps", ports=[fixed(8_082, 3)])],
            "ports",
            "task ps/0 asks for the ports 8082-8084: free on 0 of 1 host (another run holds port 8082 on n1)",
        ),
        (
            [node(), node("n2", cpu=2)],
            [role(ports=[fixed(8_080)])],
            [role("ps", 2, ports=[fixed(8_080)])],
            "ports",
            "task ps/1 asks for port 8080: free on 0 of 2 hosts (another run holds port 8080 on n1; another task of this run has port 8080 on n2)",
        ),
    ],
)
def test_why_the_first_waits_is_said_with_numbers(nodes, there, wants, code, sentence):
    room = NodePool(tuple(nodes))
    assert len(ask(room, "j1", *there)) == 1
    assert ask(room, "j2", *wants) == []
    assert (
        gang_allocator.wait_of(room, ("j2", 1)).code,
        gang_allocator.wait_of(room, ("j2", 1)).ahead,
    ) == (code, 0)
    assert gang_allocator.wait_of(room, ("j2", 1)).sentence == sentence
    assert names(gang_allocator.release(room, ("j1", 1), 0.0)) == ["j2"]


def test_those_behind_the_first_wait_for_it():
    room = NodePool((node(cpu=2),))
    for name, cpu in (("j1", 1), ("j2", 2), ("j3", 1), ("j4", 1)):
        ask(room, name, role(cpu=cpu))
    assert gang_allocator.wait_of(room, ("j3", 1)) == gang_allocator.UnschedulableReason(
        "behind", 1, "it waits behind one run that goes first"
    )
    assert gang_allocator.wait_of(room, ("j4", 1)) == gang_allocator.UnschedulableReason(
        "behind", 2, "it waits behind 2 runs that go first"
    )


def test_ports_that_are_avoided_are_counted_in_what_is_said():
    room = NodePool((node(ports=4),))
    gang_allocator.ports_taken(room, ("nobody", 1), {"n1": [30_000, 30_001, 30_003]}, 0.0)
    ask(room, "j1", role())
    assert gang_allocator.wait_of(room, ("j1", 1)).sentence == (
        "role worker asks for 2 ports: 1 of 4 is free on n1; 3 more are avoided for now, because something else listens there"
    )


def test_who_could_never_be_placed_waits_aside_and_holds_up_nobody():
    """The gang was accepted before the capacity was reduced."""
    room = NodePool((node(cpu=4),))
    assert ask(room, "j1", role(cpu=5)) == []
    assert gang_allocator.wait_of(room, ("j1", 1)).sentence == (
        "it was accepted when more resources were configured, and no longer fits even if nothing else runs: role worker asks for 5 cores for each task: n1 has 4"
    )
    assert [ticket for ticket, _ in ask(room, "j2", role(cpu=3))] == [("j2", 1)]
    assert ask(room, "j3", role(cpu=2)) == [] and gang_allocator.wait_of(room, ("j3", 1)).ahead == 0
    assert gang_allocator.violations(room) == []
    assert gang_allocator.release(room, ("j1", 1), 0.0) == []
    assert [ticket for ticket, _ in gang_allocator.release(room, ("j2", 1), 0.0)] == [("j3", 1)]
    gang_allocator.release(room, ("j3", 1), 0.0)
    assert not room.claims and not room.queue and gang_allocator.violations(room) == []


def test_without_hosts_everybody_waits():
    room = NodePool(())
    assert ask(room, "j1", role()) == []
    assert (
        "there is no host where tasks may run" in gang_allocator.wait_of(room, ("j1", 1)).sentence
    )


# consistency of the records


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda r: r.queue.clear(), "('j3', 1) waits and is not in the queue"),
        (
            lambda r: r.queue.append((9, ("ghost", 1))),
            "('ghost', 1) stands in the queue and does not wait",
        ),
        (lambda r: r.queue.reverse(), "the queue is out of order"),
        (
            lambda r: setattr(r.usage["n1"], "cpu", 0),
            "n1: the books differ from what the gangs hold",
        ),
        (
            lambda r: r.usage["n1"].ports.pop(30_000),
            "n1: the books differ from what the gangs hold",
        ),
        (lambda r: r.usage["n1"].ports.update({30_000: 2}), "n1: port 30000 is held by 2"),
        (lambda r: r.usage["n1"].gpus.update({"n1-gpu0": 2}), "n1: GPU n1-gpu0 is held by 2"),
        (lambda r: r.usage["n1"].gpus.update(other=1), "n1: GPU other is held, and there is none"),
        (lambda r: setattr(r.usage["n1"], "memory_mb", 9_000), "n1: more is held than there is"),
        (
            lambda r: r.claims["j1", 1].placements.update(
                {("x", 0): r.claims["j1", 1].placements["worker", 0]}
            ),
            "n1: ('j1', 1) has ('x', 0), which it did not ask for",
        ),
        (
            lambda r: setattr(r, "nodes", (node(cpu=9, gpus=1),)),
            "there is room for ('j3', 1), and it waits",
        ),
    ],
)
def test_the_checker_sees_broken_books(harm, sentence):
    room = NodePool((node(gpus=1),))
    ask(room, "j1", role(cpu=7, gpu=1))
    ask(room, "j3", role(cpu=2))
    ask(room, "j4", role(cpu=2))
    assert gang_allocator.violations(room) == []
    harm(room)
    assert sentence in gang_allocator.violations(room)


# random sequences, checked against a naive model


class Model:
    """Held places and waiting gangs. Recomputes the usage from the places each time, and tries
    every assignment.
    """

    def __init__(self, nodes):
        self.nodes = {n.host: n for n in nodes}
        self.held = {}  # ticket -> {task index: (role, place)}
        self.waits = {}  # ticket -> (number, roles)
        self.avoided = {}  # (host, port) -> until
        self.kept = set()

    def free(self, host):
        """Return [cores, MiB, GPUs, set of free dynamic ports, set of ports in use or avoided]."""
        n = self.nodes[host]
        here = [(r, p) for seats in self.held.values() for r, p in seats.values() if p.host == host]
        used = {x for _, p in here for numbers in p.ports.values() for x in numbers} | {
            p for h, p in self.avoided if h == host
        }
        gpus = {g for _, p in here for g in p.gpus}
        return [
            n.cpu - sum(r.cpu for r, _ in here),
            n.memory_mb - sum(r.memory_mb for r, _ in here),
            len(set(n.gpus) - gpus),
            set(range(n.first_port, n.last_port + 1)) - used,
            used,
        ]

    def fits(self, roles, ports=True):
        tasks = [r for r in roles for _ in range(r.tasks)]
        free = {h: self.free(h) for h in self.nodes}
        return any(
            self._sits(list(zip(tasks, way, strict=True)), free, ports)
            for way in itertools.product(self.nodes, repeat=len(tasks))
        )

    def _sits(self, seats, free, ports):
        for host, (cpu, memory, gpus, dynamic, used) in free.items():
            here = [r for r, h in seats if h == host]
            numbers = [
                n
                for r in here
                for p in r.all_ports()
                if p.begin
                for n in range(p.begin, p.begin + p.count)
            ]
            any_ = sum(p.count for r in here for p in r.all_ports() if not p.begin)
            if here and (
                sum(r.cpu for r in here) > cpu
                or sum(r.memory_mb for r in here) > memory
                or sum(r.gpu for r in here) > gpus
            ):
                return False
            if (
                here
                and ports
                and (
                    len(numbers) > len(set(numbers))
                    or used & set(numbers)
                    or any_ > len(dynamic - set(numbers))
                )
            ):
                return False
        return True

    def got(self, ticket, places):
        """Record a grant: the first waiting gang gets exactly its request, from free resources."""
        assert ticket == min(self.waits, key=lambda t: self.waits[t][0]), "somebody was overtaken"
        _, roles = self.waits.pop(ticket)
        assert [(p.role, p.index) for p in places] == [
            (r.name, i) for r in roles for i in range(r.tasks)
        ], "all or nothing"
        before = {h: self.free(h) for h in self.nodes}
        self.hold(ticket, roles, places)
        assert len(ports_of(places)) == len(set(ports_of(places)))
        assert len({g for p in places for g in p.gpus}) == sum(r.gpu * r.tasks for r in roles)
        for host in {p.host for p in places}:
            assert min(self.free(host)[:3]) >= 0, "more than there is"
        for p in places:
            asked = next(r for r in roles if r.name == p.role)
            assert set(p.gpus) <= set(self.nodes[p.host].gpus) and len(p.gpus) == asked.gpu
            self.right_ports(asked, p, before[p.host])

    def right_ports(self, asked, place_, free):
        _, _, _, dynamic, used = free
        assert list(place_.ports) == [x.label for x in asked.all_ports()]
        for x in asked.all_ports():
            numbers = place_.ports[x.label]
            assert len(numbers) == x.count and list(numbers) == sorted(numbers)
            assert not used & set(numbers)
            assert (
                numbers == tuple(range(x.begin, x.begin + x.count))
                if x.begin
                else set(numbers) <= dynamic
            )

    def hold(self, ticket, roles, places):
        by = {r.name: r for r in roles}
        self.held.setdefault(ticket, {}).update(
            {(p.role, p.index): (by[p.role], p) for p in places}
        )

    def expect(self, room):
        """Check that the records are right and that every waiting gang has a reason to wait."""
        assert gang_allocator.violations(room) == []
        order = sorted(self.waits, key=lambda t: self.waits[t][0])
        for at, ticket in enumerate(order):
            lack = gang_allocator.wait_of(room, ticket)
            assert lack.ahead == at
            assert lack.code == (self.why(self.waits[ticket][1]) if at == 0 else "behind"), lack
        assert all(gang_allocator.wait_of(room, t) is None for t in self.held)
        for told in gang_allocator.usage(room):
            cpu, memory, gpus, _, _ = self.free(told["host"])
            has = self.nodes[told["host"]]
            assert (told["cpu"], told["memory_mb"]) == (
                [has.cpu - cpu, has.cpu],
                [has.memory_mb - memory, has.memory_mb],
            )
            assert told["gpus"] == [len(has.gpus) - gpus, len(has.gpus)]
            assert told["ports"] == len(
                {
                    n
                    for seats in self.held.values()
                    for _, p in seats.values()
                    for h, n in ports_of([p])
                    if h == has.host
                }
            )

    def why(self, roles):
        assert not self.fits(roles), f"there is room for {roles}, and it waits"
        free = [self.free(h) for h in self.nodes]
        asks = [
            sum(n * r.tasks for n, r in zip(each, roles, strict=True))
            for each in zip(*((r.cpu, r.memory_mb, r.gpu) for r in roles), strict=True)
        ]
        if any(a > sum(max(0, f[what]) for f in free) for what, a in enumerate(asks)):
            return "insufficient"
        return "ports" if self.fits(roles, ports=False) else "fragmented"


NODES = st.lists(
    st.tuples(st.integers(2, 7), st.integers(300, 900), st.integers(0, 2), st.integers(5, 14)),
    min_size=1,
    max_size=3,
).map(lambda all_: [node(f"n{i + 1}", *of) for i, of in enumerate(all_)])
PORTS = st.sampled_from(
    [
        (),
        (),
        (),
        (),
        (),
        (),
        (fixed(8_080),),
        (fixed(8_081, 2),),
        (fixed(30_001, 2),),
        (Port(label="data", count=2),),
        (fixed(8_080, label="http"),),
    ]
)
ROLE = st.tuples(
    st.sampled_from((1, 1, 2, 3)),
    st.integers(1, 3),
    st.sampled_from((100, 150, 250)),
    st.sampled_from((0, 0, 0, 0, 1)),
    PORTS,
)
GANG = st.lists(ROLE, min_size=1, max_size=2).map(
    lambda all_: [role("ab"[i], *of) for i, of in enumerate(all_)]
)
WHO = st.integers(0, 7)
STEP = st.one_of(
    *(st.tuples(st.just("request"), WHO, GANG) for _ in range(4)),
    st.tuples(st.just("release"), WHO, st.none()),
    st.tuples(st.just("seat"), WHO, st.integers(0, 5)),
    st.tuples(st.just("taken"), WHO, st.lists(st.integers(0, 11), max_size=3)),
    st.tuples(st.just("look"), WHO, st.sampled_from((1.0, AVOID_SECS / 2, AVOID_SECS))),
)


@pytest.mark.timeout(1_800)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    report_multiple_bugs=False,
    phases=set(Phase) - {Phase.explain},
)
@given(NODES, st.lists(GANG, max_size=2), st.lists(STEP, min_size=15, max_size=40))
def test_any_sequence_equals_the_model(nodes, before, steps):
    """Capacity is never exceeded, grants are all or nothing and in order, and every waiting gang
    has a reason. At the end nothing is left.
    """
    room, model, now = NodePool(tuple(nodes)), Model(nodes), 0.0
    for n, roles in enumerate(before):
        # placed earlier by another supervisor with any rule; some of these tasks are over
        places = [p for i, p in enumerate(placed_somehow(nodes, roles)) if (n + i) % 3]
        gang_allocator.record_placed(room, (f"kept{n}", 1), roles, places)
        if places:
            model.hold((f"kept{n}", 1), roles, places)
            model.kept.add((f"kept{n}", 1))
        model.expect(room)
    for what, n, arg in steps:
        # a request for a ticket that holds nothing changes nothing, so mostly choose one that holds
        held = sorted(t for t in model.held if what != "taken" or t not in model.kept)
        ticket = (
            held[n % len(held)] if n > 1 and held and what in ("seat", "taken") else (f"j{n}", 1)
        )
        grants, now = step(room, model, now, what, ticket, arg)
        for who, places in grants:
            model.got(who, places)
        model.expect(room)
    leave(room, model, now)


def placed_somehow(nodes, roles):
    seats = [(r, i) for r in roles for i in range(r.tasks)]
    for at, (r, i) in enumerate(seats):
        n, ports = nodes[at % len(nodes)], itertools.count(30_000 + at * 3)
        numbers = {
            x.label: tuple(range(x.begin, x.begin + x.count))
            if x.begin
            else tuple(itertools.islice(ports, x.count))
            for x in r.all_ports()
        }
        yield TaskPlace(
            role=r.name,
            index=i,
            host=n.host,
            address=n.address,
            ports=numbers,
            gpus=n.gpus[: r.gpu],
        )


def step(room, model, now, what, ticket, arg):
    match what:
        case "request":
            too_much = gang_allocator.too_much(room.nodes, arg)
            assert (too_much is None) == Model(room.nodes).fits(arg), too_much
            if too_much is None and ticket not in model.held:
                model.waits.setdefault(ticket, (int(ticket[0][1:]), arg))
                return gang_allocator.request(room, ticket, int(ticket[0][1:]), arg, now), now
        case "release":
            model.held.pop(ticket, None)
            model.waits.pop(ticket, None)
            return gang_allocator.release(room, ticket, now), now
        case "seat":
            seats = sorted(model.held.get(ticket, ())) or [("a", 0)]
            seat = seats[arg % len(seats)]
            model.held.get(ticket, {}).pop(seat, None)
            if not model.held.get(ticket, True):
                del model.held[ticket]
            return gang_allocator.release(room, ticket, now, seat), now
        case "taken":
            return strangers(room, model, now, ticket, arg), now
        case "look":
            now += arg
            assert gang_allocator.next_retry(room) is None or model.avoided
            model.avoided = {at: until for at, until in model.avoided.items() if until > now}
            return gang_allocator.retry(room, now), now
    return [], now


def strangers(room, model, now, ticket, which):
    """Report some of a gang's ports as taken, and one port that the gang does not have."""
    mine = model.held.get(ticket, {})
    has = sorted(set(ports_of([p for _, p in mine.values()])))
    found = {}
    for n in which:
        host, port = has[n % len(has)] if has else ("n1", 30_000 + n)
        found.setdefault(host, []).append(port)
    found.setdefault("n1", []).append(30_003)
    model.avoided.update({(h, p): now + AVOID_SECS for h, ports in found.items() for p in ports})
    # free ports of the other gangs, and all that this gang had
    free = {h: model.free(h) for h in model.nodes}
    places, grants = gang_allocator.ports_taken(room, ticket, found, now)
    if not mine:
        assert places is None
        return grants
    lost = {
        seat: [
            (label, n)
            for label, numbers in p.ports.items()
            for n in numbers
            if n in found.get(p.host, ())
        ]
        for seat, (_, p) in mine.items()
    }
    named = any(
        n
        for seat, (r, _) in mine.items()
        for label, _ in lost[seat]
        for x in r.all_ports()
        if x.label == label and (n := x.begin)
    )
    enough = all(
        sum(len(lost[s]) for s, (_, p) in mine.items() if p.host == h) <= len(free[h][3])
        for h in model.nodes
    )
    assert (places is not None) == (enough and not named), (lost, places)
    roles = room.claims[ticket].roles
    if places is None:
        del model.held[ticket]
        model.waits[ticket] = (int(ticket[0][1:]), roles)
        return grants
    assert [(p.role, p.index, p.host, p.gpus) for p in places] == [
        (p.role, p.index, p.host, p.gpus) for _, p in mine.values()
    ]
    new = []
    for p in places:
        _, old = mine[p.role, p.index]
        for label, numbers in p.ports.items():
            kept = [n for n in old.ports[label] if (label, n) not in lost[p.role, p.index]]
            assert (
                len(numbers) == len(old.ports[label])
                and set(kept) <= set(numbers)
                and list(numbers) == sorted(numbers)
            )
            new.extend((p.host, n) for n in numbers if n not in kept)
    assert len(new) == len(set(new)) and all(n in free[h][3] for h, n in new)
    model.hold(ticket, roles, places)
    return grants


def leave(room, model, now):
    """Release all held tickets until none is left. Every gang was placed, and nothing stays
    reserved.
    """
    for _ in range(100):
        now += AVOID_SECS
        model.avoided = {}
        for ticket in [None, *model.held]:
            if ticket:
                del model.held[ticket]
            for who, places in (
                gang_allocator.release(room, ticket, now)
                if ticket
                else gang_allocator.retry(room, now)
            ):
                model.got(who, places)
            model.expect(room)
        if not model.held:
            break
    assert (model.held, model.waits) == ({}, {})
    assert (room.claims, room.queue) == ({}, [])
    assert all(
        (b.cpu, b.memory_mb, b.gpus, b.ports, b.avoided) == (0, 0, {}, {}, {})
        for b in room.usage.values()
    )
