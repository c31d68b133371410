"""Gangs on a real Slurm: one allocation with a step for each task, from the host list to the last
exit.
"""

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from cutting_relay import check_cut_copies
from dap_client import attached_ide
from debugging_user import waiting_stop
from engine_scripts import ROOT
from inspected_program import COMMAND, give_pyspy
from login_nodes import Users
from shell_user import ShellUser, check_stranger, client_of
from slurm_cluster import Slurm
from slurm_supervisor import ALICE, SECS, SlurmSupervisor, batch_site, role
from supervisor_process import fresh_nap, jid_of, until

from jobscribe.protocol.shards import shard_of

SERVER = """exec /usr/bin/python3 -c '
import os, socket, signal
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((os.environ["PAI_CONTAINER_HOST_IP"], int(os.environ["PAI_CONTAINER_HOST_PORT"]))); s.listen(16)
print("serving at", *s.getsockname(), flush=True)
while True:
    peer, _ = s.accept(); peer.sendall(os.environ["PAI_TASK_INDEX"].encode()); peer.close()
'"""
#: The program that is inspected, within single quotes.
QUOTED = COMMAND.replace("'", "'\\''")
WORKER = """exec /usr/bin/python3 -c '
import json, os, socket, time
print(os.environ["SLURMD_NODENAME"], os.getcwd(), os.environ["JOBSCRIBE_ATTEMPT"], flush=True)
for place in os.environ["PAI_TASK_ROLE_ps_HOST_LIST"].split(","):
    host, port = place.split(":")
    until = time.monotonic() + 60
    while True:
        try:
            peer = socket.create_connection((host, int(port))); break
        except OSError:
            if time.monotonic() > until: raise
            time.sleep(0.05)
    print(place, peer.recv(100).decode(), flush=True); peer.close()
job = json.load(open("job.json"))
print(json.dumps([[t["role"], t["index"], t["address"], t["ports"]] for t in job["tasks"]]), flush=True)
while not os.path.exists("../../go"):
    time.sleep(0.02)
'"""
TWO = {"nodes": 2}
ADDRESS = "127.0.0.1"
#: States of tasks of which each failed one is held.
HELD = {"main/0": "held", "main/1": "held", "server/0": "running"}


@pytest.fixture(scope="module")
def observed(_cluster: tuple[Slurm, Users]) -> Iterator[SlurmSupervisor]:
    with batch_site(_cluster) as made:
        yield made


def pair(observed: SlurmSupervisor, **fields: Any) -> dict[str, Any]:
    return observed.gang(
        role("ps", SERVER, tasks=2),
        role("worker", WORKER, tasks=2, minSucceeded=2),
        **{"batch": TWO, **fields},
    )


def let_go(observed: SlurmSupervisor, run: dict[str, Any]) -> None:
    """Create the file in the run directory for which the workers wait."""
    path = observed.where(run) / "go"
    path.touch()


