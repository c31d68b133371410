"""One version up and down again: the released wheel of tests/releases and the tree run on the same
root, one after the other, while jobs run and clients submit. docs/compatibility.md has the promises.

Jobs stamp their own starts; the tests trust these stamps, not the product's records.
"""

import asyncio
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books
from container_agent import TOKEN, Supervisor
from golden_root import command
from released_version import PREVIOUS, Released, install
from supervisor_process import PYTHON_PATH, SupervisorProcess, jid_of, req_id, until
from timestamped_jobs import SOAK, Stamps

from jobscribe.db.events.events import decode, encode, schema_of, type_of
from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.protocol.version import VERSION
from jobscribe.protocol.wire.messages import Run, TaskSpec

EVENTS = sorted((Path(__file__).parents[1] / "unit/db/events/golden").glob("*.jsonl"))
#: Types of events that the previous version does not know, or not in this version's schema. After
#: the first of them the store does not go back; CHANGELOG.md names them. Of the first two, only those
#: with new fields are later.
LATER_EVENTS = {
    "RunRequested",
    "JobFolded",
    "TagsChanged",
    "TaskNoticed",
    "ShellOpened",
    "ShellClosed",
}

Make = Callable[..., SupervisorProcess]
LOAD_UID, LATER_UID = "LoadUsr1", "LaterUs1"
#: Runs that clients submit during a scenario, at least and at most.
LEAST, MOST = (60, 400) if SOAK else (3, 9)
PAUSE_SECS = 0.05 if SOAK else 0.2


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    return install(PREVIOUS, tmp_path_factory.mktemp("released") / PREVIOUS)


