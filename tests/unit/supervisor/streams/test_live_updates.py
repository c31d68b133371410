"""Live updates of a page: each change is sent once, in order. A reconnecting page misses nothing,
and a page that does not read costs nothing.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from in_memory_supervisor import OTHER, UID, Agent, InMemorySupervisor, running, until

from jobscribe.client.api.server_sent_events import Message, Parser
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.roles import Retry
from jobscribe.protocol.wire.messages import LogChunk, ReadLog
from jobscribe.supervisor.core.interface.drains import SITE, Drain
from jobscribe.supervisor.core.interface.inputs import TimerFired
from jobscribe.supervisor.core.interface.timers import AttemptRetry
from jobscribe.supervisor.streams import live_updates as live_module
from jobscribe.supervisor.streams import output_tail as tail_module
from jobscribe.supervisor.streams.live_updates import LiveUpdates, Subscription


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the size of a block independent of the speed of this machine."""
    monkeypatch.setattr(live_module, "MAKING_SECS", 60.0)


class Page:
    """A page that reads only when the test calls `read`; each call takes one block."""

    def __init__(
        self, live: LiveUpdates, wish: Subscription, sees: Callable[[str], bool] | None = None
    ) -> None:
        self._parser = Parser()
        self._stack = contextlib.ExitStack()
        self.reader = self._stack.enter_context(live.reader(wish, sees))
        self._blocks = live.stream(self.reader)
        self.events: list[Message] = []
        self.raw: list[bytes] = []
        self.over = False

    async def read(self, secs: float = 5.0) -> list[Message]:
        """Return the events of the next block."""
        try:
            async with asyncio.timeout(secs):
                block = await anext(self._blocks)
        except StopAsyncIteration:
            self.over = True
            return []
        self.raw.append(block)
        got = self._parser.feed(block)
        self.events += got
        return got

    async def until(self, name: str, true: Any = lambda data: True) -> dict[str, Any]:
        """Return the data of the first event with this name that satisfies `true`."""
        async with asyncio.timeout(10):
            while True:
                for event in await self.read():
                    data = json.loads(event.data)
                    if event.event == name and true(data):
                        found: dict[str, Any] = data
                        return found
                assert not self.over, (name, self.events)

    @property
    def last_id(self) -> str:
        return self._parser.last_id

    def told(self, name: str = "status") -> list[tuple[str, Any]]:
        """Return (job, value) of all events so far."""
        key = {"status": "state", "progress": "parallelStatus", "log": "text"}[name]
        return [
            (data["computeJid"], data[key])
            for data in (json.loads(e.data) for e in self.events if e.event == name)
        ]

    async def close(self) -> None:
        await self._blocks.aclose()
        self._stack.close()


@contextlib.asynccontextmanager
async def page(
    in_memory: InMemorySupervisor, sees: Callable[[str], bool] | None = None, **wish: Any
) -> AsyncIterator[Page]:
    opened = Page(in_memory.live, Subscription(**{"uid": UID, **wish}), sees)
    try:
        await opened.read()
        yield opened
    finally:
        await opened.close()


async def test_first_it_is_told_how_each_named_job_stands() -> None:
    in_memory = InMemorySupervisor()
    jid = await in_memory.submitted(1)
    other = jid.replace("sim00001", "sim00002")
    async with page(in_memory, jids=(jid, other)) as p:
        assert p.told() == [(jid, "pending"), (other, "missing")]
        assert json.loads(p.events[0].data) == json.loads(
            json.dumps(in_memory.desk.describe(in_memory.desk.job(UID, jid)))
        ) | {k: json.loads(p.events[0].data)[k] for k in ("elapsedTime",)}


async def test_a_change_is_told_at_once_and_once() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid = await in_memory.submitted(1)
    async with page(in_memory, jids=(jid,)) as p:
        agent.running(in_memory.launched[-1])
        assert [e.event for e in await p.read()] == ["status"]
        agent.ended(in_memory.launched[-1])
        await p.until("status", lambda d: d["over"])
    assert p.told() == [(jid, "pending"), (jid, "running"), (jid, "completed")]


