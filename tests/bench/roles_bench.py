"""Runs with roles: time until all tasks of a 200-task gang run, next to 200 single runs; and time
to plan 1,000 tasks. Asserts nothing.

All commands sleep, so the benchmark measures only the time from the request to the last recorded
process start. Both sides alternate on one supervisor. Part of `make bench`.
"""

import contextlib
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from local_site import Http

from jobscribe.client.api.random_ids import simulation_id

TASKS, PLANNED, REPEATS = 200, 1000, 5
SETTINGS = (
    "slots.local_sequential=500",
    "slots.local_parallel=500",
    "slots.op_run=500",
    "resources.local_cpu=2000",
    "resources.local_memory_mb=1000000",
    "resources.local_ports=20000-32767",
)


class Site:
    def __init__(self, root: Path) -> None:
        where = json.loads((root / "client.json").read_text())
        self.uid = where["uid"]
        self.http = Http(int(where["url"].rsplit(":", 1)[1]), where["token"])

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        return self.http.post("/api/" + path, {"uid": self.uid, **body})

    def status(self, sid: str, **more: Any) -> dict[str, Any]:
        return self.post("run-status", computeJid=f"{self.uid}-{sid}-command", **more)

    def cancel(self, sids: list[str]) -> None:
        for sid in sids:
            self.post(
                "run-cancel", reqId=secrets.token_hex(12), computeJid=f"{self.uid}-{sid}-command"
            )
        for sid in sids:
            while not self.status(sid, waitSecs=30)["over"]:
                pass

    def singles(self, n: int) -> float:
        """Return the seconds until n runs of one command run."""
        sids = [simulation_id() for _ in range(n)]
        runs = [
            {
                "uid": self.uid,
                "simulationId": sid,
                "jobRunMode": "parallel",
                "command": ["sleep", "600"],
                "graceSecs": 0,
            }
            for sid in sids
        ]
        began = time.perf_counter()
        self.http.post("/api/run-many", {"reqId": secrets.token_hex(12), "runs": runs})
        for sid in reversed(sids):
            while self.status(sid)["state"] != "running":
                time.sleep(0.01)
        took = time.perf_counter() - began
        self.cancel(sids)
        return took

    def gang(self, n: int) -> float:
        """Return the seconds until all tasks of an n-task run are running."""
        sid = simulation_id()
        run = self.run(sid, n)
        began = time.perf_counter()
        self.http.post("/api/run-simulation", {"reqId": secrets.token_hex(12), "run": run})
        while self.status(sid)["roles"]["worker"]["running"] != n:
            time.sleep(0.01)
        took = time.perf_counter() - began
        self.cancel([sid])
        return took

    def run(self, sid: str, n: int) -> dict[str, Any]:
        role = {"name": "worker", "tasks": n, "command": ["sleep", "600"]}
        return {
            "uid": self.uid,
            "simulationId": sid,
            "jobRunMode": "parallel",
            "roles": [role],
            "graceSecs": 0,
        }

    def plan(self, n: int) -> float:
        """Return the seconds to plan a run of n tasks."""
        began = time.perf_counter()
        self.http.post("/api/run-plan", {"run": self.run(simulation_id(), n)})
        return time.perf_counter() - began


@contextlib.contextmanager
def site(root: Path) -> Iterator[Site]:
    sets = [a for s in SETTINGS for a in ("--set", s)]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jobscribe.cli",
            "--root",
            str(root),
            "up",
            "--no-web",
            "--port",
            "0",
            *sets,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield Site(root)
    finally:
        process.terminate()
        process.wait()
        for path in root.glob("agent/*/keeper.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(path.read_text())["pid"], signal.SIGTERM)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, site(Path(folder) / "r") as s:
        s.singles(4)
        s.gang(4)
        singles, gangs = [], []
        for _ in range(REPEATS):
            singles.append(s.singles(TASKS))
            gangs.append(s.gang(TASKS))
        one, many = statistics.median(singles), statistics.median(gangs)
        print(
            f"{TASKS} single runs running   {one:.2f} s   ({', '.join(f'{t:.2f}' for t in singles)})"
        )
        print(
            f"one run of {TASKS} tasks      {many:.2f} s   ({', '.join(f'{t:.2f}' for t in gangs)})"
        )
        print(f"ratio                     {many / one:.2f}   (goal: < 1.5)")
        print(
            f"plan of {PLANNED} tasks        {statistics.median(s.plan(PLANNED) for _ in range(REPEATS)):.2f} s   (goal: < 1)"
        )


if __name__ == "__main__":
    main()
