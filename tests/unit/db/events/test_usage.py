"""What each event adds to the usage: values of executions and runs, unknown values, repeated ends,
and the arithmetic of rows.
"""

from datetime import UTC, datetime

import msgspec
import pytest
from event_strategies import (
    JID,
    KEY,
    UID,
    ended,
    histories,
    life,
    placed,
    requested,
    started,
    token,
)
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.db.events.events import (
    RunEnded,
    StopRequested,
    TaskEnded,
    TaskHeld,
    TaskSubmitted,
)
from jobscribe.db.events.job_fold import evolve
from jobscribe.db.events.state import Job
from jobscribe.db.events.usage import increment
from jobscribe.db.events.usage_row import (
    ALL_MONTHS,
    DAY,
    HOUR,
    MOST,
    SUMS,
    UsageRow,
    add,
    end_of,
    limited,
    limits,
    longer,
    merged,
    month_of,
    summed,
)
from jobscribe.protocol.clusters.batch import BatchRequest, BatchState
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.jobs.exit_info import ExitFacts, ExitInfo
from jobscribe.protocol.jobs.roles import TaskRole

T = 1.7e9
MEASURED = {
    "started_at": T + 100.0,
    "ended_at": T + 110.0,
    "user_secs": 7.0,
    "system_secs": 0.5,
    "max_rss_bytes": 2 << 20,
    "stdout_bytes": 1000,
    "stderr_bytes": 10,
    "dropped_bytes": 400,
}


def rows_of(*events) -> list[UsageRow]:
    job, rows = Job(jid=JID), []
    for event in events:
        rows.append(increment(job, event))
        job = evolve(job, event)
    return [row for row in rows if row is not None]


def execution(*, exit_=None, task=None, **fields) -> UsageRow:
    """Return the usage of one execution of a run with these fields."""
    t = task or token(1)
    (row,) = rows_of(
        requested(1, **fields), placed(t), started(t), ended(t, T + 200, **(exit_ or MEASURED))
    )
    return row


def test_an_allocation_that_slurm_holds_is_charged_and_a_hold_of_this_system_is_not() -> None:
    t, exit_ = token(1), ExitInfo(code=3, **MEASURED)
    submitted = TaskSubmitted(at=T, token=t, batch=BatchState(cluster="hpc", job_id="7"))
    for batch, secs in (((submitted,), 10 + 60), ((), 10)):
        (row,) = rows_of(
            requested(1, debug_secs=600.0),
            placed(t),
            *batch,
            started(t),
            TaskHeld(at=T + 120, token=t, exit=exit_, secs=600.0),
            TaskEnded(at=T + 180, token=t, exit=exit_),
        )
        assert (row.wall_ms, row.core_ms) == (secs * 1000, secs * 1000)


def sums(row: UsageRow) -> dict[str, int]:
    return {name: value for name in (*SUMS, "peak_bytes") if (value := getattr(row, name))}


def test_a_plain_run_uses_one_core_and_the_peak_of_its_memory():
    row = execution()
    assert sums(row) == {
        "executions": 1,
        "wall_ms": 10_000,
        "core_ms": 10_000,
        "cpu_ms": 7_500,
        "memory_mib_ms": 20_000,
        "peak_bytes": 2 << 20,
        "output_bytes": 610,
    }
    assert row.key == (
        int(T + 200) // HOUR * HOUR,
        "hour",
        UID,
        "default",
        "local",
        "sequential",
        "command",
    )


def test_the_key_is_what_the_run_requested():
    row = execution(queue="night", job_run_mode="parallel", simulation_type="myapp")
    assert row.key[3:] == ("night", "local", "parallel", "myapp")


def test_a_task_of_a_role_uses_what_the_role_reserves():
    role = TaskRole(name="main", command=("x",), cpu=4, memory_mb=300, gpu=2)
    row = execution(roles=(TaskRole(name="other", command=("x",), cpu=9), role), command=())
    assert (row.wall_ms, row.core_ms, row.gpu_ms) == (10_000, 40_000, 20_000)
    assert row.memory_mib_ms == 300 * 10_000
    assert row.peak_bytes == 2 << 20


