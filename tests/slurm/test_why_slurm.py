"""`job why` about runs that fail or wait on a real Slurm: cause, confidence, and a text that alone
says what to do.

Ends by Slurm itself (memory, time, nodes, operators) are in test_states.py, refusals in
test_refusals.py, and outages in test_outages.py. Here are faults of the run itself, kills by
others, and reasons for waiting.
"""

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import explanation_quality
import msgspec
import pytest
from concurrent_runs import BOB, PEOPLE, SECS, ConcurrentRuns, Play, played
from local_parity import types
from login_nodes import Users
from shell_user import client_of
from slurm_cluster import Slurm, sites
from supervisor_process import jid_of, naps, until

from jobscribe.protocol.jobs.core_report import CoreFile
from jobscribe.runtime.cores import core_pattern

LATER = {"directives": ["begin=now+1hour"]}
PLAYS: dict[str, Play] = {}


def play(function: Play) -> Play:
    PLAYS[function.__name__] = function
    return function


@pytest.fixture(scope="module")
def stage(_cluster: tuple[Slurm, Users]) -> Iterator[ConcurrentRuns]:
    slurm, users = _cluster
    first, second, third = slurm.nodes
    partitions = [
        f"PartitionName=crowd Nodes={first},{second} OverSubscribe=FORCE:32 DefaultTime=5 MaxTime=60",
        f"PartitionName=single Nodes={third} OverSubscribe=EXCLUSIVE DefaultTime=5 MaxTime=60",
    ]
    slurm.script("reconfigure", EXTRA="\n".join(partitions))
    try:
        with sites(slurm, users, lambda: pytest.fail("nobody signs in here")) as made:
            site = made.make(clusters={"lab": {"directives": ["begin"]}}, people=PEOPLE).start()
            yield ConcurrentRuns(site, slurm, users, "crowd")
    finally:
        slurm.script("reconfigure", EXTRA="")
        slurm.well()


@pytest.fixture(scope="module")
def going(
    stage: ConcurrentRuns, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[None]]]:
    """The selected cases, started."""
    tests = [
        i
        for i in request.session.items
        if isinstance(i, pytest.Function) and i.originalname == "test_why"
    ]
    chosen = {i.callspec.params["name"] for i in tests if i.get_closest_marker("skip") is None}
    with played(stage, {name: PLAYS[name] for name in PLAYS if name in chosen}) as going:
        yield going


# ---- helpers


def read(
    stage: ConcurrentRuns,
    run: Mapping[str, Any],
    cause: str,
    confidence: str,
    *words: str,
    tries: str = "",
) -> None:
    """Check cause and confidence. The printed text must contain these words, and this among its
    suggestions.
    """
    answer, text = explanation_quality.settled(lambda: stage.why(run), lambda: _typed(stage, run))
    assert (answer["cause"], answer["confidence"]) == (cause, confidence), text
    explanation_quality.check(answer, text)
    assert [w for w in words if w not in text] == [], text
    assert tries in "\n".join(answer["try"]), text


def _typed(stage: ConcurrentRuns, run: Mapping[str, Any]) -> str:
    typed = types(stage, "job", "why", "--uid", run["uid"], jid_of(dict(run)))
    text, complaint = typed.communicate(timeout=SECS)
    assert (typed.returncode, complaint) == (0, ""), (text, complaint)
    return text


def ended(
    stage: ConcurrentRuns,
    run: Mapping[str, Any],
    cause: str,
    confidence: str,
    *words: str,
    tries: str = "",
) -> None:
    stage.site.wait(dict(run), SECS)
    read(stage, run, cause, confidence, *words, tries=tries)


def submitted(stage: ConcurrentRuns, run: dict[str, Any]) -> dict[str, Any]:
    stage.site.submit(run)
    return run


# ---- faults of the run itself


@play
def it_exits_with_137(stage: ConcurrentRuns) -> None:
    """No process on the node can tell whether its shell or a child caused this code."""
    run = submitted(stage, stage.run("exit 137"))
    ended(stage, run, "exit", "possible", "exit code 137", "a program may also return it by itself")


