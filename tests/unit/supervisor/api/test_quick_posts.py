"""The short way of frequent requests has the rules of the request handler, and takes only what is
sure.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import tornado.httpserver
import tornado.web
from access_kit import access

from jobscribe.protocol.api.requests import RunStatusRequest
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.redaction import Redactor
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
    """A server with one quick route. `action` is its action."""

    def __init__(self) -> None:
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
        self.server = tornado.httpserver.HTTPServer(QuickPosts(services, routes, others))
        self.server.listen(0, "127.0.0.1")
        (sock,) = self.server._sockets.values()
        self.port = sock.getsockname()[1]

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
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: x",
            f"Authorization: Bearer {token}",
            *(more or (f"Content-Length: {len(body)}",)),
            "Connection: close",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        answer = await reader.read()
        writer.close()
        head, _, said = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), said


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
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
)
async def test_what_is_not_sure_goes_to_the_request_handler(
    site: Site, change: dict[str, Any]
) -> None:
    assert await site.ask(**change) == (200, b"others")
    assert site.observed == []


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
