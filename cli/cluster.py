"""`jobscribe cluster list`: the clusters for runs, with limits and partitions."""

from typing import Any

from .session.session import command, session
from .terminal.quantities import duration, moment

_HEADS = ("CLUSTER", "SLURM", "PARTITION", "NODES", "CORES", "MEMORY MB", "GPUS", "TIME LIMIT")
_NONE = "this supervisor has no clusters: add sbatch to drivers.use, and set sbatch.clusters to their file (see docs/sbatch.md)"


@command(name="list")
def list_clusters() -> None:
    """List the clusters and their known partitions. The first one is the default for runs.

    CORES, MEMORY MB and GPUS are per node; NODES is the maximum for one run. An asterisk marks the
    default partition. Your own agent reports partitions: they are unknown until you have signed in
    or submitted a run.
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
        for sentence in _notes(cluster):
            s.screen.message(f"{cluster['cluster']}: {sentence}")


def _rows(cluster: dict[str, Any]) -> list[list[str]]:
    slurm = " ".join(text for text in (cluster["state"], cluster["version"]) if text)
    return [[cluster["cluster"], slurm, *_partition(p)] for p in cluster["partitions"] or [None]]


def _partition(p: dict[str, Any] | None) -> list[str]:
    if p is None:
        return ["-"] * 6
    max_nodes = min((n for n in (p["nodes"], p["maxNodes"]) if n is not None), default=None)
    secs = p["timeLimitSecs"]
    name = p["name"] + ("*" if p["default"] else "") + ("" if p["up"] else " (down)")
    limit = None if secs is None else duration(secs)
    return [
        name,
        *map(
            _or_dash, (max_nodes, p["coresPerNode"], p["memoryMbPerNode"], p["gpusPerNode"], limit)
        ),
    ]


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _notes(cluster: dict[str, Any]) -> list[str]:
    """Return further facts about a cluster, as sentences."""
    out = []
    if cluster["detail"]:
        out.append(cluster["detail"])
    for key, label in (
        ("defaults", "defaults of a run"),
        ("limits", "limits of a run"),
    ):
        if cluster[key]:
            out.append(f"{label}: {', '.join(f'{k} {_plain(v)}' for k, v in cluster[key].items())}")
    for key, label in (
        ("accounts", "your accounts"),
        ("qos", "your QOS"),
        ("directives", "further sbatch options"),
    ):
        if cluster[key]:
            out.append(f"{label}: {', '.join(cluster[key])}")
    if cluster["at"] is not None:
        out.append(f"reported at {moment(cluster['at'])}")
    return out


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
