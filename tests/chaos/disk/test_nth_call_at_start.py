"""The n-th system call of a starting supervisor fails: it starts anyway or names the reason, and
the next start finds all data.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import strace_calls
from consistency_check import check_books
from failing_calls import options, struck
from supervisor_process import SupervisorProcess, shell

from jobscribe.db.maintenance.verification import check

SOAK = os.environ.get("SOAK") == "1"
Make = Callable[..., SupervisorProcess]

#: System calls on the store, the error, and which call fails (with SOAK=1: each in turn, and more
#: kinds).
KINDS = [
    ("openat", "EMFILE", 3),
    ("pread64", "EIO", 11),
    ("pwrite64,ftruncate", "ENOSPC", 1),
    ("fdatasync,fsync", "EIO", 2),
    ("fcntl", "ENOLCK", 4),
] + ([("openat", "ENOMEM", 5), ("pwrite64", "EIO", 2), ("mmap", "ENOMEM", 1)] if SOAK else [])
#: Messages of a refused start.
SENTENCES = (
    "cannot be opened",
    "cannot be written",
    "cannot be used",
    "cannot be read",
    "is damaged",
)
FILES = ("events.sqlite", "events.sqlite-wal", "events.sqlite-shm", "head", "")


@pytest.fixture
def interpreter(tmp_path: Path) -> Iterator[Path]:
    strace_calls.required()
    yield tmp_path / "python"


@pytest.mark.timeout(3600 if SOAK else 240)
def test_a_start_on_a_failing_disk_says_why_and_spoils_nothing(
    make_site: Make, interpreter: Path
) -> None:
    strace_calls.write_interpreter(interpreter, [])
    site = make_site(python=str(interpreter)).start()
    first = site.finished(shell("exit 0"))
    assert site.stop() == 0
    files = [site.root / "db" / name for name in FILES]
    tried, told = 0, list[str]()
    for calls, error, chosen in KINDS:
        for n in itertools.count(1) if SOAK else [chosen]:
            seen = site.place / "struck"
            strace_calls.write_interpreter(
                interpreter, options(calls, f"error={error}", str(n), files, seen)
            )
            said = _tried(site)
            if not struck(seen):
                assert said is None and n > chosen, (calls, error, n, said)
                break
            tried += 1
            if said is not None:
                told.append(f"{calls} {error} {n}: {said}")
            report = check(site.root)
            assert report.ok, (calls, error, n, report)
    assert tried >= len(KINDS) and len(told) > len(KINDS) // 2, (tried, told)
    print(f"{tried} starts with one failed call, {len(told)} of them refused:", *told, sep="\n")
    strace_calls.write_interpreter(interpreter, [])
    site.start()
    (job,) = check_books(site).values()
    assert job.run is not None and job.run.serial == first["computeJobSerial"]


def _tried(site: SupervisorProcess) -> str | None:
    """Start and stop the supervisor. Return its error message if it did not start."""
    (site.place / "up.log").write_text("")
    process = site.process = site.launch()
    assert process.stdout is not None
    ready = process.stdout.readline()
    code, said = site.stop(), site.log()
    assert "Traceback" not in said, said[-4000:]
    if ready:
        return None
    assert code > 0, (code, said[-2000:])
    assert any(sentence in said for sentence in SENTENCES), said[-2000:]
    return " ".join(said.split("\n")[-3:])
