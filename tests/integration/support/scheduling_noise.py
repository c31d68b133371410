"""Scheduling noise of the machine: an idle process wakes thirty times a second and records its
delays.

On a shared machine all processes stop at times, or a processor is taken by another machine. Reports
of slow tests give the delay of the idle process for comparison. This process does the basic
operations of any server: it sleeps, hands over to a thread and back, and frees memory, which needs
all processors. Once a second it writes a few bytes to disk and waits for them.
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
from typing import IO, NamedTuple

PAUSE_SECS, TOLD_SECS, WRITE_EVERY_SECS = 0.03, 0.005, 1.0
#: Limits from which the machine counts as standing still: one wait for a processor (five times the
#: bound of the loop lag), one wait for the disk, and the share of time in all waits or of
#: processors used by another machine. On a dedicated machine no test of a full run (2,100 tests
#: with real processes) reaches them.
STOOD_SECS, DISK_SECS, PART = 0.25, 0.5, 0.2


class Moment(NamedTuple):
    """The start of an observation."""

    at: float
    stolen: float


class NoiseMeter:
    """Runs the idle process until this process ends.

    shared: path of the records and pid of an idle process that another process runs. Then this
    object only reads the records.
    """

    def __init__(self, shared: tuple[str, int] | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if shared is not None:
            self.path, self.pid = shared
            self._said: IO[bytes] = open(self.path, "rb")
            return
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-E", __file__], stdin=subprocess.DEVNULL, stdout=self._said
        )
        self.path, self.pid = f"/proc/{os.getpid()}/fd/{self._said.fileno()}", self._process.pid
        atexit.register(self.end)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._said.close()

    def measures(self) -> bool:
        """Return whether the idle process has written its first record, which it writes even if it
        is not late.
        """
        return os.fstat(self._said.fileno()).st_size > 0

    def late(self, since: float, what: str = "processor") -> list[float]:
        """Return its delays in seconds since this time (on the monotonic clock)."""
        assert _read(f"/proc/{self.pid}/cmdline"), "the idle process has ended"
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
        """Return the delay that is exceeded at a random moment with probability `part`, like
        `LoopLag.percentile`.
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
        """Return a sentence if the machine has stood still since then, else an empty string."""
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
        """Wait until the machine has not stood still for `calm` seconds."""
        over = time.monotonic() + at_most
        while time.monotonic() < over:
            since = now()
            time.sleep(calm)
            if not self.stood_still(since):
                return


_shared: tuple[str, int] | None = None


def share(path: str, pid: int) -> None:
    """Let `floor` read the records of this idle process instead of starting another one."""
    global _shared
    _shared = path, pid


@functools.cache
def floor() -> NoiseMeter:
    """Return the meter of this process. The first call starts it, unless it is shared."""
    return NoiseMeter(_shared)


def state() -> str:
    """Return the state of the machine for failure reports: load, memory, and waiting processes if
    the kernel counts them.
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
    """Return the seconds for which another machine has used our processors, or 0 if unknown."""
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
        last, before = time.monotonic(), last  # the intervals have no gap
        _tell("processor", last - before - PAUSE_SECS)


def _tell(what: str, late: float) -> None:
    if late >= TOLD_SECS:
        os.write(1, f"{what} {time.monotonic():.4f} {late:.4f}\n".encode())


if __name__ == "__main__":
    _ask()
