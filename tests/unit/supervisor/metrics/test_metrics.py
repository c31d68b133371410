"""Metrics and health checks of an in-memory supervisor whose agents the test controls."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_memory_supervisor import UID, InMemorySupervisor, until

from jobscribe.db.events.state import AgentRecord
from jobscribe.db.sqlite.schema import create, open_for_writing
from jobscribe.protocol.api.requests import RunCancel
from jobscribe.protocol.clusters.batch import BatchState, ClusterStatus
from jobscribe.protocol.clusters.cluster import Cluster, Clusters
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.status import EndReason
from jobscribe.protocol.version import VERSION
from jobscribe.protocol.wire.messages import FileChunk, KeeperReport, OpError, ReadFile
from jobscribe.runtime.event_loop_lag import LoopLag
from jobscribe.runtime.latency_histogram import BOUNDS, LatencyHistogram
from jobscribe.service.site.secret_rotation import fixed
from jobscribe.supervisor.clusters.inventory import ClusterInventory
from jobscribe.supervisor.core.state.agent_state import AgentState
from jobscribe.supervisor.metrics import background_sampler as aside_module
from jobscribe.supervisor.metrics import health as health_module
from jobscribe.supervisor.metrics.background_sampler import Disk
from jobscribe.supervisor.metrics.cause_labels import CAUSES, attempt_causes, cause
from jobscribe.supervisor.metrics.collector import SLICE, CollectorSources
from jobscribe.supervisor.metrics.exporter import MetricsExporter
from jobscribe.supervisor.metrics.health import NAMED_KEEPERS
from jobscribe.supervisor.process.listeners import ServerCertificate

MIB = 1024 * 1024
CLUSTERS = Clusters(clusters=(Cluster(name="c1", access="account"),))


class Watch(InMemorySupervisor):
    """An in-memory supervisor with monitoring, whose clocks the test sets."""

    def __init__(self, root: Path, **board: Any) -> None:
        super().__init__()
        (root / "db").mkdir()
        connection = open_for_writing(root / "db" / "events.sqlite")
        create(connection)
        connection.close()
        self.wall, self.clock, self.lost, self.targets = 1_000.0, 500.0, 0, list[dict[str, Any]]()
        self.dog = SimpleNamespace(signed_at=None, secs=10.0)
        notifications: Any = SimpleNamespace(
            standing=lambda: self.targets,
            sizes=lambda: {"waiting": sum(t["waiting"] for t in self.targets)},
        )
        dog: Any = self.dog
        self.secrets, self.certificates = list[tuple[str, str]](), list[Any]()
        self.lag, self.clusters = (
            LoopLag(),
            ClusterInventory(board.get("clusters"), now=lambda: self.wall),
        )
        self.monitoring = MetricsExporter(
            CollectorSources(
                self.engine,
                self.hub,
                self.desk.feed,
                self.live,
                self.lag,
                self.counters,
                self.clusters,
                dog,
                self.desk.drivers,
                notifications,
                lines_lost=lambda: self.lost,
                secrets=lambda: self.secrets,
                certificates=lambda: self.certificates,
            ),
            root,
            str(root / "user"),
            fixed("token-of-metrics"),
            wall=lambda: self.wall,
            mono=lambda: self.clock,
        )

    def projected(self, job: Any, position: int, at: float) -> None:
        super().projected(job, position, at)
        if hasattr(self, "monitoring"):
            self.monitoring.projected(job, position)

    async def rows(self) -> dict[str, float]:
        """Return every sample by its name and labels."""
        text = (await self.monitoring.text()).decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        assert len({name for name, _, _ in lines}) == len(lines), "a sample comes once"
        return {name.removeprefix("jobscribe_"): float(value) for name, _, value in lines}

    async def whats(self, **options: Any) -> dict[str, Any]:
        body = await self.monitoring.health.body(**options)
        return {"state": body["state"], **{r["what"]: r for r in body["reasons"]}}


@pytest.fixture
async def watch(tmp_path: Path) -> AsyncIterator[Watch]:
    in_memory = Watch(tmp_path, clusters=CLUSTERS)
    yield in_memory
    await in_memory.monitoring.close()


# ---- event counters


async def test_runs_are_counted_by_how_they_ended(watch: Watch) -> None:
    agent = watch.agent()
    ends: list[tuple[dict[str, Any], str]] = [
        ({"code": 0}, "completed"),
        ({"code": 1}, "exit"),
        ({"code": None, "signal": 11}, "crash"),
        ({"code": None, "signal": 9, "out_of_memory": True}, "outOfMemory"),
        ({"code": 127, "last_lines": "sh: 1: nosuch: not found\n"}, "notFound"),
    ]
    for n, (exit_, _) in enumerate(ends, 1):
        _, token = await watch.running(agent, n)
        agent.ended(token, **{"stdout_bytes": 100, "stderr_bytes": 11, "dropped_bytes": 7, **exit_})
    jid = await watch.submitted(9)
    await watch.desk.cancel(
        RunCancel(
            req_id="cancel-1", uid=UID, compute_jid=jid, compute_job_serial=0, reason="cancel"
        )
    )
    rows = await watch.rows()
    finished = {
        m[1]: v
        for name, v in rows.items()
        if v and (m := re.match(r'jobs_finished_total\{cause="(\w+)"', name))
    }
    assert finished == {
        "completed": 1,
        "exit": 1,
        "crash": 1,
        "outOfMemory": 1,
        "notFound": 1,
        "canceled": 1,
    }
    assert (
        rows['jobs_submitted_total{driver="local",kind="sequential"}'] == 6
        and rows['jobs_submitted_total{driver="local",kind="parallel"}'] == 0
    )
    assert (
        rows['job_run_seconds_count{driver="local",kind="sequential"}']
        == 5
        == rows['job_queue_seconds_count{driver="local",kind="sequential"}']
    )
    assert rows['slot_wait_seconds_count{driver="local",kind="sequential"}'] == 6
    assert rows['oom_kills_total{driver="local",scope="cgroup"}'] == 1
    # each execution took one second of its own clock
    assert rows['usage_core_seconds_total{driver="local",kind="sequential"}'] == 5
    assert rows['usage_core_seconds_total{driver="local",kind="parallel"}'] == 0
    assert not any(UID in name for name in rows)
    assert (
        rows['log_bytes_total{driver="local"}'],
        rows['log_dropped_bytes_total{driver="local"}'],
    ) == (555, 35)
    assert rows['job_attempts_total{again="no",cause="crash",driver="local"}'] == 1
    assert watch.monitoring.sizes() == {"waiting": 0, "starting": 0}, (
        "nothing is kept of what is counted"
    )


async def test_nothing_is_counted_twice_and_nothing_of_before(watch: Watch) -> None:
    agent = watch.agent()
    jid, token = await watch.running(agent)
    agent.ended(token)
    before = await watch.rows()
    entry = watch.engine.durable(jid)
    assert entry is not None
    watch.monitoring.projected(entry.job, entry.position)
    watch.engine.start()  # folded again
    after = await watch.rows()
    same = [
        name
        for name in before
        if name.startswith(("jobs_finished", "jobs_submitted", "job_run", "job_attempts"))
    ]
    assert same and {n: before[n] for n in same} == {n: after[n] for n in same}


def test_every_end_has_a_word_of_the_closed_set() -> None:
    for reason in (*EndReason.__args__, None, "something new"):
        for exit_ in (
            None,
            ExitInfo(code=3),
            ExitInfo(signal=9),
            ExitInfo(detail="x", source="lost"),
            ExitInfo(detail="No space left", source="start"),
        ):
            for status in ("completed", "canceled", "error"):
                assert cause(status, reason, exit_) in CAUSES[status]
    assert {"crash", "nodeFail", "queueLimit"} <= set(attempt_causes()) and not {
        "running",
        "slurm",
        "cpu_slot",
    } & set(attempt_causes())


async def test_a_start_of_an_agent_is_measured_until_it_is_connected(watch: Watch) -> None:
    await watch.submitted()
    assert watch.started and watch.monitoring.sizes()["starting"] == 1
    watch.wall = 1_700_000_003.0
    watch.agent()
    rows = await watch.rows()
    assert rows['agent_start_duration_seconds_count{driver="local",status="up"}'] == 1
    assert 2.5 < rows['agent_start_duration_seconds_sum{driver="local",status="up"}'] < 3.1
    assert (
        rows['agent_connections_total{driver="local"}'] == 1
        and watch.monitoring.sizes()["starting"] == 0
    )


async def test_connections_frames_and_questions(watch: Watch) -> None:
    agent = watch.agent()
    answer = asyncio.create_task(
        watch.hub.ask(
            agent.key,
            ReadFile(op_id="o" * 32, run_dir="/x", name="y", offset=0, limit=1),
            5.0,
            FileChunk,
        )
    )
    asked = await agent.asked(ReadFile)
    rows = await watch.rows()
    assert rows['ops_inflight{op="question"}'] == 1
    agent.say(OpError(op_id=asked.op_id, code="internal", error="no"))
    with pytest.raises(Exception, match="no"):
        await answer
    agent.connection.receive(b"\xc1")
    rows = await watch.rows()
    assert (
        rows['op_duration_seconds_count{op="read_file",status="error"}'] == 1
        and rows['op_duration_seconds_count{op="read_file",status="ok"}'] == 0
    )
    assert rows['message_rejected_total{reason="malformed"}'] == 1
    assert rows['agent_disconnects_total{driver="local",reason="badFrame"}'] == 1
    assert (
        rows['messages_total{direction="out"}'] >= 1 and rows['messages_total{direction="in"}'] >= 3
    )
    assert rows['message_bytes_count{direction="in"}'] >= 3
    watch.agent()
    watch.agent()
    assert (await watch.rows())['agent_disconnects_total{driver="local",reason="replaced"}'] == 1


# ---- gauges


async def test_all_series_are_there_before_anything_has_happened(watch: Watch) -> None:
    rows = await watch.rows()
    assert rows['jobs{driver="local",kind="parallel",state="running"}'] == 0
    assert (
        rows['jobs_finished_total{cause="lost",driver="local",kind="parallel",state="error"}'] == 0
    )
    assert (
        rows['refusals_total{code="draining"}'] == 0
        and rows['auth_failures_total{reason="api"}'] == 0
    )
    names = set(rows)
    agent = watch.agent()
    for n in range(1, 4):
        _, token = await watch.running(agent, n)
        agent.ended(token, code=n - 1)
    new = {
        name
        for name in set(await watch.rows()) - names
        if not name.startswith(("kept", "process_", "notices"))
    }
    assert not new, "a series that comes later hides its first increase from rate()"
    assert not re.search(r'\b(jid|uid|agent|op_id)="', "\n".join(names))


async def test_ended_jobs_are_counted_in_the_index_and_agents_by_their_state(
    watch: Watch, tmp_path: Path
) -> None:
    connection = open_for_writing(tmp_path / "db" / "events.sqlite")
    connection.executemany(
        "INSERT INTO jobs VALUES (?,'u',?,1,'t','sequential','local',0,1.0,NULL,NULL,NULL,?)",
        [(f"j{n}", "completed" if n % 3 else "error", n) for n in range(30)],
    )
    connection.close()
    for n in range(SLICE + 5):
        key = AgentKey("local", "parallel", f"u{n:07d}", "localhost")
        watch.engine.world.agents[key] = AgentState(record=AgentRecord(key=key), phase="away")
    rows = await watch.rows()
    assert (
        rows['jobs{driver="local",kind="sequential",state="completed"}'],
        rows['jobs{driver="local",kind="sequential",state="error"}'],
    ) == (20, 10)
    assert rows['agents{driver="local",state="away"}'] == SLICE + 5
    assert rows["db_size_bytes"] > 1000 and rows['disk_free_bytes{area="user"}'] > 0


async def test_a_large_index_is_not_counted_at_each_scrape(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, calls = watch.monitoring.sampler._count, []
    monkeypatch.setattr(watch.monitoring.sampler, "_count", lambda: (calls.append(1), count())[1])
    await watch.rows()
    watch.monitoring.sampler._count_secs = 3600.0
    await watch.rows()
    assert len(calls) == 1


async def test_calls_to_docker_hosts_are_told_by_host(watch: Watch) -> None:
    timings = LatencyHistogram()
    for secs in (BOUNDS[0] / 2, BOUNDS[0], 1e9):
        timings.record(secs, "timeout" if secs > 1e6 else None)
    host: Any = SimpleNamespace(
        host=None, up=False, detail="it is gone", since=7.0, version=None, timings=timings
    )
    drivers: Any = watch.desk.drivers
    drivers["docker"] = SimpleNamespace(engines={"a": host})
    rows = await watch.rows()
    assert rows['host_up{driver="docker",host="a"}'] == 0
    assert (
        rows['docker_api_seconds_bucket{host="a",le="0.005"}'] == 2
        and rows['docker_api_seconds_bucket{host="a",le="+Inf"}']
        == 3
        == rows['docker_api_seconds_count{host="a"}']
    )
    assert rows['docker_api_errors_total{code="timeout",host="a"}'] == 1
    said = (await watch.whats())["host:a"]
    assert (said["state"], said["since"], said["try"]) == (
        "degraded",
        7.0,
        "jobscribe pool check",
    ) and "it is gone" in said["sentence"]


async def test_the_writers_stages_are_measured(watch: Watch) -> None:
    for point in (
        "taken",
        "committed",
        "witnessed",
        "delivered",
        "taken",
        "taken",
        "committed",
        "delivered",
        "witnessed",
    ):
        watch.clock += 0.02
        watch.monitoring.stored(point)
    rows = await watch.rows()
    assert (
        rows['db_operation_seconds_count{op="commit"}'] == 2
        and rows['db_operation_seconds_count{op="witness"}'] == 2
    )
    assert rows['db_operation_seconds_sum{op="commit"}'] == pytest.approx(0.04)


async def test_the_loops_rounds_are_a_histogram(watch: Watch) -> None:
    watch.lag.rounds = 10
    watch.lag._counts[2], watch.lag._sums[2] = 3, 0.1
    rows = await watch.rows()
    assert (
        rows['event_loop_lag_seconds_bucket{le="0.01"}'] == 7
        and rows['event_loop_lag_seconds_bucket{le="0.05"}']
        == 10
        == rows["event_loop_lag_seconds_count"]
    )


# ---- health


async def test_all_is_well(watch: Watch) -> None:
    watch.agent()
    body = await watch.monitoring.health.body()
    assert (body["state"], body["reasons"]) == ("ok", [])


async def test_a_store_that_cannot_be_written_is_failing_and_heaviest(watch: Watch) -> None:
    watch.engine._paused_until, watch.engine.fails_since, watch.lost = 1e9, 77.0, 3
    watch.monitoring.check()
    body = await watch.monitoring.health.body()
    assert body["state"] == "failing" and [r["what"] for r in body["reasons"]] == ["store", "log"]
    assert body["reasons"][0]["since"] == 77.0 and "jobs continue" in body["reasons"][0]["sentence"]
    assert (await watch.rows())["db_failing"] == 1


@pytest.mark.parametrize(
    ("free", "files", "state"),
    [
        (health_module.LOW_BYTES, None, "ok"),
        (health_module.LOW_BYTES - 1, None, "degraded"),
        (health_module.LEAST_BYTES - 1, None, "failing"),
        (10**12, health_module.LOW_FILES - 1, "degraded"),
        (10**12, health_module.LOW_FILES, "ok"),
    ],
)
async def test_room_on_disks(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, free: int, files: int | None, state: str
) -> None:
    monkeypatch.setattr(aside_module, "disk_usage", lambda folder: Disk(free, 10**13, files))
    said = await watch.whats()
    assert said["state"] == state and ("disk:root" in said) == (state != "ok")


async def test_a_disk_that_hangs_holds_up_nobody_and_is_said(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(aside_module, "disk_usage", lambda folder: os.read(read, 1))
    monkeypatch.setattr(aside_module, "WITHIN_SECS", 0.05)
    try:
        said = await watch.whats()
        assert said["disk"]["state"] == "failing" and said["disk"]["since"] == watch.wall - 0.05
        watch.wall += 100
        assert (await watch.whats())["disk"]["since"] == said["disk"]["since"], (
            "since the first time"
        )
        assert "jobscribe_build_info" in (await watch.monitoring.text()).decode()
    finally:
        os.write(write, b"xxxxxxxxxxxxxxxx")
        await until(lambda: not watch.monitoring.sampler._threads.waiting(), "the threads are free")
        os.close(read)
        os.close(write)


async def test_agents_that_do_not_start_or_are_silent(watch: Watch) -> None:
    key, other = watch.key(), watch.key("user0002")
    record = watch.engine.agent_record(key)
    watch.engine.world.agents[key] = AgentState(
        record=record, phase="starting", failures=2, since=5.0
    )
    watch.engine.world.agents[other] = AgentState(
        record=record,
        phase="away",
        unknown_since=watch.wall - health_module.SILENT_SECS,
        placed={None},
    )  # type: ignore[arg-type]
    said = await watch.whats()
    assert said["agentStarts"]["since"] == 5.0 and "agentsSilent" not in said
    watch.wall += 1
    said = await watch.whats()
    assert "1 agents with 1 tasks" in said["agentsSilent"]["sentence"]


async def test_keepers_that_do_not_answer_are_named_with_what_to_do(watch: Watch) -> None:
    agents = [watch.agent(f"user{n:04d}") for n in range(1, NAMED_KEEPERS + 4)]
    for agent in agents:
        agent.say(KeeperReport(answers=False, since=40.0, stopped=agent is agents[0]))
    await until(lambda: watch.counters.all().get("keeperSilent") == len(agents), "all are told")
    said = await watch.whats()
    reason = said[f"keeper:{agents[0].key}"]
    assert (
        "pid 9 on node1, stopped by a signal" in reason["sentence"]
        and reason["since"] == 40.0
        and reason["try"].startswith("kill -CONT 9 ")
    )
    assert "stopped" not in said[f"keeper:{agents[1].key}"]["sentence"] and said["keepers"][
        "sentence"
    ].startswith("3 more keepers")
    assert (
        said["state"] == "degraded"
        and len([what for what in said if what.startswith("keeper:")]) == NAMED_KEEPERS
    )
    for agent in agents:
        agent.say(KeeperReport(answers=True))
    await until(
        lambda: watch.counters.all().get("keeperAnswers") == len(agents), "all answer again"
    )
    assert not [what for what in await watch.whats() if what.startswith("keeper")]


async def test_a_cluster_that_cannot_be_asked_and_runs_of_which_nothing_is_known(
    watch: Watch,
) -> None:
    key = AgentKey("sbatch", "parallel", UID, "c1")
    watch.clusters.heard(key, report("unreachable"))
    watch.engine.world.batch = {
        n: BatchState(cluster="c1", state="RUNNING", unknown_since=40.0 + n) for n in range(3)
    }  # type: ignore[assignment, misc]
    said = await watch.whats()
    assert (
        said["cluster:c1"]["try"] == "jobscribe driver check sbatch"
        and said["cluster:c1"]["since"] == watch.wall
    )
    assert "3 runs on c1" in said["batch:c1"]["sentence"] and said["batch:c1"]["since"] == 40.0
    rows = await watch.rows()
    assert (
        rows['slurm_jobs{cluster="c1",state="RUNNING"}'] == 3
        and rows['host_up{driver="sbatch",host="c1"}'] == 0
    )
    watch.wall += 60
    assert (await watch.whats())["cluster:c1"]["since"] == watch.wall - 60
    watch.clusters.heard(key, report("up"))
    assert "cluster:c1" not in await watch.whats()


def report(scheduler: Any) -> Any:
    return SimpleNamespace(news=ClusterStatus(cluster="c1", at=1.0, scheduler=scheduler))


async def test_a_clock_that_was_set_is_told_for_a_while(watch: Watch) -> None:
    watch.wall += 5
    watch.clock += 5
    watch.monitoring.check()
    assert (await watch.whats())["state"] == "ok"
    watch.wall -= 3600
    watch.monitoring.check()
    said = await watch.whats()
    assert (
        "-3600.0 s" in said["clock"]["sentence"] and (await watch.rows())["clock_jumps_total"] == 1
    )
    watch.wall += health_module.REPORT_SECS
    watch.clock += health_module.REPORT_SECS
    watch.monitoring.check()
    assert (await watch.whats())["state"] == "ok"


async def test_a_loop_that_was_held_lately(watch: Watch) -> None:
    watch.lag._latest.append((watch.clock, 3.0))
    watch.clock += health_module.LOOK_BACK_SECS - 1
    assert "3.0 s" in (await watch.whats())["loop"]["sentence"]
    watch.clock += 2
    assert (await watch.whats())["state"] == "ok"


async def test_a_watchdog_without_a_sign_notifications_that_nobody_takes_and_a_stop(
    watch: Watch,
) -> None:
    watch.dog.signed_at = watch.clock - health_module.LATE_SIGNS * 10.0
    watch.targets = [
        {"name": "chat", "waiting": 4, "failingSince": 900.0, "lastError": "HTTP 500"},
        {"name": "fine", "waiting": 1, "failingSince": None, "lastError": None},
    ]
    said = await watch.whats()
    assert set(said) == {"state", "notify:chat"} and "HTTP 500" in said["notify:chat"]["sentence"]
    watch.clock += 1
    said = await watch.whats(draining=True)
    assert said["state"] == "failing" and set(said) == {
        "state",
        "notify:chat",
        "watchdog",
        "draining",
    }


def test_the_token_is_compared_whole(tmp_path: Path) -> None:
    m: Any = SimpleNamespace(_secret=fixed("abc"))
    assert [
        MetricsExporter.admits(m, a)
        for a in ("Bearer abc", "Bearer ab", "abc", "", "Bearer \u00e9")
    ] == [True, False, False, False, False]


async def test_a_front_end_of_another_version_is_named_for_a_while(watch: Watch) -> None:
    for version in (VERSION, "9.9.9", "9.9.9", "x" * 41):
        watch.monitoring.health.front_end(version)
    said = {r["what"]: r for r in (await watch.monitoring.health.body())["reasons"]}
    assert [what for what in said if what.startswith("frontEnd")] == [
        "frontEnd:9.9.9"
    ] and VERSION in said["frontEnd:9.9.9"]["sentence"]
    watch.wall += 1000.0
    assert not [r for r in watch.monitoring.health.reasons() if r.what.startswith("frontEnd")]


async def test_secrets_that_cannot_be_used_and_certificates_that_expire(watch: Watch) -> None:
    found = ServerCertificate.__new__(ServerCertificate)
    found.name, found._cert, found.expires = "https", "/c.pem", 30 * 86400.0
    watch.certificates.append(found)

    def said() -> dict[str, Any]:
        return {r.what: r for r in watch.monitoring.health.reasons()}

    assert not {"certificate:https", "secret:server"} & set(said())
    metric = b'jobscribe_certificate_expiry_timestamp_seconds{listener="https"} 2.592e+06'
    assert metric in await watch.monitoring.text()
    watch.secrets.append(("server", "/s is accessible to others"))
    for left, state in ((86400.0, "degraded"), (0.0, "failing")):
        watch.wall = 30 * 86400.0 - left
        reason = said()["certificate:https"]
        assert reason.state == state and "/c.pem" in reason.sentence
        assert said()["secret:server"].state == "degraded"
