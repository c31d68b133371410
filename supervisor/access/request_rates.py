"""Limits of request rates: of each API token, and of failed authentications of each address.

A token bucket each: `burst` requests at once, then `per_sec`. The holder of the server secret, which
sends the requests of all users of a front end, has no limit.
"""

import math
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from ...protocol.errors import Refusal

#: Number of buckets that are kept; the least recently used one is dropped, which means full.
KEPT = 10_000
#: Failed authentications of one address: at once, and then in a second.
FAILURES, FAILURES_PER_SEC = 200, 10.0


class _Bucket(msgspec.Struct):
    left: float
    at: float


class RequestRates:
    """clock: monotonic seconds. per_sec, burst: of one API token. failures: failed authentications of
    one address at once.
    """

    def __init__(
        self,
        per_sec: float,
        burst: int,
        clock: Callable[[], float],
        *,
        failures: int = FAILURES,
    ) -> None:
        self._per_sec, self._burst, self._failures, self._clock = per_sec, burst, failures, clock
        self._tokens: OrderedDict[str, _Bucket] = OrderedDict()
        self._addresses: OrderedDict[str, _Bucket] = OrderedDict()

    def sizes(self) -> dict[str, int]:
        return {"tokens": len(self._tokens), "addresses": len(self._addresses)}

    def request(self, token: str) -> None:
        """Count a request with the API token of this id. Raises Refusal("tooManyRequests")."""
        secs = self._take(self._tokens, token, self._per_sec, self._burst)
        if secs:
            raise _refusal(
                f"this API token sent more than {self._burst} requests at once and {self._per_sec:g} per second",
                secs,
            )

    def failure(self, address: str) -> None:
        """Count a failed authentication. Raises Refusal("tooManyRequests")."""
        secs = self._take(self._addresses, address, FAILURES_PER_SEC, self._failures)
        if secs:
            raise _refusal("too many requests without a valid secret came from this address", secs)

    def _take(
        self, buckets: OrderedDict[str, _Bucket], name: str, per_sec: float, burst: int
    ) -> float:
        """Take one from a bucket. Return 0, or the seconds until it has one."""
        now = self._clock()
        bucket = buckets.get(name)
        if bucket is None:
            bucket = buckets[name] = _Bucket(float(burst), now)
            if len(buckets) > KEPT:
                buckets.popitem(last=False)
        else:
            buckets.move_to_end(name)
            bucket.left = min(float(burst), bucket.left + (now - bucket.at) * per_sec)
            bucket.at = now
        if bucket.left < 1.0:
            return (1.0 - bucket.left) / per_sec
        bucket.left -= 1.0
        return 0.0


def _refusal(sentence: str, secs: float) -> Refusal:
    return Refusal("tooManyRequests", sentence, {"retryAfterSecs": math.ceil(secs)})
