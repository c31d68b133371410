"""MPI ranks over two nodes as runs of the sbatch driver: their resources, their progress reports,
and that no rank outlives its run.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debugging_user import Debugger
from engine_scripts import ROOT, Refused, Script
from login_nodes import Users
from shell_user import client_of
from slurm_cluster import Slurm
from slurm_supervisor import ALICE, SECS, SlurmSupervisor, batch_site
from supervisor_process import fresh_nap, jid_of, until

RING = (ROOT / "etc/examples/openpai/code/ring.py").read_text()
STOPS = RING.replace("print(", "breakpoint()\nprint(")
#: Every rank passes the number on and waits for the others, forever. Ranks 0 report each round.
LONG = (
    RING.partition("print(")[0]
    + """
import os, time
print(f"rank {rank.value} is there", flush=True)
step = 0
while True:
    step += 1
    mpi.MPI_Barrier(world)
    if not rank.value:
        with open("steps.new", "w") as f: f.write(str(step))
        os.rename("steps.new", "steps")
    time.sleep(0.1)
"""
)
#: Rank 1 never calls MPI_Init, where the others wait for it.
STUCK = RING.replace(
    "assert mpi.MPI_Init",
    "import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n    time.sleep(1000)\n"
    "open('before-' + os.environ['OMPI_COMM_WORLD_RANK'], 'w').close()\nassert mpi.MPI_Init",
)
FOUR = {"nodes": 2, "tasks": 4, "tasksPerNode": 2, "cores": 1, "memoryMb": 120}


@pytest.fixture(scope="module")
def mpi() -> str:
    """Shell setup that a job needs for MPI."""
    script = Script("mpi", {})
    try:
        script("check")
    except Refused as e:
        pytest.skip(str(e))
    return script("env")


@pytest.fixture(scope="module")
def observed(mpi: str, _cluster: tuple[Slurm, Users]) -> Iterator[SlurmSupervisor]:
    with batch_site(_cluster) as made:
        yield made


def ranks(
    observed: SlurmSupervisor, program: str, mpi: str, *, start: str = "mpirun", **fields: Any
) -> tuple[dict[str, Any], str]:
    """Return a run, and a mark that all its processes carry."""
    mark = f"JS_MARK_{fresh_nap().replace('.', '_')}"
    launch = f"{start} -x {mark}" if start == "mpirun" else start
    text = f'export {mark}=1; exec {launch} /usr/bin/python3 -c "$PROGRAM"'
    env = {"PROGRAM": program, mark: "1", **fields.pop("env", {})}
    return observed.run(text, env=env, **{"batch": {**FOUR, "setup": mpi}, **fields}), mark


def check_breakpoints(observed: SlurmSupervisor, run: dict[str, Any]) -> None:
    """Attach to rank 2 and change its number; let the others go on; then continue it."""
    jid = jid_of(run)
    with client_of(observed.site, ALICE) as alice:

        def stopped() -> dict[int, dict[str, Any]] | None:
            found = {s["rank"]: s for s in alice.debug_list(jid)["stops"]}
            return found if len(found) == 4 else None

        stops = until(stopped, "all ranks stop", SECS)
        at = {(s["function"], s["line"]) for s in stops.values()}
        assert sorted(stops) == [0, 1, 2, 3] and len(at) == 1, stops
        nodes = [stops[n]["host"] for n in range(4)]
        assert nodes[0] == nodes[1] != nodes[2] == nodes[3], nodes
        debugger = Debugger(alice, stops[2])
        debugger.until("prompt")
        assert debugger.type("p rank.value") == "2\n"
        out, _ = observed.types("debug", "continue", jid, "--uid", ALICE)
        assert [f" rank {n}, " in out for n in range(4)] == [True, True, False, True], out
        (left,) = alice.debug_list(jid)["stops"]
        assert left["rank"] == 2 and left["attached"]
        debugger.type("c", "running")
        debugger.close()


def test_four_ranks_on_two_nodes_get_what_was_asked_for(
    observed: SlurmSupervisor, mpi: str
) -> None:
    """All stop at a breakpoint; a user is attached to one while the others go on."""
    run, _ = ranks(observed, STOPS, mpi, env={"JOBSCRIBE_DEBUG": "breakpoint"})
    # the same by srun with its cores; the kernel reports the resources of each rank
    plain = observed.run(
        "srun sh -c 'echo $(hostname) $SLURM_PROCID of $SLURM_NTASKS, $SLURM_CPUS_PER_TASK cores'",
        batch={**FOUR, "tasks": 2, "tasksPerNode": 1, "cores": 2},
    )
    for one in (run, plain):
        observed.site.submit(one)
    check_breakpoints(observed, run)
    over, other = observed.over(run, "completed"), observed.over(plain, "completed")
    # mpirun reads its ranks through terminals: another rank's line may come between a line and its
    # newline
    printed = observed.output(run)
    lines = sorted(re.findall(r"rank (\d+) of (\d+) on (\S+) had (\d+?)(?=rank|\n)", printed))
    assert [(int(r), int(of), int(had)) for r, of, _, had in lines] == [
        (0, 4, 8),
        (1, 4, 2),
        (2, 4, 4),
        (3, 4, 8),
    ], printed
    assert printed.count("\n") == 4, printed
    nodes = [node for _, _, node, _ in lines]
    assert (
        len(set(nodes)) == 2
        and set(nodes) <= set(observed.slurm.nodes)
        and nodes[0] == nodes[1]
        and nodes[2] == nodes[3]
    ), nodes
    said = observed.asked(over["batch"]["jobId"])
    assert (said["NumNodes"], said["NumTasks"], said["MinMemoryNode"], said["CPUs/Task"]) == (
        "2",
        "4",
        "120M",
        "1",
    ), said
    assert said["NtasksPerN:B:S:C"].startswith("2:"), said
    said = observed.asked(other["batch"]["jobId"])
    assert (said["NumNodes"], said["NumTasks"], said["CPUs/Task"]) == ("2", "2", "2"), said
    assert sorted(line.partition(" ")[2] for line in observed.output(plain).splitlines()) == [
        "0 of 2, 2 cores",
        "1 of 2, 2 cores",
    ]
    assert len(set(observed.output(plain).split()[::6])) == 2, "on both nodes"


def test_no_rank_outlives_a_cancel_wherever_it_is(observed: SlurmSupervisor, mpi: str) -> None:
    """Canceled while ranks compute, while they are in MPI_Init, and under srun when they ignore
    SIGTERM.
    """
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('is there', flush=True); time.sleep(1000)"
    two = {"batch": {**FOUR, "tasks": 2, "tasksPerNode": 1, "setup": mpi}}
    all_ = long, stuck, stubborn = (
        ranks(observed, LONG, mpi),
        ranks(observed, STUCK, mpi, **two),
        ranks(observed, deaf, mpi, start="srun", **two),
    )
    for run, _ in all_:
        observed.site.submit(run)
    jobs = [observed.running(run) for run, _ in all_]
    # its progress while it runs
    steps = observed.where(long[0]) / "steps"
    first = until(lambda: steps.exists() and int(steps.read_text()), "it computes", SECS)
    until(lambda: int(steps.read_text()) > first, "it goes on", SECS)
    assert len(observed.marked(long[1])) >= 6, "four ranks and who started them"
    until(
        lambda: (observed.where(stuck[0]) / "before-0").exists(), "one of them is in MPI_Init", SECS
    )
    until(lambda: observed.output(stubborn[0]).count("is there") == 2, "both are there", SECS)
    assert all(len(observed.marked(mark)) >= 3 for _, mark in all_)
    for run, _ in all_:
        observed.site.cancel(run)
    for (run, mark), job in zip(all_, jobs, strict=True):
        said = observed.over(run, "canceled", "cancel")
        assert said["exit"]["stopReason"] == "cancel", said
        assert observed.marked(mark) == [], "no rank lives when it is said to be over"
        assert observed.slurm.until_state(job).state in ("CANCELLED", "FAILED", "COMPLETED")


def test_a_rank_that_dies_takes_the_others_with_it_and_is_told(
    observed: SlurmSupervisor, mpi: str
) -> None:
    dies = LONG.replace(
        "step += 1", "step += 1\n    if rank.value == 2 and step == 5: os.kill(os.getpid(), 11)"
    )
    run, mark = ranks(observed, dies, mpi)
    observed.site.submit(run)
    said = observed.over(run, "error")
    assert said["exit"]["code"] and observed.marked(mark) == [], said
    assert "Segmentation fault" in observed.output(run, stream="stdout") + observed.output(
        run, stream="stderr"
    )
    why = observed.site.post("job-why", uid=run["uid"], computeJid=jid_of(run))
    assert any(f"Slurm job {said['batch']['jobId']}" in line for line in why["evidence"]), why
    assert "signal 11" in why["lastLines"], why
    reported = json.loads(observed.types("job", "metrics", jid_of(run), "--json")[0])
    assert (
        reported["tasks"][0]["memoryBytes"] is None and reported["tasks"][0]["cpuSecs"] is None
    ), "not known is not 0"
