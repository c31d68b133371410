"""The hub with in-process agents: authentication, message validation, and the resources that a bad
peer costs.
"""

import asyncio
import contextlib
import functools
import itertools
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
import tornado.httpclient
import tornado.websocket
from consistency_check import check_answer, check_list
from in_process_supervisor import Agent, InProcessSupervisor, execution, until

from jobscribe.db.events.agent_fold import evolve_agent
from jobscribe.db.events.job_fold import fold
from jobscribe.db.events.state import AgentRecord, Job
from jobscribe.db.maintenance.verification import check
from jobscribe.db.store.contract import Stored
from jobscribe.drivers.contracts import AgentSpec
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.wire.codec import MAX_FRAME, Encoder
from jobscribe.protocol.wire.messages import (
    Cancel,
    ReleaseHold,
    Run,
    RunAck,
    RunStatus,
    RunStatusUpdate,
)
from jobscribe.protocol.wire.versions import SPOKEN, Protocols
from jobscribe.supervisor.connections import hub as hub_module
from jobscribe.supervisor.connections import websocket

STORY = ["RunRequested", "TaskPlaced", "TaskStarted", "TaskEnded", "AttemptEnded", "RunEnded"]
UID, OTHER_UID = "WireUsr1", "WireUsr2"


@pytest.fixture
async def local_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[InProcessSupervisor]:
    local_site = InProcessSupervisor(tmp_path / "root", monkeypatch, op_reply_secs=0.5)
    try:
        await local_site.open()
        yield local_site
        await _check_live_state(local_site)
    finally:
        monkeypatch.undo()
        await local_site.close()
    report = check(tmp_path / "root")
    assert report.ok and not report.records_behind, report


async def _check_live_state(local_site: InProcessSupervisor) -> None:
    """Check that the fold of the store equals the live world, agents included, and equals the
    answers and lists of the supervisor.
    """
    store, world = local_site.supervisor._store, local_site.supervisor._engine.world
    head = -1
    # repeat until no decision happened between the reads
    while head != store.head() or local_site.supervisor._engine._pending:
        head = store.head()
        listed = (await local_site.post("job-list", limit=1000))["jobs"]
        answers = {
            row["jid"]: await local_site.post("run-status", uid=row["uid"], computeJid=row["jid"])
            for row in listed
        }
    streams: dict[str, list[Stored]] = {}
    for stored in store.read_all(0, 100_000):
        streams.setdefault(stored.stream, []).append(stored)
    jobs: dict[str, tuple[Job, Stored]] = {}
    for stream, story in streams.items():
        kind, _, name = stream.partition("/")
        events: list[Any] = [s.event for s in story]
        if kind == "job":
            jobs[name] = (fold(name, events), story[-1])
        elif kind == "agent":
            (key,) = [k for k in world.agents if str(k) == name]
            assert world.agents[key].record == functools.reduce(
                evolve_agent, events, AgentRecord(key=key)
            )
    assert {jid: job for jid, job in world.jobs.items() if job.version} == {
        jid: jobs[jid][0] for jid, job in world.jobs.items() if job.version
    }
    assert {jid for jid, (job, _) in jobs.items() if job.busy} <= world.jobs.keys()
    check_list(listed, jobs)
    for jid, (job, last) in jobs.items():
        check_answer(answers[jid], job, last)


# ---- authentication


async def test_a_run_goes_all_the_way_through_an_agent_made_by_hand(
    local_site: InProcessSupervisor,
) -> None:
    run = await local_site.submit()
    agent = await (await local_site.agent()).present()
    op = await agent.run()
    assert op.token == local_site.token_of(run) and op.spec.command == ("true",)
    await agent.report(op.token, "running")
    await until(
        lambda: "TaskStarted" in local_site.stories()["job/" + run["computeJid"]],
        "its start is on record",
    )
    assert (await local_site.status(run))["state"] == "running"
    await agent.report(op.token, "ended", code=3)
    assert (await agent.next(RunAck)).tokens == (op.token,)
    assert local_site.stories()["job/" + run["computeJid"]] == STORY
    assert (await local_site.status(run))["exit"]["code"] == 3


