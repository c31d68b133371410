"""Counters of what was refused or noticed, by name. What reads them (status pages, scrapers) comes and goes; these stay."""

from collections import Counter


class Counters:
    """Names are `<topic>` or `<topic>.<code>`, out of closed sets."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, what: str, n: int = 1) -> None:
        self._counts[what] += n

    def all(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))
