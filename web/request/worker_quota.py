"""Who holds the workers: requests that are being answered and downloads that are being read, by
user. No one user gets all of them.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ...protocol.errors import Refusal


class WorkerQuota:
    """For all threads. streams: downloads at once, of which one user may have three quarters. each:
    requests and downloads of one user.
    """

    def __init__(self, streams: int, each: int) -> None:
        self._streams, self._each = streams, each
        self._streams_each = streams - streams // 4
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._reading: Counter[str] = Counter()

    @contextmanager
    def request(self, uid: str) -> Iterator[None]:
        """While a request of this user is being answered. Raises Refusal("tooManyRequests")."""
        with self._lock:
            if self._requests[uid] + self._reading[uid] >= self._each:
                raise Refusal(
                    "tooManyRequests",
                    f"{self._each} requests and downloads of yours are under way already",
                )
            self._requests[uid] += 1
        try:
            yield
        finally:
            with self._lock:
                _one_less(self._requests, uid)

    def stream(self, uid: str) -> "WorkerSlot":
        """For a download, until it is closed. Raises Refusal("tooManyRequests")."""
        with self._lock:
            if self._reading.total() >= self._streams or self._reading[uid] >= self._streams_each:
                raise Refusal("tooManyRequests", "too many downloads are under way")
            self._reading[uid] += 1
        return WorkerSlot(self, uid)

    def left(self, uid: str) -> None:
        """A download of this user has ended."""
        with self._lock:
            _one_less(self._reading, uid)


class WorkerSlot:
    """One among the downloads; closing it again does nothing."""

    def __init__(self, places: WorkerQuota, uid: str) -> None:
        self._places, self._uid = places, uid
        self._open = True

    def close(self) -> None:
        if self._open:
            self._open = False
            self._places.left(self._uid)


def _one_less(counter: Counter[str], uid: str) -> None:
    counter[uid] -= 1
    if not counter[uid]:
        del counter[uid]