async def test_other_jobs_are_not_told_of() -> None:
    in_memory = InMemorySupervisor()
    agent, theirs = in_memory.agent(), in_memory.agent(OTHER)
    jid = await in_memory.submitted(1)
    async with page(in_memory, jids=(jid,)) as p:
        await in_memory.running(agent, 2)
        await in_memory.running(theirs, 3)
        agent.running(in_memory.launched[0])
        await p.until("status", lambda d: d["state"] == "running")
    assert {j for j, _ in p.told()} == {jid}


async def test_a_job_of_another_user_looks_like_one_that_is_not_there_for_ever() -> None:
    in_memory = InMemorySupervisor()
    agent, theirs = in_memory.agent(), in_memory.agent(OTHER)
    foreign, token = await in_memory.running(theirs, 1)
    mine = await in_memory.submitted(2)
    async with page(in_memory, jids=(foreign, foreign.replace("sim00001", "sim00009"), mine)) as p:
        assert p.told()[:2] == [
            (foreign, "missing"),
            (foreign.replace("sim00001", "sim00009"), "missing"),
        ]
        said = [json.loads(e.data) for e in p.events[:2]]
        assert {**said[0], "computeJid": ""} == {**said[1], "computeJid": ""}
        theirs.report(token, n=1)
        theirs.ended(token)
        agent.running(next(t for t in in_memory.launched if t.jid == mine))
        await p.until("status", lambda d: d["state"] == "running")
    assert [j for j, _ in p.told()] == [
        foreign,
        foreign.replace("sim00001", "sim00009"),
        mine,
        mine,
    ]
    assert p.told("progress") == []


async def test_a_page_that_names_none_hears_of_all_of_its_users_jobs() -> None:
    in_memory = InMemorySupervisor()
    agent, theirs = in_memory.agent(), in_memory.agent(OTHER)
    _, over = await in_memory.running(agent, 1)
    agent.ended(over)
    live, _ = await in_memory.running(agent, 2)
    async with page(in_memory) as p:
        assert p.told() == [(live, "running")], "what is active"
        await in_memory.running(theirs, 3)
        new = await in_memory.submitted(4)
        await p.until("status", lambda d: d["computeJid"] == new)
    assert {j for j, _ in p.told()} == {live, new}


async def test_progress_is_told_and_is_in_the_status_of_who_comes_later() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    async with page(in_memory, jids=(jid,)) as p:
        agent.report(token, frameCount=1)
        data = await p.until("progress")
        assert data == {
            "computeJid": jid,
            "computeJobSerial": token.serial,
            "parallelStatus": {"frameCount": 1},
        }
        assert p.told() == [(jid, "running")], "progress is no change of status"
    async with page(in_memory, jids=(jid,)) as p:
        assert json.loads(p.events[0].data)["parallelStatus"] == {"frameCount": 1}


async def test_who_comes_back_is_told_what_changed_and_nothing_again() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    one, two, three = [await in_memory.running(agent, n) for n in (1, 2, 3)]
    jids = (one[0], two[0], three[0])
    async with page(in_memory, jids=jids) as p:
        agent.ended(one[1])
        await p.until("status", lambda d: d["over"])
        id_ = p.last_id
    agent.report(three[1], n=7)
    agent.ended(two[1], 1)
    async with page(in_memory, jids=jids, last_id=id_) as p:
        await p.until("progress")
        assert p.told() == [(two[0], "error")]
        assert p.told("progress") == [(three[0], {"n": 7})], "how far it is, nobody else could say"
        assert p.last_id.split("-")[0] == str(in_memory.store.head())


async def test_who_comes_back_to_all_jobs_is_told_what_changed_in_order() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    runs = [await in_memory.running(agent, n) for n in range(1, 260)]
    async with page(in_memory) as p:
        id_ = p.last_id
    order = [5, 200, 3, 258, 100]
    for n in order:
        agent.ended(runs[n][1])
    async with page(in_memory, last_id=id_) as p:
        for _ in range(3):
            if len(p.told()) < len(order):
                await p.read()
        assert p.told() == [(runs[n][0], "completed") for n in order]
        positions = [int(e.id.split("-")[0]) for e in p.events if e.id]
        assert positions == sorted(positions)


