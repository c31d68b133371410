"""Definitions of stored runs: job files that describe the same run again, without its secrets."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import jobscribe
from jobscribe.cli.submission.job_text import job_text
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.jobs.registry_login import LoginRef
from jobscribe.protocol.jobs.roles import TaskRole
from jobscribe.schema.fields import InvalidDocument
from jobscribe.schema.jobs.description import Description, build_runs, parse_description
from jobscribe.schema.jobs.job_file import LOGIN, changed, define, parse_definition
from jobscribe.schema.text import reader

UID, SID = "qsOpzxM9", "Wd3xLq8B"
JID = f"{UID}-{SID}-command"
EXAMPLES = sorted((Path(jobscribe.__file__).parent / "etc/examples/jobs").glob("*.y*ml"))
FULL = {
    "name": "full",
    "kind": "sequential",
    "driver": "docker",
    "env": {"A": "1"},
    "retry": {"count": 2, "conflictSecs": 5},
    "debug": "1h",
    "ssh": True,
    "timeLimit": 90.5,
    "queueLimit": "1d",
    "grace": 7,
    "profile": "cpu=py-spy",
    "core": "2GB",
    "queue": "long",
    "priority": -3,
    "after": [{"job": f"{UID}-Ab3xLq8B-command", "on": "any"}],
    "dataDir": "/data",
    "virtualCluster": "vc",
    "roles": {
        "a": {
            "tasks": 3, "command": "echo $A\nexit 3\n", "cpu": 2, "memory": "2GB", "shm": 70,
            "gpu": 1, "gpuType": "A100", "ports": {"x": 2, "y": {"begin": 5000, "count": 2}}, "image": "i:1",
            "volumes": ["v"], "minFailed": None, "minSucceeded": 3, "env": {"B": "2"},
        },
        "b": {"command": ["true", "x y"]},
    },
}  # fmt: skip
BATCH = {
    "name": "cluster",
    "command": "srun x",
    "batch": {"nodes": 2, "memory": "4GB", "modules": ["gcc/12"], "setup": "a=1\n"},
}


def spec(**fields: Any) -> RunSpec:
    return msgspec.convert(
        {"uid": UID, "simulationId": SID, **({"command": ["true"]} | fields)}, RunSpec
    )


def runs(data: object) -> list[RunSpec]:
    return [s for job in build_runs(parse_description(data), UID, lambda: SID) for s in job.specs]


@pytest.mark.parametrize(
    "data",
    [
        FULL,
        BATCH,
        {"name": "array", "command": ["a", "b"], "array": "3-5%2"},
        *(reader.read(str(p)).data for p in EXAMPLES),
    ],
    ids=lambda data: data.get("name", "several"),
)
def test_a_definition_describes_the_same_run(data: Any) -> None:
    for stored in runs(data):
        definition = define(stored, origin=False)
        (again,) = runs(definition.data)
        # a single run of an array keeps its variables, but it is no array
        assert again == msgspec.structs.replace(
            stored, sim_name=again.sim_name, compute_model="command", at_once=None
        )
        assert (definition.withheld, definition.app) == ((), False)


def test_every_field_of_a_run_is_defined_or_left_out_on_purpose() -> None:
    defined = {name for data in (FULL, BATCH) for s in runs(data) for name in _given(s)}
    left_out = {
        "uid", "simulation_id", "simulation_type", "compute_model", "data", "wrap",
        "compute_job_hash", "at_once", "active_plan", "config", "registry_login", "cloned_from",
    }  # fmt: skip
    assert set(RunSpec.__struct_fields__) == defined | left_out
    role, default = runs(FULL)[0].roles[0], TaskRole(name="", command=())
    of_role = TaskRole.__struct_fields__
    assert [f for f in of_role if getattr(role, f) == getattr(default, f)] == []


def _given(run: RunSpec) -> set[str]:
    default = RunSpec(uid="", simulation_id="", job_run_mode="parallel", grace_secs=-1.0)
    found = {f for f in RunSpec.__struct_fields__ if getattr(run, f) != getattr(default, f)}
    return found - {"uid", "simulation_id"}


def test_a_run_without_retries_and_an_unusual_name() -> None:
    definition = define(spec(simName="a b/c: d"))
    assert definition.data == {
        "name": "a-b-c-d",
        "command": ["true"],
        "retry": {"platform": 0},
        "clonedFrom": JID,
    }
    (again,) = runs(definition.data)
    assert again.cloned_from == JID
    assert define(spec()).data["name"] == f"job-{SID}"


def test_parts_that_a_definition_leaves_out_are_named() -> None:
    run = spec(wrap=["strace"], coreBytes=5, config="x", env={"JOBSCRIBE_DEBUG": "breakpoint"})
    definition = define(run)
    words = ("--debug", "strace", "OpenPAI")
    assert len(definition.notes) == 3
    assert all(w in note for w, note in zip(words, definition.notes, strict=True))
    assert "env" not in definition.data


def test_secrets_are_not_copied_and_each_is_a_problem_with_its_place() -> None:
    run = spec(
        command=[
            "/bin/bash",
            "-c",
            "login --password hunter22\nexport API_KEY='k3y'\nrun hunter22",
        ],
        env={"MY_SECRET": "s3cr3t"},
    )
    run = msgspec.structs.replace(run, registry_login=LoginRef(id="x" * 32, registries=("r",)))
    definition = define(run)
    text = repr(definition.data)
    assert not any(s in text for s in ("hunter22", "k3y", "s3cr3t"))
    assert [w.name for w in definition.withheld] == ["password", "API_KEY", "MY_SECRET"]
    with pytest.raises(InvalidDocument) as e:
        parse_definition(definition.data, app=False)
    missing = [(p.path, p.problem) for p in e.value.problems if "not copied" in p.problem]
    assert [path for path, _ in missing] == [
        "command",
        "command",
        "env.MY_SECRET",
        "registryAuth.file",
    ]
    given = changed(
        definition.data,
        {"command": "login --password-file /f", "env.MY_SECRET": None, "registryAuth": None},
    )
    assert isinstance(parse_definition(given, app=False), Description)
    assert definition.data["registryAuth"] == {"file": LOGIN}


def test_changes_have_paths() -> None:
    data = changed(
        FULL, {"env.A": "2", "retry.count": 0, "roles.b.command": None, "after.0.on": "ok"}
    )
    assert (data["env"], data["retry"]["count"]) == ({"A": "2"}, 0)
    assert data["roles"]["b"] == {} and data["after"][0]["on"] == "ok"
    assert FULL["env"] == {"A": "1"}
    for path in ("name.x", "after.7", ""):
        with pytest.raises(Refusal, match="nothing at"):
            changed(FULL, {path: 1})


def test_an_app_run_is_defined_by_its_data() -> None:
    stored = spec(
        command=[],
        simulationType="myapp",
        computeModel="heightWeightReport",
        data={"models": {"a": {"password": "hunter22", "x": 1}}},
        env={"JOBSCRIBE_APP_VERSION": "1"},
        timeLimitSecs=5,
    )
    definition = define(stored)
    assert definition.app and "hunter22" not in repr(definition.data)
    data = changed(definition.data, {"data.models.a.password": "x"})
    again = parse_definition(data, app=True)
    assert isinstance(again, RunSpec)
    assert (again.data, again.time_limit_secs) == ({"models": {"a": {"password": "x", "x": 1}}}, 5)
    assert (again.env, again.cloned_from) == (stored.env, f"{UID}-{SID}-heightWeightReport")
    with pytest.raises(InvalidDocument) as e:
        parse_definition({**data, "comand": 1, "timeLimitSecs": "x"}, app=True)
    assert [p.path for p in e.value.problems] == ["comand"]
    with pytest.raises(InvalidDocument):
        parse_definition([], app=True)


@pytest.mark.parametrize(
    "value",
    [
        "", " ", "1e3", "010", "yes", "~", "null", "1:30", "a: b", "- x", "# c", "x #y", "@a", "'", '"',
        "a\n", "a\n\n", "\n", " a\nb", "a \nb  ", "\ta\n", "é\u2028x", "\x07", "\x85", "😀", "a\r\nb", "*a", "&b",
        "!t", "{a}", "[b]", "%c", "a\\b", "x" * 5000, "2026-01-01", "trailing ", "key: |\n  x", "---\n", "...\n",
    ],
)  # fmt: skip
def test_the_text_of_a_job_file_is_read_as_the_same_data(value: str) -> None:
    data = {"name": "x", "command": value, "list": [value, 1, 1.5, None, True], "env": {"A": value}}
    assert reader.parse(job_text(data).encode(), "x.yaml").data == data


@pytest.mark.parametrize(
    "text",
    [
        "DB_PASS={} x", "export MYSQL_PWD={}", "x --access-key={}", 'x "{{\\"password\\": \\"{}\\"}}"',
        "x --password \\\n  {}", "x --password\t{}", "password := {}", "password == {}", "secret => {}",
        "curl -H 'Authorization: token {}'", "git clone https://u:a@{}@h/x", "git clone https://{}@h/x",
    ],
)  # fmt: skip
def test_secrets_in_commands_are_found_in_any_notation(text: str) -> None:
    secret = "hunter22Hunter33Hunter44"
    found = define(spec(command=["/bin/bash", "-c", text.format(secret)]))
    assert secret not in str(found.data) and len(found.withheld) == 1


@pytest.mark.parametrize("token", ["ghp_" + "a1B2" * 9, "hf_" + "aB" * 17, "AKIA" + "A1B2" * 4])
def test_tokens_of_known_services_are_secrets_without_a_name(token: str) -> None:
    assert token not in str(define(spec(command=["x", token])).data)


def test_secrets_in_other_fields_than_commands_are_withheld() -> None:
    roles = [{"name": "a", "command": ["x"], "image": "i", "volumes": ["nfs://u:hunter55@h:/a"]}]
    assert "hunter" not in str(define(spec(command=[], roles=roles)).data)
    found = define(
        spec(
            batch={"setup": "export API_TOKEN=hunter66\n"},
            simName="run --password=hunter77",
            env={"GH_PAT": "hunter88"},
        )
    )
    assert "hunter" not in str(found.data)
    assert found.data["batch"]["setup"] == "export API_TOKEN=@WITHHELD:API_TOKEN@\n"


def test_a_digit_of_another_script_is_no_index() -> None:
    with pytest.raises(Refusal, match="nothing at"):
        changed({"command": ["x"]}, {"command.\u00b2": "y"})
