"""Checks of the test cluster itself: its verbs work, and Slurm's output about jobs is parsed
correctly.
"""

import os
import subprocess
import time
from pathlib import Path

import pytest
from engine_scripts import ROOT, Refused, Script
from login_nodes import Users
from slurm_cluster import DAEMONS, Sites, Slurm
from supervisor_process import until

from jobscribe.service.site.cluster_file import load

SLEEP = "exec sleep 4321\n"
#: Other tests of this folder would find these faults too, but later and less clearly.
whole = pytest.mark.skipif(
    not os.environ.get("SOAK"),
    reason="this equipment is what the other tests here work with: SOAK=1 tests it by itself",
)


def started(
    slurm: Slurm, users: Users, script: str = SLEEP, *options: str, who: str = "alice"
) -> str:
    """Submit a job and return it when it runs."""
    job = slurm.submit(users, who, script, "--no-requeue", *options)
    slurm.until_state(job, "RUNNING")
    return job


def refused(slurm: Slurm, users: Users, who: str, *options: str) -> str:
    """Return sbatch's error for these options."""
    with pytest.raises(Refused) as e:
        slurm.submit(users, who, SLEEP, *options)
    return str(e.value)


def waits_for(slurm: Slurm, job: str, *reasons: str) -> None:
    def look() -> bool:
        said = slurm.job(job)
        return said is not None and said.state == "PENDING" and said.reason.startswith(reasons)

    until(look, f"job {job} waits for {' or '.join(reasons)}: {slurm.job(job)}")


# ---- jobs


def test_a_job_of_a_user_runs_on_the_node_that_was_asked_for(
    slurm: Slurm, hpc_users: Users
) -> None:
    path, node = hpc_users.home("alice") / "out", slurm.nodes[1]
    text = "hostname; id -un; echo gpus $CUDA_VISIBLE_DEVICES; exit 7\n"
    job = slurm.submit(
        hpc_users,
        "alice",
        text,
        "-o",
        str(path),
        "-w",
        node,
        "--gpus-per-node=1",
        "--comment=jobscribe x 1",
        "-J",
        "js-one",
    )
    done = slurm.until_state(job)
    assert done._replace(reason="") == done._replace(
        asked="squeue",
        id=job,
        name="js-one",
        user=hpc_users["alice"],
        account="research",
        partition="debug",
        state="FAILED",
        reason="",
        nodes=node,
        comment="jobscribe x 1",
    )
    assert path.read_text().split() == [node, hpc_users["alice"], "gpus", "0"]
    # slurmdbd stores the record of such a short job in parts
    kept = until(
        lambda: next(
            (
                j
                for j in slurm.accounted(job=job)
                if j.state == "FAILED" and j.comment and j.exit != "0:0"
            ),
            None,
        ),
        "accounting has it",
    )
    # accounting may have lost the name ("allocation") of such a short job; the comment is stored
    assert (kept.comment, kept.exit, kept.nodes, kept.user) == (
        "jobscribe x 1",
        "7:0",
        node,
        hpc_users["alice"],
    )
    assert [j for j in slurm.accounted(user=hpc_users["bob"]) if j.id == job] == []


@whole
def test_several_nodes_and_what_squeue_forgets_accounting_knows(
    slurm: Slurm, hpc_users: Users
) -> None:
    path = hpc_users.home("bob") / "out"
    with slurm.forgetting():
        job = slurm.submit(hpc_users, "bob", "srun hostname\n", "-N3", "-o", str(path))
        slurm.until_state(job, "COMPLETED")
        assert sorted(path.read_text().split()) == sorted(slurm.nodes)
        until(
            lambda: job not in [j.id for j in slurm.queued(active=False)], "squeue has forgotten it"
        )
        found = slurm.job(job)
        assert found is not None and (found.asked, found.state) == ("sacct", "COMPLETED")


def test_a_job_is_held_to_its_memory(slurm: Slurm, hpc_users: Users) -> None:
    if "CGROUP=0" in (slurm.place / "parameters").read_text():
        pytest.skip("memory is held by cgroups v1 only, which this machine does not have")
    job = slurm.submit(hpc_users, "alice", "head -c 300M /dev/zero | tail\n", "--mem=60M")
    assert slurm.until_state(job).state == "OUT_OF_MEMORY"


def test_hold_release_requeue_cancel(slurm: Slurm, hpc_users: Users) -> None:
    job = slurm.submit(hpc_users, "alice", SLEEP, "--hold", "--requeue")
    waits_for(slurm, job, "JobHeldUser")
    slurm.release(job)
    slurm.until_state(job, "RUNNING")
    slurm.requeue(job)
    slurm.until_state(job, "PENDING")
    slurm.hold(job)
    slurm.cancel(job)
    slurm.until_state(job, "CANCELLED")
    assert next(j.state for j in slurm.accounted(job=job)) == "REQUEUED"


# ---- limits of the cluster