def test_two_servers_and_two_workers_share_one_allocation_on_two_nodes(
    observed: SlurmSupervisor,
) -> None:
    run = pair(observed)
    observed.site.submit(run)
    job = observed.running(run)
    until(
        lambda: all(observed.output(run, "worker", n).count("\n") >= 4 for n in (0, 1)),
        "both workers have met both servers",
        SECS,
    )
    told = {(t["role"], t["index"]): t for t in observed.tasks(run)}
    placed = {t["host"] for t in told.values()}
    assert len(placed) == 2 and placed <= set(observed.slurm.nodes), placed
    assert {t["batch"]["jobId"] for t in told.values()} == {job}
    assert all(t["host"] == t["address"] and t["pid"] for t in told.values()), told
    # Slurm has a step for each task, on the node that we report
    steps = [
        line.split()
        for line in observed.slurm.ask("squeue", "-hs", "-j", job, "-o", "%i %j %N").splitlines()
    ]
    assert {name: node for _, name, node in steps if "-" in name} == {
        f"{r}-{i}": t["host"] for (r, i), t in told.items()
    }, steps
    asked = observed.asked(job)
    assert (asked["NumNodes"], asked["NumTasks"], asked["MinMemoryNode"]) == ("2", "4", "80M"), (
        asked
    )
    # the log of one task, live
    follower = observed.follows(
        "job", "logs", jid_of(run), "-f", "--role", "worker", "--index", "1"
    )
    let_go(observed, run)
    over = observed.over(run, "completed")
    out, err = follower.communicate(timeout=SECS)
    assert follower.returncode == 0 and out == observed.output(run, "worker", 1), err
    counts = {
        name: (r["succeeded"], r["stopped"], r["failed"]) for name, r in over["roles"].items()
    }
    assert counts == {"ps": (0, 2, 0), "worker": (2, 0, 0)}, counts
    # all nodes of this cluster have one address; tests/unit/agent/slurm/test_batch_script.py covers
    # different ones
    servers = [f"{ADDRESS}:{told['ps', i]['ports']['http'][0]}" for i in (0, 1)]
    everybody = [[r, i, ADDRESS, t["ports"]] for (r, i), t in told.items()]
    dirs = {(t["role"], t["index"]): t["batch"]["runDir"] for t in observed.tasks(run)}
    for i in (0, 1):
        lines = observed.output(run, "worker", i).splitlines()
        node, folder, attempt = lines[0].split()
        assert (node, attempt) == (told["worker", i]["host"], "1") and folder == dirs[
            "worker", i
        ], (lines, dirs)
        assert folder.endswith(f"/worker/{i}") and lines[1:3] == [
            f"{place} {n}" for n, place in enumerate(servers)
        ], (lines, servers)
        assert json.loads(lines[3]) == everybody
        assert observed.output(run, "ps", i).split() == ["serving", "at", *servers[i].split(":")]
    for task in observed.tasks(run):
        assert (task["exit"]["stopReason"], task["state"]) == (
            ("decided", "stopped") if task["role"] == "ps" else (None, "succeeded")
        ), task
        assert task["batch"]["node"] == task["host"]
        folder = Path(task["evidence"])
        assert {"script.sh", "stdout.log", "stderr.log", "exit.json", "started"} <= {
            p.name for p in folder.iterdir()
        }
        assert folder.stat().st_uid == observed.users.uid("alice")
        assert (Path(task["batch"]["runDir"]) / ".jobscribe" / "latest").resolve() == folder
    assert observed.slurm.until_state(job).state in ("COMPLETED", "FAILED", "CANCELLED")
    assert observed.marked(f"{jid_of(run)}/{over['computeJobSerial']}/") == [], (
        "nothing of it is left"
    )
    assert (
        over["batch"]["runDir"].endswith(f"/{run['simulationId']}/command")
        and "node" not in over["batch"]
    )


def test_one_that_fails_ends_all_and_all_are_tried_again(observed: SlurmSupervisor) -> None:
    flaky = "echo attempt $JOBSCRIBE_ATTEMPT; [ $JOBSCRIBE_ATTEMPT = 2 ] || exit 3"
    run = observed.gang(
        role("main", "exec sleep 600"),
        role("flaky", flaky, minSucceeded=1),
        retry={"count": 1, "platform": 0},
        batch=TWO,
    )
    observed.site.submit(run)
    over = observed.over(run, "completed")
    assert over["attempt"] == 2
    one, two = observed.tasks(run, 1), observed.tasks(run, 2)
    assert [(t["role"], t["state"]) for t in one] == [
        ("main", "stopped"),
        ("flaky", "failed"),
    ] and one[1]["exit"]["code"] == 3, one
    assert [t["state"] for t in two] == ["stopped", "succeeded"], two
    jobs = [{t["exit"]["batch"]["jobId"] for t in tasks} for tasks in (one, two)]
    assert len(jobs[0]) == len(jobs[1]) == 1 and jobs[0] != jobs[1], (
        "an allocation for each attempt"
    )
    assert [observed.output(run, "flaky", attempt=n) for n in (1, 2)] == [
        "attempt 1\n",
        "attempt 2\n",
    ]
    assert {t["token"] for t in one} & {t["token"] for t in two} == set()
    assert observed.marked(f"{jid_of(run)}/") == []


