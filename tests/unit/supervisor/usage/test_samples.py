"""Resource usage of tasks and its totals: means and sums of known values only. The newest samples
count, in bounded memory, and only from the owner.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from in_memory_supervisor import OTHER, UID, WALL, Agent, InMemorySupervisor

from jobscribe.db.events.state import Attempt, Job, Run, Task
from jobscribe.db.records.resource_usage import result_usage, total
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.status import COMPLETED, RUNNING
from jobscribe.protocol.wire.messages import ContainerSample, Sample, Samples
from jobscribe.supervisor.usage import samples as samples_module
from jobscribe.supervisor.usage.summary import (
    ADDED,
    NOW,
    PEAK,
    SERIES_POINTS,
    TaskUsage,
    job_metrics,
)
from jobscribe.supervisor.usage.time_series import MAX_POINTS, NAMES, Series

JID = f"{UID}-sim00001-command"


def sample(token: Token, at: float = WALL, **fields: Any) -> Sample:
    kind = ContainerSample if "sent_bytes" in fields else Sample
    return kind(**{**dict.fromkeys(kind.__struct_fields__), "token": token, "at": at, **fields})


def say(agent: Agent, *samples: Sample) -> None:
    agent.say(Samples(samples=samples))


def metrics(in_memory: InMemorySupervisor, jid: str, **options: Any) -> dict[str, Any]:
    return in_memory.metering.metrics_of(in_memory.desk.job(jid[:8], jid).job, **options)


# ---- receiving samples


async def test_the_newest_sample_is_told_and_is_no_event() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    (nothing,) = metrics(in_memory, jid)["tasks"]
    assert nothing["running"] and {nothing[n] for n in (*NOW, *ADDED, *PEAK)} == {None}, "not 0"
    head = in_memory.store.head()
    say(
        agent,
        sample(token, WALL + 1, cpu_percent=20.0, memory_bytes=100, cpu_secs=1.0, read_bytes=0),
    )
    in_memory.mono += 5
    say(
        agent,
        sample(token, WALL + 6, cpu_percent=150.0, memory_bytes=80, cpu_secs=8.5, read_bytes=5000),
    )
    (task,) = metrics(in_memory, jid)["tasks"]
    assert (
        task["cpuPercent"],
        task["memoryBytes"],
        task["cpuSecs"],
        task["peakMemoryBytes"],
        task["peakCpuPercent"],
    ) == (150.0, 80, 8.5, 100, 150.0)
    assert (task["readBytesPerSec"], task["writtenBytesPerSec"], task["gpuPercent"]) == (
        1000.0,
        None,
        None,
    )
    assert in_memory.store.head() == head


async def test_what_an_agent_says_of_another_users_task_ends_its_connection_and_is_not_taken() -> (
    None
):
    in_memory = InMemorySupervisor()
    agent, other = in_memory.agent(), in_memory.agent(OTHER)
    jid, token = await in_memory.running(agent)
    theirs, their_token = await in_memory.running(other)
    say(other, sample(their_token, cpu_percent=1.0), sample(token, cpu_percent=99.0))
    assert other.socket.closed is not None and "another user" in other.socket.closed
    assert metrics(in_memory, jid)["tasks"][0]["cpuPercent"] is None
    assert metrics(in_memory, theirs)["tasks"][0]["cpuPercent"] is None, (
        "nothing of such a message is believed"
    )
    assert in_memory.counters.all()["foreignToken"] == 1


async def test_what_is_said_of_nothing_live_is_counted_and_dropped() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    _, token = await in_memory.running(agent)
    say(
        agent,
        sample(msgspec.structs.replace(token, serial=token.serial + 1), cpu_percent=1.0),
        sample(Token(JID, 7, 1, "main", 0)),
    )
    agent.ended(token)
    say(agent, sample(token, cpu_percent=1.0))
    assert in_memory.counters.all()["sampleOfNothing"] == 3
    assert in_memory.metering.sizes() == {"jobs": 0, "tasks": 0, "jobsOver": 0, "pointsOver": 0}


async def test_an_agent_of_the_same_user_speaks_of_its_own_tasks_only() -> None:
    in_memory = InMemorySupervisor()
    agent, wrong = in_memory.agent(), in_memory.agent(UID, "parallel")
    jid, token = await in_memory.running(agent)
    say(wrong, sample(token, cpu_percent=1.0))
    assert in_memory.counters.all()["sampleOfNothing"] == 1
    assert metrics(in_memory, jid)["tasks"][0]["cpuPercent"] is None


async def test_what_was_said_long_ago_is_not_what_is_now() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    say(agent, sample(token, cpu_percent=20.0, memory_bytes=100, cpu_secs=1.0))
    in_memory.mono += samples_module.STALE_SECS + 1
    (task,) = metrics(in_memory, jid)["tasks"]
    assert {task[n] for n in NOW} == {None}
    assert (task["cpuSecs"], task["peakMemoryBytes"]) == (1.0, 100), (
        "so much it took, whatever it does now"
    )


async def test_an_agent_that_was_replaced_takes_nothing_back() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    say(agent, sample(token, WALL + 1, cpu_secs=9.0, written_bytes=900))
    in_memory.mono += 5
    say(agent, sample(token, WALL + 6, cpu_secs=4.0, written_bytes=100))
    (task,) = metrics(in_memory, jid)["tasks"]
    assert (task["cpuSecs"], task["writtenBytes"], task["writtenBytesPerSec"]) == (9.0, 900, 0.0)


# ---- after the end


async def test_what_is_over_is_told_from_its_exit_and_its_samples() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    say(agent, sample(token, cpu_percent=100.0, cpu_secs=1.0, memory_bytes=500, read_bytes=7))
    agent.ended(token, user_secs=2.0, system_secs=0.5, max_rss_bytes=300)
    answer = metrics(in_memory, jid, series=lambda token: True)
    (task,) = answer["tasks"]
    assert {task[n] for n in NOW} == {None}
    assert (
        task["running"],
        task["cpuSecs"],
        task["meanCpuPercent"],
        task["peakMemoryBytes"],
        task["readBytes"],
    ) == (False, 2.5, 250.0, 500, 7)
    assert answer["job"]["running"] == 0 and answer["job"]["cpuPercent"] == {
        "mean": None,
        "sum": None,
        "max": None,
        "known": 0,
        "of": 0,
    }
    assert task["series"][0][NAMES.index("cpuPercent")] == 100.0
    in_memory.metering._over.clear()  # as after a restart
    (task,) = metrics(in_memory, jid)["tasks"]
    assert (task["cpuSecs"], task["peakMemoryBytes"], task["readBytes"]) == (2.5, 300, None)


async def test_an_earlier_attempt_keeps_what_it_took_until_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_memory = InMemorySupervisor()
    usage = in_memory.metering
    jobs = [job_of([task_of("main", 0)])]
    first = jobs[0].run.attempts[0].tasks[0]  # type: ignore[union-attr]
    ended = task_of("main", 0, exit_=ExitInfo(code=1))
    jobs += [job_of([ended]), job_of([ended], [task_of("main", 0, attempt=2)])]
    usage._add(sample(first.token, cpu_secs=3.0, received_bytes=7, sent_bytes=5))
    for job in jobs:
        usage.settle(job)
    second = jobs[-1].run.attempts[1].tasks[0]  # type: ignore[union-attr]
    usage._add(sample(second.token, cpu_secs=1.0))
    answers = [usage.metrics_of(jobs[-1], lambda token: True, n) for n in (0, 1, 2)]
    assert [(a["attempt"], a["tasks"][0]["cpuSecs"]) for a in answers] == [
        (2, 1.0),
        (1, 3.0),
        (2, 1.0),
    ]
    (task,) = answers[1]["tasks"]
    assert (task["receivedBytes"], task["sentBytes"]) == (7, 5)
    assert task["series"][0][NAMES.index("sentBytes")] == 5
    assert usage.sizes()["jobsOver"] == 1 and usage.sizes()["tasks"] == 1
    with pytest.raises(Refusal, match="no attempt 3"):
        usage.metrics_of(jobs[-1], attempt=3)
    # the oldest attempt goes when there is no room, and all of them with the next run
    over = job_of(
        [ended], [task_of("main", 0, attempt=2, exit_=ExitInfo(code=0))], status=COMPLETED
    )
    monkeypatch.setattr(samples_module, "OVER_POINTS", samples_module.TASK_POINTS + 1)
    usage.settle(over)
    assert [usage.metrics_of(over, attempt=n)["tasks"][0]["cpuSecs"] for n in (1, 2)] == [None, 1.0]
    newer = msgspec.structs.replace(over, run=msgspec.structs.replace(over.run, serial=2))  # type: ignore[type-var]
    usage.settle(newer)
    assert usage.sizes() == {"jobs": 0, "tasks": 0, "jobsOver": 0, "pointsOver": 0}


async def test_a_newer_run_does_not_show_what_the_older_one_took() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    say(agent, sample(token, cpu_secs=100.0, memory_bytes=500))
    agent.ended(token)
    _, newer = await in_memory.running(agent)
    say(agent, sample(newer, cpu_secs=1.0))
    (task,) = metrics(in_memory, jid)["tasks"]
    assert (task["cpuSecs"], task["peakMemoryBytes"]) == (1.0, None)
    assert in_memory.metering.sizes() == {"jobs": 1, "tasks": 1, "jobsOver": 0, "pointsOver": 0}


async def test_of_what_is_over_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "OVER_POINTS", 3 * (samples_module.TASK_POINTS + 1))
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jids = []
    for n in range(5):
        jid, token = await in_memory.running(agent, n)
        say(agent, sample(token, read_bytes=n))
        agent.ended(token)
        jids.append(jid)
    assert [metrics(in_memory, jid)["tasks"][0]["readBytes"] for jid in jids] == [
        None,
        None,
        2,
        3,
        4,
    ]
    assert in_memory.metering.sizes()["pointsOver"] <= samples_module.OVER_POINTS


async def test_many_live_tasks_share_the_points_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "LIVE_POINTS", 60)
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    tokens = [(await in_memory.running(agent, n))[1] for n in range(3)]
    for _ in range(100):
        say(agent, *(sample(t, cpu_percent=1.0) for t in tokens))
        in_memory.mono += 10
    kept = [
        len(taken.series) for mine in in_memory.metering._live.values() for taken in mine.values()
    ]
    assert len(kept) == 3 and all(samples_module.FEWEST_POINTS // 2 <= n <= 20 for n in kept), kept


# ---- series


def fill(series: Series, n: int, every: float = 5.0, **fields: Any) -> None:
    token = Token(JID, 1, 1, "main", 0)
    for i in range(n):
        series.add(
            1000.0 + every * i,
            sample(token, WALL + every * i, cpu_percent=float(i), read_bytes=i, **fields),
        )


def test_samples_of_one_stretch_make_one_point() -> None:
    series = Series()
    fill(series, 5)
    at, cpu, read = (NAMES.index(n) for n in ("at", "cpuPercent", "readBytes"))
    assert [(r[at] - WALL, r[cpu], r[read]) for r in series.rows()] == [
        (5, 0.5, 1),
        (15, 2.5, 3),
        (20, 4.0, 4),
    ]


def test_what_was_not_known_is_in_no_mean() -> None:
    series, token = Series(), Token(JID, 1, 1, "main", 0)
    for n, gpu in enumerate([None, 40.0, None]):
        series.add(float(n), sample(token, gpu_percent=gpu))
    (row,) = series.rows()
    assert (row[NAMES.index("gpuPercent")], row[NAMES.index("cpuPercent")]) == (40.0, None)


@pytest.mark.parametrize("n", [1, 719, 720, 721, 5000, 40_000])
def test_a_series_reaches_from_the_beginning_to_now_in_a_bounded_number_of_points(n: int) -> None:
    series = Series()
    fill(series, n)
    rows = series.rows()
    assert MAX_POINTS // 2 <= len(rows) <= MAX_POINTS if n > 720 else len(rows) == math.ceil(n / 2)
    at = [r[NAMES.index("at")] for r in rows]
    assert at == sorted(at) and at[0] - WALL <= series.resolution and at[-1] == WALL + 5.0 * (n - 1)
    means = [r[NAMES.index("cpuPercent")] for r in rows]
    assert means == sorted(means)


@pytest.mark.parametrize("limit", [1, 2, 7, 50, 299, 300, 301])
@pytest.mark.parametrize("n", [1, 2, 599, 600])
def test_a_shorter_answer_has_some_of_the_points_up_to_the_last(n: int, limit: int) -> None:
    series = Series()
    fill(series, n)
    whole, some = series.rows(), series.rows(limit)
    assert min(len(whole), limit) / 2 <= len(some) <= limit
    assert some[-1] == whole[-1] and some == [row for row in whole if row in some]


# ---- totals: the truth table


@pytest.mark.parametrize(
    ("values", "mean", "whole", "most", "known", "of"),
    [
        ([1.0, 3.0], 2.0, 4.0, 3.0, 2, 2),
        ([1.0, None, 3.0], 2.0, 4.0, 3.0, 2, 3),
        ([0.0, None], 0.0, 0.0, 0.0, 1, 2),
        ([None, None], None, None, None, 0, 2),
        ([], None, None, None, 0, 0),
        ([5], 5, 5, 5, 1, 1),
    ],
)
def test_means_and_sums_are_of_what_is_known(
    values: list[float | None],
    mean: float | None,
    whole: float | None,
    most: float | None,
    known: int,
    of: int,
) -> None:
    assert total(values) == {"mean": mean, "sum": whole, "max": most, "known": known, "of": of}


def task_of(
    role: str, index: int, *, exit_: ExitInfo | None = None, started: bool = True, attempt: int = 1
) -> Task:
    token = Token(JID, 1, attempt, role, index)
    key: Any = None
    fields = {"pid": 10, "start_ticks": 1, "started_at": WALL} if started else {}
    return Task(
        token=token,
        agent_key=key,
        op_id="o",
        placed_at=WALL,
        ended_at=WALL + 9 if exit_ else None,
        exit=exit_,
        **fields,
    )


def job_of(*attempts: Sequence[Task], status: str = RUNNING) -> Job:
    spec = RunSpec(uid=UID, simulation_id="sim00001", command=("true",))
    made = tuple(Attempt(number=n, tasks=tuple(tasks)) for n, tasks in enumerate(attempts, 1))
    return Job(
        jid=JID,
        run=Run(
            serial=1,
            status=status,
            spec=spec,
            run_dir="/r",
            req_id="r" * 8,
            queued_at=WALL,
            attempts=made,
        ),
    )


def taken_of(token: Token, heard: float = 100.0, **fields: Any) -> TaskUsage:
    s = sample(token, WALL + 10, **fields)
    return TaskUsage(
        newest=s, heard=heard, series=Series(), cpu_secs=s.cpu_secs, peak_memory=s.memory_bytes
    )


def test_roles_and_job_are_counted_over_their_tasks() -> None:
    workers = [task_of("worker", n) for n in range(3)]
    server, waiting = task_of("ps", 0), task_of("ps", 1, started=False)
    ended = task_of(
        "worker",
        3,
        exit_=ExitInfo(
            code=0,
            user_secs=30.0,
            system_secs=10.0,
            max_rss_bytes=900,
            started_at=WALL,
            ended_at=WALL + 20,
        ),
    )
    told = [(workers[0], 100.0, 10, 5.0), (workers[1], 50.0, 30, 15.0), (server, 10.0, 100, 1.0)]
    taken = {
        t.token: taken_of(t.token, cpu_percent=cpu, memory_bytes=memory, cpu_secs=secs)
        for t, cpu, memory, secs in told
    }
    answer = job_metrics(job_of([*workers, ended, server, waiting]), taken, 50.0)
    roles = {r["role"]: r for r in answer["roles"]}
    assert (
        answer["job"]["tasks"],
        answer["job"]["running"],
        roles["worker"]["tasks"],
        roles["worker"]["running"],
    ) == (6, 4, 4, 3)
    assert roles["worker"]["cpuPercent"] == {
        "mean": 75.0,
        "sum": 150.0,
        "max": 100.0,
        "known": 2,
        "of": 3,
    }, "who ended is not asked what it does now"
    assert roles["worker"]["cpuSecs"] == {
        "mean": 20.0,
        "sum": 60.0,
        "max": 40.0,
        "known": 3,
        "of": 4,
    }
    assert roles["worker"]["peakMemoryBytes"] == {
        "mean": pytest.approx(940 / 3),
        "sum": 940,
        "max": 900,
        "known": 3,
        "of": 4,
    }
    assert roles["worker"]["meanCpuPercent"]["max"] == 200.0
    assert roles["ps"]["memoryBytes"] == {
        "mean": 100.0,
        "sum": 100,
        "max": 100,
        "known": 1,
        "of": 1,
    }
    assert answer["job"]["cpuPercent"] == {
        "mean": pytest.approx(160 / 3),
        "sum": 160.0,
        "max": 100.0,
        "known": 3,
        "of": 4,
    }
    assert answer["job"]["gpuPercent"] == {
        "mean": None,
        "sum": None,
        "max": None,
        "known": 0,
        "of": 4,
    }


def test_only_the_last_attempt_counts() -> None:
    first, second = (
        task_of("main", 0, exit_=ExitInfo(code=1, user_secs=99.0, system_secs=0.0)),
        task_of("main", 0, attempt=2),
    )
    taken = {
        first.token: taken_of(first.token, cpu_secs=99.0),
        second.token: taken_of(second.token, cpu_secs=1.0),
    }
    answer = job_metrics(job_of([first], [second]), taken, 0.0)
    assert (answer["attempt"], answer["job"]["tasks"], answer["job"]["cpuSecs"]["sum"]) == (
        2,
        1,
        1.0,
    )


def test_a_run_that_has_no_task_yet_has_no_metrics() -> None:
    answer = job_metrics(job_of(), {}, 0.0)
    assert (
        answer["attempt"],
        answer["tasks"],
        answer["roles"],
        answer["job"]["cpuSecs"]["sum"],
    ) == (0, [], [], None)


def test_the_points_of_a_large_answer_are_bounded() -> None:
    tasks = [task_of("main", n) for n in range(1000)]
    taken = {t.token: taken_of(t.token) for t in tasks}
    same = Series()
    fill(same, 200)
    for each in taken.values():
        each.series = same
    answer = job_metrics(job_of(tasks), taken, 0.0, lambda token: True)
    assert 1000 <= sum(len(t["series"]) for t in answer["tasks"]) <= SERIES_POINTS
    one = job_metrics(job_of(tasks), taken, 0.0, lambda token: token.index == 7)
    assert [(t["index"], len(t["series"])) for t in one["tasks"] if "series" in t] == [(7, 100)]


# ---- metrics of the result


def exit_of(**fields: Any) -> ExitInfo:
    return ExitInfo(code=0, **fields)


@pytest.mark.parametrize(
    ("exits", "peaks", "cpu", "memory", "cpu_known", "memory_known"),
    [
        (
            [
                exit_of(user_secs=1.0, system_secs=0.5, max_rss_bytes=10),
                exit_of(user_secs=2.0, system_secs=0.0, max_rss_bytes=30),
            ],
            (),
            3.5,
            30,
            2,
            2,
        ),
        ([exit_of(user_secs=1.0, system_secs=0.5, max_rss_bytes=10)], (25,), 1.5, 25, 1, 1),
        ([exit_of(user_secs=1.0, system_secs=0.5, max_rss_bytes=10)], (5,), 1.5, 10, 1, 1),
        ([exit_of(user_secs=1.0, system_secs=0.5), None], (), 1.5, None, 1, 0),
        ([exit_of(user_secs=1.0)], (), None, None, 0, 0),
        ([ExitInfo(source="lost", detail="?")], (), None, None, 0, 0),
        ([ExitInfo(source="start", detail="no shell")], (), 0.0, 0, 1, 1),
        ([None], (7,), None, 7, 0, 1),
        ([], (), None, None, 0, 0),
    ],
)
def test_what_goes_with_a_result(
    exits: list[ExitInfo | None],
    peaks: tuple[int | None, ...],
    cpu: float | None,
    memory: int | None,
    cpu_known: int,
    memory_known: int,
) -> None:
    said = {
        "tasks": len(exits),
        "cpuSecs": cpu,
        "cpuKnown": cpu_known,
        "peakMemoryBytes": memory,
        "memoryKnown": memory_known,
    }
    assert result_usage(exits, peaks) == said


def test_an_ended_job_says_the_same_as_its_result() -> None:
    tasks = [
        task_of("main", n, exit_=exit_of(user_secs=n, system_secs=1.0, max_rss_bytes=10 * n))
        for n in range(3)
    ]
    job = job_metrics(job_of(tasks, status=COMPLETED), {}, 0.0)["job"]
    usage = result_usage([t.exit for t in tasks])
    assert (job["cpuSecs"]["sum"], job["peakMemoryBytes"]["max"]) == (
        usage["cpuSecs"],
        usage["peakMemoryBytes"],
    )
