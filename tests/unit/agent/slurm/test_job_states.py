"""Interpretation of a job's last squeue and sacct rows: every recorded end and pending reason, and
unknown states.
"""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slurm_cases import RECORDED, golden, pair

from jobscribe.agent.slurm.job_states import SlurmStatus, job_status, merge_exit
from jobscribe.agent.slurm.output_parser import Account, Row, parse_job, parse_squeue
from jobscribe.agent.slurm.pending_reasons import IMPOSSIBLE, describe_wait, impossible_reason
from jobscribe.agent.slurm.script_markers import FENCED, parse_started
from jobscribe.diagnosis.exit_table import diagnose
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.service.site.exit_table_file import load

NOW = 1795300000.0
TABLE = load(None)


def judged(name: str, version: str = RECORDED) -> SlurmStatus:
    return job_status("lab", *pair(name, version), now=NOW)


# ---- ends


@pytest.mark.parametrize(
    ("name", "source", "code", "signal", "stop", "memory", "row"),
    [
        ("completed", "scheduler", 0, None, None, None, None),
        ("failed", "scheduler", 7, None, None, None, 9000),
        ("segfault", "scheduler", None, 11, None, None, 3011),
        ("killed", "scheduler", None, 9, None, None, 3009),
        ("no_output", "start", None, None, None, None, 2020),
        ("out_of_memory", "scheduler", None, None, None, True, 2001),
        ("out_of_memory_python", "scheduler", None, None, None, True, 2001),
        ("timeout", "scheduler", None, None, "timeLimit", None, 1002),
        ("canceled_self", "scheduler", None, None, None, None, 2040),
        ("canceled_other", "scheduler", None, None, None, None, 2040),
        ("canceled_waiting", "scheduler", None, None, None, None, 2040),
        ("node_fail", "scheduler", None, None, None, None, 2041),
        ("preempted", "scheduler", None, None, None, None, 2042),
    ],
)
def test_recorded_ends(
    name: str,
    source: str,
    code: int | None,
    signal: int | None,
    stop: str | None,
    memory: bool | None,
    row: int | None,
) -> None:
    verdict = judged(name)
    exit_ = verdict.exit
    assert verdict.kind == "over" and exit_ is not None
    assert (exit_.source, exit_.code, exit_.signal, exit_.stop_reason, exit_.out_of_memory) == (
        source,
        code,
        signal,
        stop,
        memory,
    )
    found = diagnose(exit_, TABLE)
    assert (found.code if found else None) == row
    assert exit_.detail and verdict.state.sentence and exit_.succeeded == (name == "completed")
    assert exit_.batch.job_id == verdict.state.job_id and verdict.state.cluster == "lab"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "version", "row", "word"),
    [
        ("segfault", "23.02", 3011, "FAILED"),
        ("no_output", "23.02", 2020, "FAILED"),
        ("deadline", "23.02", 2043, "DEADLINE"),
        ("boot_fail", "23.02", 2041, "BOOT_FAIL"),
        ("canceled_other", "23.11", 2040, "CANCELLED"),
        ("completed", "20.11", None, "COMPLETED"),
        ("requeued", "24.11", None, "COMPLETED"),
    ],
)
def test_constructed_ends(name: str, version: str, row: int | None, word: str) -> None:
    verdict = judged(name, version)
    assert verdict.kind == "over" and verdict.exit is not None and verdict.state.state == word
    found = diagnose(verdict.exit, TABLE)
    assert (found.code if found else None) == row


def test_who_canceled_it_is_said() -> None:
    verdict = judged("canceled_other")
    assert (
        verdict.state.canceled_by == "0"
        and "by unix user 0 (not by jobscribe)" in verdict.state.sentence
    )
    verdict = judged("canceled_waiting")
    assert (
        verdict.exit is not None
        and verdict.exit.started_at is None
        and "before it had started" in verdict.state.sentence
    )
    assert judged("canceled_other", "23.11").state.canceled_by == "lee"


def test_times_and_memory_of_an_end() -> None:
    exit_ = judged("timeout").exit
    assert exit_ is not None and (exit_.started_at, exit_.ended_at, exit_.max_rss_bytes) == (
        1795292912.0,
        1795292995.0,
        204800,
    )