def test_one_that_does_not_matter_may_be_ended_alone_and_a_cancel_ends_all(
    observed: SlurmSupervisor,
) -> None:
    """A task whose failure does not count ends alone when Slurm's own tool kills it. A later cancel
    of the run also ends tasks that ignore SIGTERM.
    """
    nap = fresh_nap()
    run = observed.gang(
        role("deaf", f"trap '' TERM; sleep {nap} & wait; wait; exec sleep {nap}", tasks=2),
        role("log", f"exec sleep {nap}", minFailed=None),
        batch=TWO,
        graceSecs=1.0,
    )
    observed.site.submit(run)
    job = observed.running(run)
    victim = next(t for t in observed.tasks(run) if t["role"] == "log")
    step = re.search(
        r"^step (\S+)$", (Path(victim["evidence"]) / "started").read_text(), re.MULTILINE
    )
    assert step is not None
    observed.slurm.ask("scancel", "--signal=KILL", f"{job}.{step[1]}")
    ended = until(
        lambda: (t := next(t for t in observed.tasks(run) if t["role"] == "log"))["exit"] and t,
        "its end is told",
        SECS,
    )
    assert (ended["state"], ended["exit"]["signal"]) == ("failed", 9), ended
    said = observed.site.status(run)
    assert said["state"] == "running" and said["roles"]["deaf"]["running"] == 2, said
    assert observed.slurm.state(job) == "RUNNING"
    observed.types("job", "cancel", jid_of(run))
    over = observed.over(run, "canceled", "cancel")
    assert over["roles"]["deaf"]["stopped"] == 2, over
    assert {t["exit"]["stopReason"] for t in observed.tasks(run) if t["role"] == "deaf"} == {
        "cancel"
    }
    assert observed.marked(nap) == [] and observed.slurm.until_state(job).state == "CANCELLED"


def test_the_example_of_the_page_about_roles_and_what_people_type_about_it(
    observed: SlurmSupervisor, tmp_path: Path
) -> None:
    page = (ROOT / "docs/roles.md").read_text()
    text = next(
        t for t in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if t.startswith("name: sums\n")
    )
    text = re.sub(r"( +)tasks: 2\n", r"\1tasks: 2\n\1memory: 40\n", text)
    assert text.count("memory: 40") == 2, text
    file = tmp_path / "sums.yaml"
    file.write_text(text + "driver: sbatch\nbatch: {nodes: 2}\n")
    as_alice = ("--uid", ALICE)
    dry = observed.types("job", "submit", *as_alice, "-f", str(file), "--dry-run")[0]
    assert "PAI_TASK_ROLE_server_HOST_LIST" in dry and "worker/1" in dry, dry
    jid = observed.types("job", "submit", *as_alice, "-f", str(file))[0].split()[-1]
    assert observed.types(
        "job", "shell", *as_alice, jid, "--role", "worker", "--index", "1", code=125
    )[1]
    observed.types("job", "wait", *as_alice, jid)
    assert (
        observed.types("job", "logs", *as_alice, jid, "--role", "worker", "--index", "1")[0]
        == "worker 1: 5050\n"
    )
    table = observed.types("job", "tasks", *as_alice, jid)[0]
    assert re.search(r"server/0 +stopped", table) and re.search(
        rf"worker/1 +succeeded +0 +{observed.slurm.nodes[0][:-1]}\d", table
    ), table
    assert "@" not in table, "no marks of ours"
    figures = json.loads(observed.types("job", "metrics", *as_alice, jid, "--json")[0])
    # accounting may have measured a short task or not
    assert all(
        t[name] is None or t[name] > 0
        for t in figures["tasks"]
        for name in ("memoryBytes", "peakMemoryBytes", "cpuSecs", "cpuPercent")
    ), f"not known is not 0: {figures}"


