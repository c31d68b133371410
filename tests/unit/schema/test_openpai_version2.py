"""Configurations of OpenPAI, protocol version 2: keys, references, templates and secrets."""

import json
from typing import Any

import msgspec
import pytest

from jobscribe.protocol.api.requests import RunSpec
from jobscribe.schema.fields import InvalidDocument, Problem
from jobscribe.schema.openpai.conversion import Converted, convert_configuration
from jobscribe.schema.openpai.draft import Options
from jobscribe.schema.openpai.version2_keys import JobKeys, RoleKeys
from jobscribe.schema.structs import field_names

ROLE: dict[str, Any] = {
    "dockerImage": "img",
    "resourcePerInstance": {"cpu": 1, "memoryMB": 1024, "gpu": 0},
    "commands": ["run"],
}
IMAGE = {"name": "img", "type": "dockerimage", "uri": "python:3.11"}
JOB: dict[str, Any] = {
    "protocolVersion": 2,
    "name": "x",
    "type": "job",
    "prerequisites": [IMAGE],
    "taskRoles": {"main": ROLE},
}


def converted(job: object, **options: Any) -> Converted:
    return convert_configuration(job, Options("user0001", **options))


def with_role(**changes: Any) -> dict[str, Any]:
    return {**JOB, "taskRoles": {"main": {**ROLE, **changes}}}


def spec(job: object) -> RunSpec:
    return converted(job).description.jobs[0].spec


def command(job: object) -> str:
    return spec(job).roles[0].command[2]


def problems(job: object) -> list[Problem]:
    with pytest.raises(InvalidDocument) as e:
        converted(job)
    assert all(p.problem and p.right for p in e.value.problems)
    return list(e.value.problems)


def commands(*lines: str, **more: Any) -> dict[str, Any]:
    return {**with_role(commands=list(lines)), **more}


def test_the_smallest_configuration_has_the_documented_defaults() -> None:
    run = spec(JOB)
    (role,) = run.roles
    assert (role.tasks, role.cpu, role.memory_mb, role.shm_mb, role.gpu) == (1, 1, 1024, 512, 0)
    assert (role.min_failed, role.min_succeeded, role.image) == (1, None, "python:3.11")
    assert run.retry is not None
    assert run.retry.count == 0
    assert run.env == {"PAI_DEFAULT_FS_URI": "file://", "PAI_JOB_VC_NAME": "default"}
    assert converted(JOB).data["unique"] is True


def test_every_key_is_converted() -> None:
    job = {
        "protocolVersion": "2",
        "name": "x-1",
        "type": "job",
        "version": 1.0,
        "contributor": "ann",
        "description": "words",
        "parameters": {"n": 3, "sub": {"deep": "d"}, "all": "-n <% $parameters.n %>"},
        "secrets": {"pw": {"file": "/home/ann/pw"}},
        "jobRetryCount": 2,
        "prerequisites": [
            {**IMAGE, "version": 1, "contributor": "x", "description": "y"},
            {"name": "d", "type": "data", "uri": ["/data/<% $parameters.sub.deep %>"]},
            {"name": "o", "type": "output", "uri": "$PAI_DEFAULT_FS_URI/out/$PAI_USER_NAME"},
            {"name": "s", "type": "script", "uri": "https://example.org/s.git"},
        ],
        "taskRoles": {
            "main": {
                "instances": 4,
                "completion": {"minFailedInstances": -1, "minSucceededInstances": 4},
                "dockerImage": "img",
                "data": "d",
                "output": "o",
                "script": "s",
                "resourcePerInstance": {"cpu": 2, "memoryMB": 300, "gpu": 1, "ports": {"a": 2}},
                "extraContainerOptions": {"shmMB": 100, "infiniband": False},
                "commands": [
                    "git clone <% $script.uri %>",
                    'login "<% $secrets.pw %>"',
                    "run <% $parameters.all %> <% $data.uri[0] %> <% $data.name %>",
                ],
            }
        },
        "deployments": [
            {"name": "other", "taskRoles": {"main": {"preCommands": ["no"]}}},
            {"name": "prod", "taskRoles": {"main": {"preCommands": ["a"], "postCommands": ["b"]}}},
        ],
        "defaults": {"virtualCluster": "physics", "deployment": "prod"},
        "extras": {
            "gangAllocation": True,
            "gpuType": "A100",
            "com.microsoft.pai.runtimeplugin": [
                {"plugin": "teamwise_storage", "parameters": {"storageConfigNames": ["nfs"]}}
            ],
        },
    }
    run = spec(job)
    (role,) = run.roles
    assert (run.sim_name, run.queue) == ("x-1", "physics")
    assert run.retry is not None
    assert run.retry.count == 2
    assert (role.tasks, role.cpu, role.memory_mb, role.shm_mb, role.gpu) == (4, 2, 300, 100, 1)
    assert role.gpu_type == "A100"
    assert [(p.label, p.count) for p in role.ports] == [("a", 2)]
    assert (role.min_failed, role.min_succeeded, role.volumes) == (None, 4, ("nfs",))
    before, _, after = role.command[2].partition("set -o errexit\n")
    assert after.splitlines() == [
        "a",
        "git clone https://example.org/s.git",
        'login "${PAI_SECRET_pw}"',
        "run -n 3 /data/d d",
        "b",
    ]
    assert "export PAI_DATA_DIR='/data/d'" in before
    assert "export PAI_OUTPUT_DIR='/out/user0001'" in before
    assert "PAI_SECRET_pw=$(cat -- '/home/ann/pw')" in before
    assert [w.path for w in converted(job).warnings] == ["taskRoles.main.commands[0]"]


