"""The process of a keeper under test, which is not a child of the test: its reaper is."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from jobscribe.runtime import processes


class KeeperProcess:
    """A keeper that `keeper_harness.py` started, with the methods of `subprocess.Popen`.

    reaper: the process that the test started. It writes the keeper's pid and later its wait status
    to files in `place`.
    """

    def __init__(self, reaper: "subprocess.Popen[bytes]", place: Path) -> None:
        self.reaper = reaper
        file = place / f"keeper-of-{reaper.pid}"
        self._wait_for(file.exists, 60)
        said = json.loads(file.read_text())
        self.pid: int = said["pid"]
        self.ticks: int = said["startTicks"]
        self._status = place / f"status-of-{self.pid}"

    def poll(self) -> int | None:
        """Return the exit code. A keeper whose reaper was killed has the code of SIGKILL."""
        if self._status.exists():
            return os.waitstatus_to_exitcode(int(self._status.read_text()))
        gone = not processes.alive(self.pid, self.ticks) and self.reaper.poll() is not None
        return -signal.SIGKILL if gone else None

    def wait(self, timeout: float = 60) -> int | None:
        self._wait_for(lambda: self.poll() is not None, timeout)
        return self.poll()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _wait_for(self, condition, timeout: float) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.reaper.args, timeout)
            time.sleep(0.002)
