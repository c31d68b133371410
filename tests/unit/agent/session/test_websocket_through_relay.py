"""The agent's WebSocket through a relay's socket: the certificate must match the URL's host, and
the address file is read before each attempt.
"""

import asyncio
import datetime
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from jobscribe.agent.relay import Relay, Settings
from jobscribe.agent.session.websocket import Link, read_address
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.messages import Alive
from jobscribe.runtime.log.logger import Log

KEY = AgentKey("docker", "sequential", "LinkUsr1", "a")
ALIVE = Alive(
    agent_id="a" * 32,
    agent_key=KEY,
    version="1",
    host="node1",
    boot_id="boot1",
    pid=10,
    keeper_pid=9,
)
#: A name that does not resolve: only the relay knows the address.
NAME = "supervisor.invalid"


class _Said:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ups = 0

    def __call__(self, text: str, *args: Any, **_: Any) -> None:
        self.lines.append(text.format(*args))


class _Sink:
    def write(self, record: Any) -> None:
        """Ignore the relay's log."""


class _Socket(tornado.websocket.WebSocketHandler):
    def on_message(self, message: str | bytes) -> None:
        """Ignore the message."""


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a self-signed certificate that is valid for this name only."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


class Way:
    """A TLS listener, relays to it, and an agent's address file."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.said, self.file = folder, _Said(), folder / "agents.json"
        self.certificate, key = _certificate(folder, name)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.certificate, key)
        sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
        self.port = sockets[0].getsockname()[1]
        self._server = tornado.httpserver.HTTPServer(
            tornado.web.Application([(r"/agent", _Socket)], log_function=lambda _: None),
            ssl_options=tls,
        )
        self._server.add_sockets(sockets)
        self._relays: list[Relay] = []
        self._link: asyncio.Task[None] | None = None

    async def relay(self, ca: Path | None = None) -> Relay:
        pem = (ca or self.certificate).read_text()
        settings = Settings(
            json.dumps(
                {
                    "url": f"wss://{NAME}/agent",
                    "connect": f"127.0.0.1:{self.port}",
                    "ca": pem,
                    "folder": str(self.folder),
                }
            )
        )
        relay = Relay(settings, Log("relay", Redactor([]), _Sink()))
        await relay.start()
        self._relays.append(relay)
        return relay

    def dial(self) -> None:
        def up() -> None:
            self.said.ups += 1

        link = Link(
            self.file,
            str(KEY),
            "t" * 32,
            ALIVE,
            self.said,
            on_up=up,
            on_message=lambda _: None,
            on_down=lambda: None,
        )  # type: ignore[arg-type]
        self._link = asyncio.create_task(link.run())

    async def until(self, true: Callable[[], object], secs: float = 15.0) -> None:
        deadline = time.monotonic() + secs
        while not true():
            assert time.monotonic() < deadline, self.said.lines
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        if self._link is not None:
            self._link.cancel()
            await asyncio.gather(self._link, return_exceptions=True)
        for relay in self._relays:
            relay.close()
        self._server.stop()
        await self._server.close_all_connections()


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Way]:
    way = Way(tmp_path, NAME)
    yield way
    await way.close()


async def test_it_comes_by_wss_to_a_name_that_only_the_relay_can_reach(way: Way) -> None:
    await way.relay()
    way.dial()
    await way.until(lambda: way.said.ups == 1)


async def test_a_certificate_for_another_name_is_none(tmp_path: Path) -> None:
    other = Way(tmp_path, "another.invalid")
    try:
        await other.relay()
        other.dial()
        await other.until(
            lambda: any(
                "SSLCertVerificationError" in line or "Hostname mismatch" in line
                for line in other.said.lines
            )
        )
        assert other.said.ups == 0
    finally:
        await other.close()


async def test_an_authority_that_is_not_the_pinned_one_is_none(way: Way, tmp_path: Path) -> None:
    stranger, _ = _certificate(tmp_path, "stranger.invalid")
    await way.relay(ca=stranger)
    way.dial()
    await way.until(
        lambda: any(
            "SSLCertVerificationError" in line or "certificate verify failed" in line
            for line in way.said.lines
        )
    )
    assert way.said.ups == 0


async def test_it_finds_a_relay_that_comes_later_and_one_that_takes_its_place(way: Way) -> None:
    way.dial()
    await way.until(lambda: any("agents.json" in line for line in way.said.lines))
    first = await way.relay()
    await way.until(lambda: way.said.ups == 1)
    first.close()
    await way.relay()
    await way.until(lambda: way.said.ups == 2)


async def test_a_connection_that_comes_about_after_its_end_is_closed(tmp_path: Path) -> None:
    """The supervisor answers the handshake when the agent has given up."""
    asked, answers, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Late(tornado.websocket.WebSocketHandler):
        async def prepare(self) -> None:
            asked.set()
            await answers.wait()

        def on_close(self) -> None:
            closed.set()

    (sock,) = tornado.netutil.bind_sockets(0, "127.0.0.1")
    server = tornado.httpserver.HTTPServer(
        tornado.web.Application([(r"/agent", Late)], log_function=lambda _: None)
    )
    server.add_sockets([sock])
    file = tmp_path / "agents.json"
    file.write_text(json.dumps({"agentsUrl": f"ws://127.0.0.1:{sock.getsockname()[1]}/agent"}))
    file.chmod(0o600)
    link = Link(
        file,
        str(KEY),
        "t" * 32,
        ALIVE,
        _Said(),
        on_up=lambda: None,
        on_message=lambda _: None,
        on_down=lambda: None,
    )  # type: ignore[arg-type]
    run = asyncio.create_task(link.run())
    await asyncio.wait_for(asked.wait(), 15)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    answers.set()
    await asyncio.wait_for(closed.wait(), 15)
    server.stop()
    await server.close_all_connections()


@pytest.mark.parametrize("link", ["relative.sock", "", 7])
def test_what_is_no_way_is_said(tmp_path: Path, link: object) -> None:
    file = tmp_path / "agents.json"
    file.write_text(json.dumps({"agentsUrl": "ws://x/agent", "link": link}))
    with pytest.raises(ValueError, match=r"not an absolute path of a relay's socket|Expected `str"):
        read_address(file)
