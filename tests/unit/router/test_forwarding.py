"""A request goes to the address of a shard that serves, and is not sent twice without need."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tornado.httpserver
import tornado.testing
import tornado.web
from certificate_authority import Authority
from tornado.httputil import HTTPHeaders

from jobscribe.router import forwarding
from jobscribe.router.forwarding import Parts, ask, to_shard
from jobscribe.router.metrics import RouterMetrics
from jobscribe.router.shard_addresses import ShardAddresses
from jobscribe.router.upstream import Collector, Lost, Message, Unreached, Upstream
from jobscribe.service.settings.loader import load


class Supervisor:
    """A server with one kind of answer: `serves`, `standby`, `dies`, `busy`, or `frozen`, which gives none."""

    def __init__(self, kind: str, tls: ssl.SSLContext | None = None) -> None:
        self.kind, self.requests = kind, list[tuple[str, bytes]]()
        me = self

        class Handler(tornado.web.RequestHandler):
            async def prepare(self) -> None:
                if self.request.path == "/readyz" and me.kind == "serves":
                    return self.finish({})  # type: ignore[return-value]
                me.requests.append((self.request.path, self.request.body))
                match me.kind:
                    case "frozen":
                        await asyncio.Event().wait()
                    case "dies":
                        self.request.connection.stream.close()  # type: ignore[union-attr]
                    case "serves":
                        await self.finish({"of": self.request.path})
                    case code:
                        self.set_status(503)
                        await self.finish(
                            {"code": "noSupervisor" if code == "standby" else "draining"}
                        )

        self._server = tornado.httpserver.HTTPServer(
            tornado.web.Application([(".*", Handler)]), ssl_options=tls
        )
        bound, port = tornado.testing.bind_unused_port()
        self._server.add_sockets([bound])
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"

    async def drop(self) -> None:
        """Close all connections, as a supervisor does with idle ones."""
        await self._server.close_all_connections()

    async def close(self) -> None:
        self._server.stop()
        await self.drop()


KINDS = ("serves", "standby", "dies", "busy", "frozen")


@pytest.fixture
async def supervisors() -> AsyncIterator[dict[str, Supervisor]]:
    found = {kind: Supervisor(kind) for kind in KINDS}
    yield found
    for supervisor in found.values():
        await supervisor.close()


def parts(*addresses: str) -> Parts:
    settings = load(
        {
            "store.url": "postgresql:///j?host=/run/postgresql",
            "shards.count": 1,
            "shards.addresses": ",".join(addresses),
        },
        env={},
    )
    none: Any = None
    return Parts(none, none, ShardAddresses(settings), Upstream(), none, none, RouterMetrics(1))


def closed_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def sent(p: Parts, path: str = "/x", body: bytes = b"{}") -> Collector:
    collector = Collector(1000)
    await to_shard(p, 0, Message("POST", path, HTTPHeaders(), body), collector)
    return collector


async def test_the_next_address_is_used_if_one_refuses_or_stands_by(
    supervisors: dict[str, Supervisor],
) -> None:
    p = parts(closed_address(), supervisors["standby"].url, supervisors["serves"].url)
    assert (await sent(p)).answer().body == b'{"of": "/x"}'
    assert supervisors["serves"].requests == [("/x", b"{}")]
    # it is asked first from now on
    await sent(p, "/y")
    assert 'router_retries_total{shard="0"} 2.0' in p.metrics.text({})
    assert len(supervisors["standby"].requests) == 1 and len(supervisors["serves"].requests) == 2


async def test_a_shard_without_a_supervisor_is_reported(supervisors: dict[str, Supervisor]) -> None:
    p = parts(closed_address(), supervisors["standby"].url)
    with pytest.raises(Unreached):
        await sent(p)
    assert await ask(p, 0, "/api/whoami", HTTPHeaders()) is None


async def test_a_request_that_may_have_been_done_is_not_sent_to_another_supervisor(
    supervisors: dict[str, Supervisor],
) -> None:
    p = parts(supervisors["dies"].url, supervisors["serves"].url)
    with pytest.raises(Lost):
        await sent(p)
    assert supervisors["serves"].requests == [] and len(supervisors["dies"].requests) == 1


async def test_a_request_does_not_wait_for_a_supervisor_that_was_replaced(
    supervisors: dict[str, Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "LOOK_SECS", 0.01)
    frozen, standby, serves = (supervisors[kind].url for kind in ("frozen", "standby", "serves"))
    # it may have been done, so it is not sent to the other one
    async with asyncio.timeout(20):
        with pytest.raises(Lost):
            await sent(parts(frozen, standby, serves))
    assert supervisors["serves"].requests == []
    answer = await ask(p := parts(frozen, standby, serves), 0, "/api/whoami", HTTPHeaders())
    assert answer is not None and supervisors["serves"].requests == [("/api/whoami", b"")]
    assert (await sent(p)).answer().code == 200, "it is asked first from now on"
    # nobody else serves: the supervisor may be slow
    waiting = asyncio.ensure_future(sent(parts(frozen, standby, closed_address())))
    assert not (await asyncio.wait([waiting], timeout=0.2))[0]
    waiting.cancel()


async def test_other_refusals_are_answers(supervisors: dict[str, Supervisor]) -> None:
    p = parts(supervisors["busy"].url, supervisors["serves"].url)
    got = (await sent(p)).answer()
    assert got.code == 503 and b"draining" in got.body and supervisors["serves"].requests == []


async def test_an_idle_connection_that_was_closed_is_replaced(
    supervisors: dict[str, Supervisor],
) -> None:
    p = parts(supervisors["serves"].url)
    for n in range(3):
        await sent(p, f"/{n}")
        if n == 1:
            await supervisors["serves"].drop()
    assert [path for path, _ in supervisors["serves"].requests] == ["/0", "/1", "/2"]
    p.upstream.close()


async def test_a_supervisor_on_another_machine_must_have_a_valid_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority("this site")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*authority.issue(tmp_path))
    supervisor = Supervisor("serves", tls)
    try:
        for trusted, served in ((authority, True), (Authority("somebody else"), False)):
            monkeypatch.setenv("SSL_CERT_FILE", str(trusted.write(tmp_path / "ca.pem")))
            p = parts(supervisor.url)
            if served:
                assert (await sent(p)).answer().code == 200
            else:
                with pytest.raises(Unreached):
                    await sent(p)
            p.upstream.close()
        assert len(supervisor.requests) == 1
    finally:
        await supervisor.close()
