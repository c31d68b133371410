"""What one target has still to be told, and when it is tried. Pure: times and chance come in as
values.

The log is the queue. Here is only how far a target has read it (`cursor`), and the few events
before that which it has not got yet. Of one job, the next is not sent before the one before it was
delivered or given up. A target that fails is tried with one notification at a time, after growing
pauses, until it takes one.
"""

from collections.abc import Callable

import msgspec

#: Of one target; beyond that its cursor waits.
MOST_WAITING = 100
FIRST_PAUSE_SECS, LONGEST_PAUSE_SECS = 1.0, 300.0
#: A target may ask for so long a pause, and for no longer.
LONGEST_ASKED_SECS = 3_600.0


class PendingDelivery(msgspec.Struct, kw_only=True):
    """An event that is to be told. due, since: monotonic; since: when it could be sent first.
    flying: it is being sent now.
    """

    position: int
    stream: str
    version: int
    since: float
    due: float
    attempts: int = 0
    flying: bool = False


class KeptWaiting(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The same on disk: next_at is wall time, spent_secs the time for which supervisors have tried,
    so that no clock matters much.
    """

    position: int
    stream: str
    version: int
    attempts: int
    next_at: float
    spent_secs: float


class SavedTarget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All of a target that outlives the process."""

    cursor: int
    waiting: tuple[KeptWaiting, ...] = ()


class Queue:
    """jitter: a number from 0 to 1, another one each time."""

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
        #: failures in a row, and when the next try may be
        self.failures, self._gate = 0, 0.0
        self._failing_since: float | None = None
        self.waiting = {
            w.position: PendingDelivery(
                position=w.position,
                stream=w.stream,
                version=w.version,
                attempts=w.attempts,
                since=now - max(0.0, w.spent_secs),
                # somebody may have set the clock while nobody looked
                due=now + min(max(0.0, w.next_at - wall), LONGEST_ASKED_SECS),
            )
            for w in sorted(kept.waiting, key=lambda w: w.position)
        }

    def kept(self, now: float, wall: float) -> SavedTarget:
        """As it is written down. What is being sent counts as not sent."""
        return SavedTarget(
            cursor=self.cursor,
            waiting=tuple(
                KeptWaiting(
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
        """For so many more."""
        return max(0, MOST_WAITING - len(self.waiting))

    @property
    def roomy(self) -> bool:
        """Is it worth the while to read on? Not for one at a time."""
        return len(self.waiting) <= MOST_WAITING // 2

    @property
    def flying(self) -> int:
        return sum(w.flying for w in self.waiting.values())

    # ---- the log comes in

    def take(self, position: int, stream: str, version: int, now: float) -> None:
        """An event that this target is to be told of."""
        # it is there already where it stands for one before it that was folded
        self.waiting.setdefault(
            position,
            PendingDelivery(position=position, stream=stream, version=version, since=now, due=now),
        )
        self.cursor = position

    def passed(self, position: int) -> None:
        """It has read so far."""
        self.cursor = max(self.cursor, position)

    def moved(self, old: PendingDelivery, position: int, version: int) -> None:
        """The event is not in the log any more: a checkpoint stands for it."""
        del self.waiting[old.position]
        if position not in self.waiting:
            old.position, old.version = position, version
            self.waiting = dict(sorted({**self.waiting, position: old}.items()))

    def drop(self, position: int) -> None:
        del self.waiting[position]

    # ---- and goes out

    def start(self, now: float) -> list[PendingDelivery]:
        """What is to be sent now; it is under way from here on."""
        if self.failures:
            if self.flying or now < self._gate:
                return []
            # not always the same one: that it fails may be its own fault
            out = sorted(self._heads(), key=lambda w: (w.attempts, w.position))[:1]
        else:
            out = [w for w in self._heads() if not w.flying and w.due <= now][
                : self._parallel - self.flying
            ]
        for w in out:
            w.flying = True
        return out

    def next_at(self) -> float | None:
        """When there is something to start, if nothing happens before; None: then only what happens
        leads to anything.
        """
        heads = [w for w in self._heads() if not w.flying]
        if not heads or self.flying >= (1 if self.failures else self._parallel):
            return None
        return self._gate if self.failures else min(w.due for w in heads)

    def delivered(self, position: int) -> None:
        del self.waiting[position]
        self.failures, self._failing_since = 0, None

    def failed(
        self, position: int, now: float, *, asked_secs: float = 0.0, final: bool = False
    ) -> bool:
        """It was not delivered. Is it given up? asked_secs: so long the target wants to be left
        alone. final: it will never take it.
        """
        w = self.waiting[position]
        w.flying, w.attempts = False, w.attempts + 1
        self.failures += 1
        self._failing_since = now if self._failing_since is None else self._failing_since
        asked = min(asked_secs, LONGEST_ASKED_SECS)
        self._gate = now + max(asked, self._pause(self.failures))
        w.due = now + max(asked, self._pause(w.attempts))
        if final or now - w.since >= self._give_up_secs:
            del self.waiting[position]
            return True
        # the last try is when its time is over, not long after
        w.due, self._gate = (
            max(now, min(at, w.since + self._give_up_secs)) for at in (w.due, self._gate)
        )
        return False

    def expired(self, now: float) -> list[PendingDelivery]:
        """Those whose time is over while the target takes nothing; they are given up, and are not
        here any more.
        """
        if self._failing_since is None:
            return []
        silent = now - self._failing_since >= self._give_up_secs
        out = [
            w
            for w in self.waiting.values()
            if not w.flying and now - w.since >= self._give_up_secs and (w.attempts > 0 or silent)
        ]
        for w in out:
            del self.waiting[w.position]
        return out

    def hurry(self, now: float) -> int:
        """Try everything at once; how many that are."""
        self._gate = now
        for w in self.waiting.values():
            w.due = now
        return len(self.waiting)

    def _heads(self) -> list[PendingDelivery]:
        """Of each stream the first that waits."""
        first: dict[str, PendingDelivery] = {}
        for w in self.waiting.values():
            first.setdefault(w.stream, w)
        return list(first.values())

    def _due(self, w: PendingDelivery) -> float:
        return max(w.due, self._gate) if self.failures else w.due

    def _pause(self, tries: int) -> float:
        longest: float = min(LONGEST_PAUSE_SECS, FIRST_PAUSE_SECS * 2.0 ** min(tries - 1, 30))
        return longest * (0.5 + 0.5 * self._jitter())
