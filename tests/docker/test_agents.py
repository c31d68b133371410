"""Agents in containers on a real Docker host: the AgentDriver contract, isolation of the user, and
agent ends.

With SOAK=1 the whole contract is tested; otherwise only the parts that depend most on a daemon.
"""

import asyncio
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from container_agent import TOKEN, Supervisor, until
from docker_hosts import UNIX_USERS, Host

from jobscribe.drivers.contracts import AgentSpec, Handle
from jobscribe.drivers.docker.agents.driver import DockerDriver
from jobscribe.protocol.clusters.container_pool import Limits, Pool, PoolHost
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Direct, Log

from ..contracts import test_agent_driver as contract

pytestmark = pytest.mark.timeout(300)
SHARE = ("test_a_stop_right_after_the_start_ends_it_too",)
globals().update(
    {
        n: v
        for n, v in vars(contract).items()
        if n in SHARE or (n.startswith("test_") and os.environ.get("SOAK") == "1")
    }
)

KEY = AgentKey("docker", "sequential", "User0001", "a")


@pytest.fixture
async def batch_site(host_a: Host, image: str) -> AsyncIterator[contract.Ground]:
    root = _root()
    tag = f"jobscribe-test/contract:{uuid.uuid4().hex[:8]}"
    host_a.docker("tag", image, tag)
    made = contract.containers(
        root,
        f"unix://{host_a.sock}",
        tag,
        lambda id_: host_a.docker("kill", id_),
        lambda: host_a.docker("rmi", tag),
    )
    try:
        async with contract.left_as_found(made, root):
            yield made
    finally:
        host_a.clear(["contract"])
        host_a.docker("rmi", "-f", tag, code=None)
        shutil.rmtree(root, ignore_errors=True)


def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="jobscribe-agents-", dir="/var/tmp"))
    root.chmod(
        0o700
    )  # like the supervisor's own root: containers get the mounted folder, not its parents
    return root


class House:
    """A driver for one host over TLS, and the supervisor to which its agents connect."""

    def __init__(self, host: Host, image: str) -> None:
        self.place, self.root, self.deployment = host, _root(), uuid.uuid4().hex[:8]
        self.supervisor = Supervisor()
        self.lines: list[str] = []
        self.states: list[tuple[str, ...]] = []
        self.pool = Pool(
            hosts=(
                PoolHost(name="a", address=host.address, tls=str(host.tls), cpu=2, memory_mb=4096),
            ),
            image=image,
            pull="never",
            unix_users=UNIX_USERS,
            log_driver="json-file",
            sequential=Limits(cpus=1, memory_mb=200, shm_mb=16, tmp_mb=8, pids=64, nofile=1000),
        )
        self.drivers: list[DockerDriver] = []

    def put(self, text: str) -> None:
        self.lines.append(text)

    def driver(self) -> DockerDriver:
        log = Log("supervisor", Redactor([TOKEN]), Direct(self))
        url = f"ws://127.0.0.1:{self.supervisor.port}/agent"
        self.drivers.append(
            DockerDriver(
                self.pool,
                self.root,
                str(self.root / "user"),
                deployment=self.deployment,
                log=log,
                redactor=log.redactor,
                address=lambda: {
                    "agentsUrl": url,
                    "agentsCa": None,
                    "pingSecs": 20.0,
                    "pingTimeoutSecs": 10.0,
                },
                reporter=self,
                keeper_settings={"cgroups": {"use": "auto", "pids": 0}},  # type: ignore[arg-type]
            )
        )
        self.drivers[-1].watch()
        return self.drivers[-1]

    def host(self, *said: str) -> None:
        self.states.append(said)

    def ends(self) -> list[dict[str, Any]]:
        file = self.root / "agent" / str(KEY) / "container.log"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def within(self, handle: Handle, command: str) -> str:
        """Return the output of a shell command in the agent's container, run as the user's jobs
        are.
        """
        return self.place.docker("exec", handle["id"], "/bin/sh", "-c", command, code=None).strip()

    async def close(self) -> None:
        for driver in self.drivers:
            await driver.close()
        await self.supervisor.close()
        await asyncio.to_thread(self.place.clear, [self.deployment])
        shutil.rmtree(self.root)


@pytest.fixture
async def observed(host_a: Host, image: str) -> AsyncIterator[House]:
    observed = House(host_a, image)
    yield observed
    await observed.close()


def spec(key: AgentKey = KEY) -> AgentSpec:
    return AgentSpec(key=key, agent_id="AbCd" * 8, token=TOKEN)


async def soon(
    true: Callable[[], object], what: Callable[[], str] = lambda: "it did not come to that"
) -> None:
    await until(true, what)


