"""Fair share: who is next, decay, shares of queues, and the order that `turns` predicts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.supervisor.core.resources.fair_share import (
    Account,
    FairShare,
    QueueRule,
    ShareRules,
)

A, B, C = (Account("default", uid) for uid in ("user000A", "user000B", "user000C"))
HOUR = 3600.0


def fair(**queues: QueueRule) -> FairShare:
    rules = {"queues": queues} if queues else {}
    return FairShare(ShareRules(half_life_secs=HOUR, **rules))


def run(share: FairShare, account: Account, secs: float, cores: float = 1.0) -> None:
    share.begin("x", account, cores)
    share.now += secs
    share.end("x")


def test_who_used_less_goes_first_and_ties_go_by_submission():
    share = fair()
    assert share.first({A: 2, B: 1}, {}, 1) == B
    run(share, B, 10.0)
    assert share.first({A: 2, B: 1}, {}, 1) == A
    run(share, A, 11.0)
    assert share.first({A: 2, B: 1}, {}, 1) == B


def test_usage_counts_half_after_a_half_life_and_time_changes_no_order():
    share = fair()
    run(share, A, 100.0)
    run(share, B, 90.0)
    used = share.usage(A)
    share.now += HOUR
    assert share.usage(A) == pytest.approx(used / 2)
    for _ in range(50):
        share.now += 10 * HOUR
        assert share.first({A: 1, B: 2}, {}, 1) == B
    share.charge(C, 1.0)
    assert set(share.accounts) == {C}, "what has decayed is forgotten"
    assert share.usage(C) == pytest.approx(1.0)


def test_cores_count():
    share = fair()
    run(share, A, 10.0, cores=4)
    run(share, B, 39.0)
    assert share.first({A: 1, B: 2}, {}, 1) == B


def test_what_is_held_counts_before_it_ends():
    share = fair()
    share.begin("a", A, 1.0)
    assert share.first({A: 1, B: 2}, {}, 2) == B, "not both slots"
    share.now += 50.0
    run(share, B, 49.0)
    assert share.first({A: 1, B: 2}, {}, 2) == B
    run(share, B, 60.0)
    assert share.level(A) == pytest.approx(159.0)
    assert share.first({A: 1, B: 2}, {}, 2) == B
    share.end("a")
    assert share.usage(A) == pytest.approx(159.0) and share.holdings == {}


def test_a_repeated_begin_or_end_counts_once():
    share = fair()
    share.begin("a", A, 1.0, ago=5.0)
    share.begin("a", A, 1.0)
    share.now += 5.0
    share.end("a")
    share.end("a")
    assert share.usage(A) == pytest.approx(10.0)


def test_queues_share_slots_by_weight_and_borrow_what_is_idle():
    share = fair(default=QueueRule(share=1.0), big=QueueRule(share=3.0))
    small, big = Account("default", "user000A"), Account("big", "user000B")
    in_use: dict[str, int] = {}
    for _ in range(8):
        account = share.first({small: 1, big: 2}, in_use, 8)
        in_use[account.queue] = in_use.get(account.queue, 0) + 1
    assert in_use == {"default": 2, "big": 6}
    assert share.first({small: 1}, {"default": 7}, 8) == small, "nobody else wants it"


def test_a_queue_that_may_not_borrow_keeps_to_its_share():
    share = fair(default=QueueRule(share=3.0), small=QueueRule(share=1.0, borrow=False))
    small = Account("small", "user000A")
    assert share.rules.entitled("small", 8) == 2
    assert share.first({small: 1}, {"small": 1}, 8) == small
    assert share.first({small: 1}, {"small": 2}, 8) is None
    assert share.first({small: 1, A: 2}, {"small": 2, "default": 6}, 8) == A
    assert share.rules.entitled("small", 1) == 1, "a share is never nothing"


def test_a_queue_that_is_no_longer_configured_is_the_default_queue():
    assert fair().rules.name_of("gone") == "default"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([A, B, C]), st.floats(0.1, 50.0)), min_size=1, max_size=40),
    st.lists(st.integers(1, 20), min_size=3, max_size=3),
)
def test_turns_are_what_happens_if_each_run_takes_the_mean(history, lengths):
    """One slot; nothing else arrives. `before` counts the same runs."""
    share = fair()
    for account, secs in history:
        run(share, account, secs)
    lines = {
        account: [(10 * n + i, f"{account.uid} {n}") for n in range(length)]
        for i, (account, length) in enumerate(zip((A, B, C), lengths, strict=True))
    }
    expected = [t for _, t in share.turns(lines, {}, 1)]
    assert sorted(expected) == sorted(t for line in lines.values() for _, t in line)
    for account, line in lines.items():
        for own, (_, ticket) in enumerate(line):
            others = {a: len(other) for a, other in lines.items() if a != account}
            ahead = share.before(account, own, others)
            true = expected.index(ticket) - own
            assert abs(ahead - true) <= len(others), "equal levels go by submission"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.5, 20.0), min_size=2, max_size=5), st.integers(1, 4))
def test_users_who_always_wait_get_equal_time(means, slots):
    """Each user's runs take another time. After many runs, the core time differs by less than a
    few runs.
    """
    share = fair()
    share.rules = ShareRules(half_life_secs=1e9)
    users = [Account("default", f"user{n:04}") for n in range(len(means))]
    ends: list[tuple[float, int]] = []
    number = 0
    while number < 400:
        while len(ends) < slots:
            number += 1
            account = share.first({u: n for n, u in enumerate(users)}, {}, slots)
            share.begin(number, account, 1.0)
            ends.append((share.now + means[users.index(account)], number))
        ends.sort()
        share.now, name = ends.pop(0)
        share.end(name)
    used = [share.usage(u) for u in users]
    assert max(used) - min(used) <= 2 * slots * max(means)
