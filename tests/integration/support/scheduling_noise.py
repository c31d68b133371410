"""What the machine itself costs one who has nothing to do: a process that asks for the processor
thirty times a second, and how late it got it.

A machine that is shared gives nobody what it does not have: it stands still, or one processor waits
for another that somebody else has. Whoever was late is told beside this how late the idle one was.
It sleeps, hands over to a thread and back, and gives memory back, which the other processors have
to hear of: what any process does that serves somebody. Once a second it has a disk write a few
bytes, as everything does that promises to remember.
"""

import atexit
import functools
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple

PAUSE_SECS, TOLD_SECS, WRITE_EVERY_SECS = 0.03, 0.005, 1.0
#: The machine stood still: so long an idle process waited at once for a processor (five times the
#: bound of a loop's lag) or for the disk, so much of a time in all, or so much of the processors
#: was another machine's. In a whole run on a machine of one's own none of 2,100 tests with real
#: processes has such evidence.
STOOD_SECS, DISK_SECS, PART = 0.25, 0.5, 0.2


class Moment(NamedTuple):
    """Since when something is looked at."""

    at: float
    stolen: float


class NoiseMeter:
    """Runs until this process is over."""

    def __init__(self) -> None:
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-E", __file__], stdin=subprocess.DEVNULL, stdout=self._said
        )
        atexit.register(self.end)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()

    def measures(self) -> bool:
        """It does from its first word on, which it says whether it was late or not."""
        return os.fstat(self._said.fileno()).st_size > 0

    def late(self, since: float, what: str = "processor") -> list[float]:
        """Seconds it was late by, where it was, since then (on the monotonic clock)."""
        assert self._process.poll() is None, "the floor has ended"
        rows = [
            line.split()
            for line in os.pread(self._said.fileno(), 1 << 26, 0).decode().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        return [
            float(late)
            for waited_for, at, late in rows
            if waited_for == what and float(at) >= since
        ]

    def percentile(self, part: float, since: float) -> float:
        """As `LoopLag.percentile`: who came at a random moment waited longer than this in `part` of
        the cases.
        """
        late, allowed = self.late(since), part * (time.monotonic() - since)
        low, high = 0.0, max(late, default=0.0)
        for _ in range(24):
            middle = (low + high) / 2
            low, high = (
                (low, middle)
                if sum(max(0.0, s - middle) for s in late) <= allowed
                else (middle, high)
            )
        return high

    def stood_still(self, since: Moment) -> str:
        """That the machine did since then, in a sentence; nothing if it did not."""
        passed, late, disk = (
            time.monotonic() - since.at,
            self.late(since.at),
            self.late(since.at, "disk"),
        )
        stolen = (_stolen() - since.stolen) / (os.cpu_count() or 1)
        said = [
            f"{name} {secs:.2f} s"
            for name, secs, bound in (
                (
                    "a process that does nothing waited for a processor, at once",
                    max(late, default=0.0),
                    STOOD_SECS,
                ),
                ("in all", sum(late), max(STOOD_SECS, PART * passed)),
                ("for the disk", max(disk, default=0.0), DISK_SECS),
                ("another machine had the processors", stolen, max(STOOD_SECS, PART * passed)),
            )
            if secs >= bound
        ]
        return f"in {passed:.1f} s: {', '.join(said)}" if said else ""

    def wait_until_it_runs(self, calm: float, at_most: float) -> None:
        """Until it has run for `calm` seconds without having stood still."""
        over = time.monotonic() + at_most
        while time.monotonic() < over:
            since = now()
            time.sleep(calm)
            if not self.stood_still(since):
                return


@functools.cache
def floor() -> NoiseMeter:
    """The one of this process, from the first call on."""
    return NoiseMeter()


def state() -> str:
    """What the machine says of itself, for who reads of a failure: load, memory, and who waits for
    what, where the kernel counts that.
    """
    said = [f"load {' '.join(_read('/proc/loadavg').split()[:3])}"]
    said += [
        " ".join(line.split())
        for line in _read("/proc/meminfo").splitlines()
        if line.startswith(("MemAvailable", "Dirty:", "Writeback:"))
    ]
    said += [
        f"{name} {_read(f'/proc/pressure/{name}').partition(' total')[0]}"
        for name in ("cpu", "io", "memory")
        if _read(f"/proc/pressure/{name}")
    ]
    return "; ".join(said)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def now() -> Moment:
    return Moment(time.monotonic(), _stolen())


def _stolen() -> float:
    """Seconds for which another machine has had our processors; 0 where nobody counts."""
    try:
        with open("/proc/stat", "rb") as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _answer(there: socket.socket) -> None:
    while there.recv(1):
        there.send(b"x")


def _write() -> None:
    with tempfile.TemporaryFile() as file:
        while True:
            time.sleep(WRITE_EVERY_SECS)
            began = time.monotonic()
            os.pwrite(file.fileno(), b"x", 0)
            os.fdatasync(file.fileno())
            _tell("disk", time.monotonic() - began)


def _ask() -> None:
    whose, (here, there) = os.getppid(), socket.socketpair()
    threading.Thread(target=_answer, args=(there,), daemon=True).start()
    threading.Thread(target=_write, daemon=True).start()
    last = time.monotonic()
    _tell("begun", TOLD_SECS)
    while os.getppid() == whose:
        time.sleep(PAUSE_SECS)
        here.send(b"x")
        here.recv(1)
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            page[0] = 1
        last, before = time.monotonic(), last  # no moment is in none of them
        _tell("processor", last - before - PAUSE_SECS)


def _tell(what: str, late: float) -> None:
    if late >= TOLD_SECS:
        os.write(1, f"{what} {time.monotonic():.4f} {late:.4f}\n".encode())


if __name__ == "__main__":
    _ask()
