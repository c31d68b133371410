"""Every crash point is visited, by real processes that kill themselves there; afterwards a restart tells the truth.

The jobs are the witnesses: each writes that it started, and that it came to its end, into a file of its own.
"""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobscribe.runtime import processes
from jobscribe.runtime.crashpoints import POINTS, VARIABLE

#: The how-manieth passage is deadly: the first ones of the store belong to the supervisor's own start.
VISITS = [(p, n) for p in POINTS for n in ((2, 3, 4, 5) if p.startswith("supervisor.") else (1, 2))]
UID = "CrashUid"
DEADLINE_SECS = 60.0


class Site:
    """A root, the supervisor on it, and a client that repeats its requests until they are answered."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.supervisor: subprocess.Popen[bytes] | None = None

    def start(self, crash: str | None = None) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
        if crash:
            env[VARIABLE] = crash
        with (self.root.parent / "up.log").open("ab") as log:
            self.supervisor = subprocess.Popen(
                [sys.executable, "-m", "jobscribe.cli", "up", "--no-web", "--root", str(self.root), "--port", "0"], env=env, stdout=log, stderr=log,
            )

    def end(self) -> None:
        if self.supervisor is not None:
            self.supervisor.kill()
            self.supervisor.wait()

    @property
    def dead(self) -> bool:
        return self.supervisor is not None and self.supervisor.poll() is not None

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer, or None where there was none."""
        try:
            where = json.loads((self.root / "client.json").read_text())
            with contextlib.closing(http.client.HTTPConnection(where["url"].removeprefix("http://"), timeout=10)) as connection:
                connection.request("POST", path, json.dumps(body), {"Authorization": "Bearer " + where["token"]})
                with connection.getresponse() as reply:
                    said = json.loads(reply.read())
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return None
        return said if reply.status == 200 else None

    def keepers(self) -> list[dict[str, Any]]:
        return [json.loads(p.read_text()) for p in self.root.glob("agent/*/keeper.json")]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "root")
    site.root.mkdir(mode=0o700)
    yield site
    site.end()
    for keeper in site.keepers():
        if processes.alive(keeper["pid"], keeper["startTicks"]):
            os.kill(keeper["pid"], signal.SIGTERM)
    _until(lambda: not any(processes.alive(k["pid"], k["startTicks"]) for k in site.keepers()), "the keepers ended")


@pytest.mark.parametrize(("point", "visit"), VISITS, ids=lambda v: str(v))
def test_a_crash_here_loses_nothing_doubles_nothing_and_lies_about_nothing(site: Site, tmp_path: Path, point: str, visit: int) -> None:
    struck_file = tmp_path / "struck"
    site.start(crash=f"{point}:{visit}:{struck_file}")
    jobs = [_job(tmp_path, n) for n in range(3)]
    acknowledged: dict[int, int] = {}

    def ask() -> None:
        for n, job in enumerate(jobs):
            reply = site.post("/api/run-simulation", job)
            if reply is not None:
                assert acknowledged.setdefault(n, reply["computeJobSerial"]) == reply["computeJobSerial"]

    def struck() -> bool:
        ask()
        return struck_file.exists() and (site.dead or not point.startswith("supervisor."))

    _until(struck, f"{point} was reached for the {visit}th time")
    site.end()
    site.start()

    def over() -> bool:
        ask()
        replies = [site.post("/api/run-status", {"uid": UID, "computeJid": f"{UID}-{job['run']['simulationId']}-command"}) for job in jobs]
        return all(r is not None and r.get("over") for r in replies)

    _until(over, "everything is over after the restart")
    for n, job in enumerate(jobs):
        _check(site, tmp_path, n, job, acknowledged[n], point)


def _job(folder: Path, n: int) -> dict[str, Any]:
    stamps = folder / f"stamps-{n}"
    script = f"echo start $$ >>{stamps}; sleep 0.2; echo end $$ >>{stamps}"
    return {"reqId": f"request-{n}", "run": {"uid": UID, "simulationId": f"sim{n:05d}", "command": ["/bin/sh", "-c", script]}}


def _check(site: Site, folder: Path, n: int, job: dict[str, Any], serial: int, point: str) -> None:
    status = site.post("/api/run-status", {"uid": UID, "computeJid": f"{UID}-{job['run']['simulationId']}-command"})
    assert status is not None
    assert status["computeJobSerial"] == serial
    stamps = folder / f"stamps-{n}"
    lines = stamps.read_text().split("\n") if stamps.exists() else []
    starts, ends = sum(line.startswith("start") for line in lines), sum(line.startswith("end") for line in lines)
    assert starts <= 1
    assert (status["state"] == "completed") == (ends == 1), (status, lines)
    if point != "keeper.consumed":
        assert status["state"] == "completed", status
    elif status["state"] != "completed":
        # its token was used and nothing ever ran: nobody may start it again, and it is said so
        assert (status["state"], starts) == ("error", 0)
        assert status["reason"] in ("lost", "startFailed")


def _until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECS
    while not true():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {DEADLINE_SECS:g} s: {what}")
        time.sleep(0.05)