def test_without_accounting_the_end_is_told_as_far_as_it_is_known() -> None:
    row = parse_squeue(golden("squeue_accounting_down"))[0]
    verdict = job_status("lab", row, None, now=NOW)
    assert verdict.kind == "over" and verdict.exit is not None
    assert (verdict.exit.code, verdict.exit.signal) == (
        None,
        None,
    ) and "without an exit code" in (verdict.exit.detail or "")
    verdict = job_status("lab", parse_job(golden("job_accounting_down")), None, now=NOW)
    assert verdict.exit is not None and verdict.exit.code == 4
    verdict = job_status("lab", parse_job(golden("job_segfault")), None, now=NOW)
    assert verdict.exit is not None and verdict.exit.signal == 11
    verdict = job_status("lab", parse_job(golden("job_no_output")), None, now=NOW)
    assert verdict.exit is not None and verdict.exit.source == "start"


def test_a_failure_that_slurm_gives_no_number_is_never_a_success() -> None:
    verdict = job_status(
        "lab", Row("7", "kim", "FAILED"), Account("7", "kim", "FAILED", exit_code=0), now=NOW
    )
    assert verdict.exit is not None and verdict.exit.code is None and not verdict.exit.succeeded


def test_a_script_that_found_its_mark_ran_nothing_and_its_end_is_not_known() -> None:
    verdict = job_status(
        "lab",
        None,
        Account("7", "kim", "FAILED", exit_code=FENCED, started_at=1795292912.0, elapsed_secs=1.0),
        now=NOW,
    )
    assert verdict.exit is not None and (verdict.exit.source, verdict.exit.code) == ("lost", None)
    assert "script a second time" in verdict.state.sentence


# ---- exit codes from the script


@pytest.mark.parametrize(
    ("name", "own", "row", "stop"),
    [
        ("timeout", ExitInfo(code=143, source="script"), 1002, "timeLimit"),
        ("timeout", ExitInfo(code=0, source="script"), 1002, "timeLimit"),
        ("canceled_other", ExitInfo(code=143, source="script"), 2040, None),
        ("canceled_other", ExitInfo(code=0, source="script"), None, None),
        (
            "canceled_other",
            ExitInfo(signal=15, source="script", stop_reason="cancel"),
            1001,
            "cancel",
        ),
        ("out_of_memory", ExitInfo(code=1, source="script"), 2001, None),
        ("out_of_memory", ExitInfo(code=0, source="script"), None, None),
        ("preempted", ExitInfo(signal=15, source="script"), 2042, None),
        ("node_fail", ExitInfo(code=0, source="script"), None, None),
        ("failed", ExitInfo(code=7, source="script"), 9000, None),
        ("segfault", ExitInfo(signal=11, source="script"), 3011, None),
    ],
)
def test_the_scripts_own_word_counts_and_slurm_says_why(
    name: str, own: ExitInfo, row: int | None, stop: str | None
) -> None:
    exit_ = merge_exit(own, judged(name))
    assert (exit_.code, exit_.signal, exit_.source, exit_.stop_reason) == (
        own.code,
        own.signal,
        "script",
        stop,
    )
    found = diagnose(exit_, TABLE)
    assert (found.code if found else None) == row
    assert exit_.batch.state == judged(name).state.state  # type: ignore[union-attr]


@pytest.mark.parametrize(("seconds", "stop"), [(31.0, None), (29.0, "timeLimit")])
def test_an_exit_long_before_slurm_s_end_of_the_job_decides_although_nobody_saw_it_then(
    seconds: float, stop: str | None
) -> None:
    verdict = judged("timeout")
    assert verdict.exit is not None and verdict.exit.ended_at is not None
    exit_ = merge_exit(
        ExitInfo(code=3, source="script", ended_at=verdict.exit.ended_at - seconds), verdict
    )
    assert (exit_.code, exit_.stop_reason) == (3, stop)


# ---- pending, running, never started


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("held", "it is held on behalf"),
        ("begin", "its begin time"),
        ("priority", "other jobs are before it"),
        ("resources", "it is next"),
        ("array", "tasks of its array"),
        ("partition_down", "partition is down"),
        ("drained_named", "down, drained or reserved: w1"),
        ("drained_two", "reserved: w[1-2]"),
        ("node_down_waiting", "reserved: w2"),
        ("requeued_waiting", "its begin time"),
        ("reserved", "reserved"),
        ("requeue_hold", "requeued and is held"),
        ("special_exit", "requeued and is held"),
        ("no_hours", "hours"),
        ("node_fail_requeued", "its begin time"),
        ("drained", "other jobs"),
    ],
)
def test_waits(name: str, told: str) -> None:
    verdict = judged(name)
    assert verdict.kind == "waiting" and verdict.exit is None and not verdict.stale
    assert told in verdict.state.sentence and verdict.state.reason in verdict.state.sentence


