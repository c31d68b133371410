"""The supervisor's view of a real Docker daemon, also while it is frozen or killed, and real pulls
from a real registry.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker_hosts import BUSYBOX, Host, Hosts
from image_registry import Registry

from jobscribe.drivers.docker.host import engine as engines
from jobscribe.drivers.docker.host.engine import EngineError, HostEngine
from jobscribe.drivers.docker.images.image_store import ImageFault, ImageStore
from jobscribe.protocol.clusters.container_pool import Pool, PoolHost
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Direct, Log

_PING_TIMEOUT_SECS = 2.0


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PING_SECS", 0.5)
    monkeypatch.setattr(engines, "PING_TIMEOUT_SECS", _PING_TIMEOUT_SECS)


def client_of(host: Host) -> Any:
    c = docker.APIClient(base_url=f"unix://{host.sock}", version="1.41", timeout=30)
    c.trust_env = False
    return c


class Seen:
    def __init__(self, address: str, tls: Path | None, deployment: str = "enginete") -> None:
        self.states: list[bool] = []
        self.events: list[dict[str, Any]] = []
        self.syncs = 0
        self.host = PoolHost(
            name="a", address=address, tls=str(tls) if tls else None, cpu=4, memory_mb=4096
        )
        self.log = Log("test", Redactor(), Direct())
        self.engine = HostEngine(
            self.host,
            deployment=deployment,
            log=self.log,
            call_secs=20,
            on_state=lambda _, up, __: self.states.append(up),
            on_event=lambda _, e: self.events.append(e),
            on_sync=self._sync,
        )

    def _sync(self, name: str) -> None:
        self.syncs += 1

    def actions(self, container: str) -> list[str]:
        """Return the events of a container. A stream starts with all events of its first second,
        which may belong to another test.
        """
        return [e["Action"] for e in self.events if e["Actor"]["ID"] == container]


@contextlib.asynccontextmanager
async def seen(
    host: Host, *, watch: bool = True, unix: bool = False, tls: Path | None = None
) -> AsyncIterator[Seen]:
    s = Seen(f"unix://{host.sock}", None) if unix else Seen(host.address, tls or host.tls)
    if watch:
        s.engine.start()
        await until(lambda: s.syncs > 0)
    try:
        yield s
    finally:
        await s.engine.close()


async def until(condition: Callable[[], Any], secs: float = 60.0) -> None:
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, f"nothing came within {secs} s"
        await asyncio.sleep(0.02)


def run(client: Any, *command: str, deployment: str = "enginete") -> str:
    """Start a container with our labels and return its id."""
    made = client.create_container(
        BUSYBOX, list(command), labels={"jobscribe.deployment": deployment}, network_disabled=True
    )["Id"]
    client.start(made)
    return str(made)


@pytest.mark.parametrize("unix", [True, False])
async def test_a_host_is_found_called_and_heard(
    host_a: Host, unix: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", ssl.get_default_verify_paths().openssl_cafile)
    async with seen(host_a, unix=unix) as s:
        assert await s.engine.check() == []
        other = await s.engine.call(
            "run", lambda c: run(c, "sh", "-c", "exit 0", deployment="another1")
        )
        ours = await s.engine.call("run", lambda c: run(c, "sh", "-c", "exit 3"))
        await until(lambda: "die" in s.actions(ours))
        assert not s.actions(other) and s.actions(ours)[:2] == ["create", "start"]
        assert (
            next(e for e in s.events if (e["Action"], e["Actor"]["ID"]) == ("die", ours))["Actor"][
                "Attributes"
            ]["exitCode"]
            == "3"
        )
        for c in (ours, other):
            await s.engine.call(
                "remove", lambda client, c=c: client.remove_container(c, force=True)
            )
        await until(lambda: s.actions(ours)[-1] == "destroy")
        with pytest.raises(EngineError) as e:
            await s.engine.call("look", lambda c: c.inspect_container(ours))
        assert e.value.code == "notFound" and s.states == [True]


@pytest.mark.timeout(240)
async def test_a_frozen_daemon_fails_calls_in_time_is_down_and_comes_back_with_what_was_missed(
    host_a: Host,
) -> None:
    async with seen(host_a) as s:
        ours = await s.engine.call("run", lambda c: run(c, "sleep", "600"))
        await until(lambda: "start" in s.actions(ours))
        pid = await s.engine.call("look", lambda c: c.inspect_container(ours)["State"]["Pid"])
        syncs = s.syncs
        host_a.freeze()
        try:
            began = time.monotonic()
            with pytest.raises(EngineError) as e:
                await s.engine.call("look", lambda c: c.info(), 1)
            assert e.value.code == "timeout" and time.monotonic() - began < 5 * 1.5
            await until(lambda: s.states[-1] is False, 5 * (0.5 + _PING_TIMEOUT_SECS))
            assert "did not answer in time" in s.engine.detail
            os.kill(pid, signal.SIGKILL)
        finally:
            host_a.thaw()
        await until(lambda: s.states[-1] is True and s.syncs > syncs)
        await until(lambda: "die" in s.actions(ours))
        assert s.actions(ours) == ["create", "start", "die"] and s.states == [True, False, True]
        await s.engine.call("remove", lambda c: c.remove_container(ours, force=True))


@pytest.mark.timeout(240)
async def test_a_killed_daemon_is_down_at_once_and_its_containers_are_there_when_it_is_back(
    host_a: Host,
) -> None:
    async with seen(host_a) as s:
        ours = await s.engine.call("run", lambda c: run(c, "sleep", "600"))
        syncs = s.syncs
        host_a.crash()
        await until(lambda: s.states[-1] is False, 5 * (0.5 + _PING_TIMEOUT_SECS))
        with pytest.raises(EngineError) as e:
            await s.engine.call("look", lambda c: c.info())
        assert e.value.code == "unreachable" and "refused" in e.value.sentence
        host_a.start()
        await until(lambda: s.states[-1] is True and s.syncs > syncs)
        state = await s.engine.call("look", lambda c: c.inspect_container(ours)["State"])
        assert state["Running"] and s.states == [True, False, True]
        await s.engine.call("remove", lambda c: c.remove_container(ours, force=True))
        await until(lambda: s.actions(ours)[-1] == "destroy")


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("expired", "has expired (valid from"),
        ("stranger", "does not accept our certificate"),
        ("otherca", "is not signed by"),
    ],
)
async def test_certificates_that_do_not_fit_are_named(
    host_a: Host, pool: Hosts, folder: str, words: str
) -> None:
    async with seen(host_a, watch=False, tls=pool.place / "bad" / folder) as s:
        problems = await s.engine.check()
        assert any(words in p for p in problems), problems
        with pytest.raises(EngineError) as e:
            await s.engine.call("look", lambda c: c.info())
        assert e.value.code == "badTls", e.value


async def test_plain_http_to_its_tls_port_is_named(host_a: Host) -> None:
    s = Seen(host_a.address, None)
    try:
        with pytest.raises(EngineError) as e:
            await s.engine.call("look", lambda c: c.info())
        assert e.value.code == "badTls" and await s.engine.check() == [e.value.sentence]
    finally:
        await s.engine.close()


# ---- pulls


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    if shutil.which("docker-registry") is None:
        pytest.skip("needs a registry: etc/engines/registry.sh install")
    r = Registry(tmp_path_factory.mktemp("registry"))
    try:
        yield r
    finally:
        r.close()


def images(s: Seen, **settings: Any) -> ImageStore:
    return ImageStore(s.engine, Pool(hosts=(s.host,), image=BUSYBOX, **settings), s.log)


async def forget(s: Seen, registry: Registry) -> None:
    def work(client: Any) -> None:
        for image in client.images():
            for name in [*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())]:
                if name.startswith(registry.host):
                    with contextlib.suppress(docker.errors.NotFound):
                        client.remove_image(name, force=True)

    await s.engine.call("forget images", work)


async def test_images_are_pulled_by_tag_and_digest_with_the_pools_credentials(
    host_a: Host, registry: Registry, tmp_path: Path
) -> None:
    digest = registry.push(client_of(host_a), BUSYBOX, "team/sim:2")
    async with seen(host_a, watch=False) as s:
        known = await images(s).ensure(BUSYBOX)
        mine = images(s, registries=registry.credentials(tmp_path / "registries.json"))
        for name in (
            f"{registry.host}/team/sim:2",
            f"{registry.host}/team/sim@{digest}",
            f"{registry.host}/team/sim:7@{digest}",
        ):
            await forget(s, registry)
            assert set(await asyncio.gather(*(mine.ensure(name) for _ in range(5)))) == {known}
        assert known in [i["Id"] for i in await s.engine.call("list", lambda c: c.images())]
        await forget(s, registry)


async def test_pulls_that_fail_say_why(host_a: Host, registry: Registry, tmp_path: Path) -> None:
    registry.push(client_of(host_a), BUSYBOX, "team/sim:3")
    good = registry.credentials(tmp_path / "good.json")
    bad = registry.credentials(tmp_path / "bad.json", "not the password")
    image = f"{registry.host}/team/sim:3"
    async with seen(host_a, watch=False) as s:
        await forget(s, registry)

        async def fault(name: str, **settings: Any) -> str:
            with pytest.raises(ImageFault) as e:
                await images(s, **settings).ensure(name)
            assert registry.password not in str(e.value) and "not the password" not in str(e.value)
            return e.value.fault

        assert await fault(image) == "pullDenied"
        assert await fault(image, registries=bad) == "pullDenied"
        assert await fault(image, pull="never") == "imageMissing"
        assert await fault(f"{registry.host}/team/sim:none", registries=good) == "imageMissing"
        assert await fault(f"{registry.host}/nobody/has:1", registries=good) == "imageMissing"
        assert (
            await fault(f"{registry.host}/team/sim@sha256:{'0' * 64}", registries=good)
            == "imageMissing"
        )
        assert await fault(f"{registry.host}/Not A Name", registries=good) == "imageMissing"
        registry.stop()
        try:
            assert await fault(image, registries=good) == "registryUnreachable"
        finally:
            registry.up()
        assert await images(s, registries=good).ensure(image)
        await forget(s, registry)


async def test_a_registry_that_never_answers_ends_the_pull_in_time(host_a: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with seen(host_a, watch=False) as s:
            began = time.monotonic()
            with pytest.raises(ImageFault) as e:
                await images(s, pull_secs=1.0).ensure(
                    f"127.0.0.1:{silent.getsockname()[1]}/team/sim:1"
                )
            assert e.value.fault == "pullTimeout" and time.monotonic() - began < 5 * 1.5
            assert await s.engine.call("look", lambda c: c.ping())
