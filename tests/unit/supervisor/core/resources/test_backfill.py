"""Backfill: who may be placed while the first gang waits, and that the first one is not delayed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.protocol.jobs.roles import TaskRole
from jobscribe.supervisor.core.resources import gang_allocator
from jobscribe.supervisor.core.resources.backfill import end_of
from jobscribe.supervisor.core.resources.fair_share import Account
from jobscribe.supervisor.core.resources.gang_allocator import Node
from jobscribe.supervisor.core.resources.node_pool import NodePool

ME, OTHER = Account("default", "user0001"), Account("default", "user0002")


def nodes(*cpus: int) -> NodePool:
    return NodePool(
        tuple(
            Node(host=f"n{n}", address=f"10.0.0.{n}", cpu=cpu, memory_mb=10_000)
            for n, cpu in enumerate(cpus, 1)
        )
    )


def ask(pool, n, cpu, limit=None, mono=0.0, account=ME):
    pool.fair.now = mono
    role = TaskRole(name="w", tasks=1, command=("true",), cpu=cpu, memory_mb=1)
    grants = gang_allocator.request(pool, (f"j{n}", 1), n, (role,), mono, None, account, limit)
    assert gang_allocator.violations(pool) == []
    return [jid for (jid, _), _ in grants]


def end(pool, n, mono):
    pool.fair.now = mono
    grants = gang_allocator.release(pool, (f"j{n}", 1), mono)
    assert gang_allocator.violations(pool) == []
    return [jid for (jid, _), _ in grants]


@pytest.mark.parametrize(
    ("held_limit", "later_limit", "later_cpu", "placed"),
    [
        (1000.0, 900.0, 2, True),  # it ends before the first one can start
        (1000.0, 1001.0, 2, False),  # it may end after that
        (1000.0, None, 2, False),  # it has no end
        (None, 1.0, 2, False),  # nobody knows when the first one can start
    ],
)
def test_a_gang_behind_the_first_is_placed_if_it_ends_in_time(
    held_limit, later_limit, later_cpu, placed
):
    pool = nodes(8)
    assert ask(pool, 1, 6, held_limit) == ["j1"]
    assert ask(pool, 2, 8, 50.0) == []
    assert ask(pool, 3, later_cpu, later_limit) == (["j3"] if placed else [])
    assert gang_allocator.next_gang(pool) == ("j2", 1)


def test_a_gang_that_fits_beside_the_first_is_placed_however_long_it_takes():
    pool = nodes(8, 4)
    assert ask(pool, 1, 6, 1000.0) == ["j1"]
    assert ask(pool, 2, 8) == []
    assert ask(pool, 3, 4) == ["j3"], "on the node that the first one cannot use"
    assert ask(pool, 4, 2) == [], "the first one needs all of its node"


def test_two_of_them_must_fit_beside_the_first_together():
    pool = nodes(10)
    assert ask(pool, 1, 6, 1000.0) == ["j1"]
    assert ask(pool, 2, 8) == []
    assert ask(pool, 3, 2) == ["j3"]
    assert ask(pool, 4, 2) == [], "8 + 2 + 2 are too many"


def test_one_that_is_over_its_time_limit_ends_at_no_known_time():
    pool = nodes(8)
    assert ask(pool, 1, 6, 10.0) == ["j1"]
    later = end_of(10.0, 0.0) + 1
    assert ask(pool, 2, 8, mono=later) == []
    assert ask(pool, 3, 2, 1.0, mono=later) == []


def test_when_something_ends_others_than_the_first_are_tried_in_the_order_of_turns():
    pool = nodes(8)
    assert ask(pool, 1, 4, 10_000.0) == ["j1"] and ask(pool, 2, 4, 10_000.0) == ["j2"]
    pool.fair.charge(OTHER, 1e9)
    assert ask(pool, 3, 8) == []
    assert ask(pool, 4, 4, 10.0, account=OTHER) == [] and ask(pool, 5, 4, 10.0) == []
    assert end(pool, 1, 1.0) == ["j5"], "its user has used less"
    assert end(pool, 5, 2.0) == ["j4"]
    assert end(pool, 4, 3.0) == []
    assert end(pool, 2, 4.0) == ["j3"]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 8),  # cores
            st.one_of(st.none(), st.floats(1.0, 300.0)),  # time limit
            st.floats(0.05, 1.0),  # part of it that is used
            st.booleans(),  # the user
        ),
        min_size=3,
        max_size=25,
    )
)
def test_the_first_gang_starts_by_the_time_of_its_reservation(gangs):
    """Gangs end by their limits. From the moment at which the start of the first gang is known, it
    is placed by then, unless another account goes first.
    """
    pool, now, started = nodes(8, 4), 0.0, dict[int, float]()
    limits = {n: limit for n, (_, limit, _, _) in enumerate(gangs)}
    ends: dict[int, float] = {}

    def note(granted):
        for jid in granted:
            n = int(jid[1:])
            started[n] = now
            ends[n] = now + (limits[n] or 400.0) * gangs[n][2]

    for n, (cpu, limit, _, other) in enumerate(gangs):
        note(ask(pool, n, cpu, limit, now, OTHER if other else ME))
    while len(ends) < len(gangs) or ends:
        first = gang_allocator.next_gang(pool)
        running = [n for n in ends if n in started]
        if not running:
            break
        reserved = None
        if first is not None:
            placed = [(c.until, t) for t, c in pool.claims.items() if c.placements]
            if all(until is not None for until, _ in placed):
                reserved = max(until for until, _ in placed)
        soonest = min(running, key=ends.__getitem__)
        now = max(now, ends.pop(soonest))
        note(end(pool, soonest, now))
        if first is not None and reserved is not None and now > reserved:
            assert int(first[0][1:]) in started
    assert len(started) == len(gangs), "nobody starves"
