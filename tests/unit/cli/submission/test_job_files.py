"""Job files on the command line: `job submit -f`, its `--dry-run`, and `job lint`."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.submission.job_document import FileOptions, read_document
from jobscribe.schema.jobs.keys import BatchKeys, JobKeys, RoleKeys
from jobscribe.schema.structs import field_names

Fake = Any
Run = Any
EXAMPLES = Path(__file__).resolve().parents[4] / "etc" / "examples" / "jobs"

GOOD = """jobs:
  - name: prepare
    command: |
      echo a
      echo 'b  c'
  - name: many
    array: 1-5%2
    after: [prepare]
    command: [echo, hello]
"""
BAD = (
    "name: x\nroles:\n  worker:\n    tasks: 2\n    minFaild: 1\n    minFailed: 3\n    command: a\n"
)
DOUBTFUL = "name: x\nroles:\n  worker:\n    tasks: 9\n    minSucceeded: 1\n    command: a\n"


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def file(text: str, name: str = "job.yaml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return file


def test_all_runs_are_submitted_in_order_and_their_ids_are_data(
    run: Run, fake: Fake, file: Any
) -> None:
    ended = run("job", "submit", "-f", file(GOOD))
    assert ended.code == 0
    assert ended.out.split() == list(fake.jobs)
    assert [jid.rsplit("-", 1)[1] for jid in fake.jobs] == [
        "command",
        *(f"command_{n}" for n in range(1, 6)),
    ]
    first, second = list(fake.jobs.values())[:2]
    assert first["spec"]["command"] == ["/bin/bash", "-c", "echo a\necho 'b  c'\n"]
    assert [a["computeJid"] for a in second["spec"]["after"]] == [next(iter(fake.jobs))]
    assert "submitted many: " in ended.err
    assert "and 2 more" in ended.err


def test_quiet_says_the_ids_and_nothing_else(run: Run, fake: Fake, file: Any) -> None:
    ended = run("job", "submit", "-q", "-f", file(DOUBTFUL))
    assert (ended.code, ended.err, ended.out.split()) == (0, "", list(fake.jobs))


def test_standard_input_and_json(run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"name": "x", /* c */ "command": "true",}'))
    )
    ended = run("--json", "job", "submit", "-f", "-")
    said = ended.json()
    assert said["schema"] == "jobscribe.job.submit-file/1"
    assert [(i["name"], [r["computeJid"] for r in i["runs"]]) for i in said["items"]] == [
        ("x", list(fake.jobs))
    ]


def test_what_is_wrong_is_told_with_file_and_line_and_nothing_is_sent(
    run: Run, fake: Fake, file: Any
) -> None:
    path = file(BAD)
    ended = run("job", "submit", "-f", path)
    assert (ended.code, ended.out, fake.requests) == (125, "", [])
    assert f"{path}:5: roles.worker.minFaild: unknown key; right: `minFailed`" in ended.err
    assert f"{path}:6: roles.worker.minFailed: 3 is more than the 2 tasks" in ended.err
    assert "nothing was submitted: 2 problems" in ended.err


def test_what_is_wrong_in_json(run: Run, file: Any) -> None:
    ended = run("job", "submit", "--json", "-f", file(BAD))
    said = json.loads(ended.err)
    assert (ended.code, said["code"], [(p["line"], p["path"]) for p in said["problems"]]) == (
        125,
        "badRequest",
        [(5, "roles.worker.minFaild"), (6, "roles.worker.minFailed")],
    )


def test_what_the_supervisor_finds_wrong_has_its_lines_too(run: Run, fake: Fake, file: Any) -> None:
    problems = [
        {"path": "jobs[1].driver", "problem": "unknown driver 'slurm'", "right": "one of local"}
    ]
    body = {
        "state": "error",
        "code": "badRequest",
        "error": "it does not fit",
        "advice": "",
        "retry": False,
        "problems": problems,
    }
    fake.failures.append(("run-description", (400, json.dumps(body).encode())))
    path = file(GOOD + "    driver: slurm\n")
    ended = run("job", "submit", "-f", path)
    assert (ended.code, fake.jobs) == (125, {})
    assert f"{path}:10: jobs[1].driver: unknown driver 'slurm'; right: one of local" in ended.err


def test_warnings_are_said_and_the_job_is_submitted(run: Run, fake: Fake, file: Any) -> None:
    path = file(DOUBTFUL)
    ended = run("job", "submit", "-f", path)
    assert (ended.code, len(fake.jobs)) == (0, 1)
    assert f"{path}:5: warning: roles.worker.minSucceeded:" in ended.err


def test_a_run_that_is_refused_is_named(run: Run, fake: Fake, file: Any) -> None:
    ended = run("job", "submit", "-f", file(GOOD.replace("hello", "refuse-me")))
    assert (ended.code, len(ended.out.split())) == (125, 1)
    assert "many: this one not" in ended.err


def test_a_request_that_is_sent_again_makes_no_second_jobs(run: Run, fake: Fake, file: Any) -> None:
    fake.cut("run-description")
    fake.fail("run-description", "storageUnavailable")
    assert run("job", "submit", "-q", "-f", file(GOOD)).code == 0
    assert len(fake.jobs) == 6
    assert len({body["reqId"] for path, body in fake.requests if path == "run-description"}) == 1


@pytest.mark.parametrize(
    "args",
    [
        ["-f", "x.yaml", "--", "date"],
        ["-f", "x.yaml", "--from", "-"],
        ["--dry-run", "--", "date"],
        ["-f", "x.yaml", "--time-limit", "5"],
        ["-f", "x.yaml", "--env", "A=b"],
        ["-f", "x.yaml", "--array", "1-2"],
    ],
)
def test_what_does_not_go_together(run: Run, fake: Fake, args: list[str]) -> None:
    assert run("job", "submit", *args).code == 2
    assert fake.requests == []


def test_a_file_that_is_not_there(run: Run) -> None:
    ended = run("job", "submit", "-f", "/nowhere/job.yaml")
    assert ended.code == 125
    assert "/nowhere/job.yaml: it cannot be read: No such file" in ended.err


# ---- dry run


def test_a_dry_run_shows_each_task_with_its_command_and_environment(run: Run, fake: Fake) -> None:
    ended = run("job", "submit", "--dry-run", "-f", str(EXAMPLES / "training.yaml"))
    assert (ended.code, fake.jobs) == (0, {})
    assert {path for path, _ in fake.requests} == {"run-plan"}
    for line in (
        "job training (4 tasks)",
        "  role worker: 2 x 1 CPU, 256 MB",
        "      STEPS=100",
        "    PAI_DATA_DIR=/usr/share",
        "    PAI_TASK_ROLE_ps_HOST_LIST=10.0.0.1:30000,10.0.0.1:30002",
        "    task worker 1 on node1, in /run/worker/1",
        "        PAI_TASK_INDEX=1",
        "  The attempt succeeds if each of 2 tasks of role worker succeeded; then the other tasks are stopped.",
        "      exec python3 - <<'PROGRAM'",
    ):
        assert line in ended.out.splitlines(), line


def test_a_dry_run_of_several_names_who_waits_for_whom(run: Run, fake: Fake, file: Any) -> None:
    ended = run("job", "submit", "--dry-run", "-f", file(GOOD))
    assert ended.code == 0
    assert "  It starts after prepare has completed." in ended.out.splitlines()
    assert "job many (1 task, an array of 5 runs; this is the first)" in ended.out.splitlines()
    assert "    command: echo hello" in ended.out.splitlines()
    items = run("job", "submit", "--json", "--dry-run", "-f", file(GOOD)).json()["items"]
    assert [(i["name"], i["runs"], i["after"], len(i["plan"]["tasks"])) for i in items] == [
        ("prepare", 1, [], 1),
        ("many", 5, [{"job": "prepare", "on": "ok"}], 1),
    ]
    assert items[1]["plan"]["environment"]["ARRAY_INDEX"] == "1"


CONTAINERS = """name: x
driver: docker
image: python:3.11
roles:
  ps: {command: a}
  worker: {command: b, tasks: 2, image: "registry.example.org:5000/team/solver:2", memory: 2GB, shm: 1GB, volumes: [data, /users/x]}