async def test_what_ended_is_acknowledged_only_when_that_is_durable(
    local_site: InProcessSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_site.submit()
    agent = await (await local_site.agent()).present()
    op = await agent.run()
    store = local_site.supervisor._store
    held: list[tuple[Any, Any]] = []
    append = store.append
    monkeypatch.setattr(store, "append", lambda batch, done: held.append((batch, done)))
    await agent.report(op.token, "ended")
    await until(lambda: held, "the end is on its way to the disk")
    with pytest.raises(TimeoutError):
        await agent.next(RunAck, 0.5)
    monkeypatch.undo()
    for batch, done in held:
        append(batch, done)
    assert (await agent.next(RunAck)).tokens == (op.token,)


async def test_no_answer_and_no_op_before_the_request_is_durable(
    local_site: InProcessSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_site.submit()
    agent = await (await local_site.agent()).present()
    await agent.run()
    store = local_site.supervisor._store
    held: list[tuple[Any, Any]] = []
    append = store.append
    monkeypatch.setattr(store, "append", lambda batch, done: held.append((batch, done)))
    answer = asyncio.ensure_future(local_site.submit())
    await until(lambda: held, "the request is on its way to the disk")
    with pytest.raises(TimeoutError):
        await agent.next(Run, 0.5)
    assert not answer.done() and agent.received == []
    monkeypatch.undo()
    for batch, done in held:
        append(batch, done)
    run = await answer
    assert (await agent.run()).token == local_site.token_of(run)


@pytest.mark.parametrize(
    "claims",
    [
        {"token": "x" * 32},
        {"token": ""},
        {"key_text": f"local.sequential.{OTHER_UID}@localhost"},
        {"key_text": "local.parallel.WireUsr1@localhost"},
        {"key_text": "local.sequential.WireUsr1@elsewhere"},
        {"key_text": "../../etc"},
        {"key_text": "local.sequential.WireUsrl@localhost"},
    ],
    ids=lambda c: str(c)[:60],
)
async def test_who_has_not_the_token_of_that_agent_is_not_let_in(
    local_site: InProcessSupervisor, claims: dict[str, str]
) -> None:
    await local_site.submit()
    await local_site.submit(OTHER_UID)
    spec = await local_site.started()
    await local_site.started(OTHER_UID)
    before, head = local_site.counters.get("rejected.unauthenticated", 0), local_site.head
    token = claims.get("token", spec.token)
    request = tornado.httpclient.HTTPRequest(
        local_site.agents_url,
        headers={
            "Authorization": "Bearer " + token,
            "X-Jobscribe-Agent": claims.get("key_text", str(spec.key)),
        },
    )
    with pytest.raises(tornado.httpclient.HTTPClientError) as refused:
        await tornado.websocket.websocket_connect(request)
    assert refused.value.code == 401
    assert (local_site.counters["rejected.unauthenticated"], local_site.head) == (before + 1, head)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Basic abc"},
        {"X-Jobscribe-Agent": "local.sequential.WireUsr1@localhost"},
    ],
)
async def test_who_says_nothing_of_himself_is_not_let_in(
    local_site: InProcessSupervisor, headers: dict[str, str]
) -> None:
    await local_site.submit()
    await local_site.started()
    with pytest.raises(tornado.httpclient.HTTPClientError) as refused:
        await tornado.websocket.websocket_connect(
            tornado.httpclient.HTTPRequest(local_site.agents_url, headers=headers)
        )
    assert refused.value.code == 401


async def test_an_agent_without_a_common_protocol_version_is_refused_and_its_run_continues(
    local_site: InProcessSupervisor,
) -> None:
    run = await local_site.submit()
    agent = await (await local_site.agent()).present()
    op = await agent.run()
    await agent.report(op.token, "running")
    story = "job/" + run["computeJid"]
    await until(lambda: "TaskStarted" in local_site.stories()[story], "it runs")
    agent.close()
    await agent.ended()
    newer = Protocols(SPOKEN.newest + 1, SPOKEN.newest + 2)
    other = Agent(agent.spec, local_site.agents_url, protocols=newer)
    with pytest.raises(tornado.httpclient.HTTPClientError) as refused:
        await other.connect()
    assert refused.value.code == 426 and refused.value.response is not None
    sentence = refused.value.response.body.decode()
    assert f"protocol versions {newer}" in sentence and f"speaks {SPOKEN}" in sentence
    assert "Jobs keep running. Upgrade this supervisor" in sentence
    assert local_site.counters["rejected.protocolVersion"] == 1
    said = await local_site.status(run)
    assert (said["state"], said["known"]) == ("running", False)


