"""Event loop lag: measures each iteration of the loop, and names the code that blocks it for long.

An iteration is the time between two polls of the sockets; new input waits for its end. So the
lengths of iterations show how late the loop would have been for input at any moment, as a
continuous probe would measure it. The cost is three clock readings per iteration and nothing while
the loop is idle.

Time in which this process could not run is excluded: time in which the kernel let the loop's thread
wait for a processor (`schedstat`), time that a hypervisor gave to other machines (`steal` in
`/proc/stat`, of the two processors that lost most), and time in which neither the loop's thread nor
the watcher thread ran at all (a stopped process). Time in which the loop waited for a disk, a lock
or another thread counts. The watcher thread samples the stack of long iterations.
"""

import asyncio
import os
import selectors
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

#: Iterations longer than the first value (seconds) are logged; iterations shorter than the second
#: are not counted by length.
HELD_SECS, COUNTED_SECS = 0.05, 0.005
#: Upper bounds of the classes of counted iterations, seconds.
BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, float("inf"))
#: Seconds: interval of the watcher while the loop works; age at which an iteration is sampled;
#: delay of a check that means the watcher could not run.
CHECK_SECS, SAMPLED_AFTER_SECS, LATE_SECS = 0.1, 0.02, 0.05
#: Log lines per minute; further long iterations are only counted.
LINES, LINES_EVERY_SECS = 20, 60.0
_FRAMES = 6
#: The kernel's counters of each processor. With more processors than this, reading them ten times a
#: second takes too long.
_PROCESSORS, _MOST_PROCESSORS = "/proc/stat", 64
_TICKS = os.sysconf("SC_CLK_TCK")


