"""Requests that a cluster cannot satisfy are refused with the available values, by jobscribe before
the submission or by Slurm itself; no job is left half submitted.

Slurm's jobs are checked with squeue. Bad input comes by HTTP, command line and job file.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from concurrent_runs import ALICE, BOB, PEOPLE, SECS, ConcurrentRuns
from local_parity import types
from login_nodes import Users
from slurm_cluster import Slurm, sites
from supervisor_process import jid_of, req_id, until

LATER = "begin=now+1hour"


@pytest.fixture(scope="module")
def stage(_cluster: tuple[Slurm, Users]) -> Iterator[ConcurrentRuns]:
    """Two clusters: `lab`, and the same cluster with its folder on a separate disk."""
    slurm, users = _cluster
    disk = slurm.place / "disk"
    disk.mkdir()
    fields = {
        "directives": ["begin", "nodelist", "exclusive"],
        "limits": {"nodes": 2, "timeLimitSecs": 7200},
    }
    with sites(slurm, users, lambda: pytest.fail("nobody signs in here")) as made:
        site = made.make(
            clusters={"lab": fields, "full": {**fields, "folder": str(disk)}}, people=PEOPLE
        ).start()
        stage = ConcurrentRuns(site, slurm, users, "batch")
        try:
            yield stage
            assert "Traceback" not in site.log(), site.log()[-5000:]
        finally:
            stage.close()
            subprocess.run(["umount", "--lazy", str(disk)], capture_output=True)
    slurm.well()


@pytest.fixture
def known(stage: ConcurrentRuns) -> ConcurrentRuns:
    """The stage, once ALICE's agent has reported the cluster."""
    stage.site.post("begin-session", uid=ALICE, driver="sbatch")
    until(
        lambda: stage.site.post("clusters", uid=ALICE)["clusters"][0]["partitions"],
        "her agent has told of it",
        SECS,
    )
    return stage


def refused(stage: ConcurrentRuns, run: dict[str, Any], code: str, *words: str) -> str:
    """Check that the run is refused, not stored, and unknown to Slurm. Return the sentence."""
    answer = stage.site.ask(
        "POST", "/api/run-simulation", json.dumps({"reqId": req_id(), "run": run}).encode()
    )
    said = answer.json()
    assert (answer.code, said.get("code")) == (400, code), (answer.code, said)
    assert [w for w in words if w not in said["error"]] == [] and said["advice"], said
    asked = stage.site.ask(
        "POST",
        "/api/run-status",
        json.dumps({"uid": run["uid"], "computeJid": jid_of(run)}).encode(),
    )
    assert (asked.code, asked.json()["code"]) == (404, "notFound"), asked
    nothing_of(stage, run)
    return str(said["error"])


def nothing_of(stage: ConcurrentRuns, run: dict[str, Any], *, active: bool = False) -> None:
    """Check that Slurm has no job of the run. active: ignore ended jobs, because Slurm may keep one
    that it refused, as failed on no node.
    """
    kept = [j for j in stage.slurm.queued(active=active) if f" {jid_of(run)}/" in j.comment]
    assert kept == [], kept


# ---- refused by jobscribe


@pytest.mark.parametrize(
    ("batch", "code", "words"),
    [
        ({"cluster": "nosuch"}, "batchRefused", ['no cluster "nosuch"', "lab, full"]),
        (
            {"partition": "nosuch"},
            "batchRefused",
            ['no partition "nosuch"', "batch", "debug", "small", "closed"],
        ),
        (
            {"account": "nosuch"},
            "batchRefused",
            ['may not use the account "nosuch"', "research", "chem"],
        ),
        ({"qos": "nosuch"}, "batchRefused", ['may not use the QOS "nosuch"', "normal"]),
        (
            {"partition": "small"},
            "batchRefused",
            ["partition 'small' does not accept the account \"research\"; it accepts: chem"],
        ),
        (
            {"partition": "small", "account": "chem", "nodes": 2},
            "resourceExceeded",
            ["`nodes`: 2 are needed", "1"],
        ),
        (
            {"nodes": 3},
            "resourceExceeded",
            ["`nodes`: 3 are needed; the limit of cluster 'lab' for a run is 2"],
        ),
        (
            {"cores": 5},
            "resourceExceeded",
            ["`cores`: 5 are requested; a node of partition 'batch' of cluster 'lab' has 4"],
        ),
        ({"tasks": 100}, "resourceExceeded", ["25 are needed (100 tasks with 1 cores each)", "3"]),
        (
            {"memoryMb": 1001},
            "resourceExceeded",
            ["`memory`: 1001 MB are requested on each node", "has 1000"],
        ),
        ({"gpus": 2}, "resourceExceeded", ["`gpus`: 2 GPUs are requested on each node", "has 1"]),
        (
            {"nodes": 2, "tasks": 1},
            "batchRefused",
            ["2 `nodes` are more than 1 `tasks`"],
        ),
        (
            {"directives": ["reservation=maint"]},
            "batchRefused",
            ['does not allow "reservation"; allowed are: begin, nodelist, exclusive'],
        ),
    ],
)
def test_what_is_known_is_refused_with_what_there_is(
    known: ConcurrentRuns, batch: dict[str, Any], code: str, words: list[str]
) -> None:
    refused(known, known.run("true", batch=batch), code, *words)


