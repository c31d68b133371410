"""Two shards beside one supervisor, on one PostgreSQL: events that stores commit, small jobs of whole sites,
and short requests, in turn (`python tests/bench/shard_bench.py URL`; `etc/engines/postgres.sh start DIR` prints
a URL). The users of both sites are the same; half of them belong to each shard.
"""

import argparse
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from store_bench import store_rate

from jobscribe.protocol.shards import shard_of

USERS = [next(u for n in range(99) if shard_of(u := f"Bench{n:03d}", 2) == k) for k in range(2)]
IN_FLIGHT, SLOTS = 64, 8


def schema(url: str) -> str:
    return f"{url}&schema=bench_{time.time_ns() % 10**12}"


def store_rates(url: str, stores: int, total: int) -> float:
    """Return the events per second of this number of processes, each with a store of its own."""
    code = "import sys, shard_bench; shard_bench.one_store(sys.argv[1], int(sys.argv[2]))"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, schema(url), str(total // stores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(stores)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # its imports are done
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    rates = [float(p.communicate()[0]) for p in processes]
    return sum(rates)


def one_store(url: str, total: int) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    with tempfile.TemporaryDirectory() as folder:
        print(store_rate(Path(folder), IN_FLIGHT, total, url))


class Site:
    """A site that runs. connections: one for each thread."""

    def __init__(self, root: Path) -> None:
        said = json.loads((root / "client.json").read_text())
        self._address, self._token = said["url"].removeprefix("http://"), said["token"]
        self._local = threading.local()

    def post(self, path: str, **body: Any) -> Any:
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection(self._address, timeout=60)
        headers = {"Authorization": "Bearer " + self._token}
        self._local.connection.request("POST", f"/api/{path}", json.dumps(body), headers)
        answer = self._local.connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {data.decode()[:300]}")
        return json.loads(data)

    def jobs(self, uid: str, count: int) -> None:
        """Run this number of small jobs to their ends."""
        name = time.time_ns() % 10**6
        runs = [
            {"uid": uid, "simulationId": f"b{name:06d}{n:04d}"[-8:], "command": ["/bin/true"]}
            for n in range(count)
        ]
        self.post("run-many", reqId=f"r{name}{uid}", runs=runs)
        for run in runs:
            jid = f"{uid}-{run['simulationId']}-command"
            while not self.post("run-status", uid=uid, computeJid=jid, waitSecs=30)["over"]:
                pass

    def requests(self, uid: str, count: int) -> None:
        for _ in range(count):
            self.post("job-list", uid=uid, limit=1)


@contextlib.contextmanager
def started(root: Path, *words: str) -> Iterator[Site]:
    sets = ["--set", f"slots.local_sequential={SLOTS}", "--set", "resources.local_cpu=4"]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "jobscribe.cli", "--root", str(root)),
            *("up", "--no-web", "--port", "0", *sets, *words),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield Site(root)
    finally:
        process.terminate()
        process.wait()
        for path in root.glob("**/agent/*/keeper.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(path.read_text())["pid"], signal.SIGTERM)


def rate(work: Callable[[str, int], None], count: int) -> float:
    """Return how often both users together do the work in a second."""
    threads = [threading.Thread(target=work, args=(uid, count // 2)) for uid in USERS]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="a PostgreSQL database; makes schemas bench_N")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=300)
    options = parser.parse_args()
    url = options.url + ("" if "?" in options.url else "?host=/run/postgresql")
    folder = Path(tempfile.mkdtemp())
    print(f"{'':>10} {'one':>10} {'two':>10} {'ratio':>6}")
    try:
        for _ in range(options.turns):
            one, two = store_rates(url, 1, 20_000), store_rates(url, 2, 20_000)
            print(f"{'events/s':>10} {one:>10.0f} {two:>10.0f} {two / one:>6.2f}", flush=True)
        for turn in range(options.turns):
            rates: dict[str, list[float]] = {}
            for name, words in (("one", ()), ("two", ("--shards", "2"))):
                with started(folder / f"{name}{turn}", "--store", schema(url), *words) as site:
                    rate(site.jobs, 4)
                    rates[name] = [rate(site.jobs, options.jobs), rate(site.requests, 2_000)]
            for n, what in enumerate(("jobs/s", "requests/s")):
                one, two = rates["one"][n], rates["two"][n]
                print(f"{what:>10} {one:>10.0f} {two:>10.0f} {two / one:>6.2f}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
