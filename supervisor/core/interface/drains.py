"""Drains: hosts, or the whole site, that get no new runs for a while. Pure.

What runs goes on. New runs are accepted and wait. Drains are notices: the supervisor keeps them in a
file and tells the core about them.
"""

from collections.abc import Iterable, Mapping

import msgspec

#: The whole site, in place of (driver, host).
SITE = ("", "")


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """by: who began it. at: wall time. reason: for users, may be empty."""

    by: str
    at: float
    reason: str = ""


#: By (driver, host).
Drains = Mapping[tuple[str, str], Drain]


def of_host(drains: Drains, driver: str, host: str) -> Drain | None:
    """Return the drain that concerns a host: of the site, or of the host itself."""
    return drains.get(SITE) or drains.get((driver, host))


def hosts_of(drains: Drains, driver: str, hosts: Iterable[str]) -> set[str]:
    """Return those hosts of a driver that get no new runs."""
    return {h for h in hosts if of_host(drains, driver, h) is not None}