def test_a_configuration_of_openpai_runs_and_its_files_come_and_go(
    observed: SlurmSupervisor, tmp_path: Path
) -> None:
    command = "echo $PAI_JOB_NAME $PAI_TASK_INDEX > who"
    roles = [{"name": "a", "taskNumber": 2, "memoryMB": 100, "command": command}]
    config = {"jobName": "on-slurm", "image": "python:3.11", "taskRoles": roles}
    file = tmp_path / "job.json"
    file.write_text(json.dumps(config))
    submit = ("job", "submit", "--uid", ALICE, "-f", str(file), "--driver", "sbatch")
    refused = observed.types(*submit, code=125)
    assert "--no-image" in "".join(refused)
    out, err = observed.types(*submit, "--no-image")
    assert 'run without "python:3.11"' in err, err
    jid, as_alice = out.split()[-1], ("--uid", ALICE)
    observed.types("job", "wait", *as_alice, jid)
    assert "a/1/who" in observed.types("job", "files", *as_alice, jid, "a/*/who")[0]
    got = tmp_path / "got"
    observed.types("job", "get", *as_alice, jid, "a/*/who", "-o", str(got))
    whos = [(got / "a" / str(n) / "who").read_text() for n in range(2)]
    assert whos == ["on-slurm 0\n", "on-slurm 1\n"]
    (tmp_path / "notes").write_text("by hand\n")
    put = ("job", "put", *as_alice, jid, str(tmp_path / "notes"), "--to", "in")
    assert "in/notes" in observed.types(*put)[0]
    there = Path(observed.site.post("run-status", uid=ALICE, computeJid=jid)["batch"]["runDir"])
    assert (there / "in" / "notes").read_text() == "by hand\n"
    assert (there / "in" / "notes").stat().st_uid == there.stat().st_uid
    token = observed.site.post("token-create", uid=ALICE, name="files", scopes=["read", "control"])
    check_cut_copies(observed.site.url, token["secret"], ALICE, jid, tmp_path / "cut")
    # a type of GPUs is the business of Slurm
    file.write_text(
        json.dumps({**config, "jobName": "typed", "gpuType": "A100"}).replace(
            '"taskNumber"', '"gpuNumber": 1, "taskNumber"'
        )
    )
    assert "`constraint` of `batch`" in observed.types(*submit, "--no-image", code=125)[1]


def test_a_task_on_two_nodes_is_inspected_on_each(
    observed: SlurmSupervisor, tmp_path: Path
) -> None:
    """Also the processes of another step of the job. A profile of a job that ends meanwhile."""
    two = {"nodes": 2, "tasks": 2, "tasksPerNode": 1}
    command = f"srun --overlap /bin/sh -c '{QUOTED.replace('../../', './').replace('../..', '.')}'"
    run = observed.run(command, batch=two)
    observed.site.submit(run)
    observed.running(run)
    give_pyspy(observed.where(run))
    until(lambda: observed.output(run) == "begun\n" * 2, "it computes")
    asked = ("--uid", ALICE, jid_of(run))
    out, _ = observed.types("debug", "stack", *asked, "main-0", "--json")
    answer = json.loads(out)
    nodes = {p["node"] for p in answer["processes"]}
    assert nodes < set(observed.slurm.nodes) and len(nodes) == 2, nodes
    assert answer["failedNodes"] == {}
    for node in nodes:
        found = [p for p in answer["processes"] if p["node"] == node]
        assert any(p["name"] == "srun" for p in found), found
        read = [t for p in found if p["method"] == "py-spy" for t in p["threads"]]
        assert "computes" in [f["function"] for t in read for f in t["frames"]], found
    text, _ = observed.types("debug", "stack", *asked, "--node", max(nodes))
    assert f" on {max(nodes)}: " in text and min(nodes) not in text, text
    refused = observed.types("debug", "stack", *asked, "--node", "elsewhere", code=125)[1]
    assert "does not run on elsewhere" in refused, refused
    file = tmp_path / "profile"
    record = ("profile", "record", *asked, "--format", "raw", "--seconds", "2")
    observed.types(*record, "--output", str(file))
    lines = [line for line in file.read_text().splitlines() if ";computes (" in line]
    assert {line.partition(";")[0] for line in lines} == {f"node {node}" for node in nodes}
    (observed.where(run) / "go").touch()
    assert observed.over(run, "error")["exit"]["code"] == 3