def test_a_time_limit_that_the_cluster_or_the_partition_does_not_give(
    known: ConcurrentRuns,
) -> None:
    refused(
        known,
        known.run("true", timeLimitSecs=7201),
        "resourceExceeded",
        "`timeLimit`: 7201 s are requested; cluster 'lab' gives a run 7200 s",
    )
    short = known.run("true", batch={"partition": "debug"}, timeLimitSecs=301)
    refused(
        known,
        short,
        "resourceExceeded",
        "`timeLimit`: 301 s are requested; partition 'debug' of cluster 'lab' gives a run 300 s",
    )


# ---- refused by Slurm


def failed(stage: ConcurrentRuns, run: dict[str, Any], *words: str) -> None:
    """Check that Slurm refused the run: the run ends with that error and is in no queue."""
    said = stage.site.wait(run, SECS)
    assert (said["state"], said["reason"], said["exit"]["source"], said["exit"]["fault"]) == (
        "error",
        "startFailed",
        "start",
        "batchRefused",
    ), said
    assert (
        "jobId" not in said.get("batch", {}) and [w for w in words if w not in said["error"]] == []
    ), said
    why = stage.why(run)
    assert (why["cause"], why["confidence"]) == ("startFailed", "certain"), why
    assert why["sentence"] == said["error"] and "jobscribe cluster list" in "\n".join(why["try"]), (
        why
    )
    assert stage.site.story(run).count(
        "TaskStarted"
    ) == 0 and "TaskSubmitted" not in stage.site.story(run)
    nothing_of(stage, run, active=True)


def test_what_is_not_known_yet_is_refused_by_slurm_in_its_words(stage: ConcurrentRuns) -> None:
    """The very first runs start the user's agent, so nothing is known of the cluster yet."""
    assert stage.site.post("clusters", uid=BOB)["clusters"][0]["partitions"] is None
    wrong = {
        "partition": ({"partition": "nosuch"}, ["no such partition", "nvalid partition"]),
        "account": ({"account": "nosuch"}, ["account", "nvalid account"]),
        "qos": ({"qos": "nosuch"}, ["QOS", "nvalid qos"]),
        "constraint": ({"constraint": "nosuch"}, ["features", "nvalid feature"]),
        "memory": ({"memoryMb": 1_000_000}, ["enough memory", "emory specification"]),
        "licences": ({"licenses": "nosuch:1"}, ["licen", "nvalid license"]),
        "node": ({"directives": ["nodelist=nosuch"]}, ["nvalid node name"]),
        "begin": ({"directives": ["begin=never"]}, ["begin"]),
    }
    runs = {
        name: stage.run("true", uid=BOB, batch=batch, timeLimitSecs=60)
        for name, (batch, _) in wrong.items()
    }
    late = stage.run("true", uid=BOB, batch={"partition": "debug"}, timeLimitSecs=600)
    for run in (late, *runs.values()):
        assert stage.site.submit(run)["state"] == "pending"
    for name, run in runs.items():
        failed(stage, run, *wrong[name][1])
    # a job that Slurm accepts but would never start is removed from its queue
    said = stage.site.wait(late, SECS)
    assert (said["state"], said["exit"]["fault"]) == (
        "error",
        "neverPossible",
    ) and "(Slurm: Partition" in said["error"], said
    why = stage.why(late)
    assert (why["cause"], why["confidence"]) == (
        "startFailed",
        "certain",
    ) and "jobscribe cluster list" in "\n".join(why["try"]), why
    assert stage.slurm.state(said["batch"]["jobId"]) == "CANCELLED"
    until(
        lambda: stage.site.post("clusters", uid=BOB)["clusters"][0]["partitions"],
        "his agent has told of it",
        SECS,
    )
    refused(
        stage,
        stage.run("true", uid=BOB, batch={"partition": "nosuch"}),
        "batchRefused",
        'no partition "nosuch"',
    )


