"""The plan of a run: it matches the real run, stores nothing, and blocks nobody."""

import asyncio
import json
import threading
import time
import urllib.request
from collections import Counter
from unittest.mock import MagicMock

import msgspec
import pytest
import tornado.httpclient
import tornado.httpserver
import tornado.testing
from access_kit import access
from in_memory_supervisor import InMemorySupervisor

from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.jobs.roles import MAX_TASKS, After, Port, Retry, TaskPlace, TaskRole
from jobscribe.protocol.launch import task_environment
from jobscribe.service.site.secret_rotation import fixed
from jobscribe.supervisor.api import routes
from jobscribe.supervisor.api.endpoints.submission import run_plans
from jobscribe.supervisor.api.transport.request_handler import ApiContext
from jobscribe.supervisor.api.transport.response_limits import ResponseLimits
from jobscribe.supervisor.core.resources.gang_allocator import Node, too_much
from jobscribe.supervisor.runs import plan as planning
from jobscribe.supervisor.runs.plan import plan, policies

JID, RUN_DIR, SERIAL = "user0001-sim00001-command", "/users/user0001/x", 7
BIG = (Node(host="node1", address="10.0.0.1", cpu=64, memory_mb=64_000, gpus=("0", "1")),)
SMALL = tuple(Node(host=f"node{n}", address=f"10.0.0.{n}", cpu=2, memory_mb=1_000) for n in (1, 2))
PS = TaskRole(name="ps", tasks=2, command=("python", "ps.py"), env={"ROLE": "ps"})
WORKER = TaskRole(
    name="worker",
    tasks=2,
    command=("python", "w.py"),
    gpu=1,
    ports=(Port(label="data", count=2),),
    min_succeeded=2,
)


def spec(*roles, **fields):
    return RunSpec(uid="user0001", simulation_id="sim00001", driver="local", roles=roles, **fields)


def planned(spec_, nodes=BIG):
    """Return the plan as the client reads it."""
    return json.loads(msgspec.json.encode(plan(nodes, spec_, RUN_DIR, JID, SERIAL)))


def test_two_and_two():
    s = spec(
        PS, WORKER, env={"MINE": "x", "APP_ID": "mine", "PAI_DATA_DIR": "/data"}, wrap=("nice",)
    )
    p = planned(s)
    assert [(t["role"], t["index"], t["host"], t["directory"]) for t in p["tasks"]] == [
        ("ps", 0, "node1", RUN_DIR + "/ps/0"),
        ("ps", 1, "node1", RUN_DIR + "/ps/1"),
        ("worker", 0, "node1", RUN_DIR + "/worker/0"),
        ("worker", 1, "node1", RUN_DIR + "/worker/1"),
    ]
    assert [(r["name"], r["command"], r["environment"]) for r in p["roles"]] == [
        ("ps", ["nice", "python", "ps.py"], {"ROLE": "ps"}),
        ("worker", ["nice", "python", "w.py"], {}),
    ]
    assert {
        k: p["roles"][1][k]
        for k in ("tasks", "cpu", "memoryMb", "shmMb", "gpu", "minFailed", "minSucceeded")
    } == {
        "tasks": 2,
        "cpu": 1,
        "memoryMb": 100,
        "shmMb": 64,
        "gpu": 1,
        "minFailed": 1,
        "minSucceeded": 2,
    }
    assert [x["label"] for x in p["roles"][1]["ports"]] == ["data", "http", "ssh"]
    assert (p["computeJid"], p["computeJobSerial"], p["attempt"], p["driver"]) == (
        JID,
        SERIAL,
        1,
        "local",
    )
    assert p["tasks"][3]["token"] == f"{JID}/{SERIAL}/1/worker/1"
    gpus = [t["environment"]["CUDA_VISIBLE_DEVICES"] for t in p["tasks"]]
    assert gpus[:2] == ["", ""]
    assert sorted(gpus[2:]) == ["0", "1"]


