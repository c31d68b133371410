"""Job descriptions: their meaning, and the report of all errors at once, each with its path and the
valid values.
"""

import itertools
import json
import os
import pathlib
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.protocol.api.requests import MAX_BULK, RunSpec
from jobscribe.protocol.jobs.roles import (
    MAX_PORTS,
    MAX_ROLES,
    MAX_TASKS,
    After,
    Port,
    Retry,
    TaskRole,
)
from jobscribe.schema.fields import MAX_PROBLEMS, InvalidDocument, Problem, above, element, member
from jobscribe.schema.jobs.description import (
    MAX_BYTES,
    JobRuns,
    build_runs,
    parse_description,
)
from jobscribe.schema.jobs.keys import MAX_AFTER, MAX_JOBS, JobKeys, RoleKeys
from jobscribe.schema.structs import field_names

UID = "user0001"
JOB, ROLE = field_names(JobKeys), field_names(RoleKeys)


def made(data: object, uid: str = UID) -> tuple[JobRuns, ...]:
    numbers = itertools.count(1)
    return build_runs(parse_description(data), uid, lambda: f"sim{next(numbers):05d}")


def spec(**fields: Any) -> RunSpec:
    """Return the parsed run of a job with these keys."""
    job = {"name": "x", **fields}
    return made(job if {"command", "roles"} & set(fields) else {**job, "command": "true"})[0].specs[
        0
    ]


def role(**fields: Any) -> TaskRole:
    return spec(roles={"worker": {"command": "true", **fields}}).roles[0]


def problems(data: object, uid: str = UID) -> list[Problem]:
    with pytest.raises(InvalidDocument) as e:
        made(data, uid)
    assert e.value.problems
    assert all(p.problem and p.right for p in e.value.problems)
    return list(e.value.problems)


def one(data: object, path: str, *words: str) -> Problem:
    """Return the only problem; fail if its path is different."""
    found = problems(data)
    assert [p.path for p in found] == [path], found
    for word in words:
        assert word in found[0].sentence(), found[0]
    return found[0]


def job(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "command": "true", **fields}


def roles(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "roles": {"worker": {"command": "true", "tasks": 2, **fields}}}


# ---- meaning


def test_a_text_is_for_bash_exactly_as_it_is() -> None:
    text = "cat <<EOF\n  a  $x\n\tb 'c'\nEOF\n\nexit 3\n"
    assert spec(command=text).command == ("/bin/bash", "-c", text)
    assert role(command=text).command == ("/bin/bash", "-c", text)


def test_a_list_is_words_and_whole_numbers_are_words() -> None:
    assert spec(command=["sleep", 5, "-1", "a b"]).command == ("sleep", "5", "-1", "a b")


def test_what_is_not_said_has_its_default() -> None:
    plain = RunSpec(
        uid=UID,
        simulation_id="sim00001",
        command=("/bin/bash", "-c", "true"),
        retry=Retry(count=0, platform=3),
        sim_name="x",
    )
    assert spec() == plain
    assert spec(env=None, retry=None, after=None, roles=None, command="true") == plain
    assert role() == TaskRole(name="worker", command=("/bin/bash", "-c", "true"))
    assert spec(roles={"a": {"command": "x"}}).job_run_mode == "parallel"
    assert spec(roles={"a": {"command": "x"}}, kind="sequential").job_run_mode == "sequential"