def test_no_hours_left_and_limits_of_a_qos(known: ConcurrentRuns) -> None:
    """A run of an account without hours waits with that reason; a QOS that denies is a refusal by
    Slurm.
    """
    spent = known.run("true", batch={"account": "spent"})
    known.site.submit(spent)
    long = known.run("true", batch={"qos": "short"}, timeLimitSecs=600)
    known.site.submit(long)
    failed(known, long, "QOSMaxWallDurationPerJobLimit")
    two = [
        known.run("true", batch={"qos": "short", "directives": [LATER]}, timeLimitSecs=60)
        for _ in range(2)
    ]
    for run in two:
        known.site.submit(run)
    for run in two:
        known.waits_for(run, "BeginTime")
    third = known.run("true", batch={"qos": "short", "directives": [LATER]}, timeLimitSecs=60)
    known.site.submit(third)
    failed(known, third, "limit of queued jobs", "QOSMaxSubmitJobPerUserLimit")
    said = known.waits_for(spent, "AssocGrpCPUMinutesLimit")
    assert "the hours of its account" in said["jobStatusMessage"], said
    assert "operators of the cluster set these limits" in "\n".join(known.why(spent)["try"])
    for run in (*two, spent):
        known.site.cancel(run)
        assert known.site.wait(run, SECS)["state"] == "canceled"
    until(
        lambda: not [j for j in known.slurm.queued() if ALICE in j.comment],
        "Slurm has none of them any more",
        SECS,
    )


# ---- full disk


def test_a_disk_that_is_full_is_named_and_nothing_is_submitted_until_there_is_room(
    stage: ConcurrentRuns,
) -> None:
    """A quota limits the disk. Processes on the nodes are not checked: they do not see this
    disk.
    """
    disk, alice = stage.slurm.place / "disk", stage.users.uid("alice")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size=96m,mode=0700,uid={alice}", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(
            f"no disk can be mounted here ({mounted.stderr.strip()}): a container needs --cap-add SYS_ADMIN"
        )
    there = {"cluster": "full", "directives": [LATER]}
    before = stage.run("true", batch=there)
    stage.site.submit(before)
    stage.waits_for(before, "BeginTime")
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as f:
        for size in (65536, 4096, 1):
            try:
                while f.write(b"x" * size):
                    pass
            except OSError:
                continue
    lost = [stage.run("true", batch=there) for _ in range(3)]
    for run in lost:
        stage.site.submit(run)
    for run in lost:
        said = stage.site.wait(run, SECS)
        assert (said["state"], said["reason"], said["exit"]["fault"]) == (
            "error",
            "startFailed",
            "diskFull",
        ), said
        assert "No space left" in said["error"] or "full" in said["error"], said["error"]
        why = stage.why(run)
        assert (why["cause"], why["confidence"]) == (
            "diskFull",
            "certain",
        ) and "ree space on the disk" in "\n".join(why["try"]), why
        nothing_of(stage, run)
    assert stage.said(before)["queueState"] == "slurm" and stage.said(before)["known"] is True
    ballast.unlink()
    after = stage.run("true", batch=there)
    stage.site.submit(after)
    stage.waits_for(after, "BeginTime")
    for run in (before, after):
        stage.site.cancel(run)
        assert stage.site.wait(run, SECS)["state"] == "canceled"
    until(
        lambda: not [j for j in stage.slurm.queued() if ALICE in j.comment],
        "Slurm has none of them any more",
        SECS,
    )


# ---- injection


CANARY = Path("/tmp/jobscribe-canary")
TOUCH = f"touch {CANARY}"
#: Invalid names: each would add an option, a line or a command.
BROKEN = [
    "batch\n#SBATCH --uid=0",
    "batch --wrap=id",
    f"$({TOUCH})",
    f"`{TOUCH}`",
    f"batch;{TOUCH}",
    f"batch'{TOUCH}'",
    f'batch"{TOUCH}',
    "batch\r#SBATCH --uid=0",
    "-p",
    "--wrap=id",
    "batch #",
    "../etc",
    "batch\x00",
    "b\u2028#SBATCH --uid=0",
    "a" * 257,
    "",
]
KEYS = ("partition", "account", "qos", "constraint", "licenses", "cluster")


