"""A submission is refused if a real Slurm would refuse it or never start it, and `driver check
sbatch` finds configuration faults.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from login_nodes import Sshd, Users
from slurm_cluster import ACCOUNT, Sites, Slurm
from supervisor_process import SupervisorProcess, req_id, shell, until

from jobscribe.agent.batch.cluster_facts import cluster_status
from jobscribe.agent.batch.command_runner import Commands
from jobscribe.agent.slurm.sbatch_directives import request_lines
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.clusters.batch import BatchRequest, ClusterStatus
from jobscribe.protocol.clusters.cluster import Cluster, Clusters
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.jobs.roles import TaskRole
from jobscribe.supervisor.clusters.batch_validation import check

LAB = Cluster(
    name="lab", defaults=BatchRequest(partition="batch", account=ACCOUNT), directives=("exclusive",)
)
Say = Callable[..., "subprocess.CompletedProcess[str]"]


def told(slurm: Slurm, users: Users, who: str = "alice") -> ClusterStatus:
    """Return the cluster status that this user's agent would report."""
    return asyncio.run(
        cluster_status(LAB, users[who], Commands(lambda: {**os.environ, **slurm.env}))
    )


def accepted(spec: RunSpec, known: ClusterStatus) -> RunSpec | None:
    try:
        return check(spec, Clusters(clusters=(LAB,)), {"lab": known})
    except Refusal:
        return None


def tried(slurm: Slurm, users: Users, wishes: BatchRequest, secs: float | None = None) -> str:
    """Return Slurm's error for this request without a submission, or an empty string if Slurm
    accepts it.
    """
    lines = request_lines(wishes, allowed=LAB.directives, time_limit_secs=secs)
    options = [line.removeprefix("#SBATCH ").replace('"', "") for line in lines]
    said = users.run(
        "alice",
        "sbatch",
        "--test-only",
        *options,
        given="#!/bin/sh\ntrue\n",
        env=slurm.env,
        code=None,
    )
    return "" if "to start at" in said else said


def spec(
    wishes: BatchRequest, secs: float | None = None, roles: tuple[TaskRole, ...] = ()
) -> RunSpec:
    return RunSpec(
        uid="AliceAAA",
        simulation_id="sim00001",
        driver="sbatch",
        batch=wishes,
        time_limit_secs=secs,
        roles=roles,
        command=() if roles else ("true",),
    )


