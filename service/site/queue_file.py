"""The file of queues and limits (YAML, `queues.file`). All problems are reported together, with their
lines.

`protocol.clusters.queues` declares the fields; here are the rules.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from ...protocol.clusters.queues import Queue, Queues, UserLimits
from ...protocol.errors import Refusal
from ...protocol.ids import DEFAULT_QUEUE
from ...schema.structs import Place
from . import site_file

#: Limits of which the first may not be above the second: no run could use the rest.
_PAIRS = (("cores", "total_cores"), ("gpus", "total_gpus"), ("disk_soft", "disk_hard"))
_KEYS = dict(zip(UserLimits.__struct_fields__, UserLimits.__struct_encode_fields__, strict=True))


class _Part(NamedTuple):
    """One set of limits of the file, with its name and place."""

    name: str
    limits: UserLimits
    place: Place


def load(path: str | None) -> Queues:
    """Return the queues in this file; without a file, those of a site that configures none. Raises
    Refusal with all problems.
    """
    if path is None:
        return Queues()
    queues, found = read(path)
    if queues is None:
        raise site_file.combined(path, found)
    return queues


def read(path: str) -> tuple[Queues | None, list[Refusal]]:
    """Return the queues, or all problems of the file."""
    return site_file.read(path, "queues.file", Queues, _check)


def _check(queues: Queues, place: Place) -> Queues:
    default = queues.queues.get(DEFAULT_QUEUE, Queue())
    for key in ("users", "plans"):
        if getattr(default, key):
            place.within("queues").within(DEFAULT_QUEUE).error(
                key, "everybody may use the queue `default`", "another queue for some users"
            )
    told: set[tuple[str, str, str]] = set()
    for chain in _chains(queues, place):
        for low, high in _PAIRS:
            _check_pair(chain, low, high, told)
    return queues


def _chains(queues: Queues, place: Place) -> Iterator[tuple[_Part, ...]]:
    """Yield the sets of limits that may apply to one user, the one that replaces others last."""
    first = _Part("limits", queues.limits, place.within("limits"))
    plans, users = (
        [_Part(f"{key}.{n}", v, place.within(key).within(n)) for n, v in parts.items()]
        for key, parts in (("plans", queues.plans), ("users", queues.users))
    )
    for plan, user in product((None, *plans), (None, *users)):
        yield (first, *(part for part in (plan, user) if part is not None))


def _check_pair(
    chain: tuple[_Part, ...], low: str, high: str, told: set[tuple[str, str, str]]
) -> None:
    """Report, once, a limit above another one for the same user, with the places of both."""
    lower, upper = _origin(chain, low), _origin(chain, high)
    if lower is None or upper is None:
        return
    value, most = getattr(lower.limits, low), getattr(upper.limits, high)
    at = (lower.name, upper.name, low)
    if value > most and at not in told:
        told.add(at)
        other = f"{upper.name}.{_KEYS[high]}"
        lower.place.error(
            _KEYS[low],
            f"it is {value}, and {other} is {most} for the same user",
            f"at most {most}, or a higher {other}",
        )


def _origin(chain: tuple[_Part, ...], name: str) -> _Part | None:
    """Return the part that decides a limit."""
    return next((part for part in reversed(chain) if getattr(part.limits, name) is not None), None)