def test_when_it_is_expected_to_start() -> None:
    row, account = pair("resources", RECORDED)
    assert job_status("lab", row, account, now=1795293000.0).state.starts_at == 1795293057.0
    assert judged("resources").state.starts_at is None, (
        "what has passed is only when slurmctld looked at it, each time anew"
    )
    assert judged("held").state.starts_at is None and judged("running").state.starts_at is None


@pytest.mark.parametrize(
    "name", ["partition_time", "partition_nodes", "partition_config", "dependency", "qos_per_job"]
)
def test_what_would_wait_for_ever_is_told_as_that(name: str) -> None:
    verdict = judged(name)
    exit_ = verdict.exit
    assert verdict.kind == "impossible" and exit_ is not None
    assert (exit_.source, exit_.fault) == ("start", "neverPossible") and verdict.state.reason in (
        exit_.detail or ""
    )
    found = diagnose(exit_, TABLE)
    assert found is not None and found.code == 2026


def test_reasons_of_one_jobs_limits_never_pass_and_those_of_groups_do() -> None:
    assert [
        job_status("lab", r, None, now=NOW).kind
        for r in parse_squeue(golden("squeue_never", "24.11"))
    ] == ["impossible"] * 3
    assert set(IMPOSSIBLE) >= {
        "PartitionConfig",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "BadConstraints",
        "DependencyNeverSatisfied",
    }
    for reason in (
        "QOSMaxCpuPerUserLimit",
        "AssocGrpCpuLimit",
        "QOSGrpNodeLimit",
        "MaxCpuPerAccount",
        "AssocMaxJobsLimit",
        "QOSMaxJobsPerUserLimit",
        "Priority",
    ):
        assert impossible_reason(reason) is None and describe_wait(reason), reason
    for reason in (
        "QOSMaxNodePerJobLimit",
        "AssocMaxCpuPerJobLimit",
        "QOSMaxWallDurationPerJobLimit",
        "QOSMinGRES",
        "QOSMaxMemoryPerNode",
    ):
        assert impossible_reason(reason), reason
    assert (
        "hours" in describe_wait("QOSGrpCPUMinutesLimit")
        and describe_wait("NobodyKnowsThis") == "it waits for a reason that jobscribe does not know"
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("running", "it runs on w1"),
        ("suspended", "suspended"),
        ("completing", "it is ending"),
        ("requeued", "it is ending"),
    ],
)
def test_runs(name: str, told: str) -> None:
    verdict = judged(name)
    assert verdict.kind == "running" and verdict.exit is None and told in verdict.state.sentence


def test_the_controller_counts_while_it_has_the_job() -> None:
    # recorded: sacct still reports PENDING for a running job, and CANCELLED while the job's
    # processes end
    assert [s and s.state for s in pair("running")] == ["RUNNING", "PENDING"] and judged(
        "running"
    ).kind == "running"
    assert [s and s.state for s in pair("completing")] == ["COMPLETING", "CANCELLED"] and judged(
        "completing"
    ).kind == "running"
    # for a requeued job, sacct has the previous end but not yet the next start
    assert [s and s.state for s in pair("requeued")] == ["COMPLETING", "REQUEUED"] and judged(
        "requeued"
    ).state.restarts == 0
    state = judged("node_fail_requeued").state
    assert (state.restarts, state.nodes, state.canceled_by) == (1, "", "")
    assert judged("requeued_waiting").state.restarts == 1


def test_an_earlier_start_in_the_accounting_is_not_this_one() -> None:
    earlier = Account(
        "7",
        "kim",
        "FAILED",
        exit_code=7,
        submitted_at=1795292911.0,
        started_at=1795292912.0,
        ended_at=1795292920.0,
        nodes="n1",
    )
    row = Row(
        "7",
        "kim",
        "FAILED",
        submitted_at=1795292920.0,
        started_at=1795292930.0,
        ended_at=1795292931.0,
        nodes="n2",
    )
    verdict = job_status("lab", row, earlier, now=NOW)
    assert (
        verdict.exit is not None
        and verdict.exit.code is None
        and (verdict.state.nodes, verdict.state.restarts) == ("n2", 1)
    )
    assert (
        job_status("lab", row._replace(state="PENDING", nodes=""), earlier, now=NOW).state.nodes
        == ""
    )
    # a difference of one second between two clocks is not a new start
    verdict = job_status("lab", row._replace(submitted_at=1795292912.0), earlier, now=NOW)
    assert verdict.exit is not None and verdict.exit.code == 7 and verdict.state.restarts == 0


