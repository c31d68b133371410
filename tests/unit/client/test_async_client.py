"""The asynchronous client gives the same guarantees as the plain client, with many concurrent
requests.
"""

import asyncio
import functools
import inspect
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.async_client import AsyncClient, AsyncJob
from jobscribe.client.operator_calls import AsyncOperatorCalls, OperatorCalls
from jobscribe.client.sync_client import Client, Job
from jobscribe.client.transport.async_connection import AsyncFileReader
from jobscribe.client.transport.connection import FileReader

Fake = Any
pytestmark = pytest.mark.asyncio


async def made(fake: Fake) -> AsyncClient:
    return AsyncClient.from_root(fake.root, budget_secs=15.0)


async def until(condition: Callable[[], object], secs: float = 20.0) -> None:
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        await asyncio.sleep(0.01)


async def positions(events: AsyncIterator[Any], count: int) -> list[int]:
    out: list[int] = []
    async for event in events:
        out.append(event.position)
        if len(out) == count:
            break
    return out


async def test_a_failing_submission_is_repeated_with_the_same_reqid(fake: Fake) -> None:
    async with await made(fake) as client:
        fake.fail("run-simulation", "storageUnavailable", times=2)
        fake.cut("run-simulation", times=2)
        job = await client.run(["date"])
        sent = [body["reqId"] for path, body in fake.requests if path == "run-simulation"]
        assert len(sent) == 3
        assert len(set(sent)) == 1
        assert list(fake.jobs) == [job.jid]


async def test_a_final_refusal_is_raised(fake: Fake) -> None:
    async with await made(fake) as client:
        fake.fail("run-simulation", "runDirUnwritable")
        with pytest.raises(ClientError, match="runDirUnwritable"):
            await client.run(["date"])


async def test_a_hundred_waiters_do_not_keep_others_waiting(fake: Fake) -> None:
    async with await made(fake) as client:
        specs = [await client.spec(["sleep", "9"]) for _ in range(100)]
        jobs = [j for j in await client.run_many(specs) if not isinstance(j, ClientError)]
        waiting = [asyncio.ensure_future(j.wait()) for j in jobs]
        async with asyncio.timeout(20):
            await until(lambda: sum(p == "run-status" for p, _ in fake.requests) >= 100)
            assert (await jobs[0].cancel("enough")).state == "canceled"
            for job in jobs[1:]:
                fake.end(job.jid)
            states = await asyncio.gather(*waiting)
        assert [s.state for s in states] == ["canceled"] + ["completed"] * 99


async def test_a_restart_on_another_port_is_survived(fake: Fake) -> None:
    async with await made(fake) as client:
        job = await client.run(["sleep", "9"])
        waiting = asyncio.ensure_future(job.wait())
        await asyncio.to_thread(fake.stop)
        await asyncio.to_thread(fake.start)
        fake.end(job.jid, code=4)
        assert (await asyncio.wait_for(waiting, 20)).shell_code == 4


async def test_a_new_token_is_looked_up(fake: Fake) -> None:
    async with await made(fake) as client:
        job = await client.run(["date"])
        fake.token = "N" + fake.token[1:]
        fake.publish()
        assert (await job.status()).state == "pending"


async def test_followed_logs_end_with_the_run(fake: Fake) -> None:
    async with await made(fake) as client:
        job = await client.run(["x"])
        fake.write(job.jid, "stdout", b"some output, in pieces")
        loop = asyncio.get_running_loop()
        loop.call_later(
            0.2, lambda: (fake.write(job.jid, "stdout", b" and more"), fake.end(job.jid))
        )
        assert (
            b"".join([p.data async for p in job.logs(follow=True)])
            == b"some output, in pieces and more"
        )


async def test_events_come_once_and_in_order_over_cut_streams_and_a_restart(fake: Fake) -> None:
    async with await made(fake) as client:
        for _ in range(5):
            fake.happen("TaskPlaced")
        fake.cut_after, fake.cut_with = 3, b"id: 4\nevent: TaskPlaced\n"
        events = client.events(after=0)
        assert await asyncio.wait_for(positions(events, 5), 20) == [1, 2, 3, 4, 5]
        await asyncio.to_thread(fake.stop)
        fake.happen("TaskStarted")
        await asyncio.to_thread(fake.start)
        fake.fail("events", "draining")
        assert await asyncio.wait_for(positions(events, 1), 20) == [6]
        await events.aclose()  # type: ignore[attr-defined]
        assert [s["last"] for s in fake.streams_opened] == ["0", "3", "5"]


async def test_a_reader_that_leaves_closes_the_stream(fake: Fake) -> None:
    async with await made(fake) as client:
        for _ in range(3):
            fake.happen("TaskPlaced")
        events = client.events(after=0)
        await asyncio.wait_for(positions(events, 1), 20)
        await events.aclose()  # type: ignore[attr-defined]
        await until(lambda: not fake._server._connections)
        others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert others == []


