"""Calls of a function of 1 ms: warm workers of jobscribe, Dask, Parsl and a ProcessPoolExecutor, each
with two workers, one after the other in each repeat. Prints a table; asserts nothing.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = HERE.parents[1] / "build" / "bench-peers" / "bin" / "python"
WORKERS = 2
NAMES = ("pool", "jobscribe", "dask", "parsl")


def nap(value: int) -> int:
    import time  # Parsl sends the function without its module

    time.sleep(0.001)
    return value


Submit = Callable[[int], Any]


@contextlib.contextmanager
def pool(folder: Path) -> Iterator[Submit]:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(WORKERS) as executor:
        yield lambda i: executor.submit(nap, i)


@contextlib.contextmanager
def jobscribe(folder: Path) -> Iterator[Submit]:
    import local_site

    from jobscribe.client import Client

    with (
        local_site.jobscribe(folder) as site,
        Client.from_root(site.root) as client,
        client.executor(workers=WORKERS) as executor,
    ):
        yield lambda i: executor.submit(nap, i)


@contextlib.contextmanager
def dask(folder: Path) -> Iterator[Submit]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            dashboard_address=None,
            local_directory=str(folder),
        ) as cluster,
        Client(cluster) as client,
    ):
        yield lambda i: client.submit(nap, i, pure=False)


@contextlib.contextmanager
def parsl(folder: Path) -> Iterator[Submit]:
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    executor = HighThroughputExecutor(
        address="127.0.0.1",
        loopback_address="127.0.0.1",
        max_workers_per_node=WORKERS,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )
    with parsl.load(Config(executors=[executor], run_dir=str(folder), usage_tracking=0)):
        yield parsl.python_app(nap)


def turn(name: str, calls: int, singles: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, globals()[name](Path(folder)) as submit:
        assert [f.result() for f in [submit(i) for i in range(50)]] == list(range(50))
        began = time.perf_counter()
        results = [f.result() for f in [submit(i) for i in range(calls)]]
        rate = calls / (time.perf_counter() - began)
        assert results == list(range(calls))
        took = []
        for i in range(singles):
            began = time.perf_counter()
            submit(i).result()
            took.append(time.perf_counter() - began)
        return {"rate": rate, "ms": statistics.median(took) * 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--singles", type=int, default=50)
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.turn:
        result = turn(given.turn, given.calls, given.singles)
        print("\n" + json.dumps(result), flush=True)
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in given.only.split(",")}
    load = os.getloadavg()[0]
    for _ in range(given.repeats):
        for name, turns in found.items():
            python = PEERS if name in ("dask", "parsl") else Path(sys.executable)
            words = ["--calls", str(given.calls), "--singles", str(given.singles)]
            done = subprocess.run(
                [python, __file__, "--turn", name, *words],
                capture_output=True,
                text=True,
                timeout=600,
                # Parsl starts programs by name
                env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"},
            )
            if done.returncode == 0:
                turns.append(json.loads(done.stdout.strip().splitlines()[-1]))
            else:
                print(f"not measured: {name}: {done.stderr.strip()[-300:]}", file=sys.stderr)
    print(f"{WORKERS} workers, load {load:.1f} before and {os.getloadavg()[0]:.1f} after\n")
    print("| contestant | calls/s | to pool | one call, submit to result |")
    print("| --- | --- | --- | --- |")
    rates = {n: statistics.median(t["rate"] for t in turns) for n, turns in found.items() if turns}
    for name, rate in rates.items():
        ratio = f"{rate / rates['pool']:.2f}" if "pool" in rates else "-"
        single = statistics.median(t["ms"] for t in found[name])
        print(f"| {name} | {rate:.0f} | {ratio} | {single:.1f} ms |")


if __name__ == "__main__":
    main()
