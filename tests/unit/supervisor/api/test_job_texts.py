"""Job files as text: what a user may request, all problems with their lines, the dry run of the
command line, and the submission of all jobs or none.
"""

import asyncio
import contextlib
import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
from in_memory_supervisor import UID, InMemorySupervisor

from jobscribe.protocol.api.requests import JobCheck, JobOptions, JobTag, RunText
from jobscribe.protocol.clusters.queues import Queue, Queues, UserLimits
from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.access.principal import OPERATOR
from jobscribe.supervisor.api.endpoints.submission import job_texts
from jobscribe.supervisor.core.resources.bin_packing import Node
from jobscribe.supervisor.core.state.configuration import CoreConfig
from jobscribe.supervisor.runs.job_options import options
from jobscribe.supervisor.runs.search.search_slots import MAX_OF_USER

GOOD = "name: x\ntimeLimit: 1h\ncommand: |\n  echo one\n  echo two\n"
VERSION1 = """{
  "jobName": "numbers",
  "image": "python:3.11",
  "taskRoles": [
    {"name": "worker", "taskNumber": 2, "cpuNumber": 1, "memoryMB": "lots", "comand": "python3 x.py"}
  ]
}
"""


def handler(in_memory: InMemorySupervisor, request: object) -> Any:
    services = SimpleNamespace(clusters=None)
    return SimpleNamespace(
        parsed=lambda *_: request,
        runs=in_memory.desk,
        services=services,
        principal=OPERATOR,
        log=MagicMock(),
    )


async def checked(
    text: str, in_memory: InMemorySupervisor | None = None, **fields: Any
) -> dict[str, Any]:
    in_memory = in_memory or InMemorySupervisor()
    head = in_memory.engine.store.head()
    said = await job_texts.job_check(handler(in_memory, JobCheck(uid=UID, text=text, **fields)))
    assert in_memory.engine.store.head() == head, "a check stores nothing"
    return dict(said)


def places(said: dict[str, Any]) -> list[tuple[int | None, str]]:
    assert said["jobs"] == [] and "command" not in said
    assert all(p.problem and p.right and p.file is None for p in said["problems"])
    return [(p.line, p.path) for p in said["problems"]]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", [(None, "")]),
        ("just words", [(1, "")]),
        ("\0\1\2", [(1, "")]),
        ("{" * 40, [(1, "")]),
        ("name: [x", [(1, "")]),
        ("name: a b\nqueue: Big\ncomand: x\n", [(1, "name"), (1, ""), (2, "queue"), (3, "comand")]),
        ("name: x\nname: y\ncommand: z\n", [(2, "name")]),
        ("name: x\ncommand: y\ndriver: moon\n", [(3, "driver")]),
        ("name: x\ncommand: y\nqueue: gold\n", [(3, "queue")]),
        ("name: x\ncommand: y\nenv:\n  API_TOKEN: abcdefgh\n", [(4, "env.API_TOKEN")]),
        (
            "name: x\nregistryAuth: {file: /etc/shadow}\nroles: {a: {command: b}}",
            [(2, "registryAuth")],
        ),
        ("name: x\nroles:\n  a: {command: b, cpu: 99999}\n", [(2, "roles")]),
        ("name: " + "x" * 2**20, [(None, "")]),
    ],
)
async def test_each_problem_has_its_line(text: str, wanted: list[tuple[int | None, str]]) -> None:
    said = await checked(text)
    assert places(said) == wanted


async def test_problems_of_openpai_are_in_its_own_words() -> None:
    said = await checked(VERSION1)
    assert said["openpai"] == 1
    assert {line for line, _ in places(said)} == {5}
    assert {path.rpartition(".")[2] for _, path in places(said)} >= {"memoryMB", "comand"}
    # files with credentials are read by the command line
    text = VERSION1.replace('"lots"', "100").replace("comand", "command")
    text = text.replace('"image"', '"authFile": "/home/ann/auth",\n  "image"')
    found = await checked(text)
    assert (3, "authFile") in places(found)
    assert "job submit -f" in found["problems"][0].right


async def test_an_image_without_containers_needs_a_decision() -> None:
    text = VERSION1.replace('"lots"', "100").replace("comand", "command")
    said = await checked(text)
    assert "--no-image" in said["problems"][0].right
    in_memory = InMemorySupervisor()
    node = Node(host="a", address="127.0.0.1", cpu=8, memory_mb=4096)
    policy = msgspec.structs.replace(in_memory.engine.policy, nodes={"local": (node,)})
    in_memory.engine.policy = policy
    said = await checked(text, in_memory, no_image=True, plan=True)
    assert said["problems"] == [] and said["command"].endswith("-f job.json --no-image")
    assert said["jobs"][0]["lines"][0] == "job numbers (2 tasks)"


async def test_a_dry_run_is_that_of_the_command_line() -> None:
    said = await checked(GOOD, plan=True)
    (job,) = said["jobs"]
    assert (job["name"], job["runs"], job["after"]) == ("x", 1, [])
    assert job["lines"][0] == "job x (1 task)"
    assert "    command, by /bin/bash -c:" in job["lines"] and "      echo two" in job["lines"]
    assert any(line.startswith("    task main 0") for line in job["lines"])
    assert "lines" not in (await checked(GOOD))["jobs"][0]
    assert "submit_description(job)" in said["program"]


