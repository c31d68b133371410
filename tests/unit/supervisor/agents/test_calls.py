"""App calls and reads of run files: permissions, timing and deadlines. Also the replies to waiting
callers when a call fails.
"""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any, get_args

import pytest
from in_memory_supervisor import OTHER, UID, Agent, InMemorySupervisor, until

from jobscribe.protocol.api.requests import (
    BeginSession,
    CallRequest,
    JobLog,
    RunCancel,
    RunFile,
    RunFiles,
    RunRelease,
)
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.wire.codec import MAX_FRAME
from jobscribe.protocol.wire.messages import (
    REPLY_LIMIT,
    Call,
    CallReply,
    CancelCall,
    FileChunk,
    FileList,
    JobCmd,
    ListedFile,
    ListFiles,
    OpError,
    ReadFile,
    ReadLog,
)
from jobscribe.supervisor.agents import calls as calls_module
from jobscribe.supervisor.agents.calls import API_NAMES, PIECE
from jobscribe.supervisor.runs.request_validation import MAX_DATA

HEAT = {
    "simulation_type": "heat",
    "compute_model": "heatAnimation",
    "command": (),
    "data": {"models": {"heatAnimation": {"n": 3}}},
}


def stateless(uid: str = UID, **fields: Any) -> CallRequest:
    fields = {
        "job_cmd": "stateless_compute",
        "simulation_type": "myapp",
        "method": "idealWeight",
        **fields,
    }
    return CallRequest(uid=uid, **fields)


def frame(jid: str, **fields: Any) -> CallRequest:
    fields = {
        "uid": UID,
        "job_cmd": "get_simulation_frame",
        "simulation_type": "heat",
        "compute_jid": jid,
        **fields,
    }
    return CallRequest(**fields)


def started(work: Awaitable[Any]) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(work)


def call(in_memory: InMemorySupervisor, request: CallRequest) -> "asyncio.Future[bytes]":
    return started(in_memory.calls.call(request, in_memory.calls.new_op()))


async def code_of(work: Awaitable[Any]) -> str:
    with pytest.raises(Refusal) as e:
        async with asyncio.timeout(10):
            await work
    assert e.value.sentence
    return e.value.code


def answer(agent: Agent, op: Any, reply: bytes = b'{"a": 1}') -> None:
    agent.say(CallReply(op_id=op.op_id, reply=reply))


async def test_the_answer_of_an_app_is_handed_on_as_it_is() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    waiting = call(in_memory, stateless(args={"height": 2}, deadline_secs=3.0))
    op = await agent.asked(Call)
    assert (op.job_cmd, op.method, op.args, op.deadline_secs, op.reply_limit) == (
        "stateless_compute",
        "idealWeight",
        {"height": 2},
        3.0,
        REPLY_LIMIT,
    )
    assert (op.run_dir, op.lib_dir) == (None, f"/users/{UID}/myapp/lib")
    answer(agent, op, b'{"x":  [1, 2]}')
    assert await waiting == b'{"x":  [1, 2]}'


async def test_a_call_without_a_deadline_has_that_of_the_house() -> None:
    in_memory = InMemorySupervisor(call_secs=7.0)
    agent = in_memory.agent()
    waiting = call(in_memory, stateless())
    op = await agent.asked(Call)
    assert op.deadline_secs == 7.0
    answer(agent, op)
    await waiting


async def test_an_agent_that_is_not_there_is_started_first() -> None:
    in_memory = InMemorySupervisor()
    waiting = call(in_memory, stateless())
    await until(lambda: in_memory.started, "its start is asked for")
    agent = Agent(in_memory, in_memory.key())
    await asyncio.sleep(0)
    assert agent.of(Call) == [], "before its snapshot it is not believed"
    answer(agent, await agent.synced().asked(Call))
    assert await waiting == b'{"a": 1}'
    assert [e.key for e in in_memory.started] == [in_memory.key()]


async def test_an_agent_that_does_not_come_is_not_waited_for_longer_than_its_start_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobscribe.supervisor.runs.service._BETWEEN_STARTS_SECS", 0.05)
    in_memory = InMemorySupervisor(agent_start_secs=0.05)
    assert await code_of(call(in_memory, stateless())) == "agentUnavailable"
    assert in_memory.desk._waiting == {}


async def test_a_connection_that_ends_answers_who_waits_at_once() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    waiting = [call(in_memory, stateless()), call(in_memory, stateless())]
    await agent.asked(Call, 2)
    agent.gone()
    for w in waiting:
        assert await code_of(w) == "agentUnavailable"
    assert agent.connection.asked == {}


