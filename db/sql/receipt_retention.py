"""Retention of receipts: at least one day, independent of wall clock changes.

Receipts of this process age by the monotonic clock. Receipts of earlier processes age by their wall
time.
"""

from collections import deque
from collections.abc import Callable, Sequence

from ..store.contract import Receipt
from .statements import SqlConnection

KEPT_SECS = 24 * 3600.0
EVERY_SECS = 3600.0


class ReceiptRetention:
    """Removes expired receipts about once an hour. Used in the writer's thread."""

    def __init__(
        self, connection: SqlConnection, inherited: int, monotonic: Callable[[], float]
    ) -> None:
        self._connection, self._monotonic = connection, monotonic
        self._next = monotonic() + EVERY_SECS
        self._inherited = inherited
        #: (time, number of the last receipt at that time)
        self._marks: deque[tuple[float, int]] = deque([(monotonic(), self._inherited)])
        self._newest_at: float | None = None

    def use(self, connection: SqlConnection) -> None:
        """Use another file with the same receipts."""
        self._connection = connection

    def seen(self, receipts: Sequence[Receipt]) -> None:
        """Note that these receipts were written."""
        if receipts:
            self._newest_at = receipts[-1].at

    def prune(self) -> None:
        """Remove expired receipts if an hour has passed. Raises the database's error."""
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