@pytest.mark.parametrize(
    ("job", "path", "problem"),
    [
        ({**JOB, "protocolVersion": 3}, "protocolVersion", "it is 3"),
        ({k: v for k, v in JOB.items() if k != "protocolVersion"}, "protocolVersion", "missing"),
        ({**JOB, "name": "a~b"}, "name", "it is the text"),
        ({**JOB, "type": "data"}, "type", "it is the text"),
        ({**JOB, "jobRetryCount": -2}, "jobRetryCount", "-2 restarts a job for ever"),
        ({**JOB, "taskRoles": {}}, "taskRoles", "0 keys"),
        ({**JOB, "taskRoles": {"_a": ROLE}}, "taskRoles._a", "not a valid name"),
        ({**JOB, "task": 1}, "task", "unknown key"),
        (with_role(instances=0), "taskRoles.main.instances", "it is 0"),
        (with_role(commands=[]), "taskRoles.main.commands", "0 elements"),
        (
            with_role(completion={"minFailedInstances": 2}),
            "taskRoles.main.completion.minFailedInstances",
            "more than the 1",
        ),
        (
            with_role(resourcePerInstance={"cpu": 1, "memoryMB": 10, "ports": {"a.b": 1}}),
            'taskRoles.main.resourcePerInstance.ports["a.b"]',
            "not a valid name",
        ),
        (
            with_role(extraContainerOptions={"shmMB": 2000}),
            "taskRoles.main.extraContainerOptions.shmMB",
            "it is 2000 MB",
        ),
        (with_role(dockerImage="no"), "taskRoles.main.dockerImage", "no prerequisite"),
        (with_role(data="img"), "taskRoles.main.data", "no prerequisite"),
        (with_role(prerequisites=["no"]), "taskRoles.main.prerequisites[0]", "no prerequisite"),
        ({**JOB, "prerequisites": [IMAGE, IMAGE]}, "prerequisites[1].name", "the same name"),
        (
            {**JOB, "prerequisites": [{**IMAGE, "uri": "Bad"}]},
            "prerequisites[0].uri",
            "capital letters",
        ),
        (
            {**JOB, "prerequisites": [{**IMAGE, "auth": {"password": "hunter2"}}]},
            "prerequisites[0].auth.password",
            "readable by others",
        ),
        (
            {**JOB, "prerequisites": [{**IMAGE, "plugin": "x"}]},
            "prerequisites[0].plugin",
            "no plugins",
        ),
        (
            {**JOB, "deployments": [{"name": "a", "taskRoles": {"no": {}}}]},
            "deployments[0].taskRoles.no",
            "no such role",
        ),
        ({**JOB, "deployments": [{"name": "a"}] * 2}, "deployments[1].name", "the same name"),
        ({**JOB, "defaults": {"deployment": "a"}}, "defaults.deployment", "no deployment"),
        (
            {**JOB, "extras": {"com.microsoft.pai.runtimeplugin": [{"plugin": "git"}]}},
            'extras["com.microsoft.pai.runtimeplugin"][0]',
            "no plugin",
        ),
        ({**JOB, "extras": {"x": [{"apiKey": "v"}]}}, "extras.x[0].apiKey", "like a secret"),
        ({**JOB, "extras": {"x": "jst_abcdefgh_" + "a" * 40}}, "extras.x", "like a secret"),
        (
            {**with_role(script="s"), "prerequisites": [IMAGE, {"name": "s", "type": "script", "uri": "/a/../b"}]},
            "prerequisites[1].uri",
            "`..`",
        ),
        (
            {**JOB, "prerequisites": [IMAGE, {"name": "s", "type": "script", "require": ["no"]}]},
            "prerequisites[1].require[0]",
            "no prerequisite",
        ),
        (
            {**JOB, "prerequisites": [{**IMAGE, "callbacks": [{"event": "taskFails", "commands": ["a"]}]}]},
            "prerequisites[0].callbacks[0].event",
            "it is the text",
        ),
        (
            {**commands("<% $data.uri[1] %>"), "prerequisites": [IMAGE, {"name": "d", "type": "data", "uri": ["/a"]}],
             "taskRoles": {"main": {**ROLE, "data": "d", "commands": ["<% $data.uri[1] %>"]}}},
            "taskRoles.main.commands[0]",
            'has no "uri[1]"',
        ),
        (
            {**JOB, "extras": {"com.microsoft.pai.runtimeplugin": [{"plugin": "cmd", "taskroles": ["no"]}]}},
            'extras["com.microsoft.pai.runtimeplugin"][0].taskroles[0]',
            "no such role",
        ),
        # templates
        (commands("<% $parameters.no %>"), "taskRoles.main.commands[0]", "no parameter"),
        (commands("a", "<% x %>"), "taskRoles.main.commands[1]", "not a template"),
        (commands("<% $data.uri %>"), "taskRoles.main.commands[0]", "no data"),
        (commands("<% $secrets.no %>"), "taskRoles.main.commands[0]", "no secret"),
        (
            commands("<% $parameters.a %>", parameters={"a": "<% $parameters.b %>", "b": "<% $parameters.a %>"}),
            "taskRoles.main.commands[0]",
            "contain each other: a -> b -> a",
        ),
        (
            commands("<% $parameters.a %>", parameters={"a": "<% $secrets.s %>"}, secrets={"s": {"file": "/s"}}),
            "taskRoles.main.commands[0]",
            "contains",
        ),
        (
            commands("<% $parameters.a %>", parameters={"a": {"b": 1}}),
            "taskRoles.main.commands[0]",
            "it is an object",
        ),
        (
            commands("x '<% $secrets.s %>'", secrets={"s": {"file": "/s"}}),
            "taskRoles.main.commands[0]",
            "in single quotes",
        ),
        (
            {**with_role(data="d"), "secrets": {"s": {"file": "/s"}},
             "prerequisites": [IMAGE, {"name": "d", "type": "data", "uri": "/<% $secrets.s %>"}]},
            "prerequisites[1].uri",
            "no secret",
        ),
        (
            {**JOB, "deployments": [{"name": "a", "taskRoles": {"main": {"preCommands": ["<% x %>"]}}}],
             "defaults": {"deployment": "a"}},
            "deployments[0].taskRoles.main.preCommands[0]",
            "not a template",
        ),
    ],
)  # fmt: skip
def test_each_problem_is_named_at_its_key(job: object, path: str, problem: str) -> None:
    (found,) = problems(job)
    assert (found.path, problem in found.problem) == (path, True), found