@pytest.mark.parametrize("key", KEYS)
def test_names_are_names(known: ConcurrentRuns, key: str) -> None:
    for text in BROKEN:
        if key in ("constraint", "licenses") and text in ("-p", "--wrap=id"):
            continue  # a valid feature: it follows `=` and stays one word
        run = known.run("true", batch={key: text})
        answer = known.site.ask(
            "POST", "/api/run-simulation", json.dumps({"reqId": req_id(), "run": run}).encode()
        )
        assert answer.code == 400 and answer.json()["code"] in ("badRequest", "batchRefused"), (
            key,
            text,
            answer,
        )
        nothing_of(known, run)
    assert not CANARY.exists()


DIRECTIVES = [
    "wrap=id",
    "output=/etc/passwd",
    "outp=/etc/passwd",
    "uid=0",
    "array=1-1000",
    "requeue",
    "exclusive --uid=0",
    "exclusive\n#SBATCH --uid=0",
    "exclusive #",
    "dependency=afterok:1",
    "depend=afterok:1",
    "time=1",
    "t=1",
    "chdir=/root",
    "export=ALL",
    "exp=ALL",
    "comment=x",
    "job-name=x",
    "mem=1",
    "begin=$(id)",
    "begin=`id`",
    "begin='now'",
    'begin="now"',
    "begin=now now",
    "begin=\\n",
    "--exclusive",
    "EXCLUSIVE",
    "hold",
    "ho",
    "signal=KILL@1",
    "parsable",
    "W",
    "wait",
    "get-user-env",
    "no-requeue",
    "open-mode=truncate",
    "error=/tmp/x",
    "err=/tmp/x",
    "test-only",
    "clusters=other",
    "M=other",
    "help",
    "usage",
    "version",
]


def test_directives_are_one_option_each_of_those_that_are_allowed(known: ConcurrentRuns) -> None:
    for text in DIRECTIVES:
        run = known.run("true", batch={"directives": [text]})
        answer = known.site.ask(
            "POST", "/api/run-simulation", json.dumps({"reqId": req_id(), "run": run}).encode()
        )
        assert answer.code == 400 and answer.json()["code"] in ("badRequest", "batchRefused"), (
            text,
            answer,
        )
        nothing_of(known, run)
    twice = known.run("true", batch={"directives": ["exclusive", "exclusive"]})
    refused(known, twice, "batchRefused", "twice")


@pytest.mark.parametrize(
    "setup",
    [
        "#SBATCH --uid=0",
        "true\n  #SBATCH --wrap=id",
        "true\r\ntrue",
        "true\x00",
        "x" * 8193,
        "\x1b[2J",
    ],
)
def test_setup_is_lines_of_sh_and_no_options(known: ConcurrentRuns, setup: str) -> None:
    run = known.run("true", batch={"setup": setup})
    answer = known.site.ask(
        "POST", "/api/run-simulation", json.dumps({"reqId": req_id(), "run": run}).encode()
    )
    assert answer.code == 400 and answer.json()["code"] in ("badRequest", "batchRefused"), answer
    nothing_of(known, run)


def test_what_is_taken_breaks_out_of_nothing(known: ConcurrentRuns) -> None:
    """Setup, modules, commands, names and variables with characters that could break a script: each
    stays in its place.
    """
    hostile = f"'; {TOUCH}; '\"`{TOUCH}`$({TOUCH})\n#SBATCH --job-name=pwned\n\\"
    says = known.run("true", env={"HOSTILE": hostile}, simName=hostile.replace("\n", " ")[:60])
    says["command"] = ["/bin/sh", "-c", 'printf %s "$HOSTILE" "$1"', "sh", hostile]
    opened = {
        text: known.run("echo ran", batch={"setup": text})
        for text in (
            "echo 'open",
            "if true; then",
            "exit 5",
            "cat <<E",
            "exec true",
            ") ; (",
            "trap - EXIT; exit 6",
            "trap - EXIT; exit 0",
        )
    }
    module = known.run("echo ran", batch={"modules": ["nosuch/1.0"]})
    for run in (says, module, *opened.values()):
        known.site.submit(run)
    assert known.site.wait(says, SECS)["state"] == "completed"
    assert known.site.output(says, limit=100_000).body.decode() == hostile * 2
    job = known.slurm.job(known.said(says)["batch"]["jobId"])
    assert job is not None and job.name.startswith("js-") and job.user == known.users["alice"]
    said = known.site.wait(module, SECS)
    assert said["state"] == "error" and "nosuch/1.0" in (said["exit"]["lastLines"] or ""), said
    for text, run in opened.items():
        said = known.site.wait(run, SECS)
        ran = b"ran" in known.site.output(run).body
        # if the setup ends or replaces the shell, nothing runs, and the run is never a success
        assert ran or (said["state"] == "error" and said["error"]), (text, said)
        assert said["exit"]["code"] == {"exit 5": 5, "trap - EXIT; exit 6": 6}.get(
            text, said["exit"]["code"]
        ), (text, said)
    assert not CANARY.exists() and not [
        j for j in known.slurm.queued(active=False) if j.name == "pwned"
    ]


