"""Facts about a cluster for this user: partitions, accounts, QOS, scheduler status. Queried when
the agent starts and every few minutes.
"""

import time

from ...protocol.clusters.batch import ClusterStatus
from ...protocol.clusters.cluster import Cluster
from ..slurm import output_parser
from ..slurm.command_errors import query_error
from .command_runner import CommandResult, Run

#: Interval between queries (seconds).
EVERY_SECS = 600.0
#: Interval while Slurm is unreachable (seconds).
AGAIN_SECS = 60.0
_DETAIL = 2000


async def cluster_status(cluster: Cluster, user: str, run: Run) -> ClusterStatus:
    """Query the cluster's status. Never raises: facts that cannot be queried are reported as
    unknown.
    """
    shown = await run(output_parser.partitions(), "", cluster.call_secs)
    outage = _outage(shown)
    if outage is not None:
        return ClusterStatus(
            cluster=cluster.name, at=time.time(), scheduler="unreachable", detail=outage[:_DETAIL]
        )
    kinds = await run(output_parser.nodes(), "", cluster.call_secs)
    states = await run(output_parser.node_states(), "", cluster.call_secs)
    associations = await run(output_parser.associations(user), "", cluster.call_secs)
    version = await run(output_parser.slurm_version(), "", cluster.call_secs)
    accounts, qos = (
        (None, None)
        if associations.code != 0
        else output_parser.parse_associations(associations.out)
    )
    # a user without associations is not limited by accounting
    return ClusterStatus(
        cluster=cluster.name,
        at=time.time(),
        scheduler="up",
        detail=(_outage(kinds) or "")[:_DETAIL],
        version=output_parser.version(version.out),
        partitions=output_parser.parse_partitions(
            shown.out,
            kinds.out if kinds.code == 0 else "",
            states.out if states.code == 0 else "",
        ),
        accounts=accounts or None,
        qos=qos or None,
    )


def _outage(result: CommandResult) -> str | None:
    if result.effect_unknown:
        return result.err.strip() or "a Slurm command was killed before it printed an answer"
    return query_error(result.code, result.err)
