"""A thousand idle agents (200 without SOAK=1): the cost of each, and their simultaneous reconnect after their supervisor
was killed (G17).

The agents are instances of the product's own link in this process, with nothing to run.
The supervisor is real, and its log names these agents before it starts. One real agent with a real
job is among them.
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_crowd import Crowd, metrics, settled, snapshots
from known_agents import tell_of_agents
from supervisor_process import SupervisorProcess, until
from timestamped_jobs import ROOM, SOAK, Stamps, sites, told

from jobscribe.protocol.ids import AgentKey

AGENTS = 1000 if SOAK else 200
IDLE_BYTES, SETTLED_SECS, ANSWER_SECS = 25 * 1024, 10.0, 1.0
MAX_ROUND_SECS = 0.5
KEYS = [AgentKey("local", "sequential", f"Storm{n:03d}", "localhost") for n in range(AGENTS)]


class Prober:
    """Polls the status of one run; records the slowest answer and the number of failed connections."""

    def __init__(self, site: SupervisorProcess, run: dict[str, Any]) -> None:
        self._site, self._over = site, threading.Event()
        self._body = json.dumps(
            {"uid": run["uid"], "computeJid": f"{run['uid']}-{run['simulationId']}-command"}
        )
        self._thread = threading.Thread(target=self._run)
        self.slowest, self.asked = 0.0, 0
        self.told: list[tuple[str, bool]] = []

    def __enter__(self) -> "Prober":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        connection = self._site.connection()
        while not self._over.wait(0.01):
            begun = time.monotonic()
            connection.request(
                "POST",
                "/api/run-status",
                self._body,
                {"Authorization": "Bearer " + self._site.token},
            )
            said = json.loads(connection.getresponse().read())
            self.slowest, self.asked = max(self.slowest, time.monotonic() - begun), self.asked + 1
            self.told.append((said["state"], said["known"]))
        connection.close()


MakeSite = Callable[..., SupervisorProcess]


@pytest.fixture
def make_site() -> Iterator[MakeSite]:
    with sites() as make:
        yield make


@pytest.fixture
def site(make_site: MakeSite) -> Iterator[SupervisorProcess]:
    site = make_site("slots.local_sequential=2")
    site.start()
    site.stop()
    tell_of_agents(site, KEYS)
    yield site.start()


@pytest.mark.timeout(300)
def test_many_idle_agents_and_their_storm(site: SupervisorProcess, tmp_path: Path) -> None:
    stamps, go = Stamps(tmp_path / "stamps"), tmp_path / "go"
    long = stamps.job("long", f"while [ ! -e {go} ]; do sleep 0.05; done")
    site.submit(long)
    site.running(long)
    before = metrics(site)["process"]
    with Crowd(site, KEYS) as crowd:
        until(lambda: settled(site, AGENTS + 1, AGENTS + 1), "all are connected", 60, 0.1)
        there = metrics(site)["process"]
        each = (there["rss"] - before["rss"]) / AGENTS
        print(
            f"{AGENTS} idle agents: {each / 1024:.1f} KiB each, {(there['tasks'] - before['tasks']) / AGENTS:.2f} tasks each"
        )
        before_kill = snapshots(site)
        site.stop(signal.SIGKILL)
        until(lambda: not crowd.up, "all have noticed")
        time.sleep(3.0)  # by now their backoff has reached its maximum, as after any restart
        site.start()
        begun = time.monotonic()
        with Prober(site, long) as prober:
            until(
                lambda: settled(site, AGENTS + 1, before_kill + AGENTS + 1),
                "all are back and believed",
                SETTLED_SECS * ROOM,
                0.1,
            )
        took, loop = time.monotonic() - begun, metrics(site)["loop"]
        print(
            f"settled {took:.2f} s after the supervisor was ready; meanwhile {prober.asked} status requests, the slowest {prober.slowest * 1000:.0f} ms;"
            f" loop p99.9 {loop['p999'] * 1000:.0f} ms, longest round {loop['worst']['secs'] * 1000:.0f} ms at {loop['worst']['what']}"
        )
        assert {state for state, _ in prober.told} == {"running"} and told(site, long) == (
            "running",
            True,
        )
        assert prober.asked > 5 and prober.slowest < ANSWER_SECS * ROOM
        assert loop["worst"]["secs"] < MAX_ROUND_SECS * ROOM
        assert crowd.ups <= 2.1 * AGENTS, (
            f"{crowd.ups} connections were made in two rounds: not all settled with their first"
        )
        go.touch()
        assert site.wait(long)["state"] == "completed"
    assert stamps.words("long") == ["start", "end"]
    assert each < IDLE_BYTES * (1 if SOAK else 2)
    assert "Traceback" not in site.log()
