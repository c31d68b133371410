"""Every way in which Slurm ends a run or keeps it waiting is reported correctly by status, reason,
exit status, `job why`, record and trace.

All cases run at once on one cluster. Meanwhile the records are read continuously, and each change
is compared with Slurm's own state.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from concurrent_runs import ALICE, PEOPLE, SECS, ConcurrentRuns, Play, played
from engine_scripts import CALL_SECS
from local_parity import APP, AS_LOCALLY, SETTING
from login_nodes import Users
from slurm_cluster import Slurm, sites
from supervisor_process import PYTHON_PATH, naps, until

from jobscribe.drivers.deployment_name import deployment

#: `crowd` runs many small jobs at once on the first two nodes. Each partition that an operator
#: changes belongs to one case.
PARTITIONS = ("crowd", "shorter", "narrower", "barred", "shrunk", "paused", "held")
#: Keeps a job in the queue until an operator releases it.
LATER = {"directives": ["begin=now+1hour"]}
PLAYS: dict[str, Play] = dict(AS_LOCALLY)


def play(function: Play) -> Play:
    PLAYS[function.__name__] = function
    return function


def python_with(place: Path, name: str, text: str) -> str:
    """Return the path of a Python for the cluster that has this additional module."""
    subprocess.run(
        ["/usr/bin/python3", "-m", "venv", "--without-pip", str(place)],
        check=True,
        timeout=CALL_SECS,
    )
    (place / "apps").mkdir(exist_ok=True)
    (place / "apps" / f"{name}.py").write_text(text)
    (site_packages,) = place.glob("lib/python*/site-packages")
    (site_packages / "apps.pth").write_text(f"{place}/apps\n")
    return f"{place}/bin/python3"


@pytest.fixture(scope="module")
def stage(_cluster: tuple[Slurm, Users]) -> Iterator[ConcurrentRuns]:
    slurm, users = _cluster
    first, second, _ = slurm.nodes
    partitions = [
        f"PartitionName={name} Nodes={first},{second} OverSubscribe=FORCE:32 DefaultTime=5 MaxTime=60"
        for name in PARTITIONS
    ]
    epilog = slurm.place / "epilog"
    held = f'n=0; until [ -e {slurm.place}/finish-"$SLURM_JOB_ID" ] || [ "$n" -ge 900 ]; do sleep 0.1; n=$((n + 1)); done'
    epilog.write_text(f'#!/bin/sh\n[ "$SLURM_JOB_PARTITION" != held ] || {{ {held}; }}\n')
    epilog.chmod(0o755)
    slurm.script("reconfigure", EXTRA="\n".join([*partitions, f"Epilog={epilog}"]))
    try:
        with sites(slurm, users, lambda: pytest.fail("nobody signs in here")) as made:
            fields = {
                "directives": ["nodelist", "begin", "exclusive"],
                "pythons": [python_with(slurm.place / "python", "squares_app", APP)],
            }
            apps = f"{PYTHON_PATH}:{slurm.place}/python/apps"
            site = made.make(
                SETTING, clusters={"lab": fields}, people=PEOPLE, env={"PYTHONPATH": apps}
            ).start()
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
        if isinstance(i, pytest.Function) and i.originalname == "test_what_slurm_does"
    ]
    chosen = {i.callspec.params["name"] for i in tests if i.get_closest_marker("skip") is None}
    with played(stage, {name: PLAYS[name] for name in PLAYS if name in chosen}) as going:
        yield going


# ---- normal ends and failures


@play
def completed(stage: ConcurrentRuns) -> None:
    run = stage.run("echo hello; sleep 2")
    stage.site.submit(run)
    said = stage.over(
        run,
        "completed",
        "exit",
        "COMPLETED",
        exit=("script", 0, None),
        sentence=["completed with exit code 0"],
    )
    assert said["exit"]["startedAt"] < said["exit"]["endedAt"] and said["error"] is None
    assert stage.site.output(run).body == b"hello\n"
    assert (
        0 < said["batch"]["submittedAt"] <= said["exit"]["startedAt"] + 1
        and said["batch"]["nodes"] in stage.slurm.nodes
    )


@play
def exit_code(stage: ConcurrentRuns) -> None:
    run = stage.run("echo oops >&2; exit 7")
    stage.site.submit(run)
    said = stage.over(
        run,
        "error",
        "exit",
        "FAILED",
        exit=("script", 7, None),
        sentence=["failed with exit code 7"],
    )
    assert stage.why(run)["lastLines"] == "oops" and said["diagnosis"] is not None


@play
def segfault(stage: ConcurrentRuns) -> None:
    run = stage.run("kill -SEGV $$")
    stage.site.submit(run)
    stage.over(
        run,
        "error",
        "signal",
        "FAILED",
        exit=("script", None, signal.SIGSEGV),
        sentence=["SIGSEGV"],
        never=["JobLaunchFailure", "could not be started"],
    )


@play
def the_batch_script_itself_is_killed(stage: ConcurrentRuns) -> None:
    """Slurm reports JobLaunchFailure."""
    run, nap = stage.naps()
    stage.running(run)
    mark = stage.evidence(run) / "started"
    until(lambda: mark.exists() and mark.read_text().endswith("\n"), "its script has begun")
    started = dict(line.partition(" ")[::2] for line in mark.read_text().splitlines())
    until(lambda: naps(nap), "it sleeps")
    os.kill(int(started["pid"]), signal.SIGSEGV)
    stage.over(
        run,
        "error",
        "signal",
        "FAILED",
        exit=("scheduler", None, signal.SIGSEGV),
        nap=nap,
        sentence=["SIGSEGV"],
        never=["could not be started"],
    )


@play
def out_of_memory(stage: ConcurrentRuns) -> None:
    if "CGROUP=0" in (stage.slurm.place / "parameters").read_text():
        pytest.skip("memory is held by cgroups v1 only, which this machine does not have")
    run = stage.run("sleep 1; head -c 300M /dev/zero | tail")
    stage.site.submit(run)
    said = stage.over(
        run,
        "error",
        "scheduler",
        "OUT_OF_MEMORY",
        sentence=["memory"],
        tries=["memory"],
        never=["could not be started"],
    )
    assert said["exit"]["outOfMemory"] is True


@play
def cannot_be_launched(stage: ConcurrentRuns) -> None:
    """Slurm cannot open the output file on the node."""
    run, nap = stage.naps(batch=LATER)
    stage.waits_for(run, "BeginTime")
    (stage.evidence(run) / "batch.log").mkdir()
    let_go(stage, run)
    stage.over(
        run,
        "error",
        "startFailed",
        "FAILED",
        exit=("start", None, None),
        nap=nap,
        sentence=["could not be started", "file system"],
    )


# ---- time limits


@play
def its_limit_in_full_minutes(stage: ConcurrentRuns) -> None:
    """Waits for the limit: Slurm ends the job, and its accounting says so."""
    run, nap = stage.naps("trap '' TERM; sleep NAP & sleep NAP", timeLimitSecs=3)
    said = stage.over(
        run,
        "canceled",
        "timeLimit",
        "TIMEOUT",
        nap=nap,
        sentence=["its time limit of 3 s"],
        evidence=["full minutes: 60 s"],
        tries=["longer time limit"],
        never=["not by jobscribe", "unix user"],
    )
    assert said["exit"]["stopReason"] == "timeLimit" and said["canceledAfterSecs"] == 3
    (job,) = until(
        lambda: [
            j for j in stage.slurm.accounted(job=said["batch"]["jobId"]) if j.state == "TIMEOUT"
        ],
        "accounting has it",
        SECS,
    )
    assert job.state == "TIMEOUT"


@play
def slurms_limit(stage: ConcurrentRuns) -> None:
    run, nap = stage.naps(timeLimitSecs=300)
    job = stage.running(run)
    # Slurm rejects the change in the second in which the job begins
    until(
        lambda: (
            "Invalid"
            not in stage.slurm.ask("scontrol", "update", f"jobid={job}", "endtime=now", code=None)
        ),
        "its time is over",
        SECS,
        1.0,
    )
    said = stage.over(
        run,
        "canceled",
        "timeLimit",
        "TIMEOUT",
        nap=nap,
        sentence=["its time limit"],
        evidence=["time limit"],
    )
    assert said["exit"]["stopReason"] == "timeLimit"


# ---- cancels and operator actions


def let_go(stage: ConcurrentRuns, run: dict[str, object]) -> None:
    """Let the run start now."""
    stage.slurm.ask("scontrol", "update", f"jobid={stage.job(run)}", "starttime=now")


@play
def canceled_in_the_queue(stage: ConcurrentRuns) -> None:
    run, nap = stage.naps(batch=LATER)
    stage.waits_for(run, "BeginTime")
    stage.slurm.cancel(stage.job(run))
    said = stage.over(
        run,
        "error",
        "scheduler",
        "CANCELLED",
        nap=nap,
        ran=False,
        sentence=["canceled by unix user", "before it had started"],
    )
    assert said["batch"]["canceledBy"] == "root" and said["exit"]["startedAt"] is None


@play
def canceled_by_an_operator(stage: ConcurrentRuns) -> None:
    """The operator is a user of the machine, not root."""
    bob = stage.users["bob"]
    run, nap = stage.naps()
    job = stage.running(run)
    assert "denied" in stage.users.run("bob", "scancel", job, env=stage.slurm.env, code=None)
    stage.slurm.ask("sacctmgr", "-iQ", "modify", "user", bob, "set", "adminlevel=operator")
    try:
        until(
            lambda: (
                "denied"
                not in stage.users.run("bob", "scancel", job, env=stage.slurm.env, code=None)
            ),
            "he is an operator now",
            SECS,
        )
    finally:
        stage.slurm.ask("sacctmgr", "-iQ", "modify", "user", bob, "set", "adminlevel=none")
    said = stage.over(
        run,
        "error",
        "scheduler",
        "CANCELLED",
        nap=nap,
        sentence=["canceled by unix user", "not by jobscribe"],
        never=["before it had started"],
    )
    assert said["batch"]["canceledBy"] == bob, said["batch"]
    assert f"canceled in Slurm by unix user {bob}" in stage.why(run)["evidence"]


@play
def held_and_let_go(stage: ConcurrentRuns) -> None:
    run = stage.run("exit 0", batch=LATER)
    stage.site.submit(run)
    said = stage.waits_for(run, "BeginTime")
    assert (
        said["batch"]["startsAt"] > said["batch"]["submittedAt"] + 3000
        and "its begin time" in said["jobStatusMessage"]
    )
    stage.slurm.hold(job := stage.job(run))
    said = stage.waits_for(run, "JobHeldAdmin")
    assert "it is held by an administrator" in said["jobStatusMessage"]
    why = stage.why(run)
    assert (
        why["cause"] == "slurm"
        and "ask the operators" in why["try"][0]
        and f"Slurm job {job}" in why["evidence"][0]
    )
    stage.slurm.release(job)
    stage.waits_for(run, "BeginTime")
    let_go(stage, run)
    stage.over(run, "completed", "exit", "COMPLETED", exit=("script", 0, None))


@play
def put_into_the_queue_again(stage: ConcurrentRuns) -> None:
    """No command runs twice, whatever an operator does. The first run's effects are not known to be
    complete.
    """
    run, nap = stage.naps("echo once; exec sleep NAP")
    job = stage.running(run)
    until(lambda: naps(nap), "it sleeps")
    assert "disabled" in stage.slurm.ask("scontrol", "requeue", job, code=1)
    stage.slurm.ask("scontrol", "update", f"jobid={job}", "requeue=1")
    stage.slurm.requeue(job)
    said = stage.over(
        run,
        "error",
        "scheduler",
        "CANCELLED",
        nap=nap,
        sentence=["requeued in Slurm after it had started", "nothing is run a second time"],
        never=["unix user", "not by jobscribe"],
    )
    assert stage.site.output(run).body == b"once\n" and said["batch"]["restarts"] == 1, said


@play
def suspended_and_resumed(stage: ConcurrentRuns) -> None:
    flag = stage.users.home("alice") / "resumed"
    run = stage.run(f"until [ -e {flag} ]; do sleep 0.2; done")
    stage.site.submit(run)
    job = stage.running(run)
    stage.slurm.ask("scontrol", "suspend", job)
    said = stage.until(
        run, lambda said: said["batch"]["state"] == "SUSPENDED" and said, "it is suspended"
    )
    assert (said["state"], said["known"]) == ("running", True)
    assert "SUSPENDED" in "\n".join(stage.why(run)["evidence"])
    stage.slurm.ask("scontrol", "resume", job)
    stage.until(run, lambda said: said["batch"]["state"] == "RUNNING", "it goes on")
    flag.touch()
    stage.over(run, "completed", "exit", "COMPLETED", exit=("script", 0, None))


@play
def completing_for_long(stage: ConcurrentRuns) -> None:
    """Slurm clears its nodes after its script ended: the run is not over before that."""
    run = stage.run("exit 0", batch={"partition": "held"})
    stage.site.submit(run)
    job = stage.job(run)
    stage.until_state(job, "COMPLETING")
    said = stage.until(
        run,
        lambda said: (
            said["batch"].get("state") == "COMPLETING" and said["state"] == "running" and said
        ),
        "Slurm's state and the start of its script are known",
    )
    assert not said["over"] and (stage.evidence(run) / "exit-code").exists()
    (stage.slurm.place / f"finish-{job}").touch()
    stage.over(run, "completed", "exit", "COMPLETED", exit=("script", 0, None))


def ending(stage: ConcurrentRuns, run: dict[str, object], code: int, slurm: str) -> str:
    """Wait until its command has ended but Slurm has not finished the job; then cancel the run.
    Return its Slurm job.
    """
    said = stage.until(
        run,
        lambda said: (
            said["queueState"] == "ending" and said["batch"].get("state") == slurm and said
        ),
        "its exit is known",
    )
    assert (said["state"], said["over"], said["exited"]["code"], said["exited"]["stopReason"]) == (
        "running",
        False,
        code,
        None,
    ), said
    assert said["jobStatusMessage"].startswith(
        f"its command ended: exit code {code}; waiting for Slurm to finish the job"
    )
    why = stage.why(run)
    assert (
        why["cause"] == "ending" and "epilog" in why["sentence"] and " since " in why["sentence"]
    ), why
    late = stage.site.cancel(run)
    assert (late["state"], late["lateStop"]["reason"]) == ("running", "cancel"), late
    return str(said["batch"]["jobId"])


@play
def exits_before_a_cancel(stage: ConcurrentRuns) -> None:
    """Its epilog is slow, and it is canceled meanwhile: the run had ended by itself."""
    runs = {
        code: stage.run(f"exit {code}", batch={"partition": "held"}, retry={"count": 2})
        for code in (0, 3)
    }
    for run in runs.values():
        stage.site.submit(run)
    for code, run in runs.items():
        job = ending(stage, run, code, "COMPLETING")
        (stage.slurm.place / f"finish-{job}").touch()
        status, word = ("completed", "COMPLETED") if code == 0 else ("error", "FAILED")
        said = stage.over(
            run,
            status,
            "exit",
            word,
            exit=("script", code, None),
            evidence=["the result did not change"],
            never=["canceled by anyone"],
        )
        assert said["attempt"] == 1 and said["lateStop"]["by"] == ALICE, said


@play
def an_exit_that_a_hung_slurmstepd_does_not_see(stage: ConcurrentRuns) -> None:
    go, began = (stage.users.home("alice") / name for name in ("go-on", "began"))
    run = stage.run(
        f"touch {began}; until [ -e {go} ]; do sleep 0.1; done; exit 3", batch={"partition": "held"}
    )
    stage.site.submit(run)
    job = stage.running(run)
    until(
        began.exists, "its command runs", SECS
    )  # Slurm reports "running" earlier, and a stopped slurmstepd starts nothing
    (stage.slurm.place / f"finish-{job}").touch()
    stepd = until(lambda: processes(f"slurmstepd: [{job}.batch]"), "its slurmstepd is there", SECS)
    for pid in stepd:
        os.kill(pid, signal.SIGSTOP)
    try:
        go.touch()
        assert ending(stage, run, 3, "RUNNING") == job
    finally:
        for pid in stepd:
            os.kill(pid, signal.SIGCONT)
    stage.over(
        run,
        "error",
        "exit",
        "FAILED",
        exit=("script", 3, None),
        evidence=["the result did not change"],
    )


def processes(title: str) -> list[int]:
    """Return the pids of processes with this title."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(title.encode()):
                found.append(int(path.parts[2]))
    return found


