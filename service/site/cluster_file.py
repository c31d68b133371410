"""The file of clusters of the driver sbatch (YAML, `sbatch.clusters`). All problems are reported
together, with their lines.

`protocol.clusters.cluster` declares the fields, and `cluster_rules` the rules.
"""

from msgspec.structs import replace

from ...protocol.clusters.cluster import Clusters
from ...protocol.errors import Refusal
from ...schema.structs import Place
from . import site_file
from .cluster_rules import check, check_file

#: The default of runsPerUser for a cluster with fewer `runs`.
_RUNS_PER_USER = 100


def load(path: str) -> Clusters:
    """Return the clusters in this file. Raises Refusal with all problems."""
    clusters, found = read(path)
    if clusters is None:
        raise site_file.combined(path, found)
    return clusters


def read(path: str) -> tuple[Clusters | None, list[Refusal]]:
    """Return the clusters, or all problems of the file."""

    def complete_and_check(clusters: Clusters, place: Place) -> Clusters:
        clusters = _complete(clusters, place)
        check_file(path, place)
        check(clusters, place)
        return clusters

    return site_file.read(path, "sbatch.clusters", Clusters, complete_and_check)


def _complete(clusters: Clusters, place: Place) -> Clusters:
    """Limit the default of runsPerUser to runs."""
    return Clusters(
        clusters=tuple(
            c if at.given("runsPerUser") else replace(c, runs_per_user=min(c.runs, _RUNS_PER_USER))
            for c, at in zip(clusters.clusters, place.each("clusters"), strict=False)
        )
    )