def test_what_the_tasks_would_find_is_what_they_find():
    """The test uses the functions of a real run with the places named in the plan."""
    s = spec(PS, WORKER, env={"MINE": "x", "PAI_DATA_DIR": "/data"})
    p = planned(s)
    places = [
        msgspec.convert({k: t[k] for k in TaskPlace.__struct_encode_fields__}, TaskPlace)
        for t in p["tasks"]
    ]
    shared = task_environment.shared(s, JID, SERIAL, 1, places)
    assert p["environment"] == {**shared.env, "MINE": "x"}
    assert p["environment"]["PAI_DATA_DIR"] == "/data"
    assert p["jobJson"] == shared.job
    for place, task in zip(places, p["tasks"], strict=True):
        assert task["environment"] == {
            **task_environment.own(s, JID, SERIAL, 1, place),
            "PAI_WORK_DIR": task["directory"],
        }


def test_what_the_run_says_wins_where_it_may():
    p = planned(spec(PS, env={"APP_ID": "mine"}))
    assert p["environment"]["APP_ID"] == "mine"


def test_no_two_tasks_would_have_one_port_of_a_host():
    p = planned(
        spec(
            PS,
            WORKER,
            TaskRole(name="fixed", command=("x",), ports=(Port(label="a", begin=30_001, count=3),)),
        )
    )
    taken = Counter(port for t in p["tasks"] for numbers in t["ports"].values() for port in numbers)
    assert set(taken.values()) == {1}
    assert p["tasks"][4]["ports"]["a"] == [30_001, 30_002, 30_003]


def test_tasks_are_spread_over_what_there_is():
    p = planned(spec(TaskRole(name="w", tasks=4, command=("x",))), SMALL)
    assert Counter(t["host"] for t in p["tasks"]) == {"node1": 2, "node2": 2}
    addresses = dict.fromkeys(n.host for n in SMALL) | {n.host: n.address for n in SMALL}
    assert [h.split(":")[0] for h in p["environment"]["PAI_TASK_ROLE_w_HOST_LIST"].split(",")] == [
        addresses[t["host"]] for t in p["tasks"]
    ]


@pytest.mark.parametrize(
    ("nodes", "role", "words"),
    [
        (SMALL, TaskRole(name="w", command=("x",), cpu=3), ("w", "3 cores", "2")),
        (SMALL, TaskRole(name="w", tasks=5, command=("x",)), ("w", "5 cores", "4")),
        (SMALL, TaskRole(name="w", command=("x",), memory_mb=1_001), ("w", "1001 MiB", "1000")),
        (BIG, TaskRole(name="w", command=("x",), gpu=3), ("w", "3 GPUs", "2")),
        (
            SMALL,
            TaskRole(name="w", tasks=3, command=("x",), ports=(Port(label="a", begin=2000),)),
            ("w", "2000"),
        ),
        ((), TaskRole(name="w", command=("x",)), ("no host",)),
    ],
)
def test_what_would_not_fit_an_empty_site(nodes, role, words):
    with pytest.raises(Refusal) as e:
        plan(nodes, spec(role), RUN_DIR, JID, SERIAL)
    assert (e.value.code, e.value.http) == ("resourceExceeded", 400)
    assert e.value.sentence == too_much(nodes, (role,)), "the same that a submission is told"
    for word in words:
        assert word in e.value.sentence


def test_a_plain_run_has_one_task():
    p = planned(
        RunSpec(
            uid="user0001",
            simulation_id="sim00001",
            command=("echo", "hi"),
            wrap=("nice",),
            env={"A": "1"},
        ),
        (),
    )
    assert (p["environment"], p["jobJson"], p["policies"]) == (
        {"A": "1"},
        None,
        ["There are no retries."],
    )
    assert p["roles"] == [
        {"name": "main", "tasks": 1, "command": ["nice", "echo", "hi"], "environment": {}}
    ]
    (task,) = p["tasks"]
    assert (task["role"], task["index"], task["directory"], task["token"]) == (
        "main",
        0,
        RUN_DIR,
        f"{JID}/{SERIAL}/1/main/0",
    )


def test_the_command_of_an_app_is_not_known_before_it_is_prepared():
    p = planned(
        RunSpec(
            uid="user0001",
            simulation_id="sim00001",
            simulation_type="heat",
            compute_model="m",
            data={},
        ),
        (),
    )
    assert p["roles"][0]["command"] is None
    assert p["simulationType"] == "heat"


