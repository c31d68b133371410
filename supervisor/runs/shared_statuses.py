"""Statuses for streams, made and encoded once for all pages that show a job."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ..connections.progress import Progress
from ..engine.decision_loop import DurableJob

#: How long a status is used for other pages: to send it, and to find out whether it has changed
#: without an event (seconds).
FRESH_SECS, LOOKED_SECS = 0.02, 1.0
MOST = 2_000


class _Made(NamedTuple):
    of: object
    at: float
    reply: dict[str, Any]
    encoded: bytes


class SharedStatuses:
    """make: returns the status of a job. mono: returns monotonic seconds."""

    def __init__(
        self,
        make: Callable[[DurableJob], dict[str, Any]],
        progress: Progress,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._progress, self._mono = make, progress, mono
        self._since = 0.0
        self._made: dict[str, _Made] = {}

    def of(self, entry: DurableJob, secs: float = FRESH_SECS) -> tuple[dict[str, Any], bytes]:
        """Return the status, which was made up to `secs` ago, and its JSON. Nobody may change it."""
        now = self._mono()
        if now - self._since > LOOKED_SECS or len(self._made) >= MOST:
            self._made.clear()
            self._since = now
        # a page that has a report of progress must not get an older one
        of = entry.position, self._progress.of(entry.job)
        made = self._made.get(entry.job.jid)
        if made is None or made.of != of or now - made.at > secs:
            reply = self._make(entry)
            made = _Made(of, now, reply, msgspec.json.encode(reply))
            self._made[entry.job.jid] = made
        return made.reply, made.encoded
