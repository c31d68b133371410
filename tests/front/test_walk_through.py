"""docs/debugging.md, walked: each command of the page is executed on a real site, and each line of it is looked for in what is real.

The scenes of the second part (a run that waits, one that fails, an agent that dies...) are made here; what the page says of them is checked.
"""

import hashlib
import itertools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import real_site
import walk_page
from books import events
from browser import Browser
from real_site import Site, until
from test_secrets import _words
from walk_page import MORE, Block, Reality

from jobscribe.protocol.ids import derived_id

SECS = 20.0
#: The page's example user, and those who take the places in the queue.
ANN, OTHERS = "ann", ("bob", "carl", "dora", "emil")
REPORT = "heightWeightReport"
KINDS = {"sh", "sh journal", "text", "log"}
TOOLS = ("curl", "jq")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"the page's commands need {' and '.join(MISSING)}; etc/engines/command.sh installs them")


class Walk:
    """The page on one site. Sections run once, whoever needs them first."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.ann = Browser(site).sign_in(ANN)
        self.reality = Reality(str(site.root), socket.gethostname())
        self.jid = f"{self.ann.uid}-Wd3xLq8B-{REPORT}"
        self._state = site.place / "shell"
        self._state.write_text("")
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")} | {"PATH": f"{self._tools()}:{os.environ['PATH']}"}
        self._marks: dict[Path, int] = {}
        self._done: set[str] = set()
        self._last_second = ""

    def _tools(self) -> Path:
        """A folder with the command line, as it is installed."""
        folder = self.site.place / "bin"
        folder.mkdir()
        command = folder / "jobscribe"
        command.write_text(
            f'#!/bin/sh\nPYTHONPATH={shlex.quote(real_site.PYTHON_PATH)} exec {shlex.quote(sys.executable)} -m jobscribe.cli "$@"\n'
        )
        command.chmod(0o755)
        return folder

    # ---- sections

    def section(self, name: str, scene: Callable[[], None] = lambda: None) -> None:
        """Set the scene, then check what the page says below this heading, in order."""
        if name in self._done:
            return
        self._done.add(name)
        self._marks = {path: len(lines) for path, lines in self._logs().items()}
        self._last_second = ""
        scene()
        mine = [b for b in walk_page.blocks() if b.section == name]
        assert mine, f"the page has no section {name!r} with blocks"
        said: str | None = None
        for block in mine:
            match block.kind:
                case "sh":
                    said = self.execute(block)
                case "text":
                    assert said is not None, f"line {block.line}: nothing was executed before this"
                    self._same(block, said.splitlines())
                case "log":
                    for line in block.lines:
                        self._find(block, line)

    # ---- commands

    def execute(self, block: Block, before: str = "", wrap: tuple[str, ...] = ()) -> str:
        """What the commands print; they share variables, functions and folder with those before them."""
        state = shlex.quote(str(self._state))
        script = "\n".join([
            "set -eu -o pipefail", f". {state}", before, self.reality.text("\n".join(block.lines)),
            f'{{ declare -f; export -p; declare -p front jar jid run 2>/dev/null || true; echo "cd $(pwd)"; }} > {state}',
        ])
        done = subprocess.run(
            [*wrap, "bash", "-c", script], cwd=self.site.place, env=self._env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"line {block.line} of the page: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.stderr == "", f"line {block.line} of the page: {done.stderr}"
        return done.stdout

    def _same(self, block: Block, real: list[str]) -> None:
        at, skip = 0, False
        for n, example in enumerate(block.lines):
            if example == MORE:
                skip = True
                continue
            found = next((i for i in range(at, len(real)) if self.reality.matches(example, real[i])), None) if skip else (
                at if at < len(real) and self.reality.matches(example, real[at]) else None
            )
            assert found is not None, f"line {block.line + n} of the page is not there:\n{example}\n--- but\n" + "\n".join(real[at:])
            at, skip = found + 1, False
        assert skip or at == len(real), f"the page leaves out, after line {block.line + len(block.lines) - 1}:\n" + "\n".join(real[at:])

    # ---- logs

    def _logs(self) -> dict[Path, list[str]]:
        """Lines of the front end's, the supervisor's, and of the logs of Ann's agents and keepers."""
        root = self.site.root
        paths = [root / "log" / "server.log", root / "log" / "supervisor.log", *sorted(root.glob(f"agent/*.{self.ann.uid}@*/*.log"))]
        return {p: p.read_text(encoding="utf-8").splitlines() for p in paths if p.exists()}

    def _find(self, block: Block, example: str) -> None:
        """The next such line of its log, not before the line that the page has before it."""
        assert walk_page.stamped(example), f"line {block.line}: not a log line: {example}"

        def look() -> tuple[Path, int, str] | None:
            for path, lines in self._logs().items():
                for n in range(self._marks.get(path, 0), len(lines)):
                    if _second(lines[n]) >= self._last_second and self.reality.matches(example, lines[n]):
                        return path, n, lines[n]
            return None

        deadline = time.monotonic() + SECS
        while (found := look()) is None:
            if time.monotonic() > deadline:
                logs = "\n".join(line for path, lines in self._logs().items() for line in lines[self._marks.get(path, 0) :])
                pytest.fail(f"line {block.line}: this is in no log, at this place:\n{example}\nwith {self.reality.bound}\n--- what is there:\n{logs[-20000:]}")
            time.sleep(0.05)
        path, n, line = found
        self._marks[path], self._last_second = n + 1, _second(line)

    # ---- scenes

    def simulation(self, sid: str, report: str = REPORT, simulation_type: str = "myapp", **fields: Any) -> dict[str, Any]:
        return {**self.ann.simulation(report, simulation_type, **fields), "simulationId": sid}


