"""Samples what the processes of this machine show of themselves, to search it for secrets."""

import os
import threading
from pathlib import Path

PAUSE_SECS = 0.01
#: A process is read in its first rounds, in which it may execute another program, and then in each
#: so-many-th: reading all of them in each round takes half a processor.
FIRST, EVERY = 10, 20


class ProcessSampler:
    """Collects these files below /proc/PID of all processes but this one, until `end`."""

    def __init__(self, *files: str) -> None:
        self._files = files
        #: Where each text was seen first.
        self.seen: dict[bytes, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rounds: dict[str, int] = {}
        own = str(os.getpid())
        while not self._over.wait(PAUSE_SECS):
            pids = [name for name in os.listdir("/proc") if name.isdecimal() and name != own]
            rounds = {pid: rounds.get(pid, -1) + 1 for pid in pids}
            for pid, number in rounds.items():
                if number < FIRST or number % EVERY == 0:
                    self._read(pid)

    def _read(self, pid: str) -> None:
        for file in self._files:
            try:
                text = Path(f"/proc/{pid}/{file}").read_bytes()
            except OSError:  # it has ended, or hides itself
                continue
            self.seen.setdefault(text, f"{file} of {pid}")

    def end(self) -> dict[str, bytes]:
        """Stop, and return the texts by where they were seen."""
        self._over.set()
        self._thread.join()
        return {where: text for text, where in self.seen.items()}
