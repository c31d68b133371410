"""The transport of both clients: reuse of connections, time limits, TLS, forks, failures on the way."""

import asyncio
import gc
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpcore
import msgspec
import pytest

from jobscribe.client.api.errors import ClientError, own
from jobscribe.client.api.requests import Call
from jobscribe.client.async_client import AsyncClient
from jobscribe.client.transport import endpoint as endpoint_module
from jobscribe.client.transport.address import Address, Several, fixed
from jobscribe.client.transport.async_connection import AsyncConnection
from jobscribe.client.transport.connection import Connection
from jobscribe.client.transport.endpoint import Endpoint
from jobscribe.client.transport.idle_connections import MAX_IDLE
from jobscribe.client.transport.messages import FAILURES, Request, encoded, unreachable
from jobscribe.client.transport.plain_connection import PlainConnection
from jobscribe.protocol.errors import Refusal

Fake = Any
CALL = Call("/api/apps", None, method="GET")
UID = "EPRSqtUW"


def endpoint(url: str, token: str = "t", budget_secs: float = 0.0) -> Endpoint:
    return Endpoint(fixed(url, token, UID), budget_secs=budget_secs)


@pytest.fixture
def connection(fake: Fake) -> Iterator[Connection]:
    made = Connection(endpoint(fake.url, fake.token))
    yield made
    made.close()


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accept connections and pass each to `answer` in a thread; close it afterwards."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            with accepted:
                answer(accepted)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def opened(fake: Fake) -> int:
    return len(fake._server._connections)


def test_one_connection_serves_many_requests(fake: Fake, connection: Connection) -> None:
    for _ in range(5):
        connection.call(CALL)
    assert opened(fake) == 1


