"""Truth tables of the attempt policies: when and how an attempt is decided, which failures are
retried, how often, and with which delay.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.protocol.jobs.roles import Retry, TaskRole
from jobscribe.supervisor.core.runs.attempt_policies import (
    MAX_PAUSE_SECS,
    RetryDecision,
    TaskOutcome,
    Verdict,
    again,
    decided,
)


def role(name, tasks=1, failed=1, succeeded=None):
    return TaskRole(
        name=name, tasks=tasks, command=("true",), min_failed=failed, min_succeeded=succeeded
    )


def ends(text):
    """Parse outcomes: `w0+ w1-` means that task 0 of role w succeeded, then task 1 of it failed."""
    return tuple(TaskOutcome(w[0], int(w[1:-1]), w[-1] == "+") for w in text.split())


# the names of these policies in the manual
DEFAULT = (role("w", 2), role("p", 1))
FOLLOWER = (role("w", 2, None), role("p", 1, None))
MAP_REDUCE = (role("w", 4, 2),)
TENSORFLOW = (role("p", 2), role("w", 2, 1, 2))
ARBITER = (role("a", 1, 1, 1), role("w", 2, None))
ELASTIC = (role("w", 3, 3, 1),)
BOTH = (role("w", 2, 1, 1),)


@pytest.mark.parametrize(
    ("roles", "finals", "expected"),
    [
        (DEFAULT, "", None),
        (DEFAULT, "w0+", None),
        (DEFAULT, "w0+ w1+", None),
        (DEFAULT, "w0+ p0+", None),
        (DEFAULT, "w0+ w1+ p0+", "all"),
        (DEFAULT, "w1-", "- w1"),
        (DEFAULT, "p0-", "- p0"),
        (DEFAULT, "w0+ p0+ w1-", "- w1"),
        (FOLLOWER, "w0- w1-", None),
        (FOLLOWER, "w0- w1- p0-", "all"),
        (FOLLOWER, "w0+ w1+ p0+", "all"),
        (MAP_REDUCE, "w3-", None),
        (MAP_REDUCE, "w3- w0+ w1+", None),
        (MAP_REDUCE, "w3- w0+ w1+ w2+", "all"),
        (MAP_REDUCE, "w3- w0+ w1-", "- w1"),
        (MAP_REDUCE, "w3- w1-", "- w1"),
        (TENSORFLOW, "w0+", None),
        (TENSORFLOW, "w0+ w1+", "+ w1"),
        (TENSORFLOW, "w1+ w0+", "+ w0"),
        (TENSORFLOW, "w0+ p0-", "- p0"),
        (TENSORFLOW, "p0+ p1+", None),
        (TENSORFLOW, "p0+ p1+ w1+", None),
        (TENSORFLOW, "p0+ p1+ w1+ w0+", "+ w0"),
        (TENSORFLOW, "w0+ w1-", "- w1"),
        (ARBITER, "w0- w1-", None),
        (ARBITER, "w0- w1- a0+", "+ a0"),
        (ARBITER, "a0+", "+ a0"),
        (ARBITER, "w0+ a0-", "- a0"),
        (ELASTIC, "w0- w1-", None),
        (ELASTIC, "w0- w1- w2-", "- w2"),
        (ELASTIC, "w0- w1- w2+", "+ w2"),
        (ELASTIC, "w2+", "+ w2"),
        # both limits at once: failure wins, in any order; the reported task is the newest that
        # counts
        (BOTH, "w0+ w1-", "- w1"),
        (BOTH, "w0- w1+", "- w0"),
        (DEFAULT, "w1- w0-", "- w0"),
        (DEFAULT, "p0- w1-", "- p0"),
        (TENSORFLOW, "w0+ w1+ p1-", "- p1"),
    ],
)
def test_when_an_attempt_is_decided(roles, finals, expected):
    verdict = decided(roles, ends(finals))
    match expected and expected.split():
        case None:
            assert verdict is None
        case ["all"]:
            assert (verdict.succeeded, verdict.role, verdict.index) == (True, None, None)
        case [sign, task]:
            assert (verdict.succeeded, verdict.role, verdict.index) == (
                sign == "+",
                task[0],
                int(task[1:]),
            )


@pytest.mark.parametrize(
    ("roles", "finals", "reason"),
    [
        (DEFAULT, "w1-", "[w]: FailedTaskCount 1 has reached MinFailedTaskCount 1."),
        (MAP_REDUCE, "w0- w1-", "[w]: FailedTaskCount 2 has reached MinFailedTaskCount 2."),
        (DEFAULT, "w0- w1-", "[w]: FailedTaskCount 2 has reached MinFailedTaskCount 1."),
        (TENSORFLOW, "w0+ w1+", "[w]: SucceededTaskCount 2 has reached MinSucceededTaskCount 2."),
        (
            FOLLOWER,
            "w0- w1- p0+",
            "All tasks have ended, and no condition was fulfilled before: TotalTaskCount: 3, FailedTaskCount: 2.",
        ),
    ],
)
def test_it_says_by_which_numbers(roles, finals, reason):
    assert decided(roles, ends(finals)).reason == reason


@given(st.data())
def test_whatever_ends_in_whatever_order(data):
    """Compare with the rules stated differently: task by task, in order, until one decides."""
    limit = st.none() | st.integers(1, 3)
    roles = tuple(
        role(name, data.draw(st.integers(1, 4)), data.draw(limit), data.draw(limit))
        for name in data.draw(st.sampled_from(["w", "wp", "wpa"]))
    )
    tasks = data.draw(st.permutations([(r.name, i) for r in roles for i in range(r.tasks)]))
    finals = [TaskOutcome(name, i, data.draw(st.booleans())) for name, i in tasks]
    by_name = {r.name: r for r in roles}
    for n in range(1, len(finals) + 1):
        so_far, newest = finals[:n], finals[n - 1]
        r = by_name[newest.role]
        bound = r.min_succeeded if newest.ok else r.min_failed
        alike = sum(f.role == newest.role and f.ok is newest.ok for f in so_far)
        verdict = decided(roles, so_far)
        if bound is not None and alike >= bound:
            assert (verdict.succeeded, verdict.role, verdict.index) == (
                newest.ok,
                newest.role,
                newest.index,
            )
            break
        if n < len(finals):
            assert verdict is None
        else:
            assert verdict == Verdict(True, verdict.reason, None, None)
    later = decided(roles, finals)
    failures = [by_name[name].min_failed for name, _ in tasks]
    lost = any(
        m is not None and sum(f.role == name and not f.ok for f in finals) >= m
        for (name, _), m in zip(tasks, failures, strict=True)
    )
    assert later.succeeded is not lost, "told of all ends at once, failure wins"


T, C, P, U = "transient", "conflict", "permanent", "unknown"
NO = None


@pytest.mark.parametrize(
    ("policy", "behavior", "before", "delay"),
    [
        (None, T, (), NO),
        (None, C, (), NO),
        (None, P, (), NO),
        (None, U, (), NO),
        # user failure: as often as the run's retry count, regardless of platform failures
        (Retry(), U, (), NO),
        (Retry(count=2), U, (), 0),
        (Retry(count=2), U, (U,), 1),
        (Retry(count=2), U, (U, U), NO),
        (Retry(count=1), U, (C, C, C), 0),
        (Retry(count=1, platform=0), U, (), 0),
        (Retry(count=-1), U, (U,) * 500, 60),
        # platform failure: as often as the platform limit, regardless of the run's retry count
        (Retry(), T, (), 0),
        (Retry(), T, (T,), 1),
        (Retry(), T, (T, T), 2),
        (Retry(), T, (T, T, T), NO),
        (Retry(), T, (U, U, U), 4),
        (Retry(count=5), T, (T, T, T), NO),
        (Retry(platform=0), T, (), NO),
        (Retry(platform=0), C, (), NO),
        (Retry(platform=2), T, (C, C), NO),
        (Retry(platform=2), C, (T, T), NO),
        (Retry(platform=2), C, (T, C), NO),
        (Retry(platform=-1), T, (T,) * 1_000, 60),
        (Retry(platform=-1), C, (T, C) * 1_000, 3600),
        # never retried
        (Retry(count=-1, platform=-1), P, (), NO),
    ],
)
def test_what_is_tried_again(policy, behavior, before, delay):
    answer = again(policy, behavior, before, chance=0.999_999_999)
    if delay is NO:
        assert isinstance(answer, str)
        assert answer
    else:
        assert (answer.behavior, round(answer.delay_secs, 3)) == (behavior, delay)


@pytest.mark.parametrize(
    ("conflicts", "longest"), [(0, 600), (1, 1100), (3, 2100), (6, 3600), (7, 3600), (60, 3600)]
)
@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999_999_999])
def test_the_wait_after_a_conflict_grows_with_chance(conflicts, longest, chance):
    answer = again(Retry(platform=-1), C, (C,) * conflicts + (T,) * 9, chance)
    assert answer.delay_secs == pytest.approx(600 + chance * (longest - 600), abs=1e-3)


def test_the_shortest_wait_after_a_conflict_is_the_runs():
    policy = Retry(platform=-1, conflict_secs=2.0)
    assert again(policy, C, (), 0.9).delay_secs == 2.0
    assert again(policy, C, (C,) * 6, 0.999_999_999).delay_secs == pytest.approx(12.0)


def test_nothing_spins():
    """For attempts that fail at once, in any way, the retry delay doubles up to a minute."""
    policy = Retry(count=-1, platform=-1)
    before = []
    pauses = []
    for behavior in itertools.islice(itertools.cycle((T, U)), 20):
        pauses.append(again(policy, behavior, before, 0.5).delay_secs)
        before.append(behavior)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, *(13 * [MAX_PAUSE_SECS])]


@pytest.mark.parametrize(
    ("policy", "behavior", "before", "said"),
    [
        (None, T, (), "the run requested no retries"),
        (Retry(), U, (), "the run allows no retry"),
        (Retry(platform=0), T, (), "the run allows no platform retry"),
        (Retry(count=2), U, (U, U), "no retry is left: 2 of 2 used"),
        (Retry(platform=2), T, (C, T), "no platform retry is left: 2 of 2 used"),
        (Retry(count=9), P, (), "the failure is permanent"),
    ],
)
def test_it_says_why_nothing_is_tried_again(policy, behavior, before, said):
    assert again(policy, behavior, before, 0.5) == said


@pytest.mark.parametrize(
    ("policy", "behavior", "before", "said"),
    [
        (Retry(), T, (), "the platform caused this failure: platform retry 1 of 3, at once"),
        (Retry(), T, (C,), "the platform caused this failure: platform retry 2 of 3, at once"),
        (Retry(), C, (T,), "resources were not available in time: platform retry 2 of 3, in 600 s"),
        (
            Retry(count=-1),
            U,
            (U, U),
            "the cause may be temporary: retry 3, no limit, in 2 s",
        ),
    ],
)
def test_it_says_what_follows(policy, behavior, before, said):
    answer = again(policy, behavior, before, 0.5)
    assert isinstance(answer, RetryDecision)
    assert answer.reason == said


@given(
    st.builds(Retry, count=st.integers(-1, 5), platform=st.integers(-1, 5)),
    st.sampled_from([T, C, P, U]),
    st.lists(st.sampled_from([T, C, U]), max_size=12),
    st.floats(0, 1, exclude_max=True),
)
def test_caps_hold_and_pauses_are_bounded(policy, behavior, before, chance):
    answer = again(policy, behavior, before, chance)
    used, cap = (
        (before.count(U), policy.count)
        if behavior == U
        else (len(before) - before.count(U), policy.platform)
    )
    if behavior == P or 0 <= cap <= used:
        assert isinstance(answer, str)
    elif behavior == C:
        assert policy.conflict_secs <= answer.delay_secs <= 6 * policy.conflict_secs
    else:
        assert 0 <= answer.delay_secs <= MAX_PAUSE_SECS
        assert (answer.delay_secs == 0) is (before.count(T) + before.count(U) == 0)