async def test_a_stream_that_says_nothing_is_taken_for_cut(fake: Fake) -> None:
    async with await made(fake) as client:
        events = client.events(idle_secs=0.1)
        first = asyncio.ensure_future(positions(events, 1))
        await until(lambda: len(fake.streams_opened) >= 3)
        fake.happen("at last")
        assert await asyncio.wait_for(first, 20) == [1]
        await events.aclose()  # type: ignore[attr-defined]


async def test_nobody_at_the_address_is_unreachable(fake: Fake) -> None:
    await asyncio.to_thread(fake.stop)
    async with AsyncClient.to(fake.url, fake.token, "EPRSqtUW", budget_secs=0.1) as client:
        with pytest.raises(ClientError, match="unreachable"):
            await client.jobs()
        with pytest.raises(ClientError, match="unreachable"):
            await positions(client.events(), 1)


async def test_what_is_known_can_be_asked(fake: Fake) -> None:
    async with await made(fake) as client:
        job = await client.run(["x"])
        fake.happen("RunRequested", job.jid)
        assert (await job.story())["lines"] == ["1 RunRequested"]
        assert (await job.why())["cause"] == "exit"
        assert (await client.trace(job.jid[:12]))["job"]["jid"] == job.jid
        assert [r["jid"] for r in (await client.jobs()).jobs] == [job.jid]


async def test_usage_is_asked_for_a_time_one_user_or_all_by_groups(fake: Fake) -> None:
    asked: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        return {"state": "ok", "by": body["by"], "rows": [], "total": {}}

    fake._usage = answer  # type: ignore[attr-defined]
    plain = Client(fake.url, fake.token, "EPRSqtUW", budget_secs=0.1)
    async with await made(fake) as client:
        for usage in (client.usage, functools.partial(asyncio.to_thread, plain.usage)):
            assert (await usage())["by"] == ["user"]
            await usage(since="2026-01", until="2026-02-03", by=("month", "app"), all_users=True)
            with pytest.raises(ClientError, match=r"since"):
                await usage(since="soon")
    plain.close()
    assert [(b.get("uid"), b.get("since"), b.get("until"), b["by"]) for b in asked] == 2 * [
        ("EPRSqtUW", None, None, ["user"]),
        (None, "2026-01", "2026-02-03", ["month", "app"]),
    ]


# ---- equal interfaces of both clients


def public(type_: type) -> dict[str, Any]:
    return {
        name: value for name, value in inspect.getmembers_static(type_) if not name.startswith("_")
    }


def shape(member: Any) -> Any:
    """Return names, kinds and defaults of the parameters; an empty list for a property."""
    if isinstance(member, property):
        return []
    function = member.__func__ if isinstance(member, classmethod) else member
    return [
        (p.name, p.kind, p.default)
        for p in list(inspect.signature(function).parameters.values())[1:]
    ]


@pytest.mark.parametrize(
    ("plain", "asynchronous"),
    [
        (Client, AsyncClient),
        (Job, AsyncJob),
        (OperatorCalls, AsyncOperatorCalls),
        (FileReader, AsyncFileReader),
    ],
)
async def test_the_asynchronous_client_has_every_method_of_the_plain_one_with_the_same_parameters(
    plain: type, asynchronous: type
) -> None:
    theirs = public(asynchronous)
    for name, member in public(plain).items():
        assert name in theirs, f"{asynchronous.__name__} has no {name}"
        assert shape(theirs[name]) == shape(member), (
            f"{asynchronous.__name__}.{name} takes something else"
        )
    assert set(theirs) - set(public(plain)) <= {"to"}


async def test_what_apps_answer_and_which_there_are(fake: Fake) -> None:
    async with await made(fake) as client:
        assert await client.apps() == ["command", "heat"]
        fake.fail("call", "tooManyRequests")
        with pytest.raises(ClientError, match="tooManyRequests"):
            await client.call("stateless_compute", "heat", method="x")


async def test_a_copy_acts_as_another_user(fake: Fake) -> None:
    async with await made(fake) as client, client.copy(uid="another1") as other:
        assert (await other.uid(), await other.url(), await other.token()) == (
            "another1",
            fake.url,
            fake.token,
        )
        job = await other.run(["date"])
        assert job.jid.startswith("another1-")


async def test_files_are_read_and_sent_while_the_loop_goes_on(fake: Fake) -> None:
    fake.file = b"0123456789" * 100_000
    async with await made(fake) as client:
        job = await client.run(["date"])
        async with await client.open_file(job.jid, "out", offset=5) as file:
            assert (file.size, file.length) == (len(fake.file), len(fake.file) - 5)
            assert b"".join([piece async for piece in file.pieces()]) == fake.file[5:]
        fake.file_cut_after = 10
        async with await client.open_file(job.jid, "out") as file:
            with pytest.raises(ClientError, match="too early"):
                await file.read()
        assert (await client.upload("heat", "in.dat", [b"ab", b"cd"], 4))["size"] == 4
        assert [f["name"] for f in await client.lib_files("heat")] == ["in.dat"]
        await client.delete_file("heat", "in.dat")
        assert fake.library == {}