def test_our_refusals_are_slurms_own(slurm: Slurm, hpc_users: Users) -> None:
    known = told(slurm, hpc_users)
    (batch,) = [p for p in known.partitions if p.name == "batch"]
    assert (
        batch.cores_per_node
        and batch.memory_mb_per_node
        and batch.nodes
        and known.accounts
        and ACCOUNT in known.accounts
    )
    cores, memory, nodes = batch.cores_per_node, batch.memory_mb_per_node, batch.nodes
    both: list[tuple[BatchRequest, float | None]] = [
        (BatchRequest(), None),
        (BatchRequest(nodes=nodes), None),
        (BatchRequest(nodes=nodes + 1), None),
        (BatchRequest(cores=cores), None),
        (BatchRequest(cores=cores + 1), None),
        (BatchRequest(tasks=nodes * cores), None),
        (BatchRequest(tasks=nodes * cores + 1), None),
        (BatchRequest(nodes=2, tasks=2 * cores), None),
        (BatchRequest(nodes=2, tasks=2 * cores + 1), None),
        (BatchRequest(tasks_per_node=2, nodes=2, cores=cores // 2), None),
        (BatchRequest(tasks_per_node=2, cores=cores), None),
        (BatchRequest(memory_mb=memory), None),
        (BatchRequest(memory_mb=memory + 1), None),
        (BatchRequest(gpus=batch.gpus_per_node), None),
        (BatchRequest(gpus=(batch.gpus_per_node or 0) + 1), None),
        (BatchRequest(partition="nosuch"), None),
        (BatchRequest(account="nosuch"), None),
        (BatchRequest(qos="nosuch"), None),
    ]
    wrong = []
    for wishes, secs in both:
        ours = accepted(spec(wishes, secs), known)
        asked = (
            ours.batch
            if ours is not None and isinstance(ours.batch, BatchRequest)
            else LAB.defaults
        )
        theirs = tried(slurm, hpc_users, asked if ours is not None else _merged(wishes), secs)
        if (ours is not None) != (theirs == ""):
            wrong.append((wishes, secs, ours is not None, theirs))
    assert wrong == []
    assert sum(accepted(spec(w, s), known) is None for w, s in both) >= 9


def test_a_time_limit_that_we_refuse_is_one_that_slurm_would_take_and_never_start(
    slurm: Slurm, hpc_users: Users
) -> None:
    known = told(slurm, hpc_users)
    (batch,) = [p for p in known.partitions if p.name == "batch"]
    assert batch.time_limit_secs is not None
    assert (
        accepted(spec(BatchRequest(), batch.time_limit_secs), known) is not None
        and accepted(spec(BatchRequest(), batch.time_limit_secs + 60), known) is None
    )
    job = slurm.submit(
        hpc_users,
        "alice",
        "true\n",
        "-p",
        "batch",
        "-A",
        ACCOUNT,
        "-t",
        str(int(batch.time_limit_secs // 60) + 1),
    )
    until(
        lambda: [j for j in slurm.queued() if j.id == job and j.reason == "PartitionTimeLimit"],
        "Slurm says why it does not start it",
        30,
    )
    slurm.cancel(job)


def _merged(wishes: BatchRequest) -> BatchRequest:
    fields = {f: getattr(wishes, f) for f in wishes.__struct_fields__}
    return BatchRequest(
        **{**fields, "partition": wishes.partition or "batch", "account": wishes.account or ACCOUNT}
    )


def test_the_allocation_of_a_gang_is_one_that_slurm_can_give(
    slurm: Slurm, hpc_users: Users
) -> None:
    known = told(slurm, hpc_users)
    for roles in (
        (
            TaskRole(name="a", tasks=2, command=("true",)),
            TaskRole(name="b", tasks=1, cpu=2, memory_mb=300, command=("true",)),
        ),
        (TaskRole(name="a", tasks=5, cpu=2, memory_mb=200, command=("true",)),),
        (TaskRole(name="g", tasks=2, gpu=1, command=("true",)),),
    ):
        done = accepted(spec(BatchRequest(), roles=roles), known)
        assert done is not None and isinstance(done.batch, BatchRequest)
        assert tried(slurm, hpc_users, done.batch) == "", done.batch


def test_a_supervisor_refuses_what_its_cluster_has_not(
    make_cluster_site: Callable[..., SupervisorProcess],
) -> None:
    """Checked at once against the cluster file, and against the partitions once the user's agent
    has reported them.
    """
    site = make_cluster_site(
        clusters={"lab": {"limits": {"nodes": 2}}}, people={"AliceAAA": "alice"}
    )

    def refused(code: int = 400, **batch: Any) -> str:
        answer = site.ask(
            "POST",
            "/api/run-simulation",
            json.dumps(
                {
                    "reqId": req_id(),
                    "run": shell("true", uid="AliceAAA", driver="sbatch", batch=batch),
                }
            ).encode(),
        )
        assert answer.code == code, answer.body
        return str(answer.json().get("error"))

    assert 'there is no cluster "nosuch"; there are: lab' in refused(cluster="nosuch")
    assert "`nodes`: 3 are needed; the limit of cluster 'lab' for a run is 2" in refused(nodes=3)
    (row,) = site.post("clusters", uid="AliceAAA")["clusters"]
    assert (row["cluster"], row["state"], row["partitions"], row["limits"]) == (
        "lab",
        "unknown",
        None,
        {"nodes": 2},
    )
    site.post("begin-session", uid="AliceAAA", driver="sbatch")

    def told() -> Any:
        return site.post("clusters", uid="AliceAAA")["clusters"][0]["partitions"]

    names = [p["name"] for p in until(told, "the agent has told of its cluster", 60)]
    assert "batch" in names and f'no partition "nosuch"; there are: {", ".join(names)}' in refused(
        partition="nosuch"
    )
    assert "a node of partition 'batch' of cluster 'lab' has" in refused(memoryMb=10**6)
    assert 'you may not use the account "spent"' not in refused(partition="nosuch", account="spent")
    assert 'you may not use the account "other"' in refused(account="other")


# ---- driver check


@pytest.fixture
def say(cluster_sites: Sites) -> Say:
    """Run the command on a new root, as root: `say({cluster's fields}, *arguments, given=...)`."""

    def say(
        fields: dict[str, Any], *args: str, given: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        site = cluster_sites.make(clusters={"lab": fields}, people={"AliceAAA": "alice"})
        (path,) = site.place.glob("clusters.yml")
        argv = [
            sys.executable,
            "-m",
            "jobscribe.cli",
            "driver",
            "check",
            "sbatch",
            "--json",
            "--root",
            str(site.root),
            "--set",
            "drivers.use=sbatch",
            "--set",
            f"sbatch.clusters={path}",
            *args,
        ]
        return subprocess.run(
            argv,
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"PYTHONPATH": str(_types())},
        )

    return say


def _types() -> Path:
    return Path(__file__).resolve().parents[2] / ".types"


def lines(done: "subprocess.CompletedProcess[str]") -> dict[str, dict[str, Any]]:
    return {line["what"]: line for line in json.loads(done.stdout)["items"]}


def test_a_cluster_that_works_is_found_in_order_as_its_user(say: Say) -> None:
    done = say({"access": "runuser"})
    found = lines(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {w for w, line in found.items() if line["ok"]} >= {
        "user",
        "python",
        "folder",
        "clock",
        "commands of Slurm",
        "sinfo",
        "squeue",
        "sacct",
        "sbatch",
    }
    assert (
        found["link"]["ok"] is None
        and "is not running" in found["link"]["said"]
        and [w for w, line in found.items() if line["ok"] is False] == []
    )


def test_what_slurm_would_refuse_is_told_in_its_words(say: Say) -> None:
    done = say({"access": "runuser", "defaults": {"partition": "nosuch"}})
    assert done.returncode == 1
    bad = lines(done)["sbatch"]
    assert bad["ok"] is False and "invalid partition" in bad["said"] and "defaults" in bad["advice"]


def test_signing_in_the_code_and_the_link_are_tried(say: Say, sshd: Sshd) -> None:
    name, password = sshd.users["pw"], sshd.users.password
    done = say({"access": "ssh"}, "--user", name, "--password-stdin", given=f"{password}\n\n")
    found = lines(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(
        found[w]["ok"] for w in ("sign-in", "python", "folder", "squeue", "sbatch", "link")
    ), found
    assert (
        name in found["sign-in"]["said"] and "through the ssh connection" in found["link"]["said"]
    )
    assert password not in done.stdout + done.stderr


def test_a_wrong_password_is_sent_once_and_told(say: Say, sshd: Sshd) -> None:
    before = sshd.failures("pw")
    done = say(
        {"access": "ssh"},
        "--user",
        sshd.users["pw"],
        "--password-stdin",
        given="wrong-password-of-mine\n\n",
    )
    assert (
        done.returncode == 1
        and list(lines(done)) == ["sign-in"]
        and sshd.failures("pw") == before + 1
    )
    assert "wrong-password-of-mine" not in done.stdout + done.stderr


def test_a_host_with_another_key_is_told_no_password(say: Say, sshd: Sshd) -> None:
    done = say(
        {"access": "ssh", "login": [sshd.login(keys=sshd.keys("other"))]},
        "--user",
        sshd.users["pw"],
        "--password-stdin",
        given="x\n\n",
    )
    assert (
        done.returncode == 1
        and lines(done)["sign-in"]["ok"] is False
        and "key" in lines(done)["sign-in"]["said"]
    )
