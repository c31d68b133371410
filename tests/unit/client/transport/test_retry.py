"""When a client repeats a request, and when it gives up."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.client.api.cursors import LONGEST_PAUSE, SHORTEST_PAUSE, PollBackoff
from jobscribe.client.api.errors import ClientError, from_reply, own
from jobscribe.client.transport.retry import FIRST_SECS, LONGEST_SECS, Retry

BUSY = ClientError("storageUnavailable", "disk full", "", True)
WRONG = ClientError("badRequest", "no", "", False)
BUG = ClientError("internal", "oops", "", True)


def test_what_cannot_succeed_later_is_not_tried_again() -> None:
    assert Retry(100.0).failed(WRONG, 0.0, 0.5) is None


def test_the_delays_grow_and_never_pass_the_longest() -> None:
    retry = Retry(1e9)
    delays = [retry.failed(BUSY, float(i), 0.999) for i in range(40)]
    assert delays[0] == pytest.approx(FIRST_SECS, rel=0.01)
    assert all(a is not None and b is not None and b >= a for a, b in itertools.pairwise(delays))
    assert delays[-1] == pytest.approx(LONGEST_SECS, rel=0.01)


def test_a_supervisor_that_names_a_time_is_asked_no_earlier() -> None:
    flooded = ClientError("tooManyRequests", "slow down", "", True, {"retryAfterSecs": 7})
    assert Retry(100.0).failed(flooded, 0.0, 0.0) == 7.0
    assert Retry(3.0).failed(flooded, 0.0, 0.0) == 3.0, "within the budget"


@given(st.floats(0.0, 0.999), st.floats(0.1, 60.0))
def test_the_budget_counts_from_the_first_failure_and_ends(roll: float, budget: float) -> None:
    retry = Retry(budget)
    now = begun = 1000.0
    while (delay := retry.failed(BUSY, now, roll)) is not None:
        assert 0 < delay <= LONGEST_SECS
        now += delay
        assert now <= begun + budget + 1e-6
    assert now >= begun + budget - 1e-6


def test_an_internal_error_is_not_hammered() -> None:
    retry = Retry(1e9)
    assert [retry.failed(BUG, 0.0, 0.5) is None for _ in range(3)] == [False, False, True]


def test_a_pause_is_only_for_answers_that_did_not_wait() -> None:
    pause = PollBackoff()
    assert pause.after(5.0) == 0.0
    pauses = [pause.after(0.001) for _ in range(10)]
    assert pauses[0] == SHORTEST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    pause.reset()
    assert pause.after(0.0) == SHORTEST_PAUSE


@pytest.mark.parametrize(
    "raw", [b"", b"<html>", b"[]", b'{"state":"error"}', b"\xff", b'{"code":"badRequest"}']
)
def test_an_error_that_no_supervisor_wrote_is_said_to_be_one(raw: bytes) -> None:
    error = from_reply(502, raw)
    assert error.code == "notASupervisor"
    assert error.retry
    assert "502" in error.sentence


def test_an_error_of_the_supervisor_crosses_unchanged() -> None:
    body = {
        "state": "error",
        "code": "anotherRun",
        "error": "busy",
        "advice": "wait",
        "retry": False,
    }
    error = ClientError("anotherRun", "busy", "wait", False)
    assert error.body() == body
    assert own("unreachable", "x").body()["retry"] is True
