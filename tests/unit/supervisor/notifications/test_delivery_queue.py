"""Delivery of notifications: in order per job, at least once, with exponential backoff, and never
after a delivery was given up.
"""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.supervisor.notifications.delivery_queue import (
    FIRST_PAUSE_SECS,
    LONGEST_PAUSE_SECS,
    MOST_WAITING,
    Queue,
    SavedTarget,
)

GIVE_UP = 3_600.0


def made(
    kept: SavedTarget | None = None,
    *,
    now: float = 0.0,
    wall: float = 1e9,
    parallel: int = 4,
    jitter: Callable[[], float] = lambda: 1.0,
) -> Queue:
    return Queue(
        kept or SavedTarget(cursor=0),
        now=now,
        wall=wall,
        give_up_secs=GIVE_UP,
        parallel=parallel,
        jitter=jitter,
    )


def started(queue: Queue, now: float) -> list[int]:
    return [w.position for w in queue.start(now)]


def test_of_one_job_one_after_another_of_several_side_by_side() -> None:
    q = made(parallel=2)
    for position, stream in enumerate("aabbc", 1):
        q.take(position, stream, position, 0.0)
    assert started(q, 0.0) == [1, 3] and started(q, 0.0) == [] and q.next_at() is None
    q.delivered(3)
    assert started(q, 0.0) == [4]
    q.delivered(1)
    assert started(q, 0.0) == [2] and q.cursor == 5


def test_a_target_that_fails_is_tried_with_one_at_a_time_and_growing_pauses() -> None:
    q, now, pauses = made(), 0.0, []
    for position in range(1, 5):
        q.take(position, str(position), 1, now)
    assert started(q, now) == [1, 2, 3, 4]
    for position in range(1, 5):
        q.failed(position, now)
    tried = []
    for _ in range(12):
        at = q.next_at()
        assert at is not None and started(q, at - 0.01) == []
        (one,) = started(q, at)
        tried.append(one)
        pauses.append(at - now)
        now = at
        q.failed(one, now)
    assert tried[:4] == [1, 2, 3, 4], "not always the same one"
    assert pauses[:4] == [8.0, 16.0, 32.0, 64.0] and max(pauses) == LONGEST_PAUSE_SECS
    at = q.next_at()
    assert at is not None
    (one,) = started(q, at)
    q.delivered(one)
    assert q.failures == 0 and len(started(q, at + LONGEST_PAUSE_SECS)) == 3, (
        "once it takes one, all are tried"
    )


def test_one_that_is_refused_keeps_only_those_of_its_own_job_waiting() -> None:
    q = made(parallel=8)
    q.take(1, "poison", 1, 0.0)
    q.take(2, "poison", 2, 0.0)
    assert started(q, 0.0) == [1]
    assert not q.failed(1, 0.0)
    for position in range(3, 40):
        q.take(position, str(position), 1, 1.0)
    now, delivered = 1.0, 0
    while delivered < 37:
        for position in started(q, now):
            if position == 1:
                assert not q.failed(1, now)
            else:
                assert position != 2
                q.delivered(position)
                delivered += 1
        now += 0.1
    assert now < 10 and set(q.waiting) == {1, 2}


def test_jitter_spreads_the_tries() -> None:
    low, high = made(jitter=lambda: 0.0), made(jitter=lambda: 1.0)
    for q in (low, high):
        q.take(1, "a", 1, 0.0)
        q.start(0.0)
        q.failed(1, 0.0)
    assert (low.next_at(), high.next_at()) == (FIRST_PAUSE_SECS / 2, FIRST_PAUSE_SECS)


def test_what_a_target_asks_for_is_kept_up_to_an_hour() -> None:
    q = made()
    q.take(1, "a", 1, 0.0)
    q.start(0.0)
    q.failed(1, 0.0, asked_secs=30.0)
    assert q.next_at() == 30.0
    q.start(30.0)
    q.failed(1, 30.0, asked_secs=1e9)
    assert q.next_at() == GIVE_UP, "the last try is when its time is over"


def test_it_is_given_up_when_its_time_is_over_and_tried_until_then() -> None:
    q = made()
    q.take(1, "a", 1, 0.0)
    now, gone = 0.0, False
    while not gone:
        (one,) = started(q, now)
        gone = q.failed(one, now)
        if not gone:
            at = q.next_at()
            assert at is not None and now < at <= GIVE_UP
            now = at
    assert now == GIVE_UP and not q.waiting and q.next_at() is None


def test_a_last_word_is_the_last() -> None:
    q = made()
    q.take(1, "a", 1, 0.0)
    q.take(2, "a", 2, 0.0)
    q.start(0.0)
    assert q.failed(1, 0.0, final=True) and list(q.waiting) == [2]


