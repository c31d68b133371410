"""Types of GPUs: whether a host has the GPUs that a role requests, by the names that NVIDIA's library
(NVML) gives them. Pure.

A host has a type if the names of all its GPUs contain all words of the type: `A100` is a word of
`NVIDIA A100-SXM4-40GB`, `A10` is not. A host with GPUs of several types has none of them, because a
task could get the wrong one.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"[a-z0-9.]+")


@functools.lru_cache(maxsize=1024)
def has_type(names: tuple[str, ...], wanted: str) -> bool:
    """Return whether GPUs with these names are of the type. wanted: a type, or several with commas
    between them; "": any.
    """
    if not wanted:
        return True
    return bool(names) and any(
        all(_words(one) <= _words(name) for name in names)
        for one in wanted.split(",")
        if _words(one)
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def described(hosts: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    """Return a sentence part with the types that exist. hosts: their names, with those of GPUs ("":
    unknown).
    """
    found: dict[str, list[str]] = {}
    for host, names in hosts:
        for name in Counter(names):
            found.setdefault(name or "GPUs of unknown type", []).append(host)
    if not found:
        return "no host has GPUs"
    return "there are: " + ", ".join(
        f"{name} ({hosts[0]}{f' and {len(hosts) - 1} more' * (len(hosts) > 1)})"
        for name, hosts in sorted(found.items())
    )
