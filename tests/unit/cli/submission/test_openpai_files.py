"""Configurations of OpenPAI on the command line: `job lint`, `job submit -f` and its `--dry-run`."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.submission import job_document
from jobscribe.schema.jobs.description import named_simulation

Fake = Any
Run = Any
EXAMPLES = Path(__file__).resolve().parents[4] / "etc" / "examples" / "openpai"


@pytest.fixture
def example(tmp_path: Path) -> Any:
    def example(name: str = "sums.json", **changes: str) -> str:
        text = (EXAMPLES / name).read_text().replace("/srv", str(tmp_path))
        for old, new in changes.items():
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text)
        for folder in ("data", "code"):
            (tmp_path / "sums" / folder).mkdir(parents=True, exist_ok=True)
        return str(path)

    return example


@pytest.mark.parametrize("name", ["sums.json", "sums.yaml", "ring.json"])
def test_the_examples_are_right(run: Run, example: Any, name: str) -> None:
    ended = run("job", "lint", example(name))
    assert (ended.code, ended.out) == (0, "")


def test_lint_names_line_key_and_right_form(run: Run, example: Any, tmp_path: Path) -> None:
    path = example(cpuNumber="cpus", python="Python")
    ended = run("job", "lint", path)
    assert ended.code == 1
    assert ended.out.splitlines() == [
        f'{path}:4: error: image: "Python" has capital letters, which image names cannot have; right: '
        "[registry[:port]/]name[:tag][@sha256:...], such as python:3.11 or registry.example.org:5000/team/solver:2",
        f"{path}:11: error: taskRoles[0].cpus: unknown key; right: `cpuNumber`",
        f"{path}:19: error: taskRoles[1].cpus: unknown key; right: `cpuNumber`",
    ]


def test_the_supervisor_gets_a_description_of_ours(run: Run, fake: Fake, example: Any) -> None:
    ended = run("job", "submit", "-q", "-f", example("sums.json"), "--driver", "docker")
    assert ended.code == 0, ended
    (body,) = (body for path, body in fake.requests if path == "run-description")
    assert body["description"]["roles"]["worker"]["minSucceeded"] == 2
    assert (body["description"]["unique"], body["description"]["driver"]) == (True, "docker")
    assert not {"jobName", "taskRoles"} & set(body["description"])
    (jid,) = ended.out.split()
    assert jid.split("-")[1] == named_simulation(jid.split("-")[0], "sums")


def test_a_problem_that_the_supervisor_finds_has_its_line(
    run: Run, fake: Fake, example: Any
) -> None:
    problem = (
        "role 'worker': it cannot have `image`: the default driver runs tasks without containers"
    )
    body = {
        "state": "error",
        "code": "badRequest",
        "error": "the description is not valid",
        "problems": [{"path": "roles.worker", "problem": problem, "right": "x"}],
    }
    fake.failures.append(("run-description", (400, json.dumps(body).encode())))
    path = example()
    ended = run("job", "submit", "-f", path)
    assert ended.code == 125
    assert (
        f"{path}:16: taskRoles[1]: {problem}; right: `--driver docker`, or `--no-image`"
        in ended.err
    )
    assert not fake.jobs


def test_a_queue_that_the_supervisor_refuses_has_its_line(
    run: Run, fake: Fake, example: Any
) -> None:
    said = "user ann00001 has no queue 'mars'; choose one of: default"
    body = {"state": "error", "code": "queueRefused", "error": said, "advice": "choose another one"}
    fake.failures.append(("run-description", (400, json.dumps(body).encode())))
    path = example(**{'"retryCount": 0': '"virtualCluster": "mars"'})
    ended = run("job", "submit", "-f", path, "--no-image")
    assert f"{path}:28: virtualCluster: {said}" in ended.err, ended.err


def test_a_dry_run_finds_out_that_the_name_is_taken(run: Run, fake: Fake, example: Any) -> None:
    path = example()
    assert run("job", "submit", "-f", path, "--dry-run").code == 0
    assert not fake.jobs
    assert run("job", "submit", "-f", path).code == 0
    ended = run("job", "submit", "-f", path, "--dry-run")
    assert ended.code == 125
    assert f"{path}:3: jobName: you have a job with this name already" in ended.err


@pytest.mark.parametrize("more", [("--driver", "docker"), ("--no-image",)])
def test_other_files_have_no_options(run: Run, tmp_path: Path, more: tuple[str, ...]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("name: x\ncommand: y\n")
    ended = run("job", "submit", "-f", str(path), *more)
    assert ended.code == 2
    assert f"{more[0]} with -f is for configurations of OpenPAI" in ended.err


def test_no_image_is_for_files(run: Run) -> None:
    assert run("job", "submit", "--no-image", "--", "true").code == 2


def test_folders_that_this_machine_has_are_checked(
    run: Run, example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = example()
    (tmp_path / "sums" / "code" / "large").write_bytes(b"x" * 5000)
    (tmp_path / "sums" / "data").rmdir()
    monkeypatch.setattr(job_document, "MAX_CODE", 4999)
    ended = run("job", "lint", path)
    assert ended.code == 1
    folder = tmp_path / "sums"
    assert [line.partition("; right")[0] for line in ended.out.splitlines()] == [
        f"{path}:6: error: codeDir: {folder}/code has 0 MB or more",
        f"{path}:5: warning: dataDir: {folder}/data does not exist on this machine",
    ]
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("code"))
    assert f"codeDir: you cannot read {folder}/code" in run("job", "lint", path).out


def test_a_secret_file_is_its_users_own(run: Run, tmp_path: Path) -> None:
    secret = tmp_path / "pw"
    secret.write_text("hunter2")
    secret.chmod(0o644)
    job = {
        "protocolVersion": 2,
        "name": "x",
        "secrets": {"pw": {"file": str(secret)}},
        "prerequisites": [{"name": "i", "type": "dockerimage", "uri": "i"}],
        "taskRoles": {
            "main": {
                "dockerImage": "i",
                "resourcePerInstance": {"cpu": 1, "memoryMB": 100},
                "commands": ["login <% $secrets.pw %>"],
            }
        },
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job))
    ended = run("job", "lint", str(path))
    assert (ended.code, f"chmod 600 {secret}" in ended.out) == (1, True)
    secret.chmod(0o600)
    assert run("job", "lint", str(path)).code == 0
    ended = run("job", "submit", "-f", str(path))
    assert (ended.code, "hunter2" in ended.out + ended.err) == (0, False)
