"""Images: lookup, pulls by the pool's policy, and a specific error for each kind of failure."""

import asyncio
import base64
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_docker import FakeDocker

from jobscribe.drivers.docker.host.engine import EngineError, HostEngine
from jobscribe.drivers.docker.images import registry_credentials
from jobscribe.drivers.docker.images.image_store import PRIVATE, ImageFault, ImageStore, OwnLogins
from jobscribe.protocol.clusters.container_pool import Pool, PoolHost
from jobscribe.protocol.jobs.registry_login import RegistryLogin
from jobscribe.protocol.redaction import REDACTED, Redactor
from jobscribe.runtime.log.logger import Direct, Log

ID, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
PASSWORD = "correct horse battery"


class Output:
    def __init__(self) -> None:
        self.text = ""

    def put(self, text: str) -> None:
        self.text += text

    def close(self) -> None:
        return


@contextlib.asynccontextmanager
async def images(
    fake: FakeDocker, output: Output | None = None, **pool: Any
) -> AsyncIterator[ImageStore]:
    host = PoolHost(name="a", address=fake.address, cpu=4, memory_mb=4096)
    log = Log("test", Redactor(), Direct(output or Output()))
    engine = HostEngine(
        host,
        deployment="deploy01",
        log=log,
        call_secs=5,
        on_state=lambda *_: None,
        on_event=lambda *_: None,
        on_sync=lambda _: None,
    )
    try:
        yield ImageStore(engine, Pool(hosts=(host,), image="lab:1", **pool), log)
    finally:
        await engine.close()


async def fault_of(fake: FakeDocker, image: str, **pool: Any) -> ImageFault:
    async with images(fake, **pool) as i:
        with pytest.raises(ImageFault) as e:
            await i.ensure(image)
        return e.value


async def test_an_image_that_is_there_is_used_and_nobody_is_asked(fake: FakeDocker) -> None:
    async with images(fake) as i:
        assert await i.ensure("lab:1") == ID
        assert await i.ensure(ID) == ID
    assert not fake.pulls


async def test_one_that_is_missing_is_pulled_by_tag_or_digest(fake: FakeDocker) -> None:
    digest = "reg.example.org:5000/team/sim@sha256:" + "a" * 64
    fake.pullable = {"reg.example.org:5000/team/sim:2": OTHER, digest: OTHER, "plain:latest": OTHER}
    fake.images["plain"] = ""
    told: list[str] = []
    async with images(fake) as i:
        image = "reg.example.org:5000/team/sim:2"
        for _ in range(2):
            assert await i.ensure(image, on_pull=lambda: told.append("pull")) == OTHER
        assert told == ["pull"], "an image that is there is not pulled"
        assert await i.ensure(digest) == OTHER
    assert [p for p, _ in fake.pulls] == ["reg.example.org:5000/team/sim:2", digest]


@pytest.mark.parametrize(
    ("image", "registry", "repository", "wanted"),
    [
        ("busybox", "docker.io", "busybox", "latest"),
        ("team/sim:2", "docker.io", "team/sim", "2"),
        ("localhost/sim", "localhost", "localhost/sim", "latest"),
        ("reg.example.org/sim", "reg.example.org", "reg.example.org/sim", "latest"),
        (
            "127.0.0.1:5000/team/sim:2@sha256:ab",
            "127.0.0.1:5000",
            "127.0.0.1:5000/team/sim",
            "sha256:ab",
        ),
    ],
)
def test_names_are_taken_apart_and_never_mean_all_tags(
    image: str, registry: str, repository: str, wanted: str
) -> None:
    assert registry_credentials.parse_image(image) == registry_credentials.ImageName(
        registry, repository, wanted
    )


@pytest.mark.parametrize(
    "image", ["sha256:" + "a" * 64, "", "two words", "x?tag=y", "reg.example.org/"]
)
def test_what_is_no_name_in_a_registry_is_told(image: str) -> None:
    assert registry_credentials.parse_image(image) is None


async def test_always_asks_the_registry_each_time(fake: FakeDocker) -> None:
    fake.pullable["lab:1"] = OTHER
    async with images(fake, pull="always") as i:
        assert await i.ensure("lab:1") == OTHER
        assert await i.ensure("lab:1") == OTHER
    assert len(fake.pulls) == 2


async def test_never_does_not_pull(fake: FakeDocker) -> None:
    fake.pullable["sim:2"] = OTHER
    e = await fault_of(fake, "sim:2", pull="never")
    assert e.fault == "imageMissing" and "docker load" in e.sentence and not fake.pulls


async def test_many_who_want_one_image_share_one_pull(fake: FakeDocker) -> None:
    fake.pullable["sim:2"] = OTHER
    fake.trouble("POST /images/create", "slow", secs=0.5)
    async with images(fake) as i:
        assert set(await asyncio.gather(*(i.ensure("sim:2") for _ in range(30)))) == {OTHER}
        assert len(fake.pulls) == 1


