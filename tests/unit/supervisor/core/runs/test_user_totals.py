"""Limits over all runs of a user together: what they use at a time, and hours of a month."""

import datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.db.events.usage_row import UsageRow
from jobscribe.protocol.clusters.queues import Queues, UserLimits
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.resources import concurrency_limits
from jobscribe.supervisor.core.resources.concurrency_limits import ConcurrencyLimits, Portion
from jobscribe.supervisor.core.resources.limit_pools import JobPool, UserTotal
from jobscribe.supervisor.core.resources.monthly_usage import MonthlyUsage, next_month
from jobscribe.supervisor.core.status.run_status import status

EIGHT = {("local", "sequential"): 8, ("local", "parallel"): 8}


def site(kit, plans=(), users=(), cpu=64, **limits):
    return kit.Stage(
        queues=Queues(limits=UserLimits(**limits), plans=dict(plans), users=dict(users)),
        cpu_slots=EIGHT,
        op_run_slots=EIGHT,
        nodes={"local": (kit.node(cpu=cpu, gpus=("0", "1", "2", "3")),)},
    )


def refused(stage):
    (reply,) = stage.asked(fx.ReplyRefusal)
    return reply.refusal


def told(stage, n):
    reply = status(stage.world, stage.job(n), 9, stage.now())
    return reply["queueState"], reply["jobStatusMessage"]


def placed(stage, *ns):
    return [n for n in ns if stage.job(n).live_tasks()]


def up(stage, kit, *uids):
    """Bring up both agents of these users."""
    for uid in uids or (kit.UID,):
        for kind in ("sequential", "parallel"):
            stage.up(kit.key_of(uid, kind))


def gang(stage, kit, n, cpu, **fields):
    stage.gang(kit.role(cpu=cpu, **{"memory_mb": 1, **fields}), n=n)
    stage.answer()


def start(stage, kit, *ns):
    for n in ns:
        (task,) = stage.job(n).live_tasks()
        stage.reports(kit.running(task.token), key=task.agent_key)


def end(stage, kit, n, **exit_):
    start(stage, kit, n)
    stage.end(stage.token(n), **exit_)
    stage.answer()


def test_plain_runs_and_roles_share_the_cores_of_their_user(kit):
    """A run waits if its own cores do not fit, too; and runs of other users do not count."""
    stage = site(kit, total_cores=4)
    up(stage, kit)
    stage.submit(0)
    gang(stage, kit, 1, cpu=3)
    stage.submit(2)
    stage.submit(3, uid=kit.OTHER_UID)
    up(stage, kit, kit.OTHER_UID)
    assert placed(stage, 0, 1, 2) == [0, 1]
    assert stage.job(3, kit.OTHER_UID).live_tasks()
    assert told(stage, 2) == (
        "user_limit",
        "waiting until runs of this user release cores: all of them together may have 4 at a time,"
        " 2 runs hold 4, and it needs 1 (0 ahead)",
    )
    gang(stage, kit, 4, cpu=2)
    end(stage, kit, 0)
    assert placed(stage, 1, 2, 4) == [1, 2], "4 needs 2 cores, and 1 became free"
    assert "2 runs hold 4, and it needs 2" in told(stage, 4)[1]
    end(stage, kit, 2)
    assert placed(stage, 1, 4) == [1]
    stage.submit(5)
    assert placed(stage, 5) == [], "it does not pass an earlier run that needs more"
    assert told(stage, 5)[1].endswith("(1 ahead)")
    stage.cancel(4)
    assert placed(stage, 5) == [5], "the run before it is gone"


def test_gpus_and_memory_of_all_runs_are_limited_too(kit):
    stage = site(kit, total_gpus=2, total_memory=1000)
    up(stage, kit)
    gang(stage, kit, 1, cpu=1, gpu=2, memory_mb=100)
    gang(stage, kit, 2, cpu=1, gpu=1, memory_mb=100)
    gang(stage, kit, 3, cpu=1, memory_mb=900)
    gang(stage, kit, 4, cpu=1, memory_mb=2)
    stage.submit(5)
    assert placed(stage, 1, 2, 3, 4, 5) == [1, 3, 5], "a run without GPUs does not wait for GPUs"
    assert "release GPUs" in told(stage, 2)[1] and "release MB of memory" in told(stage, 4)[1]
    assert not stage.restored().slots.claims.keys() - stage.world.slots.claims.keys()