async def test_a_request_that_an_older_agent_does_not_know_is_refused_at_once(
    local_site: InProcessSupervisor,
) -> None:
    run = await local_site.submit()
    agent = await (await local_site.agent(protocols=None)).present()
    op = await agent.run()
    await agent.report(op.token, "running")
    story = "job/" + run["computeJid"]
    await until(lambda: "TaskStarted" in local_site.stories()[story], "it runs")
    with pytest.raises(AssertionError, match="agentOutdated"):
        await local_site.post(
            "run-file-digest", uid=run["uid"], computeJid=run["computeJid"], name="out"
        )
    assert local_site.counters["refused.agentOutdated"] == 1
    # a task that it cannot hold for debugging ends before its start
    spec = msgspec.structs.replace(op.spec, debug_secs=60.0)
    hub = local_site.supervisor._hub
    assert hub.send(agent.spec.key, Run(op_id=op.op_id, token=op.token, spec=spec))
    assert hub.send(agent.spec.key, ReleaseHold(token=op.token))
    await until(lambda: "RunEnded" in local_site.stories()[story], "it is refused")
    said = await local_site.status(run)
    assert said["state"] == "error" and "earlier version" in said["error"], said
    assert not [m for m in agent.received if isinstance(m, Run | ReleaseHold)]


@pytest.mark.parametrize("stated", [None, Protocols(1, 1), SPOKEN, Protocols(2, 9)], ids=str)
async def test_agents_of_neighbouring_versions_are_served(
    local_site: InProcessSupervisor, stated: Protocols | None
) -> None:
    """None: jobscribe 0.1, which states no range. It refuses frames of another version."""
    await local_site.submit()
    spec = await local_site.started()
    agent = Agent(spec, local_site.agents_url, protocols=stated)
    local_site.agents.append(agent)
    op = await (await (await agent.connect()).present()).run()
    if stated is not None and stated.newest > 1:
        error = {"op": "error", "opId": "o" * 32, "code": "x", "error": "y", "more": 1}
        await agent.raw(_frame([error]))
        await until(lambda: local_site.counters.get("unknownField"), "it is ignored and counted")
        agent._encoder._seq = 3
    await agent.report(op.token, "ended")
    await agent.next(RunAck)


async def test_a_browser_is_not_let_in(local_site: InProcessSupervisor) -> None:
    await local_site.submit()
    agent = Agent(await local_site.started(), local_site.agents_url)
    with pytest.raises(tornado.httpclient.HTTPClientError) as refused:
        await agent.connect(Origin="http://evil.example")
    assert refused.value.code == 403


async def test_an_alive_that_is_another_agents_ends_the_connection(
    local_site: InProcessSupervisor,
) -> None:
    await local_site.submit()
    agent = await local_site.agent()
    head = local_site.head
    await agent.alive(agent_key=AgentKey("local", "sequential", OTHER_UID, "localhost"))
    assert "does not match its token" in (await agent.ended() or "")
    assert (local_site.counters["rejected.foreignToken"], local_site.head) == (1, head)


# ---- invalid messages


def _frame(messages: list[Any], **outer: Any) -> bytes:
    return bytes(msgpack.packb({"v": SPOKEN.newest, "seq": 3, "m": messages, **outer}))