async def test_an_agent_comes_to_the_supervisor_and_is_held_in(observed: House) -> None:
    """Check the isolation from inside, with the rights of a job: no network, no capabilities, no
    files of other users, enforced limits.
    """
    (observed.root / "user" / "User0002").mkdir(parents=True)
    handle = await observed.driver().start(spec())
    await soon(
        lambda: observed.supervisor.connected,
        lambda: observed.place.docker("logs", handle["id"], code=None) + "".join(observed.lines),
    )
    said = await asyncio.to_thread(
        observed.within,
        handle,
        (
            "id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/1/status | tr -d '\\t\\n'; echo; ls /sys/class/net; "
            f"ls {observed.root}/user; touch /x 2>&1; touch /tmp/x && echo tmp; touch {observed.root}/user/User0001/x && echo own; "
            "touch /run/jobscribe/x 2>&1; ls /var/run/docker.sock 2>&1; ulimit -n; ulimit -c; cat /sys/fs/cgroup/memory/memory.limit_in_bytes "
            "/sys/fs/cgroup/pids/pids.max; tr '\\0' ' ' </proc/1/cmdline"
        ),
    )
    lines = said.splitlines()
    assert lines[0] == str(UNIX_USERS[0])
    assert lines[1] == "CapEff:0000000000000000CapBnd:0000000000000000NoNewPrivs:1Seccomp:2"
    assert lines[2:4] == ["lo", "User0001"]
    assert (
        "Read-only file system" in lines[4]
        and lines[5:7] == ["tmp", "own"]
        and "Read-only file system" in lines[7]
    )
    assert "No such file" in lines[8] and lines[9:13] == ["1000", "0", str(200 * 2**20), "64"]
    assert "keeper" in lines[13] and TOKEN not in said
    assert TOKEN not in json.dumps(observed.place.inspect(handle["id"])) and TOKEN not in "".join(
        observed.lines
    )


async def test_two_deployments_have_an_agent_each_of_the_same_name(
    observed: House, host_a: Host, image: str
) -> None:
    second = House(host_a, image)
    try:
        one, two = await observed.driver().start(spec()), await second.driver().start(spec())
        assert (one["name"], two["name"]) == (
            "srj-s-User0001",
            f"srj-s-User0001-{second.deployment}",
        )
        await observed.drivers[0].stop(one, 2)
        assert (await second.drivers[0].find(two)).state == "alive"
        assert (
            len(host_a.containers(f"jobscribe.deployment={second.deployment}", running=True)) == 2
        )
    finally:
        await second.close()


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (
            ("kill",),
            "its container was killed from outside by signal 9 (SIGKILL) (docker kill, docker stop or an administrator)",
        ),
        (("stop", "-t", "20"), "its keeper ended by itself (exit code 0)"),
    ],
)
async def test_what_others_do_to_it_is_told_the_moment_it_happens(
    observed: House, how: tuple[str, ...], sentence: str
) -> None:
    driver = observed.driver()
    handle = await driver.start(spec())
    await soon(lambda: observed.supervisor.connected)
    await asyncio.to_thread(observed.place.docker, *how, handle["id"])
    await soon(lambda: observed.ends() and not observed.place.inspect(handle["id"]))
    (end,) = observed.ends()
    assert end["sentence"].split("; its last line")[0] == sentence and not end["stopped"]
    assert (await driver.find(handle)).state == "gone" and any(
        sentence in line for line in observed.lines
    )


async def test_one_removed_from_outside_is_gone(observed: House) -> None:
    driver = observed.driver()
    handle = await driver.start(spec())
    await asyncio.to_thread(observed.place.docker, "rm", "-f", handle["id"])
    found = await driver.find(handle)
    assert found.state == "gone" and "from outside" in found.detail
    again = await driver.start(spec())
    assert again["id"] != handle["id"] and (await driver.find(again)).state == "alive"


async def test_memory_that_ran_out_is_in_the_evidence(observed: House) -> None:
    """The kernel kills a user process and the keeper survives. The event ends nothing, and is in
    the evidence when the agent ends.
    """
    driver = observed.driver()
    handle = await driver.start(spec())
    await soon(lambda: observed.supervisor.connected)
    await asyncio.to_thread(
        observed.within, handle, "echo 1000 >/proc/self/oom_score_adj; exec tail /dev/zero"
    )
    assert (await driver.find(handle)).state == "alive"
    await driver.stop(handle, 5)
    (end,) = observed.ends()
    assert end["oomEvents"] >= 1 and "memory ran out" in end["sentence"], end


async def test_agents_outlive_supervisor_and_daemon(observed: House) -> None:
    first = observed.driver()
    handle = await first.start(spec())
    await soon(lambda: observed.supervisor.connected)
    pid = observed.place.inspect(handle["id"])["State"]["Pid"]
    await first.close()
    second = observed.driver()
    assert (await second.find(handle)).state == "alive" and (await second.start(spec()))[
        "id"
    ] == handle["id"]
    await asyncio.to_thread(observed.place.crash)
    await soon(lambda: not second.engines["a"].up)
    assert (await second.find(handle)).state == "unknown"
    os.kill(pid, 0)
    await asyncio.to_thread(observed.place.start)
    await soon(lambda: second.engines["a"].up)
    assert (await second.find(handle)).state == "alive" and observed.supervisor.connections == 1
    await asyncio.to_thread(observed.place.crash)
    os.kill(pid, 9)
    await asyncio.to_thread(observed.place.start)
    await soon(lambda: observed.ends())
    found = await second.find(handle)
    assert found.state == "gone" and ("signal 9" in found.detail or "went down" in found.detail)


async def test_a_relay_that_is_killed_comes_back_and_the_agent_with_it(observed: House) -> None:
    await observed.driver().start(spec())
    await soon(lambda: observed.supervisor.connected)
    await asyncio.to_thread(
        observed.place.docker, "rm", "-f", f"jobscribe-relay-{observed.deployment}"
    )
    await soon(lambda: observed.supervisor.connections == 2 and observed.supervisor.connected)
