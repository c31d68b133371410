"""The delivery queue of one target. Pure: times and random numbers are arguments.

The event log is the queue. This module stores only how far a target has read the log (`cursor`),
and the few earlier events that are not delivered yet. Notifications about one job stay in order:
the next one waits until the previous one is delivered or given up. After a failure, one
notification is tried at a time, with growing pauses, until one succeeds.
"""

from collections.abc import Callable

import msgspec

#: Maximum pending notifications of one target. At this limit the cursor stops.
MOST_WAITING = 100
FIRST_PAUSE_SECS, LONGEST_PAUSE_SECS = 1.0, 300.0
#: Maximum pause that a target may request.
LONGEST_ASKED_SECS = 3_600.0


class PendingDelivery(msgspec.Struct, kw_only=True):
    """An event to be delivered. due: time of the next attempt; since: time of the first possible
    delivery (both monotonic). in_flight: a delivery is in progress.
    """

    position: int
    stream: str
    version: int
    since: float
    due: float
    attempts: int = 0
    in_flight: bool = False


class SavedDelivery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pending delivery on disk. next_at: wall time. spent_secs: total time of attempts by all
    supervisors, so that a wrong clock matters little.
    """

    position: int
    stream: str
    version: int
    attempts: int
    next_at: float
    spent_secs: float


class SavedTarget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of a target that survives restarts."""

    cursor: int
    waiting: tuple[SavedDelivery, ...] = ()


class Queue:
    """Pending deliveries and their retry times. jitter: returns a random number from 0 to 1."""

    def __init__(
        self,
        kept: SavedTarget,
        *,
        now: float,
        wall: float,
        give_up_secs: float,
        parallel: int,
        jitter: Callable[[], float],
    ) -> None:
        self._give_up_secs, self._parallel, self._jitter = give_up_secs, parallel, jitter
        self.cursor = kept.cursor
        #: Consecutive failures, and the earliest time of the next attempt.
        self.failures, self._gate = 0, 0.0
        self._failing_since: float | None = None
        self.waiting = {
            w.position: PendingDelivery(
                position=w.position,
                stream=w.stream,
                version=w.version,
                attempts=w.attempts,
                since=now - max(0.0, w.spent_secs),
                # Limited: the wall clock may have been set while no supervisor ran.
                due=now + min(max(0.0, w.next_at - wall), LONGEST_ASKED_SECS),
            )
            for w in sorted(kept.waiting, key=lambda w: w.position)
        }

    def kept(self, now: float, wall: float) -> SavedTarget:
        """Return the state to be saved. A delivery in progress counts as pending."""
        return SavedTarget(
            cursor=self.cursor,
            waiting=tuple(
                SavedDelivery(
                    position=w.position,
                    stream=w.stream,
                    version=w.version,
                    attempts=w.attempts,
                    next_at=wall + max(0.0, self._due(w) - now),
                    spent_secs=max(0.0, now - w.since),
                )
                for w in self.waiting.values()
            ),
        )

    @property
    def room(self) -> int:
        """Return the number of further deliveries that fit."""
        return max(0, MOST_WAITING - len(self.waiting))

    @property
    def has_room(self) -> bool:
        """Return whether enough deliveries fit to read on. Reading the log for single events is too
        slow.
        """
        return len(self.waiting) <= MOST_WAITING // 2

    @property
    def in_flight(self) -> int:
        return sum(w.in_flight for w in self.waiting.values())

    # ---- input from the log

    def take(self, position: int, stream: str, version: int, now: float) -> None:
        """Add an event for this target."""
        # A checkpoint may already represent an earlier event at this position.
        self.waiting.setdefault(
            position,
            PendingDelivery(position=position, stream=stream, version=version, since=now, due=now),
        )
        self.cursor = position

    def passed(self, position: int) -> None:
        """Advance the cursor to this position."""
        self.cursor = max(self.cursor, position)

    def moved(self, old: PendingDelivery, position: int, version: int) -> None:
        """Move a delivery to a checkpoint that replaced its event in the log."""
        del self.waiting[old.position]
        if position not in self.waiting:
            old.position, old.version = position, version
            self.waiting = dict(sorted({**self.waiting, position: old}.items()))

    def drop(self, position: int) -> None:
        del self.waiting[position]

    # ---- output to the target

    def start(self, now: float) -> list[PendingDelivery]:
        """Return the deliveries to start now, and mark them as in flight."""
        if self.failures:
            if self.in_flight or now < self._gate:
                return []
            # not always the same delivery, because it may cause the failure itself
            out = sorted(self._first_of_streams(), key=lambda w: (w.attempts, w.position))[:1]
        else:
            out = [w for w in self._first_of_streams() if not w.in_flight and w.due <= now][
                : self._parallel - self.in_flight
            ]
        for w in out:
            w.in_flight = True
        return out

    def next_at(self) -> float | None:
        """Return the time of the next start without further input; None if only input can cause
        one.
        """
        heads = [w for w in self._first_of_streams() if not w.in_flight]
        if not heads or self.in_flight >= (1 if self.failures else self._parallel):
            return None
        return self._gate if self.failures else min(w.due for w in heads)

    def delivered(self, position: int) -> None:
        del self.waiting[position]
        self.failures, self._failing_since = 0, None

    def failed(
        self, position: int, now: float, *, asked_secs: float = 0.0, final: bool = False
    ) -> bool:
        """Record a failed delivery. Return whether it is given up. asked_secs: pause that the
        target requests. final: the target will never accept it.
        """
        w = self.waiting[position]
        w.in_flight, w.attempts = False, w.attempts + 1
        self.failures += 1
        self._failing_since = now if self._failing_since is None else self._failing_since
        asked = min(asked_secs, LONGEST_ASKED_SECS)
        self._gate = now + max(asked, self._pause(self.failures))
        w.due = now + max(asked, self._pause(w.attempts))
        if final or now - w.since >= self._give_up_secs:
            del self.waiting[position]
            return True
        # The last attempt is at the end of the time limit, not long after.
        w.due, self._gate = (
            max(now, min(at, w.since + self._give_up_secs)) for at in (w.due, self._gate)
        )
        return False

    def expired(self, now: float) -> list[PendingDelivery]:
        """Remove and return the deliveries with an expired time limit, while the target accepts
        nothing.
        """
        if self._failing_since is None:
            return []
        silent = now - self._failing_since >= self._give_up_secs
        out = [
            w
            for w in self.waiting.values()
            if not w.in_flight
            and now - w.since >= self._give_up_secs
            and (w.attempts > 0 or silent)
        ]
        for w in out:
            del self.waiting[w.position]
        return out

    def retry_now(self, now: float) -> int:
        """Retry everything now. Return the number of pending deliveries."""
        self._gate = now
        for w in self.waiting.values():
            w.due = now
        return len(self.waiting)

    def _first_of_streams(self) -> list[PendingDelivery]:
        """Return the first pending delivery of each stream."""
        first: dict[str, PendingDelivery] = {}
        for w in self.waiting.values():
            first.setdefault(w.stream, w)
        return list(first.values())

    def _due(self, w: PendingDelivery) -> float:
        return max(w.due, self._gate) if self.failures else w.due

    def _pause(self, tries: int) -> float:
        longest: float = min(LONGEST_PAUSE_SECS, FIRST_PAUSE_SECS * 2.0 ** min(tries - 1, 30))
        return longest * (0.5 + 0.5 * self._jitter())