def test_commands_of_prerequisites_run_around_those_of_the_role() -> None:
    """Commands of required prerequisites run first at the start, and last at the end. With `ignore` a
    failure of theirs does not count.
    """
    plugin = {"plugin": "com.microsoft.pai.runtimeplugin.cmd", "protocolVersion": 2}

    def callback(event: str, *lines: str) -> dict[str, Any]:
        return {"event": event, "commands": list(lines)}

    prerequisites = [
        {**IMAGE, "protocolVersion": 2},
        {
            **plugin,
            "name": "tools",
            "type": "script",
            "callbacks": [callback("taskStarts", "a1", "a2"), callback("taskSucceeds", "z")],
        },
        {
            **plugin,
            "name": "set",
            "type": "data",
            "require": ["tools", "set"],
            "failurePolicy": "ignore",
            "callbacks": [callback("taskStarts", "get <% $parameters.n %>")],
        },
        {
            "name": "git",
            "type": "script",
            "uri": "example.org/x",
            "version": 1.5,
            "contributor": "ann",
        },
        {"name": "d", "type": "data", "uri": ["https://a/1", "https://a/2"]},
    ]
    line = (
        "run <% $script.name %> <% $script.version %> <% $script.contributor %> <% $data.uri[1] %>"
    )
    role = {
        **ROLE,
        "prerequisites": ["set", "tools"],
        "script": "git",
        "data": "d",
        "commands": [line],
    }
    job = {
        **JOB,
        "parameters": {"n": 3},
        "prerequisites": prerequisites,
        "taskRoles": {"main": role},
        "extras": {
            "com.microsoft.pai.runtimeplugin": [
                {"plugin": "cmd", "parameters": {"callbacks": [callback("taskStarts", "b")]}},
                {"plugin": "cmd", "taskroles": ["main"], "parameters": {"postCommands": ["y"]}},
            ]
        },
    }
    found = converted(job)
    (made,) = found.description.jobs[0].spec.roles
    assert made.command[2].partition("set -o errexit\n")[2].splitlines() == [
        "a1", "a2", "(", "get 3", ") || true", "b", "run git 1.5 ann https://a/2", "y", "z",
    ]  # fmt: skip
    assert [w.path for w in found.warnings] == ["prerequisites[4].uri"]
    extras = job["extras"]["com.microsoft.pai.runtimeplugin"]  # type: ignore[index]
    extras[0]["taskroles"] = ["other"]
    job["taskRoles"]["other"] = ROLE  # type: ignore[index]
    commands = [r.command[2] for r in converted(job).description.jobs[0].spec.roles]
    assert [c.splitlines()[-1] for c in commands] == ["z", ROLE["commands"][-1]]
    assert ["\nb\n" in c for c in commands] == [False, True]


