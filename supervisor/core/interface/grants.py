"""Grants: the limits of the site of which this shard has a part that changes. Pure.

They are notices: the supervisor agrees on them with the other shards and tells the core. The names are
those of the settings, and `runs.NAME` of a cluster.
"""

from collections.abc import Mapping

import msgspec

from ....protocol.ids import AgentKind

CPU, MEMORY = "resources.local_cpu", "resources.local_memory_mb"
#: Where the runs of a batch driver are counted.
_RUNS = "runs."


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """limit: what this shard may use. capacity: of the whole site. others: use of the other shards, as
    they reported it last.
    """

    limit: int
    capacity: int
    others: int = 0


#: By the name of the limit.
Grants = Mapping[str, Grant]


def slots_name(driver: str, kind: AgentKind, host: str) -> str:
    """Return the name of the limit of plain runs on this host, or of runs in this cluster."""
    return runs_name(host) if driver == "sbatch" else f"slots.{driver}_{kind}"


def runs_name(cluster: str) -> str:
    return _RUNS + cluster