def test_a_run_that_could_never_start_is_refused(kit):
    stage = site(kit, total_cores=4, total_gpus=1)
    stage.gang(kit.role(cpu=2, tasks=3))
    assert (refused(stage).code, refused(stage).sentence) == (
        "resourceExceeded",
        "it requests 6 cores; all runs of this user together may have 4 at a time",
    )
    stage.gang(kit.role(cpu=1, gpu=2))
    assert "it requests 2 GPUs" in refused(stage).sentence
    assert not stage.log


@pytest.mark.parametrize("restart", [False, True])
def test_the_limit_of_a_plan_counts_runs_of_other_plans(kit, restart):
    stage = site(kit, plans={"free": UserLimits(total_cores=2)})
    up(stage, kit)
    for n in range(3):
        stage.submit(n)
    stage.submit(3, active_plan="free")
    if restart:
        stage.restarted()
        stage.connect(kit.key_of(), *(kit.running(stage.token(n)) for n in range(3)))
    assert placed(stage, 0, 1, 2, 3) == [0, 1, 2]
    assert "may have 2 at a time, 3 runs hold 3" in told(stage, 3)[1]


def test_a_lowered_limit_ends_nothing_and_a_run_that_never_fits_lets_others_pass(kit):
    stage = site(kit, total_cores=8)
    up(stage, kit)
    gang(stage, kit, 0, cpu=6)
    gang(stage, kit, 1, cpu=4)
    stage.submit(2)
    stage.submit(3)
    assert placed(stage, 0, 1, 2, 3) == [0]
    stage.policy = site(kit, total_cores=2).policy
    token = stage.token(0)
    stage.restarted()
    stage.connect(kit.key_of(kind="parallel"), kit.running(token))
    stage.connect()
    assert placed(stage, 0, 1, 2, 3) == [0] and stage.state(0)[0] == "running"
    assert told(stage, 1) == (
        "user_limit",
        "it needs 4 cores, and all runs of this user together may have 2 at a time: it waits until the limit is raised, or until it is canceled",
    )
    stage.end(token)
    assert placed(stage, 1, 2, 3) == [2, 3]
    stage.cancel(1)
    assert stage.state(1)[0] == "canceled"


TOTAL = UserTotal("user0001", "cores")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("request"), st.integers(0, 9), st.integers(1, 5), st.integers(0, 6)),
            st.tuples(st.just("release"), st.integers(0, 9), st.none(), st.none()),
        ),
        max_size=40,
    )
)
def test_whatever_runs_need_the_total_is_kept_and_the_first_run_that_fits_has_it(steps):
    real = ConcurrencyLimits(capacity=lambda limit: 1)
    for what, n, amount, most in steps:
        ticket = (f"job{n}", 1)
        if what == "request":
            portion = {TOTAL: Portion(amount, most)}
            pools = (JobPool(ticket[0]), TOTAL)
            concurrency_limits.request(real, ticket, n, pools, portions=portion)
        else:
            concurrency_limits.release(real, ticket)
        assert concurrency_limits.violations(real) == []
        held = {t: c.portions[TOTAL] for t, c in real.claims.items() if c.held == 2}
        waits = sorted((c.number, c.portions[TOTAL]) for c in real.claims.values() if c.held == 1)
        used = sum(p.amount for p in held.values())
        assert not held or used <= max(p.most for p in held.values())
        first = next((p for _, p in waits if p.amount <= p.most), None)
        assert first is None or used + first.amount > first.most, "it waits although there is room"
    for ticket in list(real.claims):
        concurrency_limits.release(real, ticket)
    assert (real.pools, real.claims) == ({}, {})


# ---- hours of a month


def at(text: str) -> float:
    return datetime.datetime.fromisoformat(text + "+00:00").timestamp()


def row(uid: str, when: str, **sums) -> UsageRow:
    return UsageRow(
        start=int(at(when)) // 3600 * 3600,
        span="hour",
        uid=uid,
        queue="default",
        driver="local",
        kind="sequential",
        simulation_type="myapp",
        **sums,
    )