def test_accounts_and_partitions(slurm: Slurm, hpc_users: Users) -> None:
    assert "Invalid account" in refused(slurm, hpc_users, "bob", "-A", "chem")
    waits_for(
        slurm,
        slurm.submit(hpc_users, "alice", SLEEP, "-p", "small"),
        "Job's account not permitted to use this partition",
    )
    slurm.until_state(
        slurm.submit(hpc_users, "alice", "", "-A", "chem", "-p", "small"), "COMPLETED"
    )
    assert "invalid partition" in refused(slurm, hpc_users, "alice", "-p", "nowhere")
    waits_for(
        slurm,
        slurm.submit(hpc_users, "alice", SLEEP, "-A", "chem", "-p", "small", "-N2"),
        "PartitionNodeLimit",
        "PartitionConfig",
    )
    waits_for(
        slurm,
        slurm.submit(hpc_users, "alice", SLEEP, "-t", "99"),
        "PartitionTimeLimit",
        "PartitionConfig",
    )
    waits_for(slurm, slurm.submit(hpc_users, "alice", SLEEP, "-p", "closed"), "PartitionDown")
    waits_for(
        slurm, slurm.submit(hpc_users, "alice", SLEEP, "-A", "spent"), "AssocGrpCPUMinutesLimit"
    )
    slurm.until_state(slurm.submit(hpc_users, "alice", "", "-C", "old"), "COMPLETED")
    assert "Invalid feature" in refused(slurm, hpc_users, "alice", "-C", "newest")


@whole
def test_qos_licences_and_preemption(slurm: Slurm, hpc_users: Users) -> None:
    assert "qos" in refused(slurm, hpc_users, "alice", "--qos=none").lower()
    for _ in range(2):
        slurm.submit(hpc_users, "alice", SLEEP, "--qos=short", "-t1", "-L", "solver:2")
    assert "QOSMaxSubmitJobPerUserLimit" in refused(slurm, hpc_users, "alice", "--qos=short", "-t1")
    waits_for(
        slurm, max(j.id for j in slurm.queued(name="sbatch") if j.state == "PENDING"), "Licenses"
    )
    slurm.cancel_all()
    low = slurm.submit(
        hpc_users,
        "bob",
        SLEEP,
        "--qos=scavenger",
        "-N3",
        "--exclusive",
        "--requeue",
        "-p",
        "batch",
        "-t5",
    )
    slurm.until_state(low, "RUNNING")
    high = slurm.submit(
        hpc_users, "alice", SLEEP, "--qos=high", "-N3", "--exclusive", "-p", "batch", "-t5"
    )
    slurm.until_state(high, "RUNNING")
    assert slurm.state(low) == "PENDING"


# ---- daemons and nodes


@whole
def test_daemons_are_stopped_killed_frozen_and_come_back(slurm: Slurm, hpc_users: Users) -> None:
    """A running job continues meanwhile."""
    job = started(slurm, hpc_users, SLEEP, "-w", slurm.nodes[0])
    everyone = (*DAEMONS, *slurm.nodes)
    for verb in (slurm.stop, slurm.kill):
        for daemon in reversed(everyone):
            verb(daemon)
        assert slurm.status() == dict.fromkeys(everyone, "down")
        assert hpc_users.processes("alice"), "the job goes on"
        for daemon in everyone:
            slurm.start(daemon)
        assert slurm.status() == dict.fromkeys(everyone, "up")
    for daemon in everyone:
        slurm.freeze(daemon)
    assert slurm.status() == dict.fromkeys(everyone, "frozen")
    slurm.thaw("munged")
    slurm.script("well")
    assert slurm.status() == dict.fromkeys(everyone, "up")
    until(lambda: slurm.state(job) == "RUNNING", "it is known to run")
    slurm.cancel(job)
    assert slurm.until_state(job).state == "CANCELLED"


@whole
def test_without_controller_or_accounting_there_is_no_word(slurm: Slurm) -> None:
    slurm.stop("slurmdbd")
    assert "onnection refused" in slurm.ask("sacct", "-a", code=1)
    assert slurm.queued() == []
    slurm.freeze("slurmctld")
    began = time.monotonic()
    said = slurm.ask("squeue", code=1)
    assert "timed out" in said or "Unable to contact" in said, said
    assert 2 < time.monotonic() - began < 100
    slurm.well()
    assert slurm.accounted() is not None and slurm.queued() == []


@whole
def test_power_cut_of_a_node(slurm: Slurm, hpc_users: Users) -> None:
    node = slurm.nodes[2]
    job = started(
        slurm, hpc_users, "setsid sleep 4321 & trap '' TERM; exec sleep 4321\n", "-w", node
    )
    until(lambda: len(hpc_users.processes("alice")) >= 2, "both run")
    slurm.crash(node)
    assert slurm.processes(node) == [] == hpc_users.processes("alice")
    assert [*Path("/sys/fs/cgroup").glob(f"*/slurm_{node}")] == []
    assert slurm.status()[node] == "down" and slurm.state(job) == "RUNNING"
    if not os.environ.get("SOAK"):
        slurm.set_down(node)
    assert slurm.until_state(job, secs=120).state == "NODE_FAIL"
    slurm.boot(node)
    slurm.resume(node)
    slurm.until_state(slurm.submit(hpc_users, "alice", "", "-w", node), "COMPLETED")


