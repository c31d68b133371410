"""The command line that a page shows for a job submits the same run."""

import shlex
from typing import Any

import click
import msgspec
import pytest

from jobscribe.cli.submission.run_options import run_options, spec_options
from jobscribe.client.api.run_specs import command_spec
from jobscribe.protocol.jobs.roles import Retry
from jobscribe.schema.jobs.description import build_runs, parse_description
from jobscribe.schema.jobs.equivalents import command_line, python_program

UID, SID = "user0001", "sim00001"
NO_RETRIES = {"count": 0, "platform": 0}


def parsed(line: str) -> tuple[dict[str, Any], list[str]]:
    """Return what `job submit` makes of its words, and the words of the command."""
    found: dict[str, Any] = {}

    @click.command(context_settings={"allow_interspersed_args": False})
    @run_options
    @click.option("--array")
    @click.argument("words", nargs=-1)
    def submit(words: tuple[str, ...], array: str | None, **given: Any) -> None:
        found.update(spec_options(**given), words=list(words), array=array)

    program, job, verb, *words = shlex.split(line)
    assert (program, job, verb) == ("jobscribe", "job", "submit")
    submit.main(words, standalone_mode=False)
    return found, found.pop("words")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"command": ["printf", "%s\n", "it's -- one", "-x"]},
        {"command": "echo 'a b' \"$HOME\"\nexit 3", "env": {"A": "1 2", "B": "x=y\nz"}},
        {"queue": "team", "priority": -3, "driver": "local", "kind": "parallel"},
        {"timeLimit": "90m", "queueLimit": 30, "grace": "5s"},
        {"array": "0-99%10"},
        {"driver": "sbatch", "batch": {"cluster": "alpha", "partition": "regular", "nodes": 2,
         "tasks": 8, "cores": 2, "memory": "64GB", "gpus": 1, "modules": ["gcc/12", "mpi"],
         "setup": "export A=1"}},
        {"roles": {"main": {"cpu": 2, "memory": "2GB", "gpu": 1}}},
        {"roles": {"main": {"image": "python:3.11", "shm": 128, "memory": 256, "volumes": ["a", "b"]}},
         "driver": "docker"},
    ],
)  # fmt: skip
def test_the_options_describe_the_same_run(more: dict[str, Any]) -> None:
    data = {"name": "x", "retry": NO_RETRIES, **more}
    if "roles" in data:
        data["roles"]["main"]["command"] = "echo $X"
    else:
        data.setdefault("command", "true")
    (job,) = build_runs(parse_description(data), UID, lambda: SID)
    line = command_line(data, "job.json")
    fields, words = parsed(line)
    array = fields.pop("array")
    assert (array is None) == (job.job.indices is None)
    spec = command_spec(UID, SID, words, fields)
    assert spec.retry is None and job.job.spec.retry == Retry(count=0, platform=0)
    wanted = msgspec.structs.replace(job.job.spec, uid=UID, simulation_id=SID, retry=None)
    assert spec == wanted
    # the program has the same description
    scope: dict[str, Any] = {}
    exec(python_program(data).partition("with ")[0], scope)
    assert scope["job"] == data


@pytest.mark.parametrize(
    "data",
    [
        {"name": "x", "command": "true"},
        {"name": "x", "command": "true", "retry": {"count": 2}},
        {"name": "x", "command": "true", "retry": NO_RETRIES, "unique": True},
        {"name": "x", "retry": NO_RETRIES, "roles": {"main": {"command": "true"}}},
        {"name": "x", "retry": NO_RETRIES, "roles": {"a": {"command": "b"}, "c": {"command": "d"}}},
        {"jobs": [{"name": "x", "command": "true"}]},
    ],
)
def test_other_keys_need_a_file(data: dict[str, Any]) -> None:
    assert command_line(data, "job.json") == "jobscribe job submit -f job.json"
