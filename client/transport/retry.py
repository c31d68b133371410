"""When to try again, and when to give up: arithmetic only. The caller has the clock, the dice and
the sleep.
"""

import msgspec

from ..api.errors import ClientError

FIRST_SECS = 0.05
LONGEST_SECS = 2.0
#: An error of the supervisor's own making is not expected to go away; anything else may last as
#: long as the budget.
MOST_INTERNAL = 2


class Retry(msgspec.Struct):
    """The failures of one request. budget_secs: how long to go on after the first of them."""

    budget_secs: float
    failures: int = 0
    internal: int = 0
    since: float | None = None

    def failed(self, error: ClientError, now: float, roll: float) -> float | None:
        """Seconds to wait before the same request is sent again, or None to give up. `roll` is
        random in [0, 1).
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
        left = self.since + self.budget_secs - now
        return None if left <= 0 else min(longest * (0.5 + roll / 2), left)