def test_parameters_of_plugins_without_effect_are_warnings() -> None:
    plugins = "com.microsoft.pai.runtimeplugin"
    ssh = {"jobssh": True, "sshbarrier": True, "sshbarrierTimeout": 5, "other": 1}
    job = {
        **JOB,
        "extras": {plugins: [{"plugin": "ssh", "parameters": ssh, "failurePolicy": "fail"}]},
    }
    said = [w.problem for w in converted(job).warnings]
    assert [s.partition(" has no effect")[0] for s in said if s.startswith("its")] == [
        'its "sshbarrier"', 'its "sshbarrierTimeout"', 'its "other"',
    ]  # fmt: skip
    assert [w.path for w in converted(job).warnings if w.path.endswith("failurePolicy")]


@pytest.mark.parametrize(
    "value", ["1; rm -rf /", "a & b", "a | b", "`id`", "$(id)", "a > b", "a < b", "a\nb"]
)
def test_no_parameter_runs_another_command(value: str) -> None:
    (found,) = problems(commands("run <% $parameters.a %>", parameters={"a": value}))
    assert (found.path, "which a shell executes" in found.problem) == (
        "taskRoles.main.commands[0]",
        True,
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(32, "32"), (0.5, "0.5"), (2.0, "2"), (True, "true"), ("--a b", "--a b"), ("$PAI_TASK_INDEX", "$PAI_TASK_INDEX")],
)  # fmt: skip
def test_parameters_are_written_as_openpai_writes_them(value: object, text: str) -> None:
    job = commands("run <%$parameters.a%> <% $parameters.a %>", parameters={"a": value})
    assert command(job).endswith(f"run {text} {text}")


@pytest.mark.parametrize(
    "value", ["hunter2", 5, {"file": "relative"}, {"file": "/a", "x": 1}, None, ["hunter2"]]
)
def test_a_secret_in_the_file_is_refused_and_not_shown(value: object) -> None:
    found = problems({**commands("x <% $secrets.pw %>"), "secrets": {"pw": value}})
    said = json.dumps([p.sentence() for p in found])
    assert [p.path for p in found] == ["secrets.pw"]
    assert "{file: PATH}" in said
    assert "hunter2" not in said


def test_a_text_in_place_of_secrets_is_not_shown() -> None:
    (found,) = problems({**JOB, "secrets": "hunter2"})
    assert (found.path, "hunter2" in found.sentence()) == ("secrets", False)


