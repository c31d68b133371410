"""Costs of finished jobs: inodes, disk, start, list and backup, before and after retention.

`python tests/bench/retention_bench.py --jobs 100000 --place /tmp` runs real jobs (`echo`), then lets
retention take away what it would take after a year: scripts and exit files, events, and then the
whole evidence. Prints a table, with numbers for 1,000,000 jobs in proportion. Asserts nothing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local_site import Jobscribe, jobscribe, pss_mib

#: Jobs of one array.
ARRAY = 10_000
PAGES = 9
Costs = dict[str, float]
#: Nothing goes by itself.
_NEVER = (
    "retention.every_secs=86400",
    "retention.events_secs=none",
    "retention.scripts_secs=none",
    "retention.evidence_secs=none",
    "retention.superseded_secs=none",
)


def sizes(root: Path) -> tuple[int, int]:
    """Return inodes and allocated bytes below a folder; a file with several names counts once."""
    seen: set[int] = set()
    blocks = 0
    for top, folders, files in os.walk(root):
        for name in (*folders, *files):
            found = os.lstat(f"{top}/{name}")
            if found.st_ino not in seen:
                seen.add(found.st_ino)
                blocks += found.st_blocks
    return len(seen), blocks * 512


def took(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def fill(site: Jobscribe, jobs: int) -> None:
    for first in range(0, jobs, ARRAY):
        count = min(ARRAY, jobs - first)
        sid = site.array(["/bin/sh", "-c", "echo hello"], f"0-{count - 1}")
        group = {"uid": site.uid, "simulationId": sid, "limit": 0, "waitSecs": 10}
        while not site.ask("job-group", **group)["over"]:
            pass
        say(f"{first + count} jobs")


def measure(root: Path, *settings: str) -> Costs:
    """Measure a root whose supervisor is stopped."""
    out: Costs = {}
    for part, folder in (("", root), (" of the log", root / "db")):
        inodes, size = sizes(folder)
        if not part:
            out["inodes"] = inodes
        out[f"MiB{part}"] = size / 2**20
    with jobscribe(root, *_NEVER, *settings) as site:
        out["start, s"] = site.ready_secs
        out["list of 100, ms"] = 1000 * min(
            took(lambda: site.ask("job-list", limit=100)) for _ in range(PAGES)
        )
        out["memory (PSS), MiB"] = pss_mib(site.pid)
        backup = root.parent / "backup"
        out["backup, s"] = took(lambda: cli(root, "db", "backup", str(backup)))
        shutil.rmtree(backup)
    return out


def cli(root: Path, *words: str) -> None:
    command = [sys.executable, "-m", "jobscribe.cli", "--root", str(root), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def swept(root: Path, *settings: str) -> float:
    """Let a supervisor with these settings make one pass. Return its duration in seconds."""
    with jobscribe(root, *_NEVER, *settings) as site:
        report = site.ask("retention-sweep", dryRun=False)["report"]
    say(f"{report}")
    return float(report["secs"])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--place", default="/tmp")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="retention-", dir=args.place) as folder:
        root = Path(folder) / "root"
        with jobscribe(root, *_NEVER) as site:
            secs = took(lambda: fill(site, args.jobs))
            time.sleep(2.0)
        say(f"{args.jobs} jobs in {secs:.0f} s")
        columns = {"before": measure(root)}
        pace = {"scripts": swept(root, "retention.scripts_secs=1")}
        with jobscribe(root, *_NEVER):
            pace["compaction"] = took(
                lambda: cli(root, "db", "compact", "--older-than", "0", "--no-keep")
            )
        columns["30 days later"] = measure(root)
        pace["evidence"] = swept(root, "retention.evidence_secs=1")
        columns["a year later"] = measure(root)
    rows = list(columns["before"])
    print(f"| {args.jobs} jobs | {' | '.join(columns)} | per job |")
    for row in rows:
        cells = [f"{columns[c][row]:.1f}" for c in columns]
        each = [f"{columns[c][row] / args.jobs:.4g}" for c in columns]
        print(f"| {row} | {' | '.join(cells)} | {', '.join(each)} |")
    print(", ".join(f"{what}: {secs:.1f} s" for what, secs in pace.items()))


if __name__ == "__main__":
    main()
