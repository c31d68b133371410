"""`cluster list`: the clusters that runs can go to, with what may be asked of them."""

from typing import Any

from .session.session import command, session
from .terminal.quantities import duration, moment

_HEADS = ("CLUSTER", "SLURM", "PARTITION", "NODES", "CORES", "MEMORY MB", "GPUS", "TIME LIMIT")
_NONE = "this supervisor has no clusters: name sbatch in drivers.use, and their file in sbatch.clusters (see docs/sbatch.md)"


@command(name="list")
def list_clusters() -> None:
    """Show the clusters, the one first that is meant where a run names none, and their partitions
    as far as they are known.

    CORES, MEMORY MB and GPUS are those of a node, NODES are the most of one run. A partition with *
    is the usual one. They are told by your own agent there: before you have signed in or submitted
    something, nothing is known.
    """
    s = session()
    clusters = s.client().clusters()
    if s.screen.json:
        s.screen.value("jobscribe.cluster.list/1", {"items": clusters})
        return
    if not clusters:
        s.screen.message(_NONE)
        return
    s.screen.table(_HEADS, [row for c in clusters for row in _rows(c)])
    for cluster in clusters:
        for sentence in _said(cluster):
            s.screen.message(f"{cluster['cluster']}: {sentence}")


def _rows(cluster: dict[str, Any]) -> list[list[str]]:
    slurm = " ".join(word for word in (cluster["state"], cluster["version"]) if word)
    return [[cluster["cluster"], slurm, *_partition(p)] for p in cluster["partitions"] or [None]]


def _partition(p: dict[str, Any] | None) -> list[str]:
    if p is None:
        return ["-"] * 6
    most = min((n for n in (p["nodes"], p["maxNodes"]) if n is not None), default=None)
    secs = p["timeLimitSecs"]
    name = p["name"] + ("*" if p["default"] else "") + ("" if p["up"] else " (down)")
    limit = None if secs is None else duration(secs)
    return [
        name,
        *map(_or, (most, p["coresPerNode"], p["memoryMbPerNode"], p["gpusPerNode"], limit)),
    ]


def _or(value: object) -> str:
    return "-" if value is None else str(value)


def _said(cluster: dict[str, Any]) -> list[str]:
    """What else there is to know."""
    out = []
    if cluster["detail"]:
        out.append(cluster["detail"])
    for key, what in (
        ("defaults", "a run gets, where it does not say"),
        ("limits", "a run may ask for at most"),
    ):
        if cluster[key]:
            out.append(f"{what}: {', '.join(f'{k} {_plain(v)}' for k, v in cluster[key].items())}")
    for key, what in (
        ("accounts", "your accounts"),
        ("qos", "your QOS"),
        ("directives", "further options of sbatch"),
    ):
        if cluster[key]:
            out.append(f"{what}: {', '.join(cluster[key])}")
    if cluster["at"] is not None:
        out.append(f"as told at {moment(cluster['at'])}")
    return out


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
