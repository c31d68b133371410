"""Agents in containers, with a fake Docker daemon: starts, adoption, cleanup, foreign containers,
and stored exits.
"""

import asyncio
import json
import os
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_docker import Container, FakeDocker

from jobscribe.drivers.contracts import AgentSpec, Found, Handle
from jobscribe.drivers.docker.agents import container_start
from jobscribe.drivers.docker.agents.driver import STARTS_AT_ONCE, DockerDriver
from jobscribe.drivers.docker.containers import names
from jobscribe.protocol.clusters.container_pool import Limits, Pool, PoolHost
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey, agent_log_ids
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Direct, Log, Record

KEY = AgentKey("docker", "sequential", "User0001", "a")
TOKEN, AGENT_ID = "SecretToken" * 3, "AbCdSecretId" * 3
DEPLOYMENT, NAME, RELAY = "depl0001", "srj-s-User0001", "jobscribe-relay-depl0001"
SPAN = (200_000, 200_099) if os.geteuid() == 0 else None
#: Calls of the fake daemon are fast.
WAIT_SECS = 10.0


class House:
    """The parts of a Docker driver. Log lines and host reports are kept."""

    def __init__(self, root: Path, fake: FakeDocker) -> None:
        self.root, self.fake = root, fake
        self.lines: list[str] = []
        self.records: list[Record] = []
        self._direct = Direct(self)
        self.hosts: list[tuple[str, ...]] = []
        self.address: dict[str, Any] = {
            "agentsUrl": "ws://127.0.0.1:9000/agent",
            "agentsCa": None,
            "pingSecs": 10,
            "pingTimeoutSecs": 5,
        }
        self.drivers: list[DockerDriver] = []
        self.pool = Pool(
            hosts=(
                PoolHost(
                    name="a", address=fake.address, cpu=4, memory_mb=8192, sequential=3, parallel=2
                ),
            ),
            image="lab:1",
            pull="never",
            unix_users=SPAN,
            log_driver="json-file",
            sequential=Limits(memory_mb=300),
            parallel=Limits(memory_mb=600),
            call_secs=5,
        )

    def write(self, record: Record) -> None:
        self.records.append(record)
        self._direct.write(record)

    def put(self, text: str) -> None:
        self.lines.append(text)

    def host(self, *said: str) -> None:
        self.hosts.append(said)

    def driver(
        self, *, watch: bool = True, deployment: str = DEPLOYMENT, **more: Any
    ) -> DockerDriver:
        log = Log("supervisor", Redactor([TOKEN, AGENT_ID]), self)
        driver = DockerDriver(
            msgspec.structs.replace(self.pool, **more),
            self.root,
            str(self.root / "user"),
            deployment=deployment,
            address=lambda: self.address,
            log=log,
            redactor=log.redactor,
            reporter=self,
            agent_settings={"apps": ["myapp"]},  # type: ignore[arg-type]
            keeper_settings={
                "outputCap": {"head": 1, "tail": 2},
                "cgroups": {"use": "auto", "pids": 0},
            },
        )
        self.drivers.append(driver)
        if watch:
            driver.watch()
        return driver

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def ends(self, key: AgentKey = KEY) -> list[dict[str, Any]]:
        """Return the records in the agent's `container.log`."""
        file = self.root / "agent" / str(key) / "container.log"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def agents(self) -> dict[str, str]:
        return {
            c.name: c.status
            for c in self.fake.containers.values()
            if c.labels.get(names.PART) == "agent"
        }


@pytest.fixture
async def house(fake: FakeDocker, tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path / "root", fake)
    house.root.mkdir()
    yield house
    fake.relent()
    for driver in house.drivers:
        await driver.close()


@pytest.fixture
def obedient(fake: FakeDocker) -> Iterator[FakeDocker]:
    """Make keepers exit on SIGTERM."""
    happened = fake.happened

    def ends(c: Container, action: str, **more: str) -> None:
        happened(c, action, **more)
        if action == "kill" and more["signal"] == "15":
            fake.finish(c.id, 0)

    fake.happened = ends  # type: ignore[method-assign]
    return fake


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_SECS):
        while not true():
            await asyncio.sleep(0.01)


def spec(key: AgentKey = KEY) -> AgentSpec:
    return AgentSpec(key=key, agent_id=AGENT_ID, token=TOKEN)