# ---- requests that can never start


def never(
    stage: ConcurrentRuns, run: dict[str, object], nap: str, reason: str, *sentence: str
) -> None:
    said = stage.over(
        run,
        "error",
        "startFailed",
        "CANCELLED",
        last="PENDING",
        exit=("start", None, None),
        nap=nap,
        ran=False,
        sentence=["it can never start", reason, *sentence],
        tries=["jobscribe cluster list"],
        never=["canceled by"],
    )
    assert said["exit"]["fault"] == "neverPossible" and said["batch"]["reason"].startswith(
        reason
    ), said


@play
def dependency_never_satisfied(stage: ConcurrentRuns) -> None:
    run, nap = stage.naps(batch=LATER)
    stage.waits_for(run, "BeginTime")
    failed = stage.slurm.submit(stage.users, "alice", "exit 1\n", "-p", "crowd", "--mem=20")
    stage.until_state(failed, "FAILED")
    stage.slurm.ask(
        "scontrol",
        "update",
        f"jobid={stage.job(run)}",
        f"dependency=afterok:{failed}",
        "starttime=now",
    )
    never(stage, run, nap, "DependencyNeverSatisfied", "dependency can never be satisfied")


@play
def no_node_is_like_that_any_more(stage: ConcurrentRuns) -> None:
    run, nap = stage.naps(batch={**LATER, "constraint": "new", "partition": "crowd"})
    stage.waits_for(run, "BeginTime")
    nodes = ",".join(stage.slurm.nodes[1:])
    stage.slurm.ask(
        "scontrol", "update", f"nodename={nodes}", "availablefeatures=newer", "activefeatures=newer"
    )
    try:
        let_go(stage, run)
        never(stage, run, nap, "BadConstraints", "no node satisfies its request")
    finally:
        stage.slurm.ask(
            "scontrol", "update", f"nodename={nodes}", "availablefeatures=new", "activefeatures=new"
        )


