"""Agents on a login node, with real keepers: detached, one per key, found again and ended; effects
of a sign-in; log lines and stored data.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sbatch_agents import AGENT_ID, KEY, SPEC, TOKEN, SbatchAgents, Ssh, made_ground, until

from jobscribe.drivers.contracts import Found
from jobscribe.drivers.sbatch.login_node import site as sites
from jobscribe.protocol.clusters.batch import BatchRequest
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey
from jobscribe.runtime import processes

pytestmark = pytest.mark.process


@pytest.fixture
async def batch_site() -> AsyncIterator[SbatchAgents]:
    async with made_ground() as made:
        yield made


async def signed_in(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> tuple[Any, Ssh]:
    """Return a driver of a cluster with sign-in, and the user's channel. It uses this machine's
    code; test_code_archive tests the transfer.
    """
    real = sites.prepare

    async def look(channel: Any, cluster: Any, *rest: Any) -> Any:
        return await real(channel, msgspec.structs.replace(cluster, access="account"), *rest)

    monkeypatch.setattr("jobscribe.drivers.sbatch.driver.prepare", look)
    driver = batch_site.driver(batch_site.cluster(access="ssh", **more))
    channel = Ssh()
    await sign_in(driver, channel, monkeypatch)
    return driver, channel


async def sign_in(driver: Any, channel: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: Any) -> Ssh:
        return channel

    monkeypatch.setattr("jobscribe.drivers.sbatch.ssh.sign_in.connect", connect)
    await driver.sign_in(KEY.uid, "hpc", object())


async def refused(code: str, doing: Any) -> str:
    with pytest.raises(Refusal) as e:
        await doing
    assert e.value.code == code
    return e.value.sentence


# ---- the keeper


@dataclass
class Start:
    """One start that several tests inspect. `said` has the requests on the login node by verb;
    `seen` has the process texts that showed a secret.
    """

    batch_site: SbatchAgents
    handle: dict[str, Any]
    said: dict[str, Any]
    seen: list[bytes]


@pytest.fixture(scope="module")
def first() -> Iterator[Start]:
    """Start in a folder that others can write to but not move our files in (sticky), as a user with
    a permissive umask, with an earlier agent's log present.
    """
    said: dict[str, Any] = {}
    real = sites.call

    async def ask(
        channel: Any, cluster: Any, site: Any, verb: str, request: dict[str, Any], *more: Any
    ) -> dict[str, Any]:
        said[verb] = request
        return await real(channel, cluster, site, verb, request, *more)

    with (
        asyncio.Runner(loop_factory=asyncio.new_event_loop) as loop,
        pytest.MonkeyPatch.context() as patch,
    ):
        making = made_ground()
        batch_site = loop.run(making.__aenter__())
        try:
            batch_site.scratch.chmod(0o1777)
            batch_site.base.mkdir()
            (batch_site.base / "job_agent.log").write_text(f"of an earlier one {TOKEN}\n")
            patch.setattr("jobscribe.drivers.sbatch.driver.call", ask)
            driver = batch_site.driver(batch_site.cluster(users={"another0": "ann"}))
            before = os.umask(0)
            try:
                with watched() as seen:
                    handle = loop.run(driver.start(SPEC))
            finally:
                os.umask(before)
            yield Start(batch_site, handle, said, seen)
        finally:
            loop.run(making.__aexit__(None, None, None))


@contextlib.contextmanager
def watched() -> Iterator[list[bytes]]:
    """Watch all processes; yield the list of arguments and environments that showed a
    secret.
    """
    seen, over, before = [], threading.Event(), set(os.listdir("/proc"))

    def watch() -> None:
        while not over.wait(0.001):
            for pid in (p for p in os.listdir("/proc") if p.isdigit() and p not in before):
                text = processes._read(f"/proc/{pid}/cmdline") + processes._read(
                    f"/proc/{pid}/environ"
                )
                if TOKEN.encode() in text or AGENT_ID.encode() in text:
                    seen.append(text)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def test_the_keeper_is_detached_and_has_nothing_of_the_channel(first: Start) -> None:
    batch_site, pid = first.batch_site, first.handle["pid"]
    assert os.getsid(pid) == pid != os.getsid(0)
    descriptors = {n: os.readlink(f"/proc/{pid}/fd/{n}") for n in ("0", "1", "2")}
    assert descriptors == {
        "0": "/dev/null",
        "1": str(batch_site.base / "job_agent.log"),
        "2": str(batch_site.base / "job_agent.log"),
    }
    assert not any(
        "pipe:" in os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")
    )
    (agent,) = batch_site.agents()
    assert {n: os.readlink(f"/proc/{agent}/fd/{n}") for n in descriptors} == descriptors


def test_folders_and_files_are_the_users_alone(first: Start) -> None:
    for path in (first.batch_site.base, *first.batch_site.base.rglob("*")):
        with contextlib.suppress(
            FileNotFoundError
        ):  # a file that is being rewritten has a temporary name
            assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path


def test_no_secret_is_in_an_argument_an_environment_or_a_file(first: Start) -> None:
    assert not first.seen
    texts = {}
    for path in first.batch_site.root.rglob("*"):
        if path.is_file() and path.name != "job_agent.log":
            with contextlib.suppress(FileNotFoundError):
                texts[path] = path.read_bytes()
    log = (
        (first.batch_site.base / "job_agent.log").read_bytes().partition(b"\n")[2]
    )  # the first line belongs to an earlier agent
    assert log and any(KEY.uid.encode() in text for text in texts.values())
    assert [
        path
        for path, text in {**texts, "log": log}.items()
        if TOKEN.encode() in text or AGENT_ID.encode() in text
    ] == []


def test_the_watcher_sees_what_stands_in_an_environment() -> None:
    with (
        watched() as seen,
        subprocess.Popen(["sleep", "60"], env={**os.environ, "CONFIG": TOKEN}) as child,
    ):
        deadline = time.monotonic() + 30
        while not seen and time.monotonic() < deadline:
            time.sleep(0.01)
        child.kill()
    assert seen


def test_the_agent_is_told_what_batch_runs_need(first: Start) -> None:
    batch_site, agent = first.batch_site, first.said["start"]["config"]["agent"]
    assert agent["batch"]["deployment"] == "test" and agent["batch"]["cluster"]["name"] == "hpc"
    assert "ann" not in json.dumps(agent)
    assert agent["paths"] == [[str(batch_site.root / "user"), str(batch_site.base / "user")]]


async def test_a_keeper_that_finds_its_lease_taken_ends_with_its_agent(
    batch_site: SbatchAgents,
) -> None:
    """Until the lease is taken, the keeper replaces its agent on its own."""
    driver = batch_site.driver()
    handle = await driver.start(SPEC)
    await driver.close()
    (agent,) = batch_site.agents()
    os.kill(agent, signal.SIGKILL)
    await until(lambda: batch_site.agents() not in ([], [agent]), "another agent")
    driver = batch_site.driver()
    assert (await driver.find(handle)).state == "alive"
    own = json.loads((batch_site.folder() / "lease" / "1").read_text())
    (batch_site.folder() / "lease" / "2").write_text(
        json.dumps({**own, "number": 2, "life": "b", "machine": "b", "host": "login2"})
    )
    await until(
        lambda: not batch_site.keepers() and not batch_site.agents(), "the end of keeper and agent"
    )
    assert (await driver.find(handle)).state == "gone"


# ---- ends


async def _not_connected() -> bool:
    return False


async def test_signing_out_ends_the_agent_with_its_keeper_and_forgets_the_connection(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, channel = await signed_in(batch_site, monkeypatch)
    handle = await driver.start(SPEC)
    ways: list[str | None] = []

    async def dismiss() -> bool:
        ways.append(driver.needs_sign_in(KEY))
        return False

    assert await driver.sign_out(KEY, handle, dismiss)
    assert ways[0] is not None, "a run that waits does not start it again meanwhile"
    assert not batch_site.keepers() and not batch_site.agents()
    assert (
        channel.closed
        and driver.needs_sign_in(KEY) is not None
        and driver.signed_in_as(KEY) is None
    )
    found = await driver.find(handle)
    assert (found.state, found.sign_in) == ("unknown", True)
    assert not await driver.sign_out(KEY, handle, _not_connected), (
        "nobody knows: there is no way there any more"
    )
    await sign_in(driver, Ssh(), monkeypatch)
    assert (await driver.find(handle)).state == "gone"


async def test_an_agent_without_a_supervisor_ends_by_itself_and_its_keeper_with_it(
    batch_site: SbatchAgents,
) -> None:
    driver = batch_site.driver()
    driver._agent_settings["awaySecs"] = 0.1
    handle = await driver.start(SPEC)
    await until(
        lambda: not batch_site.keepers() and not batch_site.agents(), "the end of keeper and agent"
    )
    assert (
        "no supervisor for"
        in (batch_site.folder() / "agent.log").read_text()
        + (batch_site.base / "job_agent.log").read_text()
    )
    assert (await driver.find(handle)).state == "gone"
    assert (await driver.start(SPEC))["number"] == 2


# ---- one per key


async def test_many_starts_at_once_make_one(batch_site: SbatchAgents) -> None:
    handles = await asyncio.gather(*(batch_site.driver().start(SPEC) for _ in range(3)))
    assert len({(h["pid"], h["number"]) for h in handles}) == 1
    assert len(batch_site.keepers()) == 1 and len(batch_site.agents()) == 1


class Elsewhere:
    """A keeper on another login node: it renews its lease until it is asked to end, or stops
    renewing it.
    """

    def __init__(self, batch_site: SbatchAgents, *, obeys: bool = False) -> None:
        self.path = batch_site.folder() / "lease" / "3"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for folder in (batch_site.base, batch_site.folder(), batch_site.folder().parent):
            folder.chmod(0o700)
        self.obeys, self.over = obeys, threading.Event()
        self.said = {
            "number": 3,
            "pid": 77,
            "startTicks": 7,
            "bootId": "b",
            "life": "b",
            "machine": "b",
            "host": "login2",
        }
        self.write(0, "held")
        self.thread = threading.Thread(target=self._count)
        self.thread.start()

    def write(self, count: int, state: str) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(
            fd,
            json.dumps({**self.said, "count": count, "state": state}).encode().ljust(1023) + b"\n",
            0,
        )
        os.close(fd)

    def _count(self) -> None:
        count = 0
        while not self.over.wait(0.1):
            count += 1
            if self.obeys and json.loads(self.path.read_text())["state"] == "asked":
                self.write(count, "released")
                return
            self.write(count, "held")

    def __enter__(self) -> "Elsewhere":
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


async def test_a_live_lease_elsewhere_is_answered_instead_of_a_second_agent(
    batch_site: SbatchAgents,
) -> None:
    driver = batch_site.driver()
    with Elsewhere(batch_site):
        handle = await driver.start(SPEC)
        assert handle["host"] == "login2" and handle["pid"] == 77
        assert not batch_site.keepers()
        assert (await driver.find(handle)).state == "alive"
    assert (await driver.find(handle)).state == "gone"
    again = await driver.start(SPEC)
    assert again["number"] == 4 and len(batch_site.keepers()) == 1


async def test_a_stop_reaches_another_login_node(batch_site: SbatchAgents) -> None:
    driver = batch_site.driver()
    with Elsewhere(batch_site, obeys=True):
        handle = await driver.start(SPEC)
        await driver.stop(handle, 1.0)
    assert json.loads((batch_site.folder() / "lease" / "3").read_text())["state"] == "released"
    assert (await driver.find(handle)).state == "gone"


async def test_an_agent_that_hangs_on_a_connection_comes_to_where_the_connection_is(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the link `ssh`, an agent on another login node would be unreachable."""
    driver, channel = await signed_in(batch_site, monkeypatch, link="ssh")
    with Elsewhere(batch_site, obeys=True):
        handle = await driver.start(SPEC)
    assert handle["number"] == 4 and handle["host"] == os.uname().nodename
    (forward,) = channel.forwards
    assert (
        forward[1:] == ("127.0.0.1", 9)
        and json.loads((batch_site.folder() / "agents.json").read_text())["link"] == forward[0]
    )
    Path(forward[0]).parent.rmdir()