async def test_a_newer_connection_answers_who_waits_on_the_older_at_once() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    waiting = call(in_memory, stateless())
    await agent.asked(Call)
    in_memory.agent()
    assert await code_of(waiting) == "agentUnavailable"


async def test_a_call_that_is_not_answered_in_time_is_ended_here_and_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobscribe.supervisor.agents.calls.SLACK_SECS", 0.05)
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    waiting = call(in_memory, stateless(deadline_secs=0.05))
    op = await agent.asked(Call)
    assert await code_of(waiting) == "deadline"
    assert (await agent.asked(CancelCall)).op_id == op.op_id
    answer(agent, op)
    assert in_memory.counters.all()["unknownAnswer"] == 1


async def test_the_wait_for_an_agent_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobscribe.supervisor.agents.calls.SLACK_SECS", 0.05)
    in_memory = InMemorySupervisor()
    assert await code_of(call(in_memory, stateless(deadline_secs=0.05))) == "deadline"
    # it connects late, and then does not answer
    began = asyncio.get_running_loop().time()
    waiting = call(in_memory, stateless(deadline_secs=1.0))
    asyncio.get_running_loop().call_later(0.9, in_memory.agent)
    assert await code_of(waiting) == "deadline"
    assert 1.0 <= asyncio.get_running_loop().time() - began < 1.9


async def test_who_goes_away_cancels_the_call() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    waiting = call(in_memory, stateless())
    op = await agent.asked(Call)
    waiting.cancel()
    assert (await agent.asked(CancelCall)).op_id == op.op_id
    assert agent.connection.asked == {}


@pytest.mark.parametrize(
    "code", ["appFailed", "appRefused", "deadline", "replyTooLarge", "notFound", "tooManyRequests"]
)
async def test_what_the_agent_refuses_is_told_in_its_words(code: str) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    waiting = call(in_memory, stateless())
    agent.say(
        OpError(op_id=(await agent.asked(Call)).op_id, code=code, error="plots[0].points[3] is NaN")
    )
    with pytest.raises(Refusal) as e:
        await waiting
    assert (e.value.code, e.value.sentence) == (code, "plots[0].points[3] is NaN")


async def test_a_code_that_nobody_knows_is_no_trap() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    waiting = call(in_memory, stateless())
    agent.say(OpError(op_id=(await agent.asked(Call)).op_id, code="noSuchCode", error="words"))
    assert await code_of(waiting) == "internal"


@pytest.mark.parametrize(
    "reply", [b"", b"{", b"NaN", b'{"a": \xff}', b'"\xff"', b"1 2", b"x" * 100]
)
async def test_what_is_not_json_does_not_reach_a_browser_as_json(reply: bytes) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    waiting = call(in_memory, stateless())
    answer(agent, await agent.asked(Call), reply)
    assert await code_of(waiting) == "appFailed"


async def test_an_answer_over_the_limit_is_refused_with_both_sizes() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    waiting = call(in_memory, stateless())
    answer(agent, await agent.asked(Call), b'"' + b"x" * REPLY_LIMIT + b'"')
    with pytest.raises(Refusal, match=f"{REPLY_LIMIT + 2}.*{REPLY_LIMIT}") as e:
        await waiting
    assert e.value.code == "replyTooLarge"


async def test_another_kind_of_answer_is_none() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    waiting = call(in_memory, stateless())
    agent.say(FileChunk(op_id=(await agent.asked(Call)).op_id, data=b"1", size=1, mtime_ns=1))
    assert await code_of(waiting) == "internal"


async def test_answers_to_nothing_are_counted_and_dropped() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    agent.say(
        CallReply(op_id="o" * 32, reply=b"1"),
        FileChunk(op_id="o" * 32, data=b"", size=0, mtime_ns=0),
    )
    assert in_memory.counters.all()["unknownAnswer"] == 2
    assert agent.socket.closed is None


async def test_an_agent_cannot_answer_what_another_one_was_asked() -> None:
    in_memory = InMemorySupervisor()
    agent, other = in_memory.agent(), in_memory.agent(OTHER)
    waiting = call(in_memory, stateless())
    op = await agent.asked(Call)
    answer(other, op, b'"forged"')
    answer(agent, op, b'"true"')
    assert await waiting == b'"true"'