def test_no_connection_that_the_server_closed_is_used(
    fake: Fake, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.call(CALL)
    fake.drop_connections()
    sent: list[object] = []
    handle = PlainConnection.exchange
    monkeypatch.setattr(
        PlainConnection,
        "exchange",
        lambda self, request: (sent.append(self), handle(self, request))[1],
    )
    connection.call(CALL)
    assert len(sent) == 1


@pytest.mark.parametrize("error", [ConnectionResetError, httpcore.RemoteProtocolError])
def test_a_connection_that_closes_during_the_request_is_replaced_once(
    fake: Fake, connection: Connection, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    connection.call(CALL)
    left = [1]
    handle = PlainConnection.exchange

    def once_closed(self: Any, request: Any) -> Any:
        if left:
            left.pop()
            raise error("closed")
        return handle(self, request)

    monkeypatch.setattr(PlainConnection, "exchange", once_closed)
    connection.call(CALL)
    left[:] = [1, 1]
    with pytest.raises(ClientError, match="unreachable"):
        connection.call(CALL)


def test_a_time_limit_is_not_taken_for_a_closed_connection(fake: Fake) -> None:
    made = Connection(endpoint(fake.url, fake.token))
    made.call(CALL)
    fake.held = lambda path: True
    request = Call("/api/apps-slow", b"{}", wait_secs=-29.8)
    fake._apps_slow = lambda body: {"state": "ok"}
    try:
        with pytest.raises(ClientError, match="timed out"):
            made.call(request)
    finally:
        fake.held = lambda path: False
        made.close()
    assert [path for path, _ in fake.requests] == ["apps-slow"]


@pytest.mark.process
def test_a_child_process_opens_its_own_connection(fake: Fake, connection: Connection) -> None:
    connection.call(CALL)
    pid = os.fork()
    if pid == 0:
        try:
            connection.call(CALL)
            os._exit(len(connection._idle) if opened(fake) == 1 else 9)
        except BaseException:
            os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    connection.call(CALL)
    assert len(connection._idle) == 1
    with connection._idle._lock:
        (mine,) = connection._idle._idle
    assert not mine.has_expired() and opened(fake) == 1, "the child used none of it"


def test_threads_share_connections_and_keep_few(fake: Fake, connection: Connection) -> None:
    fake.held = lambda path: sum(p == "begin-session" for p, _ in fake.requests) < 40
    call = Call("/api/begin-session", b"{}")
    threads = [threading.Thread(target=connection.call, args=(call,)) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(fake.requests) == 40 and len(connection._idle) == MAX_IDLE


def test_no_environment_variable_redirects_a_request(
    fake: Fake, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert connection.call(CALL).body


def test_an_answer_that_trickles_in_is_read_within_its_idle_time() -> None:
    def slowly(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        for byte in b"hello":
            time.sleep(0.02)
            peer.sendall(bytes([byte]))

    with server(slowly) as url:
        made = Connection(endpoint(url))
        assert made.call(CALL).body == b"hello"
        made.close()


async def test_a_request_arrives_in_one_piece() -> None:
    pieces: list[bytes] = []

    def answer(peer: socket.socket) -> None:
        pieces.append(peer.recv(65536))
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    with server(answer) as url:
        call = Call("/api/x", b"the body")
        await asyncio.to_thread(Connection(endpoint(url)).call, call)
        await AsyncConnection(endpoint(url)).call(call)
    assert [p.endswith(b"\r\n\r\nthe body") for p in pieces] == [True, True]


@pytest.mark.parametrize("size", [4, 100])
def test_a_body_that_does_not_fit_its_length_is_the_callers_mistake(
    fake: Fake, connection: Connection, size: int
) -> None:
    with pytest.raises(ClientError) as e:
        connection.upload("/api/lib-file?name=x", [b"short"], size, 5.0)
    assert e.value.code == "badRequest" and fake.library == {}


@pytest.mark.parametrize("token", ["a\nb", "ä€"])
def test_a_token_that_no_header_may_have_is_refused(fake: Fake, token: str) -> None:
    with pytest.raises(ClientError) as e:
        Connection(endpoint(fake.url, token)).call(CALL)
    assert e.value.code == "badRequest" and token not in e.value.sentence


def test_the_reason_of_the_system_is_told() -> None:
    cause = httpcore.ConnectError("[Errno 111] Connection refused")
    cause.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert isinstance(cause, FAILURES)
    assert unreachable("http://x", cause).sentence == "no answer from http://x: Connection refused"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    where = ["-keyout", str(path), "-out", str(path) + ".crt", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command.split(), *where, *names], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + Path(str(path) + ".crt").read_bytes())
    return path


@pytest.fixture
def secure(certificate: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def answer(peer: socket.socket) -> None:
        try:
            with context.wrap_socket(peer, server_side=True) as tls:
                tls.recv(65536)
                tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        except (ssl.SSLError, OSError):
            pass

    with server(answer) as url:
        yield url.replace("http://127.0.0.1", "https://localhost")


@pytest.mark.process  # openssl makes the certificate
async def test_certificates_are_checked_as_the_machine_trusts_them(
    secure: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for trusted in (False, True):
        if trusted:
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        plain, asynchronous = Connection(endpoint(secure)), AsyncConnection(endpoint(secure))
        if trusted:
            assert (await asyncio.to_thread(plain.call, CALL)).body == b"{}"
            assert (await asynchronous.call(CALL)).body == b"{}"
        else:
            with pytest.raises(ClientError, match="certificate verify failed"):
                await asyncio.to_thread(plain.call, CALL)
            with pytest.raises(ClientError, match="certificate verify failed"):
                await asynchronous.call(CALL)


# ---- in an event loop


async def test_a_loop_reuses_connections_and_replaces_closed_ones(fake: Fake) -> None:
    async with AsyncClient.to(fake.url, fake.token, UID, budget_secs=0.0) as client:
        for _ in range(3):
            await client.apps()
        assert opened(fake) == 1
        await asyncio.to_thread(fake.drop_connections)
        await client.apps()
    assert len(client._connection._idle) == 0


async def test_a_canceled_request_leaves_no_connection_and_no_answer(fake: Fake) -> None:
    async with AsyncClient.to(fake.url, fake.token, UID) as client:
        job = await client.run(["sleep", "9"])
        waiting = asyncio.ensure_future(job.wait())
        deadline = time.monotonic() + 20
        while not any(path == "run-status" for path, _ in fake.requests):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(client._connection._idle) == 0
        assert await client.apps() == ["command", "heat"]


async def test_hundreds_of_requests_wait_at_once(fake: Fake) -> None:
    async with AsyncClient.to(fake.url, fake.token, UID) as client:
        fake.held = lambda path: len(fake.requests) < 300
        await asyncio.gather(*(client.begin_session() for _ in range(300)))
        assert len(client._connection._idle) == MAX_IDLE


async def test_a_client_that_was_closed_leaves_nothing_open(fake: Fake) -> None:
    client = AsyncClient.to(fake.url, fake.token, UID)
    await client.apps()
    client.close()
    await asyncio.sleep(0)
    assert len(client._connection._idle) == 0
    del client
    gc.collect()  # a warning of an open transport fails the test


async def test_an_upload_that_is_refused_in_the_middle_says_why(fake: Fake) -> None:
    fake.upload_limit = 1_000_000
    async with AsyncClient.to(fake.url, fake.token, UID) as client:
        with pytest.raises(ClientError, match="tooLarge"):
            await client.upload("heat", "a", (b"x" * 65536 for _ in range(1000)), 65_536_000)


def test_an_address_is_looked_up_again_after_a_failure(fake: Fake) -> None:
    nobody = Address(url="http://127.0.0.1:9", token=fake.token, uid=UID)
    places = [nobody, Address(url=fake.url, token=fake.token, uid=UID)]
    made = Connection(Endpoint(lambda: places.pop(0), budget_secs=0.0))
    assert made.call(CALL).body, "another address is tried at once, without any budget"
    made.close()


def test_another_supervisor_of_the_site_answers_what_the_first_ones_do_not(fake: Fake) -> None:
    """The first address is dead, the second one stands by for no supervisor. What answered last is
    asked first, and a refused token is no reason to go on.
    """
    body = msgspec.json.encode(Refusal("noSupervisor", "none").body())
    asked: list[bytes] = []

    def stands_by(connection: socket.socket) -> None:
        asked.append(connection.recv(65536))
        head = b"HTTP/1.1 503 no\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        connection.sendall(head + body)

    with server(stands_by) as standby:
        source = fixed(f"http://127.0.0.1:9, {standby},{fake.url}/", fake.token, UID)
        made = Connection(Endpoint(source, budget_secs=0.0))
        assert made.call(CALL).body and made.call(CALL).body
        assert len(asked) == 1
        assert isinstance(source, Several) and source().url == fake.url
        source.leave("http://127.0.0.1:9")
        assert source().url == fake.url, "an old failure changes nothing"
        made.close()
        wrong = Connection(Endpoint(fixed(f"{fake.url},{standby}", "wrong", UID), budget_secs=0.0))
        with pytest.raises(ClientError, match="unauthenticated"):
            wrong.call(CALL)
        wrong.close()
        assert len(asked) == 1


def test_the_address_is_looked_up_again_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client uses a rotated secret before the earlier one is refused. If the address cannot be
    read at that time, the known one stays in use.
    """
    now, tokens = [100.0], ["first", "second"]
    monkeypatch.setattr(endpoint_module.time, "monotonic", lambda: now[0])

    def source() -> Address:
        if not tokens:
            raise own("noSupervisor", "the file is not there now")
        return Address(url="http://127.0.0.1:1", token=tokens.pop(0), uid=UID)

    endpoint = Endpoint(source, budget_secs=0.0)
    assert endpoint.located().token == "first"
    now[0] += endpoint_module.LOOK_SECS - 0.1
    assert endpoint.located().token == "first"
    now[0] += 0.1
    assert endpoint.located().token == "second"
    now[0] += endpoint_module.LOOK_SECS
    assert endpoint.located().token == "second"
    endpoint.forget()
    with pytest.raises(ClientError):
        endpoint.located()


@pytest.mark.parametrize(("token", "sent"), [("", []), ("t", [b"Bearer t"])])
def test_a_request_without_a_token_has_no_authorization(token: str, sent: list[bytes]) -> None:
    """httpcore refuses the header `Bearer` without a value: a login over HTTPS begins without one."""
    address = Address(url="https://127.0.0.1:1", token=token, uid=UID)
    asked = encoded(Request("POST", "/api/device-start", body=b"{}"), address, {})
    assert [value for name, value in asked.headers if name == b"Authorization"] == sent
