"""What is known of the clusters: as their file says, and as agents there have told. The newest word
counts, nothing of it is kept on disk.

An agent runs as its user, who may have it say anything. So what it tells of partitions and accounts
counts for that user alone; only where the supervisor's own unix user submits for everybody (access
`account`) is it everybody's.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from ...db.events.state import Run
from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import ClusterStatus
from ...protocol.clusters.cluster import Cluster, Clusters
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey
from ...protocol.wire.messages import ClusterReport
from . import batch_validation

DRIVER = "sbatch"
#: What was told longer ago is shown, and no run is refused for it.
STALE_SECS = 86_400.0
#: Who told, of each cluster; beyond that the oldest are forgotten.
MAX_USERS = 1_000
#: Partitions, accounts or QOS of one report.
MAX_NAMES = 1_000
_EVERYBODY = ""


class ClusterInventory:
    """clusters: None where the driver is not in use. usual_secs: the time limit of runs that have
    none. now: wall time.
    """

    def __init__(
        self,
        clusters: Clusters | None,
        *,
        usual_secs: float | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._clusters, self._usual_secs, self._now = clusters, usual_secs, now
        #: by cluster and user, the one who told last at the end
        self._told: dict[str, dict[str, ClusterStatus]] = {
            c.name: {} for c in (clusters.clusters if clusters is not None else ())
        }

    def sizes(self) -> dict[str, int]:
        """Who told, counted."""
        return {name: len(told) for name, told in self._told.items()}

    def newest(self) -> dict[str, ClusterStatus | None]:
        """By cluster, what was told there last, by whoever it was; None: nothing yet."""
        return {
            name: max(told.values(), key=lambda news: news.at, default=None)
            for name, told in self._told.items()
        }

    def heard(self, key: AgentKey, report: ClusterReport) -> None:
        """Raises Refusal (foreignToken, tooLarge)."""
        news = report.news
        cluster = self._clusters.named(key.host) if self._clusters is not None else None
        if key.driver != DRIVER or cluster is None or news.cluster != key.host:
            raise Refusal(
                "foreignToken", f"it tells of the cluster {news.cluster}, on which it is not"
            )
        count = max(len(news.partitions), len(news.accounts or ()), len(news.qos or ()))
        if count > MAX_NAMES:
            raise Refusal(
                "tooLarge", f"it tells of {count} partitions or accounts; the limit is {MAX_NAMES}"
            )
        told, whose = self._told[cluster.name], _whose(cluster, key.uid)
        before = told.pop(whose, None)
        # what was known of partitions is not forgotten because Slurm cannot be asked now
        kept = news.partitions or (
            before.partitions if before is not None and news.scheduler != "up" else ()
        )
        told[whose] = msgspec.structs.replace(news, partitions=kept, at=self._now())
        while len(told) > MAX_USERS:
            del told[next(iter(told))]

    def news(self, uid: str) -> dict[str, ClusterStatus]:
        """What a run of this user is checked against, by cluster."""
        found = {
            c.name: self._of(c, uid)
            for c in (self._clusters.clusters if self._clusters is not None else ())
        }
        return {
            name: news
            for name, news in found.items()
            if news is not None and self._now() - news.at < STALE_SECS
        }

    def asked(self, spec: RunSpec) -> RunSpec:
        """The run as its cluster is asked for it, and as it is on record. Its driver is named.
        Raises Refusal.
        """
        if spec.driver != DRIVER or self._clusters is None:
            batch_validation.check_none(spec, spec.driver)
            return spec
        return batch_validation.check(
            spec, self._clusters, self.news(spec.uid), usual_secs=self._usual_secs
        )

    def apart(self, key: AgentKey) -> bool:
        """Does an agent see other users' directories than we do?"""
        cluster = (
            self._clusters.named(key.host)
            if self._clusters is not None and key.driver == DRIVER
            else None
        )
        return cluster is not None and cluster.user_root is None

    def elsewhere(self, run: Run) -> bool:
        """Does its directory lie where we see nothing?"""
        return any(self.apart(t.agent_key) for a in run.attempts for t in a.tasks)

    def listing(self, uid: str) -> list[dict[str, Any]]:
        """All clusters as this user may know them, the one first that is meant where a run does not
        say.
        """
        return [
            self._row(c, uid)
            for c in (self._clusters.clusters if self._clusters is not None else ())
        ]

    def _of(self, cluster: Cluster, uid: str) -> ClusterStatus | None:
        return self._told[cluster.name].get(_whose(cluster, uid))

    def _row(self, cluster: Cluster, uid: str) -> dict[str, Any]:
        """state: can Slurm be asked there? partitions: None while nothing is known of them."""
        news = self._of(cluster, uid)
        told: dict[str, Any] = {} if news is None else msgspec.to_builtins(news)
        return {
            "cluster": cluster.name,
            "access": cluster.access,
            "state": told.get("scheduler", "unknown"),
            "detail": told.get("detail", ""),
            "at": told.get("at"),
            "version": told.get("version") or None,
            "partitions": told.get("partitions") or None,
            "accounts": told.get("accounts"),
            "qos": told.get("qos"),
            "defaults": _said(cluster.defaults),
            "limits": _said(cluster.limits),
            "directives": list(cluster.directives),
            "runs": cluster.runs,
            "runsPerUser": cluster.runs_per_user,
        }


def _whose(cluster: Cluster, uid: str) -> str:
    return _EVERYBODY if cluster.access == "account" else uid


def _said(part: msgspec.Struct) -> dict[str, Any]:
    """What it says; what it leaves open is left out."""
    said: dict[str, Any] = msgspec.to_builtins(part)
    return {key: value for key, value in said.items() if value not in (None, (), [], "")}