def test_every_key_of_a_job() -> None:
    made_ = spec(
        kind="parallel",
        driver="slurm",
        env={"A": "b", "N": 3},
        retry={"count": -1, "platform": 0, "conflictSecs": "10m"},
        debug="1h",
        timeLimit="2d",
        queueLimit=90,
        grace=0,
        dataDir="/d",
        outputDir="hdfs://x/o",
        codeDir="",
        virtualCluster="vc",
        after=["user0001-abcdefgh-command"],
    )
    assert made_ == RunSpec(
        uid=UID,
        simulation_id="sim00001",
        command=("/bin/bash", "-c", "true"),
        sim_name="x",
        job_run_mode="parallel",
        driver="slurm",
        env={
            "A": "b",
            "N": "3",
            "PAI_DATA_DIR": "/d",
            "PAI_OUTPUT_DIR": "hdfs://x/o",
            "PAI_CODE_DIR": "",
            "PAI_JOB_VC_NAME": "vc",
        },
        retry=Retry(count=-1, platform=0, conflict_secs=600.0),
        debug_secs=3600.0,
        time_limit_secs=172_800.0,
        queue_limit_secs=90.0,
        grace_secs=0.0,
        after=(After(compute_jid="user0001-abcdefgh-command"),),
    )


def test_every_key_of_a_role() -> None:
    made_ = role(
        tasks=3,
        command=["x"],
        env={"A": 1},
        cpu=2,
        memory="1.5GB",
        shm=128,
        gpu=1,
        ports={"a": 2, "b": {"begin": 5000, "count": 3}, "c": None},
        minFailed=None,
        minSucceeded=3,
        image="localhost:5000/a/b:c",
        volumes=["data", "/users/user0001/x"],
    )
    assert made_ == TaskRole(
        name="worker",
        tasks=3,
        command=("x",),
        env={"A": "1"},
        cpu=2,
        memory_mb=1536,
        shm_mb=128,
        gpu=1,
        ports=(Port(label="a", count=2), Port(label="b", begin=5000, count=3), Port(label="c")),
        min_failed=None,
        min_succeeded=3,
        image="localhost:5000/a/b:c",
        volumes=("data", "/users/user0001/x"),
    )