@pytest.mark.parametrize("when", ["before the keeper", "with the keeper", "with the agent"])
async def test_a_start_that_is_killed_in_the_middle_leaves_one_or_none(
    batch_site: SbatchAgents, when: str
) -> None:
    driver = batch_site.driver()
    starting = asyncio.ensure_future(driver.start(SPEC))
    reached = {
        "before the keeper": lambda: batch_site.base.exists(),
        "with the keeper": lambda: bool(batch_site.keepers()),
        "with the agent": lambda: bool(batch_site.agents()),
    }[when]
    await until(reached, when)
    found = [
        p.pid
        for p in processes.table().values()
        if b"agent.login_node\0start\0" in processes._read(f"/proc/{p.pid}/cmdline")
        and p.parent == os.getpid()
    ]
    assert found or when == "with the agent"  # the start may have finished already
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    await asyncio.gather(starting, return_exceptions=True)
    handle = await driver.start(SPEC)
    assert (await driver.find(handle)).state == "alive"
    assert len(batch_site.keepers()) == 1
    await until(lambda: len(batch_site.agents()) == 1, "one agent")


async def test_a_keeper_that_was_killed_is_replaced_at_once_on_the_same_machine(
    batch_site: SbatchAgents,
) -> None:
    driver = batch_site.driver()
    first = await driver.start(SPEC)
    os.kill(first["pid"], signal.SIGKILL)
    assert (await driver.find(first)).state == "gone"
    second = await driver.start(SPEC)
    assert (
        second["number"],
        (await driver.find(second)).state,
        (await driver.find(first)).state,
    ) == (2, "alive", "gone")
    await until(lambda: len(batch_site.agents()) == 1, "one agent")


