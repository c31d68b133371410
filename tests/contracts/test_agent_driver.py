"""The `AgentDriver` contract, run against the local, sbatch, Docker and fake drivers.

The local and sbatch drivers start real keepers as the current user. The sbatch driver uses stub
Slurm commands that always succeed. The Docker driver talks to a fake daemon; tests/docker runs the
same contract with a real one.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_docker import FakeDocker

from jobscribe.drivers.contracts import AgentDriver, AgentSpec, Capacity
from jobscribe.drivers.docker.agents.driver import DockerDriver
from jobscribe.drivers.fake import FakeDriver, Place
from jobscribe.drivers.local_agents import LocalDriver
from jobscribe.drivers.sbatch.driver import SbatchDriver
from jobscribe.drivers.sbatch.login_node.channel import LocalChannel
from jobscribe.protocol.clusters.cluster import Cluster, Clusters
from jobscribe.protocol.clusters.container_pool import Pool, PoolHost
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime import processes
from jobscribe.runtime.log.logger import Direct, Log

pytestmark = pytest.mark.process

KEY, OTHER = (
    AgentKey("local", "sequential", "DriverU1", "localhost"),
    AgentKey("local", "parallel", "DriverU1", "localhost"),
)
SLOTS = Capacity(sequential=3, parallel=2)


def spec(key: AgentKey = KEY) -> AgentSpec:
    return AgentSpec(key=key, agent_id="i" * 32, token="t" * 32)


class Ground:
    """A factory for drivers of one kind, with direct access to their hosts."""

    def __init__(
        self,
        make: Callable[[], AgentDriver],
        write: Callable[[AgentKey, str, bytes], None],
        reboot: Callable[[dict], dict],
        cripple: Callable[[AgentDriver], None],
        slots: Capacity = SLOTS,
        rounds: int = 5,
    ) -> None:
        """Store the driver's hooks. `rounds` is how often a test repeats a race; it is small where
        a start waits for its agent.
        """
        self._make, self.write, self.reboot, self.cripple, self.slots, self.rounds = (
            make,
            write,
            reboot,
            cripple,
            slots,
            rounds,
        )
        self.made: list[AgentDriver] = []
        self.handles: list[dict[str, Any]] = []

    def driver(self) -> AgentDriver:
        self.made.append(self._make())
        return self.made[-1]

    async def started(self, driver: AgentDriver, key: AgentKey = KEY) -> dict[str, Any]:
        handle = await driver.start(spec(key))
        self.handles.append(handle)
        return handle


def _fake() -> Ground:
    place = Place()

    def write(key: AgentKey, name: str, content: bytes) -> None:
        place.files[key, name] = content

    def reboot(handle: dict) -> dict:
        place.reboot()
        return handle

    def cripple(driver: AgentDriver) -> None:
        place.broken = "no more agents can be started here"

    return Ground(lambda: FakeDriver(place, cpu_slots=SLOTS), write, reboot, cripple)


def _local(root: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    address = root / "agents.json"
    address.write_text(json.dumps({"agentsUrl": "ws://127.0.0.1:9/agent", "agentsCa": None}))

    def write(key: AgentKey, name: str, content: bytes) -> None:
        path = root / "agent" / str(key) / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def cripple(driver: AgentDriver) -> None:
        monkeypatch.setattr(sys, "executable", str(root / "no-such-python"))

    return Ground(
        lambda: LocalDriver(root, address, cpu_slots=SLOTS, agent_settings={"loginSecs": 0}),
        write,
        lambda h: {**h, "bootId": "another"},
        cripple,
    )


def _sbatch(root: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    environment = LocalChannel._environment
    # skip the login profile of the user who runs the tests: it is slow and may hold locks when
    # killed
    monkeypatch.setattr(
        LocalChannel,
        "_environment",
        lambda channel: environment(channel) | {"HOME": "/", "SHELL": "/bin/sh"},
    )
    (root / "agents.json").write_text(
        json.dumps({"agentsUrl": "ws://127.0.0.1:9/agent", "agentsCa": None})
    )
    commands = root / "bin"
    commands.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel", "sinfo", "scontrol"):
        (commands / name).write_text("#!/bin/sh\nexit 0\n")
        (commands / name).chmod(0o755)
    cluster = Cluster(
        name="localhost",
        folder=str(root),
        environment={"PATH": f"{commands}:/usr/local/bin:/usr/bin:/bin"},
        runs=7,
    )
    log = Log("supervisor", Redactor(), Direct())

    def make() -> AgentDriver:
        return SbatchDriver(
            Clusters(clusters=(cluster,)),
            root,
            str(root / "user"),
            deployment="contract",
            log=log,
            redactor=log.redactor,
            address=lambda: json.loads((root / "agents.json").read_bytes()),
            agent_settings={"loginSecs": 0},
            keeper_settings={"lease": {"renewSecs": 0.2, "leftSecs": 2.0}},
        )

    def write(key: AgentKey, name: str, content: bytes) -> None:
        path = root / "jobscribe-contract" / "agent" / str(key) / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def cripple(driver: AgentDriver) -> None:
        monkeypatch.setattr(sys, "executable", str(root / "no-such-python"))

    return Ground(
        make,
        write,
        lambda h: {**h, "bootId": "another"},
        cripple,
        Capacity(sequential=0, parallel=7),
        rounds=5 if os.environ.get("SOAK") else 2,
    )


class _Nobody:
    """A reporter that ignores host reports."""

    def host(self, *said: str) -> None:
        return


def containers(
    root: Path, address: str, image: str, kill: Callable[[str], None], forget: Callable[[], None]
) -> Ground:
    """Return a setup with containers on one host. `kill` does what a reboot does to a container;
    `forget` removes the image.
    """
    pool = Pool(
        hosts=(
            PoolHost(
                name="localhost", address=address, cpu=2, memory_mb=4096, sequential=3, parallel=2
            ),
        ),
        image=image,
        pull="never",
        unix_users=(100_000, 100_009) if os.geteuid() == 0 else None,
        log_driver="json-file",
    )
    log = Log("supervisor", Redactor(), Direct())

    def make() -> AgentDriver:
        driver = DockerDriver(
            pool,
            root,
            str(root / "user"),
            deployment="contract",
            address=lambda: {"agentsUrl": "ws://127.0.0.1:9/agent", "agentsCa": None},
            log=log,
            redactor=log.redactor,
            reporter=_Nobody(),  # type: ignore[arg-type]
        )
        driver.watch()
        return driver

    def write(key: AgentKey, name: str, content: bytes) -> None:
        path = root / "agent" / str(key) / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def reboot(handle: dict) -> dict:
        kill(handle["id"])
        return handle

    return Ground(make, write, reboot, lambda driver: forget())


@contextlib.contextmanager
def _daemon_on_paper(root: Path) -> Iterator[Ground]:
    fake = FakeDocker(root)
    happened = fake.happened

    def ends_when_told(container: Any, action: str, **more: str) -> None:
        happened(container, action, **more)
        if action == "kill" and more["signal"] == "15":
            fake.finish(container.id, 0)

    fake.happened = ends_when_told  # type: ignore[method-assign]
    try:
        yield containers(
            root, fake.address, "lab:1", lambda id_: fake.finish(id_, 255), fake.images.clear
        )
    finally:
        fake.close()


@pytest.fixture(params=["fake", "local", "docker", "sbatch"])
async def batch_site(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Ground]:
    root = Path(tempfile.mkdtemp(prefix="sys-driver-", dir="/tmp"))
    with contextlib.ExitStack() as stack:
        match request.param:
            case "fake":
                batch_site = _fake()
            case "local":
                batch_site = _local(root, monkeypatch)
            case "sbatch":
                batch_site = _sbatch(root, monkeypatch)
            case _:
                batch_site = stack.enter_context(_daemon_on_paper(root))
        async with left_as_found(batch_site, root):
            yield batch_site


def _processes_of(root: Path) -> set[int]:
    return {
        p.pid
        for p in processes.table().values()
        if not p.over and str(root).encode() in processes._read(f"/proc/{p.pid}/cmdline")
    }


@contextlib.asynccontextmanager
async def left_as_found(batch_site: Ground, root: Path) -> AsyncIterator[None]:
    yield
    last = batch_site.driver()  # the test may have closed its own drivers
    for handle in batch_site.handles:
        await last.stop(handle, 1.0)
    for driver in batch_site.made:
        await driver.close()
    deadline = time.monotonic() + 5.0
    while (left := _processes_of(root)) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)  # a reaper ends shortly after its keeper
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(root)
    assert not left


async def test_what_was_started_lives(batch_site: Ground) -> None:
    driver = batch_site.driver()
    handle = await batch_site.started(driver)
    assert (await driver.find(handle)).state == "alive"
    said = json.dumps(handle)
    assert "t" * 32 not in said and "i" * 32 not in said, "a secret is in the handle"


async def test_a_handle_is_plain_data_and_means_the_same_to_the_next_driver(
    batch_site: Ground,
) -> None:
    driver = batch_site.driver()
    handle = json.loads(json.dumps(await batch_site.started(driver)))
    await driver.close()
    later = batch_site.driver()
    assert (await later.find(handle)).state == "alive"
    await later.stop(handle, 1.0)
    assert (await later.find(handle)).state == "gone"


async def test_starting_again_gives_the_one_that_lives(batch_site: Ground) -> None:
    """The supervisor repeats a start when it missed the answer."""
    driver = batch_site.driver()
    first = await batch_site.started(driver)
    await _noted(driver, first)
    again = await driver.start(spec())
    assert (await driver.find(again)).state == "alive"
    await driver.stop(again, 1.0)
    assert (await driver.find(first)).state == "gone"


async def _noted(driver: AgentDriver, handle: dict[str, Any]) -> None:
    """Wait until the keeper has written its identity to `keeper.json`."""
    if "folder" not in handle:
        return
    for _ in range(1000):
        if (Path(handle["folder"]) / "keeper.json").exists():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the keeper did not write down who it is within 10 s")


async def test_agents_of_different_keys_do_not_meet(batch_site: Ground) -> None:
    driver = batch_site.driver()
    one, other = await asyncio.gather(
        batch_site.started(driver, KEY), batch_site.started(driver, OTHER)
    )
    await driver.stop(one, 1.0)
    assert [(await driver.find(h)).state for h in (one, other)] == ["gone", "alive"]


async def test_a_stop_ends_it_and_can_be_repeated(batch_site: Ground) -> None:
    driver = batch_site.driver()
    handle = await batch_site.started(driver)
    for _ in range(2):
        await driver.stop(handle, 1.0)
        assert (await driver.find(handle)).state == "gone"
    again = await batch_site.started(driver)
    assert (await driver.find(again)).state == "alive"
    assert (await driver.find(handle)).state == "gone"
    await driver.stop(handle, 1.0)
    assert (await driver.find(again)).state == "alive"


async def test_a_stop_right_after_the_start_ends_it_too(batch_site: Ground) -> None:
    driver = batch_site.driver()
    for _ in range(batch_site.rounds):
        handle = await driver.start(spec())
        await driver.stop(handle, 0.5)
        assert (await driver.find(handle)).state == "gone"


async def test_another_process_that_has_the_pid_now_is_neither_taken_for_it_nor_ended(
    batch_site: Ground,
) -> None:
    driver = batch_site.driver()
    handle = await batch_site.started(driver)
    await driver.stop(handle, 1.0)
    stranger = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        reused = {**handle, **({"pid": stranger.pid} if "pid" in handle else {})}
        assert (await driver.find(reused)).state == "gone"
        await driver.stop(reused, 0.1)
        assert stranger.returncode is None and processes.find(stranger.pid) is not None
    finally:
        stranger.kill()
        assert await stranger.wait() == -signal.SIGKILL


async def test_handles_of_an_earlier_version_are_answered(batch_site: Ground) -> None:
    """Missing or unknown fields in a handle must not raise an error."""
    driver = batch_site.driver()
    handle = await batch_site.started(driver)
    assert (await driver.find(handle | {"ofAnEarlierVersion": 1})).state == "alive"
    # try `stop` with incomplete handles first: most lack the data to end a process
    lacking = [
        {k: v for k, v in handle.items() if k not in drop}
        for drop in (
            ("pid", "startTicks", "number", "folder"),
            ("pid",),
            ("startTicks",),
            ("bootId", "boot"),
            ("number",),
        )
    ]
    for one in lacking:
        assert (await driver.find(one)).state in ("alive", "gone", "unknown")
    for one in lacking:
        await driver.stop(one, 0.1)
    assert (await driver.find({})).state in ("gone", "unknown")


async def test_evidence_is_read_in_pieces_and_of_agents_that_are_gone(batch_site: Ground) -> None:
    driver = batch_site.driver()
    handle = await batch_site.started(driver)
    batch_site.write(KEY, "token-1/stdout.log", b"0123456789")
    assert await driver.evidence(KEY, "token-1/stdout.log", 0, 4) == (b"0123", 10)
    assert await driver.evidence(KEY, "token-1/stdout.log", 8, 100) == (b"89", 10)
    assert await driver.evidence(KEY, "token-1/stdout.log", 10, 100) == (b"", 10)
    await driver.stop(handle, 1.0)
    assert await driver.evidence(KEY, "token-1/stdout.log", 4, 3) == (b"456", 10)


async def test_evidence_that_is_not_there_is_empty(batch_site: Ground) -> None:
    driver = batch_site.driver()
    assert await driver.evidence(KEY, "token-1/stdout.log", 0, 4) == (b"", 0)
    batch_site.write(KEY, "token-1/stdout.log", b"01")
    assert await driver.evidence(OTHER, "token-1/stdout.log", 0, 4) == (b"", 0)
    assert await driver.evidence(KEY, "token-1/stderr.log", 0, 4) == (b"", 0)


async def test_a_driver_that_cannot_start_anything_says_so(batch_site: Ground) -> None:
    driver = batch_site.driver()
    batch_site.cripple(driver)
    with pytest.raises(Refusal) as refused:
        await driver.start(spec())
    assert refused.value.code == "agentUnavailable"
    assert len(await driver.check()) == 1


async def test_a_driver_in_order_has_nothing_to_say(batch_site: Ground) -> None:
    driver = batch_site.driver()
    assert await driver.check() == []
    assert driver.capacity() == batch_site.slots
    assert driver.capabilities.tasks == "keeper"


async def test_closing_twice_is_harmless_and_agents_live_on(batch_site: Ground) -> None:
    driver = batch_site.driver()
    handle = await batch_site.started(driver)
    await driver.close()
    await driver.close()
    last = batch_site.driver()
    assert (await last.find(handle)).state == "alive"
    assert (await last.find(batch_site.reboot(handle))).state == "gone", "what ran before a reboot"


@pytest.mark.parametrize("batch_site", ["local"], indirect=True)
async def test_agents_on_this_machine_have_a_lower_priority_than_their_supervisor(
    batch_site: Ground,
) -> None:
    driver = batch_site.driver()
    keeper = (await batch_site.started(driver))["pid"]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    deadline = time.monotonic() + 10.0
    children = lambda: [p.pid for p in processes.table().values() if p.parent == keeper]
    while not (agents := children()) or any(map(_has_ordinary_session, agents)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    for pid in keeper, *agents:
        assert os.getpriority(os.PRIO_PROCESS, pid) == max(5, own)
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def _has_ordinary_session(pid: int) -> bool:
    """Return whether the kernel shares processors between sessions, and this process's has not been
    lowered yet, although this user may do that.
    """
    session = Path(f"/proc/{pid}/autogroup")
    return os.getuid() == 0 and session.exists() and int(session.read_text().split()[-1]) != 5
