"""The image on a real Docker daemon: built by `etc/docker/build.sh`, with the keeper as process 1,
agent and jobs, and the relay as the only way out.
"""

import asyncio
import json
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from container_agent import UNIX_USER, Place, until

from jobscribe.protocol.ids import Token
from jobscribe.runtime.execution import keeper_ledger

#: Tests that are too slow for every run.
soak = pytest.mark.skipif("SOAK" not in os.environ, reason="set SOAK=1 (make soak) to run it")
BUILD = Path(__file__).resolve().parents[2] / "etc" / "docker" / "build.sh"
EATS = "tail /dev/zero"


@pytest.fixture
async def place(docker: tuple[str, ...], image: str) -> AsyncIterator[Place]:
    place = Place(docker, image, f"jobscribe-test-{os.urandom(4).hex()}")
    try:
        yield place
    finally:
        await place.close()


@pytest.fixture
async def agent(place: Place) -> str:
    """Start a container with a connected agent and return its name."""
    await place.relay()
    container = await place.agent()
    await place.connected()
    return container


def _processes(place: Place, container: str) -> dict[str, int]:
    """Return titles and pids (in the container's namespace) of its processes."""
    said = place.do("exec", container, "ps", "-o", "pid,args")
    return {
        line.split(None, 1)[1].split(" /")[0]: int(line.split()[0])
        for line in said.splitlines()[1:]
    }


def _start(place: Place, token: Token) -> dict[str, Any] | None:
    """Return the keeper's record of a start, until the execution is forgotten."""
    entry = keeper_ledger.load(str(place.folder)).entries.get(token.name)
    return None if entry is None else entry.start


# ---- the image


