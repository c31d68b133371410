"""The environment of tasks: golden files for whole runs, and refused environments.

A golden file has `NAME=value` lines, sorted by name. Run this file with a folder as its argument to
write the current values there. Check the differences before you replace a golden file.
"""

import json
import pathlib
import random
import sys

import msgspec
import pytest

from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.jobs.roles import MAX_TASKS, Port, TaskPlace, TaskRole
from jobscribe.protocol.launch import task_environment

GOLDEN = pathlib.Path(__file__).parent / "golden_env"
JID, SERIAL, ATTEMPT = "user0001-sim00001-command", 1_700_000_000, 2
WORDS = ("true",)


def spec(*roles, **more):
    return RunSpec(uid="user0001", simulation_id="sim00001", roles=roles, **more)


def place(role, index, address, gpus=(), host="node5", **ports):
    return TaskPlace(role=role, index=index, host=host, address=address, gpus=gpus, ports=ports)


#: the 2 + 2 example of the OpenPAI guides
TENSORFLOW = (
    spec(
        TaskRole(
            name="ps_server",
            tasks=2,
            command=WORDS,
            cpu=2,
            memory_mb=8192,
            ports=(Port(label="http"), Port(label="ssh")),
        ),
        TaskRole(
            name="worker", tasks=2, command=WORDS, cpu=4, memory_mb=16384, gpu=0, min_succeeded=2
        ),
        sim_name="tensorflow-distributed",
        env={"PAI_DATA_DIR": "file:///data/cifar", "OTHER": "x"},
    ),
    (
        place("ps_server", 0, "10.0.0.5", http=(23000,), ssh=(23001,)),
        place("ps_server", 1, "10.0.0.5", http=(23002,), ssh=(23003,)),
        place("worker", 0, "10.0.0.5", http=(23004,), ssh=(23005,)),
        place("worker", 1, "10.0.0.5", http=(23006,), ssh=(23007,)),
    ),
)
#: ports that the run itself chose, several ports of one label, implied ports named by the role, two
#: hosts
STATIC = (
    spec(
        TaskRole(
            name="mpi",
            tasks=2,
            command=WORDS,
            min_failed=None,
            ports=(
                Port(label="data", count=3, begin=20_000),
                Port(label="http", count=2),
                Port(label="ctl", begin=21_000),
            ),
        ),
        env={
            "PAI_OUTPUT_DIR": "/out",
            "PAI_CODE_DIR": "/code",
            "PAI_DEFAULT_FS_URI": "file:///store",
            "PAI_JOB_VC_NAME": "night",
        },
    ),
    (
        place(
            "mpi",
            0,
            "10.0.0.5",
            data=(20000, 20001, 20002),
            http=(30000, 30007),
            ctl=(21000,),
            ssh=(30001,),
        ),
        place(
            "mpi",
            1,
            "10.0.0.6",
            host="node6",
            data=(20000, 20001, 20002),
            http=(30000, 30001),
            ctl=(21000,),
            ssh=(30002,),
        ),
    ),
)
SINGLE = (
    spec(TaskRole(name="main", command=WORDS)),
    (place("main", 0, "127.0.0.1", host="localhost", http=(30000,), ssh=(30001,)),),
)
GPUS = (
    spec(
        TaskRole(
            name="train", tasks=2, command=WORDS, gpu=2, shm_mb=512, min_failed=2, min_succeeded=1
        ),
        TaskRole(name="log", command=WORDS),
    ),
    (
        place("train", 0, "10.0.0.5", gpus=("0", "3"), http=(30000,), ssh=(30001,)),
        place(
            "train",
            1,
            "fd00::6",
            host="node6",
            gpus=("GPU-8d2c", "GPU-77aa"),
            http=(30000,),
            ssh=(30001,),
        ),
        place("log", 0, "10.0.0.5", http=(30002,), ssh=(30003,)),
    ),
)
RUNS = {"tensorflow": TENSORFLOW, "static": STATIC, "single": SINGLE, "gpus": GPUS}


def shared(run):
    return task_environment.shared(run[0], JID, SERIAL, ATTEMPT, run[1])


def own(run, n):
    return task_environment.own(run[0], JID, SERIAL, ATTEMPT, run[1][n])


def files(name):
    """Return the expected golden files of a run: name -> text."""
    run = RUNS[name]
    out = {
        f"{name}.env": shared(run).env,
        **{f"{name}.{p.role}-{p.index}.env": own(run, n) for n, p in enumerate(run[1])},
    }
    told = {
        file: "".join(f"{k}={v}\n" for k, v in sorted(env.items())) for file, env in out.items()
    }
    return {**told, f"{name}.job.json": shared(run).job}


