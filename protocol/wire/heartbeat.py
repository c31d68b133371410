"""Is the other end still there? Both ends of a link ask now and then, and give up an end that does
not answer.

Pure: the time is an argument, seconds on the monotonic clock; a wall clock that is set means
nothing here. Whoever looks may itself have stood still (stopped, starved): that is no proof against
the other end, and it is told apart.
"""

from typing import Literal

import msgspec

#: `ask`: send a ping. `gone`: no answer in time. `slept`: this end stood still for so long that the
#: other has given it up.
Verdict = Literal["fine", "ask", "gone", "slept"]


class HeartbeatTiming(msgspec.Struct, frozen=True):
    """Asked every `interval`, answered within `timeout` (seconds; at most the interval)."""

    interval: float = 20.0
    timeout: float = 10.0

    @property
    def step(self) -> float:
        """How often to look."""
        return min(1.0, self.timeout / 4, self.interval / 4)

    @property
    def given_up(self) -> float:
        """After so long without a word the other end has certainly given up this one."""
        return self.interval + self.timeout + self.step


class Heartbeat:
    """Of one connection. `ahead`: seconds by which its first question comes earlier, so that many
    connections do not ask at once.
    """

    __slots__ = ("_answered", "_asked", "_looked", "_over", "_pace")

    def __init__(self, pace: HeartbeatTiming, now: float, ahead: float = 0.0) -> None:
        self._pace, self._asked, self._looked = pace, now - ahead, now
        self._answered, self._over = True, False

    def heard(self) -> None:
        """Anything came from the other end: an answer, or a message."""
        self._answered = True

    def overslept(self, now: float) -> bool:
        """Did this end stand still for so long? What is read now was said to one that the other end
        has given up since.
        """
        self._over = self._over or now - self._looked > self._pace.given_up
        return self._over

    def owed(self, now: float) -> float:
        """For how long it owes an answer; 0 where none is owed."""
        return 0.0 if self._answered else now - self._asked

    def look(self, now: float) -> Verdict:
        slept, late = self.overslept(now), now - self._looked > self._pace.timeout
        self._looked = now
        if slept:
            return "slept"
        if self._answered:
            if now - self._asked < self._pace.interval:
                return "fine"
        elif now - self._asked < self._pace.timeout:
            return "fine"
        elif not late:
            return "gone"
        # answered and time to ask again; or the answer may lie there unread, because it was this
        # end that did not run
        self._asked, self._answered = now, False
        return "ask"
