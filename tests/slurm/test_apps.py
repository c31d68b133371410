"""Apps on a real Slurm: progress, frames, results, downloads, libraries, purges, and clusters
without an app or its packages.

`own` runs everything as the supervisor's own user, with the interpreter of these tests, which has
the apps' packages. On `lab` jobs run as their users, with Debian's Python. Neither sees the
supervisor's user directory.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from login_nodes import Users
from slurm_cluster import Slurm
from slurm_supervisor import ALICE, SECS, SlurmSupervisor, batch_site
from snakemake_workflow import Workflow, program
from supervisor_process import jid_of, until

from jobscribe.client import Client, ClientError

OWN, LAB = {"cluster": "own", "memoryMb": 100}, {"cluster": "lab", "memoryMb": 50}
SNAKEFILE = """
rule out:
    output: "out"
    threads: 2
    resources: mem_mb=400, runtime=5, jobscribe_cluster="own"
    shell: "echo $SLURMD_NODENAME {threads} $SLURM_MEM_PER_NODE $SLURM_CPUS_PER_TASK > {output}"
"""
#: Age at which runs are purged, and interval of the purge (seconds).
PURGE = ("purge.after_secs=1", "purge.every_secs=0.5")


@pytest.fixture(scope="module")
def observed(_cluster: tuple[Slurm, Users]) -> Iterator[SlurmSupervisor]:
    clusters = {"lab": {}, "own": {"access": "account", "pythons": [sys.executable]}}
    with batch_site(
        _cluster,
        "drivers.use=sbatch,local",
        "apps.also=ghost=ghost_app:app",
        *PURGE,
        clusters=clusters,
    ) as made:
        yield made


def heat(observed: SlurmSupervisor, batch: dict[str, Any] = OWN, **values: Any) -> dict[str, Any]:
    return observed.app(
        "heat", "heatAnimation", "parallel", batch, **{"size": 12, "steps": 1, **values}
    )


def call(observed: SlurmSupervisor, run: dict[str, Any], job_cmd: str, **fields: Any) -> Any:
    """Return the app's answer, whatever its status."""
    of_run = {} if "method" in fields and job_cmd != "analysis_job" else {"computeJid": jid_of(run)}
    body = {
        "uid": ALICE,
        "jobCmd": job_cmd,
        "simulationType": run["simulationType"],
        "computeModel": run["computeModel"],
        "data": run["data"],
        **of_run,
        **fields,
    }
    return observed.ask("call", **body)


def frame(observed: SlurmSupervisor, run: dict[str, Any], index: int) -> Any:
    answer = call(
        observed,
        run,
        "get_simulation_frame",
        args={"frameReport": "heatAnimation", "frameIndex": index},
    )
    return answer.json() if answer.code == 200 else answer.code


def test_a_parallel_run_is_watched_while_it_goes_on_and_read_afterwards(
    observed: SlurmSupervisor,
) -> None:
    run = heat(observed, frames=12, paceSecs=0.4)
    observed.site.submit(run)
    follower = observed.follows("job", "logs", "--uid", ALICE, jid_of(run), "-f")
    seen: list[tuple[int, float]] = []

    def look(said: dict[str, Any]) -> bool:
        report = said.get("parallelStatus") or {}
        if report and (not seen or seen[-1][0] != report["frameCount"]):
            seen.append((report["frameCount"], report["percentComplete"]))
            assert (
                frame(observed, run, report["frameCount"] - 1)["frameIndex"]
                == report["frameCount"] - 1
            ), "what is counted is there"
        return len(seen) >= 3

    observed.until(run, look, "it says how far it is")
    assert seen == sorted(seen) and all(0 < percent < 100 for _, percent in seen), seen
    figures = json.loads(
        observed.types("job", "metrics", "--uid", ALICE, jid_of(run), "--json")[0]
    )["tasks"][0]
    # unknown until the first sample
    sampled = [figures[name] for name in ("memoryBytes", "cpuSecs", "processes")]
    assert figures["running"] and (sampled == [None] * 3 or all(sampled)), figures
    over = observed.over(run, "completed")
    assert (
        over["parallelStatus"]
        == {"frameCount": 12, "frameTotal": 12, "percentComplete": 100.0}
        == over["exit"]["report"]
    )
    out, err = follower.communicate(timeout=SECS)
    assert follower.returncode == 0 and out.count("frame ") == 12 and out == observed.output(run), (
        out,
        err,
    )
    assert frame(observed, run, 11)["frameCount"] == 12 and frame(observed, run, 12) != 200
    hottest = call(observed, run, "analysis_job", method="hottest").json()
    assert set(hottest) >= {"mean", "maximum"}, hottest
    name = call(observed, run, "download_run_file", args={"suffix": "csv"}).json()["name"]
    got = whole(observed, run, name)
    assert got == (observed.where(run) / name).read_bytes() and got.count(b"\n") == 13


def whole(observed: SlurmSupervisor, run: dict[str, Any], name: str) -> bytes:
    answer = observed.ask("run-file", uid=ALICE, computeJid=jid_of(run), name=name)
    assert answer.code == 200, answer
    return answer.body


def test_a_cancel_ends_program_and_app_and_what_lacks_numpy_says_so(
    observed: SlurmSupervisor,
) -> None:
    long, lacking = heat(observed, frames=4000, paceSecs=0.2), heat(observed, LAB)
    for run in (long, lacking):
        observed.site.submit(run)
    job = observed.running(long)
    observed.until(
        long, lambda said: (said.get("parallelStatus") or {}).get("frameCount"), "it computes"
    )
    observed.site.cancel(long)
    over = observed.over(long, "canceled", "cancel")
    assert over["exit"]["stopReason"] == "cancel" and over["parallelStatus"]["frameCount"] >= 1
    assert observed.marked(f"{jid_of(long)}/") == [] and observed.slurm.until_state(job).state in (
        "CANCELLED",
        "FAILED",
    )
    if observed.users.run("alice", "/usr/bin/python3", "-c", "import numpy", code=None):
        over = observed.over(lacking, "error")
        assert "needs numpy on the machine" in over["error"], over


