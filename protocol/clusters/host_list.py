"""Slurm's short form of lists of nodes: `n[1-3,07],login`. Pure."""

import re

#: Names of one list.
MOST_HOSTS = 10_000
#: A name without brackets, or with one pair of them and a suffix.
_PART = re.compile(r"([A-Za-z0-9._-]*)(?:\[([0-9,-]+)\]([A-Za-z0-9._-]*))?(?:,|\Z)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")


def expand(text: str) -> list[str]:
    """Return the names of a list, in its order. Raises ValueError."""
    names: list[str] = []
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part.end() == at:
            raise ValueError(f"{text[:200]!r} is no list of nodes")
        at = part.end()
        before, ranges, after = part[1], part[2], part[3] or ""
        names += [before] if ranges is None else [f"{before}{n}{after}" for n in _numbers(ranges)]
        if len(names) > MOST_HOSTS:
            raise ValueError(f"a list of nodes has more than {MOST_HOSTS} names")
    if not all(names):
        raise ValueError(f"{text[:200]!r} is no list of nodes")
    return names


def _numbers(ranges: str) -> list[str]:
    """Return the numbers of ranges, with leading zeros as in their first number."""
    found: list[str] = []
    for text in ranges.split(","):
        match = _RANGE.match(text)
        if match is None:
            raise ValueError(f"{text[:40]!r} is no range of nodes")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first <= MOST_HOSTS:
            raise ValueError(f"{text[:40]!r} is no range of nodes")
        found += [str(n).zfill(len(match[1])) for n in range(first, last + 1)]
    return found
