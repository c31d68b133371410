"""Many runs of ten users (a thousand with SOAK=1): each runs exactly once, memory stays constant, and the supervisor
stays responsive, also beside a client that does not read its events.
"""

import contextlib
import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from consistency_check import check_books, stories_without_grants
from supervisor_process import SupervisorProcess, jid_of, req_id, rss, shell, spec, until

USERS = [f"Thousan{n}" for n in range(10)]
STORY = ["RunRequested", "TaskPlaced", "TaskStarted", "TaskEnded", "AttemptEnded", "RunEnded"]
#: Runs by the number of their requests. Memory is compared after the first FEW of them.
ONE_BY_ONE, FEW, ALL = (100, 200, 1000) if os.environ.get("SOAK") == "1" else (40, 80, 240)
WITNESSED = 60


class Probe:
    """Polls `/livez` on a separate connection and records the longest response time."""

    def __init__(self, site: SupervisorProcess) -> None:
        self._site = site
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest, self.asked = 0.0, 0

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        connection = self._site.connection()
        while not self._over.wait(0.02):
            begun = time.monotonic()
            connection.request("GET", "/livez")
            connection.getresponse().read()
            self.longest, self.asked = max(self.longest, time.monotonic() - begun), self.asked + 1
        connection.close()


class SlowReader:
    """A subscription to all events. Nothing is read from it before `ids`."""

    def __init__(self, site: SupervisorProcess) -> None:
        self._site, self._connection = site, site.connection(60)
        self._connection.request(
            "GET", "/api/events", headers={"Authorization": "Bearer " + site.token}
        )
        self._reply = self._connection.getresponse()

    def ids(self) -> list[int]:
        """Return the positions of all events up to the newest one."""
        head = self._site.ready()["head"]
        found: list[int] = []
        last = 0
        while not found or found[-1] < head:
            line = self._reply.readline().decode()
            if line.startswith("event: "):
                found.append(last)
            if line.startswith("id: "):
                last = int(line[4:])
        return found

    def close(self) -> None:
        self._reply.close()
        self._connection.close()


@pytest.mark.timeout(240)
def test_many_runs_of_ten_users(site: SupervisorProcess) -> None:
    runs = [spec(["/bin/true"], USERS[n % 10]) for n in range(ALL)]
    stamps = site.place / "stamps"
    stamps.mkdir()
    witnessed = [_witnessed(stamps, n) for n in range(WITNESSED)]
    with Probe(site) as probe, contextlib.closing(SlowReader(site)) as reader:
        serials = [site.submit(run)["computeJobSerial"] for run in runs[:ONE_BY_ONE]]
        for part in (runs[ONE_BY_ONE:FEW], runs[FEW:], witnessed):
            replies = site.post("run-many", reqId=req_id(), runs=part)["runs"]
            assert [r["computeJid"] for r in replies] == [jid_of(run) for run in part]
            serials += [r["computeJobSerial"] for r in replies]
            _all_over(site)
            if part[-1] is runs[FEW - 1]:
                small = rss(site.pid)
            elif part[-1] is runs[-1]:
                large = rss(site.pid)
                ids = reader.ids()
                assert ids == list(range(1, len(ids) + 1)), "it gets everything, although late"
    print(
        f"supervisor: {small >> 20} MiB after {FEW} runs, {large >> 20} MiB after {ALL};"
        f" slowest of {probe.asked} /livez during it: {probe.longest * 1000:.0f} ms"
    )
    assert large - small < 40 << 20
    assert probe.asked > 20 and probe.longest < 2

    jobs = check_books(site)
    assert len(jobs) == len(runs) + WITNESSED
    all_runs = runs + witnessed
    assert [
        (j.run.serial, j.run.status, j.run.exit.code) for j in (jobs[jid_of(r)] for r in all_runs)
    ] == [(s, "completed", 0) for s in serials]
    assert stories_without_grants(site.root) == {tuple(STORY)}
    assert sum(len(j.run.attempts) for j in jobs.values()) == len(all_runs)
    _check_stamps(stamps, {jid_of(r): s for r, s in zip(all_runs, serials, strict=True)})


def _witnessed(stamps: Path, n: int) -> dict:
    """Return a run that records its own start and end."""
    file = stamps / f"{n:05d}"
    return shell(
        f'echo "start $JOBSCRIBE_TOKEN $$ $(date +%s%N)" >>{file}; sleep 0.02; echo "end $JOBSCRIBE_TOKEN $$ $(date +%s%N)" >>{file}',
        USERS[n % 10],
    )


def _check_stamps(stamps: Path, serials: dict[str, int]) -> None:
    """Check the jobs' own records: each token began once and ended once, in a separate process."""
    seen: Counter[str] = Counter()
    for file in stamps.iterdir():
        lines = [line.split() for line in file.read_text().splitlines()]
        assert [line[0] for line in lines] == ["start", "end"], lines
        assert lines[0][1:3] == lines[1][1:3] and int(lines[0][3]) <= int(lines[1][3])
        jid, serial, attempt, role, index = lines[0][1].split("/")
        assert (serials[jid], attempt, role, index) == (int(serial), "1", "main", "0")
        seen[jid] += 1
    assert len(seen) == WITNESSED and set(seen.values()) == {1}


def _all_over(site: SupervisorProcess) -> None:
    until(
        lambda: not site.post("job-list", active=True, limit=1)["jobs"],
        "all of these are over",
        120,
        0.1,
    )
