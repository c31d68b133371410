"""Virtual clusters: the queues of the site, with their capacity and use."""

from collections import Counter
from typing import Any

from ....db.events.state import Run
from ....protocol.clusters.queues import Queue
from ....protocol.errors import Refusal
from ....protocol.jobs.status import RUNNING
from ..transport.request_handler import Handler
from . import documents

#: Details of the refusal of an unknown virtual cluster.
UNKNOWN = {
    "pai": "NoVirtualClusterError",
    "advice": "GET /api/v1/virtual-clusters lists those that you may use",
}


def all_clusters(h: Handler) -> dict[str, Any]:
    """Return the virtual clusters that the sender may use, by name."""
    queues = h.runs.engine.policy.queues.all
    total, uses = _resources(h), _uses(h)
    shares = sum(q.share for q in queues.values())
    capacities = {name: round(100 * q.share / shares, 2) for name, q in queues.items()}
    return {
        name: {
            "capacity": capacities[name],
            "maxCapacity": 100.0 if queue.borrow else capacities[name],
            "usedCapacity": _percent(uses[name]["vCores"], total["vCores"]),
            "numActiveJobs": uses[name]["jobs"],
            "numJobs": uses[name]["jobs"],
            "numRunningJobs": uses[name]["running"],
            "numPendingJobs": uses[name]["jobs"] - uses[name]["running"],
            "resourcesTotal": {k: v * queue.share / shares for k, v in total.items()},
            "resourcesUsed": {k: uses[name][k] for k in total},
            "dedicated": bool(queue.users or queue.plans),
            "state": "running",
            "status": "RUNNING",
        }
        for name, queue in queues.items()
        if _may_use(h, queue)
    }


def one_cluster(h: Handler, name: str) -> dict[str, Any]:
    """Raises Refusal: NoVirtualClusterError, ForbiddenUserError."""
    queues = h.runs.engine.policy.queues.all
    if name not in queues:
        raise Refusal("notFound", f"there is no virtual cluster {name!a}", UNKNOWN)
    if not _may_use(h, queues[name]):
        raise Refusal("forbidden", f"you are no member of the virtual cluster {name!a}")
    found: dict[str, Any] = all_clusters(h)[name]
    return found


def _may_use(h: Handler, queue: Queue) -> bool:
    """Plans are known for runs only, so membership by a plan is decided at a submission."""
    uid = h.principal.uid
    if h.principal.all_users or uid is None or queue.plans:
        return True
    return queue.admits(uid, None)


def _resources(h: Handler) -> dict[str, float]:
    """Return the resources of all hosts for runs with roles."""
    nodes = {n.host: n for ns in h.runs.engine.policy.nodes.values() for n in ns}.values()
    return {
        "vCores": sum(n.cpu for n in nodes),
        "memory": sum(n.memory_mb for n in nodes),
        "GPUs": sum(len(n.gpus) for n in nodes),
    }


def _uses(h: Handler) -> dict[str, Counter[str]]:
    """Return the number of active jobs, of running ones, and their resources, by queue."""
    out: dict[str, Counter[str]] = {name: Counter() for name in h.runs.engine.policy.queues.all}
    for job in list(h.runs.engine.world.jobs.values()):
        run = job.run
        if run is None or not run.active:
            continue
        use = out.setdefault(documents.queue_of(run), Counter())
        use["jobs"] += 1
        use["running"] += run.status == RUNNING
        use.update(_used(run))
    return out


def _used(run: Run) -> Counter[str]:
    roles, used = {r.name: r for r in run.spec.roles}, Counter[str]()
    for task in run.live_tasks:
        if (role := roles.get(task.token.role)) is not None:
            used["vCores"] += role.cpu
            used["memory"] += role.memory_mb
            used["GPUs"] += role.gpu
        else:
            used["vCores"] += 1
    return used


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 2) if whole else 0.0