@pytest.mark.parametrize(
    ("request_", "cores", "gpus", "mib"),
    [
        (BatchRequest(), 1, 0, None),
        (BatchRequest(tasks=6, cores=2, nodes=3, memory_mb=50, gpus=4), 12, 12, 150),
        (BatchRequest(nodes=3, tasks_per_node=5), 15, 0, None),
        (BatchRequest(cores=8, memory_mb=64), 8, 0, 64),
    ],
)
def test_a_slurm_job_uses_what_it_requests(request_, cores, gpus, mib):
    row = execution(batch=request_)
    assert (row.core_ms, row.gpu_ms) == (cores * 10_000, gpus * 10_000)
    assert row.memory_mib_ms == (2 if mib is None else mib) * 10_000


def test_the_peak_is_the_larger_one_of_both_that_are_known():
    facts = ExitFacts(memory_peak_bytes=5 << 20)
    assert execution(exit_={**MEASURED, "facts": facts}).peak_bytes == 5 << 20
    assert (
        execution(exit_={**MEASURED, "facts": facts, "max_rss_bytes": None}).peak_bytes == 5 << 20
    )


def test_unknown_is_counted_and_is_not_0():
    assert sums(execution(exit_={"code": 0})) == {
        "executions": 1,
        "wall_unknown": 1,
        "cpu_unknown": 1,
        "memory_unknown": 1,
        "output_unknown": 1,
    }
    partly = execution(exit_={**MEASURED, "system_secs": None, "stderr_bytes": None})
    assert (partly.cpu_ms, partly.cpu_unknown, partly.output_bytes) == (0, 1, 600)
    no_peak = execution(exit_={**MEASURED, "max_rss_bytes": None})
    assert (no_peak.memory_mib_ms, no_peak.memory_unknown, no_peak.wall_unknown) == (0, 1, 0)


def test_a_start_that_failed_used_nothing_and_an_exit_without_start_has_the_one_that_was_reported():
    failed = execution(exit_={"source": "start", "detail": "x", "code": None})
    assert sums(failed) == {"executions": 1, "output_unknown": 1}
    # `started` reports a start half a second before its event
    known = execution(exit_={**MEASURED, "started_at": None, "ended_at": T + 9.5})
    assert known.wall_ms == 10_000
    back = execution(exit_={**MEASURED, "ended_at": T})
    assert (back.wall_ms, back.wall_unknown) == (0, 0), "the clock was set back"


@pytest.mark.parametrize("status", ["completed", "canceled", "error"])
def test_a_run_counts_once_by_its_status(status):
    end = RunEnded(at=T + 5, serial=1, status=status, reason="exit")
    (row,) = rows_of(requested(1), end, end)
    assert sums(row) == {"failed" if status == "error" else status: 1}


def test_a_repeated_end_adds_nothing():
    t, again = token(1), ended(token(1), T + 300, **MEASURED)
    rows = rows_of(*life(1), again, again, ended(token(2)), ended(token(1, 2)))
    assert [sums(r)["executions"] for r in rows if r.executions] == [1]
    assert t == again.token


def test_the_end_of_an_earlier_run_is_charged_as_it_was_requested():
    stop = StopRequested(at=T + 1, serial=1, reason="cancel", by=UID, grace_secs=1.0)
    t = token(1)
    role = TaskRole(name="main", command=("x",), cpu=3)
    rows = rows_of(
        requested(1, queue="night", simulation_type="old", roles=(role,), command=()),
        placed(t),
        started(t),
        stop,
        RunEnded(at=T + 2, serial=1, status="canceled", reason="cancel"),
        requested(2, T + 3, queue="day", simulation_type="new"),
        ended(t, T + 200, **MEASURED),
        ended(t, T + 201, **MEASURED),
    )
    assert [(r.key[3], r.key[6], sums(r).get("core_ms")) for r in rows] == [
        ("night", "old", None),
        ("night", "old", 30_000),
    ]