class LoopLag:
    """Lag of one loop, which `run` creates. Counts and logs from `begin` on.

    idle_secs: longest interval between two checks while the loop is idle.
    """

    def __init__(self, *, idle_secs: float = CHECK_SECS) -> None:
        self._log: Callable[[str], None] = _discard
        self._idle_secs = idle_secs
        #: start of the current iteration (0 while the loop waits), and the CPU time of its thread
        #: then
        self.began = self.computed = 0.0
        self.rounds = self._rounds_before = 0
        self._counts, self._sums = [0] * len(BOUNDS), [0.0] * len(BOUNDS)
        self._since = time.monotonic()
        self._held, self._begun = 0, False
        self._worst: tuple[float, float, str] = (0.0, 0.0, "")
        #: latest long iterations: end (monotonic) and length
        self._latest: deque[tuple[float, float]] = deque(maxlen=256)
        self._sampled: tuple[float, str] = (0.0, "")
        #: counters from before this iteration: nanoseconds that the loop's thread ran and waited
        #: for a processor, and ticks of each processor given to other machines
        self._before, self._stolen_before = (0, 0), list[int]()
        self._schedstat = self._processors = -1
        #: last check, due time of the next one, and intervals in which the watcher could not run
        self._checked, self._due = 0.0, float("inf")
        self._prevented: deque[tuple[float, float]] = deque(maxlen=8)
        self._thread = 0
        self._unlogged: deque[tuple[float, float, str]] = deque(maxlen=LINES)
        self._over = threading.Event()

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine like asyncio.run."""
        self._thread = threading.get_ident()
        self._schedstat = _opened(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._processors = _opened(_PROCESSORS) if (os.cpu_count() or 1) <= _MOST_PROCESSORS else -1
        watcher = threading.Thread(target=self._watch, name="lag", daemon=True)
        watcher.start()
        try:
            with asyncio.Runner(
                loop_factory=lambda: asyncio.SelectorEventLoop(_Metered(self))
            ) as runner:
                runner.run(main)
        finally:
            self._over.set()
            watcher.join()
            for descriptor in (self._schedstat, self._processors):
                if descriptor >= 0:
                    os.close(descriptor)
            self._schedstat = self._processors = -1

    def begin(self, log: Callable[[str], None] | None = None) -> None:
        """Discard the measurements so far, because a starting process serves no requests yet.

        log: takes sentences, in the watcher thread.
        """
        self._log = log or _discard
        self._counts, self._sums = [0] * len(BOUNDS), [0.0] * len(BOUNDS)
        self._rounds_before = self.rounds
        self._since, self._held, self._worst, self._begun = (
            time.monotonic(),
            0,
            (0.0, 0.0, ""),
            True,
        )
        if self.began:
            self.began, self.computed = self._since, time.thread_time()

    def summary(self) -> dict[str, Any]:
        """Return the measurements in seconds: 99.9th percentile of the lag, the longest iteration
        with its code, and iterations by length.
        """
        own, lost, what = self._worst
        return {
            "secs": time.monotonic() - self._since,
            "rounds": self.rounds,
            "p999": self.percentile(0.001),
            "held": self._held,
            "worst": {"secs": own, "notRunSecs": lost, "what": what},
            "roundsUpTo": {
                f"{bound:g}": count for bound, count in zip(BOUNDS, self._counts, strict=True)
            },
        }

    def longest(self, since: float) -> float:
        """Return the length of the longest logged iteration that ended after `since` (monotonic),
        in seconds; 0 without one.
        """
        return max((own for at, own in self._latest if at > since), default=0.0)

    def counted(self) -> tuple[list[tuple[str, int]], float]:
        """Return cumulative counts of iterations up to each bound, and the total seconds of the
        long ones. Short iterations are in the first class.
        """
        short, out = self.rounds - self._rounds_before - sum(self._counts), []
        so_far = max(0, short)
        for bound, count in zip(BOUNDS, self._counts, strict=True):
            so_far += count
            out.append((f"{bound:g}" if bound != float("inf") else "+Inf", so_far))
        return out, sum(self._sums)

    @property
    def worst(self) -> float:
        """The longest iteration so far, in seconds."""
        return self._worst[0]

    def percentile(self, part: float) -> float:
        """Return the lag in seconds that input at a random moment exceeds with the probability
        `part`. Exact from COUNTED_SECS on.
        """
        allowed = part * (time.monotonic() - self._since)
        low, high = COUNTED_SECS, max(COUNTED_SECS, self._worst[0])
        if self._excess(low) <= allowed:
            return low
        for _ in range(24):
            middle = (low + high) / 2
            low, high = (low, middle) if self._excess(middle) <= allowed else (middle, high)
        return high

    def _excess(self, secs: float) -> float:
        """Return the total time in which new input had to wait longer than `secs`: the excess of
        each iteration.
        """
        return sum(
            max(0.0, s - n * secs)
            for n, s, bound in zip(self._counts, self._sums, BOUNDS, strict=True)
            if bound > secs
        )

    # ---- the loop's thread

    def long_iteration(self, now: float) -> None:
        """Record the end of an iteration that is long enough to be counted."""
        if not self._begun:  # a starting process may wait for its disk
            return
        whole = now - self.began
        lost = self._lost(now) if whole > HELD_SECS / 2 else 0.0
        own = whole - lost
        n = bisect_left(BOUNDS, own)
        self._counts[n] += 1
        self._sums[n] += own
        if own <= HELD_SECS:
            return
        self._held += 1
        self._latest.append((now, own))
        began, what = self._sampled
        held = own, lost, what if began == self.began else "(not sampled in time)"
        if own > self._worst[0]:
            self._worst = held
        self._unlogged.append(held)

    def _lost(self, now: float) -> float:
        """Return the seconds of this iteration in which the process could not run. CPU time of the
        loop's thread is never included.
        """
        ran, waited = (
            max(0, after - before) / 1e9
            for after, before in zip(self._scheduled(), self._before, strict=True)
        )
        late = [(self._checked, now)] if now - self._due > LATE_SECS else []
        unseen = sum(
            max(0.0, min(to, now) - max(since, self.began))
            for since, to in (*self._prevented, *late)
        )
        # of two processors: a thread of this process that holds the interpreter may be on another
        # processor than the loop's thread
        taken = sorted(
            after - before
            for after, before in zip(self._stolen(), self._stolen_before, strict=False)
        )
        stolen = sum(taken[-2:]) / _TICKS
        not_computed = max(0.0, now - self.began - (time.thread_time() - self.computed))
        return min(not_computed, max(waited + stolen, unseen - ran))

    def _scheduled(self) -> tuple[int, int]:
        """Return the time that the loop's thread has run, and the time that it was runnable without
        running (nanoseconds).
        """
        if self._schedstat < 0:
            return 0, 0
        try:
            ran, waited, _ = os.pread(self._schedstat, 100, 0).split()
            return int(ran), int(waited)
        except (OSError, ValueError):
            return 0, 0

    def _stolen(self) -> list[int]:
        """Return the time for which a hypervisor gave each processor to other machines although
        this machine needed it (ticks).
        """
        if self._processors < 0:
            return []
        try:
            lines = os.pread(self._processors, 16384, 0).split(b"\n")
            return [
                int(line.split()[8])
                for line in lines
                if line.startswith(b"cpu") and line[3:4] != b" "
            ]
        except (OSError, ValueError, IndexError):
            return []

    # ---- the thread that looks

    def _watch(self) -> None:
        pause, seen, lines, minute = CHECK_SECS, 0, 0, time.monotonic()
        self._schedule_check(pause)
        while not self._over.wait(pause):
            rounds, began, now = self.rounds, self.began, time.monotonic()
            if now - self._due > LATE_SECS:
                self._prevented.append((self._checked, now))
            if began and now - began > SAMPLED_AFTER_SECS:
                if self._sampled[0] != began:
                    self._sampled = began, _stack(sys._current_frames().get(self._thread))
            else:
                self._before, self._stolen_before = self._scheduled(), self._stolen()
            if now - minute > LINES_EVERY_SECS:
                lines, minute = 0, now
            lines += self._log_blocked(LINES - lines)
            pause = CHECK_SECS if rounds != seen or began else min(self._idle_secs, 2 * pause)
            seen = rounds
            self._schedule_check(pause)

    def _schedule_check(self, pause: float) -> None:
        self._checked = time.monotonic()
        self._due = self._checked + pause

    def _log_blocked(self, limit: int) -> int:
        logged = 0
        while self._unlogged and logged < limit:
            own, lost, what = self._unlogged.popleft()
            self._log(
                f"the event loop was blocked for {own:.3f} s (and did not run for {lost:.3f} s); {self._held} times so far; at {what}"
            )
            logged += 1
        return logged


class _Metered(selectors.DefaultSelector):
    """The loop's selector. It reports the start and end of iterations."""

    def __init__(self, lag: LoopLag) -> None:
        super().__init__()
        self._lag = lag

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        lag, now = self._lag, time.monotonic()
        if lag.began and now - lag.began > COUNTED_SECS:
            lag.long_iteration(now)
        lag.began = 0.0
        events = super().select(timeout)
        lag.rounds += 1
        lag.computed = time.thread_time()
        lag.began = time.monotonic()
        return events


def _stack(frame: FrameType | None) -> str:
    """Return the innermost frames, innermost first."""
    places: list[str] = []
    while frame is not None and len(places) < _FRAMES:
        code = frame.f_code
        path = code.co_filename.split(os.sep)[-2:]
        if path[0] == "asyncio" and places:
            break
        places.append(f"{'/'.join(path)}:{frame.f_lineno}:{code.co_name}")
        frame = frame.f_back
    return " < ".join(places)


def _opened(path: str) -> int:
    """Return a descriptor of the kernel's counters, or -1 if they are not available."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _discard(sentence: str) -> None:
    return