async def test_one_users_calls_are_bounded_and_other_users_are_not_kept_out() -> None:
    in_memory = InMemorySupervisor(per_user=3)
    agent, other = in_memory.agent(), in_memory.agent(OTHER)
    waiting = [call(in_memory, stateless()) for _ in range(3)]
    await agent.asked(Call, 3)
    assert await code_of(call(in_memory, stateless())) == "tooManyRequests"
    theirs = call(in_memory, stateless(OTHER))
    answer(other, await other.asked(Call))
    await theirs
    for op in agent.of(Call):
        answer(agent, op)
    await asyncio.gather(*waiting)
    again = call(in_memory, stateless())
    answer(agent, await agent.asked(Call, 4))
    await again
    assert in_memory.calls._in_flight == {}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"simulation_type": "nosuch"}, "unknownApp"),
        ({"driver": "docker"}, "badRequest"),
        ({"compute_jid": f"{UID}-sim00001-m"}, "badRequest"),
        ({"job_cmd": "analysis_job"}, "badRequest"),
        ({"job_cmd": "sequential_result"}, "badRequest"),
        ({"args": {"x": "y" * MAX_DATA}}, "tooLarge"),
        ({"data": {"x": "y" * MAX_DATA}}, "tooLarge"),
        ({"args": {"x": 2**70}}, "badRequest"),
        ({"args": {"a": [[[[[[[[[[[1]]]]]]]]]]]}}, "tooDeep"),
        ({"args": {str(i): i for i in range(9000)}}, "tooLarge"),
        ({"args": {"x": [0] * 95_000}}, "tooLarge"),
    ],
)
async def test_what_an_agent_should_not_even_be_told(fields: dict[str, Any], code: str) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    assert await code_of(call(in_memory, stateless(**fields))) == code
    assert agent.of(Call) == []


async def test_the_largest_input_that_is_accepted_gets_through_to_the_agent() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    deep: Any = 1
    for _ in range(9):
        deep = [deep]
    for args in (
        {str(i): i for i in range(8000)},
        {"x": [0] * 89_000},
        {"x": deep},
        {"x": "y" * (MAX_DATA - 10)},
    ):
        waiting = call(in_memory, stateless(args=args, data=args if len(args) < 10 else {}))
        op = await agent.asked(Call)
        agent.heard.clear()
        assert op.args == args
        answer(agent, op)
        await waiting
    assert agent.socket.closed is None
    assert 2 * MAX_DATA < MAX_FRAME


async def test_a_stopping_supervisor_begins_no_call() -> None:
    in_memory = InMemorySupervisor()
    in_memory.agent()
    in_memory.desk.draining = True
    assert await code_of(call(in_memory, stateless())) == "draining"
    with pytest.raises(Refusal, match="draining"):
        in_memory.calls.begin_session(BeginSession(uid=UID))


async def test_a_session_begins_without_waiting() -> None:
    in_memory = InMemorySupervisor()
    in_memory.calls.begin_session(BeginSession(uid=UID))
    in_memory.calls.begin_session(BeginSession(uid=UID))
    await until(lambda: in_memory.started, "its start is asked for")
    assert len(in_memory.started) == 1
    in_memory.agent()
    await until(lambda: not in_memory.desk._early, "nobody waits any more")
    with pytest.raises(Refusal, match="badRequest"):
        in_memory.calls.begin_session(BeginSession(uid=UID, driver="docker"))


# ---- calls for a run


async def test_a_frame_is_computed_from_the_run_it_is_of() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent, **HEAT)
    waiting = call(in_memory, frame(jid, compute_job_serial=token.serial, args={"frameIndex": 2}))
    op = await agent.asked(Call)
    assert (op.compute_model, op.run_dir) == (
        "heatAnimation",
        f"/users/{UID}/heat/sim00001/heatAnimation",
    )
    assert op.data == HEAT["data"], "the data it was computed from"
    answer(agent, op)
    await waiting


async def test_a_parallel_runs_frames_come_from_the_sequential_agent() -> None:
    in_memory = InMemorySupervisor()
    agent, runs = in_memory.agent(), in_memory.agent(kind="parallel")
    jid, _ = await in_memory.running(runs, **HEAT, job_run_mode="parallel")
    waiting = call(in_memory, frame(jid))
    answer(agent, await agent.asked(Call))
    await waiting
    assert runs.of(Call) == []


