"""No acknowledged event is lost when real processes are killed or a disk is really full."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_fixtures import Disk

from jobscribe.db.maintenance.verification import check
from jobscribe.db.store.head_file import read_head

pytestmark = pytest.mark.process

CHILD = Path(__file__).parents[1] / "support" / "db_child.py"
CYCLES = 30 if os.environ.get("SOAK") == "1" else 12
DEADLINE = 60.0


def child(*arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, str(CHILD), *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_killed_at_any_moment_every_acknowledged_batch_is_there(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    acked: dict[str, int] = {}
    for cycle in range(CYCLES):
        process = child("ack", str(tmp_path))
        assert process.stdout is not None
        # some processes are killed at once, most in the middle of their work
        lines = []
        for _ in range(chance.choice((0, 1, 5, 40, 150))):
            lines.append(process.stdout.readline())
        time.sleep(chance.random() * 0.02)
        process.kill()
        rest = process.stdout.read()
        process.wait(DEADLINE)
        process.stdout.close()
        for line in (*lines, *rest.splitlines(keepends=True)):
            if line.endswith("\n"):
                stream, version = line.split()
                acked[stream] = max(acked.get(stream, 0), int(version))
        mark = read_head(tmp_path / "db")
        assert not acked or (mark and mark.position >= sum(acked.values())), (
            f"cycle {cycle}, seed {seed}"
        )
        disk = Disk(tmp_path)
        for stream, version in acked.items():
            found = disk.store.read(stream)
            assert len(found) >= version, (
                f"cycle {cycle}, seed {seed}: {stream} lost what was acknowledged"
            )
            assert [s.event.session for s in found] == list(range(1, len(found) + 1)), (
                f"cycle {cycle}, seed {seed}"
            )
        disk.store.close()
    assert sum(acked.values()) > 500
    report = check(tmp_path)
    assert report.ok and report.events == report.whole_up_to > 500, report


@pytest.mark.parametrize("limit", [150_000, 400_000])
def test_a_full_disk_refuses_loses_nothing_and_goes_on_when_there_is_room(
    tmp_path: Path, limit: int
) -> None:
    """The file size limits are below and above the WAL's first checkpoint."""
    process = child("full", str(tmp_path), str(limit))
    out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    refused, again, recovered = map(json.loads, out.splitlines())
    assert refused["refused"] == "storageUnavailable" and "SQLITE_" in refused["sentence"]
    assert refused["head"] == refused["version"] == refused["read"] > 50
    assert again == {
        "again": "storageUnavailable",
        "still": "storageUnavailable",
        "head": refused["head"],
    }
    assert recovered == {
        "recovered": True,
        "head": refused["head"] + 5,
        "version": refused["version"],
    }
    assert check(tmp_path).ok