def other(
    fake: FakeDocker, name: str = NAME, *, status: str = "running", deployment: str = "depl0002"
) -> Container:
    """Create a container of another deployment with our container's name."""
    made = fake.made(
        name, {"Image": "lab:1", "Labels": names.agent_labels(deployment, KEY, "x" * 32, 0)}
    )
    made.status = status
    return made


# ---- start


async def test_what_is_started(house: House) -> None:
    handle = await house.driver().start(spec())
    c = house.fake.get(NAME)
    assert handle == {
        "host": "a",
        "id": c.id,
        "name": NAME,
        "kind": "sequential",
        "key": str(KEY),
        "startedAt": int(c.labels["jobscribe.started"]),
    }
    host, folder, home = (
        c.config["HostConfig"],
        f"{house.root}/agent/{KEY}",
        f"{house.root}/user/User0001",
    )
    assert c.config["Cmd"] == ["keeper", "--root", str(house.root), "--folder", folder]
    assert c.config["Image"] == house.fake.images["lab:1"]
    assert [m["Source"] for m in host["Mounts"]] == [folder, home, "jobscribe-links-depl0001"]
    assert (host["Memory"], host["NetworkMode"], host["LogConfig"]["Type"]) == (
        300 * 2**20,
        "none",
        "json-file",
    )
    if SPAN is not None:
        assert c.config["User"] == "200000:200000"
        assert [os.stat(p).st_uid for p in (folder, home)] == [200_000] * 2
    assert [os.stat(p).st_mode & 0o777 for p in (folder, home)] == [0o700] * 2


async def test_the_token_travels_by_stdin_alone(house: House) -> None:
    await house.driver().start(spec())
    await until(lambda: house.fake.get(NAME).stdin.endswith(b"\n"))
    line = house.fake.get(NAME).stdin
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "outputCap": {"head": 1, "tail": 2},
        "cgroups": {"use": "auto", "pids": 0},
        "root": str(house.root),
        "folder": f"{house.root}/agent/{KEY}",
        "agent": {
            "agentKey": str(KEY),
            "agentId": AGENT_ID,
            "token": TOKEN,
            "addressFile": "/run/jobscribe/agents.json",
            "cacheDir": f"{house.root}/agent/{KEY}",
            "apps": ["myapp"],
            "home": f"{house.root}/user/User0001",
        },
    }
    seen = json.dumps(house.fake.bodies, default=str) + "".join(house.fake.calls) + house.log
    for secret in (TOKEN, AGENT_ID):
        assert secret not in seen
    files = [p.read_bytes() for p in house.root.rglob("*") if p.is_file()]
    # without root, there are no unix users to store
    assert bool(files) == (os.geteuid() == 0) and not any(TOKEN.encode() in f for f in files)


async def test_the_line_by_which_guides_find_it_and_how_to_do_it_by_hand(house: House) -> None:
    await house.driver().start(spec())
    line = next(
        x for x in house.lines if "DockerDriver(a=AbCd k=sequential u=User []) running: " in x
    )
    words = shlex.split(line.partition(" running: ")[2])
    assert words[:6] == ["docker", "--host", house.fake.address, "run", "-d", "--name"]
    assert words[6] == NAME and "--cap-drop=ALL" in words and "--read-only" in words


async def test_starts_of_one_agent_at_once_give_one(house: House) -> None:
    driver = house.driver()
    handles = await asyncio.gather(*(driver.start(spec()) for _ in range(5)))
    assert [h["id"] for h in handles] == [handles[0]["id"]] * 5
    assert len(house.fake.called("POST /containers/create.*srj-s")) == 1


