"""The keeper's timer for pending writes (see runtime.execution.pending_writes)."""

from __future__ import annotations

import time

from ....runtime.execution.pending_writes import PendingWrites
from .log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .event_loop import Loop


class WriteRetryQueue:
    """Writes JSON files; retries until the write succeeds."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._writes = loop, PendingWrites(log)
        self.delete, self.flush = self._writes.delete, self._writes.flush

    def write(self, path: str, value: dict[str, Any]) -> None:
        """Write now, or later if that fails. Never raises."""
        self._writes.write(path, value)
        self._schedule()

    def _schedule(self) -> None:
        if self._writes and not self._loop.has_timer("pending writes"):
            at = time.monotonic() + self._writes.pause
            self._loop.call_at("pending writes", at, self._retry)

    def _retry(self) -> None:
        self._writes.retry()
        self._schedule()