async def test_who_goes_away_does_not_end_the_pull_of_others(fake: FakeDocker) -> None:
    fake.pullable["sim:2"] = OTHER
    fake.trouble("POST /images/create", "slow", secs=0.5)
    async with images(fake) as i:
        first, second = (asyncio.create_task(i.ensure("sim:2")) for _ in range(2))
        deadline = time.monotonic() + 10
        while not fake.called("images/create"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        first.cancel()
        assert await second == OTHER and len(fake.pulls) == 1


async def test_a_pull_that_failed_is_tried_again_for_the_next(fake: FakeDocker) -> None:
    async with images(fake) as i:
        with pytest.raises(ImageFault):
            await i.ensure("sim:2")
        fake.pullable["sim:2"] = OTHER
        assert await i.ensure("sim:2") == OTHER


@pytest.mark.parametrize(
    ("said", "fault", "words"),
    [
        (
            "manifest for sim:2 not found: manifest unknown: manifest unknown",
            "imageMissing",
            "has no image sim:2",
        ),
        (
            "repository r.example.org/sim not found: name unknown: repository name not known to registry",
            "imageMissing",
            "has no image",
        ),
        (
            "pull access denied for sim, repository does not exist or may require 'docker login': denied: requested access to the resource is denied",
            "pullDenied",
            "credentials",
        ),
        (
            'Head "https://r.example.org/v2/sim/manifests/2": unauthorized: authentication required',
            "pullDenied",
            "credentials",
        ),
        (
            'Head "https://r.example.org/v2/sim/manifests/2": no basic auth credentials',
            "pullDenied",
            "credentials",
        ),
        (
            'Get "https://r.example.org/v2/": dial tcp 192.0.2.1:443: connect: connection refused',
            "registryUnreachable",
            "cannot reach registry",
        ),
        (
            'Get "https://r.example.org/v2/": dial tcp: lookup r.example.org: no such host',
            "registryUnreachable",
            "cannot reach registry",
        ),
        (
            'Get "https://r.example.org/v2/": net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)',
            "registryUnreachable",
            "cannot reach registry",
        ),
        (
            'Get "https://r.example.org/v2/": x509: certificate signed by unknown authority',
            "registryUnreachable",
            "certificates",
        ),
        (
            "received unexpected HTTP status: 503 Service Unavailable",
            "registryUnreachable",
            "cannot reach registry",
        ),
    ],
)
async def test_what_the_daemon_says_of_a_pull_becomes_a_fault_with_advice(
    fake: FakeDocker, said: str, fault: str, words: str
) -> None:
    fake.pullable["sim:2"] = Exception(said)
    e = await fault_of(fake, "sim:2")
    assert (
        e.fault == fault
        and words in e.sentence
        and said.split(":")[0] in e.sentence
        and ";" in e.sentence
    )
    # the daemon reports some errors as a status before the stream
    fake.trouble("POST /images/create", "fail", status=404, said=said)
    assert (await fault_of(fake, "sim:2")).fault == fault


async def test_a_disk_that_is_full_is_the_hosts_trouble_not_the_images(fake: FakeDocker) -> None:
    fake.pullable["sim:2"] = Exception("write /var/lib/docker/tmp/x: no space left on device")
    async with images(fake) as i:
        with pytest.raises(EngineError, match="no space left on device"):
            await i.ensure("sim:2")


async def test_a_registry_that_hangs_ends_the_pull_in_time(fake: FakeDocker) -> None:
    fake.trouble("POST /images/create", "hang")
    began = time.monotonic()
    e = await fault_of(fake, "sim:2", pull_secs=0.3)
    assert (
        e.fault == "pullTimeout"
        and "within" not in e.sentence
        and "0.3 s" in e.sentence
        and "pullSecs" in e.sentence
    )
    assert time.monotonic() - began < 5 * 2


async def test_a_pull_that_is_given_up_is_not_left_running(fake: FakeDocker) -> None:
    """The connection closes, which cancels the pull in the daemon."""
    import fake_docker_api

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def trickle(daemon: Any, h: Any, m: Any, q: Any, b: Any) -> None:
        h.begin_stream()
        try:
            while not daemon.closed:
                h.piece(b'{"status":"Downloading"}\r\n')
                time.sleep(0.02)
        except OSError:
            loop.call_soon_threadsafe(ended.set)
        h.close_connection = True

    before = fake_docker_api.ROUTES[:]
    fake_docker_api.ROUTES.insert(0, ("POST", "/images/create", trickle))
    try:
        assert (await fault_of(fake, "sim:2", pull_secs=0.3)).fault == "pullTimeout"
        async with asyncio.timeout(10):
            await ended.wait()
    finally:
        fake_docker_api.ROUTES[:] = before


# ---- credentials


def credentials(folder: Path, content: Any = None, mode: int = 0o600) -> str:
    file = folder / "registries.json"
    said = (
        {"r.example.org": {"username": "joe", "password": PASSWORD}} if content is None else content
    )
    file.write_text(said if isinstance(said, str) else json.dumps(said))
    file.chmod(mode)
    return str(file)


async def test_credentials_go_to_their_registry_only(
    fake: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # credentials of a personal `docker login` must not be used
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"auths": {"other.example.org": {"auth": base64.b64encode(b"me:mine").decode()}}}
        )
    )
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    fake.pullable = {"r.example.org/sim:2": ID, "other.example.org/sim:2": OTHER}
    async with images(fake, registries=credentials(tmp_path)) as i:
        await i.ensure("r.example.org/sim:2")
        await i.ensure("other.example.org/sim:2")
    (_, theirs), (_, others) = fake.pulls
    assert theirs is not None and others is None
    assert json.loads(base64.urlsafe_b64decode(theirs)) == {
        "username": "joe",
        "password": PASSWORD,
        "serveraddress": "r.example.org",
    }


