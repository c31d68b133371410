"""Runs with roles in both clients: tasks, release, and a log follower that stays with its first
task.
"""

import asyncio
import threading
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.async_client import AsyncClient
from jobscribe.client.sync_client import Client

Fake = Any


@pytest.fixture
def jid(fake: Fake) -> str:
    with Client.from_root(fake.root) as client:
        jid = client.run(["x"]).jid
    fake.gang(
        jid,
        [
            {"role": "a", "index": i, "state": "held" if i else "running", "stdout": b"%d" % i}
            for i in range(3)
        ],
    )
    fake.change(jid, state="running", telling=("a", 0), after=["EPRSqtUW-i9btqxdR-command"])
    return jid


def test_a_state_has_roles_and_what_is_waited_for(fake: Fake, jid: str) -> None:
    with Client.from_root(fake.root) as client:
        state = client.status(jid)
        assert state.roles == {
            "a": {
                "tasks": 3,
                "placed": 0,
                "running": 1,
                "held": 2,
                "succeeded": 0,
                "failed": 0,
                "stopped": 0,
            }
        }
        assert state.waits_for == ["EPRSqtUW-i9btqxdR-command"]
        assert client.run(["x"]).status().roles is None


def test_tasks_and_release(fake: Fake, jid: str) -> None:
    with Client.from_root(fake.root) as client:
        job = client.job(jid)
        assert [t["state"] for t in job.tasks()["tasks"]] == ["running", "held", "held"]
        assert (job.release("a", 1).roles or {})["a"]["held"] == 1
        assert [t["state"] for t in client.tasks(jid, 1)["tasks"]] == ["running", "failed", "held"]
        with pytest.raises(ClientError) as e:
            client.tasks(jid, 5)
        assert e.value.code == "notFound"
        with pytest.raises(ClientError) as e:
            client.release(jid, role="no such role!")
        assert e.value.code == "badRequest"
    sent = [b for p, b in fake.requests if p == "run-release"]
    assert [(b["role"], b["index"]) for b in sent] == [("a", 1)], "what has no shape is not sent"


def test_tasks_and_release_asynchronously(fake: Fake, jid: str) -> None:
    async def talk() -> list[str]:
        async with AsyncClient.from_root(fake.root) as client:
            await client.job(jid).release()
            parts = [part async for part in client.logs(jid, role="a", index=2, follow=True)]
            assert [(p.data, p.attempt, p.role, p.index) for p in parts] == [(b"2", 1, "a", 2)]
            return [t["state"] for t in (await client.job(jid).tasks())["tasks"]]

    assert asyncio.run(talk()) == ["running", "failed", "failed"]


def test_a_reader_stays_with_the_attempt_and_the_task_of_its_first_bytes(
    fake: Fake, jid: str
) -> None:
    fake.jobs[jid]["gang"][0]["stdout"] = b"of attempt 1"
    with Client.from_root(fake.root) as client:
        parts = client.logs(jid, follow=True)
        got = next(parts).data
        threading.Timer(0.2, lambda: fake.jobs[jid]["gang"][0].update(state="failed")).start()
        fake.gang(
            jid,
            [
                {
                    "role": "a",
                    "index": 0,
                    "state": "running",
                    "stdout": b"of attempt 2, which is longer",
                }
            ],
            attempt=2,
        )
        assert got + b"".join(p.data for p in parts) == b"of attempt 1"


def test_both_clients_purge_a_job(fake: Fake, jid: str) -> None:
    async def talk() -> str:
        async with AsyncClient.from_root(fake.root) as client:
            return (await client.purge(jid)).state

    with Client.from_root(fake.root) as client:
        assert client.purge(jid, serial=3).state == asyncio.run(talk()) == "job_run_purged"
    sent = [b["computeJobSerial"] for p, b in fake.requests if p == "run-purge"]
    assert sent == [3, 0]


def test_both_clients_tag_jobs_and_filter_by_tags(fake: Fake, jid: str) -> None:
    async def talk() -> None:
        async with AsyncClient.from_root(fake.root) as client:
            assert await client.tag(jid, add=["b"], remove=["a"]) == ["b"]
            assert [r["jid"] for r in (await client.jobs(tags=["b"])).jobs] == [jid]

    with Client.from_root(fake.root) as client:
        assert client.tag(jid, add=["a"]) == ["a"]
        asyncio.run(talk())
        assert client.tag(jid) == ["b"]
        assert client.jobs(tags=["a"]).jobs == []
        with pytest.raises(ClientError) as e:
            client.tag(jid, add=["a,b"])
        assert e.value.code == "badRequest" and "letters" in e.value.sentence
