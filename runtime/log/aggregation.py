"""Aggregates frequent log lines: logs the first at once and the number of the others later. Needs a
running loop.
"""

import asyncio

from .logger import Log

#: Seconds between the first line and the sum.
SUM_SECS = 10.0


class AggregatedLines:
    """Aggregated lines of one log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._more: dict[str, int] = {}

    def add(self, sentence: str) -> None:
        if sentence in self._more:
            self._more[sentence] += 1
            return
        if not self._more:
            asyncio.get_running_loop().call_later(SUM_SECS, self._log_sums)
        self._more[sentence] = 0
        self._log("{}", sentence)

    def _log_sums(self) -> None:
        sums, self._more = self._more, {}
        for sentence, count in sums.items():
            if count:
                self._log("{} (and {} more in {:g} s)", sentence, count, SUM_SECS)
