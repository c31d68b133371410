"""An agent that cannot reach its supervisor retries for hours, whatever answers. Agents never retry
all at once or in a tight loop.
"""

import asyncio
import gc
import itertools
import json
import logging
import random
import selectors
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket

from jobscribe.agent.session import websocket as link_module
from jobscribe.agent.session.backoff import (
    AWAY_SECS,
    FIRST,
    GOOD_SECS,
    LATE,
    LONGEST,
    LONGEST_LATE,
    LONGEST_REFUSED,
    REPORT_SECS,
    Backoff,
    may_end,
)
from jobscribe.agent.session.websocket import Link, read_address
from jobscribe.protocol.ids import AgentKey, parse_token
from jobscribe.protocol.wire.messages import Alive, Execution

KEY = AgentKey("local", "sequential", "LinkUsr1", "localhost")
ALIVE = Alive(
    agent_id="a" * 32,
    agent_key=KEY,
    version="1",
    host="node1",
    boot_id="boot1",
    pid=10,
    keeper_pid=9,
)
TOKEN = parse_token("LinkUsr1-link0001-command/1700000001/1/main/0")
HOURS = 24
#: G3 requires a true status within 5 s of a restart; the longest backoff must fit in it.
BACK_SECS = 5.0


# ---- backoff, on a manual clock


def test_the_pauses_grow_to_their_longest_and_stay_there_for_hours() -> None:
    backoff, passed, pauses = Backoff(), 0.0, []
    while passed < HOURS * 3600:
        pauses.append(backoff.failed("unreachable", 0.5))
        passed += pauses[-1]
    assert (
        pauses[0] == FIRST and pauses[LATE] == LONGEST and pauses[-1] == LONGEST_LATE == max(pauses)
    )
    assert (
        pauses == sorted(pauses)
        and sum(p < LONGEST for p in pauses) < 10
        and sum(pauses[:LATE]) > 580
    )
    assert LONGEST * 1.5 < BACK_SECS


def test_an_agent_ends_without_a_supervisor_only_where_nothing_is_left_to_watch() -> None:
    def execution(state: str) -> Execution:
        return Execution(token=TOKEN, state=state, op_id="o" * 32)  # type: ignore[arg-type]

    running, ended = execution("running"), execution("ended")
    assert not may_end(AWAY_SECS - 1, AWAY_SECS, []) and may_end(AWAY_SECS + 1, AWAY_SECS, [])
    assert not may_end(REPORT_SECS - 1, AWAY_SECS, [ended]) and may_end(
        REPORT_SECS + 1, AWAY_SECS, [ended]
    )
    for known in ([running], [ended, running], [execution("starting")]):
        assert not may_end(1e9, 1.0, known)


def test_who_is_refused_asks_less_often_and_soon_again_when_nobody_is_there() -> None:
    backoff = Backoff()
    pauses = [backoff.failed("refused", 0.5) for _ in range(20)]
    assert pauses[-1] == LONGEST_REFUSED
    assert backoff.failed("unreachable", 0.5) == LONGEST


def test_a_connection_that_ends_at_once_is_no_better_than_none() -> None:
    backoff = Backoff()
    assert [backoff.ended(0.01, 0.5) for _ in range(20)][-1] == LONGEST
    assert backoff.ended(GOOD_SECS, 0.5) == FIRST and backoff.failures == 0


