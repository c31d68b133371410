"""Hosts that their driver watches, as the rest of the supervisor sees them: whether they can be
asked, and since when.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from ...protocol.clusters.container_pool import PoolHost


class MonitoredHosts(Protocol):
    """A host as its driver sees it. detail: a sentence; since: wall time; version: of its daemon."""

    host: PoolHost
    up: bool
    detail: str
    since: float | None
    version: str | None


@runtime_checkable
class HasHosts(Protocol):
    """A driver with a pool."""

    engines: Mapping[str, MonitoredHosts]
