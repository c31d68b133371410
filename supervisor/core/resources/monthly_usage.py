"""Core and GPU hours that users have used in a UTC calendar month: sums of ended executions. Pure.

The sums have the rule of the accounting: an execution counts in the month in which its end is
recorded.
"""

from collections.abc import Iterable

import msgspec

from ....db.events.usage_row import DAY, UsageRow, month_of

#: Months that are kept: an input may carry a slightly earlier time than one before it.
_MONTHS = 2


class Used(msgspec.Struct):
    """Milliseconds of cores and of GPUs."""

    core_ms: int = 0
    gpu_ms: int = 0


class MonthlyUsage(msgspec.Struct):
    """Usage by the start of the month (unix seconds) and user."""

    months: dict[int, dict[str, Used]] = {}

    def add(self, rows: Iterable[UsageRow]) -> None:
        for row in rows:
            month = self.months.setdefault(month_of(row.start), {})
            used = month.setdefault(row.uid, Used())
            used.core_ms += row.core_ms
            used.gpu_ms += row.gpu_ms
        for old in sorted(self.months)[:-_MONTHS]:
            del self.months[old]

    def of(self, uid: str, at: float) -> Used:
        """Return what the user has used in the month of this time."""
        return self.months.get(month_of(at), {}).get(uid) or Used()


def next_month(at: float) -> int:
    """Return the start of the next month."""
    return month_of(month_of(at) + 32 * DAY)