def test_the_accounting_alone() -> None:
    account = pair("completed")[1]
    assert job_status("lab", None, account, now=NOW).kind == "over"
    verdict = job_status("lab", None, pair("suspended")[1], now=NOW)
    assert (verdict.kind, verdict.stale) == (
        "running",
        True,
    ) and "forgotten" in verdict.state.sentence
    verdict = job_status("lab", None, pair("held")[1], now=NOW)
    assert (verdict.kind, verdict.stale) == ("waiting", True)
    assert job_status("lab", None, None, now=NOW).kind == "absent"


@pytest.mark.parametrize(
    ("name", "version", "kind"),
    [
        ("unknown", "25.05", "running"),
        ("expediting", "25.11", "running"),
        ("power_up", "21.08", "running"),
    ],
)
def test_a_word_that_nobody_knows_is_shown_and_is_no_end(
    name: str, version: str, kind: str
) -> None:
    verdict = judged(name, version)
    assert verdict.kind == kind and verdict.exit is None
    if name == "unknown":
        assert "TELEPORTING, unknown to jobscribe" in verdict.state.sentence
        waiting = job_status(
            "lab", parse_squeue(golden("squeue_unknown", version))[1], None, now=NOW
        )
        assert waiting.kind == "waiting" and "SomethingNew" in waiting.state.sentence


WORD = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "PENDING",
            "RUNNING",
            "FAILED",
            "COMPLETED",
            "CANCELLED",
            "TIMEOUT",
            "X",
            "JobLaunchFailure",
        ]
    ),
)
MOMENT = st.one_of(st.none(), st.floats(1e9, 2e9))
ROWS = st.none() | st.builds(
    Row,
    st.sampled_from(["7", "7_1", "7_[1-3]", "7+0"]),
    WORD,
    WORD,
    MOMENT,
    MOMENT,
    MOMENT,
    MOMENT,
    MOMENT,
    WORD,
    WORD,
    WORD,
    WORD,
    WORD,
    WORD,
    st.none() | st.integers(0, 255),
    st.none(),
    st.integers(0, 3),
)
ACCOUNTS = st.none() | st.builds(
    Account,
    st.just("7"),
    WORD,
    WORD,
    WORD,
    st.none() | st.integers(0, 255),
    st.none(),
    st.none(),
    MOMENT,
    MOMENT,
    MOMENT,
    MOMENT,
    st.none() | st.integers(0, 2**60),
    WORD,
    WORD,
    WORD,
    WORD,
    WORD,
    WORD,
    st.integers(0, 3),
)


@given(ROWS, ACCOUNTS)
@settings(max_examples=200, deadline=None)
def test_whatever_slurm_says_there_is_a_verdict_that_can_be_sent(
    row: Row | None, account: Account | None
) -> None:
    verdict = job_status("lab", row, account, now=NOW)
    assert (verdict.exit is not None) == (
        verdict.kind in ("over", "impossible")
    ) and verdict.state.sentence
    if verdict.exit is not None:
        assert msgspec.json.decode(msgspec.json.encode(verdict.exit), type=ExitInfo) == verdict.exit
        if verdict.exit.succeeded:
            assert "COMPLETED" in ((row and row.state) or "", (account and account.state) or "")
        merge_exit(ExitInfo(code=3, source="script"), verdict)


# ---- marks


def test_a_mark_is_read_when_it_is_whole() -> None:
    text = "job 57\nrestart 1\nhost vm\npid 30774\nat 1795293203\nstep 2\nnodes w[1-2]\nend\n"
    mark = parse_started(text)
    assert mark is not None and (
        mark.job_id,
        mark.restart,
        mark.host,
        mark.pid,
        mark.at,
        mark.step,
        mark.nodes,
    ) == (
        "57",
        1,
        "vm",
        30774,
        1795293203.0,
        "2",
        "w[1-2]",
    )
    assert [
        parse_started(text[:n])
        for n in range(len(text) - 1)
        if n != len(text) - 1 and not text[:n].endswith("end")
    ] == [None] * (len(text) - 1)
    assert parse_started("job x\nend\n") is None