def test_the_value_of_a_secret_is_no_part_of_the_run() -> None:
    """Only the path of its file goes to the supervisor; the variable is not exported."""
    job = commands(
        'x "<% $secrets.pw %>"', secrets={"pw": {"file": "/s"}, "unused": {"file": "/u"}}
    )
    text = command(job)
    assert "export PAI_SECRET" not in text
    assert "/u" not in text
    assert "PAI_SECRET" not in msgspec.json.encode(spec(job).env).decode()


@pytest.mark.parametrize(
    ("job", "path"),
    [
        (with_role(taskRetryCount=1), "taskRoles.main.taskRetryCount"),
        (with_role(prerequisites=["img"]), "taskRoles.main.prerequisites"),
        (
            with_role(extraContainerOptions={"infiniband": True}),
            "taskRoles.main.extraContainerOptions.infiniband",
        ),
        ({**JOB, "taskRoles": {"main": ROLE, "b": {**ROLE, "completion": {"minSucceededInstances": -1}}}}, "taskRoles.main"),
        ({**JOB, "parameters": {"password": "x", "tokenizer": "y"}}, "parameters.password"),
        ({**JOB, "extras": {"hivedScheduler": {"jobPriorityClass": "prod"}}}, "extras.hivedScheduler"),
        ({**JOB, "prerequisites": [{**IMAGE, "failurePolicy": "ignore"}]}, "prerequisites[0].failurePolicy"),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_a_warning(job: object, path: str) -> None:
    assert [w.path for w in converted(job).warnings] == [path]


def test_every_key_is_known_and_nothing_is_dropped() -> None:
    assert set(field_names(JobKeys)) == {
        "protocolVersion", "name", "type", "version", "contributor", "description", "prerequisites",
        "parameters", "secrets", "jobRetryCount", "taskRoles", "deployments", "defaults", "extras",
    }  # fmt: skip
    assert set(field_names(RoleKeys)) == {
        "instances", "completion", "taskRetryCount", "dockerImage", "data", "output", "script",
        "prerequisites", "resourcePerInstance", "extraContainerOptions", "commands",
    }  # fmt: skip


def test_a_configuration_of_any_values_is_a_list_of_problems() -> None:
    for value in (
        None,
        1,
        "x",
        [],
        {},
        [None],
        {"a": None},
        {"main": None},
        True,
        1.5,
        ["x"],
        [{}],
    ):
        for job in (
            *({**JOB, key: value} for key in field_names(JobKeys)),
            *(with_role(**{key: value}) for key in field_names(RoleKeys)),
        ):
            try:
                converted(job)
            except InvalidDocument as e:
                json.dumps([p.sentence() for p in e.problems])


def auth(**fields: str) -> dict[str, Any]:
    given = {"username": "ann", "password": "<% $secrets.pw %>", "registryuri": "reg.example.org"}
    return {**JOB, "prerequisites": [{**IMAGE, "auth": given | fields}]}


@pytest.mark.parametrize("secret", ["hunter2", {"file": "/s"}])
def test_the_password_of_an_image_is_beside_the_description(secret: object) -> None:
    made = converted({**auth(), "secrets": {"pw": secret}})
    (source,) = made.draft.logins
    assert (source.registry, source.username) == ("reg.example.org", "ann")
    assert (source.file, source.password) in (("", "hunter2"), ("/s", ""))
    assert made.description.jobs[0].logins == (source.name,)
    assert "hunter2" not in json.dumps(made.data) + repr(made)


@pytest.mark.parametrize(
    ("job", "path"),
    [
        ({**auth(password="hunter2")}, "prerequisites[0].auth.password"),
        ({**auth(password="<% $secrets.no %>")}, "prerequisites[0].auth.password"),
        ({**JOB, "secrets": {"pw": "hunter2"}}, "secrets.pw"),
        ({**auth(), **with_role(commands=["x <% $secrets.pw %>"]), "prerequisites": auth()["prerequisites"],
          "secrets": {"pw": "hunter2"}}, "secrets.pw"),
    ],
)  # fmt: skip
def test_other_values_of_secrets_are_refused(job: object, path: str) -> None:
    found = problems(job)
    assert [p.path for p in found] == [path]
    assert "hunter2" not in found[0].sentence()