async def test_a_cut_anywhere_among_many_changes_loses_none() -> None:
    """The id of an event covers all changes before it, also in the middle of a block."""
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jids = tuple([await in_memory.submitted(n) for n in range(1, 9)])
    tokens = list(in_memory.launched)
    async with page(in_memory, jids=jids) as p:
        begin = p.last_id
        for token in tokens:
            agent.running(token)
        for token in reversed(tokens[:4]):
            agent.ended(token)
        await p.read()
        block = p.raw[-1]
    assert len(p.told()) == 16
    for cut in range(0, len(block), 97):
        parser = Parser()
        parser.last_id = begin
        parser._id = begin
        got = [json.loads(m.data)["computeJid"] for m in parser.feed(block[:cut])]
        async with page(in_memory, jids=jids, last_id=parser.last_id) as again:
            if len(got) < len(jids):
                await again.read()
            got += [jid for jid, _ in again.told()]
        assert sorted(got) == sorted(jids), cut


async def test_a_first_block_that_is_cut_is_told_again_as_a_whole() -> None:
    in_memory = InMemorySupervisor()
    jids = tuple([await in_memory.submitted(n) for n in (1, 2, 3)])
    async with page(in_memory, jids=jids) as p:
        block = p.raw[0]
    parser = Parser()
    assert len(parser.feed(block[: len(block) // 2])) in (1, 2)
    assert parser.last_id == "", "so the browser has nothing to come back with"


@pytest.mark.parametrize(
    "last_id",
    [
        "",
        "nonsense",
        "1-2-0-3-0-0123456789abcdef",
        "1-2-3-0-{digest}",
        "9" * 18 + "-0-0-0-0-{digest}",
        "-1-0-0-0-0-{digest}",
        "0-0-0-0-0-{digest}\n",
    ],
)
async def test_an_id_that_is_none_or_of_another_wish_begins_anew(last_id: str) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    wish = Subscription(uid=UID, jids=(jid,))
    async with page(in_memory, jids=(jid,), last_id=last_id.format(digest=wish.digest)) as p:
        if "9" * 18 not in last_id:
            assert p.told() == [(jid, "running")]
        agent.ended(token)
        await p.until("status", lambda d: d["over"])
    assert p.told()[-1] == (jid, "completed"), (
        "also who was told more than there is now hears what follows"
    )


async def test_what_changes_without_an_event_is_told_in_time() -> None:
    in_memory = InMemorySupervisor(live={"look_secs": 0.02})
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    async with page(in_memory, jids=(jid,)) as p:
        agent.gone()
        assert (await p.until("status"))["known"] is False
        in_memory.engine.world.agent(agent.key).phase = "absent"
        Agent(in_memory, agent.key).synced(*[running(t) for t in in_memory.launched])
        assert (await p.until("status"))["known"] is True
        assert len(p.told()) == 3


async def test_what_changed_without_an_event_while_nobody_listened_is_told_to_who_comes_back() -> (
    None
):
    in_memory = InMemorySupervisor(live={"look_secs": 0.02})
    agent = in_memory.agent()
    over, token = await in_memory.running(agent, 1)
    jid, _ = await in_memory.running(agent, 2)
    agent.ended(token)
    wish = {"jids": (over, jid, jid.replace("sim00002", "sim00003"))}
    async with page(in_memory, **wish) as p:
        id_ = p.last_id
    agent.gone()
    async with page(in_memory, **wish, last_id=id_) as p:
        assert (await p.until("status"))["known"] is False
        with pytest.raises(TimeoutError):
            await p.read(0.15)
        assert [j for j, _ in p.told()] == [jid], "once, and of what is over nothing again"


# ---- slow readers


async def test_a_reader_that_does_not_take_anything_is_told_the_newest_of_each_when_it_does() -> (
    None
):
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent, 1)
    async with page(in_memory, jids=(jid,)) as p:
        for n in range(5000):
            agent.report(token, n=n)
        agent.ended(token, report={"n": "last"})
        assert len(p.reader._changed) + len(p.reader._progressed) <= 2, "names, not news"
        await p.read()
        await asyncio.sleep(0)
        assert p.told() == [(jid, "running"), (jid, "completed")]
        assert p.told("progress") == []
        assert json.loads(p.events[-1].data)["parallelStatus"] == {"n": "last"}


async def test_one_block_is_bounded_however_much_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_module, "BATCH", 10)
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    async with page(in_memory) as p:
        runs = [await in_memory.running(agent, n) for n in range(1, 36)]
        sizes = []
        while sum(sizes) < 35:
            sizes.append(len(await p.read()))
    assert sizes == [10, 10, 10, 5]
    assert [jid for jid, _ in p.told()] == [jid for jid, _ in runs]


async def test_a_user_may_have_so_many_streams_and_another_is_not_kept_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_module, "PER_USER", 2)
    in_memory = InMemorySupervisor()
    async with page(in_memory), page(in_memory):
        with pytest.raises(Refusal, match="tooManyRequests"):
            await page(in_memory).__aenter__()
        async with page(in_memory, uid=OTHER):
            pass
    async with page(in_memory):
        pass
    assert in_memory.live._readers == {}