async def test_a_password_never_shows(fake: FakeDocker, tmp_path: Path) -> None:
    output = Output()
    fake.pullable["r.example.org/sim:2"] = Exception(f"unauthorized: joe:{PASSWORD} is wrong")
    async with images(fake, output, registries=credentials(tmp_path)) as i:
        with pytest.raises(ImageFault) as e:
            await i.ensure("r.example.org/sim:2")
        i._log.exception("it failed: {} {}", e.value, fake.pulls, error=e.value)
    assert "unauthorized" in e.value.sentence and REDACTED in e.value.sentence
    header = fake.pulls[0][1]
    assert header is not None
    assert "r.example.org/sim:2" in output.text
    for secret in (PASSWORD, header):
        assert (
            secret not in output.text
            and secret not in str(e.value)
            and secret not in repr(e.value.__context__)
        )


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (None, 0o640, "other users can read"),
        (None, 0o604, "other users can read"),
        (
            '{"r.example.org": {"username": "joe", "password": "correct horse battery}}',
            0o600,
            "do not have the form",
        ),
        ({"r.example.org": "joe:" + PASSWORD}, 0o600, "do not have the form"),
        ({"r.example.org": {"username": "joe", "pass": PASSWORD}}, 0o600, "do not have the form"),
    ],
)
async def test_a_file_of_credentials_that_cannot_be_used_is_refused(
    fake: FakeDocker, tmp_path: Path, content: Any, mode: int, words: str
) -> None:
    file = credentials(tmp_path, content, mode)
    e = await fault_of(fake, "r.example.org/sim:2", registries=file)
    assert e.fault == "pullDenied" and words in e.sentence and file in e.sentence and not fake.pulls
    assert registry_credentials.problems(file) == [e.sentence]
    assert PASSWORD not in e.sentence and PASSWORD not in repr(e.__cause__) + repr(e.__context__)


def test_a_file_that_is_not_there_or_is_none_is_told(tmp_path: Path) -> None:
    assert (
        registry_credentials.problems(None) == []
        and registry_credentials.problems(credentials(tmp_path)) == []
    )
    assert "No such file" in registry_credentials.problems(str(tmp_path / "none"))[0]
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "are not a regular file" in registry_credentials.problems(str(tmp_path / "pipe"))[0]
    assert registry_credentials.problems(str(tmp_path))


@pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: run the tests as root, to give a file to somebody else"
)
def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    file = credentials(tmp_path)
    os.chown(file, 65534, 65534)
    assert "belongs to another user" in registry_credentials.problems(file)[0]


REG = "reg.example.org"
OWN = OwnLogins((REG,), {REG: RegistryLogin(registry=REG, username="ann", password=PASSWORD)})


async def test_an_image_pulled_with_own_credentials_is_hidden_from_other_runs(
    fake: FakeDocker,
) -> None:
    image, output = f"{REG}/sim:2", Output()
    fake.pullable = {image: OTHER}
    async with images(fake, output) as i:
        # two runs, each with a pull of its own
        assert await asyncio.gather(i.ensure(image, OWN), i.ensure(image, OWN)) == [OTHER, OTHER]
        headers = [json.loads(base64.urlsafe_b64decode(header or "")) for _, header in fake.pulls]
        assert [(h["username"], h["password"]) for h in headers] == [("ann", PASSWORD)] * 2
        assert fake.images == {"lab:1": ID, f"{PRIVATE}:{OTHER[7:]}": OTHER}
        fake.pullable = {image: Exception("unauthorized")}
        for name in (image, OTHER, f"{PRIVATE}:{OTHER[7:]}"):
            with pytest.raises(ImageFault):
                await i.ensure(name)
        with pytest.raises(ImageFault, match="sent with the job"):
            await i.ensure(image, OWN)
    assert PASSWORD not in output.text


async def test_an_image_of_the_operator_keeps_its_name(fake: FakeDocker) -> None:
    image = f"{REG}/sim:2"
    fake.images[image], fake.pullable = ID, {image: OTHER}
    async with images(fake) as i:
        assert await i.ensure(image, OWN) == ID
        assert not fake.pulls
    async with images(fake, pull="always") as i:
        assert await i.ensure(image, OWN) == OTHER
    assert fake.images[image] == ID


async def test_lost_credentials_end_the_run_without_a_pull(fake: FakeDocker) -> None:
    async with images(fake) as i:
        with pytest.raises(ImageFault, match="has restarted since") as e:
            await i.ensure(f"{REG}/sim:2", OwnLogins((REG,), None))
    assert (e.value.fault, fake.pulls) == ("credentialsLost", [])