GOLDEN = sorted((pathlib.Path(__file__).parent / "golden").glob("*.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_job_files_of_released_versions_mean_the_same(path: pathlib.Path) -> None:
    """The runs that a released version made of these job files, at most three of each."""
    for golden in json.loads(path.read_text(encoding="utf-8")):
        specs = [one for runs in made(golden["file"]) for one in runs.specs]
        for one, right in zip(specs, golden["runs"], strict=False):
            said = msgspec.json.decode(msgspec.json.encode(one))
            assert {key: said[key] for key in right} == right
        assert len(specs) >= len(golden["runs"])


def test_the_image_of_a_job_is_that_of_every_role_that_names_none() -> None:
    made_ = spec(
        command=None,
        image="python:3.11",
        roles={
            "a": {"command": "x"},
            "b": {"command": "x", "image": "own"},
            "c": {"command": "x", "image": None},
        },
    )
    assert [r.image for r in made_.roles] == ["python:3.11", "own", "python:3.11"]
    assert [r.image for r in spec(command=None, roles={"a": {"command": "x"}}).roles] == [None]


@pytest.mark.parametrize(
    ("given_", "mb"),
    [
        (100, 100),
        ("2GB", 2048),
        ("2 gb", 2048),
        ("512MiB", 512),
        ("1.5G", 1536),
        ("1T", 2**20),
        ("300k", 1),
        (0.2, 1),
        ("700", 700),
    ],
)
def test_memory_is_in_mb_and_rounded_up(given_: Any, mb: int) -> None:
    assert role(memory=given_, shm=1).memory_mb == mb


@pytest.mark.parametrize(
    ("given_", "secs"),
    [
        (1.5, 1.5),
        ("90", 90.0),
        ("90s", 90.0),
        ("15m", 900.0),
        ("1H", 3600.0),
        ("0.5 d", 43_200.0),
        ("00:10:00", 600.0),
    ],
)
def test_times(given_: Any, secs: float) -> None:
    assert spec(timeLimit=given_).time_limit_secs == secs


@pytest.mark.parametrize(("given_", "count"), [(None, None), (-1, None), (1, 1), (2, 2)])
def test_thresholds_and_their_never(given_: Any, count: int | None) -> None:
    made_ = role(tasks=2, minFailed=given_, minSucceeded=given_)
    assert (made_.min_failed, made_.min_succeeded) == (count, count)


def test_little_memory_takes_the_default_shm_with_it() -> None:
    assert (role(memory=32).memory_mb, role(memory=32).shm_mb) == (32, 32)


def test_each_job_comes_after_those_it_waits_for_and_names_them_by_their_computejid() -> None:
    jobs = [
        job(name="c", after=["b", {"job": "a", "on": "any"}]),
        job(name="b", after=[{"job": "a", "on": "failed"}]),
        job(name="a"),
        job(name="d"),
    ]
    by_name = {m.job.name: m.specs[0] for m in made({"jobs": jobs})}
    assert list(by_name) == ["a", "d", "b", "c"]
    a, b = (f"{UID}-{by_name[n].simulation_id}-command" for n in "ab")
    assert by_name["b"].after == (After(compute_jid=a, on="failed"),)
    assert by_name["c"].after == (After(compute_jid=b, on="ok"), After(compute_jid=a, on="any"))
    assert len({s.simulation_id for s in by_name.values()}) == 4


def test_an_array_is_a_run_for_each_index_and_waited_for_in_all_of_them() -> None:
    first, second = made(
        {"jobs": [job(name="many", array="3,5-6%2"), job(name="then", after=["many"])]}
    )
    assert [s.env["ARRAY_INDEX"] for s in first.specs] == ["3", "5", "6"]
    assert {s.at_once for s in first.specs} == {2}
    assert [a.compute_jid for a in second.specs[0].after] == [
        f"{UID}-sim00001-command_{n}" for n in (3, 5, 6)
    ]


# ---- all errors at once


def test_everything_is_told_at_once_with_its_path() -> None:
    data = {
        "jobs": [
            {
                "name": "a b",
                "roles": {
                    "ps": {"tasks": 0, "comand": "x"},
                    "worker": {
                        "command": "x",
                        "tasks": 2,
                        "minFailed": 3,
                        "env": {"1": "x", "B": 1.5},
                    },
                },
            },
            {"command": ["x"], "after": ["nobody"], "debug": "soon", "retry": {"count": "2"}},
            7,
        ]
    }
    assert {p.path for p in problems(data)} == {
        "jobs[0].name",
        "jobs[0].roles.ps.tasks",
        "jobs[0].roles.ps.comand",
        "jobs[0].roles.ps.command",
        "jobs[0].roles.worker.minFailed",
        'jobs[0].roles.worker.env["1"]',
        "jobs[0].roles.worker.env.B",
        "jobs[1].name",
        "jobs[1].after[0]",
        "jobs[1].debug",
        "jobs[1].retry.count",
        "jobs[2]",
    }


@pytest.mark.parametrize(
    ("data", "path", "words"),
    [
        (None, "", ["nothing", "a job"]),
        ([job()], "", ["a list"]),
        ({"jobs": {}}, "jobs", ["an empty object", "a list of jobs"]),
        ({"jobs": []}, "jobs", ["1 to 1000"]),
        (
            {"jobs": [job(name=f"j{n}") for n in range(MAX_JOBS + 1)]},
            "jobs",
            ["1001 elements", "1 to 1000"],
        ),
        ({"jobs": [job()], "name": "x"}, "name", ["unknown key"]),
        ({"command": "x"}, "name", ["it is missing"]),
        (job(name=""), "name", ["letters"]),
        (job(name="a~b"), "name", ["letters"]),
        (job(name=3), "name", ["in quotes: '3'"]),
        ({"name": "x"}, "", ["`command`, or `roles`"]),
        (job(roles={"a": {"command": "x"}}), "command", ["inside of each role"]),
        (job(command=""), "command", ["empty"]),
        (job(command=" \n"), "command", ["empty"]),
        (job(command=[]), "command", ["0 words"]),
        (job(command=["x"] * 10_001), "command", ["10001 elements", "1 to 10000 words"]),
        (job(command=["", "x"]), "command[0]", ["first word"]),
        (job(command=["x", None]), "command[1]", ["nothing"]),
        (job(command=["x", 1.5]), "command[1]", ["in quotes: '1.5'"]),
        (job(command=["x", True]), "command[1]", ["in quotes: 'true'"]),
        (job(command={"a": 1}), "command", ["an object"]),
        (job(command="a\0b"), "command", ["NUL"]),
        (job(command="\ud800"), "command", ["lone surrogate"]),
        (job(command="x" * 131_072), "command", ["131071 bytes"]),
        (job(kind="paralel"), "kind", ["sequential, parallel"]),
        (job(driver="Local"), "driver", ["small letter"]),
        (job(timeLimt=3), "timeLimt", ["`timeLimit`"]),
        (job(jobEnvs={}), "jobEnvs", ["`env`"]),
        (job(timeLimit=0), "timeLimit", ["more than 0"]),
        (job(timeLimit="1y"), "timeLimit", ["'1h'"]),
        (job(timeLimit=float("nan")), "timeLimit", ["nan"]),
        (job(queueLimit="367d"), "queueLimit", ["at most 31,622,400"]),
        (job(debug=True), "debug", ["true"]),
        (job(grace=-1), "grace", ["0 to 3,600"]),
        (job(retry=3), "retry", ["it is 3", "an object"]),
        (job(retry={"count": -2}), "retry.count", ["-1 to"]),
        (job(retry={"platfrom": 1}), "retry.platfrom", ["`platform`"]),
        (job(env=["A"]), "env", ["NAME: value"]),
        (job(env={"A-B": "x"}), "env.A-B", ["not a valid name", "the name of a variable"]),
        (job(env={"JOBSCRIBE_X": "x"}), "env.JOBSCRIBE_X", ["prefix JOBSCRIBE_"]),
        (job(env={"API_TOKEN": "x"}), "env.API_TOKEN", ["looks like a secret"]),
        (job(env={"A": None}), "env.A", ["nothing"]),
        (job(env={"A": "x" * 131_070}), "env.A", ["too long together"]),
        (job(env={"PAI_DATA_DIR": "/x"}, dataDir="/y"), "env.PAI_DATA_DIR", ["`dataDir` sets it"]),
        (job(env={"ARRAY_INDEX": "1"}, array="1"), "env.ARRAY_INDEX", ["`array` sets it"]),
        ({**roles(), "env": {"PAI_TASK_INDEX": "1"}}, "env.PAI_TASK_INDEX", ["PAI_"]),
        (roles(env={"PAI_DATA_DIR": "1"}), "roles.worker.env.PAI_DATA_DIR", ["PAI_"]),
        (job(array=3), "array", ["a text"]),
        (job(array="0-9%0"), "array", ["%"]),
        (job(array="9-0"), "array", ["is reversed"]),
        (job(array="0-99999999"), "array", []),
        (job(after="y"), "after", ["a list"]),
        (job(after=[3]), "after[0]", ["it is 3"]),
        (job(after=[{"on": "ok"}]), "after[0].job", ["missing"]),
        (
            job(after=[{"job": "user0001-abcdefgh-command", "on": "sometimes"}]),
            "after[0].on",
            ["ok, any, failed"],
        ),
        (job(after=["user0002-abcdefgh-command"]), "after[0]", ["another user"]),
        (job(after=["x"]), "after", ["x -> x"]),
        (job(roles=[], command=None), "roles", ["an empty list"]),
        (job(roles={}, command=None), "roles", ["0 roles"]),
        (
            job(roles={"a-b": {"command": "x"}}, command=None),
            "roles.a-b",
            ["not a valid name", "the name of a role"],
        ),
        (job(roles={"a": None}, command=None), "roles.a", ["nothing", "an object"]),
        (job(roles={"a": {}}, command=None), "roles.a.command", ["it is missing"]),
        (roles(taskNumber=3), "roles.worker.taskNumber", ["`tasks`"]),
        (roles(tasks=0), "roles.worker.tasks", ["1 to 1,000"]),
        (roles(tasks="2"), "roles.worker.tasks", ["without quotes"]),
        (roles(tasks=2.0), "roles.worker.tasks", ["whole number"]),
        (roles(tasks=True), "roles.worker.tasks", ["true"]),
        (roles(tasks=10**400), "roles.worker.tasks", ["more than 64 bits"]),
        (roles(cpu=0), "roles.worker.cpu", ["1 to 100,000"]),
        (roles(gpu=-1), "roles.worker.gpu", ["0 to 1,000"]),
        (roles(memory="2 pounds"), "roles.worker.memory", ["'2GB'"]),
        (roles(memory=0), "roles.worker.memory", ["1 to"]),
        (roles(memory="1GB", shm="2GB"), "roles.worker.shm", ["at most the memory"]),
        (
            roles(minFailed=3),
            "roles.worker.minFailed",
            ["3 is more than the 2 tasks", "1 to 2, or null"],
        ),
        (roles(minSucceeded=3), "roles.worker.minSucceeded", ["3 is more than the 2 tasks"]),
        (roles(minSucceeded=0), "roles.worker.minSucceeded", ["1 to 2"]),
        (roles(minFailed=True), "roles.worker.minFailed", ["true"]),
        (roles(ports=[1]), "roles.worker.ports", ["label: count"]),
        (roles(ports={"a": 0}), "roles.worker.ports.a", ["1 to 256"]),
        (roles(ports={"a b": 1}), 'roles.worker.ports["a b"]', ["not a valid name", "a label"]),
        (
            roles(ports={"a": {"begin": 80}}),
            "roles.worker.ports.a.begin",
            ["80 is one of the machine's"],
        ),
        (
            roles(ports={"a": {"begin": 65_535, "count": 2}}),
            "roles.worker.ports.a.begin",
            ["exceed 65535"],
        ),
        (roles(ports={"a": {"beginAt": 5000}}), "roles.worker.ports.a.beginAt", ["`begin`"]),
        (
            roles(ports={"a": {"begin": 5000, "count": 3}, "b": {"begin": 5002}}),
            "roles.worker.ports.b",
            ["`a` also has port 5002"],
        ),
        (job(image="python:3.11"), "image", ["a job without roles", "`roles`"]),
        ({**roles(), "image": "Python"}, "image", ["capital letters", "python:3.11"]),
        ({**roles(), "image": 3}, "image", ["it is 3"]),
        (roles(image="a b"), "roles.worker.image", ['it contains " "']),
        (roles(image=""), "roles.worker.image", ["empty"]),
        (roles(image=["x"]), "roles.worker.image", ["a list"]),
        (roles(image="x" * 600), "roles.worker.image", ["600 characters"]),
        (roles(dockerImage="x"), "roles.worker.dockerImage", ["`image`"]),
        (roles(volumes="data"), "roles.worker.volumes", ["a list of names and paths"]),
        (roles(volumes={"a": "b"}), "roles.worker.volumes", ["a list of names and paths"]),
        (roles(volumes=["data", 3]), "roles.worker.volumes[1]", ["it is 3"]),
        (
            roles(volumes=["data", "a/b"]),
            "roles.worker.volumes[1]",
            ["relative path", "the absolute path"],
        ),
        (roles(volumes=["/a/../b"]), "roles.worker.volumes[0]", ["`..`"]),
        (roles(volumes=["/a\0"]), "roles.worker.volumes[0]", ["NUL"]),
        (
            roles(volumes=["data", "x", "data"]),
            "roles.worker.volumes[2]",
            ['"data" occurs twice'],
        ),
        (roles(volumes=["/a/b", "/a//b/"]), "roles.worker.volumes[1]", ["twice"]),
        (
            roles(volumes=[f"v{n}" for n in range(101)]),
            "roles.worker.volumes",
            ["101 elements", "at most 100"],
        ),
        (roles(mounts=["a"]), "roles.worker.mounts", ["`volumes`"]),
        (roles(tasks=1000, ports={"a": 3}), "roles", ["5000 ports", str(MAX_PORTS)]),
        (
            job(roles={f"r{n}": {"command": "x", "tasks": 600} for n in range(2)}, command=None),
            "roles",
            ["1200 tasks", str(MAX_TASKS)],
        ),
        (
            job(roles={f"r{n}x": {"command": "x"} for n in range(MAX_ROLES + 1)}, command=None),
            "roles",
            ["101 keys", "1 to 100 roles"],
        ),
    ],
)
def test_each_thing_that_is_wrong(data: object, path: str, words: list[str]) -> None:
    one(data, path, *words)


def test_unknown_keys_that_are_no_text_and_huge_ones() -> None:
    assert [p.path for p in problems({**job(), 3: 1, True: 2})] == ["", ""]
    long = problems({**job(), "x" * 500_000: 1})[0]
    assert len(long.path) < 100
    assert len(long.sentence()) < 500


def test_two_jobs_of_one_name() -> None:
    one(
        {"jobs": [job(name="a"), job(name="b"), job(name="a")]},
        "jobs[2].name",
        "jobs[0] has the same name",
    )


def test_circles_are_named_each_of_them() -> None:
    jobs = [
        job(name="a", after=["c"]),
        job(name="b", after=["a"]),
        job(name="c", after=["b"]),
        job(name="free", after=["b"]),
        job(name="p", after=["q"]),
        job(name="q", after=["p"]),
        job(name="alone", after=["alone"]),
    ]
    found = problems({"jobs": jobs})
    assert [p.path for p in found] == ["jobs[0].after", "jobs[4].after", "jobs[6].after"]
    assert [p.problem.partition(": ")[2] for p in found] == [
        "a -> c -> b -> a",
        "p -> q -> p",
        "alone -> alone",
    ]


def test_who_only_waits_for_a_circle_is_not_in_it() -> None:
    jobs = [
        job(name="outside", after=["between"]),
        job(name="between", after=["p"]),
        job(name="p", after=["q"]),
        job(name="q", after=["p"]),
    ]
    assert "other: p -> q -> p" in one({"jobs": jobs}, "jobs[2].after").problem


def test_a_long_circle_is_told_in_short() -> None:
    jobs = [job(name=f"j{n}", after=[f"j{(n + 1) % 900}"]) for n in range(900)]
    assert len(problems({"jobs": jobs})[0].problem) < 200


def test_a_dependency_that_is_none_has_the_nearest_name() -> None:
    one(
        {"jobs": [job(name="prepare"), job(name="b", after=["prepar"])]},
        "jobs[1].after[0]",
        'no job "prepar"',
        "`prepare`",
    )
    one(job(after=["nothing-like-it"]), "after[0]", "a computeJid")
    one(
        {"jobs": [job(name="a"), job(name="b", after=["a", {"job": "a", "on": "any"}])]},
        "jobs[1].after[1]",
        "twice",
    )


def test_a_short_text_cannot_stand_for_too_much() -> None:
    assert (
        problems({"jobs": [job(name=str(n), array="1-6000") for n in range(2)]})[0].path
        == "jobs[1].array"
    )
    big = {"name": "x", "command": "x" * 100_000, "array": f"1-{MAX_BULK}"}
    assert str(MAX_BYTES) in one(big, "array").right
    many = {"jobs": [job(name="a", array=f"1-{MAX_AFTER + 1}"), job(name="b", after=["a"])]}
    one(many, "jobs[1].after", "1001 runs")


def test_roles_whose_variables_have_one_name() -> None:
    two = {"a": {"command": "x", "ports": {"b_0_http": 1}}, "a_0_b": {"command": "x"}}
    one({"name": "x", "roles": two}, "roles", "two roles set PAI_a_0_b_0_http_PORT")


def test_thousands_of_problems_are_bounded() -> None:
    begun = time.process_time()
    found = problems({**job(), **{f"comand{n}": n for n in range(16_000)}})
    assert len(found) == MAX_PROBLEMS + 1
    assert "15000 more" in found[-1].problem
    jobs = [job(name=f"job-{n}", after=[f"jobb-{m}" for m in range(100)]) for n in range(MAX_JOBS)]
    assert len(problems({"jobs": jobs})) == MAX_PROBLEMS + 1
    # two seconds on an idle machine
    assert time.process_time() - begun < 30


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (roles(tasks=10, minSucceeded=2), "roles.worker.minSucceeded"),
        (roles(minFailed=None), "roles"),
        (roles(ports={"a": {"begin": 5000}}), "roles.worker.ports.a"),
        (job(retry={"count": -1}), "retry.count"),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(data: object, path: str) -> None:
    assert [w.path for w in parse_description(data).warnings] == [path]


@pytest.mark.parametrize(
    "data",
    [
        job(),
        roles(),
        roles(minSucceeded=1),
        roles(tasks=1, ports={"a": {"begin": 5000}}),
        job(retry={"count": -1}, timeLimit=5),
    ],
)
def test_what_is_meant_has_no_warnings(data: object) -> None:
    assert parse_description(data).warnings == ()


# ---- arbitrary input


_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 70_000)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=8)
    | st.sampled_from(
        ["x", "a", "1-3%2", "2GB", "1h", "ok", "parallel", "user0001-abcdefgh-command", "-1"]
    )
)
_keys = st.sampled_from(
    ["jobs", *JOB, *ROLE, "job", "on", "begin", "count", "a", "b", "PAI_DATA_DIR"]
) | st.text(max_size=5)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=5),
    max_leaves=25,
)
_names = st.sampled_from(["a", "b", "c"])
_roles = st.dictionaries(
    _names, st.fixed_dictionaries({}, optional=dict.fromkeys(ROLE, _values)) | _values, max_size=3
)
_jobs = st.fixed_dictionaries(
    {"name": _names | _values},
    optional={k: _roles if k == "roles" else _values for k in JOB if k != "name"}
    | {
        "command": st.just("x") | _values,
        "after": st.lists(_names | st.fixed_dictionaries({"job": _names}), max_size=3) | _values,
        "array": st.sampled_from(["1-3", "0"]) | _values,
    },
)


