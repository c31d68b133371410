"""How long an agent waits before it dials again. Pure: chance and what happened are arguments.

It never gives up. A supervisor that is not there may be back any moment, so the pauses stay short; one that answers and does not
let us in will not change its mind so soon, and writes a line for each try.
"""

from typing import Literal

#: Pauses, seconds; each is jittered by half, so that a thousand agents do not come at once.
FIRST, LONGEST, LONGEST_REFUSED = 0.05, 2.0, 15.0
#: A connection that lived so long was a good one: the next pause is the first again.
GOOD_SECS = 1.0

Outcome = Literal["unreachable", "refused"]


class Backoff:
    """Of one link."""

    def __init__(self) -> None:
        self._pause = FIRST
        #: tries that failed since the last good connection
        self.failures = 0

    def ended(self, lived: float, chance: float) -> float:
        """A connection ended that had lived so long (seconds); returns the pause. One that ends at once is no better than none."""
        if lived < GOOD_SECS:
            return self.failed("unreachable", chance)
        self._pause, self.failures = FIRST, 0
        return _jittered(FIRST, chance)

    def failed(self, outcome: Outcome, chance: float) -> float:
        """A try failed; returns the pause. chance: evenly from 0 to 1."""
        self.failures += 1
        longest = LONGEST_REFUSED if outcome == "refused" else LONGEST
        pause = min(self._pause, longest)
        self._pause = min(longest, 2 * self._pause)
        return _jittered(pause, chance)


def _jittered(pause: float, chance: float) -> float:
    return pause * (0.5 + chance)
