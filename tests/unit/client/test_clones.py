"""`definition` and `clone` of both clients."""

from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.async_client import AsyncClient
from jobscribe.client.sync_client import Client

Fake = Any


def stored(fake: Fake, jid: str, **spec: Any) -> None:
    """Give the job this request."""
    uid, sid, _ = jid.split("-")
    fields = {"uid": uid, "simulationId": sid, "simName": "old", **spec}
    event = {"type": "RunRequested", "at": 1.0, "serial": 1, "spec": fields}
    fake.events[:] = [{"position": 1, "stream": f"job/{jid}", "version": 1, "event": event}]


def descriptions(fake: Fake) -> list[Any]:
    return [body["description"] for path, body in fake.requests if path == "run-description"]


def test_a_clone_is_a_new_job_with_changes(fake: Fake) -> None:
    with Client.from_root(fake.root) as client:
        job = client.run(["true"])
        stored(fake, job.jid, command=["echo", "1"], env={"A": "1"})
        fake.cut("run-description")
        clone = client.clone(job.jid, name="new", changes={"env.A": "2", "command.1": "3"})
        assert clone.jid != job.jid and clone.status().state == "pending"
        first, again = descriptions(fake)
        assert first == again
        assert (again["name"], again["env"], again["command"], again["clonedFrom"]) == (
            "new", {"A": "2"}, ["echo", "3"], job.jid,
        )  # fmt: skip
        definition = client.definition(job.jid)
        assert definition.data["name"] == "old"
        for jid in ("Somebody" + job.jid[8:], "no-job", ""):
            with pytest.raises(ClientError, match="forbidden"):
                client.clone(jid)


@pytest.mark.asyncio
async def test_a_secret_is_a_problem_until_it_is_given(fake: Fake) -> None:
    async with AsyncClient.from_root(fake.root) as client:
        job = await client.run(["true"])
        stored(fake, job.jid, command=["x", "--password", "hunter22"])
        with pytest.raises(ClientError) as e:
            await client.clone(job.jid)
        assert [p["path"] for p in e.value.more["problems"]] == ["command[2]"]
        assert descriptions(fake) == [] and "hunter22" not in str(e.value.body())
        await client.clone(job.jid, changes={"command.2": "other"})
        assert descriptions(fake)[0]["command"] == ["x", "--password", "other"]
        with pytest.raises(ClientError, match="nothing at"):
            await client.clone(job.jid, changes={"name.x": 1})
        # a run that the supervisor refuses
        with pytest.raises(ClientError, match="this one not"):
            await client.clone(job.jid, changes={"command": ["refuse-me"]})
