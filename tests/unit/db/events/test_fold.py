"""The fold accepts any event sequence, is bounded, and ignores late events of earlier runs."""

import msgspec
from event_strategies import (
    JID,
    anything,
    ended,
    events_of,
    histories,
    life,
    placed,
    requested,
    serials,
    started,
    token,
    tokens,
)
from hypothesis import example, given
from hypothesis import strategies as st

from jobscribe.db.events.events import (
    RunEnded,
    RunRequested,
    StopRequested,
    TagsChanged,
    TaskNoticed,
    TaskStarted,
    TaskSubmitted,
    decode,
    encode,
    schema_of,
    type_of,
)
from jobscribe.db.events.job_fold import HISTORY_LENGTH, evolve, fold
from jobscribe.db.events.state import Job


@given(histories)
def test_any_sequence_adds_up_to_a_job(history: list) -> None:
    job = fold(JID, history)
    assert job.version == len(history)
    requests = [e.serial for e in history if isinstance(e, RunRequested)]
    assert (job.run.serial if job.run else None) == (requests[-1] if requests else None)
    assert len(job.history) + job.history_dropped == max(0, len(requests) - 1)
    assert job.busy == (job.status in ("pending", "running") or bool(job.live_tasks()))


@given(histories)
def test_folding_what_was_stored_is_folding_what_happened(history: list) -> None:
    stored = [decode(type_of(e), schema_of(e), encode(e)) for e in history]
    assert stored == history
    assert fold(JID, stored) == fold(JID, history)


@given(histories, events_of(serials, tokens))
@example([requested(1)], TagsChanged(at=2.0, by="EPRSuser", added=("a", "b"), removed=("a",)))
def test_a_late_word_changes_nothing_but_its_place_in_history(history: list, event) -> None:
    job = fold(JID, [*history, requested(9)])
    if isinstance(event, RunRequested | TagsChanged):
        return  # a new run, and the one event that is about no run
    after = evolve(job, event)
    if isinstance(event, TagsChanged):
        # it is about the job, so it is never late
        tags = tuple(sorted({*job.tags, *event.added} - set(event.removed)))
        assert after == msgspec.structs.replace(job, tags=tags, version=job.version + 1)
        return
    serial = getattr(event, "serial", None) or event.token.serial
    assert (
        after.run == job.run
        and after.history_dropped == job.history_dropped
        and after.version == job.version + 1
    )
    assert len(after.history) == len(job.history)
    for old, new in zip(job.history, after.history, strict=True):
        if old.serial != serial:
            assert new == old
        else:
            # only its processes may have ended, or one got a number by which it can be found and
            # killed
            before, now = ({t.token: t for t in p.live_tasks} for p in (old, new))
            told = isinstance(event, TaskStarted | TaskSubmitted | TaskNoticed)
            assert now.keys() == before.keys() if told else now.keys() <= before.keys()
            assert all(
                task == before[token]
                for token, task in now.items()
                if not (told and token == event.token)
            )
            assert (new.status, new.ended_at, new.reason, new.error) == (
                old.status,
                old.ended_at,
                old.reason,
                old.error,
            )


@given(st.integers(HISTORY_LENGTH - 2, HISTORY_LENGTH + 20))
def test_history_is_bounded_and_what_was_dropped_is_counted(runs: int) -> None:
    job = Job(jid=JID)
    for serial in range(1, runs + 1):
        for event in life(serial):
            job = evolve(job, event)
    assert len(job.history) == min(runs - 1, HISTORY_LENGTH)
    assert job.history_dropped == max(0, runs - 1 - HISTORY_LENGTH)
    assert [p.serial for p in job.history] == list(range(runs - len(job.history), runs))


def test_an_earlier_run_that_may_still_live_is_not_dropped() -> None:
    job = fold(JID, [requested(1), placed(token(1)), started(token(1))])
    for serial in range(2, HISTORY_LENGTH + 5):
        for event in life(serial):
            job = evolve(job, event)
    assert job.history[0].serial == 1 and job.busy
    job = evolve(job, ended(token(1)))
    assert not job.busy
    for event in life(HISTORY_LENGTH + 5):
        job = evolve(job, event)
    assert len(job.history) == HISTORY_LENGTH and job.history[0].serial != 1


def test_a_status_is_final() -> None:
    job = fold(
        JID,
        [
            requested(1),
            RunEnded(at=2.0, serial=1, status="canceled", reason="cancel"),
            started(token(1)),
        ],
    )
    assert job.status == "canceled"
    assert evolve(job, RunEnded(at=3.0, serial=1, status="completed", reason="exit")).run == job.run


def test_the_first_stop_stands() -> None:
    stops = [
        StopRequested(at=float(n), serial=1, reason=r, by="u", grace_secs=1.0)
        for n, r in enumerate(("timeLimit", "cancel"))
    ]
    job = fold(JID, [requested(1), *stops])
    assert job.run is not None and job.run.stop is not None and job.run.stop.reason == "timeLimit"


@given(histories, anything)
def test_a_job_is_a_value(history: list, event) -> None:
    job = fold(JID, history)
    before = hash(repr(job))
    evolve(job, event)
    assert hash(repr(job)) == before