async def test_one_that_hangs_on_another_machine_keeps_nobody_from_beginning_and_ends_when_it_goes_on(
    batch_site: SbatchAgents,
) -> None:
    driver = batch_site.driver()
    first = await driver.start(SPEC)
    left = [first["pid"], *batch_site.agents()]
    for pid in left:
        os.kill(pid, signal.SIGSTOP)
    lease = batch_site.folder() / "lease" / "1"
    lease.write_text(
        json.dumps(
            {**json.loads(lease.read_text()), "life": "b", "machine": "b", "host": "login2"}
        ).ljust(1023)
        + "\n"
    )
    await driver.close()
    second = await batch_site.driver().start(SPEC)
    assert second["number"] == 2 and second["pid"] not in left
    for pid in left:
        os.kill(pid, signal.SIGCONT)
    await until(
        lambda: (
            batch_site.keepers() == [second["pid"]]
            and len(batch_site.agents()) == 1
            and batch_site.agents()[0] not in left
        ),
        "the one left behind ends",
    )


# ---- impossible starts


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("$NOWHERE/x", "does not set NOWHERE"),
        ("${NOWHERE}", "does not set NOWHERE"),
        ("/proc/1/x", "/proc/1"),
        ("/dev/null/x", "/dev/null"),
    ],
)
async def test_a_folder_that_cannot_be_is_a_clear_sentence(
    batch_site: SbatchAgents, folder: str, words: str
) -> None:
    sentence = await refused(
        "agentUnavailable", batch_site.driver(batch_site.cluster(folder=folder)).start(SPEC)
    )
    assert words in sentence and "Traceback" not in sentence