# ---- command line and job files


def typed(stage: ConcurrentRuns, *args: str) -> tuple[int, str, str]:
    done = types(stage, "job", "submit", "--uid", ALICE, *args)
    out, complaint = done.communicate(timeout=SECS)
    assert "Traceback" not in out + complaint, complaint
    return done.returncode, out, complaint


def test_the_command_line_says_no_before_anything_is_submitted(known: ConcurrentRuns) -> None:
    before = {
        j.id for j in known.slurm.queued(active=False)
    }  # squeue omits jobs that end meanwhile
    for args, word in (
        (("--partition", "nosuch"), 'no partition "nosuch"'),
        (("--partition", "batch\n#SBATCH --uid=0"), "partition"),
        (("--nodes", "3"), "the limit of cluster 'lab'"),
        (("--directive", "wrap=id"), "wrap"),
        (("--directive", "exclusive --uid=0"), "an option of sbatch"),
        (("--setup", "#SBATCH --uid=0"), "#SBATCH"),
        (("--module", f"$({TOUCH})"), "the name of a module"),
        (("--account", f"`{TOUCH}`"), "account"),
        (("--nodes", "0"), "nodes"),
        (("--cluster", "nosuch"), "no cluster"),
    ):
        code, out, complaint = typed(known, "--driver", "sbatch", *args, "--", "true")
        assert code != 0 and out == "" and word in complaint, (args, code, out, complaint)
    code, out, complaint = typed(known, "--driver", "local", "--partition", "batch", "--", "true")
    assert code != 0 and out == "", (out, complaint)
    assert {j.id for j in known.slurm.queued(active=False)} <= before and not CANARY.exists()


def test_a_job_file_says_no_with_the_line(known: ConcurrentRuns, tmp_path: Path) -> None:
    before = {
        j.id for j in known.slurm.queued(active=False)
    }  # squeue omits jobs that end meanwhile
    file = tmp_path / "job.yml"
    for text, words in (
        ("partition: nosuch", ["no partition"]),
        ('partition: "batch\\n#SBATCH --uid=0"', ["partition"]),
        ("directives: [wrap=id]", ["wrap"]),
        ('directives: ["exclusive --uid=0"]', ["directives"]),
        ("setup: |\n    #SBATCH --uid=0", ["#SBATCH"]),
        ("memory: 1TB", ["memory"]),
        (f'modules: ["$({TOUCH})"]', ["modules"]),
        ("wrap: id", ["wrap"]),
        ("account: !!python/object:os.system id", ["5"]),
    ):
        file.write_text(f"name: x\ndriver: sbatch\ncommand: echo ran\nbatch:\n  {text}\n")
        code, out, complaint = typed(known, "-f", str(file))
        assert code != 0 and out == "" and not [w for w in words if w not in complaint], (
            text,
            code,
            out,
            complaint,
        )
    assert {j.id for j in known.slurm.queued(active=False)} <= before and not CANARY.exists()
    file.write_text(
        "name: x\ndriver: sbatch\ncommand: echo ran\nbatch:\n  setup: export A=1\n  memory: 20MB\n"
    )
    code, out, complaint = typed(known, "-f", str(file))
    assert code == 0, complaint
    said = until(
        lambda: (
            (s := known.site.post("run-status", uid=ALICE, computeJid=out.split()[-1]))["over"]
            and s
        ),
        "it has run",
        SECS,
    )
    assert said["state"] == "completed", said
    assert os.environ.get("SLURM_CONF") is None
