"""The one clock, and one that tests turn by hand. Nothing else in the product reads the time on its
own.

Wall time is for people, records and comparison across restarts; it may jump. Spans and timers count
on monotonic time.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def wall(self) -> float:
        """Unix seconds; may jump both ways."""

    def monotonic(self) -> float:
        """Seconds that only ever go on, from an arbitrary start; comparable within one boot of one
        machine.
        """


class SystemClock:
    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class Steady:
    """Wall time as it was when this was made, and what has passed since: nobody can set it. For
    what lasts hours and is not on record.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._ahead = clock, clock.wall() - clock.monotonic()

    def wall(self) -> float:
        return self._clock.monotonic() + self._ahead


class ManualClock:
    """Stands still until it is told otherwise."""

    def __init__(self, wall: float = 1_700_000_000.0, monotonic: float = 1000.0) -> None:
        self._wall = wall
        self._monotonic = monotonic

    def wall(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, secs: float) -> None:
        """Let `secs` pass on both."""
        if secs < 0:
            raise ValueError(
                f"time passes forward, not {secs} s; jump_wall() sets the wall clock back"
            )
        self._wall += secs
        self._monotonic += secs

    def jump_wall(self, secs: float) -> None:
        """Somebody sets the wall clock; no time passes."""
        self._wall += secs


def boot_id() -> str:
    """Names the current boot of this machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()