def test_the_rules_in_words():
    s = spec(
        TaskRole(name="ps", tasks=2, command=("x",), min_failed=None),
        TaskRole(name="worker", tasks=3, command=("x",), min_succeeded=3),
        TaskRole(name="one", command=("x",)),
        retry=Retry(count=2, platform=-1, conflict_secs=60),
        time_limit_secs=3600,
        queue_limit_secs=60,
        grace_secs=5,
        debug_secs=600,
        at_once=4,
        after=(
            After(compute_jid="user0001-sim00002-command", on="failed"),
            After(compute_jid="user0001-sim00003-command", compute_job_serial=9),
        ),
    )
    assert policies(s) == [
        "It starts after the run of user0001-sim00002-command has ended without success.",
        "It starts after run 9 of user0001-sim00003-command has completed.",
        "At most 4 of the user's runs of this simulation run at the same time.",
        "Failed tasks of role ps do not fail the attempt.",
        "The attempt fails if 1 of 3 tasks of role worker failed.",
        "The attempt succeeds if each of 3 tasks of role worker succeeded; then the other tasks are stopped.",
        "The attempt fails if the only task of role one failed.",
        "If all tasks have ended and none of these conditions was met, the attempt succeeds, even if some tasks failed.",
        "After a failure of unknown kind, such as an ordinary exit code, the run is retried at most 2 times.",
        "After a failure of the platform or a resource conflict, the run is retried without limit; after a conflict, the pause is at least 60 s.",
        "After a permanent failure, the run is not retried.",
        "Each task is stopped 3600 s after its start, with a grace time of 5 s.",
        "The run is canceled if it has not started 60 s after its submission.",
        "A task that fails by itself is held for debugging for 600 s, with all its resources.",
    ]
    assert policies(spec(PS, retry=Retry(count=1, platform=0)))[-3:-1] == [
        "After a failure of unknown kind, such as an ordinary exit code, the run is retried once.",
        "After a failure of the platform or a resource conflict, the run is not retried; after a conflict, the pause is at least 600 s.",
    ]


def test_a_plan_does_not_grow_with_what_its_tasks_share():
    long = TaskRole(name="w", tasks=MAX_TASKS, command=("x" * 400_000,), env={"A": "x" * 100_000})
    node = Node(host="n", address="10.0.0.1", cpu=1_000, memory_mb=100_000)
    assert len(msgspec.json.encode(plan((node,), spec(long), RUN_DIR, JID, SERIAL))) < 4_000_000


# ---- over HTTP


class Front:
    """The API listener of an in-memory supervisor, on loopback."""

    def __init__(self, nodes, secret="secret"):
        self.in_memory = InMemorySupervisor()
        policy = msgspec.structs.replace(
            self.in_memory.engine.policy,
            nodes={"local": nodes},
            time_limit_secs=77.0,
            serial_floor=5,
        )
        self.in_memory.engine.policy = policy
        desk, calls, live = self.in_memory.desk, self.in_memory.calls, self.in_memory.live
        here = {
            "runs": desk,
            "calls": calls,
            "live": live,
            "secret": fixed(secret),
            "access": access(secret),
            "unsent": ResponseLimits(),
            "monitoring": MagicMock(),
        }
        self.services = ApiContext(**{**dict.fromkeys(ApiContext._fields), **here})

    async def __aenter__(self):
        socket, port = tornado.testing.bind_unused_port()
        self._server = tornado.httpserver.HTTPServer(routes.application(self.services))
        self._server.add_sockets([socket])
        self.url = f"http://127.0.0.1:{port}/api/run-plan"
        return self

    async def __aexit__(self, *_):
        self._server.stop()
        await self._server.close_all_connections()

    async def ask(self, run, **more):
        response = await tornado.httpclient.AsyncHTTPClient(force_instance=True).fetch(
            self.url,
            method="POST",
            body=json.dumps({"run": run, **more}),
            headers={"Authorization": "Bearer secret"},
            raise_error=False,
        )
        return response.code, json.loads(response.body)


def run(*roles, **fields):
    return {"uid": "user0001", "simulationId": "sim00001", "roles": roles, **fields}


W = {"name": "w", "tasks": 2, "command": ["true"]}


