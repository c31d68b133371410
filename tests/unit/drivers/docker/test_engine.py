"""The supervisor's connection to a Docker host: calls with deadlines, a monitor that reports state
changes, and events without gaps.
"""

import asyncio
import contextlib
import os
import socket
import stat
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_docker import FakeDocker, fake_docker

from jobscribe.drivers.docker.host import engine as engines
from jobscribe.drivers.docker.host.engine import EngineError, HostEngine
from jobscribe.protocol.clusters.container_pool import PoolHost
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Direct, Log

OURS = {"jobscribe.deployment": "deploy01"}


class Output:
    def __init__(self) -> None:
        self.text = ""

    def put(self, text: str) -> None:
        self.text += text

    def close(self) -> None:
        return


class Seen:
    """An engine and everything it reported."""

    def __init__(
        self, address: str, *, tls: str | None = None, call_secs: float = 3.0, name: str = "a"
    ) -> None:
        self.states: list[tuple[str, bool, str]] = []
        self.events: list[dict[str, Any]] = []
        self.syncs = 0
        self.output = Output()
        host = PoolHost(name=name, address=address, tls=tls, cpu=4, memory_mb=4096)
        self.engine = HostEngine(
            host,
            deployment="deploy01",
            log=Log("test", Redactor(), Direct(self.output)),
            call_secs=call_secs,
            on_state=lambda *a: self.states.append(a),
            on_event=lambda _, e: self.events.append(e),
            on_sync=self._sync,
        )

    def _sync(self, name: str) -> None:
        self.syncs += 1

    def actions(self) -> list[str]:
        return [e["Action"] for e in self.events]


async def until(condition: Callable[[], Any], secs: float = 15.0) -> None:
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, f"nothing came within {secs} s"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def seen(address: str, *, watch: bool = False, **more: Any) -> AsyncIterator[Seen]:
    s = Seen(address, **more)
    if watch:
        s.engine.start()
    try:
        yield s
    finally:
        await s.engine.close()


async def error_of(
    s: Seen, work: Callable[[Any], Any] = lambda c: c.info(), secs: float | None = None
) -> EngineError:
    with pytest.raises(EngineError) as e:
        await s.engine.call("look", work, secs)
    return e.value


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PING_SECS", 0.1)
    monkeypatch.setattr(engines, "PING_TIMEOUT_SECS", 5.0)
    monkeypatch.setattr(engines, "FIRST_RETRY_SECS", 0.05)
    monkeypatch.setattr(engines, "LAST_RETRY_SECS", 0.2)
    monkeypatch.setattr(engines, "CLOSE_SECS", 1.0)


# ---- calls


async def test_a_call_gives_what_its_work_makes_of_a_client(fake: FakeDocker) -> None:
    async with seen(fake.address) as s:
        assert (await s.engine.call("look", lambda c: c.info()))["NCPU"] == 8
        assert await asyncio.gather(
            *(s.engine.call("look", lambda c, i=i: i) for i in range(50))
        ) == list(range(50))


async def test_no_and_not_there_and_taken_are_told_apart_in_the_daemons_words(
    fake: FakeDocker,
) -> None:
    fake.trouble("GET /info", "fail", status=500, said="no space\nleft on device.")
    async with seen(fake.address) as s:
        e = await error_of(s)
        assert (e.code, e.sentence) == ("refused", "host a: look: no space left on device")
        assert (await error_of(s, lambda c: c.inspect_container("nobody"))).code == "notFound"
        await s.engine.call("create", lambda c: c.create_container("lab:1", name="x"))
        e = await error_of(s, lambda c: c.create_container("lab:1", name="x"))
        assert e.code == "conflict" and "already in use" in e.sentence


