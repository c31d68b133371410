"""Job descriptions in the run service: all runs are checked before the first is submitted, and a
repeated request is harmless.
"""

import json
from typing import Any

import msgspec
import pytest
from in_memory_supervisor import OTHER, UID, InMemorySupervisor, until

from jobscribe.protocol.api.requests import RunDescription
from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.api.endpoints.submission.job_descriptions import MAX_BYTES, submit
from jobscribe.supervisor.runs.request_validation import parse_body

pytestmark = pytest.mark.asyncio
PIPELINE = {
    "jobs": [
        {"name": "then", "command": "true", "after": ["many", {"job": "first", "on": "any"}]},
        {"name": "first", "command": "true"},
        {"name": "many", "command": "true", "array": "0-69%3", "after": ["first"]},
    ],
}


def request(description: object, req_id: str = "request-0001", uid: str = UID) -> RunDescription:
    return RunDescription(req_id=req_id, uid=uid, description=description)


async def refused(in_memory: InMemorySupervisor, description: object, **fields: Any) -> Refusal:
    """Return the refusal, and check that nothing was stored."""
    head = in_memory.engine.store.head()
    with pytest.raises(Refusal) as e:
        await submit(in_memory.desk, request(description, **fields))
    assert in_memory.engine.store.head() == head
    assert in_memory.desk.sizes()["waiting"] == 0
    return e.value


def problems(refusal: Refusal) -> list[str]:
    assert (refusal.code, refusal.http) == ("badRequest", 400)
    body = json.loads(msgspec.json.encode(refusal.body()))
    assert all(
        set(p) == {"path", "problem", "right"} and p["problem"] and p["right"]
        for p in body["problems"]
    )
    return [p["path"] for p in body["problems"]]


def run_of(in_memory: InMemorySupervisor, jid: str) -> Any:
    entry = in_memory.engine.durable(jid)
    assert entry is not None and entry.job.run is not None
    return entry.job.run


async def test_all_runs_are_there_and_are_told_by_name() -> None:
    in_memory = InMemorySupervisor()
    said = await submit(in_memory.desk, request(PIPELINE))
    assert {name: len(answers) for name, answers in said["jobs"].items()} == {
        "first": 1,
        "many": 70,
        "then": 1,
    }
    jids = {name: [a["computeJid"] for a in answers] for name, answers in said["jobs"].items()}
    assert {a["state"] for answers in said["jobs"].values() for a in answers} == {"pending"}
    then = run_of(in_memory, jids["then"][0])
    assert {a.compute_jid for a in then.spec.after} == {*jids["many"], *jids["first"]}
    assert {a.compute_job_serial for a in then.waits_for} >= {
        run_of(in_memory, jids["first"][0]).serial
    }
    assert {run_of(in_memory, jid).spec.at_once for jid in jids["many"]} == {3}
    await until(lambda: in_memory.started, "an agent for the first")


async def test_the_same_request_again_is_answered_with_the_same_runs() -> None:
    in_memory = InMemorySupervisor()
    first = await submit(in_memory.desk, request(PIPELINE))
    head = in_memory.engine.store.head()
    again = await submit(
        in_memory.desk, request({"jobs": [dict(reversed(job.items())) for job in PIPELINE["jobs"]]})
    )
    assert again == first
    assert in_memory.engine.store.head() == head


async def test_another_request_has_other_runs_and_a_reqid_is_for_one_description() -> None:
    in_memory = InMemorySupervisor()
    one = {"name": "x", "command": "true"}
    first = await submit(in_memory.desk, request(one))
    second = await submit(in_memory.desk, request(one, req_id="request-0002"))
    third = await submit(in_memory.desk, request(one, uid=OTHER))
    assert len({s["jobs"]["x"][0]["computeJid"] for s in (first, second, third)}) == 3
    assert (await refused(in_memory, {"name": "x", "command": "false"})).code == "conflict"


@pytest.mark.parametrize(
    ("description", "paths"),
    [
        (
            {"jobs": [{"name": "good", "command": "x"}, {"name": "b", "comand": "x"}, 3]},
            ["jobs[1].comand", "jobs[1]", "jobs[2]"],
        ),
        (
            {
                "jobs": [
                    {"name": "good", "command": "x"},
                    {"name": "b", "command": "x", "driver": "slurm"},
                ]
            },
            ["jobs[1].driver"],
        ),
        (
            {
                "jobs": [
                    {"name": "good", "command": "x"},
                    {"name": "b", "command": ["x"] + ["y" * 130_000] * 5},
                ]
            },
            ["jobs[1]"],
        ),
        (
            {
                "jobs": [
                    {"name": "good", "command": "x"},
                    {"name": "b", "roles": {"w": {"command": "x", "cpu": 99_999}}},
                ]
            },
            ["jobs[1].roles"],
        ),
        (
            {
                "jobs": [
                    {"name": "good", "command": "x"},
                    {"name": "b", "command": "x", "after": ["good", f"{UID}-nothing1-command"]},
                ]
            },
            ["jobs[1].after[1]"],
        ),
        ({"name": "b", "command": "x", "after": [f"{OTHER}-nothing1-command"]}, ["after[0]"]),
        (
            {
                "jobs": [
                    {"name": "a", "command": "x", "after": ["b"]},
                    {"name": "b", "command": "x", "after": ["a"]},
                ]
            },
            ["jobs[0].after"],
        ),
        ([], [""]),
        ("x", [""]),
        (None, [""]),
    ],
)
async def test_where_anything_is_wrong_nothing_is_stored(
    description: object, paths: list[str]
) -> None:
    assert problems(await refused(InMemorySupervisor(), description)) == paths


async def test_a_job_that_is_over_and_did_not_end_so_is_no_reason_to_wait() -> None:
    in_memory = InMemorySupervisor()
    jid, token = await in_memory.running(agent := in_memory.agent())
    await submit(in_memory.desk, request({"name": "x", "command": "true", "after": [jid]}))
    agent.ended(token, code=3)
    await until(
        lambda: run_of(in_memory, jid).status == "error" and not run_of(in_memory, jid).busy,
        "it has failed",
    )
    late = {"name": "x", "command": "true", "after": [jid]}
    assert problems(await refused(in_memory, late, req_id="request-0003")) == ["after[0]"]
    # a request accepted before that end is not checked again
    assert (await submit(in_memory.desk, request(late)))["state"] == "ok"
    assert (
        await submit(
            in_memory.desk,
            request({**late, "after": [{"job": jid, "on": "failed"}]}, req_id="request-0004"),
        )
    )["state"] == "ok"


async def test_who_is_stopping_takes_nothing_and_says_so() -> None:
    in_memory = InMemorySupervisor()
    in_memory.desk.draining = True
    refusal = await refused(in_memory, PIPELINE)
    assert (refusal.code, refusal.body()["retry"]) == ("draining", True)
    assert "no run is stored" in refusal.sentence


async def test_warnings_are_told() -> None:
    in_memory = InMemorySupervisor()
    said = await submit(
        in_memory.desk, request({"name": "x", "command": "true", "retry": {"count": -1}})
    )
    assert [w.path for w in said["warnings"]] == ["retry.count"]


async def test_a_request_has_its_limit() -> None:
    body = json.dumps(
        {"reqId": "request-0001", "uid": UID, "description": {"name": "x" * MAX_BYTES}}
    ).encode()
    with pytest.raises(Refusal) as e:
        parse_body(body, RunDescription, MAX_BYTES)
    assert e.value.code == "tooLarge"