class Load:
    """A client that submits short runs, each with one request id until it is accepted, while
    supervisors die and return.
    """

    def __init__(self, site: SupervisorProcess, stamps: Stamps) -> None:
        self._site, self._stamps = site, stamps
        self.accepted: list[tuple[str, dict[str, Any]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._submit)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for(self, count: int) -> None:
        until(lambda: len(self.accepted) >= count, f"{count} runs are accepted")

    def _submit(self) -> None:
        while not self._stop.is_set() and len(self.accepted) < MOST:
            name = f"load{len(self.accepted)}"
            run, request = self._stamps.job(name, uid=LOAD_UID), req_id()
            while not self._send(run, request):
                if self._stop.wait(0.05):
                    return
            self.accepted.append((name, run))
            self._stop.wait(PAUSE_SECS)

    def _send(self, run: dict[str, Any], request: str) -> bool:
        """Return whether the run was accepted, in an answer that arrived."""
        try:
            said = json.loads((self._site.root / "client.json").read_text())
            connection = http.client.HTTPConnection(said["url"].removeprefix("http://"), timeout=10)
            body = json.dumps({"reqId": request, "run": run})
            secret = {"Authorization": "Bearer " + said["token"]}
            connection.request("POST", "/api/run-simulation", body, secret)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            assert answer.status in (200, 503), answer.status
            return answer.status == 200
        except (OSError, ValueError, http.client.HTTPException):
            return False


def start(site: SupervisorProcess, version: Released | None) -> None:
    """Start the supervisor of a released version; None: of the tree."""
    site._python = sys.executable if version is None else version.python
    site._env = {} if version is None else {"PYTHONPATH": ""}  # may lead to another tree
    site.start()
    expected = VERSION if version is None else version.version
    assert f'version="{expected}"' in site.ask("GET", "/metrics").body.decode()


def known_running(site: SupervisorProcess, *runs: dict[str, Any]) -> None:
    for run in runs:
        site.running(run)


def version_of_agent(site: SupervisorProcess, uid: str) -> str:
    (agent,) = site.post("agents", uid=uid)["agents"]
    return str(agent["version"])


def kill_agent(site: SupervisorProcess, uid: str, *runs: dict[str, Any]) -> None:
    """Kill the agent of a user. Its keeper starts another one, which reports these runs."""
    keeper = site.keeper(uid)["pid"]
    site.kill(site.agent_pid(uid))
    until(lambda: not site.status(runs[0])["known"] or site.agent_pid(uid), "it is noticed")
    known_running(site, *runs)
    assert site.keeper(uid)["pid"] == keeper


def check_clients(site: SupervisorProcess, old: Released | None, uid: str) -> None:
    """Submit and read with the Python client and a command of another version than the
    supervisor's.
    """
    code = (
        "import sys; from jobscribe.client import Client\n"
        "with Client.from_root(sys.argv[1], uid=sys.argv[2]) as client:\n"
        "    job = client.run(['sh', '-c', 'exit 3'])\n"
        "    state = job.wait(timeout=30)\n"
        "    print(state.state, state.shell_code, len(client.jobs().jobs) > 0,"
        " len(client.story(job.jid)['events']) > 3, client.why(job.jid)['sentence'] != '')"
    )
    words = ("--json", "job", "list", "--all-users")
    if old is None:
        given = [sys.executable, "-c", code, str(site.root), uid]
        done = subprocess.run(given, capture_output=True, text=True, timeout=60, check=False)
        listed = command(site.root, *words)
    else:
        done = old.run("-c", code, str(site.root), uid)
        listed = old.command(site.root, *words)
    assert done.stdout.split() == ["error", "3", "True", "True", "True"], (done.stdout, done.stderr)
    assert uid in {row["uid"] for row in json.loads(listed)["items"]}


@pytest.mark.timeout(3600 if SOAK else 180)
@pytest.mark.parametrize("times", [3 if SOAK else 1])
def test_up_and_down_again_with_running_and_queued_jobs_and_kills(
    released: Released, make_site: Make, times: int
) -> None:
    site = make_site("slots.local_sequential=4", "slots.op_run=2")
    stamps = Stamps(site.place / "stamps")
    start(site, released)
    jobs = {
        name: stamps.job(name, stamps.until(name), code=code) for code, name in enumerate("abcd")
    }
    accepted = {name: site.submit(run, f"request-{name}") for name, run in jobs.items()}
    known_running(site, jobs["a"], jobs["b"])
    with Load(site, stamps) as load:
        load.wait_for(1)

        site.stop(signal.SIGKILL)
        start(site, None)
        for name, run in jobs.items():
            again = site.submit(run, f"request-{name}")
            assert again["computeJobSerial"] == accepted[name]["computeJobSerial"]
        known_running(site, jobs["a"], jobs["b"])
        assert [site.status(jobs[name])["state"] for name in "cd"] == ["pending", "pending"]
        assert version_of_agent(site, jobs["a"]["uid"]) == released.version
        kill_agent(site, jobs["a"]["uid"], jobs["a"], jobs["b"])
        assert version_of_agent(site, jobs["a"]["uid"]) == released.version
        stamps.open("a")
        known_running(site, jobs["c"])
        jobs["e"] = stamps.job("e", stamps.until("e"), code=4, uid=LATER_UID)
        site.submit(jobs["e"])
        known_running(site, jobs["e"])
        check_clients(site, released, LATER_UID)
        load.wait_for(LEAST // 2 + 1)

        for _ in range(times - 1):  # with SOAK: more often, each after a random time
            for version in (released, None):
                threading.Event().wait(random.random())
                site.stop(signal.SIGKILL)
                start(site, version)
                known_running(site, *(jobs[name] for name in "bce"))

        site.stop(signal.SIGKILL)
        start(site, released)
        known_running(site, *(jobs[name] for name in "bce"))
        assert version_of_agent(site, LATER_UID) == VERSION
        kill_agent(site, LATER_UID, jobs["e"])
        assert version_of_agent(site, LATER_UID) == VERSION
        check_clients(site, None, LATER_UID)
        load.wait_for(LEAST)
    for name in jobs:
        stamps.open(name)
    for code, (_, run) in enumerate(jobs.items()):
        assert site.wait(run)["exit"]["code"] == code
    for name, run in load.accepted:
        assert site.wait(run)["state"] == "completed", name
    for name in (*jobs, *(name for name, _ in load.accepted)):
        assert stamps.words(name) == ["start", "end"], name
    assert check_books(site).keys() >= {jid_of(run) for run in jobs.values()}

    site.stop()
    started = [
        json.loads(line)["event"]["version"]
        for line in command(site.root, "db", "export").splitlines()
        if '"SupervisorStarted"' in line
    ]
    assert started == [PREVIOUS, *[VERSION, PREVIOUS] * times]
    for checked in (command(site.root, "db", "check"), released.command(site.root, "db", "check")):
        assert "no fault found" in checked


#: Reads lines of [type, version, JSON of an event], and prints a word for each.
READ_EVENTS = """
import json, sys
from jobscribe.db.events.events import decode, known
from jobscribe.db.records.event_text import sentence
for type_, schema, body in map(json.loads, sys.stdin):
    print("later" if not known(type_, schema) else "read" if sentence(decode(type_, schema, body.encode())) else "")
"""


def test_the_previous_version_reads_the_events_of_this_one_or_knows_that_they_are_later(
    released: Released,
) -> None:
    """An event that it can misread, or not read although it knows its type, would stop it in the
    middle. Such a change needs a new version of the event (db/events/events.py).
    """
    rows = [json.loads(line) for path in EVENTS for line in path.read_text().splitlines()]
    given = [decode(r["type"], r["schema"], json.dumps(r["event"]).encode()) for r in rows]
    lines = [json.dumps([type_of(e), schema_of(e), encode(e).decode()]) for e in given]
    done = released.run("-c", READ_EVENTS, text="\n".join(lines))
    assert done.returncode == 0, done.stderr
    words = dict(zip(lines, done.stdout.split("\n"), strict=False))
    assert set(words.values()) <= {"read", "later"} and len(words) > 50
    later = {json.loads(line)[0] for line, word in words.items() if word == "later"}
    assert later == LATER_EVENTS


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    """A supervisor that speaks protocol version 1 and states no range."""
    supervisor = Supervisor()
    yield supervisor
    await supervisor.close()


@pytest.mark.parametrize("newer", ["agent", "keeper"])
async def test_a_keeper_and_an_agent_of_neighbouring_versions_work_together(
    released: Released, supervisor: Supervisor, tmp_path: Path, newer: str
) -> None:
    """In place upgrades, and images or login nodes whose code was replaced: the keeper starts agents
    of another version than its own.
    """
    key = AgentKey("local", "sequential", "MixedUs1", "localhost")
    folder, address = tmp_path / "agent" / str(key), tmp_path / "agents.json"
    folder.mkdir(parents=True)
    address.write_text(json.dumps({"agentsUrl": f"ws://127.0.0.1:{supervisor.port}/agent"}))
    agent = {
        "agentKey": str(key),
        "agentId": "a" * 32,
        "token": TOKEN,
        "addressFile": str(address),
        "cacheDir": str(folder),
        "apps": [],
        "home": str(tmp_path),
        "loginSecs": 0.0,
    }
    pythons = [
        _interpreter(tmp_path / "released", released.python, ""),
        _interpreter(tmp_path / "tree", sys.executable, PYTHON_PATH),
    ]
    keeper_python, agent_python = pythons if newer == "agent" else reversed(pythons)
    keepers = [await _start_keeper(keeper_python, agent_python, tmp_path, folder, agent)]
    said = tmp_path / "keeper.log"
    try:
        await _until(lambda: supervisor.connected, lambda: said.read_text())
        first, second = (Token(f"{key.uid}-MixedSi1-heat", n, 1, "main", 0) for n in (1, 2))
        gate = tmp_path / "gate"
        waits = f"echo x >>{tmp_path}/starts; until [ -e {gate} ]; do sleep 0.05; done; exit 6"
        _run(supervisor, first, tmp_path, waits)
        await _until(lambda: str(first) in supervisor.executions, lambda: said.read_text())
        alive = supervisor.heard[0]
        assert alive.version == (VERSION if newer == "agent" else released.version)
        os.kill(alive.pid, signal.SIGKILL)
        await _until(lambda: supervisor.connections == 2, lambda: said.read_text())
        # the next keeper is of the other version: it reads the ledger and the evidence
        os.kill(alive.keeper_pid, signal.SIGKILL)
        await _until(lambda: not supervisor.connected, lambda: said.read_text())
        keepers.append(await _start_keeper(agent_python, keeper_python, tmp_path, folder, agent))
        await _until(lambda: supervisor.connections == 3, lambda: said.read_text())
        _run(supervisor, first, tmp_path, waits)  # repeated: a token starts once
        _run(supervisor, second, tmp_path, "exit 7")
        gate.touch()
        for token, code in ((first, 6), (second, 7)):
            await _until(
                lambda token=token: _ended(supervisor, token) is not None,  # type: ignore[misc]
                lambda: said.read_text(),
            )
            assert _ended(supervisor, token) == code
        assert (tmp_path / "starts").read_text() == "x\n"
    finally:
        os.kill(json.loads((folder / "keeper.json").read_text())["pid"], signal.SIGTERM)
        for keeper in keepers:
            await keeper.wait()


def _interpreter(script: Path, python: str, path: str) -> str:
    """Return a program that runs this interpreter with this PYTHONPATH."""
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec {python} "$@"\n')
    script.chmod(0o700)
    return str(script)


async def _start_keeper(
    python: str, agent_python: str, place: Path, folder: Path, agent: dict[str, Any]
) -> asyncio.subprocess.Process:
    """Start a keeper whose agents run with another interpreter."""
    config = {"agent": agent, "python": agent_python, "cgroups": {"use": "no"}}
    with (place / "keeper.log").open("ab") as log:
        keeper = await asyncio.create_subprocess_exec(
            *(python, "-P", "-m", "jobscribe.agent.keeper"),
            *("--root", str(place), "--folder", str(folder)),
            stdin=asyncio.subprocess.PIPE,
            stderr=log,
        )
    assert keeper.stdin is not None
    keeper.stdin.write(json.dumps(config).encode() + b"\n")
    keeper.stdin.close()
    return keeper


def _run(supervisor: Supervisor, token: Token, place: Path, line: str) -> None:
    spec = TaskSpec(command=("/bin/sh", "-c", line), run_dir=str(place / f"run{token.serial}"))
    supervisor.send(Run(op_id=op_id(token, "run"), token=token, spec=spec))


def _ended(supervisor: Supervisor, token: Token) -> int | None:
    found = supervisor.executions.get(str(token))
    return None if found is None or found.exit is None else found.exit.code


async def _until(true: Callable[[], Any], failure: Callable[[], str], secs: float = 30.0) -> None:
    try:
        async with asyncio.timeout(secs):
            while not true():
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(failure())
