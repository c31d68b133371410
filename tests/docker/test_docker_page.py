"""docs/debugging-the-system.md, "Follow a run in containers": every command is executed on a real
host, and every line is searched in real logs.
"""

import itertools
from collections.abc import Iterator

import pytest
from docker_hosts import BASE, Host, Sites
from docs_executor import DocsExecutor, Logs
from docs_parser import Block, Page
from supervisor_process import SupervisorProcess, until

from .test_journal_site import found, fresh_uid, journal, messages, pytestmark

SECTION = "Follow a run in containers"
UID, IMAGE = "qsOpzxM9", "solver:7"
AGENT, TASK = f"srj-s-{UID}", f"srj-t-{UID}-52d08cbfcd6a"

PAGE = Page(
    "debugging-the-system.md",
    {
        UID: r"[A-Za-z0-9]{8}",
        UID[:4]: r"[A-Za-z0-9]{4}",
        "ZNjO": r"[A-Za-z0-9]{4}",
        "xuAOStBdzLg60REqFmTJxfbj": r"[A-Za-z0-9]{24}",
        **dict.fromkeys(("Vb4nQe7L", "Tz6hMx2R"), r"[A-Za-z0-9]{8}"),
        **dict.fromkeys(("Is9wSB", "o1NpAB"), r"[A-Za-z0-9]{6}"),
        **dict.fromkeys(("1795306802", "1795306805"), r"\d{10}"),
        **dict.fromkeys(("52d08cbfcd6a", "47939bfc24fe", "8026be9982ac"), r"[0-9a-f]{12}"),
    },
)


@pytest.fixture
def site(journal: None, docker_sites: Sites, host_a: Host) -> Iterator[SupervisorProcess]:
    """Site whose host has the image that the page names."""
    host_a.docker("tag", BASE, IMAGE)
    yield docker_sites.make("log.journald=on", web=True, pool={"hosts": ["a"]}).start()
    host_a.docker("rmi", "-f", IMAGE)


class Walk:
    """The section, executed on one site. The page calls the host node1."""

    def __init__(self, site: SupervisorProcess, host: Host) -> None:
        self.site, self.host, self.uid = site, host, fresh_uid()
        self.walker = DocsExecutor(
            PAGE,
            site.place,
            site.root,
            host.name,
            self.logs,
            {"DOCKER_HOST": f"unix://{host.sock}", "COLUMNS": "200"},
        )
        # a new user: the machine's journal outlives the test and may have entries of older users
        self.walker.reality.bound = {UID: self.uid, UID[:4]: self.uid[:4]}
        self._execute = self.walker.execute
        self.walker.execute = self.when_all_is_told  # type: ignore[method-assign]

    def logs(self) -> Logs:
        paths = [
            self.site.root / "log" / "supervisor.log",
            *sorted(self.site.root.glob(f"agent/*.{self.uid}@*/agent.log")),
        ]
        return {p: p.read_text(encoding="utf-8").splitlines() for p in paths if p.exists()}

    def when_all_is_told(self, block: Block, before: str = "", wrap: tuple[str, ...] = ()) -> str:
        """Wait until all messages are in the journal, which stores them with a delay. Also, a
        daemon that is asked for logs "until now" omits the current second.
        """
        text = "\n".join(block.lines)
        for name, words in ((AGENT, "state=ended"), (TASK, " begins")):
            if "journalctl" in text and f"CONTAINER_NAME={name}" in text:
                real = self.walker.reality.text(name)
                until(
                    lambda real=real, words=words: (
                        words in messages(found(f"CONTAINER_NAME={real}"))
                    ),
                    f"the journal has the lines of {real}",
                )  # type: ignore[misc]
        if "docker events" in text:
            removed = (
                "events",
                "--since",
                "10m",
                "--until",
                "0s",
                "--filter",
                "event=destroy",
                "--filter",
            )
            until(
                lambda: self.host.docker(*removed, self.walker.reality.text(f"container={TASK}")),
                "the daemon tells of the end",
            )
        return self._execute(block, before, wrap)


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    mine = [b for b in PAGE.blocks() if b.section == SECTION]
    assert {b.kind for b in mine} == {"sh", "text", "log"}
    for before, block in itertools.pairwise(mine):
        assert block.kind != "text" or before.kind == "sh", f"line {block.line}: output of nothing"


@pytest.mark.timeout(200)
def test_the_section_is_as_the_page_says(site: SupervisorProcess, host_a: Host) -> None:
    walk = Walk(site, host_a)
    walk.walker.section(SECTION)
    events = site.post(
        "job-story",
        uid=walk.uid,
        computeJid=f"{walk.uid}-{walk.walker.reality.bound['Tz6hMx2R']}-command",
    )["events"]
    (placed,) = [e["event"] for e in events if e["event"]["type"] == "TaskPlaced"]
    assert placed["opId"][:6] == walk.walker.reality.bound["o1NpAB"], (
        "the op of the page is the one on record"
    )