async def test_checks_of_one_user_and_their_answers_have_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_memory = InMemorySupervisor()
    with contextlib.ExitStack() as running:
        for _ in range(MAX_OF_USER):
            running.enter_context(in_memory.desk.checks.hold(UID))
        for ask in (
            checked(GOOD, in_memory),
            job_texts.run_text(handler(in_memory, RunText(req_id="r", uid=UID, text=GOOD))),
        ):
            with pytest.raises(Refusal, match="checks of") as e:
                await ask
            assert e.value.code == "tooManyRequests"
    assert in_memory.desk.checks.sizes() == {"checks": 0}
    # plans of many tasks
    monkeypatch.setattr(job_texts, "MAX_LINES", 3)
    two = "jobs:\n  - {name: a, command: x}\n  - {name: b, command: y}\n"
    first, second = (job["lines"] for job in (await checked(two, in_memory, plan=True))["jobs"])
    assert len(first) == 4 and first[0] == "job a (1 task)"
    assert first[-1:] == second and "--dry-run" in first[-1]


async def test_tags_of_many_runs_are_changed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = InMemorySupervisor()
    tag, at_once, most = in_memory.desk.tag, 0, 0

    async def counted(request: JobTag) -> tuple[str, ...]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        try:
            return await tag(request)
        finally:
            at_once -= 1

    monkeypatch.setattr(in_memory.desk, "tag", counted)
    text = "name: x\narray: 1-9\ncommand: y\n"
    request = RunText(req_id="request-1", uid=UID, text=text, tags=("a",))
    said = await job_texts.run_text(handler(in_memory, request))
    jids = [reply["computeJid"] for reply in said["jobs"]["x"]]
    assert len(jids) == most == 9
    for jid in jids:
        entry = in_memory.engine.durable(jid)
        assert entry is not None and entry.job.tags == ("a",)


async def test_all_jobs_are_submitted_once_with_tags_and_plan() -> None:
    in_memory = InMemorySupervisor()
    request = RunText(req_id="request-1", uid=UID, text=GOOD, tags=("a", "b"), active_plan="gold")
    said = await job_texts.run_text(handler(in_memory, request))
    again = await job_texts.run_text(handler(in_memory, request))
    jid = said["jobs"]["x"][0]["computeJid"]
    assert again["jobs"]["x"][0]["computeJid"] == jid
    entry = in_memory.engine.durable(jid)
    assert entry is not None and entry.job.run is not None
    assert (entry.job.tags, entry.job.run.spec.active_plan) == (("a", "b"), "gold")
    # a name that is taken is found by the check and by the submission
    unique = GOOD + "unique: true\n"
    await job_texts.run_text(handler(in_memory, RunText(req_id="request-2", uid=UID, text=unique)))
    assert places(await checked(unique, in_memory)) == [(1, "name")]
    head = in_memory.engine.store.head()
    with pytest.raises(Refusal) as e:
        bad = RunText(req_id="request-3", uid=UID, text="name: x\ncommand: y\ndriver: moon\n")
        await job_texts.run_text(handler(in_memory, bad))
    assert [p.line for p in e.value.more["problems"]] == [3]  # type: ignore[attr-defined]
    with pytest.raises(Refusal):
        bad = RunText(req_id="request-4", uid=UID, text="x")
        await job_texts.run_text(handler(in_memory, bad))
    assert in_memory.engine.store.head() == head


def test_choices_are_those_of_the_user() -> None:
    node = Node(host="a", address="a", cpu=8, memory_mb=4096, gpus=("0", "1"), gpu_names=("A100",))
    policy = CoreConfig(
        nodes={"docker": (node,)},
        containers=frozenset({"docker"}),
        batch=frozenset({"sbatch"}),
        queues=Queues(
            queues={"gold": Queue(plans=("gold",)), "team": Queue(users=(UID,))},
            limits=UserLimits(cores=4, running=2),
            users={UID: UserLimits(cores=6)},
        ),
        time_limit_secs=3600.0,
    )
    said = options(policy, ("docker", "sbatch"), UID, None)
    json.dumps(said)
    assert [q["name"] for q in said["queues"]] == ["default", "team"] and said["queue"] == "team"
    assert said["limits"] == {"running": 2, "cores": 6} and said["timeLimit"] == 3600.0
    docker, sbatch = said["drivers"]
    assert docker["largest"] == {"cpu": 8, "memory": 4096, "gpu": 2} and docker["containers"]
    assert docker["gpuTypes"] == ["A100"]
    assert sbatch["cluster"] and sbatch["largest"] is None
    assert [q["name"] for q in options(policy, (), "somebody", "gold")["queues"]] == [
        "default",
        "gold",
    ]


async def test_choices_of_a_site_without_clusters() -> None:
    said = await job_texts.options(handler(InMemorySupervisor(), JobOptions(uid=UID)))
    assert said["clusters"] == [] and said["maxTextBytes"] == 2**20 and said["drivers"]
