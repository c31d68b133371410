"""Latency histogram: durations by class, and errors by code. Plain numbers.

For code that must not depend on the metrics library. Not thread-safe.
"""

from bisect import bisect_left
from collections import Counter

#: Upper bounds of the classes, seconds; longer durations are in one further class.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class LatencyHistogram:
    """counts: by class, one more than bounds. total: seconds of all. errors: by code."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0
        self.errors: Counter[str] = Counter()

    def record(self, secs: float, error: str | None = None) -> None:
        """Count one duration, and an error if it failed."""
        self.counts[bisect_left(BOUNDS, secs)] += 1
        self.total += secs
        if error is not None:
            self.errors[error] += 1
