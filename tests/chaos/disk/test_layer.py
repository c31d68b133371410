"""Validate the file system layer that drops unsynced data: databases that do not sync lose
committed data on it, and databases that sync never do.
"""

import contextlib
import random
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
import strace_calls
from power_cut import Disk
from strace_calls import data_of, path_of

WRITER = """
import os, sqlite3, sys
os.mkdir(sys.argv[1])
c = sqlite3.connect(sys.argv[1] + "/log", isolation_level=None)
c.execute("PRAGMA journal_mode = WAL")
c.execute("PRAGMA synchronous = " + sys.argv[2])
c.execute("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
for folder in (sys.argv[1], os.path.dirname(sys.argv[1])):
    os.fsync(os.open(folder, os.O_RDONLY))
for n in range(1, 31):
    c.execute("INSERT INTO numbers VALUES (?)", (n,))
    os.write(1, b"committed %d" % n)
    if n % 10 == 0:
        c.execute("PRAGMA wal_checkpoint(TRUNCATE)")
os._exit(0)
"""


def losses(tmp_path: Path, image: Path, synchronous: str) -> tuple[int, int]:
    """Return (number of disks that lack committed data, number of disks checked)."""
    strace_calls.write_recorder(tmp_path / "python", tmp_path / "trace")
    subprocess.run(
        [tmp_path / "python", "-c", WRITER, tmp_path / "store", synchronous],
        stdout=subprocess.PIPE,
        check=True,
    )
    chance, disk = (
        random.Random(1),
        Disk(
            tmp_path / "store", lambda path: not path.startswith("store") or path.endswith("-shm")
        ),
    )
    said = lost = looked = 0
    for _, call, returned in disk.moments(strace_calls.calls(tmp_path / "trace")):
        if (
            returned
            or call.name != "write"
            or path_of(call.args[0])
            or not data_of(call.args[1]).startswith(b"committed ")
        ):
            continue
        said = int(data_of(call.args[1]).split()[1])
        for _ in range(3):
            disk.write_image(image, chance)
            lost, looked = lost + (_there(image / "store" / "log") < said), looked + 1
            shutil.rmtree(image / "store", ignore_errors=True)
    assert said == 30
    return lost, looked


def _there(file: Path) -> int:
    """Return how many numbers without a gap a reader finds."""
    try:
        with contextlib.closing(sqlite3.connect(file)) as connection:
            numbers = [n for (n,) in connection.execute("SELECT n FROM numbers ORDER BY n")]
    except sqlite3.DatabaseError:
        return 0
    return next((i for i, n in enumerate(numbers) if n != i + 1), len(numbers))


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
def test_a_database_that_does_not_sync_loses_what_it_said(
    tmp_path: Path, image: Path, synchronous: str
) -> None:
    strace_calls.required()
    lost, looked = losses(tmp_path, image, synchronous)
    assert lost > looked // 5, (lost, looked)


def test_a_database_that_syncs_loses_nothing(tmp_path: Path, image: Path) -> None:
    strace_calls.required()
    assert losses(tmp_path, image, "FULL") == (0, 90)


def test_the_last_write_of_a_killed_thread_is_a_whole_one(tmp_path: Path) -> None:
    """An earlier short write of the thread keeps its result."""
    file = r'3<\x2f\x61>, "\x61\x62\x63", 3, 0'
    (tmp_path / "trace").write_text(
        f"7 pwrite64({file}) = 2\n"
        f"7 pwrite64({file} <unfinished ...>\n"
        "8 fdatasync(3<\\x2f\\x61>) = 0\n"
        "7 <... pwrite64 resumed>) = 1\n"
        "7 +++ killed by SIGKILL +++\n"
    )
    seen = [(c.pid, c.name, c.result) for c in strace_calls.calls(tmp_path / "trace")]
    assert seen == [(7, "pwrite64", 2), (8, "fdatasync", 0), (7, "pwrite64", 3)]
