"""Walk-through of docs/debugging.md: each command of the page is executed on a real site, and each
line of the page is searched in the real output and logs.

This module also sets the scenes of the second part (a run that waits, a run that fails, an agent
that dies) and checks the page's statements about them.
"""

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from consistency_check import events
from docs_executor import DocsExecutor, Logs
from docs_parser import Page
from http_browser import Browser
from process_memory import tokens_in
from supervisor_process import SupervisorProcess, texts_below, until

from jobscribe.protocol.ids import derived_id

#: The page's example user, and the users who occupy the slots.
ANN, OTHERS = "ann", ("bob", "carl", "dora", "emil")
REPORT = "heightWeightReport"
KINDS = {"sh", "sh journal", "text", "log"}
TOOLS = ("curl", "jq")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]

pytestmark = pytest.mark.skipif(
    bool(MISSING),
    reason=f"the page's commands need {' and '.join(MISSING)}; etc/engines/command.sh installs them",
)


#: The example ids of the page, with the format of real ids.
PAGE = Page(
    "debugging.md",
    {
        "RYwpUQzq69GexBjfbZ6fT5H7": r"[A-Za-z0-9]{24}",
        "bfd817d1784d46cb64a982e12629222e": r"[0-9a-f]{32}",
        "91dcedd8b90c162b139542ffaac34301": r"[0-9a-f]{32}",
        "3bc15de8fb1c163ab44f07b40c2d61bd": r"[0-9a-f]{32}",
        "1795250119": r"\d{10}",
        "1795250142": r"\d{10}",
        "m2cW": r"[A-Za-z0-9]{4}",
        **dict.fromkeys(("nz5CGo", "wduADL", "Jl1v3o", "DSz57y", "o6NE1b"), r"[A-Za-z0-9]{6}"),
    },
)


class Walk:
    """The page on one site."""

    def __init__(self, site: SupervisorProcess) -> None:
        self.site = site
        self.ann = Browser(site).sign_in(ANN)
        self.walker = DocsExecutor(PAGE, site.place, site.root, socket.gethostname(), self.logs)
        self.reality, self.section, self.execute = (
            self.walker.reality,
            self.walker.section,
            self.walker.execute,
        )
        self.jid = f"{self.ann.uid}-Wd3xLq8B-{REPORT}"

    def logs(self) -> Logs:
        """Return the log lines of front end and supervisor, and of Ann's agents and keepers."""
        root = self.site.root
        paths = [
            root / "log" / "server.log",
            root / "log" / "supervisor.log",
            *sorted(root.glob(f"agent/*.{self.ann.uid}@*/*.log")),
        ]
        return {p: p.read_text(encoding="utf-8").splitlines() for p in paths if p.exists()}

    # ---- scenes

    def simulation(
        self, sid: str, report: str = REPORT, simulation_type: str = "myapp", **fields: Any
    ) -> dict[str, Any]:
        return {**self.ann.simulation(report, simulation_type, **fields), "simulationId": sid}


@pytest.fixture(scope="module")
def site(sites: Any) -> SupervisorProcess:
    """Return a site where every run waits in the queue, as the page shows it."""
    slots = ("slots.local_sequential=4", "slots.local_parallel=4")
    return sites.make(*slots, "limits.placed_ahead_secs=0")


@pytest.fixture(scope="module")
def walk(site: SupervisorProcess) -> Walk:
    return Walk(site)


def _walked(walk: Walk) -> Walk:
    walk.section("Follow a healthy run")
    return walk


# ---- the page


def test_every_block_of_the_page_is_checked_by_somebody() -> None:
    there = {(b.section, b.kind) for b in PAGE.blocks()}
    assert {kind for _, kind in there} == KINDS
    source = Path(__file__).read_text()
    unknown = {s for s, _ in there if not re.search(rf'\.section\(\s*"{re.escape(s)}"', source)}
    assert unknown == set(), "sections with blocks that no test walks"
    for before, block in itertools.pairwise(PAGE.blocks()):
        assert block.kind != "text" or (before.kind, before.section) == ("sh", block.section), (
            f"line {block.line}: output of nothing"
        )