# ---- end of the stream


async def test_silence_is_broken_now_and_then() -> None:
    in_memory = InMemorySupervisor(live={"keepalive_secs": 0.03})
    async with page(in_memory) as p:
        assert await p.read() == []
        assert p.raw[-1].startswith(b":")


async def test_an_old_stream_says_so_and_ends() -> None:
    in_memory = InMemorySupervisor(live={"life_secs": 0.02})
    async with page(in_memory) as p:
        while not p.over:
            await p.read()
        assert b"old enough" in p.raw[-1]


async def test_a_supervisor_that_stops_says_so_to_every_stream() -> None:
    in_memory = InMemorySupervisor()
    jid = await in_memory.submitted()
    async with page(in_memory) as p:
        closing = asyncio.ensure_future(in_memory.live.close())
        await asyncio.sleep(0)
        while not p.over:
            await p.read()
        assert b"stopping" in p.raw[-1]
        await p.close()
        await asyncio.wait_for(closing, 5 * 0.5)
    with pytest.raises(Refusal, match="draining"):
        await page(in_memory, jids=(jid,)).__aenter__()


async def test_a_reader_that_left_is_noticed_at_once() -> None:
    in_memory = InMemorySupervisor()
    async with page(in_memory) as p:
        p.reader.leave()
        assert await p.read(0.5) == []
        assert p.over


# ---- output


