"""`cluster list`, the sbatch options of `run` and `job submit`, and the parts of `driver check
sbatch` that need no cluster.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from answers import answer_calls

Fake = Any
Run = Any

PARTITION: dict[str, Any] = {
    "name": "regular",
    "default": True,
    "up": True,
    "nodes": 10,
    "maxNodes": 4,
    "minNodes": 1,
    "coresPerNode": 64,
    "memoryMbPerNode": 256_000,
    "gpusPerNode": 0,
    "timeLimitSecs": 7200.0,
    "defaultSecs": None,
    "accounts": [],
    "qos": [],
}
KNOWN: dict[str, Any] = {
    "cluster": "hpc",
    "access": "ssh",
    "state": "up",
    "detail": "",
    "at": 0.0,
    "version": "22.05.8",
    "partitions": [
        PARTITION,
        PARTITION
        | {
            "name": "old",
            "default": False,
            "up": False,
            "nodes": 2,
            "maxNodes": None,
            "timeLimitSecs": None,
        },
    ],
    "accounts": ["m1"],
    "qos": None,
    "defaults": {"partition": "regular", "modules": ["gcc", "mpi"]},
    "limits": {"nodes": 8},
    "directives": ["exclusive"],
    "runs": 1000,
    "runsPerUser": 100,
}
UNKNOWN = KNOWN | {
    "cluster": "far",
    "state": "unknown",
    "at": None,
    "version": None,
    "partitions": None,
    "accounts": None,
    "defaults": {},
    "limits": {},
    "directives": [],
}


def say(monkeypatch: pytest.MonkeyPatch, clusters: list[dict[str, Any]]) -> None:
    def answer(call: Any) -> dict[str, Any]:
        assert (call.path, call.method) == ("/api/clusters", "POST")
        return {"clusters": clusters}

    answer_calls(monkeypatch, answer)


def test_each_partition_is_a_row_and_the_rest_is_said(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, [KNOWN, UNKNOWN])
    ended = run("cluster", "list")
    heads, *rows = (
        [c.strip() for c in line.split("  ") if c.strip()] for line in ended.out.splitlines()
    )
    assert heads == [
        "CLUSTER",
        "SLURM",
        "PARTITION",
        "NODES",
        "CORES",
        "MEMORY MB",
        "GPUS",
        "TIME LIMIT",
    ]
    assert rows == [
        ["hpc", "up 22.05.8", "regular*", "4", "64", "256000", "0", "2 h 0 m"],
        ["hpc", "up 22.05.8", "old (down)", "2", "64", "256000", "0", "-"],
        ["far", "unknown", "-", "-", "-", "-", "-", "-"],
    ]
    assert ended.err.splitlines() == [
        "hpc: defaults of a run: partition regular, modules gcc mpi",
        "hpc: limits of a run: nodes 8",
        "hpc: your accounts: m1",
        "hpc: further sbatch options: exclusive",
        "hpc: reported at 1970-01-01T00:00:00Z",
    ]
    assert run("cluster", "list", "--json").json() == {
        "schema": "jobscribe.cluster.list/1",
        "items": [KNOWN, UNKNOWN],
    }


def test_where_there_are_no_clusters_it_says_what_to_do(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, [])
    ended = run("cluster", "list")
    assert (ended.code, ended.out) == (0, "") and "sbatch.clusters" in ended.err


# ---- requested resources


def asked(fake: Fake) -> dict[str, Any]:
    (job,) = fake.jobs.values()
    spec: dict[str, Any] = job["spec"]
    return spec


def test_every_wish_has_its_option(run: Run, fake: Fake) -> None:
    ended = run(
        "job",
        "submit",
        "-q",
        "--driver",
        "sbatch",
        "--cluster",
        "hpc",
        "--partition",
        "regular",
        "--account",
        "m1",
        "--qos",
        "normal",
        "--constraint",
        "cpu&amd",
        "--licenses",
        "matlab:2",
        "--nodes",
        "2",
        "--tasks",
        "8",
        "--tasks-per-node",
        "4",
        "--cores",
        "3",
        "--memory",
        "2GB",
        "--gpus",
        "1",
        "--module",
        "gcc/12",
        "--module",
        "mpi",
        "--setup",
        "umask 027",
        "--directive",
        "exclusive",
        "--directive",
        "reservation=maint",
        "--signal-secs",
        "60",
        "--",
        "true",
    )
    assert ended.code == 0, ended
    spec = asked(fake)
    assert (spec["driver"], spec["command"]) == ("sbatch", ["true"])
    assert spec["batch"] == {
        "cluster": "hpc",
        "partition": "regular",
        "account": "m1",
        "qos": "normal",
        "constraint": "cpu&amd",
        "licenses": "matlab:2",
        "nodes": 2,
        "tasks": 8,
        "tasksPerNode": 4,
        "cores": 3,
        "memoryMb": 2048,
        "gpus": 1,
        "modules": ["gcc/12", "mpi"],
        "setup": "umask 027",
        "directives": ["exclusive", "reservation=maint"],
        "signalSecs": 60,
    }


def test_without_wishes_nothing_is_said_of_a_cluster(run: Run, fake: Fake) -> None:
    assert run("job", "submit", "-q", "--", "true").code == 0
    assert "batch" not in asked(fake)


def test_the_driver_alone_asks_for_nothing(run: Run, fake: Fake) -> None:
    assert run("job", "submit", "-q", "--driver", "sbatch", "--", "true").code == 0
    assert "batch" not in asked(fake)


def test_memory_is_a_tasks_or_a_nodes(run: Run, fake: Fake) -> None:
    assert run("job", "submit", "-q", "--memory", "300", "--", "true").code == 0
    assert asked(fake)["roles"][0]["memoryMb"] == 300
    fake.jobs.clear()
    assert (
        run("job", "submit", "-q", "--memory", "300", "--driver", "sbatch", "--", "true").code == 0
    )
    assert asked(fake)["batch"]["memoryMb"] == 300 and not asked(fake).get("roles")
    fake.jobs.clear()
    assert (
        run(
            "job", "submit", "-q", "--memory", "300", "--cpu", "2", "--partition", "p", "--", "true"
        ).code
        == 0
    )
    assert asked(fake)["roles"][0]["memoryMb"] == 300 and asked(fake)["batch"]["memoryMb"] is None
    assert asked(fake)["driver"] == "sbatch"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--partition", "a b"], ["--partition", "the name of a partition, without blanks"]),
        (["--nodes", "0"], ["--nodes"]),
        (["--nodes", "3", "--tasks", "2"], ["3 `nodes` are more than 2 `tasks`"]),
        (["--memory", "x", "--qos", "a"], ["--memory", "MB as a number"]),
        (["--module", "a;b"], ["--module", "the name of a module"]),
        (["--directive", "exclusive=$(id)"], ["--directive"]),
        (["--directive", "output=x"], ["--directive", "jobscribe sets it"]),
        (["--setup", "#SBATCH -n 1"], ["--setup", "begins with #SBATCH"]),
        (["--signal-secs", "70000"], ["--signal-secs", "1 to 65,535"]),
        (["--constraint", "$(id)"], ["--constraint"]),
    ],
)
def test_a_wish_that_cannot_be_is_named_by_its_option(
    run: Run, fake: Fake, args: list[str], words: list[str]
) -> None:
    ended = run("job", "submit", *args, "--", "true")
    assert (ended.code, fake.requests) == (2, [])
    text = " ".join(ended.err.split())
    assert [w for w in words if w not in text] == [], ended


def test_a_job_file_says_them_in_its_section(run: Run, fake: Fake, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: x\nbatch: {partition: p, nodes: 2, memory: 1GB, modules: [gcc], setup: umask 027}\ncommand: a\n"
    )
    assert run("job", "submit", "-q", "-f", str(path)).code == 0
    assert asked(fake)["driver"] == "sbatch" and {
        k: v for k, v in asked(fake)["batch"].items() if v
    } == {"partition": "p", "nodes": 2, "memoryMb": 1024, "modules": ["gcc"], "setup": "umask 027"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("batch: {partitoin: p}", "batch.partitoin: unknown key; right: `partition`"),
        ("batch: 5", "batch: it is 5; right: the request to the cluster"),
        (
            "batch: {nodes: many}",
            'batch.nodes: it is the text "many"; right: a whole number, 1 to 1,000,000',
        ),
        ("batch: {modules: [1.5]}", "batch.modules[0]: it is 1.5; right: the name of a module"),
        ("batch: {ntasks: 5}", "batch.ntasks: unknown key; right: `tasks`"),
        (
            "batch: {directives: ['a b']}",
            'batch.directives[0]: it is the text "a b"; right: an option of sbatch',
        ),
        (
            "batch: {directives: [array=1-5]}",
            'batch.directives: "array" is not for directives: use `array`',
        ),
        ("batch: {setup: 5}", "batch.setup: it is 5; right: lines of sh"),
        ("batch: {nodes: 3, tasks: 1}", "batch: 3 `nodes` are more than 1 `tasks`"),
        (
            "batch: {tasks: 1}\ndriver: docker",
            'driver: it is the text "docker"; right: sbatch, the driver for `batch`',
        ),
        ("sbatch: {}", "sbatch: unknown key; right: `batch`"),
    ],
)
def test_lint_knows_the_section(run: Run, tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"name: x\ncommand: a\n{text}\n")
    ended = run("job", "lint", str(path))
    assert ended.code == 1 and f"{path}:" in ended.out and told in ended.out, ended


def test_the_page_names_every_option_and_no_other() -> None:
    import re

    from jobscribe.cli.submission.run_options import _BATCH, run_options

    def command() -> None: ...

    for option in _BATCH:
        option(command)
    params = command.__click_params__  # type: ignore[attr-defined]
    assert callable(run_options)
    page = (Path(__file__).resolve().parents[3] / "docs" / "sbatch.md").read_text(encoding="utf-8")
    said = re.findall(
        r"`(--[a-z-]+)`",
        "".join(line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `--")),
    )
    assert sorted(said) == sorted([*(p.opts[0] for p in params), "--memory"])


# ---- driver check


def site(tmp_path: Path, clusters: str) -> list[str]:
    path = tmp_path / "clusters.yml"
    path.write_text(clusters)
    path.chmod(0o600)
    return ["--set", "drivers.use=sbatch", "--set", f"sbatch.clusters={path}"]


def test_other_drivers_have_no_check(run: Run) -> None:
    for name, word in (("docker", "pool check"), ("local", "no check"), ("slurm", "sbatch")):
        ended = run("driver", "check", name)
        assert ended.code == 2 and word in ended.err


def test_it_needs_clusters_that_can_be_read(run: Run, tmp_path: Path) -> None:
    ended = run("driver", "check", "sbatch")
    assert ended.code == 125 and "sbatch.clusters" in ended.err
    ended = run("driver", "check", "sbatch", *site(tmp_path, "clusters: [{name: a, folder: x}]\n"))
    assert ended.code == 125 and "clusters.yml:1: clusters[0].folder: it is the text" in ended.err
    ended = run(
        "driver", "check", "sbatch", "--cluster", "b", *site(tmp_path, "clusters: [{name: a}]\n")
    )
    assert ended.code == 125 and "there is no cluster b; configured clusters: a" in ended.err


@pytest.mark.process
def test_a_machine_without_slurm_is_told_step_by_step(run: Run, tmp_path: Path) -> None:
    """Steps that need no Slurm pass; the others report that Slurm is missing, with advice."""
    root = Path(os.environ["JOBSCRIBE_ROOT"])
    (root / "agents.json").write_text(
        json.dumps({"agentsUrl": "ws://127.0.0.1:1/agent", "agentsCa": None})
    )
    bare = tmp_path / "bin"
    bare.mkdir()
    text = f"clusters:\n  - name: a\n    folder: {tmp_path}/scratch\n    environment: {{PATH: {bare}:/usr/bin:/bin}}\n"
    for name in ("sbatch", "squeue", "sacct", "scancel", "sinfo", "scontrol"):
        (bare / name).write_text(
            "#!/bin/sh\necho 'slurm_load: Unable to contact slurm controller' >&2\nexit 1\n"
        )
        (bare / name).chmod(0o755)
    ended = run("driver", "check", "sbatch", "--json", *site(tmp_path, text))
    assert ended.code == 1, ended
    lines = {line["what"]: line for line in ended.json()["items"]}
    assert {w: line["ok"] for w, line in lines.items()} == {
        "user": True,
        "python": True,
        "folder": True,
        "shared": lines["shared"]["ok"],
        "clock": True,
        "commands of Slurm": True,
        "sinfo": False,
        "squeue": False,
        "sacct": False,
        "sbatch": False,
        "link": False,
    }
    assert (
        "Unable to contact slurm controller" in lines["squeue"]["said"]
        and "scontrol ping" in lines["squeue"]["advice"]
    )
    assert "cannot reach the supervisor" in lines["link"]["said"]
    ended = run("driver", "check", "sbatch", *site(tmp_path, text))
    assert (
        "a: FAIL  squeue: " in ended.out
        and "a: ok    python: " in ended.out
        and "5 problems in 1 cluster" in ended.err
    )


def test_a_user_that_cannot_be_become_is_told(run: Run, tmp_path: Path) -> None:
    text = f"clusters:\n  - name: a\n    access: sudo\n    folder: {tmp_path}\n    users: {{EPRSqtUW: nobody-of-that-name}}\n"
    ended = run("driver", "check", "sbatch", *site(tmp_path, text))
    assert (
        ended.code == 1
        and "a: FAIL  become: " in ended.out
        and "no unix user named nobody-of-that-name" in ended.out
        and "sudoers" in ended.out
    )
    ended = run("driver", "check", "sbatch", "--user", "ann", *site(tmp_path, text))
    assert ended.code == 1 and "ann is not in the `users`" in ended.out