@play
def it_crashes_with_a_core(stage: ConcurrentRuns) -> None:
    """The node and the login node have the same kernel here, and the run directory is shared."""
    run = submitted(stage, {**stage.run("kill -SEGV $$"), "coreBytes": 1 << 24})
    target = core_pattern.parse(Path(core_pattern.PATTERN).read_text(), False)
    words = ("core file core.", "jobscribe core stack") if target.kind == "file" else ("no core",)
    ended(stage, run, "crash", "certain", "SIGSEGV", *words)
    with client_of(stage.site, run["uid"]) as client, tempfile.TemporaryDirectory() as folder:
        (task,) = client.tasks(jid_of(run))["tasks"]
        for said in task["exit"]["core"].get("files", ()):
            copied = client.get_core(jid_of(run), msgspec.convert(said, CoreFile), f"{folder}/core")
            assert copied.size == said["size"] and said["sha256"]


@play
def it_crashes_on_its_second_node(stage: ConcurrentRuns) -> None:
    """Each node records where its kernel puts core files; the core of the second one is found."""
    text = "srun sh -c '[ \"$SLURM_PROCID\" = 0 ] || kill -SEGV $$'"
    batch = {"nodes": 2, "tasks": 2, "tasksPerNode": 1}
    run = submitted(stage, {**stage.run(text, batch=batch), "coreBytes": 1 << 24})
    target = core_pattern.parse(Path(core_pattern.PATTERN).read_text(), False)
    words = ("core file core.", "jobscribe core stack") if target.kind == "file" else ("no core",)
    ended(stage, run, "crash", "likely", "SIGSEGV", *words)
    with client_of(stage.site, run["uid"]) as client:
        (task,) = client.tasks(jid_of(run))["tasks"]
    markers = Path(task["evidence"]).glob("core-pattern.*")
    nodes = sorted(path.name.removeprefix("core-pattern.") for path in markers)
    assert nodes == [*stage.slurm.nodes[:2]], nodes


@play
def python_raises(stage: ConcurrentRuns) -> None:
    run = submitted(
        stage,
        stage.run(
            "exec python3 -c 'def mesh():\n    raise ValueError(\"cell 7 is inside out\")\nmesh()'"
        ),
    )
    ended(
        stage,
        run,
        "traceback",
        "likely",
        "ValueError: cell 7 is inside out",
        ":2 in mesh",
        tries="Read the exception",
    )


@play
def there_is_no_such_command(stage: ConcurrentRuns) -> None:
    run = submitted(stage, {**stage.run(""), "command": ["nosuch-solver", "input.nml"]})
    ended(stage, run, "notFound", "likely", "nosuch-solver", tries="Load the module")


@play
def it_cannot_be_executed(stage: ConcurrentRuns) -> None:
    run = submitted(stage, {**stage.run(""), "command": ["/etc/passwd"]})
    ended(stage, run, "notExecutable", "likely", "/etc/passwd", tries="chmod +x")


@play
def a_module_is_missing(stage: ConcurrentRuns) -> None:
    """The shell's error, that the command `module` does not exist, is not the reported cause."""
    run = submitted(stage, stage.run("echo ran", batch={"modules": ["nosuch/1.0"]}))
    ended(
        stage,
        run,
        "setupFailed",
        "likely",
        "this module cannot be loaded: nosuch/1.0",
        "module not loaded",
        tries="module avail",
    )
    assert (
        stage.why(run)["diagnosis"]["hint"] == "module not loaded"
        and stage.site.output(run).body == b""
    )


@play
def its_setup_fails(stage: ConcurrentRuns) -> None:
    run = submitted(
        stage, stage.run("echo ran", batch={"setup": "cat /nosuch/environment || exit 5"})
    )
    ended(
        stage,
        run,
        "setupFailed",
        "likely",
        "/nosuch/environment",
        "set-up on the node ended with 5",
        tries="the set-up lines",
    )


# ---- kills and cancels by others