async def test_not_yours_and_not_there_are_the_same_answer() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent, **HEAT)
    sentences = []
    for request in (
        frame(jid, uid=OTHER),
        frame(jid.replace("sim00001", "sim00009"), uid=OTHER),
        frame(jid.replace("sim00001", "sim00009")),
    ):
        with pytest.raises(Refusal) as e:
            await in_memory.calls.call(request, in_memory.calls.new_op())
        sentences.append((e.value.code, e.value.sentence.replace("sim00009", "sim00001")))
    theirs, nobodys, own = sentences
    assert theirs == nobodys == ("notFound", f"there is no job {jid}")
    assert own == ("notFound", f"there is no job {jid}; near it: {jid}"), (
        "of one's own the near ones are told, and of nobody else's"
    )
    # changing a run gives the same answer as reading it
    absent, given = jid.replace("sim00001", "sim00009"), []
    for uid, named in ((OTHER, jid), (OTHER, absent), (jid.split("-")[0], absent)):
        for change in (
            in_memory.desk.cancel(
                RunCancel(req_id=f"request-{len(given)}", uid=uid, compute_jid=named)
            ),
            in_memory.desk.release(RunRelease(uid=uid, compute_jid=named)),
        ):
            with pytest.raises(Refusal) as e:
                await change
            given.append((e.value.code, e.value.sentence.replace("sim00009", "sim00001")))
    assert given == [theirs, theirs, nobodys, nobodys, own, own]


async def test_the_serial_is_checked_before_and_after() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent, **HEAT)
    assert (
        await code_of(call(in_memory, frame(jid, compute_job_serial=token.serial - 1)))
        == "staleSerial"
    )
    waiting = call(in_memory, frame(jid))
    op = await agent.asked(Call)
    agent.ended(token, 1)
    await in_memory.submitted(**HEAT)
    answer(agent, op)
    assert await code_of(waiting) == "staleSerial", "what was computed belongs to the older run"


async def test_a_run_that_has_not_started_has_nothing_to_read() -> None:
    in_memory = InMemorySupervisor()
    jid = await in_memory.submitted(**HEAT)
    with pytest.raises(Refusal) as e:
        await in_memory.calls.call(frame(jid), in_memory.calls.new_op())
    assert (e.value.code, e.value.body()["retry"]) == ("notReady", True)
    assert (
        await code_of(in_memory.calls.open_file(RunFile(uid=UID, compute_jid=jid, name="x")))
        == "notReady"
    )


async def test_a_job_of_another_app() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent, **HEAT)
    assert await code_of(call(in_memory, frame(jid, simulation_type="myapp"))) == "badRequest"


async def test_a_call_never_touches_the_run() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent, **HEAT)
    head, status = (
        in_memory.store.head(),
        in_memory.desk.describe(in_memory.desk.job(UID, jid))["state"],
    )
    waiting = call(in_memory, frame(jid))
    agent.say(
        OpError(op_id=(await agent.asked(Call)).op_id, code="appFailed", error="ended by signal 9")
    )
    assert await code_of(waiting) == "appFailed"
    assert (
        (in_memory.store.head(), in_memory.desk.describe(in_memory.desk.job(UID, jid))["state"])
        == (head, status)
        == (head, "running")
    )


# ---- files


async def opened(
    in_memory: InMemorySupervisor, agent: Agent, content: bytes, request: RunFile
) -> bytes:
    """Return the bytes that the caller receives if the agent's file is `content`."""
    work = started(in_memory.calls.open_file(request))
    served = 0

    async def serve() -> None:
        nonlocal served
        op = await agent.asked(ReadFile, served + 1)
        served += 1
        agent.say(
            FileChunk(
                op_id=op.op_id,
                data=content[op.offset : op.offset + op.limit],
                size=len(content),
                mtime_ns=5,
            )
        )

    await serve()
    file = await work
    assert (file.size, file.mtime_ns) == (len(content), 5)
    got = b""
    server: asyncio.Future[Any] | None = None
    while len(got) < file.length:
        if got:
            server = started(serve())
        got += await anext(file.chunks)
    if server is not None:
        await server
    assert len(got) == file.length
    assert [piece async for piece in file.chunks] == []
    return got


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, None, slice(0, None)),
        (10, 20, slice(10, 30)),
        (PIECE - 1, 2, slice(PIECE - 1, PIECE + 1)),
        (0, 0, slice(0, 0)),
        (3 * PIECE + 90, None, slice(3 * PIECE + 90, None)),
        (3 * PIECE + 90, 999, slice(3 * PIECE + 90, None)),
        (4 * PIECE, None, slice(0, 0)),
    ],
)
async def test_a_file_or_a_part_of_it(offset: int, length: int | None, expected: slice) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    content = bytes(i % 251 for i in range(3 * PIECE + 100))
    got = await opened(
        in_memory,
        agent,
        content,
        RunFile(uid=UID, compute_jid=jid, name="a/b", offset=offset, length=length),
    )
    assert got == content[expected]
    assert {(op.name, op.run_dir) for op in agent.of(ReadFile)} == {
        ("a/b", f"/users/{UID}/command/sim00001/command")
    }
    assert all(op.limit <= PIECE for op in agent.of(ReadFile)), (
        "a piece at a time is all that is held"
    )
    assert in_memory.calls._in_flight == {}


