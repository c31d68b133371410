"""A time series of one task with a bounded number of points, from its start until now. No clock.

The samples of one interval make one point. When there are too many points, each two neighbours are
merged and the interval doubles.
"""

import math
from array import array
from collections.abc import Sequence
from typing import Any

from ...protocol.wire.messages import Sample

#: Initial interval in seconds, and maximum points of a task.
RESOLUTION_SECS, MAX_POINTS = 10.0, 360
#: Fields of a point: means over the interval, and newest values of counters.
MEANS = ("cpu_percent", "memory_bytes", "processes", "gpu_percent", "gpu_memory_bytes")
NEWEST = ("at", "cpu_secs", "read_bytes", "written_bytes", "received_bytes", "sent_bytes")
_FIELDS = (*NEWEST, *MEANS)
_WIDTH = len(_FIELDS)
NAMES = (
    "at",
    "cpuSecs",
    "readBytes",
    "writtenBytes",
    "receivedBytes",
    "sentBytes",
    "cpuPercent",
    "memoryBytes",
    "processes",
    "gpuPercent",
    "gpuMemoryBytes",
)


class Series:
    """Points of one task. Times are monotonic seconds. NaN means unknown."""

    def __init__(self) -> None:
        self.resolution = RESOLUTION_SECS
        self._points = array("d")
        self._started: float | None = None
        self._interval = 0
        self._open: list[list[float]] = []

    def __len__(self) -> int:
        return len(self._points) // _WIDTH + bool(self._open)

    def add(self, mono: float, sample: Sample, limit: int = MAX_POINTS) -> None:
        """Add a sample. limit: maximum points, at least 2."""
        if self._started is None:
            self._started = mono
        interval = int((mono - self._started) // self.resolution)
        if interval != self._interval:
            self._close()
            self._interval = interval
        self._open.append([_number(getattr(sample, f, None)) for f in _FIELDS])
        while len(self) > max(2, limit):
            self._halve()
            self._interval = int((mono - self._started) // self.resolution)

    def rows(self, limit: int = MAX_POINTS) -> list[list[float | None]]:
        """Return at most `limit` points, oldest first, each with a value for each of NAMES."""
        step = -(
            -len(self) // max(1, limit)
        )  # the last of every `step` points, counted from the end
        points = [_merge(self._open)] if self._open else []
        first = len(self._points) // _WIDTH - 1 - ((step - 1) if points else 0)
        points += [
            list(self._points[n * _WIDTH : (n + 1) * _WIDTH]) for n in range(first, -1, -step)
        ]
        points.reverse()
        return [[None if math.isnan(v) else v for v in point] for point in points]

    def _closed(self) -> list[list[float]]:
        return [list(self._points[n : n + _WIDTH]) for n in range(0, len(self._points), _WIDTH)]

    def _close(self) -> None:
        if self._open:
            self._points.extend(_merge(self._open))
            self._open = []

    def _halve(self) -> None:
        self._points = array("d", (v for point in _merge_pairs(self._closed()) for v in point))
        self.resolution *= 2


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _merge_pairs(points: list[list[float]]) -> list[list[float]]:
    return [_merge(points[n : n + 2]) for n in range(0, len(points), 2)]


def _merge(points: Sequence[Sequence[float]]) -> list[float]:
    """Merge points: counters keep the newest known value, all other fields the mean of known
    values.
    """
    out = []
    for n, field in enumerate(_FIELDS):
        known = [p[n] for p in points if not math.isnan(p[n])]
        out.append(
            math.nan if not known else known[-1] if field in NEWEST else sum(known) / len(known)
        )
    return out
