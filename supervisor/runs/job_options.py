"""Drivers, queues and limits that a user may request at this site, for forms. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ...protocol.api.requests import MAX_BULK, MAX_TAGS
from ..core.resources import host_selection
from ..core.resources.bin_packing import Node
from ..core.state.configuration import CoreConfig


def options(
    policy: CoreConfig, drivers: Sequence[str], uid: str, plan: str | None
) -> dict[str, Any]:
    """Return the choices and limits of a user. drivers: the default one first. Times are seconds,
    memory is MiB; a limit that is absent does not exist.
    """
    queues = policy.queues
    limits = msgspec.to_builtins(queues.limits_of(plan, uid))
    return {
        "drivers": [_driver(policy, name, plan) for name in drivers],
        "queues": [
            {"name": name, "share": queue.share, "borrow": queue.borrow}
            for name, queue in queues.all.items()
            if queue.admits(uid, plan)
        ],
        "queue": queues.of(uid, plan),
        "limits": {name: value for name, value in limits.items() if value is not None},
        "timeLimit": policy.time_limit_secs,
        "queueLimit": policy.queue_limit_secs,
        "maxRuns": MAX_BULK,
        "maxTags": MAX_TAGS,
    }


def _driver(policy: CoreConfig, name: str, plan: str | None) -> dict[str, Any]:
    """Return one driver. largest: the largest amounts that one task may have on a host; None if
    its hosts are not known here, as those of a cluster.
    """
    nodes: Sequence[Node] = host_selection.allowed(policy.nodes.get(name, ()), plan)
    types = {t for node in nodes for t in node.gpu_names if t}
    return {
        "name": name,
        "containers": name in policy.containers,
        "cluster": name in policy.batch,
        "hosts": len(nodes),
        "largest": {
            "cpu": max(node.cpu for node in nodes),
            "memory": max(node.memory_mb for node in nodes),
            "gpu": max(len(node.gpus) for node in nodes),
        }
        if nodes
        else None,
        "gpuTypes": sorted(types),
    }
