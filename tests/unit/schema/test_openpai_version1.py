"""Configurations of OpenPAI, version 1: every key with its default and its checks, the conversion, and
the documented rules for completion and retries.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobscribe.protocol.api.requests import RunSpec
from jobscribe.schema.fields import InvalidDocument, Problem
from jobscribe.schema.jobs.description import named_simulation
from jobscribe.schema.openpai.conversion import (
    Converted,
    convert_configuration,
    version_of,
)
from jobscribe.schema.openpai.draft import Options
from jobscribe.schema.openpai.version1 import JobKeys, RoleKeys
from jobscribe.schema.structs import field_names
from jobscribe.schema.text.reader import parse, read
from jobscribe.supervisor.core.runs.attempt_policies import (
    RetryDecision,
    TaskOutcome,
    again,
    decided,
)

USER = "user0001"
#: Sample configurations of OpenPAI's guides, unchanged.
GUIDES = Path(__file__).parent / "openpai_guides"
ROLE = {
    "name": "main",
    "taskNumber": 1,
    "cpuNumber": 1,
    "memoryMB": 100,
    "gpuNumber": 0,
    "command": "run",
}
JOB = {"jobName": "x", "image": "python:3.11", "taskRoles": [ROLE]}


def converted(job: object, **options: Any) -> Converted:
    return convert_configuration(job, Options(USER, **options))


def with_role(**changes: Any) -> dict[str, Any]:
    return {**JOB, "taskRoles": [{**ROLE, **changes}]}


def spec(job: object, **options: Any) -> RunSpec:
    return converted(job, **options).description.jobs[0].spec


def problems(job: object) -> list[Problem]:
    with pytest.raises(InvalidDocument) as e:
        converted(job)
    assert all(p.problem and p.right for p in e.value.problems)
    return list(e.value.problems)


def warned(job: object) -> list[tuple[str, str]]:
    return [(w.path, w.problem) for w in converted(job).warnings]


def test_the_smallest_configuration_has_the_documented_defaults() -> None:
    run = spec({"jobName": "x", "image": "i", "taskRoles": [{"name": "m", "command": "run"}]})
    (role,) = run.roles
    assert (role.tasks, role.cpu, role.memory_mb, role.shm_mb, role.gpu, role.ports) == (
        1,
        1,
        100,
        64,
        0,
        (),
    )
    assert (role.min_failed, role.min_succeeded, role.image) == (1, None, "i")
    assert run.retry is not None
    assert run.retry.count == 0
    assert (run.sim_name, run.job_run_mode) == ("x", "parallel")
    assert run.env == {"PAI_DEFAULT_FS_URI": "file://", "PAI_JOB_VC_NAME": "default"}
    assert (run.debug_secs, run.queue) == (None, spec(JOB).queue)


def test_every_key_is_converted() -> None:
    job = {
        "jobName": "a.b_c-d",
        "image": "registry:5000/team/x:1",
        "dataDir": "$PAI_DEFAULT_FS_URI/$PAI_USER_NAME/data",
        "outputDir": "file:///out/${PAI_JOB_NAME}",
        "codeDir": "/$PAI_USERNAME/code.tar.gz",
        "virtualCluster": "physics",
        "retryCount": -1,
        "jobEnvs": {"a": 1, "b": "x y", "c": True, "d": 0.001, "e": 2.0, "isDebug": True},
        "taskRoles": [
            {
                "name": "ps",
                "taskNumber": 2,
                "cpuNumber": 3,
                "memoryMB": 400,
                "shmMB": 300,
                "gpuNumber": 1,
                "portList": [{"label": "grpc", "beginAt": 0, "portNumber": 2}],
                "command": "echo '$a'\nrun",
                "minFailedTaskCount": None,
                "minSucceededTaskCount": 2,
            }
        ],
        "extras": {"storages": [{"name": "data"}, "more"]},
    }
    run = spec(job)
    (role,) = run.roles
    assert (run.sim_name, run.queue, run.debug_secs) == ("a.b_c-d", "physics", 7 * 86400)
    assert run.retry is not None
    assert run.retry.count == -1
    assert run.env == {
        "PAI_DEFAULT_FS_URI": "file://",
        "PAI_JOB_VC_NAME": "physics",
        "PAI_DATA_DIR": f"/{USER}/data",
        "PAI_OUTPUT_DIR": "/out/a.b_c-d",
        "PAI_CODE_DIR": f"/{USER}/code.tar.gz",
        "a": "1",
        "b": "x y",
        "c": "true",
        "d": "0.001",
        "e": "2",
        "isDebug": "true",
    }
    assert (role.tasks, role.cpu, role.memory_mb, role.shm_mb, role.gpu) == (2, 3, 400, 300, 1)
    assert [(p.label, p.begin, p.count) for p in role.ports] == [("grpc", 0, 2)]
    assert (role.min_failed, role.min_succeeded) == (None, 2)
    assert (role.image, role.volumes) == ("registry:5000/team/x:1", ("data", "more"))
    assert role.command[2].endswith("\necho '$a'\nrun")
    assert [(p.path, p.value) for p in converted(job).paths] == [
        ("dataDir", f"/{USER}/data"),
        ("outputDir", "/out/a.b_c-d"),
        ("codeDir", f"/{USER}/code.tar.gz"),
    ]


@pytest.mark.parametrize(
    ("name", "roles", "warnings"),
    [
        (
            "tensorflow",
            {"ps_server": (2, 2, 8192, 0, None), "worker": (2, 2, 16384, 4, 2)},
            [("taskRoles[0].command", "pip"), ("taskRoles[1].command", "pip")],
        ),
        ("cifar10", {"default": (1, 4, 8192, 1, None)}, [("taskRoles[0].command", "apt")]),
    ],
)
def test_the_samples_of_the_guides_are_accepted_as_pasted(
    name: str, roles: dict[str, Any], warnings: list[tuple[str, str]]
) -> None:
    tree = read(str(GUIDES / f"{name}.json"), lenient=True)
    assert tree.problems == []
    found = converted(tree.data)
    (job,) = found.description.jobs
    assert {
        r.name: (r.tasks, r.cpu, r.memory_mb, r.gpu, r.min_succeeded) for r in job.spec.roles
    } == roles
    words = [(w.path, w.problem.split()[0].strip('"')) for w in found.warnings]
    assert words == warnings


def test_the_name_is_unique_and_the_site_chooses_the_driver() -> None:
    assert converted(JOB).data["unique"] is True
    assert spec(JOB).driver == ""
    assert spec(JOB, driver="docker").driver == "docker"


def test_the_simulation_of_a_name_never_changes() -> None:
    """Later versions must find the jobs of earlier ones."""
    assert named_simulation(USER, "x") == "Q39sUYLO"
    assert len({named_simulation(u, n) for u in (USER, "user0002") for n in ("x", "y")}) == 4


def test_without_containers_there_is_no_image() -> None:
    job = {**JOB, "extras": {"storages": ["data"]}}
    found = converted(job, containers=False)
    assert found.description.jobs[0].spec.roles[0].image is None
    assert found.description.jobs[0].spec.roles[0].volumes == ()
    assert [w.path for w in found.warnings] == ["extras.storages[0]", "image"]


TWO = [ROLE, {**ROLE, "name": "main"}]


@pytest.mark.parametrize(
    ("job", "path", "problem"),
    [
        ({**JOB, "jobName": "a~b"}, "jobName", "contains ~"),
        ({**JOB, "jobName": "a b"}, "jobName", "it is the text"),
        ({**JOB, "jobName": "a" * 256}, "jobName", "it is"),
        ({k: v for k, v in JOB.items() if k != "jobName"}, "jobName", "missing"),
        ({k: v for k, v in JOB.items() if k != "image"}, "image", "missing"),
        ({**JOB, "image": "Team/X"}, "image", "capital letters"),
        ({k: v for k, v in JOB.items() if k != "taskRoles"}, "taskRoles", "missing"),
        ({**JOB, "taskRoles": []}, "taskRoles", "0 elements"),
        ({**JOB, "taskRoles": TWO}, "taskRoles[1].name", "taskRoles[0] has the same name"),
        ({**JOB, "virtualCluster": "A B"}, "virtualCluster", "it is the text"),
        ({**JOB, "retryCount": -2}, "retryCount", "-2 restarts a job for ever"),
        ({**JOB, "retryCount": "1"}, "retryCount", "it is the text"),
        ({**JOB, "gpuTyp": "K80"}, "gpuTyp", "unknown key"),
        ({**JOB, "dataDir": "data"}, "dataDir", "not an absolute path"),
        ({**JOB, "dataDir": "/a/../b"}, "dataDir", "`..`"),
        ({**JOB, "codeDir": "/"}, "codeDir", "its name"),
        ({**JOB, "codeDir": "/x/.ssh"}, "codeDir", 'its name ".ssh"'),
        ({**JOB, "codeDir": "/x/job.json"}, "codeDir", 'its name "job.json"'),
        ({**JOB, "codeDir": "hdfs://h:9000/code"}, "codeDir", "copies no code"),
        ({**JOB, "jobEnvs": {"a": [1]}}, "jobEnvs.a", "it is a list"),
        ({**JOB, "jobEnvs": {"a-b": 1}}, 'jobEnvs.a-b', "not a valid name"),
        ({**JOB, "jobEnvs": {"PAI_TASK_INDEX": 1}}, "jobEnvs.PAI_TASK_INDEX", "jobscribe sets"),
        ({**JOB, "jobEnvs": {"db_password": "x"}}, "jobEnvs.db_password", "like a secret"),
        ({**JOB, "jobEnvs": {"isDebug": "true"}}, "jobEnvs.isDebug", "it is the text"),
        ({**JOB, "extras": {"a": {"password": "x"}}}, "extras.a.password", "like a secret"),
        (with_role(name="a.b"), "taskRoles[0].name", "it is the text"),
        (with_role(name="1a"), "taskRoles[0].name", "it is the text"),
        (with_role(taskNumber=0), "taskRoles[0].taskNumber", "it is 0"),
        (with_role(cpuNumber=0), "taskRoles[0].cpuNumber", "it is 0"),
        (with_role(memoryMB=99), "taskRoles[0].memoryMB", "it is 99"),
        (with_role(shmMB=101), "taskRoles[0].shmMB", "it is 101 MB"),
        (with_role(gpuNumber=-1), "taskRoles[0].gpuNumber", "it is -1"),
        (with_role(command=" "), "taskRoles[0].command", "it is empty"),
        (with_role(minFailedTaskCount=0), "taskRoles[0].minFailedTaskCount", "it is 0"),
        (with_role(minFailedTaskCount=2), "taskRoles[0].minFailedTaskCount", "more than the 1"),
        (with_role(minSucceededTaskCount=2), "taskRoles[0].minSucceededTaskCount", "more than"),
        (with_role(portList=[{"beginAt": 0}]), "taskRoles[0].portList[0].label", "missing"),
        (
            with_role(portList=[{"label": "a", "beginAt": 80}]),
            "taskRoles[0].portList[0].beginAt",
            "machine's own ports",
        ),
        (
            with_role(portList=[{"label": "a", "beginAt": 65535, "portNumber": 2}]),
            "taskRoles[0].portList[0].beginAt",
            "exceed 65535",
        ),
        (
            with_role(portList=[{"label": "a", "portNumber": 0}]),
            "taskRoles[0].portList[0].portNumber",
            "it is 0",
        ),
        (
            with_role(portList=[{"label": "a"}, {"label": "a"}]),
            "taskRoles[0].portList[1].label",
            "occurs twice",
        ),
    ],
)  # fmt: skip
def test_each_problem_is_named_at_its_key(job: object, path: str, problem: str) -> None:
    (found,) = problems(job)
    assert (found.path, problem in found.problem) == (path, True), found


def test_all_problems_are_reported_at_once_with_their_lines() -> None:
    text = b"""{
  // a comment
  "jobName": "a~b",
  "image": "x",
  "taskRoles": [
    {"name": "a", "command": "x", "memoryMB": 1},
    {"name": "a", "command": "",
     "minFailedTaskCount": 9}, /* twice */
  ],
  "retryCounts": 1,
}"""
    tree = parse(text, "job.json")
    found = tree.located(problems(tree.data))
    assert [(p.line, p.path) for p in found] == [
        (3, "jobName"),
        (6, "taskRoles[0].memoryMB"),
        (7, "taskRoles[1].command"),
        (7, "taskRoles[1].name"),
        (10, "retryCounts"),
    ]
    assert found[-1].right == "`retryCount`"


@pytest.mark.parametrize(
    ("change", "path", "problem"),
    [
        ({"killAllOnCompletedTaskNumber": 1}, "killAllOnCompletedTaskNumber", "obsolete"),
        ({"dataDir": "hdfs://h/x"}, "dataDir", "neither reads nor mounts"),
        ({"outputDir": "hdfs://h/x"}, "outputDir", "neither reads nor mounts"),
        ({"jobEnvs": {"paiAzRDMA": True}}, "jobEnvs.paiAzRDMA", "RDMA"),
        ({"extras": {"hivedScheduler": {}}}, "extras.hivedScheduler", "no effect"),
        ({"extras": {"submitFrom": "x"}}, "extras.submitFrom", "no effect"),
        ({"extras": {"gangAllocation": False}}, "extras.gangAllocation", "together"),
    ],
)
def test_what_has_no_effect_is_a_warning(change: object, path: str, problem: str) -> None:
    assert isinstance(change, dict)
    ((where, what),) = warned({**JOB, **change})
    assert (where, problem in what) == (path, True)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("apt update && apt install -y git && git clone https://github.com/x/y", "apt update"),
        ("cd x; pip --quiet install scipy && python code/train.py", "pip --quiet install"),
        ("git clone --depth 1 git@host:x", "git clone --depth"),
        ("curl -s http://example.org/data | tar x", "curl -s"),
        ("pip install --no-index --find-links=/wheels scipy", ""),
        ("curl http://$PAI_HOST_IP_ps_0:80; wget http://127.0.0.1/; echo apt installed", ""),
    ],
)
def test_what_needs_root_or_another_network_is_a_warning_in_containers(
    command: str, words: str
) -> None:
    job = with_role(command=command)
    said = [(path, problem.partition(" fails")[0]) for path, problem in warned(job)]
    assert said == ([("taskRoles[0].command", f'"{words}"')] if words else [])
    found = converted(job, containers=False).warnings
    assert [w.path for w in found] == ["image"]


def test_a_shell_alone_ends_at_once_which_is_a_warning() -> None:
    said = "a shell without input ends at once"
    assert warned(with_role(command="/bin/bash")) == [("taskRoles[0].command", said)]
    assert warned(with_role(command="/bin/bash code/run.sh")) == []


def test_a_gpu_type_is_that_of_the_roles_with_gpus() -> None:
    roles = [{**ROLE, "gpuNumber": 1}, {**ROLE, "name": "cpu", "gpuNumber": 0}]
    for more in ({"gpuType": "K80"}, {"extras": {"gpuType": "K80"}}):
        job = {**JOB, "taskRoles": roles, **more}
        assert [r.gpu_type for r in spec(job).roles] == ["K80", msgspec.UNSET]
        assert warned(job) == []
    ((path, problem),) = warned({**with_role(gpuNumber=0), "gpuType": "K80"})
    assert (path, problem) == ("gpuType", "no role has GPUs")
    for path, more in (
        ("gpuType", {"gpuType": "K80; rm"}),
        ("extras.gpuType", {"extras": {"gpuType": ["K80"]}}),
    ):
        (problem_,) = problems({**with_role(gpuNumber=1), **more})
        assert problem_.path == path


def test_ssh_between_tasks_is_always_on_in_version_1_as_documented() -> None:
    two = {**JOB, "taskRoles": [{**ROLE, "taskNumber": 2}]}
    one = {**JOB, "taskRoles": [{**ROLE, "taskNumber": 1}]}
    assert (spec(two).ssh, spec(one).ssh) == (True, True)
    plugins = "com.microsoft.pai.runtimeplugin"

    def asked(jobssh: Any) -> dict[str, Any]:
        plugin = {"plugin": "ssh", "parameters": {"jobssh": jobssh}}
        return {**one, "extras": {plugins: [plugin]}}

    assert (spec(asked(True)).ssh, spec(asked(False)).ssh) == (True, True)
    (problem,) = problems(asked("yes"))
    assert problem.path == f'extras["{plugins}"][0]' and "jobssh" in problem.problem


def test_warnings_speak_of_the_keys_of_the_configuration() -> None:
    (found,) = converted(with_role(minFailedTaskCount=None)).warnings
    assert found.path == "taskRoles"
    assert "`minFailedTaskCount: 1`" in found.right
    (found,) = converted(
        with_role(taskNumber=2, portList=[{"label": "a", "beginAt": 9000}])
    ).warnings
    assert (found.path, found.right[:14]) == ("taskRoles[0].portList[0]", "`beginAt: 0` f")


def test_every_key_is_known_and_nothing_is_dropped() -> None:
    """A key without a row here has no test that it is converted, refused or warned of."""
    assert set(field_names(JobKeys)) == {
        "jobName", "image", "authFile", "dataDir", "outputDir", "codeDir", "virtualCluster",
        "taskRoles", "gpuType", "retryCount", "jobEnvs", "extras", "killAllOnCompletedTaskNumber",
    }  # fmt: skip
    assert set(field_names(RoleKeys)) == {
        "name", "taskNumber", "cpuNumber", "memoryMB", "shmMB", "gpuNumber", "portList", "command",
        "minFailedTaskCount", "minSucceededTaskCount",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "version"),
    [
        (JOB, 1),
        ({"jobName": "x"}, 1),
        ({"taskRoles": [1]}, 1),
        ({"jobName": "x", "command": "y"}, 0),
        ({"name": "x", "command": "y"}, 0),
        ({"name": "x", "taskRoles": {"a": {"command": "y"}}}, 0),
        ({"name": "x", "taskRoles": {"a": {"dockerImage": "y"}}}, 2),
        ({"protocolVersion": 2}, 2),
        ({"prerequisites": []}, 2),
        ([], 0),
        ("x", 0),
    ],
)
def test_recognition(data: object, version: int) -> None:
    assert version_of(data) == version


@pytest.mark.parametrize(
    ("rules", "ends", "verdict"),
    [
        # (role, minFailed, minSucceeded, tasks); the ends of tasks in order; the documented result
        ([("w", 1, None, 2)], ["w+"], None),
        ([("w", 1, None, 2)], ["w-"], False),
        ([("w", 1, None, 2)], ["w+", "w+"], True),
        ([("w", None, None, 2)], ["w-", "w-"], True),
        ([("w", 2, None, 3)], ["w-"], None),
        ([("w", 2, None, 3)], ["w-", "w+", "w-"], False),
        ([("w", 2, None, 3)], ["w-", "w+", "w+"], True),
        ([("p", 1, None, 1), ("w", 1, 2, 2)], ["w+"], None),
        ([("p", 1, None, 1), ("w", 1, 2, 2)], ["w+", "w+"], True),
        ([("p", 1, None, 1), ("w", 1, 2, 2)], ["w+", "p-"], False),
        ([("a", 1, 1, 1), ("f", None, None, 2)], ["f-"], None),
        ([("a", 1, 1, 1), ("f", None, None, 2)], ["f-", "f-"], None),
        ([("a", 1, 1, 1), ("f", None, None, 2)], ["a+"], True),
        ([("a", 1, 1, 1), ("f", None, None, 2)], ["f+", "a-"], False),
        ([("w", 3, 1, 3)], ["w-", "w-"], None),
        ([("w", 3, 1, 3)], ["w-", "w-", "w+"], True),
        ([("w", 3, 1, 3)], ["w-", "w-", "w-"], False),
    ],
)  # fmt: skip
def test_completion_is_the_documented_one(
    rules: list[tuple[str, Any, Any, int]], ends: list[str], verdict: bool | None
) -> None:
    roles = [
        {**ROLE, "name": name, "taskNumber": tasks, "minFailedTaskCount": failed, "minSucceededTaskCount": succeeded}
        for name, failed, succeeded, tasks in rules
    ]  # fmt: skip
    run = spec({**JOB, "taskRoles": roles})
    seen = [
        TaskOutcome(e[0], [x[0] for x in ends[:n]].count(e[0]), e[1] == "+")
        for n, e in enumerate(ends)
    ]
    found = decided(run.roles, seen)
    assert (None if found is None else found.succeeded) is verdict


@pytest.mark.parametrize(
    ("count", "behavior", "before", "retried"),
    [
        (0, "unknown", 0, False),
        (2, "unknown", 1, True),
        (2, "unknown", 2, False),
        (-1, "unknown", 500, True),
        (0, "transient", 0, True),
        (0, "conflict", 0, True),
        (5, "permanent", 0, False),
        (-1, "permanent", 0, False),
    ],
)
def test_retries_are_the_documented_ones(
    count: int, behavior: Any, before: int, retried: bool
) -> None:
    """One difference is documented: failures of the platform are retried three times, not for ever."""
    policy = spec({**JOB, "retryCount": count}).retry
    assert isinstance(again(policy, behavior, [behavior] * before, 0.0), RetryDecision) is retried
    assert isinstance(again(policy, "transient", ["transient"] * 3, 0.0), str)


def test_a_configuration_of_any_values_is_a_list_of_problems() -> None:
    for value in (None, 1, "x", [], {}, [None], {"a": None}, True, 1.5):
        for key in field_names(JobKeys):
            try:
                converted({**JOB, key: value})
            except InvalidDocument as e:
                json.dumps([p.sentence() for p in e.problems])
        for key in field_names(RoleKeys):
            try:
                converted(with_role(**{key: value}))
            except InvalidDocument as e:
                json.dumps([p.sentence() for p in e.problems])