@pytest.mark.parametrize("name", RUNS)
def test_it_is_what_it_always_was(name):
    written = files(name)
    assert written == {file: (GOLDEN / file).read_text("utf-8") for file in written}


def test_every_golden_file_belongs_to_a_run():
    assert {p.name for p in GOLDEN.iterdir()} == {file for name in RUNS for file in files(name)}


def test_the_guides_example_word_for_word():
    env = {**shared(TENSORFLOW).env, **own(TENSORFLOW, 3)}
    lines = """PAI_JOB_TASK_COUNT=4  PAI_JOB_TASK_ROLE_COUNT=2  PAI_JOB_TASK_ROLE_LIST=ps_server,worker
        PAI_TASK_ROLE_ps_server_HOST_LIST=10.0.0.5:23000,10.0.0.5:23002
        PAI_TASK_ROLE_worker_HOST_LIST=10.0.0.5:23004,10.0.0.5:23006
        PAI_worker_1_ssh_PORT=23007   PAI_CONTAINER_HOST_PORT_LIST=http:23006;ssh:23007"""
    expected = dict(word.split("=") for word in lines.split())
    assert {name: env[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("run", "n", "name", "value"),
    [
        (TENSORFLOW, 0, "PAI_JOB_NAME", "tensorflow-distributed"),
        (SINGLE, 0, "PAI_JOB_NAME", "sim00001"),
        (TENSORFLOW, 0, "PAI_FRAMEWORK_NAME", "user0001~tensorflow-distributed"),
        (TENSORFLOW, 0, "FRAMEWORK_NAME", "user0001~tensorflow-distributed"),
        (SINGLE, 0, "PAI_USER_NAME", "user0001"),
        (SINGLE, 0, "PAI_USERNAME", "user0001"),
        (SINGLE, 0, "PAI_JOB_VC_NAME", "default"),
        (STATIC, 0, "PAI_JOB_VC_NAME", "night"),
        (SINGLE, 0, "PAI_DEFAULT_FS_URI", "file:///"),
        (STATIC, 0, "PAI_DEFAULT_FS_URI", "file:///store"),
        (SINGLE, 0, "PAI_DATA_DIR", ""),
        (TENSORFLOW, 0, "PAI_DATA_DIR", "file:///data/cifar"),
        (SINGLE, 0, "PAI_OUTPUT_DIR", ""),
        (STATIC, 0, "PAI_OUTPUT_DIR", "/out"),
        (SINGLE, 0, "PAI_CODE_DIR", ""),
        (STATIC, 0, "PAI_CODE_DIR", "/code"),
        (SINGLE, 0, "APP_ID", "user0001-sim00001-command-1700000000-2"),
        (GPUS, 1, "PAI_CONTAINER_ID", "user0001-sim00001-command-1700000000-2-train-1"),
        (GPUS, 1, "PAI_CURRENT_TASK_ROLE_NAME", "train"),
        (GPUS, 1, "PAI_CURRENT_TASK_ROLE_TASK_COUNT", "2"),
        (TENSORFLOW, 3, "PAI_CURRENT_TASK_ROLE_CPU_COUNT", "4"),
        (TENSORFLOW, 3, "PAI_CURRENT_TASK_ROLE_MEM_MB", "16384"),
        (GPUS, 1, "PAI_CURRENT_TASK_ROLE_SHM_MB", "512"),
        (GPUS, 1, "PAI_CURRENT_TASK_ROLE_GPU_COUNT", "2"),
        (GPUS, 0, "PAI_CURRENT_TASK_ROLE_MIN_FAILED_TASK_COUNT", "2"),
        (GPUS, 0, "PAI_CURRENT_TASK_ROLE_MIN_SUCCEEDED_TASK_COUNT", "1"),
        (STATIC, 0, "PAI_CURRENT_TASK_ROLE_MIN_FAILED_TASK_COUNT", ""),
        (STATIC, 0, "PAI_CURRENT_TASK_ROLE_MIN_SUCCEEDED_TASK_COUNT", ""),
        (GPUS, 1, "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "1"),
        (GPUS, 1, "PAI_TASK_INDEX", "1"),
        (GPUS, 1, "PAI_TASK_ROLE_INDEX", "1"),
        (STATIC, 1, "PAI_CONTAINER_HOST_IP", "10.0.0.6"),
        (STATIC, 1, "PAI_CURRENT_CONTAINER_IP", "10.0.0.6"),
        (
            STATIC,
            0,
            "PAI_CONTAINER_HOST_PORT_LIST",
            "data:20000,20001,20002;http:30000,30007;ctl:21000;ssh:30001",
        ),
        (STATIC, 0, "PAI_CONTAINER_HOST_http_PORT_LIST", "30000,30007"),
        (STATIC, 0, "PAI_CONTAINER_HOST_ssh_PORT_LIST", "30001"),
        (STATIC, 0, "PAI_CONTAINER_HOST_PORT", "30000"),
        (STATIC, 0, "PAI_CONTAINER_SSH_PORT", "30001"),
        (STATIC, 0, "PAI_TASK_ROLE_mpi_HOST_LIST", "10.0.0.5:30000,10.0.0.6:30000"),
        (STATIC, 1, "PAI_mpi_0_http_PORT", "30000,30007"),
        (GPUS, 2, "PAI_TASK_ROLE_train_HOST_LIST", "10.0.0.5:30000,[fd00::6]:30000"),
        (STATIC, 1, "PAI_PORT_LIST_mpi_0_data", "20000,20001,20002"),
        (STATIC, 1, "PAI_HOST_IP_mpi_0", "10.0.0.5"),
        (GPUS, 2, "PAI_TASK_ROLE_COUNT", "2"),
        (GPUS, 2, "PAI_TASK_ROLE_LIST", "train,log"),
        (GPUS, 2, "PAI_TASK_ROLE_TASK_COUNT_train", "2"),
        (GPUS, 2, "PAI_RESOURCE_train", "2,1,100,512"),
        (TENSORFLOW, 0, "PAI_RESOURCE_worker", "0,4,16384,64"),
        (GPUS, 2, "PAI_MIN_FAILED_TASK_COUNT_train", "2"),
        (GPUS, 2, "PAI_MIN_SUCCEEDED_TASK_COUNT_log", ""),
        (GPUS, 2, "PAI_TASK_ROLE_INSTANCES", "train:0,train:1,log:0"),
        (GPUS, 0, "CUDA_VISIBLE_DEVICES", "0,3"),
        (GPUS, 1, "CUDA_VISIBLE_DEVICES", "GPU-8d2c,GPU-77aa"),
        (GPUS, 2, "CUDA_VISIBLE_DEVICES", ""),
    ],
)
def test_each_variable(run, n, name, value):
    assert {**shared(run).env, **own(run, n)}[name] == value


@pytest.mark.parametrize("name", RUNS)
def test_what_is_shared_and_what_is_ones_own(name):
    """No variable is in both parts. The run's own variables are in neither: the starter of the task
    adds them.
    """
    run = RUNS[name]
    assert "OTHER" not in shared(run).env
    owns = [own(run, n) for n in range(len(run[1]))]
    for env in owns:
        assert not env.keys() & shared(run).env.keys()
    assert len({json.dumps(env) for env in owns}) == len(owns)


@pytest.mark.parametrize("name", RUNS)
def test_job_json_says_the_same(name):
    run = RUNS[name]
    said = json.loads(shared(run).job)
    assert said["attempt"] == ATTEMPT
    assert said["job"]["computeJid"] == JID
    assert said["job"]["name"] == shared(run).env["PAI_JOB_NAME"]
    assert [r["name"] for r in said["roles"]] == shared(run).env["PAI_TASK_ROLE_LIST"].split(",")
    assert msgspec.convert(said["tasks"], tuple[TaskPlace, ...]) == run[1]


def test_places_may_come_in_any_order():
    places = list(TENSORFLOW[1])
    for _ in range(5):
        random.shuffle(places)
        assert shared((TENSORFLOW[0], places)) == shared(TENSORFLOW)


@pytest.mark.parametrize(
    "places",
    [
        (),
        TENSORFLOW[1][:3],
        TENSORFLOW[1][1:],
        (*TENSORFLOW[1][:3], TENSORFLOW[1][0]),
        (*TENSORFLOW[1], TENSORFLOW[1][0]),
        (*TENSORFLOW[1], place("worker", 2, "10.0.0.5", http=(1,), ssh=(2,))),
        (*TENSORFLOW[1][:3], place("other", 1, "10.0.0.5", http=(1,), ssh=(2,))),
        (*TENSORFLOW[1][:3], place("worker", 1, "10.0.0.5", http=(1,))),
        (*TENSORFLOW[1][:3], place("worker", 1, "10.0.0.5", http=(), ssh=(2,))),
        (*TENSORFLOW[1][:3], place("worker", 1, "10.0.0.5", http=(1,), ssh=(2,), more=(3,))),
        (*TENSORFLOW[1][:3], place("worker", 1, "10.0.0.5", http=(1, 2), ssh=(3,))),
    ],
)
def test_places_that_are_not_one_for_each_task(places):
    with pytest.raises(ValueError, match="place"):
        task_environment.shared(TENSORFLOW[0], JID, SERIAL, ATTEMPT, places)


@pytest.mark.parametrize(
    "wrong",
    [
        place("worker", 2, "x", http=(1,), ssh=(2,)),
        place("x", 0, "x"),
        place("worker", 0, "x", http=(1,)),
    ],
)
def test_a_place_of_no_task(wrong):
    with pytest.raises(ValueError, match=r"task|place"):
        task_environment.own(TENSORFLOW[0], JID, SERIAL, ATTEMPT, wrong)


@pytest.mark.parametrize("name", RUNS)
def test_how_many_there_are_is_known_before(name):
    run = RUNS[name]
    assert task_environment.max_variables(run[0].roles) == len(shared(run).env) + max(
        len(own(run, n)) for n in range(len(run[1]))
    )


def labeled(name, *labels):
    return TaskRole(name=name, command=WORDS, ports=tuple(Port(label=label) for label in labels))


@pytest.mark.parametrize(
    ("roles", "name"),
    [
        ((labeled("a", "b_0_http"), labeled("a_0_b")), "PAI_a_0_b_0_http_PORT"),
        ((labeled("x", "http_PORT"), labeled("PORT_LIST_x")), "PAI_PORT_LIST_x_0_http_PORT"),
        ((labeled("TASK_COUNT_x"), labeled("x_HOST_LIST")), "PAI_TASK_ROLE_TASK_COUNT_x_HOST_LIST"),
        ((labeled("RESOURCE_x"), labeled("x_0_http_PORT")), "PAI_RESOURCE_x_0_http_PORT"),
        ((labeled("a"), labeled("a_0_b")), None),
        ((labeled("PORT_LIST_x"), labeled("x")), None),
        ((labeled("a"), labeled("b")), None),
    ],
)
def test_two_variables_of_one_name(roles, name):
    assert task_environment.find_name_conflict(roles) == name
    places = [place(r.name, 0, "10.0.0.5", **{p.label: (1,) for p in r.all_ports()}) for r in roles]
    if name is None:
        assert task_environment.shared(spec(*roles), JID, SERIAL, ATTEMPT, places)
    else:
        with pytest.raises(ValueError, match=name):
            task_environment.shared(spec(*roles), JID, SERIAL, ATTEMPT, places)


def test_names_that_look_alike_are_told_apart_before_anything_is_counted():
    """`clash` examines only names that could collide. Compare its result with a full check for all
    pairs of these parts.
    """
    parts = [
        "a",
        "a_0_b",
        "a_0",
        "PORT_LIST_a",
        "RESOURCE_a",
        "MIN_FAILED_TASK_COUNT_a",
        "TASK_COUNT_a",
        "TASK_ROLE_TASK_COUNT_a",
        "HOST_IP_a",
        "a_HOST_LIST",
        "a_0_http_PORT",
        "CONTAINER_HOST",
        "JOB",
    ]
    labels = ["b", "b_0_http", "http_PORT", "b_0_http_PORT"]
    found = 0
    for first in parts:
        for second in parts:
            if first != second:
                roles = (labeled(first, *labels), labeled(second, *labels))
                places = [
                    place(r.name, 0, "10.0.0.5", **{p.label: (1,) for p in r.all_ports()})
                    for r in roles
                ]
                try:
                    task_environment.shared(spec(*roles), JID, SERIAL, ATTEMPT, places)
                    assert task_environment.find_name_conflict(roles) is None, (first, second)
                except ValueError:
                    assert task_environment.find_name_conflict(roles), (first, second)
                    found += 1
    assert found > 10


def test_a_thousand_tasks_know_each_other():
    run = (
        spec(TaskRole(name="w", tasks=MAX_TASKS, command=WORDS)),
        [
            place("w", i, f"10.0.{i // 250}.{i % 250}", http=(30_000 + i,), ssh=(20_000 + i,))
            for i in range(MAX_TASKS)
        ],
    )
    hosts = shared(run).env["PAI_TASK_ROLE_w_HOST_LIST"].split(",")
    assert hosts == [f"10.0.{i // 250}.{i % 250}:{30_000 + i}" for i in range(MAX_TASKS)]
    assert len(json.loads(shared(run).job)["tasks"]) == MAX_TASKS


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in RUNS:
        for file, text in files(name).items():
            (folder / file).write_text(text, "utf-8")