def test_tasks_that_failed_are_held_one_by_one_and_can_be_entered(
    observed: SlurmSupervisor,
) -> None:
    """The other tasks of the allocation go on. The second failure decides, when it is released."""
    fails = (
        "[ $PAI_TASK_INDEX = 0 ] || until [ -e ../../go ]; do sleep 0.05; done; "
        "touch failed; exit $((3 + PAI_TASK_INDEX))"
    )
    run = observed.gang(
        role("main", fails, tasks=2, minFailed=2),
        role("server", "exec sleep 600", minFailed=None),
        batch={"nodes": 1},
        debugSecs=600.0,
    )
    observed.site.submit(run)
    asked = ("--uid", ALICE, jid_of(run))
    first = (*asked, "--role", "main", "--index", "0")

    def states() -> dict[str, str]:
        return {f"{t['role']}/{t['index']}": t["state"] for t in observed.tasks(run)}

    said = observed.until(run, lambda s: s["queueState"] == "debug_hold" and s, "it is held")
    job = said["batch"]["jobId"]
    assert "main/0 failed (exit code 3) and can be inspected, until " in said["jobStatusMessage"]
    assert said["state"] == "running" and observed.slurm.state(job) == "RUNNING"
    until(lambda: states() == HELD | {"main/1": "running"}, "the others run", SECS)
    with client_of(observed.site, ALICE) as alice:
        shell = ShellUser(alice, jid_of(run), role="main", index=0)
        shell.type("echo in $PAI_CURRENT_TASK_ROLE_NAME $SLURM_JOB_ID; sleep 600\n")
        shell.until(f"in main {job}")
        found = json.loads(observed.types("debug", "stack", *asked, "main-0", "--json")[0])
        assert "sleep" in [p["name"] for p in found["processes"]], found
        shell.use(close=True)
    line = observed.types("job", "shell", *first, "--print")[0]
    assert line.startswith(f"srun --jobid={job} --overlap"), line
    assert "held for debugging on" in observed.types("job", "shell", *first, code=125)[1]
    assert "failed" in observed.types("job", "files", *asked)[0]
    why = observed.types("job", "why", *asked)[0]
    assert "held for debugging" in why and f"its Slurm job {job}" in why, why
    observed.types("job", "release", *first)
    until(lambda: states()["main/0"] == "failed", "it has ended alone", SECS)
    assert states() == {"main/0": "failed", "main/1": "running", "server/0": "running"}
    let_go(observed, run)
    until(lambda: states() == HELD | {"main/0": "failed"}, "the next one is held", SECS)
    assert observed.slurm.state(job) == "RUNNING"
    observed.types("job", "release", *asked)
    assert observed.over(run, "error")["exit"]["code"] == 4
    assert states() == {"main/0": "failed", "main/1": "failed", "server/0": "stopped"}
    observed.slurm.until_state(job, "FAILED")  # its allocation is free


@pytest.mark.soak(
    "tests/integration/test_ide_debuggers.py, and test_mpi.py, where Pdb is on the nodes"
)
def test_an_ide_debugs_a_job_on_a_node(observed: SlurmSupervisor) -> None:
    """The bytes of debugpy pass a step of the job. The IDE attaches a second time."""
    debugpy = Path(importlib.util.find_spec("debugpy").origin).parent  # type: ignore[union-attr, arg-type]
    place = Path("/tmp") / f"debugpy-{fresh_nap()}"
    shutil.copytree(debugpy, place / "debugpy")
    program = "y = 6\nbreakpoint()\nbreakpoint()\nprint(y, flush=True)\n"
    env = {"JOBSCRIBE_DEBUG": "debugpy", "PYTHONPATH": str(place), "PROGRAM": program}
    run = observed.run(
        'exec /usr/bin/python3 -c "$PROGRAM"', env=env, batch={"nodes": 1, "memoryMb": 300}
    )
    try:
        observed.site.submit(run)
        with client_of(observed.site, ALICE) as alice:
            for value in (6, 7):
                stop = waiting_stop(alice, jid_of(run), SECS)
                assert stop["host"] in observed.slurm.nodes
                with attached_ide(observed.site, ALICE, stop["id"]) as (ide, _):
                    ide.begin()
                    frame = ide.stopped()["id"]
                    said = ide.ask("evaluate", expression="y", frameId=frame)
                    assert said["result"] == str(value)
                    ide.ask("evaluate", expression="y += 1", frameId=frame, context="repl")
                    ide.ask("disconnect")
        assert observed.over(run, "completed")["exit"]["code"] == 0
        assert observed.output(run) == "8\n"
    finally:
        shutil.rmtree(place)


