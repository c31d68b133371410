"""Job arrays in both clients: one request despite repeats, complete paging, and bounded waits."""

import asyncio
import threading
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.async_client import AsyncClient
from jobscribe.client.sync_client import Client

Fake = Any


def sent(fake: Fake, path: str) -> list[dict[str, Any]]:
    return [body for p, body in fake.requests if p == path]


def test_an_array_that_has_to_be_sent_again_is_the_same_request(fake: Fake) -> None:
    with Client.from_root(fake.root, budget_secs=15.0) as client:
        fake.fail("run-array", "storageUnavailable")
        fake.cut("run-array")
        spec = client.spec(["date"])
        answer = client.submit_array(spec, "0-3")
        assert (answer["accepted"], len(fake.jobs)) == (4, 4)
        assert (
            len(sent(fake, "run-array")) == 2
            and len({b["reqId"] for b in sent(fake, "run-array")}) == 1
        )
        fake.fail("group-cancel", "storageUnavailable")
        assert client.cancel_group(spec.simulation_id, indices="0-1", reason="r")["canceled"] == 2
        fake.cut("group-cancel")
        client.cancel_group(spec.simulation_id)
        assert len({b["reqId"] for b in sent(fake, "group-cancel")}) == 2


def test_all_runs_come_page_by_page(fake: Fake) -> None:
    with Client.from_root(fake.root) as client:
        spec = client.spec(["date"])
        client.submit_array(spec, "8-11,100")
        fake.end(f"{client.uid}-{spec.simulation_id}-command_9", code=3)
        assert [r.index for r in client.group_runs(spec.simulation_id)] == [8, 9, 10, 11, 100]
        (failed,) = client.group_runs(spec.simulation_id, status="failed")
        assert (failed.index, failed.shell_code, failed.state) == (9, 3, "error")
        state = client.group(spec.simulation_id, limit=0)
        assert (state.total, state.ended, state.failed, state.over, state.runs) == (
            5,
            1,
            1,
            False,
            [],
        )
        assert state.raw["counts"]["error"] == 1


def test_a_wait_ends_with_the_last_run_or_when_its_time_is_up(fake: Fake) -> None:
    with Client.from_root(fake.root) as client:
        spec = client.spec(["date"])
        client.submit_array(spec, "0-2")
        assert not client.wait_group(spec.simulation_id, timeout=0.1).over
        threading.Timer(0.1, lambda: [fake.end(jid) for jid in list(fake.jobs)]).start()
        assert client.wait_group(spec.simulation_id, timeout=20).counts["completed"] == 3


@pytest.mark.parametrize(
    "fields", [{"status": "odd"}, {"after": "x"}, {"limit": 1001}, {"limit": -1}]
)
def test_what_has_no_shape_is_not_sent(fake: Fake, fields: dict[str, Any]) -> None:
    with Client.from_root(fake.root) as client, pytest.raises(ClientError, match="badRequest"):
        client.group("simarr01", **fields)
    assert fake.requests == []


@pytest.mark.asyncio
async def test_the_asynchronous_client_does_the_same(fake: Fake) -> None:
    async with AsyncClient.from_root(fake.root) as client:
        spec = await client.spec(["date"])
        fake.cut("run-array")
        assert (await client.submit_array(spec, "0-4"))["accepted"] == 5
        assert len({b["reqId"] for b in sent(fake, "run-array")}) == 1
        assert [r.index async for r in client.group_runs(spec.simulation_id, status="pending")] == [
            0,
            1,
            2,
            3,
            4,
        ]
        assert not (await client.wait_group(spec.simulation_id, timeout=0.05)).over
        waiting = asyncio.ensure_future(client.wait_group(spec.simulation_id))
        assert (await client.cancel_group(spec.simulation_id, models=["command_1"], indices=None))[
            "asked"
        ] >= 1
        for jid in list(fake.jobs):
            fake.end(jid)
        assert (await asyncio.wait_for(waiting, 20)).over
        with pytest.raises(ClientError, match="notFound"):
            await client.group("nobodyhs")
