"""docs/debugging-the-system.md, "Follow a run on a cluster": every command is executed on a real
Slurm, and every line is searched in real logs.
"""

import itertools
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_executor import DocsExecutor, Logs
from docs_parser import Page
from login_nodes import Users
from slurm_cluster import Slurm
from slurm_supervisor import SlurmSupervisor, batch_site
from supervisor_process import spec, until

UID, SECTION = "qsOpzxM9", "Follow a run on a cluster"
#: The example ids of the section, with patterns of real ids.
PAGE = Page(
    "debugging-the-system.md",
    {
        "mutYI5WuFkIg0WJjNhkpbNHN": r"[A-Za-z0-9]{24}",
        "Tq6mHw3Z": r"[A-Za-z0-9]{8}",
        "k3v9x2ab": r"[a-z0-9]{8}",
        "1795306987": r"\d{10}",
        "LfXACk": r"[A-Za-z0-9]{6}",
        "SMVs": r"[A-Za-z0-9]{4}",
        **dict.fromkeys(("4711", "4712", "4713"), r"\d+"),
    },
    deep=True,
)

pytestmark = pytest.mark.skipif(
    shutil.which("jq") is None,
    reason="the page's commands need jq; etc/engines/command.sh installs it",
)


class Walk:
    """The section, executed on one site."""

    def __init__(self, at: SlurmSupervisor) -> None:
        self.at, self.scratch = at, at.users.home("alice") / "scratch"
        self.walker = DocsExecutor(
            PAGE,
            at.site.place,
            at.site.root,
            socket.gethostname(),
            self.logs,
            at.slurm.env,
            {"/scratch/ann": str(self.scratch)},
        )

    def logs(self) -> Logs:
        """Return the log lines of the supervisor, and of keepers and agents on the cluster."""
        paths = [
            self.at.site.root / "log" / "supervisor.log",
            *self.scratch.glob("jobscribe-*/job_agent.log"),
        ]
        return {p: p.read_text(encoding="utf-8").splitlines() for p in paths if p.exists()}

    @property
    def jid(self) -> str:
        """The jid of the first run."""
        return f"{UID}-{self.walker.reality.bound['Tq6mHw3Z']}-command"

    @property
    def number(self) -> str:
        """The number of its Slurm job."""
        return self.walker.reality.bound["4711"]

    def section(self, part: str = "") -> None:
        self.walker.section(f"{SECTION}: {part}" if part else SECTION)

    def submit(self, sid: str, *command: str, **fields: object) -> dict[str, object]:
        run = {
            **spec(command, UID, batch={"memoryMb": 50, "account": "research", **fields}),
            "simulationId": sid,
        }
        self.at.site.submit(run)
        return run


@pytest.fixture(scope="module")
def walk(_cluster: tuple[Slurm, Users]) -> Iterator[Walk]:
    with batch_site(
        _cluster, clusters={"hpc": {"directives": ["exclusive"]}}, people={UID: "alice"}
    ) as at:
        yield Walk(at)


def test_every_block_is_checked_by_somebody() -> None:
    blocks = [b for b in PAGE.blocks() if b.section.startswith(SECTION)]
    assert {b.kind for b in blocks} == {"sh", "text", "log"}
    source = Path(__file__).read_text()
    parts = {b.section.removeprefix(SECTION).removeprefix(": ") for b in blocks}
    assert [
        p for p in parts if f".section({f'{chr(34)}{p}{chr(34)}' if p else ''})" not in source
    ] == []
    for before, block in itertools.pairwise(blocks):
        assert block.kind != "text" or (before.kind, before.section) == ("sh", block.section), (
            f"line {block.line}: output of nothing"
        )


def test_one_request_is_followed_through_every_log(walk: Walk) -> None:
    walk.section()
    until(
        lambda: [j.state for j in walk.at.slurm.accounted(job=walk.number)] == ["COMPLETED"],
        "accounting knows it",
        60,
        0.2,
    )
    walk.section("Look up a run by any of its ids")
    # a trace names the logs that it lacks: this one is not in the root
    gaps = walk.at.site.post("trace", id=walk.jid, logs=True)["gaps"]
    assert f"the log of its agent is on the cluster hpc: jobscribe agent logs {walk.jid}" in gaps, (
        gaps
    )


def test_one_that_waits(walk: Walk) -> None:
    everywhere = {"nodes": 3, "directives": ["exclusive"]}
    holder = walk.submit("Hc2wYo9D", "sleep", "600", **everywhere)
    try:
        walk.at.running(holder)
        waits = walk.submit("Ja5nV0rC", "true", **everywhere)
        walk.at.until(
            waits, lambda said: said.get("batch", {}).get("reason") == "Resources", "it is next"
        )
        walk.section("A run that waits in Slurm's queue")
    finally:
        walk.at.slurm.cancel_all()


def test_one_that_slurm_killed(walk: Walk) -> None:
    if "CGROUP=0" in (walk.at.slurm.place / "parameters").read_text():
        pytest.skip("memory is held by cgroups v1 only, which this machine does not have")
    walk.at.over(
        walk.submit("Pk8dTs2M", "sh", "-c", "sleep 1; head -c 300M /dev/zero | tail"),
        "error",
        "scheduler",
    )
    walk.section("A run that Slurm killed")
