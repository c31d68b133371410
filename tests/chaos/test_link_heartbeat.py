"""When an end of a link pings, gives up, or doubts its own timing, on a manual clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.protocol.wire.heartbeat import Heartbeat, HeartbeatTiming

PACES = [
    HeartbeatTiming(20.0, 10.0),
    HeartbeatTiming(0.5, 0.25),
    HeartbeatTiming(3.0, 3.0),
    HeartbeatTiming(600.0, 1.0),
]


def looks(
    heart: Heartbeat, pace: HeartbeatTiming, begin: float, secs: float
) -> list[tuple[float, str]]:
    """Return the heartbeat's results, checked at its own pace, without `fine`."""
    out, now = [], begin
    while now < begin + secs:
        now += pace.step
        if (verdict := heart.check(now)) != "fine":
            out.append((now - begin, verdict))
    return out


@pytest.mark.parametrize("pace", PACES, ids=str)
@pytest.mark.parametrize("ahead", [0.0, 0.5])
def test_an_end_that_is_silent_is_given_up_within_three_intervals_and_not_before_its_time(
    pace: HeartbeatTiming, ahead: float
) -> None:
    heart = Heartbeat(pace, 1000.0, ahead=ahead * pace.interval)
    said = looks(heart, pace, 1000.0, 3 * pace.interval)
    assert [verdict for _, verdict in said][:2] == ["ask", "gone"]
    (asked, _), (gone, _) = said[:2]
    assert (
        asked >= pace.interval * (1 - ahead)
        and pace.timeout <= gone - asked <= pace.timeout + 2 * pace.step
    )
    assert gone <= 3 * pace.interval


@pytest.mark.parametrize("pace", PACES, ids=str)
def test_an_end_that_answers_is_asked_once_an_interval_for_ever(pace: HeartbeatTiming) -> None:
    heart, asked, now = Heartbeat(pace, 0.0), 0, 0.0
    for _ in range(2000):
        now += pace.step
        if (verdict := heart.check(now)) == "ask":
            asked += 1
            heart.record_receipt()
        assert verdict in ("ask", "fine")
    assert asked == pytest.approx(now / pace.interval, rel=0.3, abs=1)


@given(st.sampled_from(PACES), st.floats(0.0, 3.0), st.floats(1.01, 100.0))
def test_who_stood_still_for_long_was_given_up_and_knows_it_for_good(
    pace: HeartbeatTiming, before: float, more: float
) -> None:
    heart = Heartbeat(pace, 0.0)
    now = pace.step * before
    heart.check(now)
    now += pace.given_up * more
    assert (
        heart.was_suspended(now)
        and heart.check(now) == "slept"
        and heart.was_suspended(now + pace.step)
    )


@pytest.mark.parametrize("pace", PACES[:3], ids=str)
def test_who_did_not_run_for_a_moment_asks_again_before_it_judges(pace: HeartbeatTiming) -> None:
    """The answer may lie in the socket, unread."""
    heart, now = Heartbeat(pace, 0.0), 0.0
    while heart.check(now) != "ask":
        now += pace.step
    now += pace.timeout * 1.2
    assert heart.check(now) == "ask"
    heart.record_receipt()
    assert [v for _, v in looks(heart, pace, now, pace.interval * 0.7)] == []
