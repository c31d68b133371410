"""What the machine itself costs one who has nothing to do: a process that asks for the processor thirty times a second, and how late it got it.

A machine that is shared gives nobody what it does not have: it stands still, or one processor waits for another that somebody else
has. Whoever was late is told beside this how late the idle one was. It sleeps, hands over to a thread and back, and gives memory
back, which the other processors have to hear of: what any process does that serves somebody.
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

PAUSE_SECS, TOLD_SECS = 0.03, 0.005


class Floor:
    """Runs until this process is over."""

    def __init__(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen([sys.executable, "-E", __file__], stdin=subprocess.DEVNULL, stdout=self._said)
        atexit.register(self.end)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()

    def late(self, since: float) -> list[float]:
        """Seconds it was late by, where it was, since then (on the monotonic clock)."""
        assert self._process.poll() is None, "the floor has ended"
        rows = [line.split() for line in os.pread(self._said.fileno(), 1 << 26, 0).decode().splitlines(keepends=True) if line.endswith("\n")]
        return [float(late) for at, late in rows if float(at) >= since]

    def percentile(self, part: float, since: float) -> float:
        """As `LoopLag.percentile`: who came at a random moment waited longer than this in `part` of the cases."""
        late, allowed = self.late(since), part * (time.monotonic() - since)
        low, high = 0.0, max(late, default=0.0)
        for _ in range(24):
            middle = (low + high) / 2
            low, high = (low, middle) if sum(max(0.0, s - middle) for s in late) <= allowed else (middle, high)
        return high


@functools.cache
def floor() -> Floor:
    """The one of this process, from the first call on."""
    return Floor()


def _answer(there: socket.socket) -> None:
    while there.recv(1):
        there.send(b"x")


def _ask() -> None:
    whose, (here, there) = os.getppid(), socket.socketpair()
    threading.Thread(target=_answer, args=(there,), daemon=True).start()
    while os.getppid() == whose:
        due = time.monotonic() + PAUSE_SECS
        time.sleep(PAUSE_SECS)
        here.send(b"x")
        here.recv(1)
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            page[0] = 1
        now = time.monotonic()
        if now - due > TOLD_SECS:
            print(f"{now:.4f} {now - due:.4f}", flush=True)


if __name__ == "__main__":
    _ask()
