"""Exponential backoff with jitter. Pure: the caller has clock, random numbers and sleep."""

import msgspec

from ..api.errors import ClientError

FIRST_SECS = 0.05
LONGEST_SECS = 2.0
#: Number of retries after `internal` errors, which rarely go away. Others are retried for the budget.
MOST_INTERNAL = 2
#: Number of times that a request follows its supervisor to another address or secret.
MOST_MOVES = 5


class Retry(msgspec.Struct):
    """The failures of one request. budget_secs: how long to retry after the first one."""

    budget_secs: float
    failures: int = 0
    internal: int = 0
    moves: int = 0
    since: float | None = None

    def failed(self, error: ClientError, now: float, roll: float) -> float | None:
        """Return the seconds to wait before the next retry, or None to give up.

        roll: random number in [0, 1).
        """
        if not error.retry:
            return None
        self.failures += 1
        self.since = now if self.since is None else self.since
        if error.code == "internal":
            self.internal += 1
            if self.internal > MOST_INTERNAL:
                return None
        longest = min(LONGEST_SECS, FIRST_SECS * 2.0 ** min(self.failures - 1, 16))
        wait = max(longest * (0.5 + roll / 2), _told(error))
        left = self.since + self.budget_secs - now
        return None if left <= 0 else min(wait, left)


def _told(error: ClientError) -> float:
    """Return the seconds that the supervisor asks to wait."""
    secs = error.more.get("retryAfterSecs")
    return float(secs) if isinstance(secs, int | float) else 0.0
