"""How long receipts are kept: at least a day, whatever the clock does.

What this process wrote is aged on the monotonic clock; only what an earlier process left is judged
by its wall time.
"""

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence

from ..store.contract import Receipt

KEPT_SECS = 24 * 3600.0
EVERY_SECS = 3600.0


class ReceiptRetention:
    """Removes receipts that are old enough, about once an hour. Used in the writer's thread."""

    def __init__(
        self, connection: sqlite3.Connection, inherited: int, monotonic: Callable[[], float]
    ) -> None:
        self._connection, self._monotonic = connection, monotonic
        self._next = monotonic() + EVERY_SECS
        self._inherited = inherited
        #: (when, number of the last receipt then)
        self._marks: deque[tuple[float, int]] = deque([(monotonic(), self._inherited)])
        self._newest_at: float | None = None

    def seen(self, receipts: Sequence[Receipt]) -> None:
        """These were written."""
        if receipts:
            self._newest_at = receipts[-1].at

    def prune(self) -> None:
        """Raises sqlite3.Error."""
        now = self._monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_SECS
        self._marks.append((now, self._last()))
        old = 0
        while self._marks and self._marks[0][0] <= now - KEPT_SECS:
            old = self._marks.popleft()[1]
        c = self._connection
        if old:
            c.execute("DELETE FROM receipts WHERE number <= ?", (old,))
        elif self._newest_at is not None:
            c.execute(
                "DELETE FROM receipts WHERE number <= ? AND at < ?",
                (self._inherited, self._newest_at - KEPT_SECS),
            )

    def _last(self) -> int:
        ((number,),) = self._connection.execute(
            "SELECT coalesce(max(number), 0) FROM receipts"
        ).fetchall()
        return int(number)
