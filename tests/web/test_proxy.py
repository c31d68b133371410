"""The proxy of `up`: both directions unchanged, without buffering, and an error sentence if a
backend is down.
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

from jobscribe.client.api.errors import own
from jobscribe.client.transport.address import Address
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Log
from jobscribe.web.server import proxy as proxy_module
from jobscribe.web.server.proxy import Proxy, serve

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Quiet:
    def write(self, record: Any) -> None:
        return


class Stand:
    """A proxy on a loop in a thread, in front of raw servers that the test scripts. `front` and
    `live` are the two handlers.
    """

    def __init__(self) -> None:
        self.front: Handler = answering(b"front")
        self.live: Handler = answering(b"live")
        self.away = False
        self.signed_in: str | None = "a session"
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.port = self.call(self._start())

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(20)

    async def _start(self) -> int:
        async def front(r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
            with contextlib.closing(w):
                await self.front(r, w)

        async def live(r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
            with contextlib.closing(w):
                await self.live(r, w)

        self.servers = [
            await asyncio.start_server(front, "127.0.0.1", 0),
            await asyncio.start_server(live, "127.0.0.1", 0),
        ]
        ports = [s.sockets[0].getsockname()[1] for s in self.servers]

        async def to_front() -> Any:
            import tornado.iostream

            return await proxy_module._connected(
                tornado.iostream.IOStream(socket.socket()), ("127.0.0.1", ports[0])
            )

        def supervisor() -> Address:
            if self.away:
                raise own("noSupervisor", "no supervisor has been started")
            return Address(url=f"http://127.0.0.1:{ports[1]}", token=TOKEN, uid="AnnAnn01")

        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        self.proxy = Proxy(
            to_front, supervisor, lambda headers: self.signed_in, Log("proxy", Redactor(), Quiet())
        )
        self.server = serve(self.proxy, listening)
        return int(listening.getsockname()[1])

    async def stop_backends(self) -> None:
        for s in self.servers:
            s.close()

    async def _stop(self) -> None:
        self.server.stop()
        for s in self.servers:
            s.close()
        for connection in list(self.server._connections):
            connection.stream.close()
        for _, stream in self.proxy._kept:
            stream.close()
        for _ in range(5):
            await asyncio.sleep(0)
        others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def close(self) -> None:
        self.call(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
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


def echo(reader_to: dict[str, Any]) -> Handler:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader_to["first"], reader_to["headers"] = await head(reader)
        names = {n.lower(): v for n, v in reader_to["headers"]}
        if "content-length" in names:
            reader_to["body"] = await reader.readexactly(int(names["content-length"]))
        elif names.get("transfer-encoding") == "chunked":
            reader_to["body"] = b""
            while size := int((await reader.readline()), 16):
                reader_to["body"] += await reader.readexactly(size)
                await reader.readline()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\n"
            b"Keep-Alive: timeout=5\r\nX-Other: 2\r\n\r\nok"
        )
        await writer.drain()
        writer.close()

    return answer


def test_headers_pass_but_those_of_the_connection_and_those_that_only_the_proxy_may_say(
    stand: Stand,
) -> None:
    got: dict[str, Any] = {}
    stand.front = echo(got)
    code, headers, body = stand.ask(
        "POST",
        "/x?y=%2F",
        b"hello",
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
    assert (code, body, got["body"], got["first"]) == (
        200,
        b"ok",
        b"hello",
        "POST /x?y=%2F HTTP/1.1",
    )
    names = {n.lower(): v for n, v in got["headers"]}
    assert (names["host"], names["origin"], names["cookie"]) == (
        "localhost:1234",
        "http://localhost:1234",
        "c=d",
    )
    assert (names["x-forwarded-for"], names["x-forwarded-proto"], names["x-forwarded-host"]) == (
        "127.0.0.1",
        "http",
        "localhost:1234",
    )
    assert not {
        "x-secret",
        "forwarded",
        "te",
        "upgrade",
        "proxy-authorization",
        "keep-alive",
        "expect",
    } & set(names)
    assert "connection" not in names
    assert headers.get_all("Set-Cookie") == ["a=1", "b=2"]
    assert (headers["X-Other"], headers["X-Mine"], headers["Keep-Alive"]) == ("2", None, None)


def test_a_body_in_pieces_arrives_whole(stand: Stand) -> None:
    got: dict[str, Any] = {}
    stand.front = echo(got)
    pieces = [bytes([n]) * 10_000 for n in range(20)]
    assert (
        stand.ask(
            "PUT",
            "/lib-file/x/y",
            iter(pieces),
            {"Transfer-Encoding": "chunked"},
            encode_chunked=True,
        )[0]
        == 200
    )
    assert got["body"] == b"".join(pieces)


@pytest.mark.parametrize(
    ("method", "status", "headers"),
    [
        ("HEAD", "200 OK", "X: 1\r\n"),
        ("GET", "304 Not Modified", "ETag: x\r\n"),
        ("GET", "404 Not Found", ""),
        ("DELETE", "500 Oh", ""),
    ],
)
def test_answers_of_every_kind(stand: Stand, method: str, status: str, headers: str) -> None:
    body = b"" if method == "HEAD" or status.startswith("304") else b"words"
    stand.front = answering(body, status, headers)
    code, said, got = stand.ask(method, "/")
    assert (code, got) == (int(status[:3]), body)
    assert said.get("ETag") == ("x" if "ETag" in headers else None)


def test_connections_are_kept(stand: Stand) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", stand.port, timeout=20)
    for n in range(5):
        connection.request("POST", "/", b"x" * n)
        assert connection.getresponse().read() == b"front"
        assert connection.sock is not None
    connection.close()


def test_connections_to_the_front_end_are_kept_and_one_that_was_closed_is_not_used(
    stand: Stand,
) -> None:
    opened = 0

    async def many(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        for n in range(3):  # the fourth request finds the connection closed
            await head(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + str(n).encode())
            await writer.drain()
        writer.close()

    stand.front = many
    answers = [stand.ask("GET", "/")[2] for _ in range(3)]
    deadline = time.monotonic() + 10
    while any(not s.closed() for _, s in stand.proxy._kept) and time.monotonic() < deadline:
        time.sleep(0.01)
    answers += [stand.ask("GET", "/")[2] for _ in range(2)]
    assert answers == [b"0", b"1", b"2", b"0", b"1"]
    assert opened == 2


def test_a_connection_whose_answer_was_not_heard_to_its_end_is_not_used_again(stand: Stand) -> None:
    opened = 0

    async def long(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + bytes(1000))
        await writer.drain()
        await reader.read()
        writer.close()

    stand.front = long
    for n in range(2):
        connection = http.client.HTTPConnection("127.0.0.1", stand.port, timeout=20)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.read1(10)
        answer.close()
        connection.close()
        deadline = time.monotonic() + 10
        while stand.proxy.under_way and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (opened, stand.proxy._kept) == (n + 1, [])


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

    stand.front = flood
    connection = http.client.HTTPConnection("127.0.0.1", stand.port, timeout=20)
    before = rss()
    connection.request("GET", "/")
    answer = connection.getresponse()
    seen, deadline = -1, time.monotonic() + 20
    while sent != seen and time.monotonic() < deadline:  # until the writer is blocked
        seen = sent
        time.sleep(0.3)
    assert 0 < sent < 64 << 20
    assert rss() - before < 48 << 20
    answer.close()
    connection.close()


def test_an_upload_waits_for_its_reader(stand: Stand) -> None:
    go = threading.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        while not go.is_set():
            await asyncio.sleep(0.01)
        await reader.readexactly(64 << 20)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    stand.front = slow
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(64):
            yield bytes(1 << 20)
            sent += 1 << 20

    answers: list[Any] = []
    uploading = threading.Thread(
        target=lambda: answers.append(
            stand.ask("PUT", "/lib-file/a/b", pieces(), {"Content-Length": str(64 << 20)})
        )
    )
    before = rss()
    uploading.start()
    seen, deadline = -1, time.monotonic() + 20
    while (sent != seen or not sent) and time.monotonic() < deadline:
        seen = sent
        time.sleep(0.3)
    assert 0 < sent < 48 << 20, "the sender is held back"
    assert rss() - before < 48 << 20
    go.set()
    uploading.join(30)
    assert answers[0][2] == b"ok"


def said(answer: tuple[int, Any, bytes], code: int, name: str) -> None:
    assert answer[0] == code, answer
    assert answer[1]["Content-Type"] == "application/json"
    body = json.loads(answer[2])
    assert (body["state"], body["code"]) == ("error", name) and body["error"] and body["advice"]


def test_a_side_that_is_away_is_said_in_the_usual_form(stand: Stand) -> None:
    stand.away = True
    said(stand.ask("GET", "/live"), 503, "supervisorUnavailable")
    assert stand.ask("GET", "/")[2] == b"front"
    stand.away = False
    stand.call(stand.stop_backends())
    said(stand.ask("GET", "/live"), 503, "supervisorUnavailable")
    said(stand.ask("POST", "/", b"x" * 100_000), 503, "supervisorUnavailable")
    assert stand.proxy.under_way == 0


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-", b"garbage\r\n\r\n"])
def test_a_side_that_dies_before_it_answers(stand: Stand, answer: bytes) -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(answer)
        await writer.drain()
        writer.close()

    stand.front = dies
    said(stand.ask("GET", "/"), 503, "supervisorUnavailable")
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

    stand.front = dies
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        stand.ask("GET", "/")


def test_too_large_is_said_before_it_is_sent_on(stand: Stand) -> None:
    got: dict[str, Any] = {}
    stand.front = echo(got)
    limit = proxy_module.LARGEST_BODY
    said(stand.ask("POST", "/run-simulation", b"x" * (limit + 1)), 413, "tooLarge")
    assert got == {}
    said(
        stand.ask(
            "POST",
            "/x",
            iter([b"x" * (1 << 20)] * ((limit >> 20) + 2)),
            {"Transfer-Encoding": "chunked"},
            encode_chunked=True,
        ),
        413,
        "tooLarge",
    )
    assert stand.ask("PUT", "/lib-file/a/b", b"x" * (limit + 1))[0] == 200


@pytest.mark.parametrize("path", ["/run-simulation", "/lib-file/a/b"])
def test_of_a_stranger_no_large_body_is_taken_in(stand: Stand, path: str) -> None:
    got: dict[str, Any] = {}
    stand.front, stand.signed_in = echo(got), None
    most = proxy_module.LARGEST_UNAUTHENTICATED
    said(stand.ask("PUT", path, b"x" * (most + 1)), 401, "unauthenticated")
    assert got == {}
    said(
        stand.ask(
            "PUT",
            path,
            iter([b"x" * most, b"x"]),
            {"Transfer-Encoding": "chunked"},
            encode_chunked=True,
        ),
        401,
        "unauthenticated",
    )
    assert stand.ask("PUT", path, b"x" * most)[0] == 200


def test_too_many_at_once_are_told_to_come_back(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "MOST", 0)
    said(stand.ask("GET", "/"), 429, "tooManyRequests")
    monkeypatch.setattr(proxy_module, "MOST", 1)
    assert stand.ask("GET", "/")[0] == 200


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


def over(stand: Stand) -> None:
    deadline = time.monotonic() + 10
    while stand.proxy.under_way and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stand.proxy.under_way == stand.proxy.live == 0


def test_a_request_whose_rest_does_not_come_is_given_up(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "STALL_SECS", 0.2)
    gone = threading.Event()

    async def until_gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()
        writer.close()

    stand.front = until_gone
    with socket.create_connection(("127.0.0.1", stand.port), timeout=20) as s:
        s.sendall(
            b"PUT /lib-file/a/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nsome"
        )
        assert s.recv(100) == b""
    assert gone.wait(10)
    over(stand)
    stand.front = answering(b"front")
    assert stand.ask("POST", "/", b"whole")[2] == b"front"


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

    stand.front = flood
    with socket.create_connection(("127.0.0.1", stand.port), timeout=20) as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert gone.wait(20)
        over(stand)


def test_streams_of_news_take_no_place_of_other_requests(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "MOST", 1)
    step = threading.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await writer.drain()
        while not step.is_set():
            await asyncio.sleep(0.01)
        writer.close()

    stand.live = stream
    connection = http.client.HTTPConnection("127.0.0.1", stand.port, timeout=20)
    connection.request("GET", "/live")
    answer = connection.getresponse()
    assert answer.read1(5) == b"hello"
    said(stand.ask("GET", "/live"), 429, "tooManyRequests")
    assert stand.ask("GET", "/")[2] == b"front"
    step.set()
    assert answer.read() == b""
    connection.close()
    over(stand)