def test_an_earlier_run_keeps_its_slurm_request_until_its_last_task_ended():
    key = AgentKey("sbatch", "parallel", UID, "hpc")
    t = token(1)
    job = Job(jid=JID)
    for event in (
        requested(1, driver="sbatch", batch=BatchRequest(cores=8)),
        msgspec.structs.replace(placed(t), agent_key=key),
        RunEnded(at=T + 2, serial=1, status="canceled", reason="cancel"),
        requested(2, T + 3),
    ):
        job = evolve(job, event)
    end = ended(t, T + 200, **MEASURED)
    row = increment(job, end)
    assert (row.core_ms, row.driver) == (80_000, "sbatch")
    past = evolve(job, end).history[0]
    assert (past.batch, past.queue, past.simulation_type) == (msgspec.UNSET, "", "")


@given(histories)
def test_any_history_adds_each_execution_and_each_run_at_most_once(events):
    """No sequence of events raises, and what has ended before adds nothing."""
    job = Job(jid=JID)
    for event in events:
        task = job.task(event.token) if isinstance(event, TaskEnded) else None
        row = increment(job, event)
        if isinstance(event, TaskEnded):
            assert (row is not None) == (task is not None and task.live)
        elif row is not None:
            assert isinstance(event, RunEnded)
        job = evolve(job, event)
        assert (
            not isinstance(event, RunEnded | TaskEnded)
            or increment(job, event) is None
            or any(t.token == event.token for t in job.live_tasks())
        )


# ---- rows


def row(start=0, span="hour", **fields) -> UsageRow:
    key = {"uid": UID, "queue": "default", "driver": "local", "kind": "sequential"}
    return UsageRow(start=start, span=span, simulation_type="x", **{**key, **fields})


def test_sums_add_and_stop_at_the_limit_and_the_peak_is_the_largest():
    total = add(row(wall_ms=1, peak_bytes=7), row(wall_ms=2, cpu_ms=MOST, peak_bytes=5))
    assert (total.wall_ms, total.cpu_ms, total.peak_bytes) == (3, MOST, 7)
    assert add(total, total).cpu_ms == MOST
    assert [limited(v) for v in (-1.0, 1.6, 1e300)] == [0, 2, MOST]


def at(*date) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp())


def test_periods_of_the_calendar():
    assert month_of(at(2024, 2, 29, 23)) == at(2024, 2, 1)
    assert end_of(row(at(2024, 2, 1), "month")) == at(2024, 3, 1)
    assert end_of(row(at(2023, 12, 1), "month")) == at(2024, 1, 1)
    assert end_of(row(at(2024, 2, 3), "day")) == at(2024, 2, 4)
    assert end_of(row(3600)) == 7200


def test_hours_become_days_after_8_days_and_months_after_92():
    due = limits(at(2024, 7, 31, 12))
    assert due == (at(2024, 7, 23), at(2024, 4, 1))
    for start, span, becomes in (
        (at(2024, 7, 23), "hour", "hour"),
        (at(2024, 7, 22, 23), "hour", "day"),
        (at(2024, 4, 1), "day", "day"),
        (at(2024, 3, 31), "day", "month"),
        (at(2024, 3, 31, 5), "hour", "month"),
        (at(2020, 3, 1), "month", "month"),
    ):
        changed = longer(row(start, span), due)
        assert changed.span == becomes
        assert changed.start <= start < end_of(changed)


rows = st.lists(
    st.builds(
        row,
        st.integers(0, 300 * 24).map(lambda n: n * HOUR),
        wall_ms=st.integers(0, MOST),
        peak_bytes=st.integers(0, 9),
        queue=st.sampled_from(["a", "b"]),
    ),
    max_size=12,
)


@given(rows, st.integers(0, 400 * DAY), st.randoms())
def test_sums_do_not_depend_on_the_order_or_on_when_periods_are_merged(rows, newest, random):
    shuffled = random.sample(rows, len(rows))
    assert summed(rows) == summed(shuffled)
    early = merged(summed(merged(shuffled, limits(newest)).values()).values(), ALL_MONTHS)
    assert early == merged(rows, ALL_MONTHS)
    assert merged(merged(rows, limits(newest)).values(), limits(newest)) == merged(
        rows, limits(newest)
    )


def test_an_exit_of_nobody_is_charged_with_what_is_known():
    lost = TaskEnded(at=T + 9, token=token(1), exit=ExitInfo(source="lost", detail="gone"))
    (usage,) = rows_of(requested(1), placed(token(1)), lost)
    assert (usage.executions, usage.wall_unknown, usage.driver) == (1, 1, KEY.driver)