"""


def test_a_dry_run_shows_image_limits_and_volumes_of_each_role(
    run: Run, fake: Fake, file: Any
) -> None:
    lines = run("job", "submit", "--dry-run", "-f", file(CONTAINERS)).out.splitlines()
    assert "  role ps: 1 x 1 CPU, 100 MB, 64 MB shm, image python:3.11" in lines
    worker = "  role worker: 2 x 1 CPU, 2048 MB, 1024 MB shm, image registry.example.org:5000/team/solver:2, volumes data /users/x"
    assert worker in lines
    roles = run("job", "submit", "--json", "--dry-run", "-f", file(CONTAINERS)).json()["items"][0][
        "plan"
    ]["roles"]
    assert [(r["image"], r["volumes"]) for r in roles] == [
        ("python:3.11", []),
        ("registry.example.org:5000/team/solver:2", ["data", "/users/x"]),
    ]


def test_a_volume_that_the_supervisor_refuses_is_told_with_its_line(
    run: Run, fake: Fake, file: Any
) -> None:
    body = {
        "state": "error",
        "code": "volumeRefused",
        "error": "there is no volume of this name",
        "advice": "name another",
        "retry": False,
    }
    fake.failures.append(("run-plan", (400, json.dumps(body).encode())))
    path = file(CONTAINERS)
    ended = run("job", "submit", "--dry-run", "-f", path)
    assert ended.code == 125
    assert f"{path}:4: roles: there is no volume of this name; right: name another" in ended.err


def test_images_and_volumes_that_cannot_be_are_told_with_their_lines(alone: Run, file: Any) -> None:
    path = file(
        CONTAINERS.replace("python:3.11", "Python")
        .replace("[data, /users/x]", "[../data]")
        .replace("solver:2", "solver:")
    )
    ended = alone("job", "lint", path)
    assert ended.code == 1
    assert [line.split(": ")[:2] for line in ended.out.splitlines()[:3]] == [
        [f"{path}:3", "error"],
        [f"{path}:6", "error"],
        [f"{path}:6", "error"],
    ]
    for word in (
        "image: ",
        "capital letters",
        "roles.worker.image: ",
        "not a tag",
        "roles.worker.volumes[0]: it is a relative path",
    ):
        assert word in ended.out


def test_a_dry_run_of_what_no_machine_has(run: Run, fake: Fake, file: Any) -> None:
    path = file(
        "jobs:\n- name: a\n  command: x\n- name: b\n  roles:\n    w:\n      cpu: 200\n      command: x\n"
    )
    ended = run("job", "submit", "--dry-run", "-f", path)
    assert (ended.code, ended.out) == (125, "")
    assert f"{path}:5: jobs[1].roles: one of its roles asks for too many cores" in ended.err


# ---- lint


@pytest.fixture
def alone(run: Run, fake: Fake) -> Run:
    """Run a command line without a supervisor."""
    fake.stop()
    (fake.root / "client.json").unlink()
    return run


@pytest.mark.parametrize("name", ["training.yaml", "pipeline.yaml", "sweep.json"])
def test_the_examples_are_right(alone: Run, name: str) -> None:
    assert {p.name for p in EXAMPLES.iterdir()} == {"training.yaml", "pipeline.yaml", "sweep.json"}
    ended = alone("job", "lint", str(EXAMPLES / name))
    assert (ended.code, ended.out) == (0, "")


def test_lint_tells_all_of_all_files(alone: Run, file: Any) -> None:
    bad, doubtful, broken = (
        file(BAD),
        file(DOUBTFUL, "doubtful.yaml"),
        file('{"name": "x",\n"command" 3}', "broken.json"),
    )
    ended = alone("job", "lint", bad, doubtful, broken, file(GOOD, "good.yaml"))
    assert ended.code == 1
    assert [line.split(" ")[0:2] for line in ended.out.splitlines()] == [
        [f"{bad}:5:", "error:"],
        [f"{bad}:6:", "error:"],
        [f"{doubtful}:5:", "warning:"],
        [f"{broken}:2:", "error:"],
    ]
    assert "3 problems in 4 files" in ended.err
    assert alone("job", "lint", doubtful).code == 0


def test_lint_in_json(alone: Run, file: Any) -> None:
    bad = file(BAD)
    ended = alone("job", "lint", "--json", bad, file(DOUBTFUL, "doubtful.yaml"))
    said = ended.json()
    assert (
        ended.code,
        said["schema"],
        [(i["file"] == bad, len(i["problems"]), len(i["warnings"])) for i in said["items"]],
    ) == (
        1,
        "jobscribe.job.lint/1",
        [(True, 2, 0), (False, 0, 1)],
    )


def test_control_characters_of_a_file_do_not_reach_the_terminal(alone: Run, file: Any) -> None:
    ended = alone(
        "job",
        "lint",
        file('name: x\ncommand: a\n"\\e[2J\\u202e": 1\n'),
        file("a: \x1b[2J\n", "c.yaml"),
    )
    assert ended.code == 1
    assert "\x1b" not in ended.out + ended.err
    assert "\u202e" not in ended.out + ended.err


# ---- the page


PAGE = (EXAMPLES.parents[2] / "docs" / "jobs.md").read_text()


def test_the_page_names_every_key_and_no_other() -> None:
    def keys(heading: str) -> set[str]:
        rows = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
        return {
            key
            for row in rows
            if row.startswith("| `")
            for key in re.findall("`([a-zA-Z]+)`", row.split("|")[1])
        }

    assert keys("A job") == set(field_names(JobKeys))
    assert keys("A role") == set(field_names(RoleKeys))
    assert keys("On a cluster") == set(field_names(BatchKeys))


def test_the_example_on_the_page_is_right(alone: Run, file: Any) -> None:
    blocks = re.findall("```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        assert (ended := alone("job", "lint", file(block))).code == 0, ended
        assert ended.out == ""


def test_a_key_that_is_there_twice_hides_no_other_problem(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "name: bad\nretries: {count: 1}\nroles:\n  worker: {tasks: 2, command: x, minFailed: 5}\n  worker: {command: y}\n"
    )
    _, problems, _ = read_document(str(path), FileOptions())
    assert [(p.line, p.path) for p in problems] == [
        (2, "retries"),
        (4, "roles.worker.minFailed"),
        (5, "roles.worker"),
    ]
