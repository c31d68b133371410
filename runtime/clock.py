"""The clock of the product, and a manual one for tests. No other module reads the time by itself.

Wall time is for people, records and comparison across restarts; it may jump. Durations and timers
use monotonic time.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def wall(self) -> float:
        """Return unix seconds; may jump both ways."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. Never decreases; comparable within one boot of
        one machine.
        """


class SystemClock:
    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class SteadyClock:
    """Wall time at construction plus elapsed monotonic time, so that a change of the system clock
    has no effect. For values that live for hours and are not recorded.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._ahead = clock, clock.wall() - clock.monotonic()

    def wall(self) -> float:
        return self._clock.monotonic() + self._ahead


class ManualClock:
    """A clock that moves only by `advance` and `jump_wall`."""

    def __init__(self, wall: float = 1_700_000_000.0, monotonic: float = 1000.0) -> None:
        self._wall = wall
        self._monotonic = monotonic

    def wall(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, secs: float) -> None:
        """Advance both clocks by `secs`."""
        if secs < 0:
            raise ValueError(
                f"time passes forward, not {secs} s; jump_wall() sets the wall clock back"
            )
        self._wall += secs
        self._monotonic += secs

    def jump_wall(self, secs: float) -> None:
        """Set the wall clock; no time passes."""
        self._wall += secs


def boot_id() -> str:
    """Return the id of the machine's current boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()