async def test_the_folder_is_as_a_login_shell_has_it_and_nothing_is_executed_for_it(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, expected in {
        "~/a": f"{os.path.expanduser('~')}/a",
        "$HOME/a/../b": f"{os.path.expanduser('~')}/b",
        "/x/${USER}y": None,
        "/x/$(touch y)`id`": "/x/$(touch y)`id`",
    }.items():
        login = {"HOME": os.path.expanduser("~"), "USER": "joe"}
        assert sites.expand_folder(batch_site.cluster(folder=folder), login) == (
            expected or "/x/joey"
        )


async def test_a_folder_that_others_can_write_to_is_refused(batch_site: SbatchAgents) -> None:
    batch_site.scratch.chmod(0o777)
    sentence = await refused("agentUnavailable", batch_site.driver().start(SPEC))
    assert str(batch_site.scratch) in sentence and "replace our code" in sentence
    assert not batch_site.keepers(), "where only its owner moves it away one is started: the first"


async def test_a_folder_that_is_a_link_is_refused(batch_site: SbatchAgents) -> None:
    (batch_site.root / "elsewhere").mkdir()
    batch_site.base.symlink_to(batch_site.root / "elsewhere")
    assert "not a folder" in await refused("agentUnavailable", batch_site.driver().start(SPEC))


async def test_an_agent_that_does_not_start_is_told_in_its_own_words_and_kept(
    batch_site: SbatchAgents,
) -> None:
    driver = batch_site.driver()
    batch_site.folder().mkdir(parents=True)
    (batch_site.folder() / "run").write_text("in the way")
    sentence = await refused("agentUnavailable", driver.start(SPEC))
    assert "the keeper cannot use its folder" in sentence
    (log,) = (batch_site.root / "user" / KEY.uid / "agent-sbatch" / "hpc").glob("*-start.log")
    assert "the keeper cannot use its folder" in log.read_text()


# ---- logs


def test_logs_of_each_start_are_kept_here_without_secrets(first: Start) -> None:
    batch_site = first.batch_site
    folder = batch_site.root / "user" / KEY.uid / "agent-sbatch" / "hpc"
    (remote,) = folder.glob("*-remote.log")
    (start,) = folder.glob("*-start.log")
    assert remote.read_text() == "of an earlier one <REDACTED>\n"
    assert (
        "starts, keeper pid" in start.read_text()
        and TOKEN not in start.read_text()
        and "earlier" not in start.read_text()
    )
    assert (
        stat.S_IMODE(remote.stat().st_mode) == 0o600 and stat.S_IMODE(start.stat().st_mode) == 0o600
    )
    assert (batch_site.base / "job_agent.log").read_text().startswith("of an earlier one")


# ---- sign-in


async def test_without_a_connection_nothing_is_tried_and_nobody_knows(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, channel = await signed_in(batch_site, monkeypatch)
    handle = await driver.start(SPEC)
    await channel.close()
    assert driver.needs_sign_in(KEY) is not None
    await refused("signInNeeded", driver.start(SPEC))
    found = await driver.find(handle)
    assert found == Found(state="unknown", detail=found.detail, sign_in=True)
    await refused("agentUnavailable", driver.stop(handle, 1.0))
    await refused("signInNeeded", driver.evidence(KEY, "x/stdout.log", 0, 1))
    assert await driver.check() == []
    assert len(batch_site.keepers()) == 1


async def test_whoever_signs_in_is_told_and_finds_his_agent_again(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, channel = await signed_in(batch_site, monkeypatch)
    assert batch_site.signed_in == [KEY]
    assert driver.needs_sign_in(KEY) is None and driver.signed_in_as(KEY) == channel.user
    assert driver.needs_sign_in(AgentKey("sbatch", "parallel", "another0", "hpc")) is not None
    handle = await driver.start(SPEC)
    found = await driver.find({**handle, "user": "joe2"})
    assert found.state == "unknown" and found.sign_in and "joe2" in found.detail, (
        "what runs as somebody else is not judged"
    )
    assert channel.closed and driver.needs_sign_in(KEY) is not None, (
        "so that its user can come with the right name"
    )
    await driver.close()
    later = batch_site.driver(batch_site.cluster(access="ssh"))
    assert (await later.find(handle)).sign_in
    batch_site.address["agentsUrl"] = "ws://127.0.0.1:10/agent"  # the supervisor has a new address
    await sign_in(later, Ssh(), monkeypatch)
    assert (await later.find(handle)).state == "alive"
    assert (
        json.loads((batch_site.folder() / "agents.json").read_text())["agentsUrl"]
        == "ws://127.0.0.1:10/agent"
    )
    assert await later.start(SPEC) == handle
    await later.stop(handle, 1.0)
    assert not batch_site.keepers()


async def test_nobody_signs_in_where_there_is_nothing_to_sign_in_to(
    batch_site: SbatchAgents,
) -> None:
    driver = batch_site.driver()
    assert "needs no sign-in" in await refused(
        "badRequest", driver.sign_in(KEY.uid, "hpc", object())
    )
    assert "choose one of: hpc" in await refused(
        "badRequest", driver.sign_in(KEY.uid, "cph", object())
    )


async def test_a_link_through_the_connection_stands_again_after_the_sign_in(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent runs on but has lost its link. The socket's path is short for any depth of the
    cluster's folder.
    """
    batch_site.scratch /= "x" * 80
    batch_site.base = batch_site.scratch / "jobscribe-test"
    driver, channel = await signed_in(batch_site, monkeypatch, link="ssh")
    handle = await driver.start(SPEC)
    await driver.find(handle)
    ((path, *_),) = channel.forwards
    assert (
        len(path) < 60
        and Path(path).parent.stat().st_mode & 0o7777 == 0o700
        and os.listdir(Path(path).parent) == []
    )
    await channel.close()
    second = Ssh()
    await sign_in(driver, second, monkeypatch)
    (forward,) = second.forwards
    assert forward[1:] == ("127.0.0.1", 9) and forward[0] != channel.forwards[0][0], (
        "nobody could wait for it there"
    )
    assert json.loads((batch_site.folder() / "agents.json").read_text())["link"] == forward[0]
    assert not Path(channel.forwards[0][0]).parent.exists(), "what was there before is taken away"
    Path(forward[0]).parent.rmdir()


async def test_a_link_with_tls_gets_the_authority_as_a_file(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_site.root / "ca.pem").write_text("PEM")
    batch_site.address |= {
        "agentsUrl": "wss://0.0.0.0:7000/agent",
        "agentsCa": str(batch_site.root / "ca.pem"),
    }
    driver, _ = await signed_in(batch_site, monkeypatch, link="tls", supervisor="jobs.example:7001")
    await driver.start(SPEC)
    said = json.loads((batch_site.folder() / "agents.json").read_text())
    assert said["agentsUrl"] == "wss://jobs.example:7001/agent" and said["agentsCa"] == str(
        batch_site.folder() / "ca.pem"
    )
    assert (batch_site.folder() / "ca.pem").read_text() == "PEM" and said["pingSecs"] == 20.0
    plain = batch_site.driver(batch_site.cluster(link="tls"))
    batch_site.address |= {"agentsUrl": "ws://127.0.0.1:9/agent", "agentsCa": None}
    assert "certificate" in await refused("agentUnavailable", plain.start(SPEC))


# ---- the check


async def test_a_check_says_what_would_keep_jobs_from_working(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = batch_site.driver(
        batch_site.cluster(
            user_root=str(batch_site.root / "nowhere"), defaults=BatchRequest(partition="gone")
        )
    )
    (batch_site.bin / "sacct").unlink()
    monkeypatch.setattr(
        "jobscribe.drivers.sbatch.driver.time.time", lambda real=time.time: real() - 100
    )
    batch_site.command(
        "squeue", 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1'
    )
    batch_site.command(
        "sbatch", 'echo "sbatch: error: invalid partition specified: ${2#--partition=}" >&2; exit 1'
    )
    driver._clusters.clusters[0].environment["PATH"] = f"{batch_site.bin}:{batch_site.root}/none"
    (batch_site.root / "none").mkdir()
    for name in ("env", "sh", "bash"):
        (batch_site.root / "none" / name).symlink_to(f"/usr/bin/{name}")
    said = await driver.check_cluster("hpc")
    assert len(said) == 5, said
    looked_for = (
        "nowhere is not a folder",
        r" 1[0-2]\d s ahead",
        "sacct cannot be found",
        "does not list jobs: slurm_load_jobs",
        "invalid partition specified: gone",
    )
    for words in looked_for:  # the two clock readings differ by a moment
        assert any(re.search(words, sentence) for sentence in said), (words, said)
    assert all(sentence.startswith("cluster hpc: ") for sentence in said)