def test_a_shell_where_it_makes_sense_and_a_sentence_where_it_does_not(
    observed: SlurmSupervisor,
) -> None:
    """Also from any machine: beside the task, and, while the allocation lasts, after its failure."""
    fails = "while [ ! -e ../../fail ]; do sleep 0.05; done; exit 3"
    run = observed.gang(
        role("main", "exec sleep 600"),
        role("extra", fails, minFailed=None),
        batch={"nodes": 1},
    )
    observed.site.submit(run)
    job = observed.running(run)
    task = next(t for t in observed.tasks(run) if t["role"] == "main")
    asked = ("job", "shell", "--uid", ALICE, jid_of(run), "--role", "main")
    said = observed.types(*asked, code=125)[1]
    node = task["host"]
    assert f"runs on {node} of lab" in said and "on a login node of lab" in said, said
    line = observed.types(*asked, "--print")[0]
    assert line.startswith(f"srun --jobid={job} --overlap") and line.strip() in said, (line, said)
    # the command does what it claims: it opens beside the task, on its node, in its directory
    words = [w for w in line.split() if w != "--pty"]
    out = observed.users.run(
        "alice",
        *words,
        given="hostname; pwd; echo $PAI_CONTAINER_HOST_IP; exit 0\n",
        env=observed.slurm.env,
    ).split()
    assert out == [node, str(observed.where(run) / "main" / "0"), ADDRESS], out
    with client_of(observed.site, ALICE) as alice:
        shell = ShellUser(alice, jid_of(run), role="main", rows=31, cols=101)
        shell.type("hostname; pwd; echo $PAI_CONTAINER_HOST_IP; tty\n")
        for part in (node, str(observed.where(run) / "main" / "0"), ADDRESS, "/dev/pts/"):
            shell.until(part)
        shell.type("until [ \"$(stty size)\" = '31 101' ]; do sleep 0.1; done; exit 7\n")
        assert shell.end()["code"] == 7
        check_stranger(observed.site, "Stranger", jid_of(run), f"{ALICE}-abcdefgh-command")
        (observed.where(run) / "fail").touch()
        until(
            lambda: [t["state"] for t in observed.tasks(run) if t["role"] == "extra"] == ["failed"],
            "a task has failed",
        )
        shell = ShellUser(alice, jid_of(run), role="extra")
        shell.type("pwd; exit 8\n")
        shell.until(str(observed.where(run) / "extra" / "0"))
        assert shell.end()["code"] == 8
    observed.site.cancel(run)
    observed.over(run, "canceled", "cancel")
    said = observed.types(*asked, code=125)[1]
    assert "are on lab" in said and "srun" not in said and "/bin/sh " in said, said


def test_what_a_cluster_cannot_do_is_refused_with_a_sentence(observed: SlurmSupervisor) -> None:
    until(
        lambda: observed.types("cluster", "list", "--uid", ALICE)[0].count("batch"),
        "the agent has told what there is",
        SECS,
    )
    huge = observed.refused(observed.gang(role("main", "true", cpu=5)), "resourceExceeded")
    assert "5" in huge and "4" in huge and "'batch'" in huge, huge
    many = observed.refused(observed.gang(role("main", "true", tasks=13)), "resourceExceeded")
    assert "5 tasks of a node" in many and "'batch'" in many and "has 4" in many, many
    fat = observed.refused(observed.gang(role("main", "true", memoryMb=1100)), "resourceExceeded")
    assert "1100" in fat and "1000" in fat, fat
    for bad, words in (
        ({"batch": {"nodes": 2}}, ("2 `nodes`", "1 tasks")),
        ({"batch": {"cluster": "none"}}, ("none", "lab")),
    ):
        sentence = observed.refused(observed.gang(role("main", "true"), **bad), "batchRefused")
        assert all(w in sentence for w in words), sentence
    image = observed.refused(observed.gang(role("main", "true", image="debian:12")), "badRequest")
    assert "image" in image and "containers" in image, image


