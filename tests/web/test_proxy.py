"""The front door of `up`: waitress, which hands event streams over to the proxy. The proxy forwards
them unchanged, without buffering, and answers with a sentence if the supervisor is down.
"""

import asyncio
import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from stub_supervisor import TOKEN
from waitress.server import create_server

from jobscribe.client.api.errors import own
from jobscribe.client.transport.address import Address
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.connections.admission import Limits
from jobscribe.runtime.connections.http_server import Peers
from jobscribe.runtime.log.logger import Log
from jobscribe.web.server import proxy as proxy_module
from jobscribe.web.server import waitress_server
from jobscribe.web.server.peer_gate import PeerGate
from jobscribe.web.server.proxy import Proxy, adopt, server_of
from jobscribe.web.server.waitress_server import guard

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


LIMITS = Limits()


class Quiet:
    def write(self, record: Any) -> None:
        return


LOG = Log("web", Redactor(), Quiet())


def says_front(environ: Any, start: Any) -> list[bytes]:
    environ["wsgi.input"].read()
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"front"]


class Stand:
    """The front door of `up`: waitress in one thread, with a loop for event streams in another.
    `app` is the WSGI application, `live` the supervisor that the test scripts.
    """

    def __init__(self) -> None:
        self.app: Any = says_front
        self.live: Handler = answering(b"live")
        self.away = False
        self.signed_in: str | None = "a session"
        self.loop = asyncio.new_event_loop()
        self._threads = [threading.Thread(target=self.loop.run_forever, daemon=True)]
        self._threads[0].start()
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        self.port = int(listening.getsockname()[1])
        self.call(self._start())
        self.waitress = create_server(
            lambda environ, start: self.app(environ, start),
            sockets=[listening],
            threads=2,
            asyncore_use_poll=True,
            outbuf_high_watermark=512 * 1024,
            _start=True,
        )
        self.waitress.adj.asyncore_loop_timeout = 0.05
        guard(
            self.waitress,
            LIMITS,
            Peers(),
            lambda parser: self.signed_in is not None,
            LOG,
            64,
            admit=lambda connection, sock: self.proxy.gate.check(connection, sock),
            live=lambda *handed: self.loop.call_soon_threadsafe(adopt, self.server, *handed),
        )
        self._threads.append(threading.Thread(target=self._answer, daemon=True))
        self._threads[1].start()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # the end of the test closes its sockets
            self.waitress.run()

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(20)

    async def _start(self) -> None:
        async def live(r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
            with contextlib.closing(w):
                await self.live(r, w)

        self.supervisor = await asyncio.start_server(live, "127.0.0.1", 0)
        port = self.supervisor.sockets[0].getsockname()[1]

        def supervisor() -> Address:
            if self.away:
                raise own("noSupervisor", "no supervisor has been started")
            return Address(url=f"http://127.0.0.1:{port}", token=TOKEN, uid="AnnAnn01")

        self.proxy = Proxy(supervisor, lambda headers: self.signed_in, LOG, PeerGate(LOG))
        self.server = server_of(self.proxy, LIMITS)

    async def stop_backends(self) -> None:
        self.supervisor.close()

    async def _stop(self) -> None:
        self.supervisor.close()
        for connection in list(self.server._connections):
            connection.stream.close()
        for _ in range(5):
            await asyncio.sleep(0)
        others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def close(self) -> None:
        self.call(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.waitress.trigger.pull_trigger(
            lambda: self.waitress.asyncore.close_all(self.waitress._map)
        )
        for thread in self._threads:
            thread.join(10)
        self.waitress.task_dispatcher.shutdown()
        self.loop.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers or {}, **more)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def declare(self, method: str, path: str, length: int | None) -> tuple[int, Any, bytes]:
        """Send only the headers of a request with a body (None: in chunks); return the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path)
            if length is None:
                connection.putheader("Transfer-Encoding", "chunked")
            else:
                connection.putheader("Content-Length", str(length))
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


async def head(reader: asyncio.StreamReader) -> tuple[str, list[tuple[str, str]]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")[:-2]
    return first, [(n.strip(), v.strip()) for n, _, v in (line.partition(":") for line in lines)]


def answering(body: bytes, status: str = "200 OK", headers: str = "") -> Handler:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body
        )
        await writer.drain()
        writer.close()

    return answer


@pytest.fixture
def stand() -> Iterator[Stand]:
    stand = Stand()
    yield stand
    stand.close()


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("/live", b"live"),
        ("/live?computeJid=x", b"live"),
        ("/", b"front"),
        ("/lively", b"front"),
        ("/live/", b"front"),
        ("/a?b=/live", b"front"),
        ("/LIVE", b"front"),
        ("//live", b"front"),
        ("/api/run-simulation", b"front"),
    ],
)
def test_live_goes_to_the_supervisor_and_all_else_to_the_front_end(
    stand: Stand, path: str, to: bytes
) -> None:
    assert stand.ask("GET", path)[2] == to


def test_a_connection_that_served_pages_can_become_an_event_stream(stand: Stand) -> None:
    with socket.create_connection(("127.0.0.1", stand.port), timeout=20) as s:
        for n in range(3):
            s.sendall(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n)
            got = b""
            while not got.endswith(b"front"):
                got += s.recv(65536)
        for byte in b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n":  # in pieces as small as can be
            s.sendall(bytes([byte]))
        got = b""
        while piece := s.recv(65536):
            got += piece
    assert got.endswith(b"live") and got.count(b"HTTP/1.1 200") == 1
    assert b"Connection: close" in got, "an event stream is the last answer of its connection"
    over(stand)


def test_words_that_only_begin_like_an_event_stream_are_answered(stand: Stand) -> None:
    with socket.create_connection(("127.0.0.1", stand.port), timeout=20) as s:
        for byte in b"GET /liv HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":
            s.sendall(bytes([byte]))
        got = b""
        while piece := s.recv(65536):
            got += piece
    assert got.endswith(b"front")


def test_headers_pass_but_those_of_the_connection_and_those_that_only_the_proxy_may_say(
    stand: Stand,
) -> None:
    got: dict[str, str] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got["first"], pairs = await head(reader)
        got.update({n.lower(): v for n, v in pairs})
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
            b"Connection: close, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nX-Other: 2\r\n\r\nok"
        )
        await writer.drain()

    stand.live = answer
    code, headers, body = stand.ask(
        "GET",
        "/live?y=%2F",
        None,
        {
            "Host": "localhost:1234",
            "Origin": "http://localhost:1234",
            "Cookie": "c=d",
            "Connection": "keep-alive, X-Secret",
            "X-Secret": "1",
            "X-Forwarded-For": "6.6.6.6",
            "Forwarded": "for=6.6.6.6",
            "X-Forwarded-Proto": "https",
            "TE": "trailers",
            "Upgrade": "websocket",
            "Proxy-Authorization": "x",
            "Expect": "",
        },
    )
    assert (code, body, got["first"]) == (200, b"ok", "GET /live?y=%2F HTTP/1.1")
    assert (got["host"], got["origin"], got["cookie"]) == (
        "localhost:1234",
        "http://localhost:1234",
        "c=d",
    )
    assert (got["x-forwarded-for"], got["x-forwarded-proto"], got["x-forwarded-host"]) == (
        "127.0.0.1",
        "http",
        "localhost:1234",
    )
    assert not {"x-secret", "forwarded", "te", "upgrade", "proxy-authorization", "expect"} & set(
        got
    )
    assert headers.get_all("Set-Cookie") == ["a=1", "b=2"]
    assert (headers["X-Other"], headers["X-Mine"], headers["Keep-Alive"]) == ("2", None, None)


def test_an_event_stream_has_no_body(stand: Stand) -> None:
    said(stand.ask("GET", "/live", b"x" * 10), 400, "badRequest")


def test_too_large_is_said_before_it_is_read(stand: Stand) -> None:
    taken: list[int] = []

    def app(environ: Any, start: Any) -> list[bytes]:
        taken.append(int(environ["CONTENT_LENGTH"]))
        return says_front(environ, start)

    stand.app = app
    limit = waitress_server.LARGEST_BODY
    said(stand.declare("POST", "/run-simulation", limit + 1), 413, "tooLarge")
    assert taken == []
    assert stand.ask("PUT", "/lib-file/a/b", b"x" * (limit + 1))[0] == 200
    assert taken == [limit + 1]


@pytest.mark.parametrize("path", ["/run-simulation", "/lib-file/a/b"])
def test_of_a_stranger_no_large_body_is_taken_in(stand: Stand, path: str) -> None:
    taken: list[str] = []

    def app(environ: Any, start: Any) -> list[bytes]:
        taken.append(environ["PATH_INFO"])
        return says_front(environ, start)

    stand.app, stand.signed_in = app, None
    most = waitress_server.LARGEST_UNAUTHENTICATED
    said(stand.declare("PUT", path, most + 1), 401, "unauthenticated")
    said(stand.declare("PUT", path, None), 401, "unauthenticated")
    assert taken == []
    assert stand.ask("PUT", path, b"x" * most)[0] == 200


def test_an_answer_of_a_page_that_nobody_takes_is_given_up(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waitress_server, "STALL_SECS", 0.3)
    gone = threading.Event()

    def flood(environ: Any, start: Any) -> Iterator[bytes]:
        start("200 OK", [("Content-Length", str(1 << 30))])
        try:
            for _ in range(1 << 10):
                yield bytes(1 << 20)
        finally:
            gone.set()

    stand.app = flood
    with socket.create_connection(("127.0.0.1", stand.port), timeout=20) as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert gone.wait(20)


def test_an_answer_of_unknown_length_flows_as_it_comes(stand: Stand) -> None:
    step = threading.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nid: 1\n\n")
        await writer.drain()
        while not step.is_set():
            await asyncio.sleep(0.01)
        writer.write(b"id: 2\n\n")
        await writer.drain()
        writer.close()

    stand.live = stream
    connection = http.client.HTTPConnection("127.0.0.1", stand.port, timeout=20)
    connection.request("GET", "/live")
    answer = connection.getresponse()
    assert answer.read1(100) == b"id: 1\n\n", (
        "the first is there before the second has been written"
    )
    step.set()
    assert answer.read() == b"id: 2\n\n"
    connection.close()


def test_a_browser_that_goes_away_is_noticed_on_the_other_side(stand: Stand) -> None:
    noticed = threading.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await writer.drain()
        assert await reader.read() == b""
        noticed.set()
        writer.close()

    stand.live = stream
    connection = http.client.HTTPConnection("127.0.0.1", stand.port, timeout=20)
    connection.request("GET", "/live")
    answer = connection.getresponse()
    assert answer.read1(5) == b"hello"
    assert stand.proxy.under_way == 1
    answer.close()
    connection.close()
    assert noticed.wait(10)
    deadline = time.monotonic() + 10
    while stand.proxy.under_way and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stand.proxy.under_way == 0


def rss() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_reader_that_reads_nothing_stops_the_writer_and_fills_nothing(stand: Stand) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
        block = bytes(1 << 20)
        while sent < 1 << 30:
            writer.write(block)
            await writer.drain()
            sent += len(block)

    stand.live = flood
    connection = http.client.HTTPConnection("127.0.0.1", stand.port, timeout=20)
    before = rss()
    connection.request("GET", "/live")
    answer = connection.getresponse()
    seen, deadline = -1, time.monotonic() + 20
    while sent != seen and time.monotonic() < deadline:  # until the writer is blocked
        seen = sent
        time.sleep(0.3)
    assert 0 < sent < 64 << 20
    assert rss() - before < 48 << 20
    answer.close()
    connection.close()


def said(answer: tuple[int, Any, bytes], code: int, name: str) -> None:
    assert answer[0] == code, answer
    assert answer[1]["Content-Type"] == "application/json"
    body = json.loads(answer[2])
    assert (body["state"], body["code"]) == ("error", name) and body["error"] and body["advice"]


def test_a_side_that_is_away_is_said_in_the_usual_form(stand: Stand) -> None:
    stand.away = True
    said(stand.ask("GET", "/live"), 503, "supervisorUnavailable")
    stand.away = False
    stand.call(stand.stop_backends())
    said(stand.ask("GET", "/live"), 503, "supervisorUnavailable")
    assert stand.proxy.under_way == 0


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-", b"garbage\r\n\r\n"])
def test_a_side_that_dies_before_it_answers(stand: Stand, answer: bytes) -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(answer)
        await writer.drain()
        writer.close()

    stand.live = dies
    said(stand.ask("GET", "/live"), 503, "supervisorUnavailable")
    assert stand.proxy.under_way == 0


@pytest.mark.parametrize(
    "framed",
    [b"Content-Length: 100\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n5\r\nha"],
)
def test_an_answer_that_is_cut_off_does_not_look_whole(stand: Stand, framed: bytes) -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n" + framed)
        await writer.drain()
        writer.close()

    stand.live = dies
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        stand.ask("GET", "/live")


def test_too_many_at_once_are_told_to_come_back(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "MOST", 0)
    said(stand.ask("GET", "/live"), 429, "tooManyRequests")
    monkeypatch.setattr(proxy_module, "MOST", 1)
    assert stand.ask("GET", "/live")[0] == 200


@pytest.mark.parametrize("uid", [12345, None])
def test_no_request_of_another_unix_user_goes_on_to_either_side(
    stand: Stand, uid: int | None
) -> None:
    asked = []

    def owner(peer: Any, here: Any) -> int | None:
        asked.append(peer)
        return uid

    stand.proxy.gate.owner = owner
    for method, path in (
        ("GET", "/live"),
        ("GET", "/who"),
        ("POST", "/run-simulation"),
        ("PUT", "/lib-file/x/y"),
        ("GET", "/"),
        ("GET", "/live?x"),
    ):
        code, _, body = stand.ask(
            method,
            path,
            b"{}" if method != "GET" else None,
            {"Cookie": "stolen", "X-Jobscribe-Peer": "0"},
        )
        assert (code, json.loads(body)["code"]) == (403, "forbidden"), path
    assert len(asked) == 6
    over(stand)


def over(stand: Stand) -> None:
    deadline = time.monotonic() + 10
    while stand.proxy.under_way and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stand.proxy.under_way == 0


def test_an_answer_that_nobody_takes_is_given_up(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "STALL_SECS", 0.3)
    gone = threading.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
        try:
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()
        except ConnectionError:
            gone.set()

    stand.live = flood
    with socket.create_connection(("127.0.0.1", stand.port), timeout=20) as s:
        s.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert gone.wait(20)
        over(stand)


def test_the_peer_is_looked_up_once_for_a_connection_and_again_for_the_next(stand: Stand) -> None:
    asked = []

    def owner(peer: Any, here: Any) -> int:
        asked.append(peer)
        return os.geteuid() if len(asked) == 1 else 12345

    stand.proxy.gate.owner = owner
    with socket.create_connection(("127.0.0.1", stand.port), timeout=20) as s:
        s.sendall(
            b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        got = b""
        while piece := s.recv(65536):
            got += piece
    assert got.count(b"HTTP/1.1 200") == 2 and len(asked) == 1
    assert stand.ask("GET", "/a")[0] == 403 and len(asked) == 2


def test_event_streams_take_no_worker(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "MOST", 3)
    step = threading.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await writer.drain()
        while not step.is_set():
            await asyncio.sleep(0.01)

    stand.live = stream
    connections = [
        http.client.HTTPConnection("127.0.0.1", stand.port, timeout=20) for _ in range(3)
    ]
    answers = []
    for connection in connections:
        connection.request("GET", "/live")
        answers.append(connection.getresponse())
        assert answers[-1].read1(5) == b"hello"
    said(stand.ask("GET", "/live"), 429, "tooManyRequests")
    assert stand.ask("GET", "/")[2] == b"front"
    step.set()
    assert [answer.read() for answer in answers] == [b""] * 3
    for connection in connections:
        connection.close()
    over(stand)
