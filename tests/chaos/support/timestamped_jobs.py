"""Jobs that record their own start and end, a site whose agents connect through the harmful proxy,
and clients that check both.

The tests trust the jobs' stamps, not the product's records.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harmful_proxy import NONE, Harm, HarmfulProxy
from supervisor_process import UID, SupervisorProcess, jid_of, shell, until

#: Tests multiply the deadlines of guarantees by `ROOM`: 5, or 1 with SOAK=1, which needs a machine
#: that does nothing else. The variable ROOM replaces both.
SOAK = os.environ.get("SOAK") == "1"
ROOM = int(os.environ.get("ROOM", 1 if SOAK else 5))
#: Ping interval of the tests; guarantees of three intervals are measured in it.
PING_SECS = 0.5
PINGS = (f"limits.ping_interval_secs={PING_SECS}", f"limits.ping_timeout_secs={PING_SECS / 2}")
NOTICED_SECS = 3 * PING_SECS


@contextmanager
def sites() -> Iterator[Callable[..., SupervisorProcess]]:
    """Yield `make(*settings, **options)`: a new root without a supervisor. At the end, stop
    everything that ran on it.
    """
    made: list[SupervisorProcess] = []

    def make(*sets: str, **options: Any) -> SupervisorProcess:
        made.append(SupervisorProcess(sets, **options))
        return made[-1]

    try:
        yield make
    finally:
        left = [site.end() for site in made]
    assert left == [{}] * len(made), f"processes outlived their keeper: {left}"


@contextmanager
def diverted(site: SupervisorProcess, seed: int = 0, harm: Harm = NONE) -> Iterator[HarmfulProxy]:
    """Route all agents of a running site through the proxy from now on."""
    file = site.root / "agents.json"
    said = json.loads(file.read_text())
    with HarmfulProxy(urlsplit(said["agentsUrl"]).port or 0, seed, harm) as proxy:
        point_to(file, proxy.port)
        yield proxy


def point_to(file: Path, port: int) -> None:
    said = json.loads(file.read_text())
    new = file.with_suffix(".new")
    new.write_text(json.dumps({**said, "agentsUrl": f"ws://127.0.0.1:{port}/agent"}))
    new.rename(file)


class Stamps:
    """Stamp files in `folder`, one for each job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def job(self, name: str, between: str = ":", code: int = 0, **fields: Any) -> dict[str, Any]:
        """Return a run that stamps its start, does `between`, stamps its end, and exits with
        `code`.
        """
        file = self.folder / name
        stamp = f'echo "{{}} $JOBSCRIBE_TOKEN $$ $(date +%s%N)" >>{file}'
        return shell(
            f"{stamp.format('start')}; {between}; {stamp.format('end')}; exit {code}", **fields
        )

    def until(self, name: str) -> str:
        """Return the shell text with which a job waits between its stamps until `open`."""
        return f"until [ -e {self.folder}/{name}.open ]; do sleep 0.05; done"

    def open(self, name: str) -> None:
        (self.folder / f"{name}.open").touch()

    def of(self, name: str) -> list[list[str]]:
        """Return [word, token, pid, nanoseconds] of every stamp, in order."""
        file = self.folder / name
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def words(self, name: str) -> list[str]:
        return [stamp[0] for stamp in self.of(name)]

    def check_no_overlap(self, name: str) -> None:
        """Check that the runs of one slot ran in sequence: no token started twice, and none before
        the previous run ended.
        """
        starts = [s[1] for s in self.of(name) if s[0] == "start"]
        assert len(starts) == len(set(starts)), f"a token started twice: {starts}"
        words = self.words(name)
        assert words == [w for s in range(len(starts)) for w in ("start", "end")][: len(words)], (
            words
        )


class Asker:
    """A client with its own connection that checks every request against its deadline."""

    def __init__(self, site: SupervisorProcess) -> None:
        self._site, self._connection = site, site.connection(120)
        #: lateness of the slowest answer in seconds (negative: before its deadline), and the number
        #: of requests
        self.latest, self.asked = float("-inf"), 0

    def ask(self, path: str, deadline: float, **body: Any) -> tuple[int, Any]:
        """Return (status, body) of any answer. Every request must end by its deadline + 1 s."""
        begun = time.monotonic()
        self._connection.request(
            "POST",
            "/api/" + path,
            json.dumps(body),
            {"Authorization": "Bearer " + self._site.token},
        )
        reply = self._connection.getresponse()
        text = reply.read()
        late = time.monotonic() - begun - deadline
        self.latest, self.asked = max(self.latest, late), self.asked + 1
        assert late < 1.0 * ROOM, (
            f"{path} was answered {late:.1f} s after its deadline of {deadline:g} s"
        )
        return reply.status, json.loads(
            text
        ) if reply.headers.get_content_type() == "application/json" else text

    def close(self) -> None:
        self._connection.close()


def told(site: SupervisorProcess, run: dict[str, Any]) -> tuple[str, bool]:
    """Return (state, known)."""
    said = site.status(run)
    return said["state"], said["known"]


def agent_log(site: SupervisorProcess, uid: str = UID) -> str:
    return (site.root / "agent" / str(site.agent_key(uid)) / "agent.log").read_text()


def timed(true: Callable[[], Any], what: str, secs: float) -> float:
    """Return the seconds until `true` returns a true value; fail after `secs`."""
    begun = time.monotonic()
    until(true, what, secs)
    return time.monotonic() - begun


__all__ = [
    "NOTICED_SECS",
    "PINGS",
    "PING_SECS",
    "ROOM",
    "SOAK",
    "UID",
    "Asker",
    "Stamps",
    "agent_log",
    "diverted",
    "jid_of",
    "sites",
    "timed",
    "told",
]