@whole
def test_drained_and_set_down(slurm: Slurm, hpc_users: Users) -> None:
    node = slurm.nodes[2]
    job = started(slurm, hpc_users, SLEEP, "-w", node)
    slurm.drain(node)
    assert slurm.node_state(node).startswith("drain")
    waiting = slurm.submit(hpc_users, "bob", "", "-w", node)
    until(
        lambda: slurm.queued(user=hpc_users["bob"])[0].reason.startswith("ReqNodeNotAvail"),
        "it waits for the node",
    )
    slurm.set_down(node)
    assert slurm.until_state(job).state == "NODE_FAIL"
    slurm.resume(node)
    slurm.until_state(waiting, "COMPLETED", secs=90)


@pytest.mark.skipif(not os.environ.get("SOAK"), reason="takes a minute of waiting: SOAK=1")
def test_time_limit(slurm: Slurm, hpc_users: Users) -> None:
    job = started(slurm, hpc_users)
    slurm.time_out(job)
    assert slurm.until_state(job, secs=120).state == "TIMEOUT"


# ---- other clusters


@whole
def test_another_one_beside_it_leaves_nothing(slurm: Slurm, hpc_users: Users) -> None:
    """The second cluster has other parameters, which only `up` is given."""
    with_more = Slurm(
        NODES="1", CGROUP="0", ENFORCE="0", GPUS="0", NAME="second", EXTRA="PrivateData=jobs"
    )
    try:
        with_more.up()
        job = with_more.submit(hpc_users, "bob", SLEEP)
        assert with_more.until_state(job, "RUNNING").account == ""
        assert with_more.queued(user=hpc_users["bob"])[0].id == job
        assert (
            hpc_users.run("alice", "squeue", "-h", env=with_more.env) == "" and slurm.queued() == []
        )
        until(lambda: hpc_users.processes("bob"), "it runs")
        with_more.script("down")
        assert set(with_more.status().values()) == {"down"} and hpc_users.processes("bob") == []
        with_more.up()
        assert with_more.until_state(job).state == "CANCELLED"
        with_more.submit(hpc_users, "bob", SLEEP)
    finally:
        with_more.clean()
    assert not with_more.place.exists() and hpc_users.processes("bob") == []
    assert [p for n in with_more.nodes for p in Path("/sys/fs/cgroup").glob(f"*/slurm_{n}")] == []
    mark = str(with_more.place).encode()
    left = {
        p.parent.name: line
        for p in Path("/proc").glob("[0-9]*/cmdline")
        if mark in (line := _read(p)) + _read(p.parent / "environ")
    }
    assert left == {}, left
    assert str(with_more.place) not in Path("/proc/mounts").read_text()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("access", ["account", "runuser", "ssh"])
def test_sites_have_a_file_that_describes_the_cluster(
    cluster_sites: Sites, hpc_users: Users, slurm: Slurm, access: str
) -> None:
    who = hpc_users.uid("bob") if access == "account" else None
    site = cluster_sites.make(
        clusters={"lab": {"access": access, "runs": 7}},
        people={"AliceAAA": "alice"} if access == "runuser" else None,
        who=who,
    )
    (cluster,) = load(str(site.place / "clusters.yml")).clusters
    assert (cluster.name, cluster.access, cluster.runs, cluster.environment) == (
        "lab",
        access,
        7,
        slurm.env,
    )
    assert cluster.users == (
        {"AliceAAA": hpc_users["alice"]} if access == "runuser" else {}
    ) and len(cluster.login) == (access == "ssh")


@whole
def test_ranks_of_an_mpi_job_on_two_nodes(slurm: Slurm, hpc_users: Users) -> None:
    mpi = Script("mpi", {})
    try:
        mpi("check")
    except Refused as e:
        pytest.skip(str(e))
    path, program = hpc_users.home("alice") / "ring", hpc_users.home("alice") / "mpi_ring.py"
    program.write_bytes((ROOT / "etc/examples/openpai/code/ring.py").read_bytes())
    text = mpi("env") + f"mpirun /usr/bin/python3 {program}\n"
    job = slurm.submit(
        hpc_users,
        "alice",
        text,
        "-N2",
        "-n4",
        "--ntasks-per-node=2",
        "-o",
        str(path),
        "-w",
        ",".join(slurm.nodes[:2]),
    )
    assert slurm.until_state(job).state == "COMPLETED", path.read_text()
    one, two = slurm.nodes[:2]
    assert sorted(path.read_text().splitlines()) == [
        f"rank {r} of 4 on {n} had {h}"
        for r, n, h in ((0, one, 8), (1, one, 2), (2, two, 4), (3, two, 8))
    ]


def test_a_machine_without_all_this_says_what_to_do() -> None:
    for name in ("slurm", "sshd"):
        path = ROOT / "etc" / "engines" / f"{name}.sh"
        done = subprocess.run(
            [
                "setpriv",
                "--reuid",
                "65534",
                "--regid",
                "65534",
                "--clear-groups",
                "bash",
                "-s",
                "check",
            ],
            input=path.read_text(),
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
        )
        assert done.returncode == 1 and "only root" in done.stderr, done
