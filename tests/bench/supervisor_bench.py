"""Followers, status requests, cold starts, and the start with a long history, each next to a floor or
a goal: `python tests/bench/supervisor_bench.py`. Prints a table; asserts nothing.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE / "peers"))

from history import fill
from local_site import Jobscribe, jobscribe, pss_mib
from peer_skeleton import connected

from jobscribe.db.maintenance.compaction import compact

REPEATS = 5


def follow_latency(ours: Jobscribe) -> float:
    """Return the seconds from a job writing a line to the client receiving it."""
    line = "for i in 1 2 3 4 5 6 7 8 9 10; do date +%s.%N; sleep 0.05; done"
    asked = {"uid": ours.uid, "computeJid": ours.submit(["sh", "-c", line])["computeJid"]}
    offset, late = 0, []
    while True:
        data, headers = ours.http.read("/api/job-log", {**asked, "offset": offset, "waitSecs": 10})
        now = time.time()
        offset = int(headers["X-Jobscribe-Next-Offset"])
        late += [now - float(line) for line in data.split()]
        if headers["X-Jobscribe-End"] == "true":
            return statistics.median(late)


def rate(action: Callable[[], Any], n: int) -> float:
    began = time.perf_counter()
    for _ in range(n):
        action()
    return n / (time.perf_counter() - began)


def row(what: str, ours: str, beside: str, goal: str) -> None:
    print(f"| {what} | {ours} | {beside} | {goal} |", flush=True)


def warm(root: Path) -> None:
    with jobscribe(root) as ours, connected() as bare:
        jid = ours.wait(ours.submit(["/bin/true"]))["computeJid"]
        late = follow_latency(ours) * 1000
        row("line of output to a follower, median", f"{late:.1f} ms", "", "<= 2 ms")
        status, nothing = [], []
        for _ in range(REPEATS):
            status.append(rate(lambda: ours.ask("run-status", uid=ours.uid, computeJid=jid), 1000))
            nothing.append(rate(lambda: bare.post("/nothing", {}), 1000))
        s, n = statistics.median(status), statistics.median(nothing)
        row(
            "run-status, one connection",
            f"{s:.0f}/s",
            f"ratio {s / n:.2f} to {n:.0f}/s of a bare Tornado handler",
            ">= 0.8 of the handler",
        )


def cold(root: Path) -> None:
    with jobscribe(root) as ours:
        ours.wait(ours.submit(["/bin/true"], "Warmup00"))
        delays = []
        for n in range(10):
            reply = ours.wait(ours.submit(["/bin/true"], f"NewUser{n}"))
            delays.append(reply["computeJobStart"] - reply["computeJobQueued"])
        delay = statistics.median(delays) * 1000
        row("cold start (new user) to running, median", f"{delay:.0f} ms", "", "<= 150 ms")
        began = time.perf_counter()
        replies = [ours.submit(["/bin/true"], f"Many{n:04d}") for n in range(64)]
        states = [ours.wait(r)["state"] for r in replies]
        secs = time.perf_counter() - began
        served = f"{states.count('completed')} served in {secs:.1f} s"
        row("64 new users at once", served, "", "all served")


def history(root: Path, finished: int = 100_000, running: int = 100) -> None:
    seconds = fill(root, finished, running)
    with jobscribe(root) as ours:
        row(
            f"ready with {finished} finished and {running} running jobs",
            f"{ours.ready_secs:.2f} s",
            f"filling the log took {seconds:.0f} s; PSS then {pss_mib(ours.pid):.0f} MiB",
            "<= 2 s",
        )
    began = time.perf_counter()
    done = compact(root, keep=False)
    seconds = time.perf_counter() - began
    with jobscribe(root) as ours:
        row(
            f"the same with the log compacted, {done.events_before} events to {done.events_after}",
            f"{ours.ready_secs:.2f} s",
            f"compacting took {seconds:.0f} s; PSS then {pss_mib(ours.pid):.0f} MiB",
            "<= 2 s",
        )


def main() -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}\n")
    print(
        "| what | here | beside it, in the same run | goal |\n| --- | --- | --- | --- |", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="jobscribe-bench-") as folder:
        warm(Path(folder) / "a")
        cold(Path(folder) / "b")
        history(Path(folder) / "c")


if __name__ == "__main__":
    main()
