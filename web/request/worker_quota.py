"""Quota of workers for each user: requests being answered and downloads being read. No user can
occupy all workers.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ...protocol.errors import Refusal


class WorkerQuota:
    """Quota for all threads. streams: maximum number of downloads; one user may have three quarters
    of them. each: requests and downloads of one user.
    """

    def __init__(self, streams: int, each: int) -> None:
        self._streams, self._each = streams, each
        self._streams_each = streams - streams // 4
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._reading: Counter[str] = Counter()

    @contextmanager
    def request(self, uid: str) -> Iterator[None]:
        """Hold a slot while a request of this user is answered. Raises Refusal("tooManyRequests")."""
        with self._lock:
            if self._requests[uid] + self._reading[uid] >= self._each:
                raise Refusal(
                    "tooManyRequests",
                    f"you already have {self._each} requests and downloads in progress",
                )
            self._requests[uid] += 1
        try:
            yield
        finally:
            with self._lock:
                _one_less(self._requests, uid)

    def stream(self, uid: str) -> "WorkerSlot":
        """Return a slot for a download, held until it is closed. Raises Refusal("tooManyRequests")."""
        with self._lock:
            if self._reading.total() >= self._streams or self._reading[uid] >= self._streams_each:
                raise Refusal("tooManyRequests", "too many downloads are in progress")
            self._reading[uid] += 1
        return WorkerSlot(self, uid)

    def release(self, uid: str) -> None:
        """Release the slot of a download that has ended."""
        with self._lock:
            _one_less(self._reading, uid)


class WorkerSlot:
    """The slot of one download; a second close has no effect."""

    def __init__(self, quota: WorkerQuota, uid: str) -> None:
        self._quota, self._uid = quota, uid
        self._open = True

    def close(self) -> None:
        if self._open:
            self._open = False
            self._quota.release(self._uid)


def _one_less(counter: Counter[str], uid: str) -> None:
    counter[uid] -= 1
    if not counter[uid]:
        del counter[uid]
