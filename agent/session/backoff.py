"""How long an agent waits before it dials again, and when it ends because nobody answers. Pure:
chance and what happened are arguments.

It does not give up while anything runs. A supervisor that is not there may be back any moment, so
the pauses stay short at first; after ten minutes they grow to half a minute. A supervisor that
answers and refuses writes a line for each try. Who has a new address begins anew.
"""

from collections.abc import Sequence
from typing import Literal

from ...protocol.wire.messages import Execution

#: Pauses, seconds; each is jittered by half, so that a thousand agents do not come at once.
FIRST, LONGEST, LONGEST_REFUSED, LONGEST_LATE = 0.05, 2.0, 15.0, 30.0
#: After so many failures in a row (ten minutes), pauses grow to the longest of all.
LATE = 300
#: A connection that lived so long was a good one: the next pause is the first again.
GOOD_SECS = 1.0

#: Without a supervisor for so long, an agent that knows of no execution ends (default of
#: `limits.agent_away_secs`).
AWAY_SECS = 6 * 3600.0
#: And one whose executions have all ended: their ends are on disk, for the next agent to report.
REPORT_SECS = 7 * 86400.0

Outcome = Literal["unreachable", "refused"]


class Backoff:
    """Of one link."""

    def __init__(self) -> None:
        self._pause = FIRST
        #: tries that failed since the last good connection
        self.failures = 0

    def ended(self, lived: float, chance: float) -> float:
        """A connection ended that had lived so long (seconds); returns the pause. One that ends at
        once is no better than none.
        """
        if lived < GOOD_SECS:
            return self.failed("unreachable", chance)
        self._pause, self.failures = FIRST, 0
        return _jittered(FIRST, chance)

    def failed(self, outcome: Outcome, chance: float) -> float:
        """A try failed; returns the pause. chance: evenly from 0 to 1."""
        self.failures += 1
        longest = (
            LONGEST_LATE
            if self.failures > LATE
            else LONGEST_REFUSED
            if outcome == "refused"
            else LONGEST
        )
        pause = min(self._pause, longest)
        self._pause = min(longest, 2 * self._pause)
        return _jittered(pause, chance)


def may_leave(away: float, away_secs: float, known: Sequence[Execution]) -> bool:
    """May an agent end, with its keeper, that had no supervisor for `away` seconds? Never while
    something runs or waits to run.
    """
    return away > away_secs and (
        not known or (away > max(REPORT_SECS, away_secs) and all(e.state == "ended" for e in known))
    )


def _jittered(pause: float, chance: float) -> float:
    return pause * (0.5 + chance)