def test_the_walk_is_as_the_page_says(walk: Walk) -> None:
    _walked(walk)
    bound, record = (
        walk.reality.bound,
        walk.ann.status({"simulationType": "myapp", "simulationId": "Wd3xLq8B", "report": REPORT}),
    )
    (placed,) = [
        e["event"]
        for e in events(walk.site.root)
        if e["type"] == "TaskPlaced" and e["stream"] == f"job/{walk.jid}"
    ]
    assert bound["nz5CGo"] == placed["opId"][:6]
    assert (bound["1795250119"], bound["91dcedd8b90c162b139542ffaac34301"]) == (
        str(record["computeJobSerial"]),
        record["computeJobHash"],
    )
    assert bound["m2cW"] == _agent_id(walk)[:4]


def test_what_is_known_of_it_can_be_read_as_the_page_says(walk: Walk) -> None:
    _read(_walked(walk))


def _read(walk: Walk) -> None:
    record = walk.site.root / "supervisor-job" / f"{walk.jid}.json"
    # the list may lag by a second, as the page says
    walk.section(
        "Inspect a run",
        lambda: until(
            lambda: record.exists() and json.loads(record.read_text())["status"] == "completed",
            "the record is written",
        ),
    )


def test_the_journal_has_the_same_lines(walk: Walk) -> None:
    """A separate journal leaves the machine's journal unchanged. The output of `up` is passed to it
    like the output of a service.
    """
    _walked(walk)
    if (
        os.geteuid() != 0
        or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode
        or not shutil.which("journalctl")
    ):
        pytest.skip("a private journal needs root, mount namespaces and systemd-journald")
    (block,) = [b for b in PAGE.blocks() if b.kind == "sh journal"]
    log = walk.site.place / "up.log"
    said = walk.execute(
        block, before=JOURNAL.replace("LOG", shlex.quote(str(log))), wrap=("unshare", "--mount")
    )
    wanted = [line[:150] for line in log.read_text().splitlines() if walk.jid in line]
    assert said.splitlines() == wanted and len(wanted) > 10


JOURNAL = """
mount --make-rprivate / && mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journal /run/systemd/journald.conf.d /run/log/journal
printf '%s\\n' '[Journal]' Storage=volatile ReadKMsg=no Audit=no RateLimitBurst=0 LineMax=1M > /run/systemd/journald.conf.d/own.conf
/lib/systemd/systemd-journald & trap "kill $!" EXIT
for i in $(seq 100); do [ -S /run/systemd/journal/stdout ] && break; sleep 0.1; done
systemd-cat -t jobscribe cat LOG
for i in $(seq 100); do [ $(journalctl -q -t jobscribe -o cat | wc -l) -ge $(wc -l < LOG) ] && break; sleep 0.1; done
"""


def test_one_that_waits(walk: Walk) -> None:
    _walked(walk)
    site, blockers = walk.site, []

    def scene() -> None:
        for n, name in enumerate(OTHERS):
            other = Browser(site).sign_in(name)
            sid = "Hc2wYo9D" if n == len(OTHERS) - 1 else f"Hc2wYo9{n}"
            simulation = {**other.simulation(REPORT, "myapp", paceSecs=600.0), "simulationId": sid}
            blockers.append((other, simulation))
        # the run that the page names starts last, because lists begin with the newest
        blockers[0], blockers[-1] = (
            (blockers[0][0], blockers[-1][1]),
            (blockers[-1][0], blockers[0][1]),
        )
        for other, simulation in reversed(blockers):
            other.run(simulation)
            other.until_state(simulation, "running")
        assert walk.ann.run(walk.simulation("Ja5nV0rC"))["state"] == "pending"

    try:
        walk.section("Find out why a run stays pending", scene)
    finally:
        for other, simulation in blockers:
            other.cancel(simulation)
    assert walk.ann.until_state(walk.simulation("Ja5nV0rC"), "completed")


def test_one_that_fails(walk: Walk) -> None:
    def scene() -> None:
        walk.ann.post(
            "/stateful-compute",
            simulationType="myapp",
            method="addDog",
            args={"name": "Fido", "height": 40, "weight": 12},
        )
        said = walk.ann.finished(walk.simulation("Pk8dTs2M", dog="Rex"))
        assert (said["state"], said["error"]) == ("error", "you have no dog named 'Rex'")

    _walked(walk).section("Find out why a run failed", scene)


