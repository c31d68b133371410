"""`job simulate`: one task on this machine, with the drivers' environment, and its exit explained."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.submission import simulation
from jobscribe.cli.submission.job_document import FileOptions, read_document

pytestmark = pytest.mark.process
Run = Any
JOB = """name: x
env: {A: a}
roles:
  server: {tasks: 2, ports: {grpc: 2}, command: "true"}
  worker:
    tasks: 3
    env: {B: b}
    command: |
      echo "$A$B $PAI_JOB_NAME $PAI_TASK_INDEX $PAI_TASK_ROLE_server_HOST_LIST"
      pwd
      ls
      sleep 60 &
      exit 3
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the run directories of simulations below the folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def file(text: str, name: str = "job.yaml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return file


def test_a_task_runs_as_a_driver_would_start_it(run: Run, file: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--role", "worker", "--index", "2", "--dir", str(folder))
    ended = run("job", "simulate", "-f", file(JOB), *options)
    assert ended.code == 3
    words, *others = ended.out.splitlines()
    assert re.fullmatch(r"ab x 2 127\.0\.0\.1:\d+,127\.0\.0\.1:\d+", words)
    assert others == [str(folder / "worker" / "2"), "job.json"]
    job = json.loads((folder / "worker" / "2" / "job.json").read_text())
    assert len({p for t in job["tasks"] for ports in t["ports"].values() for p in ports}) == 14
    assert "exit code 3: failed (9000)" in ended.err


def test_a_signal_and_a_time_limit(run: Run, file: Any) -> None:
    path = file("name: x\ncommand: kill -SEGV $$\n")
    ended = run("job", "simulate", "-f", path, "--json")
    assert ended.code == 139
    assert (ended.json()["signal"], ended.json()["exitCode"]) == (11, None)
    path = file(
        "name: x\ngrace: 0\ntimeLimit: 0.2\ncommand: trap '' TERM; while :; do sleep 0.05; done\n"
    )
    ended = run("job", "simulate", "-f", path)
    assert ended.code == 137
    assert "time limit" in ended.err


def test_json_has_the_output_apart(run: Run, file: Any) -> None:
    ended = run("job", "simulate", "-f", file("name: x\ncommand: echo hello\n"), "--json")
    assert (ended.code, ended.json()["exitCode"], "hello\n" in ended.err) == (0, 0, True)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (JOB, ("--role", "no"), "its roles are: server, worker"),
        (JOB, ("--role", "worker", "--index", "3"), "give --index 0 to 2"),
        ("name: x\ncommand: a\n", ("--role", "a"), "leave out --role"),
        ("name: x\ncommand: a\narray: 1-3\n", ("--index", "4"), "the array has no run 4"),
        ("jobs: [{name: a, command: x}, {name: b, command: x}]\n", (), "give --job with one of: a, b"),
        ("jobs: [{name: a, command: x}]\n", ("--job", "c"), 'there is no job "c"'),
        ("name: x\n", (), "it has nothing to run"),
    ],
)  # fmt: skip
def test_what_does_not_exist(run: Run, file: Any, text: str, options: Any, said: str) -> None:
    ended = run("job", "simulate", "-f", file(text), *options)
    assert (ended.code, said in ended.err) == (125, True), ended


def test_one_run_of_an_array_and_a_missing_program(run: Run, file: Any) -> None:
    array = file("name: x\narray: 1-3\ncommand: echo $ARRAY_INDEX\n")
    assert run("job", "simulate", "-f", array, "--index", "2").out == "2\n"
    assert run("job", "simulate", "-f", file("name: x\ncommand: [no-such]\n")).code == 127


def test_what_has_no_effect_here_is_said(run: Run, file: Any) -> None:
    path = file("name: x\nroles: {m: {image: a, volumes: [v], gpu: 1, command: 'true'}}\n")
    ended = run("job", "simulate", "-f", path, "--no-image")
    assert ended.code == 0
    for said in ("not mounted here: v", "CUDA_VISIBLE_DEVICES", "the image a is not used"):
        assert said in ended.err
    path = file("name: x\ndriver: sbatch\nbatch: {nodes: 2}\ncommand: 'true'\n")
    assert len(run("job", "simulate", "-f", path, "--json").json()["notes"]) == 1


def test_configurations_of_openpai(run: Run, file: Any) -> None:
    job = {
        "jobName": "x",
        "image": "python:3.11",
        "taskRoles": [{"name": "m", "command": "cd $PAI_OUTPUT_DIR && pwd"}],
    }
    ended = run("job", "simulate", "-f", file(json.dumps(job), "a.json"), "--no-image")
    assert (ended.code, ended.out.endswith("/Output/x\n")) == (0, True)


def test_a_container_is_isolated_as_by_the_driver(file: Any, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    job = {
        "jobName": "x",
        "image": "python:3.11",
        "dataDir": str(data),
        "codeDir": f"file://{tmp_path}/missing",
        "outputDir": str(out),
        "taskRoles": [{"name": "m", "cpuNumber": 2, "memoryMB": 300, "shmMB": 70, "command": "x"}],
    }
    document, _, _ = read_document(file(json.dumps(job), "a.json"), FileOptions())
    assert document is not None
    task = simulation.prepare(document, None, None, None, str(tmp_path / "r"), containers=True)
    simulation._make_outputs(task)
    words = simulation.docker_words(task, "name", f"{task.directory}/.jobscribe")
    line = " ".join(words)
    assert f"source={data},target={data},readonly" in line and "missing" not in line
    assert f"source={out},target={out} " in line
    for option in (
        "--cap-drop=ALL", "--memory 314572800", "--memory-swap 314572800", "--cpus 2",
        "--shm-size 73400320", "--network none", "--read-only", f"source={tmp_path}/r,target={tmp_path}/r",
    ):  # fmt: skip
        assert option in line
    assert "-d" not in words
    assert words[-2:] == ["python:3.11", f"{task.directory}/.jobscribe/wrapper.sh"]