BAD_FRAMES: dict[str, tuple[Any, str]] = {
    "not msgpack": (b"\xc1\xc1\xc1", "rejected.malformed"),
    "cut": (_frame([])[:-3], "rejected.malformed"),
    "text": ("hello", "rejected.malformed"),
    "empty": (b"", "rejected.malformed"),
    "no map": (bytes(msgpack.packb([1, 2])), "rejected.malformed"),
    "another version": (_frame([], v=SPOKEN.newest + 1), "rejected.malformed"),
    "a key too many": (_frame([], extra=1), "rejected.malformed"),
    "a sequence number that is text": (_frame([], seq="3"), "rejected.malformed"),
    "a message for agents": (_frame([{"op": "kill", "reason": "x"}]), "rejected.unknownOp"),
    "a wrong type": (
        _frame([{"op": "snapshot", "number": "1", "page": 0, "last": True, "executions": []}]),
        "rejected.malformed",
    ),
    "too deep": (
        _frame([{"op": "error", "x": [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}]),
        "rejected.tooDeep",
    ),
    "too many keys": (_frame([{f"k{n}": 1 for n in range(6000)}] * 2), "rejected.tooLarge"),
    "too many keys in one map": (
        _frame([{f"k{n}": 1 for n in range(10_001)}]),
        "rejected.malformed",
    ),
    "an extension type": (_frame([msgpack.ExtType(5, b"x")]), "rejected.malformed"),
}


@pytest.mark.parametrize(("frame", "counter"), BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
async def test_what_is_no_message_is_refused_counted_and_changes_nothing(
    local_site: InProcessSupervisor, frame: bytes | str, counter: str
) -> None:
    run = await local_site.submit()
    agent = await (await local_site.agent()).present()
    await agent.run()
    head = local_site.head
    await agent.raw(frame)
    await until(lambda: local_site.counters.get(counter), "it is counted")
    assert local_site.head == head
    assert (await local_site.status(run))["state"] == "pending"
    if counter != "rejected.unknownOp":
        assert await agent.ended() is not None
    again = await (await local_site.agent()).present(execution(local_site.token_of(run), "ended"))
    assert (await again.next(RunAck)).tokens == (local_site.token_of(run),)


async def test_after_an_unknown_op_the_connection_goes_on(local_site: InProcessSupervisor) -> None:
    await local_site.submit()
    agent = await (await local_site.agent()).present()
    op = await agent.run()
    await agent.raw(_frame([{"op": "sing", "opId": "o" * 32}]))
    await until(lambda: local_site.counters.get("rejected.unknownOp"), "it is counted")
    agent._encoder._seq = 3
    await agent.report(op.token, "ended")
    await agent.next(RunAck)


async def test_good_messages_beside_an_unknown_op_are_not_lost_for_good(
    local_site: InProcessSupervisor,
) -> None:
    """One frame contains the end of a run and an op of a newer version."""
    run = await local_site.submit()
    agent = await (await local_site.agent()).present()
    op = await agent.run()
    whole = next(iter(Encoder().frames([RunStatusUpdate(execution=execution(op.token, "ended"))])))
    messages = msgpack.unpackb(whole)["m"]
    await agent.raw(_frame([*messages, {"op": "sing"}]))
    await until(lambda: local_site.counters.get("rejected.unknownOp"), "it is counted")
    await until(
        lambda: "RunEnded" in local_site.stories()["job/" + run["computeJid"]],
        "its end is on record",
    )


async def test_a_frame_over_the_limit_ends_the_connection(local_site: InProcessSupervisor) -> None:
    await local_site.submit()
    agent = await (await local_site.agent()).present()
    await agent.run()
    head = local_site.head
    await agent.raw(b"\0" * (MAX_FRAME + 1))
    await agent.ended()
    assert local_site.head == head
    await (await local_site.agent()).present()


async def test_a_lost_frame_is_made_good_by_a_snapshot(local_site: InProcessSupervisor) -> None:
    run = await local_site.submit()
    agent = await (await local_site.agent()).present()
    op = await agent.run()
    # encoded, but never sent
    list(agent._encoder.frames([RunStatusUpdate(execution=execution(op.token, "ended"))]))
    await agent.report(Token(op.token.jid, op.token.serial, 1, "main", 0), "running")
    await agent.next(RunStatus)
    await agent.snapshot(execution(op.token, "ended"))
    await agent.next(RunAck)
    assert (await local_site.status(run))["state"] == "completed"


# ---- reports that are not believed


async def test_an_agent_that_speaks_of_another_users_task_is_sent_away(
    local_site: InProcessSupervisor,
) -> None:
    mine, theirs = await local_site.submit(), await local_site.submit(OTHER_UID)
    good = await (await local_site.agent()).present()
    await good.run()
    bad = await (await local_site.agent(OTHER_UID)).present()
    await bad.run()
    head = local_site.head
    await bad.report(local_site.token_of(mine), "ended", code=1)
    assert await bad.ended() is not None
    await until(lambda: local_site.counters.get("foreignToken"), "it is counted")
    assert local_site.head == head
    assert [(await local_site.status(r))["state"] for r in (mine, theirs)] == ["pending", "pending"]
    await good.report(local_site.token_of(mine), "ended")
    await good.next(RunAck)


async def test_an_old_serial_is_not_the_run_that_is_there(local_site: InProcessSupervisor) -> None:
    run = await local_site.submit()
    agent = await (await local_site.agent()).present()
    op = await agent.run()
    await agent.report(op.token, "running")
    old = Token(op.token.jid, op.token.serial - 5, 1, "main", 0)
    await until(
        lambda: "TaskStarted" in local_site.stories()["job/" + run["computeJid"]],
        "its start is on record",
    )
    head = local_site.head
    await agent.report(old, "ended", code=9)
    assert (await agent.next(RunAck)).tokens == (old,)
    await agent.report(old, "running", pid=77)
    cancel = await agent.next(Cancel)
    assert cancel.token == old
    assert (local_site.head, local_site.counters["staleSerial"]) == (head, 1)
    assert (await local_site.status(run))["state"] == "running"
    await agent.report(op.token, "ended")
    await agent.next(RunAck)


async def test_the_same_end_twice_is_one_end(local_site: InProcessSupervisor) -> None:
    run = await local_site.submit()
    agent = await (await local_site.agent()).present()
    op = await agent.run()
    for _ in range(3):
        await agent.report(op.token, "ended")
        assert (await agent.next(RunAck)).tokens == (op.token,)
    assert local_site.stories()["job/" + run["computeJid"]] == STORY


async def test_a_second_connection_of_an_agent_ends_the_older_one(
    local_site: InProcessSupervisor,
) -> None:
    run = await local_site.submit()
    older = await (await local_site.agent()).present()
    op = await older.run()
    newer = await local_site.agent()
    await newer.alive()
    assert "newer" in (await older.ended() or "")
    assert local_site.counters["agentReplaced"] == 1
    await newer.snapshot(execution(op.token, "running"))
    await until(
        lambda: "TaskStarted" in local_site.stories()["job/" + run["computeJid"]],
        "the newer one is believed",
    )
    await newer.report(op.token, "ended")
    await newer.next(RunAck)
    assert local_site.stories()["job/" + run["computeJid"]] == STORY


async def test_a_placed_run_that_the_agent_does_not_know_is_sent_again(
    local_site: InProcessSupervisor,
) -> None:
    await local_site.submit()
    agent = await (await local_site.agent()).present()
    first = await agent.run()
    agent.close()
    again = await (await local_site.agent()).present()
    second = await again.run()
    assert second.token == first.token and second.op_id == first.op_id
    await again.report(second.token, "ended")
    await again.next(RunAck)


async def test_a_task_that_ran_and_is_not_known_any_more_is_lost(
    local_site: InProcessSupervisor,
) -> None:
    run = await local_site.submit()
    agent = await (await local_site.agent()).present()
    op = await agent.run()
    await agent.report(op.token, "running")
    await until(
        lambda: "TaskStarted" in local_site.stories()["job/" + run["computeJid"]],
        "its start is on record",
    )
    agent.close()
    agent = await (await local_site.agent()).present()
    await agent.next(RunStatus)
    assert "RunEnded" not in local_site.stories()["job/" + run["computeJid"]], (
        "it is asked again first"
    )
    await agent.snapshot()
    await until(
        lambda: "RunEnded" in local_site.stories()["job/" + run["computeJid"]], "it is called lost"
    )
    said = await local_site.status(run)
    assert (said["state"], said["reason"]) == ("error", "lost")


# ---- peers that do nothing


async def test_who_never_says_alive_is_sent_away(
    local_site: InProcessSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "ALIVE_SECS", 0.3)
    await local_site.submit()
    agent = await local_site.agent()
    assert "alive" in (await agent.ended() or "")


async def test_who_speaks_before_alive_is_sent_away(local_site: InProcessSupervisor) -> None:
    await local_site.submit()
    agent = await local_site.agent()
    head = local_site.head
    await agent.snapshot()
    assert "alive" in (await agent.ended() or "")
    assert local_site.head == head


async def test_who_says_alive_and_no_snapshot_is_asked_for_one_and_gets_no_work(
    local_site: InProcessSupervisor,
) -> None:
    run = await local_site.submit()
    agent = await local_site.agent()
    await agent.alive()
    await agent.next(RunStatus)
    assert agent.received == []
    assert (await local_site.status(run))["queueState"] == "agent"
    await agent.snapshot()
    await agent.report((await agent.run()).token, "ended")
    await agent.next(RunAck)


async def test_who_never_reads_costs_no_more_than_his_queue(
    local_site: InProcessSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor acknowledges outcomes to an agent that does not read. At the queue limit it
    closes the connection.
    """
    monkeypatch.setattr(hub_module, "MAX_WAITING", 500)
    local_site.supervisor._hub.write_secs = 1.0
    run = await local_site.submit()
    agent = await (await local_site.agent()).present()
    op = await agent.run()
    assert agent.socket is not None
    # A Tornado client reads one message ahead and then waits for its reader. Small kernel buffers
    # make the queue fill soon.
    stream = agent.socket.protocol.stream  # type: ignore[union-attr]
    theirs = local_site.supervisor._hub.connections[agent.spec.key].socket.ws_connection.stream  # type: ignore[union-attr]
    for end in (stream, theirs):
        end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    others = await local_site.submit(OTHER_UID)
    good = await (await local_site.agent(OTHER_UID)).present()
    answered = await good.run()
    deadline = asyncio.get_running_loop().time() + 30
    earlier = itertools.count(1)
    while local_site.supervisor._hub.connections.get(agent.spec.key) is not None:
        assert asyncio.get_running_loop().time() < deadline, "its connection was not ended"
        tokens = [
            Token(op.token.jid, op.token.serial - next(earlier), 1, "main", 0) for _ in range(50)
        ]
        with contextlib.suppress(TimeoutError, tornado.websocket.WebSocketClosedError):
            await asyncio.wait_for(
                agent.say(*(RunStatusUpdate(execution=execution(t, "ended")) for t in tokens)), 1
            )
    await good.report(answered.token, "ended")
    await good.next(RunAck)
    assert (await local_site.status(others))["state"] == "completed"
    again = await (await local_site.agent()).present(execution(op.token, "ended"))
    await again.next(RunAck)
    assert (await local_site.status(run))["state"] == "completed"


# ---- drivers that fail


async def test_an_agent_that_cannot_be_started_ends_its_runs_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_site = InProcessSupervisor(
        tmp_path / "broken", monkeypatch, agent_start_tries=2, agent_start_secs=0.3
    )
    local_site.place.broken = "there is no room for another agent"
    await local_site.open()
    try:
        run = await local_site.submit()
        said = await local_site.status(run, waitSecs=10)
        assert (said["state"], said["reason"]) == ("error", "agentStartFailed")
        assert "no room" in said["error"]
        assert local_site.agent_events(UID) == ["AgentStartRequested", "AgentStartFailed"] * 2
    finally:
        await local_site.close()


async def test_an_agent_that_never_connects_is_stopped_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_site = InProcessSupervisor(
        tmp_path / "silent", monkeypatch, agent_start_tries=3, agent_start_secs=1.5
    )
    await local_site.open()
    try:
        run = await local_site.submit()
        await until(lambda: len(local_site.place.entries) == 2, "a second one is started")
        assert not local_site.place.entries[0].running
        agent = await (await local_site.agent()).present()
        await agent.report((await agent.run()).token, "ended")
        await agent.next(RunAck)
        assert (await local_site.status(run))["state"] == "completed"
    finally:
        await local_site.close()


async def test_the_token_of_an_agent_that_was_given_up_is_worth_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_site = InProcessSupervisor(
        tmp_path / "old", monkeypatch, agent_start_tries=9, agent_start_secs=0.3
    )
    await local_site.open()
    try:
        await local_site.submit()
        first: AgentSpec = await local_site.started()
        await until(lambda: len(local_site.place.entries) == 3, "a third one is started")
        with pytest.raises(tornado.httpclient.HTTPClientError):
            await Agent(first, local_site.agents_url).connect()
    finally:
        await local_site.close()