def test_a_frame_that_fails(walk: Walk) -> None:
    def scene() -> None:
        simulation = walk.simulation("Xm1cRb7Q", "heatAnimation", "heat", frames=3)
        status = walk.ann.finished(simulation)
        assert walk.ann.frame(simulation, status, 90).code == 422

    _walked(walk).section("Find out why a frame fails", scene)


def test_a_page_without_plots(walk: Walk) -> None:
    _read(_walked(walk))

    def scene() -> None:
        simulation = walk.simulation("Wd3xLq8B", breed="Pug")
        shutil.rmtree(walk.ann.run_dir(simulation))
        assert walk.ann.finished(simulation)["state"] == "completed"

    walk.section("Find out why a page shows nothing", scene)


def test_an_agent_that_dies(walk: Walk) -> None:
    simulation = walk.simulation("Gf6yUe3Z", paceSecs=600.0)

    def scene() -> None:
        # log times are whole seconds: lines before the job must be in an earlier second
        before = int(time.time())
        until(lambda: int(time.time()) > before, "another second")
        walk.ann.run(simulation)
        walk.ann.until_state(simulation, "running")
        old = walk.site.agent_pid(walk.ann.uid)
        walk.site.kill(old, signal.SIGKILL)
        until(lambda: walk.site.agent_pid(walk.ann.uid) != old, "another agent")

    _walked(walk)
    try:
        walk.section("Diagnose a dead agent", scene)
    finally:
        walk.ann.cancel(simulation)


# ---- promises of the page


def test_a_trace_has_all_of_the_way_and_nothing_of_others(walk: Walk) -> None:
    _walked(walk)
    bob = Browser(walk.site).sign_in("trace's neighbour")
    near = {**bob.simulation(REPORT, "myapp"), "simulationId": "Wd3xLq8B"}
    bob.finished(near)
    trace = walk.site.post("trace", id=walk.jid, logs=True)
    lines = {
        s: [x["text"] for x in trace["lines"] if x["source"] == s]
        for s in {x["source"] for x in trace["lines"]}
    }
    assert {
        "log/server.log",
        "log/supervisor.log",
        f"agent/local.sequential.{walk.ann.uid}@localhost/agent.log",
    } <= set(lines)
    for path, of_file in walk.logs().items():
        wanted = [line for line in of_file if walk.jid in line]
        assert [
            x for x in lines.get(str(path.relative_to(walk.site.root)), []) if walk.jid in x
        ] == wanted
    assert not [text for of in lines.values() for text in of if bob.uid in text]
    assert trace["gaps"] == []
    events = {item["position"]: item["event"]["type"] for item in trace["items"]}
    causes = [x["cause"] for x in trace["lines"] if "_perform_task_effect" in x["text"]]
    assert causes and all(events[c["position"]] == c["name"] == "TaskPlaced" for c in causes)
    short = walk.site.post("trace", id=walk.reality.bound["nz5CGo"], logs=True)
    assert [x["text"] for x in short["lines"]] == [x["text"] for x in trace["lines"]]
    assert "lines" not in walk.site.post("trace", id=walk.jid)


def test_no_secret_of_the_run_is_in_any_file_of_it(walk: Walk) -> None:
    _walked(walk)
    root = walk.site.root
    secrets = {name: (root / "secret" / name).read_text().strip() for name in ("server", "agents")}
    secrets |= {"agentId": _agent_id(walk), "cookie": walk.ann._cookie.partition("=")[2]}
    if os.geteuid() == 0:
        secrets |= {
            f"token {n}": t
            for n, t in enumerate(tokens_in(walk.site, walk.site.agent_pid(walk.ann.uid)))
        }
    looked = {
        p: t
        for p, t in texts_below(walk.site.place).items()
        if p.name not in ("client.json", "root.json") and p.parent.name != "secret"
    }
    assert {"server.log", "supervisor.log", "agent.log", "script.sh", "input.json", "up.log"} <= {
        p.name for p in looked
    }
    for path, content in looked.items():
        for name, secret in secrets.items():
            assert secret.encode() not in content, (name, path)


def _agent_id(walk: Walk) -> str:
    key = walk.site.agent_key(walk.ann.uid)
    return derived_id(
        str(key).encode(), key=(walk.site.root / "secret" / "agents").read_text().strip().encode()
    )