def use(stage, kit, hours, when, uid=None):
    uid = uid or kit.UID
    stage.world.hours.add((row(uid, when, core_ms=int(hours * 3_600_000)),))


def test_a_run_of_a_user_without_hours_is_refused_with_the_numbers(kit):
    stage = site(kit, core_hours=10.0)
    stage.wall = at("2026-02-27T12:00")
    use(stage, kit, 9.9, "2026-02-03T10:00")
    use(stage, kit, 500.0, "2026-01-31T23:00")
    use(stage, kit, 500.0, "2026-02-03T10:00", kit.OTHER_UID)
    stage.submit(1)
    assert stage.job(1).run, "the hours of January and of others do not count"
    use(stage, kit, 0.1, "2026-02-03T10:00")
    stage.submit(2)
    refusal = refused(stage)
    assert (refusal.code, refusal.http, refusal.body()["retry"]) == ("hoursUsedUp", 403, False)
    assert refusal.sentence == (
        "the user has used 10.0 of 10 core hours of this month (0.0 of them by what runs now);"
        " the next month begins at 2026-03-01 00:00 UTC"
    )
    assert refusal.more["resetsAt"] == at("2026-03-01T00:00")
    assert "jobscribe usage" in refusal.body()["advice"]
    stage.wall = at("2026-03-01T00:00")
    stage.submit(3)
    assert stage.job(3).run, "in March there are hours again"


def test_what_runs_now_counts_and_is_not_ended(kit):
    """Also for runs that wait: they get no slot until the month ends, or the limit is raised."""
    stage = site(kit, core_hours=6.0, gpu_hours=100.0)
    stage.wall = at("2026-02-27T12:00")
    up(stage, kit)
    gang(stage, kit, 0, cpu=2)
    start(stage, kit, 0)
    for n in range(1, 9):
        stage.submit(n)
    stage.submit(9)
    assert placed(stage, *range(10)) == list(range(9))
    stage.pass_time(3 * 3600)
    stage.submit(10)
    said = "6.0 of 6 core hours of this month (6.0 of them by what runs now)"
    assert said in refused(stage).sentence
    end(stage, kit, 1)
    assert placed(stage, 9) == [] and stage.state(0)[0] == "running"
    queue_state, sentence = told(stage, 9)
    assert queue_state == "user_limit" and sentence.startswith("waiting for hours: the user has")
    timer = timers.HoursCheck(kit.key_of())
    stage.fire(timer)
    assert placed(stage, 9) == [] and stage.clock[timer] == 600.0
    over = kit.ended(stage.token(0))
    exit_ = msgspec.structs.replace(over.exit, ended_at=kit.WALL + 3 * 3600)
    stage.reports(msgspec.structs.replace(over, exit=exit_), key=kit.key_of(kind="parallel"))
    assert "6.0 of 6 core hours of this month (0.0 of them" in told(stage, 9)[1]
    stage.wall = at("2026-03-01T00:00") - 60
    stage.fire(timer)
    assert stage.clock[timer] == 61.0
    stage.pass_time(61)
    stage.fire(timer)
    assert placed(stage, 9) == [9]


def test_a_restart_reads_the_hours_of_the_month(kit):
    stage = site(kit, users={kit.UID: UserLimits(gpu_hours=1.0)}, core_hours=1.0)
    months = [row(kit.UID, "2026-02-03T10:00", core_ms=3_600_000, gpu_ms=3_599_000)]
    stage.wall = at("2026-02-27T12:00")
    stage.world.restore([], [], (), stage.now(), months)
    stage.submit(1)
    assert "core hours" in refused(stage).sentence


def test_old_months_are_forgotten_and_the_next_one_begins_at_its_first_second():
    usage = MonthlyUsage()
    for month in ("2025-11", "2025-12", "2026-01"):
        usage.add([row("u", f"{month}-15T00:00", gpu_ms=5)])
    assert sorted(usage.months) == [at("2025-12-01T00:00"), at("2026-01-01T00:00")]
    assert usage.of("u", at("2026-01-31T23:59:59")).gpu_ms == 5
    assert usage.of("u", at("2026-02-01T00:00:00")).gpu_ms == 0
    assert next_month(at("2025-12-31T23:59:59")) == at("2026-01-01T00:00")
    assert next_month(at("2026-01-01T00:00")) == at("2026-02-01T00:00")