def _whole(roles: dict[str, Any]) -> bool:
    return bool(roles) and all(r["running"] == r["tasks"] for r in roles.values())


@pytest.mark.skipif(os.environ.get("SOAK") != "1", reason="takes minutes: set SOAK=1")
@pytest.mark.timeout(1200)
def test_thirty_gangs_leave_nothing_behind(observed: SlurmSupervisor) -> None:
    runs = [pair(observed, batch={"nodes": 1 + n % 2}) for n in range(30)]
    for run in runs:
        observed.site.submit(run)
    held = list(runs)
    while held:  # Slurm starts them in its own order, and running gangs block the others
        begun = until(
            lambda: next((r for r in held if _whole(observed.site.status(r)["roles"])), None),
            "one of those that are left runs",
            SECS,
        )
        let_go(observed, begun)
        held.remove(begun)
    for run in runs:
        observed.over(run, "completed")
        assert observed.marked(f"{jid_of(run)}/") == []


def test_at_slurm_s_own_limit_it_is_ended_by_its_time_limit_whatever_its_tasks_exit_with(
    observed: SlurmSupervisor,
) -> None:
    run = observed.gang(
        role("a", "trap 'exit 3' TERM; while :; do sleep 0.1; done"),
        role("b", "exec sleep 600"),
        timeLimitSecs=300,
        batch=TWO,
    )
    observed.site.submit(run)
    job = observed.running(run)
    until(
        lambda: (
            "Invalid"
            not in observed.slurm.ask(
                "scontrol", "update", f"jobid={job}", "endtime=now", code=None
            )
        ),
        "its time is over",
        SECS,
        1.0,
    )
    observed.over(run, "canceled", "timeLimit")
    assert observed.slurm.until_state(job).state == "TIMEOUT"
    assert {t["exit"]["stopReason"] for t in observed.tasks(run)} <= {"timeLimit", "decided"}, (
        observed.tasks(run)
    )


def test_shards_lend_each_other_the_runs_of_a_cluster(_cluster: tuple[Slurm, Users]) -> None:
    """Two shards share a cluster with two runs; each run is an allocation with two tasks."""
    names = [f"Sharing{n}" for n in range(9)]
    amy = next(u for u in names if shard_of(u, 2) == shard_of(ALICE, 2))
    bob = next(u for u in names if shard_of(u, 2) != shard_of(ALICE, 2))
    store = f"store.url={postgres_server.shared_durable().url()}"
    lab = {"lab": {"runs": 2}}
    people = dict.fromkeys((ALICE, amy, bob), "alice")
    with batch_site(
        _cluster, store, "store.standby=true", "shards.count=2", clusters=lab, people=people
    ) as found:
        place = found.site.place / "stamps"
        place.mkdir()
        place.chmod(0o777)
        found.site.place.chmod(0o755)
        stamps = place / "stamps"

        def submitted(uid: str, gate: str) -> dict[str, Any]:
            text = f"echo + >>{stamps}; until [ -e {place}/{gate} ]; do sleep 0.05; done; echo - >>{stamps}"
            run = {**found.gang(role("main", text, tasks=2), batch={"nodes": 1}), "uid": uid}
            found.site.submit(run)
            return run

        first, second = (submitted(ALICE, f"alice{n}") for n in range(2))
        for run in (first, second):  # the second is in a part of the other shard
            found.running(run)
        own, third = submitted(bob, "bob"), submitted(amy, "amy")

        def waits(run: dict[str, Any], said: str) -> None:
            found.until(run, lambda now: said in str(now["jobStatusMessage"]), f"it says {said}")

        waits(own, "this shard may use 0 of the site's 2 slots")
        waits(third, "this shard may use 1 of the site's 2 slots")
        (place / "alice0").touch()
        found.over(first, "completed")
        found.running(own)
        assert found.site.status(third)["state"] == "pending", "what was lent came back"
        for gate in ("alice1", "amy", "bob"):
            (place / gate).touch()
        for run in (second, third, own):
            found.over(run, "completed")
        now = most = 0
        for line in stamps.read_text().splitlines():
            now += 1 if line == "+" else -1
            most = max(most, now)
        assert (most, stamps.read_text().count("+")) == (4, 8)