async def test_a_mistake_of_ours_is_not_taken_for_the_hosts(fake: FakeDocker) -> None:
    async with seen(fake.address) as s:
        with pytest.raises(ZeroDivisionError):
            await s.engine.call("divide", lambda c: 1 // 0)


async def test_a_call_that_gets_no_answer_ends_in_time(fake: FakeDocker) -> None:
    fake.trouble("GET /info", "hang")
    async with seen(fake.address) as s:
        began = time.monotonic()
        e = await error_of(s, secs=0.3)
        assert e.code == "timeout" and time.monotonic() - began < 5 * 0.8
        assert await s.engine.call("look", lambda c: c.ping()), "the others go on"


async def test_an_answer_that_trickles_ends_in_time(fake: FakeDocker) -> None:
    free = threading.Event()
    async with seen(fake.address) as s:
        began = time.monotonic()
        e = await error_of(s, lambda c: free.wait(20), secs=0.2)
        free.set()
        assert e.code == "timeout" and time.monotonic() - began < 5 * 0.7


async def test_when_all_threads_are_stuck_the_next_call_fails_at_once(fake: FakeDocker) -> None:
    free, ran = threading.Event(), []
    async with seen(fake.address) as s:
        errors = await asyncio.gather(
            *(error_of(s, lambda c: free.wait(30), secs=0.2) for _ in range(engines.CALLS))
        )
        assert {e.code for e in errors} == {"timeout"}
        began = time.monotonic()
        e = await error_of(s, lambda c: ran.append(1), secs=20)
        assert e.code == "timeout" and e.sentence.startswith(
            "all 8 calls to host a have been waiting for an answer for"
        )
        assert time.monotonic() - began < 10 and not ran
        assert await s.engine.long_call("pull", lambda c: 7, 5) == 7, (
            "long calls have threads of their own"
        )
        free.set()
        await until(lambda: not s.engine._calls.waiting())
        assert await s.engine.call("look", lambda c: 5) == 5


async def test_a_call_that_was_given_up_before_its_turn_is_never_made(fake: FakeDocker) -> None:
    free, ran = threading.Event(), []
    async with seen(fake.address) as s:
        busy = [
            asyncio.create_task(s.engine.call("wait", lambda c: free.wait(30), 20))
            for _ in range(engines.CALLS)
        ]
        await until(lambda: len(s.engine._calls.waiting()) == engines.CALLS)
        e = await error_of(s, lambda c: ran.append(1), secs=0.1)
        assert e.code == "timeout" and "not sent" in e.sentence
        free.set()
        await asyncio.gather(*busy)
        assert await s.engine.call("look", lambda c: 5) == 5 and not ran


async def test_closing_does_not_wait_for_a_daemon_that_hangs(fake: FakeDocker) -> None:
    fake.trouble("GET /info", "hang")
    s = Seen(fake.address, call_secs=60)
    s.engine.start()
    call = asyncio.create_task(s.engine.call("look", lambda c: c.info()))
    await until(lambda: fake.called("GET /info"))
    began = time.monotonic()
    await s.engine.close()
    assert time.monotonic() - began < 5 * engines.CLOSE_SECS
    with pytest.raises(EngineError, match="is closed"):
        await call


@pytest.mark.process
def test_a_process_ends_although_a_call_hangs(fake: FakeDocker) -> None:
    fake.trouble("GET /info", "hang")
    code = f"""
import asyncio, io, sys
from jobscribe.drivers.docker.host.engine import HostEngine
from jobscribe.protocol.clusters.container_pool import PoolHost
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Direct, Log
async def main():
    nothing = lambda *a: None
    e = HostEngine(PoolHost(name="a", address={fake.address!r}, cpu=1, memory_mb=1), deployment="x" * 8, log=Log("t", Redactor(), Direct()),
                   call_secs=600, on_state=nothing, on_event=nothing, on_sync=nothing)
    t = asyncio.create_task(e.call("look", lambda c: c.info()))
    await asyncio.sleep(0.3)
    await e.close()
    try: await t
    except Exception as error: print(type(error).__name__)
asyncio.run(main())
"""
    import sys

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.stdout, done.returncode) == ("EngineError\n", 0), done.stderr


# ---- the monitor


async def test_up_and_down_are_told_once_each(fake: FakeDocker) -> None:
    async with seen(fake.address, watch=True) as s:
        await until(lambda: s.syncs == 1)
        assert s.engine.up and [u for _, u, _ in s.states] == [True]
        fake.close()
        await until(lambda: not s.engine.up)
        calls = len(s.states)
        await asyncio.sleep(0.6)  # time for several more attempts
        assert [u for _, u, _ in s.states] == [True, False] and calls == 2
        assert (
            "refused" in s.states[1][2]
            or "broke" in s.states[1][2]
            or "the socket does not exist" in s.states[1][2]
        )
        fake.reopen()
        await until(lambda: s.syncs == 2)
        assert [u for _, u, _ in s.states] == [True, False, True] and s.states[2][0] == "a"