@play
def somebody_kills_it_on_its_node(stage: ConcurrentRuns) -> None:
    run, nap = stage.naps("exec sleep NAP")
    stage.running(run)
    (pid,) = until(lambda: naps(nap), "it sleeps")
    os.kill(pid, signal.SIGKILL)
    ended(
        stage,
        run,
        "killed",
        "unknown",
        "SIGKILL",
        "actor unknown",
        "the agent cannot read the kernel log of the node",
        tries="the sender",
    )


@play
def its_user_cancels_it_past_us(stage: ConcurrentRuns) -> None:
    run, nap = stage.naps()
    job = stage.running(run)
    stage.users.run("alice", "scancel", job, env=stage.slurm.env)
    ended(
        stage,
        run,
        "slurmCanceledByUser",
        "certain",
        stage.users["alice"],
        "canceled by anyone here",
        tries=f"sacct -j {job}",
    )
    assert naps(nap) == []


@play
def its_users_login_hangs_on_the_node(stage: ConcurrentRuns) -> None:
    """Slurm runs `su` on the node to read the login environment, waits for the batch script to
    start, and reports a node failure.
    """
    profile = stage.users.home("bob") / ".profile"
    profile.write_text("if grep -q getenv /proc/$PPID/cmdline; then sleep 300; fi\n")
    try:
        run = submitted(stage, stage.run("echo ran", uid=BOB))
        ended(
            stage,
            run,
            "nodeFail",
            "certain",
            "had not begun there",
            "a login of its user takes longer",
            tries="time bash -l -c true",
        )
        assert stage.site.output(run).body == b""
    finally:
        profile.unlink()


# ---- reasons for waiting


@play
def it_waits_for_its_time_then_for_another_then_is_held(stage: ConcurrentRuns) -> None:
    first, second = stage.run("true", batch=LATER), stage.run("true", batch=LATER)
    for run in (first, second):
        stage.site.submit(run)
    for run in (first, second):
        stage.waits_for(run, "BeginTime")
    read(stage, second, "slurm", "certain", "BeginTime", tries="no action is needed")
    stage.slurm.ask(
        "scontrol",
        "update",
        f"jobid={stage.job(second)}",
        f"dependency=afterok:{stage.job(first)}",
        "starttime=now",
    )
    stage.waits_for(second, "Dependency")
    read(stage, second, "slurm", "certain", "(Dependency)", tries="Dependency=")
    stage.users.run("alice", "scontrol", "hold", stage.job(first), env=stage.slurm.env)
    stage.waits_for(first, "JobHeldUser")
    read(stage, first, "slurm", "certain", "JobHeldUser", tries="'scontrol release' on the cluster")
    stage.slurm.ask("scontrol", "release", stage.job(first))
    stage.slurm.hold(stage.job(first))
    stage.waits_for(first, "JobHeldAdmin")
    read(stage, first, "slurm", "certain", "JobHeldAdmin", tries="ask the operators")
    for run in (second, first):
        stage.site.cancel(run)
        stage.site.wait(run, SECS)


@play
def others_are_before_it(stage: ConcurrentRuns) -> None:
    there = {"partition": "single"}
    holder, _ = stage.naps(batch=there)
    stage.running(holder)
    next_one, last = stage.run("true", batch=there), stage.run("true", batch=there)
    stage.site.submit(next_one)
    stage.waits_for(next_one, "Resources")
    stage.site.submit(last)
    stage.waits_for(last, "Priority")
    read(
        stage,
        next_one,
        "slurm",
        "certain",
        "(Resources)",
        "it is next",
        tries="no action is needed",
    )
    read(
        stage,
        last,
        "slurm",
        "certain",
        "(Priority)",
        "other jobs are before it",
        tries="no action is needed",
    )
    read(
        stage,
        holder,
        "running",
        "certain",
        f"as Slurm job {stage.job(holder)}",
        tries="scontrol show job",
    )
    for run in (last, next_one, holder):
        stage.site.cancel(run)
        stage.site.wait(run, SECS)


# ---- tests


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PLAYS)
def test_why(going: dict[str, Future[None]], name: str) -> None:
    going[name].result(2 * SECS)