def _second(line: str) -> str:
    """Month by number: it is compared."""
    months = {m: f"{n:02d}" for n, m in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"))}
    return months.get(line[:3], "") + line[3:15] if walk_page.stamped(line) else ""


@pytest.fixture(scope="module")
def walk(site: Site) -> Walk:
    return Walk(site)


def _walked(walk: Walk) -> Walk:
    walk.section("The walk")
    return walk


# ---- the page


def test_every_block_of_the_page_is_checked_by_somebody() -> None:
    there = {(b.section, b.kind) for b in walk_page.blocks()}
    assert {kind for _, kind in there} == KINDS
    source = Path(__file__).read_text()
    unknown = {s for s, _ in there if f'.section("{s}"' not in source}
    assert unknown == set(), "sections with blocks that no test walks"
    for before, block in itertools.pairwise(walk_page.blocks()):
        assert block.kind != "text" or (before.kind, before.section) == ("sh", block.section), f"line {block.line}: output of nothing"


def test_the_walk_is_as_the_page_says(walk: Walk) -> None:
    _walked(walk)
    bound, record = walk.reality.bound, walk.ann.status({"simulationType": "myapp", "simulationId": "Wd3xLq8B", "report": REPORT})
    (placed,) = [e["event"] for e in events(walk.site.root) if e["type"] == "TaskPlaced" and e["stream"] == f"job/{walk.jid}"]
    assert bound["nz5CGo"] == placed["opId"][:6]
    assert (bound["1795250119"], bound["91dcedd8b90c162b139542ffaac34301"]) == (str(record["computeJobSerial"]), record["computeJobHash"])
    assert bound["m2cW"] == _agent_id(walk)[:4]


def test_what_is_known_of_it_can_be_read_as_the_page_says(walk: Walk) -> None:
    _read(_walked(walk))


def _read(walk: Walk) -> None:
    record = walk.site.root / "supervisor-job" / f"{walk.jid}.json"
    # it may lag a second behind, as the page says
    walk.section("Reading it", lambda: until(lambda: record.exists() and json.loads(record.read_text())["status"] == "completed", "the record is written"))


def test_the_journal_has_the_same_lines(walk: Walk) -> None:
    """A journal of its own, so that the machine's is left alone: what `up` wrote is handed to it as a service's output is."""
    _walked(walk)
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode or not shutil.which("journalctl"):
        pytest.skip("a private journal needs root, mount namespaces and systemd-journald")
    (block,) = [b for b in walk_page.blocks() if b.kind == "sh journal"]
    log = walk.site.place / "up.log"
    said = walk.execute(block, before=JOURNAL.replace("LOG", shlex.quote(str(log))), wrap=("unshare", "--mount"))
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
        # the one that the page names comes last: lists begin with it
        blockers[0], blockers[-1] = (blockers[0][0], blockers[-1][1]), (blockers[-1][0], blockers[0][1])
        for other, simulation in reversed(blockers):
            other.run(simulation)
            other.until_state(simulation, "running")
        assert walk.ann.run(walk.simulation("Ja5nV0rC"))["state"] == "pending"

    try:
        walk.section("It stays pending", scene)
    finally:
        for other, simulation in blockers:
            other.cancel(simulation)
    assert walk.ann.until_state(walk.simulation("Ja5nV0rC"), "completed")


def test_one_that_fails(walk: Walk) -> None:
    def scene() -> None:
        walk.ann.post("/stateful-compute", simulationType="myapp", method="addDog", args={"name": "Fido", "height": 40, "weight": 12})
        said = walk.ann.finished(walk.simulation("Pk8dTs2M", dog="Rex"))
        assert (said["state"], said["error"]) == ("error", "you have no dog named 'Rex'")

    _walked(walk).section("It ends as an error", scene)


def test_a_frame_that_fails(walk: Walk) -> None:
    def scene() -> None:
        simulation = walk.simulation("Xm1cRb7Q", "heatAnimation", "heat", frames=3)
        status = walk.ann.finished(simulation)
        assert walk.ann.frame(simulation, status, 90).code == 422

    _walked(walk).section("A frame fails", scene)


def test_a_page_without_plots(walk: Walk) -> None:
    _read(_walked(walk))

    def scene() -> None:
        simulation = walk.simulation("Wd3xLq8B", breed="Pug")
        shutil.rmtree(walk.ann.run_dir(simulation))
        assert walk.ann.finished(simulation)["state"] == "completed"

    walk.section("The page shows nothing", scene)


def test_an_agent_that_dies(walk: Walk) -> None:
    simulation = walk.simulation("Gf6yUe3Z", paceSecs=600.0)

    def scene() -> None:
        # a log has whole seconds: what was before the job was in an earlier one
        before = int(time.time())
        until(lambda: int(time.time()) > before, "another second")
        walk.ann.run(simulation)
        walk.ann.until_state(simulation, "running")
        old = walk.site.agent_pid(walk.ann.uid)
        walk.site.kill(old, signal.SIGKILL)
        until(lambda: walk.site.agent_pid(walk.ann.uid) != old, "another agent")

    _walked(walk)
    try:
        walk.section("An agent died", scene)
    finally:
        walk.ann.cancel(simulation)


# ---- what the page promises


def test_a_trace_has_all_of_the_way_and_nothing_of_others(walk: Walk) -> None:
    _walked(walk)
    bob = Browser(walk.site).sign_in("trace's neighbour")
    near = {**bob.simulation(REPORT, "myapp"), "simulationId": "Wd3xLq8B"}
    bob.finished(near)
    trace = walk.site.post("trace", id=walk.jid, logs=True)
    lines = {s: [x["text"] for x in trace["lines"] if x["source"] == s] for s in {x["source"] for x in trace["lines"]}}
    assert {"log/server.log", "log/supervisor.log", f"agent/local.sequential.{walk.ann.uid}@localhost/agent.log"} <= set(lines)
    for path, of_file in walk._logs().items():
        wanted = [line for line in of_file if walk.jid in line]
        assert [x for x in lines.get(str(path.relative_to(walk.site.root)), []) if walk.jid in x] == wanted
    assert not [text for of in lines.values() for text in of if bob.uid in text]
    assert trace["gaps"] == []
    short = walk.site.post("trace", id=walk.reality.bound["nz5CGo"], logs=True)
    assert [x["text"] for x in short["lines"]] == [x["text"] for x in trace["lines"]]
    assert "lines" not in walk.site.post("trace", id=walk.jid)


def test_no_secret_of_the_run_is_in_any_file_of_it(walk: Walk) -> None:
    _walked(walk)
    root = walk.site.root
    secrets = {name: (root / "secret" / name).read_text().strip() for name in ("server", "agents")}
    secrets |= {"agentId": _agent_id(walk), "cookie": walk.ann._cookie.partition("=")[2]}
    if os.geteuid() == 0:
        digests = {e["event"]["tokenHash"] for e in events(root) if e["type"] == "AgentStartRequested"}
        tokens = {w for w in _words(walk.site.agent_pid(walk.ann.uid)) if hashlib.sha256(w.encode()).hexdigest() in digests}
        assert tokens, "no token was found in the agent's memory: this test would not see one elsewhere"
        secrets |= {f"token {n}": t for n, t in enumerate(sorted(tokens))}
    looked = list(_files(walk.site.place))
    assert {"server.log", "supervisor.log", "agent.log", "script.sh", "input.json", "up.log"} <= {p.name for p in looked}
    for path in looked:
        content = path.read_bytes()
        for name, secret in secrets.items():
            assert secret.encode() not in content, (name, path)


def _files(place: Path) -> Iterator[Path]:
    for path in place.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.name != "client.json" and path.parent.name != "secret":
            yield path


def _agent_id(walk: Walk) -> str:
    key = walk.site.agent_key(walk.ann.uid)
    return derived_id(str(key).encode(), key=(walk.site.root / "secret" / "agents").read_text().strip().encode())