async def test_a_daemon_that_hangs_is_down_is_asked_again_and_again_and_is_found(
    fake: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PING_TIMEOUT_SECS", 0.2)
    async with seen(fake.address, watch=True) as s:
        await until(lambda: s.syncs == 1)
        fake.trouble(".", "hang")
        await until(lambda: not s.engine.up)
        assert "did not answer in time" in s.engine.detail
        # each attempt must release its thread
        await until(lambda: len(fake.called("GET /version")) > 2 * engines.WATCHES)
        fake.relent()
        await until(lambda: s.engine.up and s.syncs == 2)


async def test_a_host_that_is_down_from_the_beginning_is_told_once(tmp_path: Path) -> None:
    async with seen(f"unix://{tmp_path}/none", watch=True) as s:
        await until(lambda: s.states)
        await asyncio.sleep(0.5)  # time for several more attempts
        assert (
            len(s.states) == 1
            and s.states[0][:2] == ("a", False)
            and "the socket does not exist" in s.states[0][2]
        )


async def test_events_of_this_deployment_come_and_no_others(fake: FakeDocker) -> None:
    async with seen(fake.address, watch=True) as s:
        await until(lambda: s.syncs == 1)
        fake.emit("start", {"jobscribe.deployment": "another1"})
        fake.emit("start", {})
        fake.emit("create", OURS, kind="network")
        fake.emit("die", OURS)
        await until(lambda: s.events)
        assert (
            s.actions() == ["die"]
            and s.events[0]["Actor"]["Attributes"]["jobscribe.deployment"] == "deploy01"
        )


async def test_what_happens_while_the_stream_is_broken_comes_once_and_is_followed_by_a_sync(
    fake: FakeDocker,
) -> None:
    async with seen(fake.address, watch=True) as s:
        await until(lambda: s.syncs == 1)
        fake.emit("create", OURS)
        await until(lambda: s.actions() == ["create"])
        fake.trouble("GET /events", "disconnect", times=2)
        fake.break_connections()
        fake.emit("start", OURS)
        fake.emit("die", OURS)
        await until(lambda: s.syncs == 2)
        await until(lambda: len(s.events) >= 3)
        fake.emit("destroy", OURS)
        await until(lambda: "destroy" in s.actions())
        assert s.actions() == ["create", "start", "die", "destroy"]


async def test_events_come_although_the_daemons_clock_is_set_back_or_ahead(
    fake: FakeDocker,
) -> None:
    async with seen(fake.address, watch=True) as s:
        for n, ahead in enumerate((0.0, 86_400.0, -86_400.0), 1):
            fake.clock_ahead = ahead
            fake.break_connections()
            await until(lambda n=n: s.syncs >= n)
            await until(lambda: fake.called("GET /events"))
            fake.emit(f"here-{n}", OURS)
            await until(lambda n=n: f"here-{n}" in s.actions())


async def test_a_sync_is_asked_for_from_time_to_time(
    fake: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "RECONCILE_SECS", 0.2)
    async with seen(fake.address, watch=True) as s:
        await until(lambda: s.syncs >= 3)
        assert len(fake.called("GET /events")) == 1, "the stream is left alone"


async def test_a_daemon_that_ends_its_streams_at_once_is_not_asked_without_pause(
    fake: FakeDocker,
) -> None:
    fake.trouble("GET /events", "disconnect")
    async with seen(fake.address, watch=True) as s:
        await until(lambda: s.engine.up)
        began = time.monotonic()
        await until(lambda: len(fake.called("GET /events")) > 5)
        assert time.monotonic() - began >= 4 * engines.PING_SECS


async def test_a_daemon_that_is_too_old_is_named_with_both_versions(tmp_path: Path) -> None:
    with fake_docker(tmp_path, api="1.40") as old:
        old.version = "19.03.8"
        async with seen(old.address, watch=True) as s:
            await until(lambda: s.states)
            assert not s.engine.up
            assert (
                "19.03.8" in s.engine.detail
                and "1.40" in s.engine.detail
                and "1.41" in s.engine.detail
            )
            assert await s.engine.check() == [s.engine.detail]
            with pytest.raises(EngineError) as e:
                await s.engine._ask_version()
            assert e.value.code == "tooOld"


async def test_a_daemon_that_no_longer_speaks_the_least_version_is_spoken_to_in_its_own(
    tmp_path: Path,
) -> None:
    with fake_docker(tmp_path, api="1.52", least_api="1.44") as new:
        async with seen(new.address, watch=True) as s:
            await until(lambda: s.syncs)
            assert await s.engine.call("look", lambda c: c.api_version) == "1.44"


async def test_a_mistake_of_who_is_told_does_not_end_the_watch(
    fake: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with seen(fake.address) as s:

        def fails(*_: Any) -> None:
            s.states.append(("", True, ""))
            raise ZeroDivisionError

        monkeypatch.setattr(s.engine, "_on_state", fails)
        s.engine.start()
        await until(lambda: s.syncs)
        assert len(s.states) == 1 and "ZeroDivisionError" in s.output.text


async def test_a_connection_that_was_not_used_for_long_is_not_used_again(
    fake: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with seen(fake.address) as s:
        await s.engine.call("look", lambda c: c.info())
        ((_, first, _),) = s.engine._clients.values()
        await s.engine.call("look", lambda c: c.info())
        clients = [c for _, c, _ in s.engine._clients.values()]
        assert first in clients
        monkeypatch.setattr(engines, "IDLE_SECS", -1.0)
        for _ in clients:
            await s.engine.call("look", lambda c: c.info())
        assert first not in [c for _, c, _ in s.engine._clients.values()]


# ---- addresses and certificates


def make_cert(
    folder: Path, name: str, authority: Path | None, usage: str, *, days: int = 2, more: str = ""
) -> None:
    """Create name.pem and name-key.pem, signed by authority/ca.pem or self-signed."""
    key, cert = folder / f"{name}-key.pem", folder / f"{name}.pem"
    run = lambda *args: subprocess.run(["openssl", *args], check=True, capture_output=True)
    new = [
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-keyout",
        str(key),
        "-subj",
        f"/CN={name}",
    ]
    if authority is None:
        run(
            *new,
            "-x509",
            "-days",
            str(days),
            "-out",
            str(cert),
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        )
        return
    extensions = folder / "extensions"
    extensions.write_text(
        f"basicConstraints=CA:FALSE\nextendedKeyUsage={usage}\nsubjectAltName=IP:127.0.0.1{more}\n"
    )
    run(*new, "-out", str(folder / "csr"))
    run(
        "x509",
        "-req",
        "-in",
        str(folder / "csr"),
        "-CA",
        str(authority / "ca.pem"),
        "-CAkey",
        str(authority / "ca-key.pem"),
        "-CAcreateserial",
        "-days",
        str(days),
        "-out",
        str(cert),
        "-extfile",
        str(extensions),
    )


class Certificates:
    """A daemon's certificates in `folder`, and the pool's certificate folder in `client`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.client = folder, folder / "client"
        folder.mkdir()
        self.client.mkdir()
        make_cert(folder, "ca", None, "")
        make_cert(folder, "server", folder, "serverAuth")
        make_cert(folder, "cert", folder, "clientAuth")
        self.lay(folder)

    def lay(self, folder: Path) -> None:
        for source, name in (
            ("ca.pem", "cacert.pem"),
            ("cert.pem", "cert.pem"),
            ("cert-key.pem", "key.pem"),
        ):
            (self.client / name).write_bytes((folder / source).read_bytes())
        (self.client / "key.pem").chmod(0o600)

    def server(self, name: str = "server") -> Any:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}-key.pem")
        context.load_verify_locations(self.folder / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "good")


@pytest.fixture
def certs(made: Certificates) -> Certificates:
    made.lay(made.folder)
    return made


async def only_problem(address: str, tls: Path | None) -> str:
    """Return the only problem that `check` finds, and check that a call fails too."""
    async with seen(address, tls=str(tls) if tls else None) as s:
        problems = await s.engine.check()
        assert len(problems) == 1, problems
        e = await error_of(s, lambda c: c.version())
        assert e.code in ("badTls", "unreachable", "unsafe"), e
        return problems[0]


@pytest.mark.process
async def test_a_host_behind_tls_is_used_whatever_ca_bundle_the_environment_names(
    tmp_path: Path,
    certs: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_cert(tmp_path, "foreign", None, "")
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(tmp_path / "foreign.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with fake_docker(tmp_path, tcp=True, tls=certs.server()) as daemon:
        async with seen(daemon.address, tls=str(certs.client), watch=True) as s:
            await until(lambda: s.syncs == 1)
            daemon.emit("die", OURS)
            await until(lambda: s.events)
            assert (await s.engine.call("look", lambda c: c.info()))["NCPU"] == 8
            assert await s.engine.check() == []
            daemon.close()
            await until(lambda: not s.engine.up)
            assert [u for _, u, _ in s.states] == [True, False]


async def test_plain_tcp_off_this_machine_is_refused_before_anybody_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect(*_: Any) -> None:
        raise AssertionError("somebody connects")

    monkeypatch.setattr(socket.socket, "connect", connect)
    async with seen("tcp://192.0.2.7:2375", watch=True) as s:
        e = await error_of(s)
        assert e.code == "unsafe" and "plain TCP" in e.sentence and "--tlsverify" in e.sentence
        assert await s.engine.check() == [e.sentence]
        await until(lambda: s.states)
        assert not s.engine.up and s.engine.detail == e.sentence


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:1",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:0",
        "unix://relative",
        "ssh://x",
        "tcp://a@127.0.0.1:1",
    ],
)
async def test_what_is_no_address_is_refused(address: str) -> None:
    async with seen(address) as s:
        assert (await error_of(s)).code == "unsafe"


@pytest.mark.process
async def test_missing_and_unreadable_files_are_named(certs: Certificates, tmp_path: Path) -> None:
    address = "tcp://127.0.0.1:1"
    assert f"the folder {tmp_path}/none does not exist" in await only_problem(
        address, tmp_path / "none"
    )
    (certs.client / "cert.pem").unlink()
    assert f"the file {certs.client}/cert.pem does not exist" in await only_problem(
        address, certs.client
    )
    (certs.client / "cert.pem").mkdir()
    try:
        assert f"{certs.client}/cert.pem cannot be read (Is a directory)" in await only_problem(
            address, certs.client
        )
    finally:
        (certs.client / "cert.pem").rmdir()


@pytest.mark.process
async def test_a_key_that_others_can_read_is_named(tmp_path: Path, certs: Certificates) -> None:
    (certs.client / "key.pem").chmod(0o640)
    with fake_docker(tmp_path, tcp=True, tls=certs.server()) as daemon:
        async with seen(daemon.address, tls=str(certs.client)) as s:
            problems = await s.engine.check()
            assert (
                len(problems) == 1
                and f"other users can read {certs.client}/key.pem" in problems[0]
                and "chmod 600" in problems[0]
            )


@pytest.mark.process
async def test_an_expired_certificate_of_ours_is_named_with_its_dates(
    tmp_path: Path, certs: Certificates
) -> None:
    make_cert(tmp_path, "cert", certs.folder, "clientAuth", days=-1)
    (certs.client / "cert.pem").write_bytes((tmp_path / "cert.pem").read_bytes())
    (certs.client / "key.pem").write_bytes((tmp_path / "cert-key.pem").read_bytes())
    with fake_docker(tmp_path, tcp=True, tls=certs.server()) as daemon:
        async with seen(daemon.address, tls=str(certs.client)) as s:
            problems = await s.engine.check()
    assert (
        f"{certs.client}/cert.pem has expired (valid from" in problems[0] and "GMT" in problems[0]
    )
    assert "does not accept our certificate" in problems[1] and len(problems) == 2


@pytest.mark.process
def test_a_certificate_that_is_not_yet_valid_is_named_with_its_dates(certs: Certificates) -> None:
    from jobscribe.drivers.docker.host.client import certificate_problems

    host = PoolHost(
        name="a", address="tcp://127.0.0.1:1", tls=str(certs.client), cpu=1, memory_mb=1
    )
    now = time.time()
    assert certificate_problems(host, now) == []
    early = certificate_problems(host, now - 7 * 86_400)
    assert [p.split(": ")[1].split(" (")[0] for p in early] == [
        f"{certs.client}/{n} is not yet valid" for n in ("cacert.pem", "cert.pem")
    ]
    late = certificate_problems(host, now + 7 * 86_400)
    assert [p.split(": ")[1].split(" (")[0] for p in late] == [
        f"{certs.client}/{n} has expired" for n in ("cacert.pem", "cert.pem")
    ]


@pytest.mark.process
async def test_a_key_of_another_certificate_is_named(tmp_path: Path, certs: Certificates) -> None:
    (certs.client / "key.pem").write_bytes((certs.folder / "server-key.pem").read_bytes())
    with fake_docker(tmp_path, tcp=True, tls=certs.server()) as daemon:
        assert "key.pem does not match" in await only_problem(daemon.address, certs.client)


@pytest.mark.process
async def test_a_daemon_signed_by_somebody_else_is_named(
    tmp_path: Path, certs: Certificates
) -> None:
    make_cert(tmp_path, "other", None, "")
    (certs.client / "cacert.pem").write_bytes((tmp_path / "other.pem").read_bytes())
    with fake_docker(tmp_path, tcp=True, tls=certs.server()) as daemon:
        assert f"not signed by {certs.client}/cacert.pem" in await only_problem(
            daemon.address, certs.client
        )


@pytest.mark.process
async def test_an_expired_certificate_of_the_daemon_is_named_with_its_dates(
    tmp_path: Path, certs: Certificates
) -> None:
    make_cert(certs.folder, "late", certs.folder, "serverAuth", days=-1)
    with fake_docker(tmp_path, tcp=True, tls=certs.server("late")) as daemon:
        said = await only_problem(daemon.address, certs.client)
        assert "the daemon's certificate has expired (valid from" in said and "GMT" in said


@pytest.mark.process
async def test_a_certificate_for_another_address_is_named(
    tmp_path: Path, certs: Certificates
) -> None:
    with fake_docker(tmp_path, tcp=True, tls=certs.server()) as daemon:
        assert "for another name or address" in await only_problem(
            daemon.address.replace("127.0.0.1", "localhost"), certs.client
        )


@pytest.mark.process
async def test_a_daemon_that_refuses_our_certificate_is_named(
    tmp_path: Path, certs: Certificates
) -> None:
    make_cert(tmp_path, "ca", None, "")
    make_cert(tmp_path, "cert", tmp_path, "clientAuth")
    for source, name in (("cert.pem", "cert.pem"), ("cert-key.pem", "key.pem")):
        (certs.client / name).write_bytes((tmp_path / source).read_bytes())
    with fake_docker(tmp_path, tcp=True, tls=certs.server()) as daemon:
        assert "does not accept our certificate" in await only_problem(daemon.address, certs.client)


@pytest.mark.process
async def test_tls_to_a_plain_port_and_plain_to_a_tls_port_are_told_apart(
    tmp_path: Path, certs: Certificates, fake: FakeDocker
) -> None:
    with fake_docker(tmp_path, tcp=True) as daemon:
        assert "this port does not use TLS" in await only_problem(daemon.address, certs.client)
    # Docker's answer to plain HTTP on a TLS port
    fake.trouble(".", "fail", status=400, said="Client sent an HTTP request to an HTTPS server.")
    async with seen(fake.address) as s:
        e = await error_of(s)
        assert (
            e.code == "badTls"
            and "has no `tls`" in e.sentence
            and await s.engine.check() == [e.sentence]
        )


async def test_nobody_there_is_told_from_somebody_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "connection refused" in await only_problem(f"tcp://127.0.0.1:{port}", None)
    assert "the socket does not exist" in await only_problem(f"unix://{tmp_path}/none", None)


async def test_a_network_that_swallows_everything_is_a_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "PING_TIMEOUT_SECS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        async with seen(address) as s:
            e = await error_of(s, secs=0.3)
            assert e.code == "timeout" and "did not answer in time" in e.sentence
            problems = await s.engine.check()
            assert len(problems) == 1 and "did not answer in time" in problems[0]


@pytest.mark.process
@pytest.mark.skipif(
    os.geteuid() != 0,
    reason="needs root: run the tests as root, to become somebody who may not use the socket",
)
def test_a_socket_that_we_may_not_use_is_named(fake: FakeDocker, tmp_path: Path) -> None:
    from jobscribe.drivers.docker.host.client import probe

    path = Path(fake.address.removeprefix("unix://"))
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    host = PoolHost(name="a", address=fake.address, cpu=1, memory_mb=1)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    said: list[str] = []

    def nobody() -> None:
        os.setresuid(65534, 65534, 65534)

    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        nobody()
        e = probe(host, 1.0)
        os.write(write, (e.sentence if e else "nothing").encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with open(read) as f:
        said.append(f.read())
    assert "permission denied" in said[0]


async def test_what_is_no_docker_daemon_is_named() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"220 mail.example.org ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, seen(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}") as s:
        e = await error_of(s)
        assert e.code == "refused" and "is not a Docker daemon" in e.sentence


async def test_who_asks_right_after_the_start_waits_for_the_first_answer(
    fake: FakeDocker, tmp_path: Path
) -> None:
    async with seen(fake.address, watch=True) as s:
        assert not s.engine.up and await s.engine.is_up()
    async with seen(f"unix://{tmp_path}/none", watch=True) as s:
        assert not await s.engine.is_up() and s.states
