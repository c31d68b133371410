"""Heartbeats of a connection. Both ends send pings and give up a peer that does not answer.

Pure: the time is an argument, in seconds of the monotonic clock, so changes of the wall clock have
no effect. If this process itself was suspended or starved, a missing answer proves nothing about
the peer; this case is reported separately.
"""

from typing import Literal

import msgspec

#: `ask`: send a ping. `gone`: the peer did not answer in time. `slept`: this process was suspended
#: for so much time that the peer has given up the connection.
Verdict = Literal["fine", "ask", "gone", "slept"]


class HeartbeatTiming(msgspec.Struct, frozen=True):
    """A ping every `interval`, answered within `timeout` (seconds; at most the interval)."""

    interval: float = 20.0
    timeout: float = 10.0

    @property
    def step(self) -> float:
        """Return the interval between two checks, in seconds."""
        return min(1.0, self.timeout / 4, self.interval / 4)

    @property
    def given_up(self) -> float:
        """Return after how many seconds of silence the peer has certainly given up this end."""
        return self.interval + self.timeout + self.step


class Heartbeat:
    """Heartbeat of one connection. `ahead`: seconds by which the first ping comes earlier, so that
    many connections do not ping at the same time.
    """

    __slots__ = ("_answered", "_asked", "_looked", "_over", "_pace")

    def __init__(self, pace: HeartbeatTiming, now: float, ahead: float = 0.0) -> None:
        self._pace, self._asked, self._looked = pace, now - ahead, now
        self._answered, self._over = True, False

    def record_receipt(self) -> None:
        """Record that the peer sent anything: an answer or a message."""
        self._answered = True

    def was_suspended(self, now: float) -> bool:
        """Return whether a suspension of this process made the peer give up the connection. Data
        that is read after that is outdated.
        """
        self._over = self._over or now - self._looked > self._pace.given_up
        return self._over

    def overdue_secs(self, now: float) -> float:
        """Return for how many seconds the peer has not answered; 0 if no answer is due."""
        return 0.0 if self._answered else now - self._asked

    def check(self, now: float) -> Verdict:
        """Check the connection now. Call it every `step` seconds."""
        slept, late = self.was_suspended(now), now - self._looked > self._pace.timeout
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
        # Ping again because it is time, or because an answer may still be unread: this process did
        # not run.
        self._asked, self._answered = now, False
        return "ask"
