"""A journal with a supervisor and containers: one query finds all messages about a job, or about a
user's agent.
"""

import json
import os
import random
import shutil
import string
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_session import gang, output, role, tasks
from docker_hosts import Host, Hosts
from supervisor_process import SupervisorProcess, jid_of, shell, until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "etc" / "engines" / "journald.sh"
CANARY = "k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6"
pytestmark = pytest.mark.skipif(
    not (os.path.exists("/lib/systemd/systemd-journald") and shutil.which("journalctl")),
    reason="systemd-journald and journalctl are missing: etc/engines/journald.sh install",
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[None]:
    """The machine's own journal, or one that is started for the test and ended after it."""
    env = os.environ | {"DIR": str(tmp_path / "journal")}

    def do(verb: str) -> None:
        # no pipes: the processes left running would hold them open
        with (tmp_path / "journald.log").open("ab") as log:
            done = subprocess.run(
                [SCRIPT, verb],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=60,
            )
        assert done.returncode == 0, (tmp_path / "journald.log").read_text()

    do("up")
    yield
    do("down")


@pytest.fixture
def blind(pool: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """The second host, whose daemon sees no journal even if one exists."""
    host, daemon = pool.hosts["b"], shutil.which("dockerd")
    fake = tmp_path / "bin" / "dockerd"
    fake.parent.mkdir()
    hidden = "mkdir -p /run/systemd/journal && mount -t tmpfs none /run/systemd/journal"
    fake.write_text(
        f'#!/bin/sh\nexec unshare --mount /bin/sh -c \'{hidden} && exec {daemon} "$@"\' dockerd "$@"\n'
    )
    fake.chmod(0o755)
    host.stop()
    with monkeypatch.context() as changed:
        changed.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
        host.start()
    yield host
    host.well()
    host.restart()


def found(*about: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["journalctl", "--all", "-o", "json", *about],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def fresh_uid() -> str:
    """Return a user without entries in this journal, which may be older than the test."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=8))


def messages(rows: list[dict[str, Any]]) -> str:
    return "\n".join(str(r["MESSAGE"]) for r in rows)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "driver", ["auto", *(["journald"] if os.environ.get("SOAK") == "1" else [])]
)
def test_one_question_finds_all_of_a_job_and_all_of_an_agent(
    journal: None, make_docker_site: Callable[..., SupervisorProcess], pool: Hosts, driver: str
) -> None:
    site = make_docker_site(
        "log.journald=on", pool={"hosts": ["a"], "logDriver": driver, "keepFailedSecs": 600}
    )
    uid = fresh_uid()
    plain = shell(f"echo {CANARY}", uid, jobRunMode="parallel")
    apart = gang(role("main", f"echo {CANARY}; exit 3", env={"WORD": CANARY}), uid=uid)
    for run in (plain, apart):
        site.submit(run)
    assert (
        site.wait(plain, 90)["state"] == "completed" and site.wait(apart, 90)["exit"]["code"] == 3
    )
    assert f"{CANARY}\n" == output(site, apart, "main"), "it wrote that, to its evidence"
    host, agent = pool.hosts["a"], f"srj-p-{uid}"
    assert host.inspect(agent)["HostConfig"]["LogConfig"]["Type"] == "journald"

    said = until(
        lambda: (rows := found(f"CONTAINER_NAME={agent}")) and "agent" in messages(rows) and rows,
        "the agent's lines are there",
    )
    assert "keeper" in messages(said) and {r["JOBSCRIBE_UID"] for r in said} == {uid}, said
    assert all(len(r["JOBSCRIBE_AGENT"]) == 4 for r in said), said

    task = tasks(site, apart)[0]
    mine = until(
        lambda: (
            (rows := found(f"JOBSCRIBE_JID={jid_of(apart)}"))
            and "has ended with exit code 3" in messages(rows)
            and rows
        ),
        "the task's own words are there",
    )
    by = {
        (r.get("CONTAINER_NAME") or r["SYSLOG_IDENTIFIER"]): [
            s["MESSAGE"] for s in mine if s.get("CONTAINER_NAME") == r.get("CONTAINER_NAME")
        ]
        for r in mine
    }
    (container,) = host.containers(f"jobscribe.token={task['token']}")
    name = task["token"].replace("/", "-")
    assert set(by) == {container, "jobscribe-supervisor"}, by.keys()
    assert by[container] == [f"{name} begins", f"{name} has ended with exit code 3"], by
    for words in ("ServerReq(api_runSimulation", "_Op(run, ", f"{task['token']} has ended: "):
        assert any(words in line for line in by["jobscribe-supervisor"]), (words, by)
    assert {len(r["JOBSCRIBE_OP"]) for r in mine if r.get("JOBSCRIBE_OP")} == {6}, (
        "ids are cut short"
    )
    whole = messages(found(f"JOBSCRIBE_UID={uid}")) + json.dumps(mine) + json.dumps(said)
    assert CANARY not in messages(said) + "\n".join(by[container]), "what a job writes is its own"
    assert (
        site.token not in whole
        and (site.root / "secret" / "agents").read_text().strip() not in whole
    )


@pytest.mark.timeout(200)
def test_where_there_is_no_journal_containers_write_to_files_that_have_an_end(
    blind: Host,
    make_docker_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_docker_site(pool={"hosts": ["b"], "keepFailedSecs": 600})
    plain, apart = shell("true"), gang(role("main", "exit 3"))
    for run in (plain, apart):
        site.submit(run)
    assert (
        site.wait(plain, 90)["state"] == "completed" and site.wait(apart, 90)["exit"]["code"] == 3
    )
    (container,) = blind.containers(f"jobscribe.jid={jid_of(apart)}")
    for name in (container, f"srj-s-{plain['uid']}", *blind.containers("jobscribe.part=relay")):
        logged = blind.inspect(name)["HostConfig"]["LogConfig"]
        assert (
            logged["Type"] == "json-file"
            and logged["Config"]["max-size"]
            and logged["Config"]["max-file"]
        ), (name, logged)
    assert site.log().count("host b: journald is not available") == 1, "it is said once"
    assert [line.split(" ", 1)[1] for line in blind.docker("logs", container).splitlines()] == [
        "begins",
        "has ended with exit code 3",
    ]