async def test_a_plan_is_asked_for_and_nothing_is_stored():
    async with Front(BIG) as front:
        head = front.in_memory.store.head()
        code, p = await front.ask(run(W))
        assert code == 200
        assert (p["state"], p["computeJid"], len(p["tasks"])) == ("ok", JID, 2)
        assert p["tasks"][1]["directory"] == "/users/user0001/command/sim00001/command/w/1"
        assert (
            "Each task is stopped 77 s after its start, with a grace time of 3 s." in p["policies"]
        ), "the limits of the house count"
        assert (
            front.in_memory.store.head(),
            front.in_memory.started,
            front.in_memory.launched,
        ) == (
            head,
            [],
            [],
        )


async def test_the_serial_is_one_that_the_run_could_have():
    async with Front(BIG) as front:
        code, p = await front.ask(run(W))
        assert (code, p["computeJobSerial"]) == (200, int(front.in_memory.now().wall))
        jid = await front.in_memory.submitted(1)
        serial = front.in_memory.serial(jid)
        assert (await front.ask(run(W)))[1]["computeJobSerial"] == serial + 1


@pytest.mark.parametrize(
    ("asked", "code", "word"),
    [
        (run(W, W), "badRequest", "2 roles have the name 'w'"),
        (run(W, command=["x"]), "badRequest", "either"),
        (run(W, driver="slurm"), "badRequest", "slurm"),
        (run({**W, "cpu": 65}), "resourceExceeded", "65 cores"),
        (run({**W, "nope": 1}), "badRequest", "nope"),
        (run(), "badRequest", "roles"),
        (run(W, simulationType="nope"), "unknownApp", "nope"),
    ],
)
async def test_what_a_submission_would_be_refused_for(asked, code, word):
    async with Front(BIG) as front:
        http, answer = await front.ask(asked)
        assert (http // 100, answer["code"]) == (4, code)
        assert word in answer["error"]
        assert front.in_memory.store.head() == 0


async def test_no_plan_without_the_secret():
    async with Front(BIG, secret="another") as front:
        assert (await front.ask(run(W)))[0] == 401


async def test_the_loop_serves_others_meanwhile(monkeypatch):
    """The plan is computed in another thread while the loop goes on."""
    loop_thread = threading.get_ident()
    may_end, seen = threading.Event(), []

    def slow(*args):
        seen.append(threading.get_ident())
        assert may_end.wait(30)
        return planning.plan(*args)

    monkeypatch.setattr(run_plans, "plan", slow)
    async with Front(BIG) as front:
        asked = asyncio.create_task(front.ask(run(W)))
        async with asyncio.timeout(30):
            while not seen:
                await asyncio.sleep(0.001)
        assert not asked.done()
        may_end.set()
        assert (await asked)[0] == 200
    assert seen != [loop_thread]


async def test_a_thousand_tasks_are_planned_within_a_second_and_nobody_waits_long_for_the_loop():
    """The limits are 1 s and 50 ms, times five for busy machines. The client has its own thread.

    Both are measured as CPU time of this process, in all its threads. So the load of other
    processes does not count.
    """
    worst, over = 0.0, False

    async def watch():
        nonlocal worst
        while not over:
            before = time.process_time()
            await asyncio.sleep(0)
            worst = max(worst, time.process_time() - before)

    roles = [
        {**W, "name": f"w{n}", "tasks": 10, "ports": [{"label": "a"}, {"label": "b"}]}
        for n in range(100)
    ]
    async with Front(
        (
            Node(
                host="n",
                address="10.0.0.1",
                cpu=1_000,
                memory_mb=100_000,
                first_port=20_000,
                last_port=30_000,
            ),
        )
    ) as front:
        request = urllib.request.Request(
            front.url, json.dumps({"run": run(*roles)}).encode(), {"Authorization": "Bearer secret"}
        )
        watcher = asyncio.create_task(watch())
        before = time.process_time()
        body = await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=60).read())
        took, over = time.process_time() - before, True
        await watcher
    assert len(json.loads(body)["tasks"]) == MAX_TASKS
    print(f"took {took:.3f} s, the loop stood still for {worst * 1000:.1f} ms at most")
    assert took < 5.0
    assert worst < 0.25
