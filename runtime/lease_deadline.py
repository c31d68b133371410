"""The time until which the holder of a lease may act, by its own clock. No I/O: the clock and what
happens at the deadline are arguments.

The lease is given by another machine's clock. A renewal counts from the moment at which it was sent, so
the deadline is never after the end of the lease, whatever the delays; `margin` covers the drift of the
clocks. The clock must run while the machine is suspended. See etc/adr/0046-standby-supervisors.md.
"""

import threading
import time
from collections.abc import Callable

#: Interval of the checks of `watch`, in seconds.
CHECK_SECS = 0.25


def boottime() -> float:
    """Return seconds since the boot of this machine, with the time in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseDeadline:
    """Any thread may call its methods. lost: called by the first check after the deadline; it should
    not return.
    """

    def __init__(
        self,
        secs: float,
        margin: float,
        lost: Callable[[float], object],
        now: Callable[[], float] = boottime,
    ) -> None:
        """secs: length of a lease. lost: gets the seconds since the deadline."""
        self._secs, self._lost, self.now = secs - margin, lost, now
        self._until: float | None = None
        self._released = False

    @property
    def held(self) -> bool:
        """Return whether the lease was taken, and neither released nor lost."""
        return self._until is not None and not self._released and self.now() <= self._until

    @property
    def left(self) -> float:
        """Return the seconds until the deadline; negative after it."""
        return 0.0 if self._until is None else self._until - self.now()

    def extend(self, sent: float) -> None:
        """Record a renewal that succeeded. sent: `now()` before it was sent.

        A renewal after the deadline comes too late: others may have acted meanwhile.
        """
        self.check()
        until = sent + self._secs
        self._until = until if self._until is None else max(self._until, until)

    def check(self) -> None:
        """Call `lost` if the deadline has passed."""
        until = self._until
        if until is not None and not self._released and (late := self.now() - until) > 0:
            self._lost(late)

    def release(self) -> None:
        """End the lease: nothing is checked any more. Nothing must be sent any more, either."""
        self._released = True

    def watch(self) -> None:
        """Check from now on, in a thread of its own."""
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def _watch(self) -> None:
        while not self._released:
            time.sleep(CHECK_SECS)
            self.check()