# depending on the moment, Slurm says PartitionTimeLimit, PartitionNodeLimit or PartitionConfig for
# the same job


def changed(
    stage: ConcurrentRuns, partition: str, *settings: str, **wishes: object
) -> tuple[dict[str, object], str]:
    """Return a run that waits when an operator changes the partition."""
    run, nap = stage.naps(batch={**LATER, "partition": partition, **wishes}, timeLimitSecs=1800)
    stage.waits_for(run, "BeginTime")
    stage.slurm.ask("scontrol", "update", f"partitionname={partition}", *settings)
    let_go(stage, run)
    return run, nap


@play
def the_partition_gives_less_time(stage: ConcurrentRuns) -> None:
    never(stage, *changed(stage, "shorter", "maxtime=10"), "Partition", "partition")


@play
def the_partition_gives_fewer_nodes(stage: ConcurrentRuns) -> None:
    never(stage, *changed(stage, "narrower", "maxnodes=1", nodes=2), "Partition", "partition")


@play
def the_partition_has_fewer_nodes(stage: ConcurrentRuns) -> None:
    never(
        stage,
        *changed(stage, "shrunk", f"nodes={stage.slurm.nodes[0]}", nodes=2),
        "Partition",
        "partition",
    )


@play
def the_partition_takes_others_only(stage: ConcurrentRuns) -> None:
    never(
        stage,
        *changed(stage, "barred", "allowaccounts=chem"),
        "",
        "its account may not use that partition",
    )