def test_a_thousand_agents_spread() -> None:
    """All agents lost their supervisor at the same moment; their retries must not come in waves."""
    chance, tries = random.Random(1), []
    for _ in range(1000):
        backoff, at = Backoff(), 0.0
        while at < 60:
            at += backoff.failed("unreachable", chance.random())
            tries.append(at)
    tenths = Counter(t // 0.1 for t in tries)
    by_tenth = [tenths[n] for n in range(300, 600)]
    assert max(by_tenth) < 2 * statistics.mean(by_tenth), "in the second half minute"


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop with virtual time: time advances at once when nothing is ready."""

    def __init__(self) -> None:
        self._passed = 0.0
        super().__init__(_Impatient(self))

    def time(self) -> float:
        return self._passed


class _Impatient(selectors.DefaultSelector):
    def __init__(self, loop: _VirtualLoop) -> None:
        super().__init__()
        self._virtual = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout:
            self._virtual._passed += timeout
        return found


def test_the_link_itself_never_gives_up_in_hours(tmp_path: Path) -> None:
    tries: list[float] = []

    class File:
        name = "agents.json"

        def stat(self) -> Any:
            raise FileNotFoundError("no such file")

        def read_bytes(self) -> bytes:
            tries.append(loop.time())
            raise (
                FileNotFoundError("no such file"),
                PermissionError("not yours"),
                OSError("stale"),
            )[len(tries) % 3]

    said = _Said()
    loop = _VirtualLoop()
    try:
        link = _link(File(), said)  # type: ignore[arg-type]

        async def live() -> None:
            task = asyncio.ensure_future(link.run())
            await asyncio.sleep(HOURS / 2 * 3600)
            assert not task.done()
            task.cancel()

        loop.run_until_complete(live())
    finally:
        loop.close()
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    assert (
        tries[-1] > HOURS / 2 * 3600 - 2 * LONGEST_LATE
        and max(gaps) <= 1.5 * LONGEST_LATE
        and len(tries) < HOURS / 8 * 3600
    )
    assert len(tries) / 100 < len(said.lines) < len(tries) / 50, (
        "it is said now and then, not every time"
    )


def test_a_supervisor_that_is_back_after_hours_is_dialed_as_soon_as_it_has_written_its_address(
    tmp_path: Path,
) -> None:
    tries: list[float] = []
    written = [0]

    class File:
        name = "agents.json"

        def stat(self) -> Any:
            return SimpleNamespace(st_ino=written[0], st_mtime_ns=0)

        def read_bytes(self) -> bytes:
            tries.append(loop.time())
            raise FileNotFoundError

    loop = _VirtualLoop()
    try:

        async def live() -> None:
            task = asyncio.ensure_future(_link(File(), _Said()).run())  # type: ignore[arg-type]
            await asyncio.sleep(3600)
            written[0] += 1
            await asyncio.sleep(BACK_SECS)
            task.cancel()

        loop.run_until_complete(live())
    finally:
        loop.close()
    assert sum(t > 3600 for t in tries) > 5, "and again at once where the first try comes too early"


# ---- any kind of answer


class _Said:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ups = 0

    def __call__(self, text: str, *args: Any, **_: Any) -> None:
        self.lines.append(text.format(*args))


def _link(file: Path, said: _Said) -> Link:
    def up() -> None:
        said.ups += 1

    return Link(
        file,
        str(KEY),
        "t" * 32,
        ALIVE,
        said,
        on_up=up,
        on_message=lambda _: None,
        on_down=lambda: None,
    )  # type: ignore[arg-type]


class _Socket(tornado.websocket.WebSocketHandler):
    """verdict: accept the connection, close it at once, or refuse it."""

    def initialize(self, verdict: str, counted: list[float]) -> None:
        self._verdict, self._counted = verdict, counted

    def prepare(self) -> None:
        self._counted.append(asyncio.get_running_loop().time())
        if self._verdict.isdigit():
            self.set_status(int(self._verdict))
            self.finish()

    def open(self, *_: str, **__: str) -> None:
        if self._verdict == "close":
            self.close()

    def on_message(self, message: str | bytes) -> None:
        pass


def _serve(verdict: str, counted: list[float]) -> int:
    """Start a websocket server and return its port."""
    application = tornado.web.Application(
        [(r"/agent", _Socket, {"verdict": verdict, "counted": counted})],
        log_function=lambda _: None,
    )
    sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
    server = tornado.httpserver.HTTPServer(application)
    server.add_sockets(sockets)
    _servers.append(server)
    return int(sockets[0].getsockname()[1])


_servers: list[Any] = []
_writers: list[asyncio.StreamWriter] = []


async def _raw(answer: bytes | None, counted: list[float]) -> int:
    """Start a server that reads the request and answers with these bytes, one at a time. None:
    never answer.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counted.append(asyncio.get_running_loop().time())
        _writers.append(writer)
        try:
            await reader.readuntil(b"\r\n\r\n")
            for n in range(len(answer or b"")):
                writer.write((answer or b"")[n : n + 1])
                await asyncio.sleep(0)
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    _servers.append(server)
    return int(server.sockets[0].getsockname()[1])


def _address(port: int) -> str:
    return json.dumps({"agentsUrl": f"ws://127.0.0.1:{port}/agent", "agentsCa": None})


async def _free_port(_: list[float]) -> str:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    return _address(port)


def _is(text: str | None) -> Callable[[list[float]], Awaitable[str | None]]:
    async def make(_: list[float]) -> str | None:
        return text

    return make


def _answers(verdict: str) -> Callable[[list[float]], Awaitable[str]]:
    async def make(counted: list[float]) -> str:
        return _address(_serve(verdict, counted))

    return make


def _says(answer: bytes | None) -> Callable[[list[float]], Awaitable[str]]:
    async def make(counted: list[float]) -> str:
        return _address(await _raw(answer, counted))

    return make


#: Initial content of agents.json (None: no file), or the server that answers at its address.
BAD: dict[str, Callable[[list[float]], Awaitable[str | None]]] = {
    "agents.json is missing": _is(None),
    "it is empty": _is(""),
    "half written": _is(_address(8001)[:20]),
    "no object": _is("null"),
    "a list": _is("[1]"),
    "a port that is no number": _is('{"agentsUrl": "ws://127.0.0.1:x/agent"}'),
    "no port of any machine": _is('{"agentsUrl": "ws://127.0.0.1:99999/agent"}'),
    "no address": _is('{"agentsUrl": 7}'),
    "another scheme": _is('{"agentsUrl": "ftp://x/"}'),
    "no host": _is('{"agentsUrl": "ws://"}'),
    "not text": _is("\x00\udcff\udcfe"),
    "pings that never come": _is(
        '{"agentsUrl": "ws://127.0.0.1:1/agent", "pingSecs": 0, "pingTimeoutSecs": 0}'
    ),
    "an authority that is not there": _is(
        '{"agentsUrl": "wss://127.0.0.1:1/agent", "agentsCa": "/nowhere/ca.pem"}'
    ),
    "nobody listens": _free_port,
    "it closes at once": _answers("close"),
    "it refuses the token": _answers("401"),
    "it fails": _answers("500"),
    "it sends elsewhere": _answers("302"),
    "it never answers": _says(None),
    "half a line": _says(b"HTTP/1.1 101 Swi"),
    "no websocket": _says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
    "no HTTP": _says(b"\x15\x03\x01\x00\x02\x02\x28\r\n\r\n"),
    "a switch to nothing": _says(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
    "a frame that is none": _says(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: no\r\n\r\n\xff\xff"
    ),
}


# Tornado's client warns if it is collected after an answer that did not switch to a websocket
@pytest.mark.filterwarnings("ignore:Unclosed WebSocketClientConnection:ResourceWarning")
async def test_whatever_is_wrong_it_is_connected_soon_after_that_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "DIAL_SECS", 0.4)
    # pytest keeps its log records, which hold references to the connections that must be collected
    monkeypatch.setattr(logging.getLogger("tornado.application"), "disabled", True)
    try:
        await asyncio.gather(
            *(_one(tmp_path / f"{n}.json", name, bad) for n, (name, bad) in enumerate(BAD.items()))
        )
    finally:
        for server in _servers:
            server.stop() if hasattr(server, "stop") else server.close()
        for writer in _writers:
            writer.close()
        _servers.clear()
        _writers.clear()
        await asyncio.sleep(0.1)
        gc.collect()


DEAD_URL = "ws://127.0.0.1:1/agent"


async def _one(file: Path, name: str, bad: Callable[[list[float]], Awaitable[str | None]]) -> None:
    counted: list[float] = []
    text = await bad(counted)
    if text is not None:
        file.write_bytes(text.encode(errors="surrogateescape"))
    said = _Said()
    task = asyncio.ensure_future(_link(file, said).run())
    try:
        await asyncio.sleep(2.5)
        assert not task.done(), (name, task.exception())
        assert len(counted) < 12, f"{name}: {len(counted)} tries in 2.5 s"
        before = said.ups
        new = file.with_suffix(".new")
        said_new = json.loads(_address(_serve("good", [])))
        if len(name) % 2:  # the other supervisor of the site serves it
            said_new |= {"agentsOthers": [said_new["agentsUrl"]], "agentsUrl": DEAD_URL}
        new.write_text(json.dumps(said_new))
        new.rename(file)
        deadline = asyncio.get_running_loop().time() + 5 * BACK_SECS
        while said.ups == before:
            assert asyncio.get_running_loop().time() < deadline and not task.done(), name
            await asyncio.sleep(0.02)
        assert said.lines or name == "it closes at once", name
        assert not any("t" * 32 in line for line in said.lines), "its token stays its own"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_pace_of_pings_is_the_supervisors(tmp_path: Path) -> None:
    file = tmp_path / "agents.json"
    file.write_text(
        '{"agentsUrl": "ws://127.0.0.1:1/agent", "agentsCa": null, "pingSecs": 0.5, "pingTimeoutSecs": 0.25}'
    )
    address = read_address(file)
    assert (address.ping_secs, address.ping_timeout_secs) == (0.5, 0.25)
    file.write_text('{"agentsUrl": "ws://127.0.0.1:1/agent", "agentsCa": null}')
    assert read_address(file).ping_secs == 20.0
