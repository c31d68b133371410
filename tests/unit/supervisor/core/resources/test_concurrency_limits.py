"""Concurrency limits: order, capacity, no deadlock, nothing left over. A naive model checks every
result.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.supervisor.core.resources import concurrency_limits
from jobscribe.supervisor.core.resources.concurrency_limits import ConcurrencyLimits, LimitWait

CAPACITY = {"a": 1, "b": 2, "c": 3}
ORDER = ("a1", "a2", "b1", "b2", "b3", "b4", "c1", "c2")


def capacity(pool: str) -> int:
    return CAPACITY[pool[0]]


class Model:
    """The same rules without heaps: after each change, check all tickets by number until nothing
    moves.
    """

    def __init__(self):
        self.wants = {}  # ticket -> [number, pools, held]

    def _inside(self, pool):
        return [t for t, (_, pools, held) in self.wants.items() if pool in pools[:held]]

    def _settle(self):
        done, moved = [], True
        while moved:
            moved = False
            for pool in ORDER:
                waiting = sorted(
                    (n, t)
                    for t, (n, pools, held) in self.wants.items()
                    if held < len(pools) and pools[held] == pool
                )
                room = capacity(pool) - len(self._inside(pool))
                for _, t in waiting[: max(0, room)]:
                    self.wants[t][2] += 1
                    moved = True
                    if self.wants[t][2] == len(self.wants[t][1]):
                        done.append(t)
        return set(done)

    def request(self, ticket, number, pools):
        if ticket in self.wants:
            return set()
        self.wants[ticket] = [number, pools, 0]
        done = self._settle()
        return done | ({ticket} if not pools else set())

    def release(self, ticket, only=None):
        if ticket not in self.wants:
            return set()
        number, pools, held = self.wants[ticket]
        if only is None:
            del self.wants[ticket]
        elif only in pools[:held]:
            self.wants[ticket] = [number, tuple(p for p in pools if p != only), held - 1]
        return self._settle()

    def ahead(self, ticket):
        number, pools, held = self.wants[ticket]
        if held == len(pools):
            return None
        pool = pools[held]
        before = sum(n < number for n, p, h in self.wants.values() if h < len(p) and p[h] == pool)
        holders = frozenset(self._inside(pool))
        return LimitWait(pool, before, holders, capacity(pool), len(holders))


PICK = st.lists(st.sampled_from(ORDER), unique=True, min_size=1, max_size=4).map(
    lambda p: tuple(sorted(p))
)
#: Pools as runs request them. One run at a time holds the pools of its job and directory; the other
#: pools are shared.
SHARED = st.tuples(st.sampled_from(("b1", "b2")), st.sampled_from(("c1", "c2")))


def run_pools(n: int, shared: tuple[str, str]) -> tuple[str, ...]:
    op, cpu = shared
    return (("a1", "a2")[n % 2], op, ("b3", "b4")[n % 2], cpu)


def steps(pools):
    return st.lists(
        st.one_of(
            st.tuples(st.just("request"), st.integers(0, 11), pools),
            st.tuples(st.just("release"), st.integers(0, 11), st.none()),
            st.tuples(st.just("release"), st.integers(0, 11), st.sampled_from(ORDER)),
        ),
        max_size=50,
    )


def holds_all(real, ticket) -> bool:
    return ticket in real.claims and real.claims[ticket].held == len(real.claims[ticket].pools)


@settings(max_examples=250, deadline=None)
@given(steps(SHARED))
def test_any_sequence_of_runs_equals_the_model(sequence):
    """Compare grants, waits and queue positions with the model. At the end all is released."""
    real, model = ConcurrencyLimits(capacity=capacity), Model()
    for what, n, arg in sequence:
        ticket = (f"job{n}", n)
        if what == "request":
            pools = run_pools(n, arg)
            got, want = (
                concurrency_limits.request(real, ticket, n, pools),
                model.request(ticket, n, pools),
            )
        elif arg is not None and not holds_all(real, ticket):
            continue  # a ticket releases single pools only if it holds all its pools
        else:
            got, want = concurrency_limits.release(real, ticket, arg), model.release(ticket, arg)
        assert len(got) == len(set(got))
        assert set(got) == want
        assert concurrency_limits.violations(real) == []
        assert real.claims.keys() == model.wants.keys()
        for t, (_, pools_, held) in model.wants.items():
            assert (real.claims[t].held, real.claims[t].pools) == (held, pools_)
            assert concurrency_limits.wait_of(real, t) == model.ahead(t)
    # no deadlock: release all complete tickets until none is left
    while model.wants:
        holding = [t for t, (_, p, h) in model.wants.items() if h == len(p)]
        assert holding, "everybody waits for everybody"
        for t in holding:
            assert set(concurrency_limits.release(real, t)) == model.release(t)
    assert (real.pools, real.claims) == ({}, {})


@settings(max_examples=250, deadline=None)
@given(steps(PICK))
def test_whatever_the_pools_nobody_who_waits_is_overtaken(sequence):
    """Capacity is never exceeded, there is no deadlock, and no ticket overtakes a lower number that
    waited in a pool earlier.
    """
    real = ConcurrencyLimits(capacity=capacity)
    for what, n, arg in [*sequence, *(("release", n, None) for _ in range(12) for n in range(12))]:
        ticket = (f"job{n}", n)
        if what == "release" and arg is not None and not holds_all(real, ticket):
            continue
        waited = {t: concurrency_limits.wait_of(real, t) for t in real.claims}
        before = {name: set(p.holders) for name, p in real.pools.items()}
        if what == "request":
            concurrency_limits.request(real, ticket, n, arg)
        else:
            concurrency_limits.release(real, ticket, arg)
        assert concurrency_limits.violations(real) == []
        for name, pool in real.pools.items():
            assert len(pool.holders) <= pool.capacity == capacity(name)
            new = [real.claims[t].number for t in pool.holders - before.get(name, set())]
            still = [
                real.claims[t].number
                for t, w in waited.items()
                if w and w.pool == name and concurrency_limits.wait_of(real, t) == w
            ]
            assert not new or not still or max(new) < min(still)
        assert not real.claims or any(holds_all(real, t) for t in real.claims), (
            "everybody waits for everybody"
        )
    assert (real.pools, real.claims) == ({}, {})


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 11), PICK), max_size=8, unique_by=lambda s: s[0]),
    st.permutations(range(12)),
)
def test_what_was_held_before_a_restart_is_held_even_without_room(held, order):
    """Restored claims may exceed the capacity. No new ticket gets in until enough claims are
    released.
    """
    real = ConcurrencyLimits(capacity=capacity)
    for n, pools in held:
        concurrency_limits.restore(
            real, (f"job{n}", n), n, pools, released=pools[:1] if len(pools) > 2 else ()
        )
    assert concurrency_limits.violations(real) == []
    newcomer = ("new", 99)
    concurrency_limits.request(real, newcomer, 99, ORDER)
    for n in order:
        concurrency_limits.release(real, (f"job{n}", n))
        assert concurrency_limits.violations(real) == []
        wait = concurrency_limits.wait_of(real, newcomer)
        if wait is not None:
            assert wait.in_use >= wait.capacity
    assert concurrency_limits.wait_of(real, newcomer) is None
    assert concurrency_limits.release(real, newcomer) == []
    assert (real.pools, real.claims) == ({}, {})


def test_lowest_number_goes_first_whatever_came_first():
    real = ConcurrencyLimits(capacity=capacity)
    assert concurrency_limits.request(real, ("x", 1), 1, ("a1",)) == [("x", 1)]
    for n in (5, 3, 4):
        assert concurrency_limits.request(real, ("y", n), n, ("a1",)) == []
    assert [concurrency_limits.wait_of(real, ("y", n)).ahead for n in (3, 4, 5)] == [0, 1, 2]
    order = []
    granted = [("x", 1)]
    while granted:
        order.append(granted[0][1])
        granted = concurrency_limits.release(real, granted[0])
    assert order == [1, 3, 4, 5]


def test_a_newcomer_does_not_overtake_who_waits_although_there_is_room():
    """b1 has two slots; 7 gets the next one before 8 asks."""
    real = ConcurrencyLimits(capacity=capacity)
    for n in (1, 2):
        concurrency_limits.request(real, ("x", n), n, ("b1",))
    concurrency_limits.request(real, ("x", 7), 7, ("b1",))
    assert concurrency_limits.release(real, ("x", 1)) == [("x", 7)]
    assert concurrency_limits.request(real, ("x", 3), 3, ("b1",)) == []


def test_asking_twice_and_giving_back_what_is_not_held_change_nothing():
    real = ConcurrencyLimits(capacity=capacity)
    concurrency_limits.request(real, ("x", 1), 1, ("a1", "b1"))
    assert concurrency_limits.request(real, ("x", 1), 1, ("a1", "b1")) == []
    assert concurrency_limits.release(real, ("nobody", 1)) == []
    assert concurrency_limits.release(real, ("x", 1), "c1") == []
    assert concurrency_limits.release(real, ("x", 1), "a1") == []
    assert concurrency_limits.release(real, ("x", 1), "a1") == []
    assert concurrency_limits.wait_of(real, ("x", 1)) is None
    assert concurrency_limits.wait_of(real, ("nobody", 1)) is None
    assert list(real.pools) == ["b1"]


def test_tickets_that_come_and_go_do_not_pile_up():
    """An agent connects and disconnects all day, while its runs wait for a full pool."""
    real = ConcurrencyLimits(capacity=capacity)
    concurrency_limits.request(real, ("holder", 1), 1, ("a1",))
    for _ in range(200):
        for n in range(10, 20):
            concurrency_limits.request(real, ("x", n), n, ("a1",))
        for n in range(10, 20):
            concurrency_limits.release(real, ("x", n))
    assert real.pools["a1"].lines == {}
    concurrency_limits.request(real, ("x", 12), 12, ("a1",))
    concurrency_limits.request(real, ("x", 11), 11, ("a1",))
    assert concurrency_limits.wait_of(real, ("x", 12)).ahead == 1
    assert concurrency_limits.release(real, ("holder", 1)) == [("x", 11)]


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (
            lambda s: s.pools["a1"].holders.add(("ghost", 1)),
            "a1 is held by ('ghost', 1), which does not know",
        ),
        (lambda s: s.pools["a1"].holders.discard(("x", 1)), "('x', 1) believes it holds a1"),
        (
            lambda s: s.pools.update(c1=concurrency_limits.Pool(capacity=1)),
            "c1 is kept though unused",
        ),
        (lambda s: setattr(s.pools["a1"], "capacity", 2), "a1 has room and somebody waits"),
    ],
)
def test_the_checker_sees_broken_books(harm, sentence):
    real = ConcurrencyLimits(capacity=capacity)
    concurrency_limits.request(real, ("x", 1), 1, ("a1",))
    concurrency_limits.request(real, ("y", 2), 2, ("a1",))
    assert concurrency_limits.violations(real) == []
    harm(real)
    assert sentence in concurrency_limits.violations(real)
