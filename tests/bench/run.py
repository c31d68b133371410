"""`make bench`: compare jobscribe with a floor or a peer in the same run. Prints a table; asserts
nothing.

Every figure is a median of repeats unless stated otherwise. Rate measurements alternate between the
two sides, so that machine load affects both equally.
"""

import contextlib
import http.client
import importlib.util
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jobscribe.client.api.random_ids import simulation_id

HERE = Path(__file__).resolve().parent
REPEATS = 3
JOBS = 1000
SLOTS = 2


class Http:
    """One persistent connection."""

    def __init__(self, port: int, token: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._headers = {"Authorization": "Bearer " + token}

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._connection.request("POST", path, json.dumps(body), self._headers)
        reply = self._connection.getresponse()
        said: dict[str, Any] = json.loads(reply.read())
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {said}")
        return said


class Jobscribe:
    """A jobscribe supervisor on a fresh root."""

    def __init__(self, root: Path, pid: int) -> None:
        self.root, self.pid = root, pid
        where = json.loads((root / "client.json").read_text())
        self.uid, self.token, self.port = (
            where["uid"],
            where["token"],
            int(where["url"].rsplit(":", 1)[1]),
        )
        self.http = Http(self.port, self.token)

    def spec(self, command: list[str], uid: str | None = None) -> dict[str, Any]:
        return {"uid": uid or self.uid, "simulationId": simulation_id(), "command": command}

    def submit(self, command: list[str], uid: str | None = None) -> dict[str, Any]:
        return self.http.post(
            "/api/run-simulation", {"reqId": secrets.token_hex(12), "run": self.spec(command, uid)}
        )

    def wait(self, reply: dict[str, Any]) -> dict[str, Any]:
        while not reply["over"]:
            uid = reply["computeJid"].split("-")[0]
            reply = self.http.post(
                "/api/run-status", {"uid": uid, "computeJid": reply["computeJid"], "waitSecs": 30}
            )
        return reply

    def bulk(self, n: int) -> float:
        """Return jobs per second, from the request to the last exit."""
        began = time.perf_counter()
        runs = [self.spec(["/bin/true"]) for _ in range(n)]
        self.http.post("/api/run-many", {"reqId": secrets.token_hex(12), "runs": runs})
        for run in reversed(runs):
            self.wait({"over": False, "computeJid": f"{run['uid']}-{run['simulationId']}-command"})
        return n / (time.perf_counter() - began)

    def follow_latency(self) -> float:
        """Return the seconds from a job writing a line to the client receiving it."""
        reply = self.submit(
            ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do date +%s.%N; sleep 0.05; done"]
        )
        offset, late = 0, []
        while True:
            self.http._connection.request(
                "POST",
                "/api/job-log",
                json.dumps(
                    {
                        "uid": self.uid,
                        "computeJid": reply["computeJid"],
                        "offset": offset,
                        "waitSecs": 10,
                    }
                ),
                self.http._headers,
            )
            answer = self.http._connection.getresponse()
            data, now = answer.read(), time.time()
            offset = int(answer.headers["X-Jobscribe-Next-Offset"])
            late += [now - float(line) for line in data.split()]
            if answer.headers["X-Jobscribe-End"] == "true":
                return statistics.median(late)


@contextlib.contextmanager
def jobscribe(root: Path) -> Iterator[Jobscribe]:
    began = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jobscribe.cli",
            "up",
            "--no-web",
            "--root",
            str(root),
            "--port",
            "0",
            "--set",
            f"slots.local_sequential={SLOTS}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    ours = Jobscribe(root, process.pid)
    ours.ready_secs = time.perf_counter() - began  # type: ignore[attr-defined]
    try:
        yield ours
    finally:
        process.terminate()
        process.wait()
        for path in root.glob("agent/*/keeper.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(path.read_text())["pid"], signal.SIGTERM)


@contextlib.contextmanager
def skeleton() -> Iterator[Http]:
    server = subprocess.Popen(
        [sys.executable, str(HERE / "skeleton.py")], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    port = int(server.stdout.readline())
    agent = subprocess.Popen(
        [sys.executable, str(HERE / "skeleton.py"), "agent", f"ws://127.0.0.1:{port}/agent"]
    )
    try:
        yield Http(port)
    finally:
        for p in (agent, server):
            p.terminate()
            p.wait()


def skeleton_bulk(http_: Http, n: int) -> float:
    began = time.perf_counter()
    for i in http_.post("/submit", {"n": n})["ids"]:
        http_.post("/wait", {"id": i}) if i % 50 == 49 else None
    return n / (time.perf_counter() - began)


def hyperqueue_bulk(n: int) -> float | None:
    """Return HyperQueue's jobs per second, if its wheel is installed."""
    if importlib.util.find_spec("hyperqueue") is None:
        return None
    code = (
        "import sys, time\nfrom hyperqueue import Job, LocalCluster\nfrom hyperqueue.cluster import WorkerConfig\n"
        f"with LocalCluster() as cluster:\n    cluster.start_worker(WorkerConfig(cores={SLOTS}))\n    client = cluster.client()\n"
        "    warm = Job(); warm.program(['/bin/true']); client.wait_for_jobs([client.submit(warm)])\n"
        "    began = time.perf_counter()\n    ids = []\n"
        f"    for _ in range({n}):\n        job = Job(); job.program(['/bin/true']); ids.append(client.submit(job))\n"
        f"    client.wait_for_jobs(ids)\n    print('RATE', {n} / (time.perf_counter() - began))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        said = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=120,
            check=False,
        )
    rates = [float(line.split()[1]) for line in said.stdout.splitlines() if line.startswith("RATE")]
    return rates[0] if rates else None


def spawn_floor(n: int) -> float:
    """Measure posix_spawn and wait, two at a time: the limit set by the kernel and Python."""
    began = time.perf_counter()
    live = 0
    for _ in range(n):
        if live == SLOTS:
            os.wait()
            live -= 1
        os.posix_spawn("/bin/true", ["true"], {})
        live += 1
    while live:
        os.wait()
        live -= 1
    return n / (time.perf_counter() - began)


def rate(action: Callable[[], Any], n: int) -> float:
    began = time.perf_counter()
    for _ in range(n):
        action()
    return n / (time.perf_counter() - began)


def median_ms(action: Callable[[], Any], n: int) -> float:
    times = []
    for _ in range(n):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def pss_mib(pid: int) -> float:
    """Return the process's memory in MiB: its own pages and its share of shared pages."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def row(what: str, ours: str, beside: str, goal: str) -> None:
    print(f"| {what} | {ours} | {beside} | {goal} |", flush=True)


def jobs_and_latency(root: Path) -> None:
    with jobscribe(root) as ours, skeleton() as bare:
        ours.wait(ours.submit(["/bin/true"]))
        pairs = [
            (ours.bulk(JOBS), skeleton_bulk(bare, JOBS), spawn_floor(JOBS), hyperqueue_bulk(JOBS))
            for _ in range(REPEATS)
        ]
        mine, floor, spawn = (statistics.median(p[i] for p in pairs) for i in range(3))
        peers = [p[3] for p in pairs if p[3] is not None]
        peer = (
            f"{statistics.median(peers):.0f}/s HyperQueue"
            if peers
            else "HyperQueue is not installed"
        )
        row(
            f"small jobs, bulk of {JOBS}",
            f"{mine:.0f}/s",
            f"{floor:.0f}/s bare skeleton (ratio {mine / floor:.2f}); {peer}; {spawn:.0f}/s posix_spawn alone",
            ">= HyperQueue, >= 0.5 skeleton",
        )
        done = median_ms(lambda: ours.wait(ours.submit(["/bin/true"])), 200)
        floor_done = median_ms(
            lambda: bare.post("/wait", {"id": bare.post("/submit", {"n": 1})["ids"][0]}), 200
        )
        row(
            "warm job, submit to done, median",
            f"{done:.1f} ms",
            f"{floor_done:.1f} ms bare skeleton",
            "<= 5 ms",
        )
        row(
            "line of output to a follower, median",
            f"{ours.follow_latency() * 1000:.1f} ms",
            "",
            "<= 2 ms",
        )
        jid = ours.wait(ours.submit(["/bin/true"]))["computeJid"]
        status, nothing = [], []
        for _ in range(REPEATS):
            status.append(
                rate(
                    lambda: ours.http.post("/api/run-status", {"uid": ours.uid, "computeJid": jid}),
                    1000,
                )
            )
            nothing.append(rate(lambda: bare.post("/nothing", {}), 1000))
        s, n = statistics.median(status), statistics.median(nothing)
        row(
            "run-status, one connection",
            f"{s:.0f}/s",
            f"{n:.0f}/s bare Tornado handler (ratio {s / n:.2f})",
            ">= 0.8 of the handler",
        )
        memory(ours)


def memory(ours: Jobscribe) -> None:
    keeper = json.loads(next(ours.root.glob("agent/*/keeper.json")).read_text())["pid"]
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    row(
        "memory (PSS) after these jobs: supervisor, agent, keeper",
        f"{pss_mib(ours.pid):.0f}, {pss_mib(int(children[0])):.0f}, {pss_mib(keeper):.0f} MiB",
        "",
        "<= 80, 30, 10 MB",
    )


def cold(root: Path) -> None:
    with jobscribe(root) as ours:
        ours.wait(ours.submit(["/bin/true"], "Warmup00"))
        delays = []
        for n in range(10):
            reply = ours.wait(ours.submit(["/bin/true"], f"NewUser{n}"))
            delays.append(reply["computeJobStart"] - reply["computeJobQueued"])
        row(
            "cold start (new user) to running, median",
            f"{statistics.median(delays) * 1000:.0f} ms",
            "",
            "<= 150 ms",
        )
        began = time.perf_counter()
        replies = [ours.submit(["/bin/true"], f"Many{n:04d}") for n in range(64)]
        states = [ours.wait(r)["state"] for r in replies]
        row(
            "64 new users at once",
            f"{states.count('completed')} served in {time.perf_counter() - began:.1f} s",
            "",
            "all served",
        )


def history(root: Path, finished: int = 100_000, running: int = 100) -> None:
    from history import fill

    from jobscribe.db.maintenance.compaction import compact

    seconds = fill(root, finished, running)
    with jobscribe(root) as ours:
        row(
            f"ready with {finished} finished and {running} running jobs",
            f"{ours.ready_secs:.2f} s",  # type: ignore[attr-defined]
            f"filling the log took {seconds:.0f} s; PSS then {pss_mib(ours.pid):.0f} MiB",
            "<= 2 s",
        )
    began = time.perf_counter()
    done = compact(root, keep=False)
    seconds = time.perf_counter() - began
    with jobscribe(root) as ours:
        row(
            f"the same with the log compacted, {done.events_before} events to {done.events_after}",
            f"{ours.ready_secs:.2f} s",  # type: ignore[attr-defined]
            f"compacting took {seconds:.0f} s; PSS then {pss_mib(ours.pid):.0f} MiB",
            "<= 2 s",
        )


def main() -> None:
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, Python {sys.version.split()[0]}, {SLOTS} slots\n"
    )
    print(
        "| what | here | beside it, in the same run | goal |\n| --- | --- | --- | --- |", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="jobscribe-bench-") as folder:
        jobs_and_latency(Path(folder) / "a")
        cold(Path(folder) / "b")
        history(Path(folder) / "c")


if __name__ == "__main__":
    main()
