"""`submit_description` and `plan` of both clients."""

from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.async_client import AsyncClient
from jobscribe.client.sync_client import Client

Fake = Any
PIPELINE = {
    "jobs": [
        {"name": "b", "command": "refuse-me", "after": ["a"]},
        {"name": "a", "command": "true", "array": "0-2"},
    ]
}


def told(jobs: dict[str, list[Any]]) -> dict[str, list[str]]:
    return {
        name: [r.code if isinstance(r, ClientError) else r.jid for r in runs]
        for name, runs in jobs.items()
    }


def expected(fake: Fake) -> dict[str, list[str]]:
    return {"a": list(fake.jobs), "b": ["dependencyNever"]}


def test_the_runs_of_each_job_by_its_name(fake: Fake) -> None:
    pipeline = {"jobs": [{**PIPELINE["jobs"][0], "command": ["refuse-me"]}, PIPELINE["jobs"][1]]}
    with Client.from_root(fake.root) as client:
        fake.cut("run-description")
        assert told(client.submit_description(pipeline)) == expected(fake)
        assert len(fake.jobs) == 3
        job = client.submit_description({"name": "x", "command": "true"}, req_id="request-0001")[
            "x"
        ][0]
        assert not isinstance(job, ClientError)
        assert (job.status().state, fake.requests[-2][1]["reqId"]) == ("pending", "request-0001")


@pytest.mark.asyncio
async def test_the_asynchronous_client_does_the_same(fake: Fake) -> None:
    pipeline = {"jobs": [{**PIPELINE["jobs"][0], "command": ["refuse-me"]}, PIPELINE["jobs"][1]]}
    async with AsyncClient.from_root(fake.root) as client:
        fake.fail("run-description", "storageUnavailable")
        assert told(await client.submit_description(pipeline)) == expected(fake)
        with pytest.raises(ClientError) as e:
            await client.submit_description({"name": "x", "comand": "true"})
        assert [p["path"] for p in e.value.more["problems"]] == ["comand", ""]
        plan = await client.plan(await client.spec(["date"]))
        assert plan["roles"][0]["command"] == ["date"]


def test_all_problems_reach_the_caller(fake: Fake) -> None:
    with Client.from_root(fake.root) as client:
        with pytest.raises(ClientError) as e:
            client.submit_description({"name": "x", "comand": "true"})
        assert (e.value.code, [p["path"] for p in e.value.more["problems"]]) == (
            "badRequest",
            ["comand", ""],
        )
        assert e.value.body()["problems"] == e.value.more["problems"]
        assert client.plan(client.spec(["date"]))["tasks"][0]["directory"] == "/run"
    assert fake.jobs == {}


@pytest.mark.parametrize("description", [object(), {"a": "\ud800"}, {1.5: {2}, (): 3}])
def test_what_json_cannot_say_is_not_sent(fake: Fake, description: object) -> None:
    with Client.from_root(fake.root) as client, pytest.raises(ClientError) as e:
        client.submit_description(description)
    assert e.value.code == "badRequest"
    assert fake.requests == []