class Output:
    """An agent's output stream: answers `io` with the data so far; waits as long as requested."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.data, self.dropped, self.ended = agent, b"", 0, False
        self.reads: list[tuple[int, int]] = []
        self._task = asyncio.ensure_future(self._serve())

    async def _serve(self) -> None:
        served = 0
        while True:
            op = await self.agent.asked(ReadLog, served + 1)
            served += 1
            self.reads.append((op.offset, op.limit))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(op.wait_secs):
                    while len(self.data) <= op.offset and not self.ended:
                        await asyncio.sleep(0.002)
            data = self.data[op.offset : op.offset + op.limit]
            end = self.ended and op.offset + len(data) >= len(self.data)
            self.agent.say(
                LogChunk(
                    op_id=op.op_id,
                    offset=op.offset,
                    next_offset=op.offset + len(data),
                    data=data,
                    end=end,
                )
            )

    def close(self) -> None:
        self._task.cancel()


@pytest.fixture
async def written() -> AsyncIterator[Any]:
    outputs: list[Output] = []

    def make(agent: Agent) -> Output:
        outputs.append(Output(agent))
        return outputs[-1]

    yield make
    for o in outputs:
        o.close()


def text(p: Page) -> str:
    return "".join(t for _, t in p.told("log"))


async def test_output_follows_as_text(written: Any) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    output = written(agent)
    output.data = b"one\n"
    async with page(in_memory, jids=(jid,), logs=jid) as p:
        assert await p.until("log") == {
            "computeJid": jid,
            "computeJobSerial": token.serial,
            "stream": "stdout",
            "offset": 0,
            "nextOffset": 4,
            "dropped": 0,
            "text": "one\n",
            "end": False,
            "attempt": 1,
        }
        output.data += b"two\n"
        assert (await p.until("log"))["offset"] == 4
        output.data, output.ended = output.data + b"end", True
        await p.until("log", lambda d: d["end"])
    assert text(p) == "one\ntwo\nend"


async def test_a_character_that_is_cut_in_two_is_told_whole(written: Any) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    output = written(agent)
    whole = "aé€𝄞z\n".encode()
    async with page(in_memory, logs=jid) as p:
        for n in range(len(whole)):
            output.data = whole[: n + 1]
            await until(lambda n=n: output.reads and output.reads[-1][0] == n + 1, "it is read")
            while not p.reader._pieces.empty():
                await p.read()
        output.ended = True
        await p.until("log", lambda d: d["end"])
        assert "\ufffd" not in text(p) and text(p) == whole.decode()
        spans = [
            (d["offset"], d["nextOffset"], d["text"])
            for d in (json.loads(e.data) for e in p.events if e.event == "log")
        ]
        assert all(whole[a:b].decode() == t for a, b, t in spans)
        assert len(output.reads) < 50, (
            "it waits for the rest of a character and does not ask again and again"
        )


async def test_what_is_no_text_does_not_stop_it(written: Any) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    output = written(agent)
    output.data, output.ended = b"a\xff\xfeb\0\x1b[2J\r\n\xe2\x82", True
    async with page(in_memory, logs=jid) as p:
        data = await p.until("log", lambda d: d["end"])
    assert (text(p), data["nextOffset"]) == ("a\ufffd\ufffdb\0\x1b[2J\r\n\ufffd", 13)


@pytest.mark.parametrize("cut", range(14))
async def test_a_cut_anywhere_neither_loses_nor_repeats_a_byte(
    written: Any, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "PIECE", 3)
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    output = written(agent)
    whole = "0é1é2é3€4".encode()
    output.data, output.ended = whole, True
    async with page(in_memory, jids=(jid,), logs=jid) as p:
        for _ in range(cut):
            if not any(json.loads(e.data).get("end") for e in p.events):
                await p.read()
        id_, first = p.last_id, text(p)
        ended = any(json.loads(e.data).get("end") for e in p.events)
    async with page(in_memory, jids=(jid,), logs=jid, last_id=id_) as p:
        if not ended:
            await p.until("log", lambda d: d["end"])
        else:
            assert p.reader._pieces.empty()
        assert p.told() == [], "the status is not told again either"
    assert first + text(p) == whole.decode()


async def test_the_newest_bytes_first_then_what_follows(written: Any) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    output = written(agent)
    output.data = b"x" * 1000 + b"newest"

    async def evidence(*_: Any) -> tuple[bytes, int]:
        return b"", len(output.data)

    in_memory.desk.outputs._evidence = evidence  # type: ignore[method-assign]
    async with page(in_memory, logs=jid, tail=6) as p:
        assert (await p.until("log"))["offset"] == 1000
        output.data += b" more"
        await p.until("log")
        id_ = p.last_id
    assert text(p) == "newest more"
    output.data += b" and more"
    async with page(in_memory, logs=jid, tail=6, last_id=id_) as p:
        await p.until("log")
    assert text(p) == " and more", "the tail is for the first time only"


async def test_the_next_runs_output_follows_the_last_ones(written: Any) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    output = written(agent)
    output.data, output.ended = b"first", True
    async with page(in_memory, logs=jid) as p:
        await p.until("log", lambda d: d["end"])
        agent.ended(token)
        output.data, output.ended = b"", False
        _, newer = await in_memory.running(agent)
        output.data = b"second"
        data = await p.until("log")
    assert (data["computeJobSerial"], data["offset"], data["text"]) == (newer.serial, 0, "second")
    assert newer.serial > token.serial


async def test_the_next_attempts_output_follows_the_last_ones(written: Any) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent, retry=Retry(count=1))

    def run() -> Any:
        return in_memory.desk.job(UID, jid).job.run

    output = written(agent)
    output.data, output.ended = b"first", True
    async with page(in_memory, logs=jid) as p, page(in_memory, logs=jid, attempt=1) as first:
        ended = await p.until("log", lambda d: d["end"])
        await first.until("log", lambda d: d["end"])
        output.data, output.ended = b"second", False
        agent.ended(token, code=3)
        await until(lambda: run().retry is not None, "another attempt is planned")
        in_memory.engine.tell(TimerFired(AttemptRetry(jid, token.serial)))
        await until(lambda: in_memory.launched[-1].attempt == 2, "it is tried again")
        agent.running(in_memory.launched[-1])
        data = await p.until("log")
        id_ = p.last_id
        assert text(first) == "first", "who asked for one attempt gets no other"
    assert (ended["attempt"], ended["computeJobSerial"]) == (1, token.serial)
    assert (data["attempt"], data["computeJobSerial"]) == (2, token.serial)
    assert (data["offset"], data["text"], data["end"]) == (0, "second", False)
    async with page(in_memory, logs=jid, last_id=id_) as p:
        output.data += b" and more"
        data = await p.until("log")
    assert (data["attempt"], data["offset"], data["text"]) == (2, 6, " and more")


async def test_no_attempt_between_the_last_one_read_and_the_newest_is_left_out(
    written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent, retry=Retry(count=2))
    kept: dict[tuple[int, int], bytes] = {}

    async def evidence(task: Any, name: str, offset: int, limit: int) -> tuple[bytes, int]:
        data = kept[task.token.serial, task.token.attempt] if name == "stdout.log" else b""
        return data[offset : offset + limit], len(data)

    monkeypatch.setattr(in_memory.desk.outputs, "_evidence", evidence)

    def run() -> Any:
        return in_memory.desk.job(UID, jid).job.run

    async def attempts(first: Token) -> None:
        """Let the first two attempts fail, and the third one write."""
        token = first
        for number in (1, 2):
            kept[token.serial, number] = f"{token.serial}/{number} ".encode()
            agent.ended(token, code=3)
            await until(lambda: run().retry is not None, "another attempt is planned")
            in_memory.engine.tell(TimerFired(AttemptRetry(jid, token.serial)))
            await until(
                lambda n=number: in_memory.launched[-1].attempt == n + 1, "it is tried again"
            )
            token = in_memory.launched[-1]
            agent.running(token)

    output = written(agent)
    output.data, output.ended = f"{token.serial}/1 ".encode(), True
    async with page(in_memory, logs=jid) as p:
        await p.until("log", lambda d: d["end"])
        id_ = p.last_id
    output.data = f"{token.serial}/3 ".encode()
    await attempts(token)
    first = token.serial
    async with page(in_memory, logs=jid, last_id=id_) as p:
        await p.until("log", lambda d: d["end"] and d["attempt"] == 3)
        id_ = p.last_id
    assert text(p) == f"{first}/2 {first}/3 "
    # the same with the attempts of the next run
    kept[first, 3] = f"{first}/3 ".encode()
    agent.ended(run().attempts[-1].tasks[0].token)
    _, token = await in_memory.running(agent, retry=Retry(count=2))
    output.data = f"{token.serial}/3 ".encode()
    await attempts(token)
    async with page(in_memory, logs=jid, last_id=id_) as p:
        await p.until("log", lambda d: d["end"] and d["attempt"] == 3)
    assert text(p) == "".join(f"{token.serial}/{number} " for number in (1, 2, 3))


async def test_output_waits_for_its_reader(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "PIECE", 100)
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    output = written(agent)
    output.data, output.ended = bytes(i % 128 for i in range(10_000)), True
    async with page(in_memory, logs=jid) as p:
        await until(lambda: len(output.reads) >= 2, "the first pieces are read")
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert len(output.reads) == 2, "one waits to be taken, one to be put there"
        while "".join(t for _, t in p.told("log")).encode() != output.data:
            await p.read()
            assert len(output.reads) <= len(p.told("log")) + 3


@pytest.mark.parametrize("task", [{"attempt": 2}, {"role": "nosuch"}])
async def test_a_task_that_the_run_does_not_have_does_not_end_the_stream(
    monkeypatch: pytest.MonkeyPatch, task: dict[str, Any]
) -> None:
    monkeypatch.setattr(tail_module, "ABSENT_SECS", 0.001)
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    async with page(in_memory, jids=(jid,), logs=jid, **task) as p:
        await until(
            lambda: in_memory.counters.all().get("tail.notFound", 0) >= 2, "it is asked for again"
        )
        agent.ended(token)
        await p.until("status", lambda d: d["over"])
    assert p.told("log") == []


async def test_the_output_of_what_is_not_yours_is_refused_like_that_of_what_is_not_there() -> None:
    in_memory = InMemorySupervisor()
    theirs = in_memory.agent(OTHER)
    foreign, _ = await in_memory.running(theirs, 1)
    sentences = set()
    for jid in (foreign, foreign.replace("sim00001", "sim00009"), f"{UID}-sim00001-command"):
        with pytest.raises(Refusal) as e:
            await page(in_memory, logs=jid).__aenter__()
        sentences.add((e.value.code, e.value.sentence.replace(jid, "")))
    assert len(sentences) == 1 and sentences.pop()[0] == "notFound"


async def test_an_agent_that_goes_and_comes_back_interrupts_nothing(written: Any) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, _ = await in_memory.running(agent)
    output = written(agent)
    output.data = b"before "
    calls: list[int] = []

    async def evidence(*_: Any) -> tuple[bytes, int]:
        calls.append(1)
        raise Refusal("agentUnavailable", "nobody can look now")

    in_memory.desk.outputs._evidence = evidence  # type: ignore[method-assign]
    async with page(in_memory, logs=jid) as p:
        await p.until("log")
        agent.gone()
        await until(lambda: len(calls) >= 2, "it is tried again")
        output.close()
        in_memory.engine.world.agent(agent.key).phase = "absent"
        again = Agent(in_memory, agent.key).synced(*[running(t) for t in in_memory.launched])
        other = written(again)
        other.data = b"before after"
        await p.until("log")
    assert text(p) == "before after"
    assert len(calls) < 20, "with pauses"


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "PACE_SECS", 0.0)


async def test_a_stream_of_others_has_the_jobs_that_its_user_may_see(no_pauses: None) -> None:
    in_memory, stranger = InMemorySupervisor(), "user0009"
    seen = {OTHER, UID}
    streams = {
        "group": {"of": "group", "users": frozenset((OTHER,))},
        "all": {"of": "all"},
        "named": {"jids": (f"{OTHER}-sim00001-command", f"{stranger}-sim00001-command")},
    }
    jids = {stranger: await in_memory.submitted(1, stranger)}
    async with contextlib.AsyncExitStack() as stack:
        pages = {
            name: await stack.enter_async_context(
                page(in_memory, seen.__contains__ if name != "all" else bool, **wish)
            )
            for name, wish in streams.items()
        }
        for uid in (OTHER, UID):
            jids[uid] = await in_memory.submitted(1, uid)
        await in_memory.submitted(2, stranger)
        last = await in_memory.submitted(2, OTHER)
        for name, p in pages.items():
            if name != "named":
                await p.until("status", lambda d: d["computeJid"] == last)
        p = pages["named"]
        await p.until("status", lambda d: d["state"] == "pending")
    told = {
        name: {jid for jid, state in p.told() if state != "missing"} for name, p in pages.items()
    }
    assert told["group"] == {jids[OTHER], jids[UID], last}
    assert told["all"] == {jids[OTHER], jids[UID], f"{stranger}-sim00002-command", last}
    assert told["named"] == {jids[OTHER]}
    assert [state for jid, state in p.told() if jid == jids[stranger]] == ["missing"]


async def test_a_stream_of_all_jobs_has_bounded_blocks_and_resumes(
    no_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "BATCH", 3)
    in_memory = InMemorySupervisor()
    async with page(in_memory, bool, of="all") as p:
        assert p.told() == [], "the page asks for its list itself"
        for n in range(1, 10):
            await in_memory.submitted(n, OTHER)
        assert len(p.reader._changed) <= 3, "a reader that does not read costs a few names"
        many = await p.until("many")
        assert many["changed"] + len(p.told()) == 9
        last = p.last_id
    async with page(in_memory, bool, of="all", last_id=last) as p:
        assert p.told() == [] and "many" not in {e.event for e in p.events}
        new = await in_memory.submitted(10, OTHER)
        await p.until("status", lambda d: d["computeJid"] == new)
    async with page(in_memory, bool, of="all", last_id=last) as p:
        await p.until("many")


async def test_every_page_is_told_of_a_drain_of_the_site() -> None:
    in_memory = InMemorySupervisor()
    drain = Drain(by="admin001", at=1.0, reason="new disks")
    async with page(in_memory) as own, page(in_memory, bool, of="all") as wide:
        in_memory.live.drained({SITE: drain})
        for p in (own, wide):
            said = await p.until("site", lambda d: d["siteDrain"] is not None)
            assert said == {"siteDrain": {"at": 1.0, "reason": "new disks"}}
        last = own.last_id
        in_memory.live.drained({})
    async with page(in_memory, last_id=last) as p:
        (said,) = (json.loads(e.data) for e in p.events if e.event == "site")
        assert said == {"siteDrain": None}, "a drain that ended meanwhile"


async def test_own_pages_are_told_of_a_changed_file_of_the_library() -> None:
    """A slow reader is told of the newest, each once; a reader of this user's jobs is not."""
    in_memory = InMemorySupervisor()
    async with (
        page(in_memory) as own,
        page(in_memory, bool, uid=OTHER, jids=(f"{UID}-sim00001-command",)) as other,
    ):
        for n in (*range(70), 69):
            in_memory.live.stored(UID, "heat", f"{n}.json")
        await own.until("library", lambda d: d == {"simulationType": "heat", "name": "69.json"})
        names = [json.loads(e.data)["name"] for e in own.events if e.event == "library"]
        assert len(names) == len(set(names)) == 64
        in_memory.live.stored(OTHER, "heat", "theirs")
        await other.until("library")
        assert [e.event for e in other.events].count("library") == 1


