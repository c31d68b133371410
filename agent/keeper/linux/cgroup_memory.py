"""Memory counters and limits of control groups, versions 1 and 2. Reads only; standard library
only, as the keeper imports it.
"""

from __future__ import annotations

import os

from .cgroup_mounts import read

#: Version 1 writes a number near 2**63 where there is no limit.
_NO_LIMIT = 2**60


def peak(folder: str | None) -> int | None:
    """Return the peak memory of the cgroup in bytes, page cache included.

    None if the kernel does not count it (before Linux 5.19).
    """
    for name in ("memory.peak", "memory.max_usage_in_bytes"):
        found = _number(folder, name)
        if found is not None:
            return found
    return None


def limit(folder: str | None) -> int | None:
    """Return the lowest memory limit in bytes of the cgroup and its parents.

    None if there is no limit or none is visible.
    """
    words = _words(folder, "memory.stat")
    if b"hierarchical_memory_limit" in words:  # version 1 includes the parents
        return _limited(words[words.index(b"hierarchical_memory_limit") + 1])
    found = []
    while folder and os.path.exists(f"{folder}/cgroup.procs"):
        found += [_limited(word) for word in _words(folder, "memory.max")]
        folder = os.path.dirname(folder)
    return min((n for n in found if n is not None), default=None)


def _limited(word: bytes) -> int | None:
    return int(word) if word.isdigit() and int(word) < _NO_LIMIT else None


def _number(folder: str | None, name: str) -> int | None:
    words = _words(folder, name)
    return int(words[0]) if words and words[0].isdigit() else None


def _words(folder: str | None, name: str) -> list[bytes]:
    try:
        return [] if folder is None else read(f"{folder}/{name}").split()
    except OSError:
        return []
