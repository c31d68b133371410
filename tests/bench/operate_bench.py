"""Time of the commands that operators type most, on a root with 100,000 jobs, next to `python -c
pass` in the same run.

Measures whole commands, from interpreter start to exit, alternating with the bare interpreter, and
the server time of `job list` pages. The log is filled through the store, not by running jobs.
Asserts nothing.
"""

import argparse
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from history import fill
from local_site import Jobscribe, jobscribe

from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.protocol.ids import Token, op_id

JOBS, REPEATS = 100_000, 9
#: Project goals: time above bare Python, and server time for a page of the list.
GOAL_MS, PAGE_MS = 300, 100


def whole_ms(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return wall and CPU time in milliseconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stdout}{done.stderr}")
    return took * 1000, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def commands(root: Path, n: int) -> None:
    """Return the commands to measure, for a job in the middle of the log."""
    uid, sid = f"User{n % 50:04d}", f"{n:08d}"
    jid = f"{uid}-{sid}-command"
    op = op_id(Token(jid, 1_700_000_000, 1, "main", 0), "run")
    environment = {**os.environ, "JOBSCRIBE_ROOT": str(root)}
    ours = [sys.executable, "-m", "jobscribe.cli"]
    asked = {
        "job why JOB": [*ours, "job", "why", jid],
        "trace JOB": [*ours, "trace", jid],
        "trace, 12 characters of an opId": [*ours, "trace", "--all-users", op[:12]],
        "trace, a reqId": [*ours, "trace", "--all-users", f"req-{sid}"],
        "trace, no such id": [
            "sh",
            "-c",
            f"{sys.executable} -m jobscribe.cli trace --all-users {op[:12]}zz; test $? != 0",
        ],
    }
    bare: list[tuple[float, float]] = []
    times: dict[str, list[tuple[float, float]]] = {what: [] for what in asked}
    for _ in range(REPEATS):
        for what, command in asked.items():
            bare.append(whole_ms([sys.executable, "-c", "pass"], environment))
            times[what].append(whole_ms(command, environment))
    floor, floor_cpu = (statistics.median(t[i] for t in bare) for i in range(2))
    for what, both in times.items():
        took, cpu = [t[0] for t in both], statistics.median(t[1] for t in both) - floor_cpu
        over = statistics.median(took) - floor
        met = "yes" if over < GOAL_MS else "no"
        print(
            f"| `{what}` | {statistics.median(took):.0f} ms ({min(took):.0f}-{max(took):.0f}) | {floor:.0f} ms `python -c pass`: +{over:.0f} ms"
            f" (CPU +{cpu:.0f} ms) | < +{GOAL_MS} ms | {met} |",
            flush=True,
        )


def pages(ours: Jobscribe) -> None:
    """Measure first pages of the list over a persistent connection: server time plus loopback."""
    user = "User0007"
    filters = {
        "of all": {},
        "of one user": {"uid": user},
        "of one user, running": {"uid": user, "status": "running"},
        "of one user, in error (there is none)": {"uid": user, "status": "error"},
        "of all, in error (there is none)": {"status": "error"},
    }
    for what, by in filters.items():
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            ours.http.post("/api/job-list", {**by, "limit": 100})
            times.append((time.perf_counter() - began) * 1000)
        took = statistics.median(times)
        print(
            f"| first page of `job list`, {what} | {took:.1f} ms ({min(times):.1f}-{max(times):.1f}) | | < {PAGE_MS} ms |"
            f" {'yes' if took < PAGE_MS else 'no'} |",
            flush=True,
        )


def looked_up(root: Path, n: int) -> None:
    """Measure the index alone, in a store without a supervisor."""
    store = SqliteStore(root / "db" / "events.sqlite", lambda call: call())
    op = op_id(Token(f"User{n % 50:04d}-{n:08d}-command", 1_700_000_000, 1, "main", 0), "run")
    times = []
    for _ in range(1000):
        began = time.perf_counter()
        (found,) = store.names(op[:12])
        times.append((time.perf_counter() - began) * 1e6)
        if found.name != op:
            raise SystemExit(f"{found} is not {op}")
    store.close()
    print(
        f"| an opId by 12 characters, in the index | {statistics.median(times):.0f} us (99 %: {sorted(times)[989]:.0f} us) | | | |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory(prefix=f"operate-{secrets.token_hex(3)}-") as folder:
        root = Path(folder) / "root"
        took = fill(root, jobs - 100, 100)
        size = (root / "db" / "events.sqlite").stat().st_size / 2**20
        print(
            f"{jobs} jobs, {size:.0f} MiB, written in {took:.0f} s; load {os.getloadavg()[0]:.1f}"
        )
        print(
            "| what | here | beside it, in the same run | goal | met |\n| --- | --- | --- | --- | --- |",
            flush=True,
        )
        looked_up(root, jobs // 2)
        with jobscribe(root) as ours:
            commands(root, jobs // 2)
            pages(ours)


if __name__ == "__main__":
    main()
