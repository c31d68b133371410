"""A site with many users and finished jobs, with its log in a file and in PostgreSQL: `python
tests/bench/large_site_bench.py URL --jobs 1000000 --users 50000`; `etc/engines/postgres.sh start DIR`
prints a URL. Prints a table; asserts nothing.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from history import fill
from local_site import Jobscribe, jobscribe, pss_mib

RUNNING, REQUESTS, ROWS = 100, 300, 100


def median_ms(action: Callable[[int], Any]) -> float:
    secs = []
    for n in range(REQUESTS):
        began = time.perf_counter()
        action(n)
        secs.append(time.perf_counter() - began)
    return statistics.median(secs) * 1000


def measured(ours: Jobscribe, users: list[str], jobs: int) -> dict[str, str]:
    def status(n: int) -> None:
        at = n * 7919 % jobs
        uid = users[at % len(users)]
        ours.ask("run-status", uid=uid, computeJid=f"{uid}-{at:08d}-command")

    return {
        "start": f"{ours.ready_secs:.1f} s",
        "status of a finished job, median": f"{median_ms(status):.1f} ms",
        f"list of {ROWS} jobs of one user": f"{median_ms(lambda n: ours.ask('job-list', uid=users[n], limit=ROWS)):.1f} ms",
        f"list of {ROWS} jobs of all users": f"{median_ms(lambda n: ours.ask('job-list', limit=ROWS)):.1f} ms",
        "memory (PSS)": f"{pss_mib(ours.pid):.0f} MiB",
    }


def killed(root: Path, *settings: str) -> str:
    """Return how long a start takes after a kill."""
    with jobscribe(root, *settings) as ours:
        os.kill(ours.pid, signal.SIGKILL)
    with jobscribe(root, *settings) as ours:
        return f"{ours.ready_secs:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=50_000)
    parser.add_argument("--place", default=None, help="folder of the root")
    args = parser.parse_args()
    users = [f"U{n:07d}" for n in range(args.users)]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="jobscribe-bench-", dir=args.place) as folder:
        root = Path(folder) / "root"
        secs = fill(root, args.jobs, RUNNING, users)
        print(f"{args.jobs} jobs of {args.users} users written in {secs:.0f} s", flush=True)
        with jobscribe(root) as ours:
            file = measured(ours, users, args.jobs)
        file["start after kill -9"] = killed(root)
        print(file, flush=True)
        url = f"{args.url}&schema=large_{time.time_ns() % 10**12}"
        began = time.perf_counter()
        command = [sys.executable, "-m", "jobscribe.cli", "db", "--root", str(root), "move", url]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print(f"db move took {time.perf_counter() - began:.0f} s", flush=True)
        with jobscribe(root, f"store.url={url}") as ours:
            database = measured(ours, users, args.jobs)
        database["start after kill -9"] = killed(root, f"store.url={url}")
    print("| what | in a file | in PostgreSQL |\n| --- | --- | --- |")
    for what, value in file.items():
        print(f"| {what} | {value} | {database[what]} |")


if __name__ == "__main__":
    main()
