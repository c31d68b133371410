"""Virtual time: a heap of things to happen, one seeded source of chance, and a count of what really happened."""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable


class Time:
    """Everything happens in `step`; equal moments in the order in which they were asked for."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        #: wall clock minus monotonic clock; a jump changes it
        self.wall_offset = 1_700_000_000.0
        self.happened: Counter[str] = Counter()
        self.calm = False
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    @property
    def wall(self) -> float:
        return self.now + self.wall_offset

    def after(self, secs: float, action: Callable[[], None]) -> Callable[[], None]:
        """Do it later; returns what takes it back."""
        live = [True]
        heapq.heappush(self._heap, (self.now + secs, next(self._order), lambda: action() if live[0] else None))
        return lambda: live.__setitem__(0, False)

    def step(self) -> bool:
        if not self._heap:
            return False
        at, _, action = heapq.heappop(self._heap)
        self.now = max(self.now, at)
        action()
        return True

    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def sometimes(self, what: str, share: float) -> bool:
        """Does this fault strike now? Never while it is calm. What struck is counted."""
        if self.calm or self.random.random() >= share:
            return False
        self.happened[what] += 1
        return True
