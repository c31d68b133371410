"""Virtual time: a heap of planned actions, one seeded random source, and counters of what happened.

All actions of a process are planned through its `Life`, so that none happens after its death or
while it is frozen.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

Action = Callable[[], None]
Cancel = Callable[[], None]

#: The monotonic clock when a life begins.
BEGIN = 1000.0


class Time:
    """Runs all actions in `step`; actions at the same time run in the order of planning. rates:
    probability of each fault.
    """

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.random = random.Random(seed)
        self.now = BEGIN
        #: wall clock minus monotonic clock; a clock jump changes it
        self.wall_offset = 1_700_000_000.0
        self.happened: Counter[str] = Counter()
        self.rates: dict[str, float] = {}
        self.calm = False
        self.steps = 0
        self.trace = trace
        self._heap: list[tuple[float, int, list[Action | None]]] = []
        self._order = itertools.count()

    @property
    def wall(self) -> float:
        return self.now + self.wall_offset

    def after(self, secs: float, action: Action) -> Cancel:
        """Plan an action; return a function that cancels it."""
        entry: list[Action | None] = [action]
        heapq.heappush(self._heap, (self.now + secs, next(self._order), entry))
        return lambda: entry.__setitem__(0, None)

    def step(self) -> None:
        at, _, entry = heapq.heappop(self._heap)
        action = entry[0]
        if action is not None:
            self.now = max(self.now, at)
            self.steps += 1
            action()

    def next_at(self) -> float:
        while self._heap and self._heap[0][2][0] is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def strikes(self, fault: str) -> bool:
        """Return whether this fault strikes now; never in the calm phase. Count it if it does."""
        rate = self.rates.get(fault, 0.0)
        if self.calm or rate == 0.0 or self.random.random() >= rate:
            return False
        self.saw(fault)
        return True

    def saw(self, what: str) -> None:
        """Count an event, for the coverage check over many seeds."""
        self.happened[what] += 1
        if self.trace is not None:
            self.say("***", what)

    def say(self, *words: Any) -> None:
        """Print to the trace of one life; nothing else may depend on it."""
        if self.trace is not None:
            self.trace(
                f"{self.now - BEGIN:10.4f} {self.steps:6d}  " + " ".join(str(w) for w in words)
            )


class Life:
    """One process, from its start to its death."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.over = False
        self.frozen = False
        self.thawed_at = float("-inf")
        self._missed: list[Action] = []

    @property
    def awake(self) -> bool:
        return not (self.over or self.frozen)

    def after(self, secs: float, action: Action) -> Cancel:
        return self.time.after(secs, lambda: self.meet(action))

    def meet(self, action: Action) -> None:
        """Run an action of this process: now, after the thaw, or never if the process is over."""
        if self.over:
            return
        if self.frozen:
            self._missed.append(action)
        else:
            action()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        """Run the actions missed while frozen, in order, one step each."""
        if self.frozen and not self.over:
            self.frozen, self.thawed_at = False, self.time.now
            missed, self._missed = self._missed, []
            for action in missed:
                self.after(0.0, action)

    def end(self) -> None:
        self.over = True
        self._missed.clear()
