"""The interface of hosts that a driver monitors, for the rest of the supervisor."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from ...protocol.clusters.container_pool import PoolHost


class MonitoredHosts(Protocol):
    """A monitored host. up: its daemon answers. detail: a sentence. since: start of the state, unix
    seconds. version: version of its daemon.
    """

    host: PoolHost
    up: bool
    detail: str
    since: float | None
    version: str | None


@runtime_checkable
class HasHosts(Protocol):
    """A driver with a pool of hosts."""

    engines: Mapping[str, MonitoredHosts]