@play
def the_partition_is_down_for_a_while(stage: ConcurrentRuns) -> None:
    run = stage.run("exit 0", batch={**LATER, "partition": "paused"})
    stage.site.submit(run)
    stage.waits_for(run, "BeginTime")
    stage.slurm.ask("scontrol", "update", "partitionname=paused", "state=down")
    let_go(stage, run)
    said = stage.waits_for(run, "PartitionDown")
    assert "the partition is down" in said["jobStatusMessage"]
    stage.slurm.ask("scontrol", "update", "partitionname=paused", "state=up")
    stage.over(run, "completed", "exit", "COMPLETED", exit=("script", 0, None))


# ---- node failures, on the third node, which only this case uses


@play
def the_third_node(stage: ConcurrentRuns) -> None:
    """A node is drained while one run is active on it and one waits for it. Then a job with higher
    priority needs it, then it is set down, then it has a power cut.
    """
    slurm, node = stage.slurm, stage.slurm.nodes[2]
    there = {"partition": "batch", "directives": [f"nodelist={node}"]}
    flag = stage.users.home("alice") / "drained"
    runs = stage.run(f"until [ -e {flag} ]; do sleep 0.2; done", batch=there)
    stage.site.submit(runs)
    stage.running(runs)
    slurm.drain(node)
    waits = stage.run("exit 0", batch=there)
    stage.site.submit(waits)
    said = stage.waits_for(waits, "ReqNodeNotAvail")
    assert node in said["jobStatusMessage"] and "operators" in "\n".join(stage.why(waits)["try"])
    assert stage.said(runs)["state"] == "running"
    flag.touch()
    stage.over(runs, "completed", "exit", "COMPLETED", exit=("script", 0, None))
    slurm.resume(node)
    stage.over(waits, "completed", "exit", "COMPLETED", exit=("script", 0, None))

    low, nap = stage.naps(batch={**there, "qos": "scavenger", "cores": 4})
    stage.running(low)
    before = slurm.submit(
        stage.users, "bob", "sleep 1\n", "--qos=high", "-p", "batch", "-w", node, "-c4", "-t1"
    )
    stage.over(
        low,
        "error",
        "scheduler",
        "PREEMPTED",
        nap=nap,
        sentence=["a job with higher priority"],
        never=["canceled by unix user"],
    )
    stage.until_state(before, "COMPLETED")

    down, nap = stage.naps(batch=there)
    stage.running(down)
    slurm.set_down(node)
    stage.over(
        down, "error", "scheduler", "NODE_FAIL", sentence=["a node that it ran on failed", node]
    )
    until(lambda: naps(nap) == [], "the node has cleared it away")
    slurm.resume(node)

    lost, nap = stage.naps(batch=there)
    stage.running(lost)
    until(lambda: naps(nap), "it sleeps")
    slurm.crash(node)
    assert stage.said(lost)["state"] == "running", "nobody has told yet"
    if not os.environ.get("SOAK"):
        slurm.set_down(node)
    stage.over(
        lost,
        "error",
        "scheduler",
        "NODE_FAIL",
        nap=nap,
        sentence=["a node that it ran on failed", node],
    )
    slurm.boot(node)
    slurm.resume(node)


# ---- tests


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PLAYS)
def test_what_slurm_does(going: dict[str, Future[None]], name: str) -> None:
    going[name].result(2 * SECS)


def test_no_record_ever_said_what_was_not_so(
    stage: ConcurrentRuns, going: dict[str, Future[None]]
) -> None:
    for done in going.values():
        done.exception(2 * SECS)
    assert stage.records.lies == []
    assert stage.records.read > 2 * len(going)
    assert stage.users.processes("alice") and not [j for j in stage.slurm.queued() if j.comment]


def test_the_log_knows_of_no_fault(stage: ConcurrentRuns, going: dict[str, Future[None]]) -> None:
    for done in going.values():
        done.exception(2 * SECS)
    own = deployment(
        (stage.site.root / "secret" / "agents").read_text().strip().encode()
    )  # other supervisors of these tests have logs there too
    told = stage.site.log() + (
        Path(stage.users.home("alice")) / "scratch" / f"jobscribe-{own}" / "job_agent.log"
    ).read_text(errors="replace")
    assert "Traceback" not in told, told[-5000:]
    assert ALICE in told
