"""Counters of refusals by code, for all threads."""

import threading
from collections import Counter


class RefusalCounts:
    """Counters named `refused.<code>` and `internal`, a closed set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def all(self) -> dict[str, int]:
        with self._lock:
            return dict(sorted(self._counts.items()))
