"""Token buckets by name: `burst` actions at once, then `per_sec`. Not safe for threads."""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

#: Number of buckets that are kept; the least recently used one is dropped, which means full.
KEPT = 10_000


class _Bucket(msgspec.Struct):
    left: float
    at: float


class TokenBuckets:
    """One bucket for each name. clock: monotonic seconds."""

    def __init__(self, per_sec: float, burst: int, clock: Callable[[], float]) -> None:
        self.per_sec, self.burst, self._clock = per_sec, burst, clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str) -> float:
        """Take one from a bucket. Return 0, or the seconds until it has one."""
        now = self._clock()
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = _Bucket(float(self.burst), now)
            if len(self._buckets) > KEPT:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(name)
            bucket.left = min(float(self.burst), bucket.left + (now - bucket.at) * self.per_sec)
            bucket.at = now
        if bucket.left < 1.0:
            return (1.0 - bucket.left) / self.per_sec
        bucket.left -= 1.0
        return 0.0

    def give_back(self, name: str) -> None:
        """Undo the last `take` of this name."""
        bucket = self._buckets.get(name)
        if bucket is not None:
            bucket.left = min(float(self.burst), bucket.left + 1.0)
