"""Backoff of the agent's connection attempts, and when an agent without a supervisor ends. Pure:
random numbers and outcomes are arguments.

An agent does not give up while a job runs. Pauses stay short for ten minutes, as the supervisor may
return at any moment, and then grow to half a minute. Pauses after a refusal grow sooner, because
the supervisor logs each refused attempt. A new address resets the backoff.
"""

from collections.abc import Sequence
from typing import Literal

from ...protocol.jobs.execution_state import ExecutionState
from ...protocol.wire.messages import Execution

#: Pauses (seconds), with 50 % jitter, so that a thousand agents do not connect at once.
FIRST, LONGEST, LONGEST_REFUSED, LONGEST_LATE = 0.05, 2.0, 15.0, 30.0
#: After this many failures in a row (ten minutes), pauses grow to LONGEST_LATE.
LATE = 300
#: A connection that lived this long (seconds) resets the pause.
GOOD_SECS = 1.0

#: An agent without executions ends after this long without a supervisor (seconds; default of
#: `limits.agent_away_secs`).
AWAY_SECS = 6 * 3600.0
#: The same for an agent with only ended executions: the next agent reports them from disk.
REPORT_SECS = 7 * 86400.0

Outcome = Literal["unreachable", "refused"]


class Backoff:
    """The backoff of one connection."""

    def __init__(self) -> None:
        self._pause = FIRST
        #: failed attempts since the last good connection
        self.failures = 0

    def ended(self, lived: float, chance: float) -> float:
        """Return the pause after a connection that lived `lived` seconds. A short one counts as a
        failure.
        """
        if lived < GOOD_SECS:
            return self.failed("unreachable", chance)
        self._pause, self.failures = FIRST, 0
        return _jittered(FIRST, chance)

    def failed(self, outcome: Outcome, chance: float) -> float:
        """Return the pause after a failed attempt. chance: uniform random number in [0, 1)."""
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


def may_end(away: float, away_secs: float, known: Sequence[Execution]) -> bool:
    """Return whether an agent, with its keeper, may end after `away` seconds without a supervisor.

    Never while a job runs or waits.
    """
    return away > away_secs and (
        not known
        or (
            away > max(REPORT_SECS, away_secs)
            and all(e.state == ExecutionState.ENDED for e in known)
        )
    )


def _jittered(pause: float, chance: float) -> float:
    return pause * (0.5 + chance)
