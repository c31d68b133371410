"""Log search for one job: the lines found in the log files of a root, and the messages about
missing logs.
"""

import json
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobscribe.protocol.ids import AgentKey
from jobscribe.supervisor.tracing import log_search
from jobscribe.supervisor.tracing.log_search import AgentQuery, JobQuery, lines

JID = "LoIEQ6fa-Mtk0hZyj-heightWeightReport"
NOW = float(int(time.time()))
ABOUT = JobQuery(
    JID, "myapp", frozenset({"pb5uQ2" + "x" * 26}), frozenset({"request-1"}), NOW - 60, math.inf
)
AGENT = "agent/local.sequential.LoIEQ6fa@localhost"


def said(text: str, ago: float = 10.0) -> str:
    return f"{datetime.fromtimestamp(NOW - ago, UTC):%b %d %H:%M:%S}  1234     0 a/b.py:1:c {text}"


def write(root: Path, name: str, *texts: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(t + "\n" for t in texts))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with every log, from before the job on."""
    for name in ("log/server.log", "log/supervisor.log", f"{AGENT}/agent.log"):
        write(tmp_path, name, said("begins", 100))
    return tmp_path


def texts(root: Path, about: JobQuery = ABOUT) -> list[str]:
    return [line.text.split(" ", 5)[-1].split(":c ")[-1] for line in lines(str(root), about)[0]]


@pytest.mark.parametrize(
    "text",
    [
        f"ServerReq(api_runSimulation, {JID})",
        "_Op(run, pb5uQ2) runDir=/x",
        "opName=run o=pb5uQ2 runDir=None",
        f"cmd=_Cmd(jid={JID} o=aaaaaa)",
        "content={'reqId': 'request-1', 'x': 1}",
        "runDir=/r/user/LoIEQ6fa/myapp/Mtk0hZyj/heightWeightReport seconds=1",
        "GET /simulation-frame/3*heightWeightReport*Mtk0hZyj*myapp*abc*17 uid=LoIEQ6fa refused: appRefused: no",
        f"task {JID}/17/1/main/0 is here",
    ],
)
def test_a_line_about_the_job_is_found(root: Path, text: str) -> None:
    write(root, "log/supervisor.log", said("begins", 100), said(text))
    assert texts(root) == [text]


@pytest.mark.parametrize(
    "text",
    [
        f"ServerReq(api_runSimulation, {JID}2)",
        "LoIEQ6fa-Mtk0hZyj-other",
        "o=pb5uQ2a",
        "o=Xpb5uQ2",
        "'reqId': 'request-10'",
        "a request-1 by chance",
        "runDir=/r/user/LoIEQ6fa/myapp/Mtk0hZyj/heightWeightReport2",
        "GET /simulation-frame/3*h*Mtk0hZyj*myapp*abc*17 uid=Another1 refused: x: no",
        "Another1-Mtk0hZyj-heightWeightReport",
    ],
)
def test_a_line_about_something_else_is_not(root: Path, text: str) -> None:
    write(root, "log/supervisor.log", said("begins", 100), said(text))
    assert texts(root) == []


def test_what_was_computed_from_it_is_found_at_the_agent_by_its_op(root: Path) -> None:
    write(
        root,
        "log/supervisor.log",
        said(f"ServerReq(api_simulationFrame, {JID}) _Op(analysis, wduADL)"),
    )
    write(
        root,
        f"{AGENT}/agent.log",
        said("begins", 100),
        said("opName=analysis o=wduADL outcome=ok"),
        said("opName=analysis o=wduADM outcome=ok"),
    )
    assert texts(root)[1:] == ["opName=analysis o=wduADL outcome=ok"]


def test_only_the_logs_of_its_users_agents_are_read(root: Path) -> None:
    write(root, "agent/local.sequential.Another1@localhost/agent.log", said(f"jid={JID}"))
    write(root, "agent/login-environment.json", "{}")
    (root / "agent/docker.container.LoIEQ6fa@h1/ledger").mkdir(parents=True)
    assert lines(str(root), ABOUT) == ([], []), (
        "nor is any missed where tasks have containers of their own"
    )


def test_deaths_and_starts_of_its_agents_are_told_of_the_time_of_the_job(root: Path) -> None:
    about = ABOUT._replace(until=NOW - 20)
    for name, text in (
        ("keeper", "the agent, pid 1, ended by signal 9"),
        ("agent", "agent local.sequential.LoIEQ6fa@localhost starts, keeper pid 1"),
    ):
        write(root, f"{AGENT}/{name}.log", *(said(f"{text} {ago}", ago) for ago in (90, 30, 5)))
    assert sorted(t.rsplit(" ", 1)[1] for t in texts(root, about)) == ["30", "30"]


def test_pulls_on_its_hosts_are_told_of_the_time_of_the_job(root: Path) -> None:
    about = ABOUT._replace(until=NOW - 20, hosts=frozenset({"h1", "h.2"}))
    pulls = [("h1", 30), ("h.2", 30), ("h1", 90), ("h1", 5), ("hx2", 30), ("h3", 30)]
    write(
        root,
        "log/supervisor.log",
        *(said(f"docker host {host}: pulled busybox in {ago} s", ago) for host, ago in pulls),
    )
    assert texts(root, about) == [
        "docker host h1: pulled busybox in 30 s",
        "docker host h.2: pulled busybox in 30 s",
    ]
    assert texts(root) == []


OF_AGENT = AgentQuery(
    AgentKey("local", "sequential", "LoIEQ6fa", "localhost"), "T1kX", NOW - 60, NOW - 5
)


@pytest.mark.parametrize(
    "text",
    [
        "LocalDriver(a=T1kX k=sequential u=LoIE []) start",
        f"{AGENT.removeprefix('agent/')} is not ready for its user: no",
        "an agent ended o=None a=T1kX",
        'x {"agent": "T1kX"}',
    ],
)
def test_what_the_supervisor_did_with_an_agent_is_found(root: Path, text: str) -> None:
    write(root, "log/supervisor.log", said(text, 90), said(text), said(text, 1))
    (line,) = lines(str(root), OF_AGENT)[0]
    assert line.text == said(text)


@pytest.mark.parametrize(
    "text",
    [
        "a=T1kY",
        "a=T1kX2",
        "ba=T1kX",
        "local.sequential.LoIEQ6fa@localhost2",
        "a=t1kx",
        "docker host h1: pulled busybox in 3 s",
        JID,
    ],
)
def test_of_an_agent_nothing_else_is(root: Path, text: str) -> None:
    write(root, "log/supervisor.log", said("begins", 100), said(text))
    assert lines(str(root), OF_AGENT) == ([], [])
    assert lines(str(root), OF_AGENT._replace(short=""))[0] == []


def test_all_that_an_agent_and_its_keeper_wrote_in_that_time_is_told(root: Path) -> None:
    for name in ("agent", "keeper"):
        write(root, f"{AGENT}/{name}.log", *(said(f"{name} {ago}", ago) for ago in (90, 30, 10, 1)))
    write(root, "agent/local.sequential.Another1@localhost/agent.log", said("of another"))
    assert [line.text.split(":c ")[1] for line in lines(str(root), OF_AGENT)[0]] == [
        "agent 30",
        "agent 10",
        "keeper 30",
        "keeper 10",
    ]


def test_an_agent_elsewhere(root: Path) -> None:
    """For an agent in a container, the image pulls of its host are shown. On a cluster, the answer
    names the place of the log. Single tasks have no agent log.
    """
    write(
        root,
        "log/supervisor.log",
        said("begins", 100),
        said("docker host h1: pulled busybox in 3 s"),
        said("docker host h2: pulled busybox in 4 s"),
    )
    boxed = OF_AGENT._replace(key=AgentKey("docker", "container", "LoIEQ6fa", "h1"))
    found, gaps = lines(str(root), boxed)
    assert [line.text.split(":c ")[1] for line in found] == [
        "docker host h1: pulled busybox in 3 s"
    ] and gaps == []
    there = OF_AGENT._replace(key=AgentKey("sbatch", "parallel", "LoIEQ6fa", "hpc"))
    assert lines(str(root), there) == (
        [],
        [
            "the log of the agent is on the cluster hpc: jobscribe agent logs sbatch.parallel.LoIEQ6fa@hpc"
        ],
    )


def test_files_from_before_the_job_are_not_read_and_are_no_gap(root: Path) -> None:
    old = root / "log/supervisor.log.1"
    write(root, "log/supervisor.log.1", said(f"{JID} of an earlier run", 7000))
    os.utime(old, (NOW - 6000, NOW - 6000))
    write(root, "log/supervisor.log", said("begins", 30), said(JID, 20))
    assert texts(root) == [JID] and lines(str(root), ABOUT)[1] == []


def test_rotated_files_are_one_log_and_the_newest_bytes_are_looked_at(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, name in enumerate(("supervisor.log.2", "supervisor.log.1", "supervisor.log")):
        write(root, f"log/{name}", *(said(f"{JID} {n} {i}", 100 - 30 * n) for i in range(1000)))
    assert [t.split(" ", 1)[1] for t in texts(root)] == [f"2 {i}" for i in range(1000)][
        -log_search.NEWEST_LINES :
    ]
    assert (
        "log/supervisor.log has 2500 more lines about it, older than these"
        in lines(str(root), ABOUT)[1]
    )
    monkeypatch.setattr(log_search, "NEWEST_LINES", 10**6)
    assert [t.split(" ", 1)[1] for t in texts(root)] == [
        f"{n} {i}" for n in range(3) for i in range(1000)
    ]
    monkeypatch.setattr(
        log_search, "NEWEST_BYTES", (root / "log" / "supervisor.log").stat().st_size + 1000
    )
    found, gaps = lines(str(root), ABOUT)
    assert 1000 < len(found) < 1020 and all(f.text.startswith(said("")[:3]) for f in found)
    assert gaps == []


@pytest.mark.parametrize("block", [64, 1000])
def test_no_line_is_cut_or_lost_between_what_is_read_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(log_search, "_BLOCK", block)
    write(root, "log/supervisor.log", *(said(f"{JID} {'x' * i}", 100) for i in range(300)))
    assert texts(root) == [f"{JID} {'x' * i}" for i in range(300)]


def test_a_log_that_is_missing_or_begins_too_late_is_said(tmp_path: Path) -> None:
    write(tmp_path, "log/supervisor.log", said("begins", 30))
    found, gaps = lines(str(tmp_path), ABOUT)
    assert found == [] and len(gaps) == 2
    assert gaps[0].startswith("there is no log/server.log") and gaps[1].startswith(
        "log/supervisor.log begins at "
    )


def test_an_agent_that_came_later_is_no_gap(root: Path) -> None:
    write(root, f"{AGENT}/agent.log", said("begins", 30))
    assert lines(str(root), ABOUT)[1] == []


def test_lines_of_json_are_found_and_timed(root: Path) -> None:
    at = datetime.fromtimestamp(NOW - 7, UTC)
    line = json.dumps({"jid": JID, "at": f"{at:%Y-%m-%dT%H:%M:%S}.250Z", "message": "x"})
    write(root, "log/supervisor.log", line)
    assert lines(str(root), ABOUT)[0] == [
        log_search.Line(NOW - 6.75, "log/supervisor.log", line, exact=True)
    ]


@pytest.mark.parametrize(
    ("stamp", "year"),
    [
        ("Dec 31 23:59:59", 2025),
        ("Jan 01 00:00:00", 2026),
        ("Jan 02 11:00:00", 2026),
        ("Jan 05 00:00:00", 2025),
    ],
)
def test_a_line_has_no_year_so_it_is_of_the_newest_that_is_past(stamp: str, year: int) -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
    at = log_search._at(f"{stamp}  1234     0 a.py:1:b c".encode(), now)
    assert at is not None
    assert f"{datetime.fromtimestamp(at, UTC):%Y %b %d %H:%M:%S}" == f"{year} {stamp}"