def test_no_server_code_is_in_users_reach(docker: tuple[str, ...], image: str) -> None:
    said = subprocess.run(
        [
            *docker,
            "run",
            "--rm",
            "--network",
            "none",
            "--entrypoint",
            "/bin/sh",
            image,
            "-c",
            "ls /opt/jobscribe/lib/jobscribe; ls /opt/jobscribe/lib; find /opt/jobscribe ! -perm -o=r; id -u",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    there = said.stdout.split()
    assert {
        "agent",
        "apps",
        "protocol",
        "runtime",
        "tornado",
        "msgspec",
        "msgpack",
    } <= set(there) and there[-1] == "65534"
    assert not {
        "psutil",
        "supervisor",
        "db",
        "drivers",
        "web",
        "cli",
        "service",
        "client",
        "tests",
    } & set(there)
    assert not [name for name in there if name.startswith("/")], "not everybody can read it"


@soak
def test_a_part_that_is_none_is_named(docker: tuple[str, ...], image: str) -> None:
    for arguments in ((), ("supervisor",)):
        done = subprocess.run(
            [*docker, "run", "--rm", "--network", "none", image, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2 and "keeper, relay" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--base is missing"),
        (("--base", "x"), "--tag is missing"),
        (("--tag",), "--tag needs a value"),
        (("--verbose",), "unknown option"),
        (("--base", "jobscribe-test/none:0", "--tag", "x"), "is not on that host"),
    ],
)
def test_what_cannot_be_built_is_said(
    docker: tuple[str, ...], arguments: tuple[str, ...], said: str
) -> None:
    host = (
        ("--host", docker[docker.index("-H") + 1])
        if arguments and arguments[0] == "--base" and len(arguments) > 2
        else ()
    )
    done = subprocess.run([BUILD, *arguments, *host], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and said in done.stderr


# ---- keeper, agent and jobs


async def test_a_user_that_no_image_knows_runs_in_a_clean_environment(
    place: Place, agent: str
) -> None:
    token = place.start(
        "id -u; id -g; echo $HOME; echo $USER; touch ~/here && echo written; touch /usr/here 2>/dev/null || echo kept; ps -o pid,args; env"
    )
    exit_ = await place.end_of(token)
    assert exit_.succeeded and exit_.out_of_memory is False, place.output(token, "stderr")
    lines = place.output(token).splitlines()
    assert lines[:6] == [
        str(UNIX_USER),
        str(UNIX_USER),
        str(place.home),
        str(UNIX_USER),
        "written",
        "kept",
    ]
    assert "jobscribe keeper" in place.output(token).split("\n")[
        7
    ] and "PYTHONPATH" not in place.output(token)
    assert (place.home / "here").stat().st_uid == UNIX_USER
    # all output is in the container's log as well as in the files
    kept = (place.folder / "agent.log").read_text().strip()
    await until(
        lambda: kept in place.do("logs", agent), lambda: f"{kept}\nis not all in\n{place.logs()}"
    )
    log = place.do("logs", agent)
    assert "connected" in kept
    assert "cannot be created" in log, (
        "that there are no cgroups is said once, and nothing else about it"
    )
    assert log.count("cgroup") == 1


async def test_what_a_job_leaves_behind_is_reaped_and_its_use_is_seen(
    place: Place, agent: str
) -> None:
    token = place.start(
        "(setsid sleep 300 >/dev/null 2>&1 &) ; (sleep 300 &) ; until [ -e go ]; do sleep 0.1; done"
    )
    await until(
        lambda: any(type(m).__name__ == "Samples" for m in place.supervisor.heard),
        lambda: "no sample comes",
    )
    sample = next(m for m in place.supervisor.heard if type(m).__name__ == "Samples").samples[0]
    assert sample.token == token and sample.processes >= 3 and sample.memory_bytes > 0
    (place.home / "heat" / "ImageSi1" / str(token.serial) / "go").touch()
    exit_ = await place.end_of(token)
    assert exit_.code == 0 and exit_.survivors_killed == 2
    said = "2 processes of " + str(token) + " outlived its main process and were killed"
    assert said in place.do("logs", agent) and said in (place.folder / "keeper.log").read_text(), (
        "the keeper's own lines are in both places"
    )
    assert "sleep" not in place.do("exec", agent, "ps", "-o", "args")
    assert "Z" not in place.do("exec", agent, "ps", "-o", "stat").split()


async def test_stopping_the_container_ends_jobs_and_says_so(place: Place, agent: str) -> None:
    token = place.start("trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.1; done")
    evidence = place.folder / "run" / token.name
    await until(
        lambda: (evidence / "stdout.log").exists() and place.output(token) == "ready\n",
        lambda: "it does not start",
    )
    began = time.monotonic()
    await place.asked("stop", "--time", "30", agent)
    assert time.monotonic() - began < 15
    assert place.do("inspect", "-f", "{{.State.ExitCode}}", agent) == "0"
    exit_ = await place.end_of(token)
    assert (exit_.code, exit_.stop_reason, exit_.source) == (
        3,
        "shutdown",
        "keeper",
    ) and place.output(token) == "ready\nasked\n"


@pytest.mark.parametrize("number", ["TERM", pytest.param("INT", marks=soak)])
async def test_a_container_that_waits_for_its_configuration_can_be_stopped(
    place: Place, number: str
) -> None:
    await place.asked("volume", "create", place.name)
    container = f"{place.name}-{number}"
    place._containers.append(container)
    await place.asked(
        "run",
        "--detach",
        "--interactive",
        "--name",
        container,
        "--network",
        "none",
        place.image,
        "keeper",
        "--root",
        "/tmp/r",
        "--folder",
        "/tmp/r/f",
    )
    began = time.monotonic()
    while place.do("inspect", "-f", "{{.State.Running}}", container) == "true":
        assert time.monotonic() - began < 15, "it does not hear the signal"
        await place.asked("kill", "--signal", number, container, check=False)
        await asyncio.sleep(0.1)


def test_a_configuration_that_ends_without_a_newline_is_one_and_none_is_refused(
    docker: tuple[str, ...], image: str
) -> None:
    def run(text: bytes) -> tuple[int, str]:
        done = subprocess.run(
            [
                *docker,
                "run",
                "--rm",
                "--interactive",
                "--network",
                "none",
                image,
                "keeper",
                "--root",
                "/tmp/r",
                "--folder",
                "/proc/none",
            ],
            input=text,
            capture_output=True,
            check=False,
        )
        return done.returncode, done.stderr.decode()

    # the configuration is valid, and its folder cannot be created
    assert run(b'{"agent": {}}')[0] == 5
    assert run(b"")[0] == 2 and run(b"[]\n{")[0] == 2


@soak
async def test_an_agent_that_is_killed_has_a_successor_and_jobs_go_on(
    place: Place, agent: str
) -> None:
    token = place.start("while [ ! -e go ]; do sleep 0.05; done; exit 4")
    await until(lambda: _start(place, token), lambda: "it does not start")
    await place.asked("exec", agent, "kill", "-9", str(_processes(place, agent)["jobscribe agent"]))
    await until(lambda: place.supervisor.connections == 2, lambda: f"no successor: {place.logs()}")
    Path(place.home / "heat" / "ImageSi1" / str(token.serial) / "go").touch()
    assert (await place.end_of(token)).code == 4


# ---- memory


async def test_a_job_that_takes_too_much_dies_and_the_rest_lives(place: Place, agent: str) -> None:
    before = _processes(place, agent)
    exit_ = await place.done(f"exec {EATS}")
    assert (exit_.signal, exit_.out_of_memory) == (9, True)
    exit_ = await place.done(f"{EATS}; echo $? >code; exit 0")
    assert (exit_.code, exit_.out_of_memory) == (0, True), "a success stays one, with the warning"
    exit_ = await place.done(f"{EATS}; exit 3")
    assert (exit_.code, exit_.out_of_memory) == (3, True)
    exit_ = await place.done("kill -9 $$")
    assert (exit_.signal, exit_.out_of_memory) == (9, False)
    assert place.supervisor.connections == 1, place.logs()
    after = _processes(place, agent)
    assert all(after[title] == before[title] for title in ("jobscribe keeper", "jobscribe agent"))
    assert place.do("inspect", "-f", "{{.State.Running}}", agent) == "true"


@soak
async def test_of_two_jobs_only_the_one_that_was_killed_is_said_to_be(
    place: Place, agent: str
) -> None:
    other = place.start("while [ ! -e go ]; do sleep 0.05; done; exit 1")
    await until(lambda: _start(place, other), lambda: "it does not start")
    exit_ = await place.done(f"exec {EATS}")
    assert (exit_.signal, exit_.out_of_memory) == (9, True)
    Path(place.home / "heat" / "ImageSi1" / str(other.serial) / "go").touch()
    exit_ = await place.end_of(other)
    assert (exit_.code, exit_.out_of_memory) == (1, None) and "several executions ran" in str(
        exit_.detail
    )


# ---- the next container


async def test_what_ran_in_a_container_that_died_is_told_by_the_next_one(
    place: Place, agent: str
) -> None:
    running = place.start("exec sleep 300")
    done = place.start("sleep 1; exit 6")
    await until(lambda: all(_start(place, t) for t in (running, done)), lambda: "they do not start")
    # the agent is stopped, so that no end is reported before the container is gone
    await place.asked(
        "exec", agent, "kill", "-STOP", str(_processes(place, agent)["jobscribe agent"])
    )
    await until(
        lambda: (place.folder / "run" / done.name / "exit.json").exists(), lambda: "it does not end"
    )
    await place.asked("kill", agent)
    with (place.folder / "container.log").open("w") as log:
        log.write('{"at": 1.0, "sentence": "an older one"}\nno JSON\n[]\n')
        log.write(
            json.dumps(
                {"at": time.time(), "sentence": "killed by signal 9, not by us", "exitCode": 137}
            )
            + "\n"
        )
    os.chown(place.folder / "container.log", UNIX_USER, UNIX_USER)
    place.supervisor.executions.clear()
    await place.agent("next")
    lost, known = await place.end_of(running), await place.end_of(done)
    assert (lost.source, lost.code, lost.signal) == ("lost", None, None)
    assert lost.detail == "its container ended while it ran: killed by signal 9, not by us"
    assert (known.source, known.code) == ("keeper", 6)
    again = await place.done("exit 5")
    assert again.code == 5


async def test_a_pid_of_another_container_is_never_taken_for_a_live_one(
    place: Place, agent: str
) -> None:
    """The record of a dead container names process 1 with the start time of the next container's
    process 1. Only the recorded `life` differs.
    """
    token = place.start("exec sleep 300")
    await until(lambda: _start(place, token), lambda: "it does not start")
    start = _start(place, token)
    assert start is not None and re.fullmatch(r"[0-9a-f-]{36}/\d+-\d+", start["life"])
    await place.asked("kill", agent)
    place.supervisor.executions.clear()
    # the next keeper reads the record after its configuration, so its own start time is known by
    # then
    container = await place.agent("late", silent=True)
    await until(
        lambda: place.do("inspect", "-f", "{{.State.Pid}}", container) != "0",
        lambda: "it does not start",
    )
    pid = place.do("inspect", "-f", "{{.State.Pid}}", container)
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    changed = {"start": token.name} | start | {"pid": 1, "startTicks": ticks}
    with (place.folder / keeper_ledger.FILE).open("a") as ledger:
        ledger.write(json.dumps(changed) + "\n")
    place.tell(container, json.dumps(place.config()).encode() + b"\n")
    exit_ = await place.end_of(token)
    assert (exit_.source, exit_.detail) == ("lost", "its container ended while it ran")


# ---- the relay in a container


async def test_a_relay_that_is_replaced_costs_a_moment(place: Place, agent: str) -> None:
    relay = f"{place.name}-relay"
    assert (
        place.do("inspect", "-f", "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}}", relay)
        == "65534:65534 true"
    )
    token = place.start("while [ ! -e go ]; do sleep 0.05; done; exit 8")
    await until(lambda: _start(place, token), lambda: "it does not start")
    began = time.monotonic()
    await place.asked("stop", "--time", "20", relay)
    assert time.monotonic() - began < 10, "it does not end when it is told to"
    await until(lambda: not place.supervisor.connected, lambda: "the connection outlives its relay")
    await place.relay("relay-2")
    await until(
        lambda: place.supervisor.connections == 2, lambda: f"no agent comes again: {place.logs()}"
    )
    Path(place.home / "heat" / "ImageSi1" / str(token.serial) / "go").touch()
    assert (await place.end_of(token)).code == 8


@soak
async def test_a_job_that_floods_the_socket_disturbs_no_other_user(
    place: Place, agent: str
) -> None:
    """The container runs as another user's agent would: with the same volume. The supervisor accepts only its
    share of connections.
    """
    flood = "import socket, time\nheld = []\nend = time.time() + 3\nwhile time.time() < end:\n    s = socket.socket(socket.AF_UNIX)\n    s.settimeout(2)\n    try: s.connect('/run/jobscribe/link.sock'); held.append(s)\n    except OSError: pass\n    if len(held) > 400: held.clear()\n"
    flooder = asyncio.create_task(
        place.asked(
            "run",
            "--rm",
            "--network",
            "none",
            "--user",
            "123457:123457",
            "--volume",
            f"{place.name}:/run/jobscribe:ro",
            "--entrypoint",
            "python3",
            place.image,
            "-c",
            flood,
        )
    )
    for _ in range(5):
        began = time.monotonic()
        assert (await place.done("exit 0")).code == 0
        assert time.monotonic() - began < 5
    await flooder
    assert place.supervisor.connections == 1 and place.supervisor.connected
    assert "refused: unix user 123457" in place.do("logs", f"{place.name}-relay")