def test_a_library_is_brought_to_where_the_run_is_and_changed_only_where_it_is(
    observed: SlurmSupervisor,
) -> None:
    dog = call(
        observed,
        myapp(observed),
        "stateful_compute",
        method="addDog",
        args={"name": "Rex", "height": 60.0, "weight": 30.0},
    )
    assert dog.code == 200, dog
    library = observed.site.root / "user" / ALICE / "myapp" / "lib"
    assert (library / "dogs.json").exists(), "the agent that sees it has changed it"
    big = os.urandom(700_000)
    (library / "big.dat").write_bytes(big)
    run = myapp(observed, dog="Rex", years=1.0)
    observed.site.submit(run)
    observed.over(run, "completed")
    there = observed.where(run).parent.parent / "lib"
    assert there != library and (there / "big.dat").read_bytes() == big, "in pieces, and whole"
    assert (there / "dogs.json").stat().st_uid == observed.users.uid("alice") and not list(
        there.glob(".copy*")
    )
    first = call(observed, run, "sequential_result").json()
    assert len(first["plots"]) == 2, first
    # a file changed here is changed there before it is read; an unchanged file is not sent again
    before = (there / "big.dat").stat().st_ino
    call(observed, run, "stateful_compute", method="deleteDog", args={"name": "Rex"})
    call(
        observed,
        run,
        "stateful_compute",
        method="addDog",
        args={"name": "Rex", "height": 20.0, "weight": 3.0},
    )
    again = myapp(observed, dog="Rex", years=1.0)
    observed.site.submit(again)
    observed.over(again, "completed")
    assert (
        call(observed, again, "sequential_result").json() != first
        and (there / "big.dat").stat().st_ino == before
    )
    refused = call(
        observed,
        run,
        "stateful_compute",
        method="addDog",
        args={"name": "Max", "height": 20.0, "weight": 3.0},
        driver="sbatch",
    )
    assert refused.code == 400 and "only a copy" in refused.json()["error"], refused
    # without a run, the cluster's agent answers
    weight = call(
        observed,
        run,
        "stateless_compute",
        method="idealWeight",
        args={"height": 60.0},
        driver="sbatch",
    )
    assert weight.code == 200, weight


def myapp(observed: SlurmSupervisor, **values: Any) -> dict[str, Any]:
    return observed.app("myapp", "heightWeightReport", "sequential", LAB, **values)


def test_what_lies_on_a_cluster_is_its_users_to_remove(observed: SlurmSupervisor) -> None:
    """A run on the cluster is not reported as purged while its files are there. A run on this
    machine that ended later is.
    """
    there, here = (
        observed.run("echo kept > out", batch=LAB),
        {**observed.run("echo gone > out"), "driver": "local"},
    )
    observed.site.submit(there)
    observed.over(there, "completed")
    observed.site.submit(here)
    observed.site.wait(here, SECS)
    until(
        lambda: observed.site.status(here)["state"] == "job_run_purged",
        "the one on this machine is purged",
        SECS,
    )
    assert (
        observed.site.status(there)["state"] == "completed"
        and whole(observed, there, "out") == b"kept\n"
    )


def test_an_app_that_is_not_on_the_cluster_is_told_by_its_name(observed: SlurmSupervisor) -> None:
    run = observed.app("ghost", "ghostReport", "sequential", LAB)
    observed.site.submit(run)
    over = observed.over(run, "error")
    assert "ghost" in over["error"] and "ghost_app" in over["error"], over
    answer = call(observed, run, "stateless_compute", method="any", driver="sbatch")
    assert "ghost_app" in answer.json()["error"] and "Traceback" not in answer.json()["error"], (
        answer
    )


def test_warm_workers_run_on_nodes_without_shared_files(observed: SlurmSupervisor) -> None:
    """The cluster's agent stores calls, and reads outcomes for any client of the user. So it does for
    a call with a job of its own.
    """
    options = {"driver": "sbatch", "batch": OWN}
    with Client.from_root(observed.site.root, uid=ALICE) as client:
        alone = client.submit(os.getenv, "FUNCTION_CALL_FILE", "read", resources=options)
        with client.executor(workers=1, resources=options) as executor:
            calls = [executor.submit(pow, 2, n) for n in range(20)]
            lost, node = executor.submit(os._exit, 3), executor.submit(os.getenv, "SLURMD_NODENAME")
            assert [call.result(SECS) for call in calls] == [2**n for n in range(20)]
            with pytest.raises(ClientError, match="exit code 3"):
                lost.result(SECS)
            assert node.result(SECS)
        assert alone.result(SECS) == "read"
        with Client.from_root(observed.site.root, uid=ALICE) as other:
            assert other.job(calls[7].jid).result(SECS, call=calls[7].call) == 128


@pytest.mark.soak(
    "tests/unit/plugins/test_snakemake_runs.py and tests/integration/test_snakemake.py"
)
def test_a_workflow_of_snakemake_runs_on_nodes(observed: SlurmSupervisor, tmp_path: Path) -> None:
    """Its resources are those of the Slurm job."""
    workflow = Workflow(program(), observed.site, tmp_path)
    try:
        ended = workflow.start(SNAKEFILE, "--jobscribe-driver", "sbatch")
        assert ended.wait(SECS) == 0, workflow.text()
    finally:
        workflow.end()
    node, *limits = (tmp_path / "out").read_text().split()
    assert node in observed.slurm.nodes and limits == ["2", "400", "2"]