@pytest.mark.parametrize(
    ("size", "mtime", "fine"),
    [
        (3 * PIECE, 5, True),
        (4 * PIECE, 6, True),
        (3 * PIECE, 6, False),
        (2 * PIECE, 5, False),
    ],
)
async def test_a_file_that_changes_while_it_is_read(size: int, mtime: int, fine: bool) -> None:
    """A growing log is the same file; a rewritten file is another one."""
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    work = started(in_memory.calls.open_file(RunFile(uid=UID, compute_jid=jid, name="x")))
    agent.say(
        FileChunk(
            op_id=(await agent.asked(ReadFile)).op_id, data=b"a" * PIECE, size=3 * PIECE, mtime_ns=5
        )
    )
    file = await work
    assert await anext(file.chunks) == b"a" * PIECE
    following = started(anext(file.chunks))
    agent.say(
        FileChunk(
            op_id=(await agent.asked(ReadFile, 2)).op_id,
            data=b"b" * PIECE,
            size=size,
            mtime_ns=mtime,
        )
    )
    if fine:
        assert await following == b"b" * PIECE
    else:
        assert await code_of(following) == "conflict"
    await file.chunks.aclose()
    assert in_memory.calls._in_flight == {}


async def test_a_file_that_loses_its_end_is_not_taken_for_whole() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    work = started(in_memory.calls.open_file(RunFile(uid=UID, compute_jid=jid, name="x")))
    agent.say(FileChunk(op_id=(await agent.asked(ReadFile)).op_id, data=b"", size=10, mtime_ns=5))
    assert await code_of(anext((await work).chunks)) == "conflict"


async def test_a_file_that_is_not_there_is_refused_before_any_byte() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    work = started(in_memory.calls.open_file(RunFile(uid=UID, compute_jid=jid, name="")))
    agent.say(
        OpError(
            op_id=(await agent.asked(ReadFile)).op_id,
            code="notFound",
            error="the run directory is gone",
        )
    )
    assert await code_of(work) == "notFound"


async def test_readers_of_logs_are_answered_at_once_when_their_agent_goes() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    work = started(in_memory.desk.read_log(JobLog(uid=UID, compute_jid=jid, wait_secs=20.0)))
    await agent.asked(ReadLog)
    agent.gone()
    assert await code_of(work) == "agentUnavailable"


def test_each_kind_of_call_has_its_name_in_the_log() -> None:
    assert set(API_NAMES) == set(get_args(JobCmd))


async def test_a_call_is_neither_an_event_nor_two_lines_of_the_log() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    head, lines = in_memory.store.head(), len(in_memory.lines.lines)
    waiting = call(in_memory, stateless(args={"secret": "payload-of-a-user"}))
    answer(agent, await agent.asked(Call))
    await waiting
    assert in_memory.store.head() == head
    assert in_memory.lines.lines[lines:] == [], "the one line is the handler's"
    assert in_memory.counters.all()["call.stateless_compute"] == 1
    assert "payload-of-a-user" not in json.dumps(in_memory.lines.lines)


async def test_files_are_listed_a_page_at_a_time() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    work = started(
        in_memory.calls.list_files(RunFiles(uid=UID, compute_jid=jid, after="a", limit=7))
    )
    op = await agent.asked(ListFiles)
    assert (op.run_dir, op.after, op.limit) == (f"/users/{UID}/command/sim00001/command", "a", 7)
    said = FileList(op_id=op.op_id, files=(ListedFile("b", 1, 5.0),), more=True)
    agent.say(said)
    assert await work == (token.serial, said)
    assert in_memory.calls._in_flight == {}


async def test_files_of_another_run_are_not_listed_and_an_agent_that_cannot_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    assert (
        await code_of(
            in_memory.calls.list_files(RunFiles(uid=UID, compute_jid=jid, compute_job_serial=7))
        )
        == "staleSerial"
    )
    monkeypatch.setattr(calls_module, "FILE_SECS", 0.01)
    with pytest.raises(Refusal, match="an agent of an older version does not know this request"):
        await in_memory.calls.list_files(RunFiles(uid=UID, compute_jid=jid))