async def test_statuses_that_take_long_to_make_are_told_in_several_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other tasks run in between. Each status is sent once, and the last id covers all of them."""
    monkeypatch.setattr(live_module, "MAKING_SECS", -1.0)
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jids = tuple([await in_memory.submitted(n) for n in (1, 2, 3)])
    async with page(in_memory, jids=jids) as p:
        for token in list(in_memory.launched):
            agent.running(token)
        for _ in jids:
            await p.read()
        assert [len(block.split(b"event: status")) - 1 for block in p.raw[-3:]] == [1, 1, 1]
        assert sorted(jid for jid, _ in p.told()[-3:]) == sorted(jids)
        last = p.last_id
    async with page(in_memory, jids=jids, last_id=last) as p:
        assert p.told() == []


def test_a_position_is_valid_for_one_task_alone() -> None:
    job = Subscription(uid=UID, logs=f"{UID}-sim00001-command")
    of_tasks = [
        job,
        msgspec.structs.replace(job, attempt=1),
        msgspec.structs.replace(job, role="main"),
        msgspec.structs.replace(job, role="main", index=1),
        msgspec.structs.replace(job, stream="stderr"),
        msgspec.structs.replace(job, of="group"),
        msgspec.structs.replace(job, of="group", users=frozenset((OTHER,))),
        msgspec.structs.replace(job, of="all"),
    ]
    assert len({s.digest for s in of_tasks}) == len(of_tasks)