async def test_starts_of_many_users_take_their_turn(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each start could time out, and other requests would wait behind all starts."""
    driver, now, most = house.driver(), 0, 0
    made = container_start.create_container

    async def counted(*args: Any) -> str:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        try:
            await asyncio.sleep(0.01)
            return await made(*args)
        finally:
            now -= 1

    monkeypatch.setattr(container_start, "create_container", counted)
    keys = [
        AgentKey("docker", "sequential", f"User{n:04d}", "a") for n in range(4 * STARTS_AT_ONCE)
    ]
    await asyncio.gather(*(driver.start(spec(key)) for key in keys))
    assert 1 < most <= STARTS_AT_ONCE and len(house.agents()) == len(keys)


async def test_an_agent_that_runs_is_adopted_by_the_next_supervisor(house: House) -> None:
    first = await house.driver().start(spec())
    again = house.driver()
    assert await again.start(spec()) == first
    assert (await again.find(first)).state == "alive"
    assert house.agents() == {NAME: "running"}


async def test_what_is_left_of_an_earlier_start_is_looked_at_and_removed(house: House) -> None:
    first = await house.driver(watch=True).start(spec())
    await house.drivers[0].close()
    house.fake.finish(NAME, 5)
    house.fake.get(NAME).logs = b"jobscribe keeper: its folder is full\n"
    second = await house.driver().start(spec())
    assert second["id"] != first["id"] and house.agents() == {NAME: "running"}
    (end,) = house.ends()
    assert (end["id"], end["exitCode"], end["lastLines"]) == (
        first["id"],
        5,
        ["jobscribe keeper: its folder is full"],
    )
    assert (
        "its keeper could not use its folder (exit code 5); its last line: jobscribe keeper: its folder is full"
        in house.log
    )


async def test_one_that_was_made_and_never_started_is_removed(house: House) -> None:
    left = house.fake.made(
        NAME, {"Image": "lab:1", "Labels": names.agent_labels(DEPLOYMENT, KEY, AGENT_ID, 0)}
    )
    handle = await house.driver().start(spec())
    assert handle["id"] != left.id and house.agents() == {NAME: "running"}
    assert "its container was created, but never started" in house.log


async def test_a_name_that_another_deployment_has_gets_ours_behind_it(house: House) -> None:
    theirs = other(house.fake)
    driver = house.driver()
    handle = await driver.start(spec())
    assert handle["name"] == f"{NAME}-depl0001" and house.agents() == {
        NAME: "running",
        f"{NAME}-depl0001": "running",
    }
    assert "the container name srj-s-User0001 is used by another deployment" in house.log
    assert await driver.start(spec()) == handle
    house.fake.vanish(theirs.id)
    assert await house.driver().start(spec()) == handle, "there are two of them now"


@pytest.mark.parametrize("status", ["exited", "created", "running"])
async def test_what_is_another_deployments_is_not_touched(
    house: House, status: str, obedient: FakeDocker
) -> None:
    theirs = other(house.fake, status=status)
    driver = house.driver()
    handle = await driver.start(spec())
    await driver.stop(handle, 1)
    await driver.stop({**handle, "id": theirs.id}, 0.1)
    assert house.agents() == {NAME: status} and theirs.signals == []
    assert not house.fake.called(f"(POST|DELETE) /containers/{theirs.id}")


async def test_a_host_that_is_down_is_said(house: House) -> None:
    house.fake.close()
    driver = house.driver()
    with pytest.raises(Refusal) as refused:
        await driver.start(spec())
    house.fake.reopen()
    assert refused.value.code == "agentUnavailable" and refused.value.sentence.startswith("host a ")
    assert (
        house.hosts[0][:3] == ("docker", "a", "down")
        and house.hosts[0][3] == refused.value.sentence
    )


async def test_a_host_that_is_not_in_the_pool_is_said(house: House) -> None:
    with pytest.raises(Refusal, match="agentUnavailable: there is no host z in the pool"):
        await house.driver().start(spec(AgentKey("docker", "parallel", "User0001", "z")))


async def test_an_image_that_is_missing_is_said_at_a_start_and_at_a_check(house: House) -> None:
    house.fake.images.clear()
    driver = house.driver()
    with pytest.raises(Refusal, match=r"agentUnavailable.*image lab:1 is not on host a") as refused:
        await driver.start(spec())
    assert await driver.check() == [refused.value.sentence]


async def test_a_check_says_which_networks_of_others_have_addresses_of_gangs(house: House) -> None:
    driver = house.driver()
    assert await driver.check() == []
    ours = names.labels(driver.deployment, "network")
    for name, subnets, labels in (
        ("bridge", ["172.17.0.0/16", "fd00::/64"], None),
        ("ours", ["10.208.4.0/22"], ours),
        ("within", ["10.208.0.0/24"], {}),
        ("around", ["10.0.0.0/8"], {}),
        ("none", [], None),
    ):
        house.fake.networks[name] = {
            "Name": name,
            "Id": name,
            "Containers": {},
            "Labels": labels,
            "IPAM": {"Config": [{"Subnet": s} for s in subnets]},
        }
    said = await driver.check()
    assert (
        len(said) == 2
        and "within uses 10.208.0.0/24" in said[0]
        and "around uses 10.0.0.0/8" in said[1]
    )
    assert all("host a" in s and "`taskSubnets`" in s for s in said), said


async def test_a_start_that_the_engine_refuses_leaves_nothing(house: House) -> None:
    driver = house.driver()
    await driver.start(spec(AgentKey("docker", "parallel", "User0001", "a")))
    house.fake.trouble(
        "POST /containers/[^/]+/start",
        "fail",
        said="OCI runtime create failed: no such file",
        times=2,
    )
    with pytest.raises(Refusal, match=r"agentUnavailable: host a.*OCI runtime create failed"):
        await driver.start(spec())
    assert house.agents() == {"srj-p-User0001": "running"}
    assert (await driver.start(spec()))["name"] == NAME


RUNTIME = "OCI runtime create failed: error during container init: error running hook #0"


@pytest.mark.parametrize("times", [1, 2])
async def test_a_start_whose_runtime_fails_is_repeated_once(house: House, times: int) -> None:
    driver = house.driver()
    await driver.start(spec(AgentKey("docker", "parallel", "User0001", "a")))
    house.fake.trouble("POST /containers/[^/]+/start", "fail", said=RUNTIME, times=times)
    if times == 1:
        assert (await driver.start(spec()))["name"] == NAME and house.agents()[NAME] == "running"
    else:
        with pytest.raises(Refusal, match="error running hook"):
            await driver.start(spec())
        assert NAME not in house.agents()


async def test_a_relay_whose_runtime_fails_is_started_again(house: House) -> None:
    house.fake.trouble("POST /containers/[^/]+/start", "fail", said=RUNTIME, times=1)
    assert (await house.driver().start(spec()))["name"] == NAME


async def test_a_start_whose_outcome_nobody_heard_of_is_found_by_the_next(house: House) -> None:
    driver = house.driver()
    await driver.start(spec(AgentKey("docker", "parallel", "User0001", "a")))
    house.fake.trouble("POST /containers/[^/]+/start", "lost", times=1)
    with pytest.raises(Refusal):
        await driver.start(spec())
    assert house.agents()[NAME] == "running"
    await until(lambda: driver.engines["a"].up)
    assert (await driver.start(spec()))["id"] == house.fake.get(NAME).id


async def test_a_host_without_journald_is_told_once_and_remembered(house: House) -> None:
    driver = house.driver(log_driver="auto")
    said = "failed to initialize logging driver: journald is not enabled on this host"
    house.fake.trouble("POST /containers/[^/]+/start", "fail", said=said, times=1)
    await driver.start(spec())
    await driver.start(spec(AgentKey("docker", "parallel", "User0001", "a")))
    made = [
        b["HostConfig"]["LogConfig"]["Type"]
        for call, b in house.fake.bodies
        if "/containers/create" in call
    ]
    assert made == [
        "journald",
        "json-file",
        "json-file",
        "json-file",
    ]  # the relay twice, then both agents
    assert house.log.count("journald is not available") == 1


async def test_a_host_with_journald_has_the_ids_as_fields(house: House) -> None:
    await house.driver(log_driver="auto").start(spec())
    assert house.fake.get(NAME).config["HostConfig"]["LogConfig"] == {
        "Type": "journald",
        "Config": {"labels": "jobscribe.jid,jobscribe.op,jobscribe.uid,jobscribe.agent"},
    }


# ---- ends


async def test_why_it_died_is_kept_the_moment_it_dies(house: House) -> None:
    driver = house.driver()
    handle = await driver.start(spec())
    house.fake.get(NAME).logs = b"one\ntwo " + TOKEN.encode() + b"\n"
    house.fake.finish(NAME, 137, oom=True)
    await until(lambda: house.ends() and not house.agents())
    (end,) = house.ends()
    assert {
        k: end[k]
        for k in (
            "id",
            "host",
            "name",
            "exitCode",
            "signal",
            "oomKilled",
            "oomEvents",
            "stopped",
            "lastLines",
        )
    } == {
        "id": handle["id"],
        "host": "a",
        "name": NAME,
        "exitCode": 137,
        "signal": 9,
        "oomKilled": True,
        "oomEvents": 1,
        "stopped": False,
        "lastLines": ["one", "two <REDACTED>"],
    }
    sentence = "memory ran out, so the kernel killed one of its processes: the keeper; its last line: two <REDACTED>"
    assert end["sentence"] == sentence and sentence in house.log
    assert await driver.find(handle) == Found(state="gone", detail=sentence)
    later = house.driver()
    assert await later.find(handle) == Found(state="gone", detail=sentence), (
        "the next supervisor does not know why"
    )


async def test_evidence_comes_before_the_removal(house: House) -> None:
    driver = house.driver()
    handle = await driver.start(spec())
    house.fake.trouble("DELETE /containers/", "fail", times=1)
    house.fake.finish(NAME, 3)
    await until(lambda: house.fake.called("DELETE /containers/"))
    assert house.agents() == {NAME: "exited"}
    async with asyncio.timeout(WAIT_SECS):
        while house.agents():  # each `find` retries the removal
            assert await driver.find(handle) == Found(
                state="gone", detail="another keeper uses its folder (exit code 3)"
            )
    assert len(house.ends()) == 1 and "could not be removed" in house.log
    calls = house.fake.calls
    assert next(i for i, c in enumerate(calls) if "/logs" in c) < next(
        i for i, c in enumerate(calls) if c.startswith("DELETE")
    )


async def test_a_look_that_is_over_is_no_news(house: House) -> None:
    """A caller in a loop would otherwise get the old result forever, and block the event loop."""
    driver = house.driver()
    handle = await driver.start(spec())
    over: asyncio.Task[str | None] = asyncio.create_task(asyncio.sleep(0, "old news"))
    await over
    driver.reaper._running[handle["id"]] = over
    assert (await driver.find(handle)).state == "alive"


async def test_memory_that_ran_out_is_counted_while_it_runs(house: House) -> None:
    driver = house.driver()
    handle = await driver.start(spec())
    await until(lambda: driver.engines["a"].up and house.fake.called("GET /events"))
    c = house.fake.get(NAME)
    for _ in range(3):
        house.fake.happened(c, "oom")
    house.fake.finish(NAME, 0)
    await until(lambda: house.ends())
    assert house.ends()[0]["oomEvents"] == 3
    assert "memory ran out" in (await driver.find(handle)).detail


async def test_one_that_somebody_removed_is_gone(house: House) -> None:
    driver = house.driver()
    handle = await driver.start(spec())
    house.fake.trouble(
        f"GET /containers/{handle['id']}/json",
        "fail",
        status=404,
        said="No such container",
        times=1,
    )
    house.fake.vanish(NAME)
    for _ in range(2):
        found = await driver.find(handle)
        assert (found.state, found.detail) == ("gone", "its container was removed from outside")
    # the next keeper tells it to the jobs that ran there
    assert [(e["id"], e["sentence"]) for e in house.ends()] == [(handle["id"], found.detail)]


async def test_the_end_of_one_that_is_removed_at_once_is_stored_by_its_event(house: House) -> None:
    driver = house.driver()
    handle = await driver.start(spec())
    await until(lambda: driver.engines["a"].up and house.fake.called("GET /events"))
    house.fake.vanish(NAME)
    await until(house.ends)  # nobody asks for it
    said = [(e["id"], e["name"], e["host"], e["sentence"]) for e in house.ends()]
    assert said == [(handle["id"], NAME, "a", "its container was removed from outside")]


@pytest.mark.parametrize("trouble", ["fail", "disconnect", "hang"])
async def test_who_cannot_be_asked_is_called_neither_gone_nor_alive(
    house: House, trouble: str
) -> None:
    driver = house.driver(call_secs=0.5)
    handle = await driver.start(spec())
    house.fake.trouble("GET /containers/.*/json", trouble)
    assert (await driver.find(handle)).state == "unknown"
    with pytest.raises(Refusal, match="agentUnavailable"):
        await driver.stop(handle, 0.1)
    house.fake.relent()
    await until(lambda: driver.engines["a"].up)
    assert (await driver.find(handle)).state == "alive"


async def test_with_the_host_down_nobody_waits_for_the_answer(house: House) -> None:
    driver = house.driver(call_secs=60)
    handle = await driver.start(spec())
    house.fake.close()
    await driver.find(handle)  # the call makes the engine notice the failure sooner
    await until(lambda: not driver.engines["a"].up)
    async with asyncio.timeout(5):
        found = await driver.find(handle)
    assert found.state == "unknown" and found.detail.startswith("host a ")
    house.fake.reopen()
    await until(lambda: driver.engines["a"].up)
    assert (await driver.find(handle)).state == "alive"


@pytest.mark.parametrize(
    "handle",
    [
        {},
        {"host": "a"},
        {"host": "z", "id": "1" * 64},
        {"host": 7, "id": 7},
        {"host": "a", "id": ""},
    ],
)
async def test_a_handle_that_says_too_little_is_answered(house: House, handle: Handle) -> None:
    assert (await house.driver().find(handle)).state == "unknown"


async def test_a_forged_record_does_no_harm(house: House) -> None:
    """The folder belongs to the user, so a job can write arbitrary data there."""
    driver = house.driver()
    handle = await driver.start(spec())
    log = house.root / "agent" / str(KEY) / "container.log"
    log.write_bytes(b'\xff\n[]\n{"id": 7}\n' + json.dumps({"id": handle["id"]}).encode() + b"\n")
    house.fake.vanish(NAME)
    await until(lambda: not house.agents())
    assert (await house.driver().find(handle)).detail == "its container was removed from outside"


async def test_a_link_in_the_place_of_the_record_is_not_followed(
    house: House, tmp_path: Path
) -> None:
    driver = house.driver()
    handle = await driver.start(spec())
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (house.root / "agent" / str(KEY) / "container.log").symlink_to(victim)
    house.fake.finish(NAME, 1)
    await until(lambda: not house.agents())
    assert (
        victim.read_text() == "precious"
        and "could not be written into its agent's folder" in house.log
    )
    assert (await driver.find(handle)).detail == "its keeper ended (exit code 1)"


# ---- stop


async def test_a_stop_begins_with_sigterm(house: House, obedient: FakeDocker) -> None:
    driver = house.driver()
    handle = await driver.start(spec())
    c = house.fake.get(NAME)
    for _ in range(2):
        await driver.stop(handle, 30)
    assert c.signals == [15] and not house.agents()
    assert [(e["stopped"], e["sentence"]) for e in house.ends()] == [(True, "it was stopped")]
    assert (await driver.find(handle)).detail == "it was stopped"


async def test_who_does_not_listen_is_killed_after_its_grace(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobscribe.drivers.docker.agents.driver._KEEPER_EXTRA_SECS", 0.2)
    driver = house.driver()
    handle = await driver.start(spec())
    c = house.fake.get(NAME)
    began = asyncio.get_running_loop().time()
    await driver.stop(handle, 0.6)
    assert asyncio.get_running_loop().time() - began >= 0.8
    assert (
        c.signals[0] == 15 and c.signals[-1] == 9 and c.signals.count(9) == 1 and not house.agents()
    )
    assert house.ends()[0]["sentence"] == "it was stopped, by signal 9 (SIGKILL)"


async def test_a_signal_that_came_too_early_is_sent_again(house: House) -> None:
    """The kernel drops a signal to process 1 until the process has a handler for it."""
    driver = house.driver()
    handle = await driver.start(spec())
    c = house.fake.get(NAME)

    def listens_now(container: Container, action: str, **more: str) -> None:
        happened(container, action, **more)
        if c.signals == [15, 15]:
            house.fake.finish(NAME, 0)

    happened, house.fake.happened = house.fake.happened, listens_now  # type: ignore[method-assign]
    await driver.stop(handle, 30)
    assert c.signals == [15, 15]


# ---- host monitoring


async def test_what_ended_while_nobody_looked_is_found(house: House) -> None:
    first = house.driver()
    dead = await first.start(spec())
    alive = await first.start(spec(AgentKey("docker", "parallel", "User0001", "a")))
    await first.close()
    house.fake.made(
        "srj-s-User0009",
        {
            "Image": "lab:1",
            "Labels": names.agent_labels(
                DEPLOYMENT, AgentKey("docker", "sequential", "User0009", "a"), AGENT_ID, 0
            ),
        },
    )
    theirs = other(house.fake, "theirs", status="exited")
    house.fake.finish(dead["id"], 137)
    later = house.driver()
    await until(lambda: house.agents() == {"srj-p-User0001": "running", theirs.name: "exited"})
    assert house.ends()[0]["id"] == dead["id"]
    assert (await later.find(alive)).state == "alive"


async def test_hosts_are_told_of_to_everybody(house: House) -> None:
    heard: list[tuple[Any, ...]] = []

    class Ear:
        def on_state(self, *said: Any) -> None:
            heard.append(("state", *said[:2]))

        def on_event(self, host: str, event: dict[str, Any]) -> None:
            heard.append(("event", host, event["Action"]))

        def on_sync(self, host: str) -> None:
            heard.append(("sync", host))

    driver = house.driver(watch=False)
    driver.listen(Ear())
    driver.watch()
    await driver.start(spec())
    await until(lambda: ("sync", "a") in heard and ("event", "a", "start") in heard)
    assert heard[0] == ("state", "a", True)
    house.fake.close()
    # the call makes the engine notice the failure sooner
    await driver.find({"host": "a", "id": "1" * 64})
    await until(lambda: ("state", "a", False) in heard)
    house.fake.reopen()
    assert [h[:3] for h in house.hosts] == [("docker", "a", "up"), ("docker", "a", "down")]


# ---- relays


def relays(fake: FakeDocker) -> dict[str, str]:
    return {
        c.name: c.status for c in fake.containers.values() if c.labels.get(names.PART) == "relay"
    }


async def test_one_relay_serves_a_host(house: House) -> None:
    driver = house.driver()
    keys = [
        AgentKey("docker", kind, uid, "a")
        for kind in ("sequential", "parallel")
        for uid in ("User0001", "User0002")
    ]
    await asyncio.gather(*(driver.start(spec(k)) for k in keys))
    assert (
        relays(house.fake) == {RELAY: "running"} and len(house.fake.called(f"create.*{RELAY}")) == 1
    )
    c = house.fake.get(RELAY)
    assert json.loads(c.config["Cmd"][1]) == {
        "url": "ws://127.0.0.1:9000/agent",
        "connect": "127.0.0.1:9000",
        "ca": None,
        "pingSecs": 10,
        "pingTimeoutSecs": 5,
    }
    assert c.config["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert list(house.fake.volumes) == ["jobscribe-links-depl0001"]


async def test_the_next_supervisor_takes_the_relay_over(house: House) -> None:
    await house.driver().start(spec())
    await house.drivers[0].close()
    before = house.fake.get(RELAY).id
    await house.driver().start(spec(AgentKey("docker", "parallel", "User0001", "a")))
    assert house.fake.get(RELAY).id == before and len(house.fake.called(f"create.*{RELAY}")) == 1


@pytest.mark.parametrize("change", ["address", "image", "ca", "supervisor"])
async def test_a_relay_for_another_address_or_of_another_image_is_replaced(
    house: House, change: str, tmp_path: Path
) -> None:
    await house.driver().start(spec())
    await house.drivers[0].close()
    before, more = house.fake.get(RELAY).id, {}
    match change:
        case "address":
            house.address = {**house.address, "agentsUrl": "ws://127.0.0.1:9001/agent"}
        case "image":
            house.fake.images["lab:1"] = "sha256:" + "2" * 64
        case "ca":
            (tmp_path / "ca.pem").write_text("PEM")
            house.address = {
                **house.address,
                "agentsUrl": "wss://jobs.example/agent",
                "agentsCa": str(tmp_path / "ca.pem"),
            }
        case _:
            more = {"supervisor": "10.0.0.7:77"}
    await house.driver(**more).start(spec(AgentKey("docker", "parallel", "User0001", "a")))
    c = house.fake.get(RELAY)
    assert c.id != before and relays(house.fake) == {RELAY: "running"}
    said = json.loads(c.config["Cmd"][1])
    assert (said["connect"], said["ca"]) == {
        "address": ("127.0.0.1:9001", None),
        "image": ("127.0.0.1:9000", None),
        "ca": ("jobs.example:443", "PEM"),
        "supervisor": ("10.0.0.7:77", None),
    }[change]


async def test_looking_after_a_relay_pulls_nothing(house: House) -> None:
    house.fake.pullable["lab:1"] = house.fake.images["lab:1"]
    driver = house.driver(pull="always")
    await driver.start(spec())
    pulls = len(house.fake.pulls)
    assert pulls == 1
    for _ in range(3):
        driver.relays["a"].invalidate()
        await driver._ensure_relay("a")
    assert len(house.fake.pulls) == pulls and house.fake.called(f"GET /containers/{RELAY}/json")
    await driver.start(spec(AgentKey("docker", "parallel", "User0001", "a")))
    assert len(house.fake.pulls) == pulls + 1


@pytest.mark.parametrize("accident", ["finish", "vanish"])
async def test_a_relay_that_is_gone_comes_back_by_itself(house: House, accident: str) -> None:
    await house.driver().start(spec())
    await until(lambda: house.fake.called("GET /events"))
    getattr(house.fake, accident)(RELAY)
    await until(lambda: relays(house.fake) == {RELAY: "running"})


async def test_a_relay_that_cannot_be_started_again_is_replaced(house: House) -> None:
    """This happens after a crash of the daemon, when containerd still considers the id in use."""
    driver = house.driver()
    await driver.start(spec())
    before = house.fake.get(RELAY).id
    house.fake.trouble(
        f"POST /containers/{before}/start", "fail", status=500, said="id already in use"
    )
    house.fake.finish(RELAY)
    await until(
        lambda: relays(house.fake) == {RELAY: "running"} and house.fake.get(RELAY).id != before
    )
    await driver.start(spec(AgentKey("docker", "parallel", "User0001", "a")))


async def test_the_relay_of_another_deployment_is_let_be(house: House) -> None:
    await house.driver().start(spec())
    before = house.fake.get(RELAY).id
    await house.driver(deployment="depl0002").start(
        spec(AgentKey("docker", "sequential", "User0002", "a"))
    )
    assert (
        relays(house.fake) == {RELAY: "running", "jobscribe-relay-depl0002": "running"}
        and house.fake.get(RELAY).id == before
    )


# ---- the rest of the contract


async def test_places_of_containers_are_somebody_elses(house: House) -> None:
    asked: list[tuple[Any, ...]] = []

    class Places:
        async def open(self, key: AgentKey) -> Handle:
            asked.append(("open", key))
            return {"place": 7}

        async def find(self, key: AgentKey, handle: Handle) -> Found:
            asked.append(("find", key, handle["place"]))
            return Found(state="alive")

        async def close_place(self, key: AgentKey) -> None:
            asked.append(("close", key))

    key = AgentKey("docker", "container", "User0001", "a")
    driver = house.driver()
    with pytest.raises(Refusal, match="the task driver for containers is not running"):
        await driver.start(spec(key))
    driver.places = Places()
    handle = await driver.start(spec(key))
    assert handle == {"place": 7, "host": "a", "kind": "container", "key": str(key)}
    assert (await driver.find(handle)).state == "alive"
    await driver.stop(handle, 1)
    assert asked == [("open", key), ("find", key, 7), ("close", key)]
    assert not house.fake.called("POST /containers")


async def test_hosts_add_up(house: House) -> None:
    two = tuple(msgspec.structs.replace(house.pool.hosts[0], name=n) for n in "ab")
    driver = house.driver(watch=False, hosts=two)
    assert (driver.capacity().sequential, driver.capacity().parallel) == (6, 4)


async def test_a_check_names_the_host(house: House) -> None:
    two = (
        house.pool.hosts[0],
        msgspec.structs.replace(
            house.pool.hosts[0], name="b", address="unix:///nowhere/docker.sock"
        ),
    )
    said = await house.driver(hosts=two).check()
    assert len(said) == 1 and "host b" in said[0]
    assert await house.driver().check() == []


async def test_lines_about_an_agent_carry_its_ids(house: House) -> None:
    await house.driver().start(spec())
    house.fake.finish(NAME, 137, oom=True)
    await until(lambda: house.ends() and not house.agents())
    for module in ("container_start", "container_reaper"):
        found = [r for r in house.records if f"/{module}.py" in r.where]
        assert found, module
        for record in found:
            assert agent_log_ids(KEY).items() <= record.ids.items(), record
