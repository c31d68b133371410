"""Requests of one user that run at once, such as searches of jobs and checks of job files: a limit,
so that no user takes the event loop's time from others.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ....protocol.errors import Refusal

#: Requests of one kind of one user at once. A page makes one at a time.
MAX_OF_USER = 4
_RETRY_SECS = 1


class SearchSlots:
    """Use it on the event loop. what: name of the requests, in messages and metrics."""

    def __init__(self, what: str = "searches") -> None:
        self._what = what
        self._open: Counter[str] = Counter()

    def sizes(self) -> dict[str, int]:
        return {self._what: self._open.total()}

    @contextmanager
    def hold(self, user: str) -> Iterator[None]:
        """Hold a slot during a request. Raises Refusal("tooManyRequests")."""
        if self._open[user] >= MAX_OF_USER:
            raise Refusal(
                "tooManyRequests",
                f"{MAX_OF_USER} {self._what} of {user} are running already; wait for one of them",
                {"retryAfterSecs": _RETRY_SECS},
            )
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
