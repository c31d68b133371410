"""What a cluster offers this user, found out when somebody connects and every few minutes:
partitions, accounts, is Slurm there.
"""

import time

from ...protocol.clusters.batch import ClusterStatus
from ...protocol.clusters.cluster import Cluster
from ..slurm import output_parser
from ..slurm.command_errors import query_error
from .command_runner import Ran, Run

#: Pause between two looks (seconds).
EVERY_SECS = 600.0
#: While Slurm cannot be asked, it is asked more often.
AGAIN_SECS = 60.0
_DETAIL = 2000


async def news(cluster: Cluster, user: str, run: Run) -> ClusterStatus:
    """Never raises; what cannot be asked is said to be unknown."""
    shown = await run(output_parser.partitions(), "", cluster.call_secs)
    outage = _outage(shown)
    if outage is not None:
        return ClusterStatus(
            cluster=cluster.name, at=time.time(), scheduler="unreachable", detail=outage[:_DETAIL]
        )
    kinds = await run(output_parser.nodes(), "", cluster.call_secs)
    allowed = await run(output_parser.associations(user), "", cluster.call_secs)
    version = await run(output_parser.slurm_version(), "", cluster.call_secs)
    accounts, qos = (
        (None, None) if allowed.code != 0 else output_parser.parse_associations(allowed.out)
    )
    # whom accounting does not know, it does not limit either
    return ClusterStatus(
        cluster=cluster.name,
        at=time.time(),
        scheduler="up",
        detail=(_outage(kinds) or "")[:_DETAIL],
        version=output_parser.version(version.out),
        partitions=output_parser.parse_partitions(shown.out, kinds.out if kinds.code == 0 else ""),
        accounts=accounts or None,
        qos=qos or None,
    )


def _outage(ran: Ran) -> str | None:
    if ran.unsure:
        return ran.err.strip() or "a command of Slurm's was ended before it said anything"
    return query_error(ran.code, ran.err)
