"""How long something took, counted in classes, and how often it failed: plain numbers, for whoever
asks for them later.

For code that knows nothing of metrics and those who collect them. One thread.
"""

from bisect import bisect_left
from collections import Counter

#: Upper bounds of the classes, seconds; what took longer is in one class behind them.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class LatencyHistogram:
    """counts: of each class, one more than there are bounds. total: seconds, of all. errors: by
    code.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0
        self.errors: Counter[str] = Counter()

    def took(self, secs: float, error: str | None = None) -> None:
        """One is over; it failed if there is an error."""
        self.counts[bisect_left(BOUNDS, secs)] += 1
        self.total += secs
        if error is not None:
            self.errors[error] += 1