def test_those_that_never_had_a_turn_are_given_up_with_a_target_that_takes_nothing() -> None:
    q = made()
    for position in range(1, 51):
        q.take(position, str(position), 1, 0.0)
    assert len(started(q, 0.0)) == 4 and q.expired(1e6) == [], "it may be well, only slow"
    for position in range(1, 5):
        q.failed(position, 0.0)
    assert q.expired(GIVE_UP - 1) == []
    assert len(q.expired(GIVE_UP)) == 50 and not q.waiting


def test_it_is_full_and_then_roomy_again() -> None:
    q = made()
    for position in range(1, MOST_WAITING + 1):
        assert q.room
        q.take(position, str(position), 1, 0.0)
    assert not q.room and not q.has_room
    for position in range(1, MOST_WAITING // 2 + 1):
        q.waiting[position].in_flight = True
        q.delivered(position)
    assert q.has_room


def test_a_restart_keeps_pauses_and_the_time_that_was_spent_and_no_clock_matters() -> None:
    q = made()
    q.take(1, "a", 7, 100.0)
    q.start(100.0)
    q.failed(1, 100.0, asked_secs=40.0)
    kept = q.kept(110.0, 1e9)
    for wall, left in ((1e9, 30.0), (1e9 + 20, 10.0), (1e9 + 1e8, 0.0), (0.0, GIVE_UP)):
        again = made(kept, now=5.0, wall=wall)
        (w,) = again.waiting.values()
        assert (w.attempts, w.version, w.since) == (1, 7, 5.0 - 10.0)
        at = again.next_at()
        assert at is not None and abs(at - 5.0 - left) < 1e-3


def test_a_checkpoint_that_is_read_again_is_not_told_beside_itself() -> None:
    q = made()
    q.take(1, "a", 1, 0.0)
    q.moved(q.waiting[1], 6, 6)
    assert started(q, 0.0) == [6]
    q.take(6, "a", 6, 0.0)
    assert started(q, 0.0) == [] and q.cursor == 6
    q.delivered(6)
    assert not q.waiting


def test_hurry_tries_at_once_whatever_the_pause() -> None:
    q = made()
    q.take(1, "a", 1, 0.0)
    q.start(0.0)
    q.failed(1, 0.0, asked_secs=3_000.0)
    assert q.retry_now(1.0) == 1 and started(q, 1.0) == [1]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["event", "ok", "fail", "final", "time", "write", "kill", "jump"]),
        st.integers(0, 7),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_whatever_fails_and_dies_each_is_delivered_or_given_up_in_the_order_of_its_job(
    steps: list[tuple[str, int]],
) -> None:
    log: list[str] = []  # streams, by position
    told: list[int] = []  # positions, as the target got them
    given_up: set[int] = set()
    mono, wall = 0.0, 1e9
    disk = SavedTarget(cursor=0)
    q = made(disk, now=mono, wall=wall)
    flying: list[int] = []

    def read_on() -> None:
        while q.cursor < len(log) and q.room:
            q.take(q.cursor + 1, log[q.cursor], q.cursor + 1, mono)

    def fail(final: bool, n: int) -> None:
        position = flying.pop(n % len(flying))
        assert position not in given_up
        if q.failed(position, mono, final=final):
            given_up.add(position)

    def succeed(n: int) -> None:
        position = flying.pop(n % len(flying))
        first = position not in told
        told.append(position)
        earlier = [p for p in range(1, position) if log[p - 1] == log[position - 1]]
        if first:
            assert all(p in told or p in given_up for p in earlier), (
                "the one before it was not told"
            )
        q.delivered(position)

    for what, n in [*steps, ("kill", 0)]:
        match what:
            case "event":
                log.append("abcd"[n % 4])
            case "ok" if flying:
                succeed(n)
            case "fail" | "final" if flying:
                fail(what == "final", n)
            case "time":
                mono, wall = mono + 2.0**n, wall + 2.0**n
            case "jump":
                wall += (n - 4) * 1e7
            case "write":
                disk = q.kept(mono, wall)
            case "kill":
                given_up = {
                    p
                    for p in given_up
                    if p <= disk.cursor and p not in {w.position for w in disk.waiting}
                }
                mono += 1.0
                q, flying = made(disk, now=mono, wall=wall), []
        read_on()
        given_up |= {w.position for w in q.expired(mono)}
        flying += started(q, mono)
        assert set(flying) == {w.position for w in q.waiting.values() if w.in_flight}
    while q.waiting or q.cursor < len(log):
        while flying:
            succeed(0)
        read_on()
        mono += LONGEST_PAUSE_SECS
        wall += LONGEST_PAUSE_SECS
        q.retry_now(mono)
        flying += started(q, mono)
    assert set(told) | given_up == set(range(1, len(log) + 1)), "each is told or given up"
