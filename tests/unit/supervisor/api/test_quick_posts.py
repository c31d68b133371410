"""The short way of frequent requests has the rules of the request handler, and takes only what is
sure, behind Tornado's HTTP connection and before it.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import tornado.web
from access_kit import access

from jobscribe.protocol.api.requests import RunStatusRequest
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.connections.admission import Admission, Limits
from jobscribe.runtime.connections.http_server import Guard, GuardedServer, Peers
from jobscribe.runtime.connections.http_server import server as http_server
from jobscribe.runtime.connections.quick_requests import Head, QuickRequests, parsed
from jobscribe.runtime.log.logger import Direct, Log
from jobscribe.supervisor.api.transport.authorization import Subject
from jobscribe.supervisor.api.transport.quick_posts import QuickPosts
from jobscribe.supervisor.api.transport.request_handler import Handler, Route

SECRET = "the-secret"
JID = "user0001-sim00001-command"
BODY = json.dumps({"uid": "user0001", "computeJid": JID}).encode()


class Others(tornado.web.RequestHandler):
    def post(self) -> None:
        self.write(b"others")

    get = put = post


class Site:
    """A server with one quick route. `action` is its action. early: requests are taken before
    Tornado reads them; `taken` counts them.
    """

    def __init__(self, early: bool = True) -> None:
        self.early, self.taken, self.refused = early, 0, 0
        self.counted: list[str] = []
        self.observed: list[tuple[str, ...]] = []
        self.lines: list[Any] = []
        self.fits = True
        self.action: Any = lambda h: {"computeJid": h.parsed(RunStatusRequest).compute_jid}
        log = Log("supervisor", Redactor(), Direct(SimpleNamespace(put=self.lines.append)))
        services: Any = SimpleNamespace(
            access=access(SECRET),
            runs=SimpleNamespace(log=log, counters=SimpleNamespace(add=self.counted.append)),
            unsent=SimpleNamespace(check=self._check, watch=lambda *_: None),
            monitoring=SimpleNamespace(
                health=SimpleNamespace(front_end=lambda version: None),
                instruments=SimpleNamespace(http=SimpleNamespace(labels=self._labels)),
            ),
        )

        def act(h: Handler) -> Any:
            return self.action(h)

        routes = (
            Route("/api/quick", act, "read", Subject.BODY, quick=True, takes=RunStatusRequest),
            Route("/api/slow", act, "read", Subject.BODY),
        )
        others = tornado.web.Application([("/.*", Others)], log_function=lambda h: None)
        self.posts = QuickPosts(services, routes, others)
        limits = Limits(60.0, 60.0, 60.0, 10)
        admission = Admission(limits, 0.0, lambda reason, sentence: None)
        guarded = GuardedServer(
            Guard(admission, Peers()), self.posts, self._unread, self._take if early else None
        )
        self.server = http_server(guarded)
        self.server.listen(0, "127.0.0.1")
        (sock,) = self.server._sockets.values()
        self.port = sock.getsockname()[1]

    def _take(self, connection: QuickRequests, head: Head) -> Any:
        request = self.posts.take(connection, head)
        self.taken += request is not None
        return request

    def _unread(self, line: Any) -> tuple[int, bytes]:
        self.refused += 1
        return 401, b"unread"

    def _check(self, owner: str, size: int) -> None:
        if not self.fits and size > 300:
            raise Refusal("tooManyRequests", "there is no memory for it")

    def _labels(self, *labels: str) -> Any:
        self.observed.append(labels)
        return SimpleNamespace(observe=lambda secs: None)

    async def ask(
        self,
        path: str = "/api/quick",
        body: bytes = BODY,
        token: str = SECRET,
        method: str = "POST",
        *more: str,
    ) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request(path, body, token, method, *more))
        try:
            return await answer(reader)
        finally:
            writer.close()


def request(
    path: str = "/api/quick",
    body: bytes = BODY,
    token: str = SECRET,
    method: str = "POST",
    *more: str,
) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {token}",
        *(more or (f"Content-Length: {len(body)}",)),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        (size,) = re.findall(r"(?i)content-length: (\d+)", head)
        return int(head.split()[1]), await reader.readexactly(int(size))


@pytest.fixture(params=["early", "tornado"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    async for made in running(Site(request.param == "early")):
        yield made


@pytest.fixture
async def early() -> AsyncIterator[Site]:
    async for made in running(Site()):
        yield made


async def running(made: Site) -> AsyncIterator[Site]:
    yield made
    made.server.stop()
    await made.server.close_all_connections()


async def test_an_action_answers_at_once_or_later(site: Site) -> None:
    assert await site.ask() == (200, b'{"computeJid":"%s"}' % JID.encode())

    async def later(h: Handler) -> Any:
        await asyncio.sleep(0)
        return b"[1]"

    site.action = later
    assert await site.ask() == (200, b"[1]")
    assert site.observed == [("POST", "/api/quick", "200")] * 2
    assert site.taken == (2 if site.early else 0)


@pytest.mark.parametrize(
    "change",
    [
        {"token": "wrong"},
        {"token": ""},
        {"path": "/api/slow"},
        {"path": "/api/quick?x"},
        {"method": "PUT"},
        {"body": b""},
    ],
    ids=str,
)
async def test_what_is_not_sure_goes_to_the_request_handler(
    site: Site, change: dict[str, Any]
) -> None:
    handled = change.get("body") == b""  # others are not authenticated by these handlers
    assert await site.ask(**change) == ((200, b"others") if handled else (401, b"unread"))
    assert site.observed == [] and site.taken == 0


@pytest.mark.parametrize(
    "line", ["Content-Length: 9999999", "Content-Length: 00000000002", "Transfer-Encoding: chunked"]
)
async def test_a_body_of_another_kind_goes_to_the_request_handler(site: Site, line: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(
        f"POST /api/quick HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\n{line}\r\n\r\n".encode()
    )
    writer.write_eof()
    await reader.read()
    writer.close()
    assert site.observed == [] and site.counted == []


async def test_refusals_and_failures_have_their_form(site: Site) -> None:
    code, said = await site.ask(body=b"[]")
    assert (code, json.loads(said)["code"]) == (400, "badRequest")

    def fails(h: Handler) -> Any:
        raise ValueError("secret words")

    async def refuses(h: Handler) -> Any:
        raise Refusal("notFound", "there is no such job")

    site.action = fails
    code, said = await site.ask()
    assert (code, json.loads(said)["code"]) == (500, "internal") and b"secret words" not in said
    site.action = refuses
    code, said = await site.ask()
    assert (code, json.loads(said)["error"]) == (404, "there is no such job")
    assert site.counted == ["refused.badRequest", "internal", "refused.notFound"]


async def test_an_answer_for_which_there_is_no_memory_is_refused(site: Site) -> None:
    site.fits, site.action = False, lambda h: b"[" + b"1," * 1000 + b"1]"
    code, said = await site.ask()
    assert (code, json.loads(said)["code"]) == (429, "tooManyRequests")


async def test_an_action_hears_that_its_client_is_gone(site: Site) -> None:
    gone, begun = asyncio.Event(), asyncio.Event()

    async def waits(h: Handler) -> Any:
        h.on_gone = gone.set
        begun.set()
        await gone.wait()

    site.action = waits
    _, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(
        f"POST /api/quick HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
        + BODY
    )
    async with asyncio.timeout(10):
        await begun.wait()
        writer.close()
        await gone.wait()


# ---- before Tornado


async def sent(writer: asyncio.StreamWriter, *parts: bytes) -> None:
    """Send the parts, each after the server has read the one before."""
    for part in parts:
        writer.write(part)
        for _ in range(8):
            await asyncio.sleep(0)


async def test_a_request_may_arrive_in_pieces(early: Site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", early.port)
    whole = request()
    for cut in range(1, len(whole)):
        await sent(writer, whole[:cut], whole[cut:])
        assert (await answer(reader))[0] == 200, cut
    end = whole.index(b"\r\n\r\n") + 4
    await sent(writer, whole[:end], *(bytes([c]) for c in whole[end:]))
    assert (await answer(reader))[0] == 200
    # a head in pieces is Tornado's
    assert len(BODY) <= early.taken <= len(BODY) + 1
    assert len(early.observed) == len(whole)
    writer.close()


async def test_answers_keep_the_order_of_the_requests(early: Site) -> None:
    proceed = asyncio.Event()

    async def waits(h: Handler) -> Any:
        await proceed.wait()
        return b"[1]"

    early.action = waits
    reader, writer = await asyncio.open_connection("127.0.0.1", early.port)
    await sent(writer, request(), request("/api/slow"), request())
    assert early.taken == 1
    proceed.set()
    assert await answer(reader) == (200, b"[1]")
    early.action = lambda h: b"[2]"
    assert await answer(reader) == (200, b"others")
    assert await answer(reader) == (200, b"[2]")
    writer.write(request() + request("/api/slow") + request())
    assert [await answer(reader) for _ in range(3)] == [
        (200, b"[2]"),
        (200, b"others"),
        (200, b"[2]"),
    ]
    assert early.taken == 1, "requests that arrive together are Tornado's"
    await sent(writer, request())
    assert await answer(reader) == (200, b"[2]") and early.taken == 2
    writer.close()


@pytest.mark.parametrize("more", [(), ("Transfer-Encoding: chunked",)])
async def test_a_request_within_a_body_is_no_request(early: Site, more: tuple[str, ...]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", early.port)
    await sent(writer, request())
    assert (await answer(reader))[0] == 200  # the sender is authenticated now
    inner = request()
    body = inner if not more else b"%x\r\n" % len(inner), inner, b"\r\n0\r\n\r\n"
    head = request("/api/slow", b"", SECRET, "POST", *(more or (f"Content-Length: {len(inner)}",)))
    await sent(writer, head, *(body if more else (inner,)))
    assert await answer(reader) == (200, b"others")
    assert early.taken == 1 and len(early.observed) == 1
    writer.close()


async def test_a_connection_may_close_in_the_middle(early: Site) -> None:
    for part in (request()[:-1], request()[:20], b""):
        _, writer = await asyncio.open_connection("127.0.0.1", early.port)
        await sent(writer, part)
        writer.close()
        await sent(writer)
    assert early.observed == [] and (await early.ask())[0] == 200


HEAD = b"POST /api/quick HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nA: b c\r\n\r\n"


def test_a_plain_head_is_read_as_tornado_reads_it() -> None:
    head = parsed(HEAD)
    assert head is not None and (head.line.path, head.size) == ("/api/quick", 2)
    assert sorted(head.headers.get_all()) == [("A", "b c"), ("Content-Length", "2"), ("Host", "x")]


async def test_after_a_suspension_timers_that_are_due_run_before_a_request(site: Site) -> None:
    """The heartbeat monitor is one: no answer relies on agents that may be gone."""
    order: list[str] = []
    site.action = lambda h: order.append("request") or b"[1]"
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    await sent(writer, request())
    assert await answer(reader) == (200, b"[1]")
    order.clear()
    asyncio.get_running_loop().call_later(0.01, order.append, "timer")
    writer.write(request())
    time.sleep(0.05)  # noqa: ASYNC251 - the loop is suspended
    assert await answer(reader) == (200, b"[1]")
    assert order == ["timer", "request"]
    writer.close()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"POST", b"GET"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"/api/quick", b"http://x/api/quick"),
        (b"/api/quick", b"/api /quick"),
        (b"/api/quick", b"/api/\xfc"),
        (b"Host: x\r\n", b""),
        (b"Host: x", b"Host: x\r\nhost: y"),
        (b"Length: 2", b"Length: 2\r\nContent-length: 3"),
        (b"Length: 2", b"Length: 2, 2"),
        (b"Length: 2", b"Length: +2"),
        (b"Length: 2", b"Length: 02"),
        (b"Length: 2", b"Length: 0"),
        (b"Length: 2", b"Length : 2"),
        (b"Length: 2", b"Length: 12345678"),
        (b"A: b", b"A: b\r\n folded"),
        (b"A: b", b"A: \x00"),
        (b"A: b c", b"A:" + b" " * 30_000 + b"\x00"),
        (b"A: b", b"A: \xe9"),
        (b"A: b", b"A: b\nB: c"),
        (b"A: b", b"A b"),
        (b"A: b", b"Transfer-Encoding: chunked"),
        (b"A: b", b"Expect: 100-continue"),
        (b"A: b", b"Connection: close"),
        (b"A: b", b"Connection: keep-alive, upgrade"),
        (b"A: b", b"Upgrade: h2c"),
        (b"A: b", b"Content-Encoding: gzip"),
        (b"\r\n", b"\n"),
    ],
)
def test_every_other_head_is_tornados(old: bytes, new: bytes) -> None:
    assert parsed(HEAD.replace(old, new)) is None
