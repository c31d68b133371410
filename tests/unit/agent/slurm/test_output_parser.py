"""The parser for Slurm's output, with recorded and constructed texts. No output raises an error."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slurm_cases import RECORDED, TEXTS, VERSIONS, failed, golden, pair

from jobscribe.agent.slurm import output_parser
from jobscribe.agent.slurm.command_lines import ACCOUNT_NAMES, ROW_FIELDS, SEPARATOR
from jobscribe.agent.slurm.value_formats import (
    parse_bytes,
    parse_duration,
    parse_exit,
    parse_seconds,
    parse_time,
)
from jobscribe.protocol.clusters.batch import NodeGroup, Partition
from jobscribe.protocol.jobs.exit_info import FAULTS

S = SEPARATOR


def test_every_golden_text_says_where_it_is_from() -> None:
    files = sorted(TEXTS.glob("*/*.txt"))
    assert (
        len(files) > 100 and RECORDED in VERSIONS and {"20.11", "23.11", "25.05"} <= set(VERSIONS)
    )
    for file in files:
        first = file.read_bytes().decode().split("\n")[0]
        recorded = file.parent.name == RECORDED
        assert (
            first == "recorded 22.05.8"
            if recorded
            else first.startswith(f"constructed {file.parent.name}: ")
        ), file
        assert recorded or len(first.partition(": ")[2]) > 5, file


# ---- squeue


def test_a_row_of_squeue() -> None:
    (row,) = output_parser.parse_squeue(golden("squeue_resources"))
    assert row == output_parser.Row(
        "33",
        "kim",
        "PENDING",
        1795292997.0,
        1795293057.0,
        None,
        None,
        60.0,
        "debug",
        "root",
        "",
        "Resources",
        "js-x",
        "jobscribe lab a/1/1/main/0",
    )
    (row,) = output_parser.parse_squeue(golden("squeue_timeout"))
    assert (row.starts_at, row.started_at, row.ended_at, row.nodes) == (
        None,
        1795292912.0,
        1795292995.0,
        "w1",
    )
    (row,) = output_parser.parse_squeue(golden("squeue_running"))
    assert (row.started_at, row.ended_at) == (
        1795292928.0,
        None,
    )  # squeue's end time of a running job is its time limit


def test_all_jobs_of_a_user_at_once_are_the_same_as_one_by_one() -> None:
    rows = {r.job_id: r for r in output_parser.parse_squeue(golden("squeue_all"))}
    assert (
        len(rows) > 15 and rows["33"].state == "COMPLETED" and "3" not in rows
    )  # slurmctld forgets old jobs
    accounts = {a.job_id: a for a in output_parser.parse_sacct(golden("sacct_all"))}
    for name in (
        "completed",
        "failed",
        "segfault",
        "killed",
        "no_output",
        "out_of_memory",
        "canceled_other",
        "timeout",
    ):
        account = pair(name)[1]
        assert account is not None and accounts[account.job_id] == account
    never = pair("canceled_waiting")[1]
    assert (
        never is not None and never.job_id not in accounts
    )  # the job never left its hold: sacct finds it only by id


def test_names_and_comments_of_users_move_no_field_and_forge_no_job() -> None:
    (row,) = output_parser.parse_squeue(golden("squeue_odd_name"))
    assert (row.job_id, row.state, row.reason, row.user) == (
        "8",
        "FAILED",
        "NonZeroExitCode",
        "kim",
    )
    (account,) = output_parser.parse_sacct(golden("sacct_odd_name"))
    assert (account.job_id, account.state, account.exit_code) == ("8", "FAILED", 3)
    (row,) = output_parser.parse_squeue(golden("squeue_odd_comment"))
    assert (row.job_id, row.state, row.name, row.comment) == (
        "9",
        "COMPLETED",
        "x",
        "",
    )  # the comment breaks the line in two
    (account,) = output_parser.parse_sacct(golden("sacct_odd_comment"))
    assert (account.job_id, account.state) == ("9", "COMPLETED")
    forged = (
        golden("squeue_running").rstrip("\n")
        + "\n"
        + golden("squeue_completed").replace("3" + S, "23" + S, 1)
    )
    assert [r.state for r in output_parser.parse_squeue(forged)] == ["RUNNING"]


def test_arrays_and_heterogeneous_jobs_have_ids_of_their_own() -> None:
    assert [r.job_id for r in output_parser.parse_squeue(golden("squeue_array"))][:2] == [
        "18_2",
        "18_3",
    ]
    assert {a.job_id: a.state for a in output_parser.parse_sacct(golden("sacct_array_over"))} == {
        "18_1": "COMPLETED",
        "18_2": "COMPLETED",
        "18_3": "COMPLETED",
    }
    assert [
        (r.job_id, r.state)
        for r in output_parser.parse_squeue(golden("squeue_heterogeneous", "24.05"))
    ] == [("7+0", "RUNNING"), ("7+1", "PENDING")]


# ---- sacct


@pytest.mark.parametrize(
    ("name", "state", "code", "signal", "by"),
    [
        ("completed", "COMPLETED", 0, None, ""),
        ("failed", "FAILED", 7, None, ""),
        ("segfault", "FAILED", None, 11, ""),
        ("killed", "FAILED", None, 9, ""),
        ("no_output", "FAILED", None, 53, ""),
        ("out_of_memory", "OUT_OF_MEMORY", None, None, ""),
        ("timeout", "TIMEOUT", 0, None, ""),
        ("canceled_self", "CANCELLED", 0, None, "1001"),
        ("canceled_other", "CANCELLED", 0, None, "0"),
        ("canceled_waiting", "CANCELLED", 0, None, "0"),
        ("node_fail", "NODE_FAIL", 0, None, ""),
        ("preempted", "PREEMPTED", 0, None, ""),
        ("held", "PENDING", 0, None, ""),
    ],
)
def test_what_the_accounting_says(
    name: str, state: str, code: int | None, signal: int | None, by: str
) -> None:
    (account,) = output_parser.parse_sacct(golden(f"sacct_{name}"))
    assert (
        account.state,
        account.exit_code,
        account.signal,
        account.canceled_by,
        account.user,
    ) == (state, code, signal, by, "kim")
    assert account.submitted_at is not None and (account.ended_at is None) == (state == "PENDING")


def test_memory_is_the_most_of_all_steps() -> None:
    (account,) = output_parser.parse_sacct(golden("sacct_canceled_other", "23.11"))
    assert (account.max_rss_bytes, account.canceled_by) == (2048 * 1024, "lee")
    (account,) = output_parser.parse_sacct(golden("sacct_timeout"))
    assert account.max_rss_bytes == 204800


def test_processor_time_is_the_sum_of_all_steps() -> None:
    lines = (
        "11|00:03.500|00:00.500||js-a",
        "11.batch|00:01.500|00:00.250|20480K|batch",
        "11.extern|00:00:00|00:00.001||extern",
        "11.0|01:00:02|1-00:00:00|204800K|main-0",
        "12|00:01.000|00:00.001||js-b",
        "13|00:00:00|00:00:00||js-c",
        "13.0|00:00:00|00:00:00|0|main-0",
        "14|INVALID||x|js|d",
        "no line of a job",
    )
    used = output_parser.parse_usage("\n".join(line.replace("|", S) for line in lines))
    assert used["11"].name == "js-a" and list(used["11"].steps) == ["batch", "extern", "0"]
    assert used["11"].steps["0"] == (3602.0, 86_400.0, 204_800 << 10)
    assert used["11"].total == (3603.5, 86_400.251, 204_800 << 10)
    assert used["12"].total == (1.0, 0.001, None), "a job without steps of its own"
    assert used["13"].total == used["13"].steps["0"] == (None, None, None), "it was not measured"
    assert used["14"].total == (None, None, None)


@given(st.text())
def test_no_text_is_an_error_of_usage(text: str) -> None:
    output_parser.parse_usage(text)
    output_parser.parse_usage(f"11{S}{text}{S}{text}{S}{text}{S}x")


def test_of_several_starts_the_newest_counts_and_the_others_are_counted() -> None:
    (account,) = output_parser.parse_sacct(golden("sacct_requeued", "24.11"))
    assert (account.state, account.exit_code, account.restarts, account.started_at) == (
        "COMPLETED",
        0,
        1,
        1795293912.0,
    )


def test_a_state_that_its_width_has_cut_is_still_told() -> None:
    assert [
        (a.job_id, a.state, a.canceled_by)
        for a in output_parser.parse_sacct(golden("sacct_cut", "23.11"))
    ] == [("7", "OUT_OF_MEMORY", ""), ("8", "CANCELLED", "")]


def test_comments_are_kept_where_the_accounting_keeps_them() -> None:
    assert [a.comment for a in output_parser.parse_sacct(golden("sacct_completed", "20.11"))] == [
        "jobscribe lab a/1/1/main/0"
    ]
    assert [a.comment for a in output_parser.parse_sacct(golden("sacct_completed"))] == [""]


# ---- scontrol, sbatch


def test_scontrol_has_the_exit_code_where_there_is_no_accounting() -> None:
    row = output_parser.parse_job(golden("job_accounting_down"))
    assert row is not None and (row.state, row.exit_code, row.signal, row.user) == (
        "FAILED",
        4,
        None,
        "kim",
    )
    row = output_parser.parse_job(golden("job_segfault"))
    assert row is not None and (row.exit_code, row.signal) == (None, 11)
    row = output_parser.parse_job(golden("job_running"))
    assert row is not None and (row.exit_code, row.signal, row.restarts) == (None, None, 0)
    row = output_parser.parse_job(golden("job_requeued_waiting"))
    assert row is not None and (row.state, row.restarts, row.reason) == ("PENDING", 1, "BeginTime")
    row = output_parser.parse_job(golden("job_failed"))
    assert row is not None and (row.comment, row.name, row.partition) == (
        "jobscribe lab a/1/1/main/0",
        "js-x",
        "debug",
    )
    assert output_parser.parse_job(golden("job_unknown")) is None


@pytest.mark.parametrize(
    ("name", "version", "job"),
    [
        ("accepted", RECORDED, "43"),
        ("accepted_cluster", RECORDED, "44"),
        ("accepted", "23.11", "4711"),
    ],
)
def test_the_id_of_what_was_submitted(name: str, version: str, job: str) -> None:
    assert output_parser.parse_submitted(golden(name, version)) == job


@pytest.mark.parametrize(
    "out",
    ["", "\n", "sbatch: error", "12 34", "0", "4711;", "Submitted batch job x", "-1", "1" * 21],
)
def test_what_is_no_id(out: str) -> None:
    assert output_parser.parse_submitted(out) is None


REFUSED = {
    "partition": "no such partition",
    "account": "may not charge this account",
    "memory": "enough memory",
    "gres": "such GPUs",
    "license": "licences",
    "qos_not_yours": "may not use this QOS",
    "option": "does not know an option",
    "reservation": "reservation",
    "constraint": "features",
    "user": "may not charge this account",
    "qos_wall": "a limit of the account or the QOS",
    "qos_cpus": "a limit of the account or the QOS",
    "qos_submit": "limit of queued jobs",
    "time_word": "Slurm refused the job",
    "nodelist": "Slurm refused the job",
    "script": "Slurm refused the job",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_sbatch_refuses_is_told_in_a_sentence_and_in_its_own_words(name: str) -> None:
    code, err = failed(f"refused_{name}")
    assert output_parser.outage(code, err) is None
    fault, sentence = output_parser.submission_error(err)
    assert fault == "batchRefused" and fault in FAULTS
    assert (
        REFUSED[name] in sentence
        and "Slurm says: " in sentence
        and "sbatch: error" not in sentence
        and "\n" not in sentence
    )
    last = (
        err.strip()
        .split("\n")[-1]
        .split("submission failed: ")[-1]
        .removeprefix("sbatch: ")
        .removeprefix("error: ")
    )
    assert last.strip()[:40] in sentence


def test_words_of_other_versions_and_of_sites() -> None:
    assert "hours" in output_parser.submission_error(golden("refused_hours", "23.11"))[1]
    assert output_parser.submission_error(golden("refused_memory", "20.11"))[0] == "batchRefused"
    assert (
        output_parser.submission_error(golden("refused_retry", "20.11"))[0]
        == "schedulerUnreachable"
    )
    assert output_parser.outage(1, golden("refused_retry", "20.11")) is not None
    assert (
        output_parser.outage(1, golden("sbatch_timeout", "25.05")) is not None
    )  # the request may have reached Slurm


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("squeue_controller_down", "controller cannot be reached"),
        ("sbatch_controller_down", "controller cannot be reached"),
        ("partitions_controller_down", "controller cannot be reached"),
        ("scancel_controller_down", "controller cannot be reached"),
        ("sacct_accounting_down", "accounting cannot be reached"),
        ("associations_accounting_down", "accounting cannot be reached"),
        ("squeue_munge_down", "munge"),
        ("sbatch_munge_down", "munge"),
        ("sacct_munge_down", "accounting cannot be reached"),
        ("squeue_no_configuration", "configuration"),
        ("squeue_missing", "Slurm's programs"),
    ],
)
def test_an_outage_is_never_taken_for_an_answer(name: str, told: str) -> None:
    code, err = failed(name)
    for sentence in (output_parser.outage(code, err), output_parser.query_error(code, err)):
        assert sentence is not None and told in sentence and len(sentence) < 1000


def test_not_knowing_a_job_is_an_answer_and_an_unknown_failure_is_none() -> None:
    code, err = failed("squeue_unknown_id")
    assert (
        output_parser.unknown_job_error(code, err)
        and output_parser.outage(code, err) is None
        and output_parser.query_error(code, err) is None
    )
    assert output_parser.query_error(1, "squeue: error: something nobody has seen") is not None
    assert output_parser.query_error(0, "squeue: error: a warning") is None
    assert output_parser.outage(1, "sbatch: error: something nobody has seen") is None
    assert output_parser.outage(-9, "") is not None


# ---- cluster resources


def test_partitions() -> None:
    assert output_parser.parse_partitions(golden("partitions"), golden("sinfo")) == (
        Partition(
            name="debug",
            default=True,
            nodes=2,
            cores_per_node=4,
            memory_mb_per_node=1000,
            gpus_per_node=0,
            time_limit_secs=120,
            default_secs=60,
        ),
        Partition(
            name="batch",
            nodes=2,
            cores_per_node=4,
            memory_mb_per_node=1000,
            gpus_per_node=0,
            time_limit_secs=3600,
            default_secs=600,
        ),
    )
    assert [
        p.up
        for p in output_parser.parse_partitions(golden("partitions_down"), golden("sinfo_down"))
    ] == [True, False]
    assert output_parser.parse_partitions(
        golden("partitions", "21.08"), golden("sinfo", "21.08")
    ) == (
        Partition(
            name="gpu",
            default=True,
            nodes=6,
            max_nodes=4,
            min_nodes=1,
            cores_per_node=48,
            memory_mb_per_node=200000,
            gpus_per_node=4,
            time_limit_secs=172800,
            default_secs=3600,
            accounts=("bio", "phys"),
            qos=("normal", "gpu"),
        ),
        Partition(
            name="long",
            up=False,
            state="DRAIN",
            nodes=10,
            cores_per_node=32,
            memory_mb_per_node=128000,
            gpus_per_node=0,
        ),
    )


def test_nodes_that_take_no_jobs_are_told_with_the_reason() -> None:
    lines = (
        ("debug*", "1", "idle", "none"),
        ("debug*", "2", "drained", "disk 7 | fan \x07failed"),
        ("debug*", "1", "drained", "disk 7 | fan \x07failed"),
        ("batch", "1", "down*", "Not responding"),
        ("batch", "none", "idle", "none"),
    )
    states = "\n".join(SEPARATOR.join(line) for line in (*lines, ("batch", "1")))
    debug, batch = output_parser.parse_partitions(golden("partitions"), golden("sinfo"), states)
    assert debug.node_groups == (
        NodeGroup(state="idle", nodes=1),
        NodeGroup(state="drained", nodes=3, reason="disk 7 | fan ?failed"),
    )
    assert batch.node_groups == (NodeGroup(state="down*", nodes=1, reason="Not responding"),)


def test_where_only_sinfo_speaks_its_partitions_are_told() -> None:
    assert [
        (p.name, p.default, p.nodes, p.time_limit_secs)
        for p in output_parser.parse_partitions("", golden("sinfo"))
    ] == [
        ("debug", True, 2, None),
        ("batch", False, 2, None),
    ]


def test_accounts_and_versions() -> None:
    assert output_parser.parse_associations(golden("associations_qos")) == (
        ("root",),
        ("normal", "small", "soft"),
    )
    assert output_parser.parse_associations(golden("associations_unknown")) == ((), ())
    assert output_parser.parse_associations("a|bio|x,y\nb|phys|z\n", "b") == (("phys",), ("z",))
    assert output_parser.version(golden("version")) == "22.05.8"
    assert [
        output_parser.version(golden("version", v)) for v in ("20.11", "21.08", "24.05", "25.11")
    ] == [
        "20.11.9",
        "21.08.8-2",
        "24.05.4",
        "25.11.1",
    ]
    assert output_parser.version("") == output_parser.version("command not found") == ""


# ---- query commands


def test_questions_are_asked_in_our_own_format_whatever_the_login_profile_says() -> None:
    for argv in (
        output_parser.squeue("kim"),
        output_parser.sacct("kim"),
        output_parser.submit("/x"),
        output_parser.nodes(),
        output_parser.partitions(),
        output_parser.associations("kim"),
        output_parser.cancel("7"),
    ):
        assert argv[0] == "env" and "SLURM_TIME_FORMAT=%s" in argv and "LC_ALL=C" in argv
    assert (
        "SQUEUE_STATES" in output_parser.squeue("kim")
        and "SACCT_FORMAT" in output_parser.sacct("kim")
        and "SBATCH_PARTITION" in output_parser.submit("/x")
    )
    assert "--user=kim" in output_parser.squeue("kim") and not any(
        a.startswith("--user") for a in output_parser.squeue(None)
    )
    assert (
        "--allusers" in output_parser.sacct(None)
        and "--jobs=7,8" in output_parser.sacct(None, ["7", "8"])
        and "--starttime=uts5" in output_parser.sacct("kim", since=5.9)
    )
    assert output_parser.cancel("7", "0", "USR1")[-2:] == [
        "--signal=USR1",
        "7.0",
    ] and output_parser.cancel("7", full=True)[-2:] == ["--full", "7"]


# ---- arbitrary output


NOISE = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            "",
            "N/A",
            "1795292911",
            "PENDING",
            "FAILED",
            "0:0",
            "0:125",
            "7_[1-3%2]",
            "n[1-3]",
            "\x00",
            "é",
            "(null)",
        ]
    ),
)


@given(st.lists(st.lists(NOISE, max_size=ROW_FIELDS + 3).map(S.join), max_size=6).map("\n".join))
@settings(max_examples=150, deadline=None)
def test_nothing_that_is_printed_makes_a_parser_fail(out: str) -> None:
    for row in output_parser.parse_squeue(out):
        assert row.job_id and row.state
    for account in output_parser.parse_sacct(out):
        assert account.job_id and account.state
    (
        output_parser.parse_job(out),
        output_parser.parse_submitted(out),
        output_parser.parse_associations(out),
        output_parser.version(out),
    )
    output_parser.parse_partitions(out, out)
    assert output_parser.submission_error(out)[0] in FAULTS
    output_parser.outage(1, out)


@pytest.mark.parametrize("name", ["squeue_all", "sacct_all"])
def test_half_an_answer_loses_half_a_line_and_nothing_else(name: str) -> None:
    whole = golden(name)
    parse = output_parser.parse_squeue if name.startswith("squeue") else output_parser.parse_sacct
    every = {r.job_id for r in parse(whole)}
    for cut in range(0, len(whole), 97):
        assert {r.job_id for r in parse(whole[:cut])} <= every
    assert len(ACCOUNT_NAMES) > ROW_FIELDS


@pytest.mark.parametrize(
    ("said", "secs"),
    [
        ("1:00", 60),
        ("30:00", 1800),
        ("3:04:05", 11045),
        ("2-03:04:05", 183845),
        ("2-03", 183600),
        ("2-03:04", 183840),
        ("5", 300),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("Partition_Limit", None),
        ("INVALID", None),
        ("", None),
        ("-1", None),
        ("1:2:3:4", None),
        ("99999999:00", None),
    ],
)
def test_durations(said: str, secs: float | None) -> None:
    assert parse_duration(said) == secs


def test_other_quantities() -> None:
    assert [
        parse_bytes(t) for t in ("20480K", "1.50M", "0", "12", "3Gn", "", "K", "-1", "9" * 30)
    ] == [20971520, 1572864, 0, 12, 3 * 2**30, None, None, None, None]
    assert [
        parse_exit(t)
        for t in ("0:0", "7:0", "0:11", "0:125", "0:139", "256:0", "", "x:y", "0", "1:2:3")
    ] == [
        (0, None),
        (7, None),
        (None, 11),
        (None, None),
        (None, 11),
        (None, None),
        (None, None),
        (None, None),
        (None, None),
        (None, None),
    ]
    assert [
        parse_time(t)
        for t in ("1795292911", "0", "N/A", "2026-11-21T20:00:00", "4294967294", "99999999999999")
    ] == [
        1795292911.0,
        None,
        None,
        None,
        4294967294.0,
        None,
    ]
    assert [parse_seconds(t) for t in ("83", "", "-1", "x")] == [83.0, None, None, None]
