"""Batch scripts: no value from a run can inject a directive or command, and the scripts work in
real shells.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobscribe.agent.slurm import sbatch_directives
from jobscribe.agent.slurm.batch_script import (
    Step,
    Submission,
    batch_script,
    comment,
    job_name,
    matches_token,
)
from jobscribe.agent.slurm.output_parser import Account, Row
from jobscribe.agent.slurm.script_markers import (
    FENCED,
    HELD,
    NO_SETUP,
    OVER,
    RELEASE,
    STARTED,
    parse_started,
)
from jobscribe.protocol.clusters.batch import BatchRequest
from jobscribe.protocol.clusters.cluster import Cluster
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import Token
from jobscribe.protocol.launch.job_script import script
from jobscribe.protocol.wire.messages import TaskSpec

pytestmark = pytest.mark.process

JID = "aaaaaaaa-bbbbbbbb-m"
PLAIN = BatchRequest()
LAB = Cluster(name="lab", directives=("exclusive", "reservation", "switches", "comment"))
SHELLS = [s for s in ("/bin/dash", "/bin/bash", "/bin/busybox") if os.path.exists(s)]
#: Values that try to escape from a line, a word, a quote or a comment.
HOSTILE = [
    "a\n#SBATCH --uid=0",
    "a\n touch PWNED",
    "$(touch PWNED)",
    "`touch PWNED`",
    '"; touch PWNED; "',
    "'; touch PWNED; '",
    "a b",
    "a --uid=0",
    "a#b",
    "\\",
    "a\\",
    "$HOME",
    "a;touch PWNED",
    "a&touch PWNED&",
    "a\r#SBATCH --uid=0",
    "a\x00b",
    "a\u2028b",
    "é" * 3,
    "a\x85b",
    "-x",
    "--uid=0",
    "",
    "\ud800",
    "a" * 5000,
    "a\t--uid=0",
    "!x",
    "%u",
    "{a,b}",
    "~",
    "*",
    "a|b",
    "<x",
    ">PWNED",
]


def token(serial: int = 1, role: str = "main", index: int = 0) -> Token:
    return Token(jid=JID, serial=serial, attempt=1, role=role, index=index)


def made(
    wishes: BatchRequest = PLAIN,
    cluster: Cluster = LAB,
    folder: str = "/e/x",
    secs: float | None = 600.0,
    core_bytes: int = 0,
) -> str:
    step = Step(token=token(), folder=folder)
    return batch_script(
        Submission(
            steps=(step,),
            request=wishes,
            cluster=cluster,
            deployment="lab",
            time_limit_secs=secs,
            core_bytes=core_bytes,
        )
    )


def directives(text: str) -> list[str]:
    """Return the directives that sbatch reads: those before the first line that is neither blank
    nor a comment.
    """
    lines = text.split("\n")
    until = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    return [line.removeprefix("#SBATCH ") for line in lines[:until] if line.startswith("#SBATCH")]


# ---- directives for sbatch


def test_the_header_says_what_was_asked_for() -> None:
    wishes = BatchRequest(
        partition="long",
        account="bio",
        qos="high",
        constraint="[a|b]*2",
        licenses="matlab:2",
        nodes=2,
        tasks=8,
        tasks_per_node=4,
        cores=2,
        memory_mb=4096,
        gpus=1,
        signal_secs=120,
        directives=("exclusive", "reservation=maint{a;b}"),
    )
    assert directives(made(wishes, secs=3601)) == [
        f"--job-name=js-{JID}-1-1",
        f'--comment="jobscribe lab {JID}/1/1/main/0"',
        "--output=/e/x/batch.log",
        "--open-mode=append",
        "--chdir=/",
        "--export=NONE",
        "--no-requeue",
        "--partition=long",
        "--account=bio",
        "--qos=high",
        "--constraint=[a|b]*2",
        "--licenses=matlab:2",
        "--nodes=2",
        "--ntasks=8",
        "--ntasks-per-node=4",
        "--cpus-per-task=2",
        "--mem=4096M",
        "--gres=gpu:1",
        "--time=61",
        "--signal=B:USR1@120",
        "--exclusive",
        '--reservation="maint{a;b}"',
    ]
    assert len(directives(made(secs=None))) == 7


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(
    "field", ["partition", "account", "qos", "constraint", "licenses", "modules", "directives"]
)
def test_no_value_leaves_its_place(field: str, value: str) -> None:
    """Structs that code creates are not validated, so the script generator checks the values again."""
    given_: object = (
        (value,)
        if field == "modules"
        else (f"reservation={value}",)
        if field == "directives"
        else value
    )
    plain = made()
    try:
        text = made(BatchRequest(**{field: given_}))  # type: ignore[arg-type]
    except Refusal as e:
        assert e.code == "batchRefused" and len(e.sentence) < 600 and e.sentence.isprintable()
        return
    told, lines = directives(text), text.split("\n")
    assert (
        told[:7] == directives(plain)[:7]
        and len(told) <= 9
        and len(lines) <= len(plain.split("\n")) + 12
    )
    assert not any("uid" in d.split("=")[0] for d in told)
    for d in told[8:]:
        assert re.fullmatch(r'--[a-z-]+(=([A-Za-z0-9_.,:|&()\[\]*=@/+-]*|"[^"\\$`\n\r]*"))?', d), d


@pytest.mark.parametrize("value", HOSTILE)
def test_setup_is_one_word_of_eval_whatever_it_is(value: str) -> None:
    try:
        text = made(BatchRequest(setup=value), Cluster(name="lab", setup=value))
    except Refusal:
        assert "\x00" in value or "\ud800" in value
        return
    assert directives(text) == directives(made())
    if value.strip():
        assert text.count("eval '" + value.replace("'", "'\\''") + "'") == 2


@pytest.mark.parametrize(
    "directive",
    [
        "uid=0",
        "wrap=id",
        "output=/etc/x",
        "array=1-9",
        "comment=x",
        "export=ALL",
        "requeue",
        "no-req",
        "outp=/x",
        "comm=x",
        "Exclusive",
        "--exclusive",
        "",
        "exclusive\n",
        "partition=x",
        'reservation=a"b',
        "time=1",
    ],
)
def test_options_that_the_cluster_does_not_allow_or_that_are_ours_are_refused(
    directive: str,
) -> None:
    with pytest.raises(Refusal) as e:
        made(BatchRequest(directives=(directive,)))
    assert e.value.code == "batchRefused"


@pytest.mark.parametrize("secs", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_time_limit_that_is_none(secs: float) -> None:
    with pytest.raises(Refusal):
        made(secs=secs)


@pytest.mark.parametrize(
    "folder", ["e/x", "/e/x\n#SBATCH --uid=0", '/e/"x', "/e/$x", "/e/`x`", "/e/\\x", "/e/\x00"]
)
def test_paths_that_cannot_stand_in_a_script(folder: str) -> None:
    with pytest.raises(Refusal):
        made(folder=folder)
    assert '--output="/e/a b%%j#/batch.log"' in directives(made(folder="/e/a b%j#"))


def test_tokens_and_deployments_are_looked_at_again() -> None:
    bad = Token(jid="a\n#SBATCH --uid=0", serial=1, attempt=1, role="main", index=0)
    for step, name in (
        (Step(token=bad, folder="/e"), "lab"),
        (Step(token=token(), folder="/e"), 'x"\n'),
        (Step(token=token(), folder="/e", cores=0), "lab"),
    ):
        with pytest.raises(Refusal):
            batch_script(
                Submission(steps=(step,), request=BatchRequest(), cluster=LAB, deployment=name)
            )
    with pytest.raises(Refusal):
        batch_script(Submission(steps=(), request=BatchRequest(), cluster=LAB, deployment="lab"))


def test_a_job_is_known_by_its_comment_or_else_by_its_name() -> None:
    row, account = Row("7", "kim", "RUNNING"), Account("7", "kim", "RUNNING")
    ours = comment("lab", token())
    assert matches_token(row._replace(comment=ours), "lab", token()) and matches_token(
        account._replace(name=job_name(token())), "lab", token()
    )
    assert not matches_token(row._replace(comment=ours), "other", token()) and not matches_token(
        row._replace(comment=ours, name=job_name(token(2))), "lab", token(2)
    )
    assert not matches_token(row, "lab", token()) and not matches_token(
        account._replace(name=job_name(token(2))), "lab", token()
    )
    long = Token(
        jid=f"aaaaaaaa-bbbbbbbb-{'m' * 64}",
        serial=2**53,
        attempt=1_000_000,
        role="r" * 32,
        index=1_000_000,
    )
    assert len(job_name(long)) <= 128


@given(st.text(max_size=80))
@example('a" --uid=0 #')
@settings(max_examples=150, deadline=None)
def test_a_line_of_the_header_is_one_line_with_one_value_for_any_text(value: str) -> None:
    try:
        line = sbatch_directives.line("reservation", value)
    except Refusal:
        return
    read = re.fullmatch(r'#SBATCH --reservation=(?:"([^"]*)"|(\S*))', line)
    assert read is not None and (read[1] if read[1] is not None else read[2]) == value
    assert len(line.splitlines()) == 1 and not set(value) & set("\"'`$\\")


# ---- the script in a shell


class Ground:
    """An evidence folder whose script a shell runs in the same way as slurmstepd."""

    def __init__(self, tmp_path: Path, shell: str = "/bin/sh") -> None:
        self.folder, self.run_dir, self.bin = (
            tmp_path / "it's a; $(x) run",
            tmp_path / "run dir",
            tmp_path / "bin",
        )
        self.folder, self.shell = tmp_path / "a run", shell
        self.folder.mkdir()
        self.bin.mkdir()
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "SLURM_JOB_ID": "57",
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_EXPORT_ENV": "NONE",
            "HOME": str(tmp_path),
        }

    def command(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def put(self, command: str, wishes: BatchRequest = PLAIN, cluster: Cluster = LAB) -> Path:
        spec = TaskSpec(command=("/bin/sh", "-c", command), run_dir=str(self.run_dir))
        (self.folder / "script.sh").write_text(script(token(), spec, {}, self.folder))
        path = self.folder / "batch.sh"
        path.write_text(made(wishes, cluster, str(self.folder)))
        return path

    def argv(self, path: Path) -> list[str]:
        return [self.shell, *(["sh"] if self.shell.endswith("busybox") else []), str(path)]

    def run(self, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(path),
            env={**self.env, **env},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            start_new_session=True,
            check=False,
        )

    def said(self, name: str) -> str:
        return (self.folder / name).read_text()


@pytest.fixture(params=SHELLS)
def batch_site(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path, request.param)


def test_a_run_leaves_what_a_keeper_would(batch_site: Ground) -> None:
    ran = batch_site.run(
        batch_site.put(
            "echo out; echo err >&2; echo ${SLURM_EXPORT_ENV-unset} $SRUN_CPUS_PER_TASK; pwd; exit 7"
        ),
        SLURM_CPUS_PER_TASK="3",
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "", "")
    assert (
        batch_site.said("stdout.log"),
        batch_site.said("stderr.log"),
        batch_site.said("exit-code"),
    ) == (
        f"out\nunset 3\n{batch_site.run_dir}\n",
        "err\n",
        "7\n",
    )
    mark = parse_started(batch_site.said(STARTED))
    assert (
        mark is not None
        and (mark.job_id, mark.restart, mark.nodes, mark.step) == ("57", 0, "n1", "")
        and mark.pid > 1
        and mark.at
    )
    assert sorted(p.name for p in batch_site.folder.iterdir()) == [
        "batch.sh",
        "exit-code",
        "script.sh",
        "signal",
        STARTED,
        "stderr.log",
        "stdout.log",
    ]


def test_a_second_job_of_the_same_token_and_a_second_start_run_nothing(batch_site: Ground) -> None:
    path = batch_site.put("echo ran")
    assert batch_site.run(path).returncode == 0
    before = batch_site.said(STARTED)
    for env in ({"SLURM_JOB_ID": "58"}, {"SLURM_RESTART_COUNT": "1"}, {}):
        ran = batch_site.run(path, **env)
        assert ran.returncode == FENCED and "nothing is run again" in ran.stderr
    assert batch_site.said("stdout.log") == "ran\n" and batch_site.said(STARTED) == before


def test_of_many_jobs_of_one_token_at_once_one_runs(batch_site: Ground) -> None:
    path = batch_site.put("echo ran")
    all_ = [
        subprocess.Popen(
            batch_site.argv(path),
            env={**batch_site.env, "SLURM_JOB_ID": str(n)},
            stderr=subprocess.DEVNULL,
        )
        for n in range(1, 9)
    ]
    assert sorted(p.wait(60) for p in all_) == [0] + [FENCED] * 7
    assert (
        batch_site.said("stdout.log") == "ran\n"
        and parse_started(batch_site.said(STARTED)) is not None
    )
    assert [p.name for p in batch_site.folder.glob("started.*")] == []


def test_a_mark_of_the_agent_keeps_a_stopped_run_from_starting(batch_site: Ground) -> None:
    path = batch_site.put("echo ran")
    (batch_site.folder / STARTED).write_text("job 0\nend\n")
    assert (
        batch_site.run(path).returncode == FENCED
        and not (batch_site.folder / "stdout.log").exists()
    )


def test_without_hard_links_the_mark_is_made_all_the_same_and_once(batch_site: Ground) -> None:
    batch_site.command("ln", "exit 1")
    path = batch_site.put("echo ran")
    assert [batch_site.run(path).returncode for _ in range(2)] == [0, FENCED]
    assert (
        batch_site.said("stdout.log") == "ran\n"
        and parse_started(batch_site.said(STARTED)) is not None
    )


def test_modules_and_setup_come_before_the_command_and_are_seen_by_it(batch_site: Ground) -> None:
    cluster = Cluster(
        name="lab", setup='A=1; export A; module() { echo module $*; B="${B-}$2"; export B; }'
    )
    ran = batch_site.run(
        batch_site.put(
            'echo $A $B "$C"',
            BatchRequest(modules=("gcc/12.2", "mpi"), setup="C='it'\"'s\"; export C\necho text"),
            cluster,
        )
    )
    assert ran.returncode == 0 and batch_site.said("stdout.log") == "1 gcc/12.2mpi it's\n"
    assert batch_site.said("stderr.log") == "module load gcc/12.2\nmodule load mpi\ntext\n"


@pytest.mark.parametrize(
    ("wishes", "code", "told"),
    [
        (BatchRequest(modules=("gcc/12.2",)), NO_SETUP, "this module cannot be loaded: gcc/12.2"),
        (BatchRequest(setup="exit 5"), 5, "the set-up on the node ended with 5"),
        (BatchRequest(setup="echo 'open"), None, "the set-up on the node ended"),
        (BatchRequest(setup="if true; then"), None, "the set-up on the node ended"),
    ],
)
def test_where_the_setup_ends_the_command_does_not_run(
    batch_site: Ground, wishes: BatchRequest, code: int | None, told: str
) -> None:
    ran = batch_site.run(batch_site.put("echo never", wishes))
    if ran.returncode == 0 and code is None:  # some shells continue after a syntax error in `eval`
        return
    assert ran.returncode == (code if code is not None else ran.returncode) != 0
    assert (
        told in batch_site.said("stderr.log")
        and batch_site.said("exit-code") == f"{ran.returncode}\n"
        and not (batch_site.folder / "stdout.log").exists()
    )


def test_setup_that_closes_quotes_breaks_out_of_nothing(batch_site: Ground) -> None:
    hostile = "'; touch PWNED; '"
    batch_site.run(batch_site.put("echo ran", BatchRequest(setup=f': "{hostile}"')))
    assert (
        batch_site.said("stdout.log") == "ran\n"
        and not list(batch_site.folder.rglob("PWNED"))
        and not Path("/PWNED").exists()
    )


def test_with_core_files_each_node_of_several_records_its_pattern(
    batch_site: Ground, tmp_path: Path
) -> None:
    """Before the command, so that it is known however the run ends. A step that fails is no failure."""
    batch_site.command(
        "srun",
        'case "$*" in --version) exit ;; esac\n'
        f'echo "$@" | head -n1 >>{tmp_path}/srun.log\nwhile [ "$1" != /bin/sh ]; do shift; done\n'
        'for SLURMD_NODENAME in n1 n2; do export SLURMD_NODENAME; "$@"; done; exit 1',
    )
    path = batch_site.put("exit 3")
    for nodes, cores in (("1", 1 << 20), ("2", 0), ("2", 1 << 20)):
        path.write_text(made(folder=str(batch_site.folder), core_bytes=cores))
        (batch_site.folder / STARTED).unlink(missing_ok=True)
        ran = batch_site.run(path, SLURM_JOB_NUM_NODES=nodes)
        assert (ran.returncode, ran.stdout, ran.stderr) == (3, "", "")
    (asked,) = (tmp_path / "srun.log").read_text().splitlines()
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1" in asked
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    for node in ("n1", "n2"):
        size, _, _, *rest = batch_site.said(f"core-pattern.{node}").split("\n")
        assert (size, "\n".join(rest)) == ("1048576", pattern)


def test_a_signal_before_the_time_limit_reaches_the_command_and_the_script_waits_for_it(
    batch_site: Ground,
) -> None:
    path = batch_site.put(
        "trap 'echo saved; exit 4' USR1; echo ready; n=0; while [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done",
        BatchRequest(signal_secs=60),
    )
    process = subprocess.Popen(batch_site.argv(path), env=batch_site.env, start_new_session=True)
    deadline = time.monotonic() + 30
    while not (batch_site.folder / "stdout.log").exists() or "ready" not in batch_site.said(
        "stdout.log"
    ):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGUSR1)  # Slurm signals only the batch script
    assert process.wait(30) == 4
    assert (
        batch_site.said("stdout.log") == "ready\nsaved\n" and batch_site.said("exit-code") == "4\n"
    )


def test_terminated_the_script_lives_until_the_end_is_written_down(batch_site: Ground) -> None:
    path = batch_site.put(
        "trap 'echo bye; exit 9' TERM; echo ready; n=0; while [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done"
    )
    process = subprocess.Popen(batch_site.argv(path), env=batch_site.env, start_new_session=True)
    deadline = time.monotonic() + 30
    while not (batch_site.folder / "stdout.log").exists() or "ready" not in batch_site.said(
        "stdout.log"
    ):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)  # scancel --full --signal=TERM
    assert (
        process.wait(30) == 9
        and batch_site.said("exit-code") == "9\n"
        and "bye" in batch_site.said("stdout.log")
    )


def test_a_job_can_be_interrupted(batch_site: Ground) -> None:
    """A command started with `&` ignores SIGINT permanently; the job must not."""
    assert batch_site.run(batch_site.put("kill -INT $$; sleep 1; echo survived")).returncode != 0
    assert "survived" not in batch_site.said("stdout.log")


# ---- gangs


def gang(
    batch_site: Ground,
    commands: dict[tuple[str, int], str],
    tmp_path: Path,
    cores: int = 1,
    debug_secs: float | None = None,
) -> tuple[Path, list[Path]]:
    steps, folders = [], []
    for (role, index), text in commands.items():
        folder = tmp_path / f"{role} {index}"
        folder.mkdir()
        spec = TaskSpec(
            command=("/bin/sh", "-c", text),
            run_dir=str(batch_site.run_dir),
            env={"PEER": "@ps-0@:30000"},
        )
        (folder / "script.sh").write_text(script(token(role=role, index=index), spec, {}, folder))
        (folder / "job.json").write_text('{"host": "@ps-0@"}')
        steps.append(
            Step(
                token=token(role=role, index=index),
                folder=str(folder),
                cores=cores,
                job_file=f"{folder}/job.json",
            )
        )
        folders.append(folder)
    path = tmp_path / "batch.sh"
    path.write_text(
        batch_script(
            Submission(
                steps=tuple(steps),
                request=BatchRequest(nodes=2),
                cluster=LAB,
                deployment="lab",
                time_limit_secs=60,
                debug_secs=debug_secs,
            )
        )
    )
    batch_site.env |= {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "2(x2)"}
    batch_site.command(
        "scontrol",
        'case "$1 $2" in "show hostnames") echo n1; echo n2 ;; *) for last; do :; done; echo "NodeName=$last Arch=x NodeAddr=10.0.0.${last#n} x" ;; esac',
    )
    batch_site.command("getent", "exit 2")
    batch_site.command(
        "srun",
        'case "$*" in --version) exit ;; esac\n'
        f'echo "$@" | head -n1 >>{tmp_path}/srun.log\nwhile [ "$1" != /bin/sh ]; do shift; done\nSLURM_STEP_ID=$$ exec "$@"',
    )
    return path, folders


def test_tasks_of_a_gang_know_each_other_and_end_one_by_one(
    batch_site: Ground, tmp_path: Path
) -> None:
    path, folders = gang(
        batch_site,
        {("ps", 0): "echo $PEER; exit 3", ("w", 0): "echo $PEER", ("w", 1): "echo $PEER"},
        tmp_path,
    )
    ran = batch_site.run(path)
    assert ran.returncode == 3, ran.stderr
    assert [(f / "stdout.log").read_text() for f in folders] == ["10.0.0.1:30000\n"] * 3
    assert [(f / "job.json").read_text() for f in folders] == ['{"host": "10.0.0.1"}'] * 3
    assert (
        [(f / "exit-code").read_text() for f in folders]
        == ["3\n", "0\n", "0\n"]
        == [(f / OVER).read_text() for f in folders]
    )
    marks = [parse_started((f / STARTED).read_text()) for f in folders]
    assert (
        all(m is not None and m.job_id == "57" and m.step for m in marks)
        and parse_started((folders[0] / "gang").read_text()) is not None
    )
    asked = sorted((tmp_path / "srun.log").read_text().splitlines())
    assert len(asked) == 3 and all("--exact" in a and "--nodes=1 --ntasks=1" in a for a in asked)
    assert (
        sum("--nodelist=n1" in a for a in asked) == 2
        and sum("--nodelist=n2" in a for a in asked) == 1
    )
    assert batch_site.run(path).returncode == FENCED


def test_each_failed_task_of_a_gang_is_held_and_released_alone(
    batch_site: Ground, tmp_path: Path
) -> None:
    commands = {("ps", 0): "exit 3", ("w", 0): "exit 4", ("w", 1): "exit 0"}
    path, folders = gang(batch_site, commands, tmp_path, debug_secs=600.0)

    def until(true: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not true():
            assert time.monotonic() < end and ran.poll() is None, ran.poll()
            time.sleep(0.02)

    with subprocess.Popen(batch_site.argv(path), env=batch_site.env, cwd="/") as ran:
        until(
            lambda: all((f / HELD).exists() for f in folders[:2]) and (folders[2] / OVER).exists()
        )
        assert not (folders[2] / HELD).exists()
        (folders[1] / RELEASE).touch()
        until(lambda: (folders[1] / OVER).exists())
        assert not (folders[0] / OVER).exists()
        (folders[0] / RELEASE).touch()
        assert ran.wait(30) == 4
    assert [(f / OVER).read_text() for f in folders] == ["3\n", "4\n", "0\n"]


def test_where_there_is_no_room_tasks_share(batch_site: Ground, tmp_path: Path) -> None:
    path, folders = gang(
        batch_site, {("ps", 0): "exit 0", ("w", 0): "exit 0", ("w", 1): "exit 0"}, tmp_path, cores=2
    )
    assert batch_site.run(path).returncode == 0
    assert all("--overlap" in a for a in (tmp_path / "srun.log").read_text().splitlines())
    assert [(f / "exit-code").read_text() for f in folders] == ["0\n"] * 3


def test_a_task_that_was_stopped_before_it_began_does_not_hold_up_the_others(
    batch_site: Ground, tmp_path: Path
) -> None:
    path, folders = gang(batch_site, {("ps", 0): "echo ran", ("w", 0): "echo ran"}, tmp_path)
    (folders[1] / STARTED).write_text("job 0\nend\n")
    assert batch_site.run(path).returncode == FENCED
    assert (folders[0] / "stdout.log").read_text() == "ran\n" and not (
        folders[1] / "stdout.log"
    ).exists()
    assert (folders[1] / OVER).read_text() == f"{FENCED}\n"


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40),
        min_size=1,
        max_size=3,
    )
)
@example(["'", "\n#SBATCH --uid=0\n", "$(touch PWNED)"])
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_words_of_a_command_arrive_as_they_are(tmp_path: Path, words: list[str]) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    spec = TaskSpec(command=("/usr/bin/printf", "%s\\0", *words), run_dir=str(folder))
    (folder / "script.sh").write_text(script(token(), spec, {}, folder))
    (folder / "batch.sh").write_text(made(folder=str(folder)))
    ran = subprocess.run(
        ["/bin/sh", str(folder / "batch.sh")],
        env={"PATH": "/usr/bin:/bin"},
        cwd="/",
        timeout=60,
        check=False,
    )
    assert (
        ran.returncode == 0
        and (folder / "stdout.log").read_bytes() == "".join(w + "\0" for w in words).encode()
    )