@settings(max_examples=5_000 if os.environ.get("SOAK") else 120, deadline=None)
@given(_values | _jobs | st.fixed_dictionaries({"jobs": st.lists(_jobs, max_size=4)}))
@pytest.mark.timeout(7200 if os.environ.get("SOAK") else 120)
def test_whatever_it_is_it_is_runs_or_problems_with_paths(data: object) -> None:
    """Accepted input has the structure of a run, also for the supervisor's decoder."""
    begun = time.process_time()
    try:
        all_runs = [s for m in made(data) for s in m.specs]
        assert all_runs
        assert msgspec.json.decode(msgspec.json.encode(all_runs), type=list[RunSpec]) == all_runs
    except InvalidDocument as e:
        assert e.problems
        assert msgspec.json.encode(e.problems)
        assert all(
            p.problem and p.right and p.path.isascii() and p.sentence().isprintable()
            for p in e.problems
        )
    assert time.process_time() - begun < 10


@given(st.lists(st.text(max_size=80) | st.integers(0, 99), max_size=6))
def test_paths_can_be_shortened_to_those_above_them(steps: list[str | int]) -> None:
    paths = [""]
    for step in steps:
        paths.append(member(paths[-1], step) if isinstance(step, str) else element(paths[-1], step))
    for path, parent in itertools.pairwise(reversed(paths)):
        assert above(path) == parent
