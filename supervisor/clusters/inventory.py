"""The inventory of clusters: their settings, and the newest reports of agents about them.

The reports are in memory only. An agent runs as its user, who can make it report anything. So a
report is used for this user only, unless one unix user submits for all users (access `account`).
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
#: Older reports are shown, but no run is refused because of them.
STALE_SECS = 86_400.0
#: Largest number of users with reports for each cluster; beyond it the oldest are dropped.
MAX_USERS = 1_000
#: Largest number of partitions, accounts or QOS in one report.
MAX_NAMES = 1_000
_EVERYBODY = ""


class ClusterInventory:
    """clusters: None if the driver is not used. usual_secs: time limit of runs without one. now:
    wall clock.
    """

    def __init__(
        self,
        clusters: Clusters | None,
        *,
        usual_secs: float | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._clusters, self._usual_secs, self._now = clusters, usual_secs, now
        #: reports by cluster and user, the newest last
        self._reports: dict[str, dict[str, ClusterStatus]] = {
            c.name: {} for c in (clusters.clusters if clusters is not None else ())
        }

    def sizes(self) -> dict[str, int]:
        """Return the number of reports for each cluster."""
        return {name: len(reports) for name, reports in self._reports.items()}

    def newest(self) -> dict[str, ClusterStatus | None]:
        """Return the newest report for each cluster, of any user; None if there is none."""
        return {
            name: max(reports.values(), key=lambda news: news.at, default=None)
            for name, reports in self._reports.items()
        }

    def heard(self, key: AgentKey, report: ClusterReport) -> None:
        """Store a report of an agent. Raises Refusal (foreignToken, tooLarge)."""
        news = report.news
        cluster = self._clusters.named(key.host) if self._clusters is not None else None
        if key.driver != DRIVER or cluster is None or news.cluster != key.host:
            raise Refusal(
                "foreignToken",
                f"it reported on the cluster {news.cluster}, on which it does not run",
            )
        count = max(len(news.partitions), len(news.accounts or ()), len(news.qos or ()))
        if count > MAX_NAMES:
            raise Refusal(
                "tooLarge", f"it reported {count} partitions or accounts; the limit is {MAX_NAMES}"
            )
        reports, owner = self._reports[cluster.name], _owner(cluster, key.uid)
        before = reports.pop(owner, None)
        # keep the known partitions while Slurm does not answer
        kept = news.partitions or (
            before.partitions if before is not None and news.scheduler != "up" else ()
        )
        reports[owner] = msgspec.structs.replace(news, partitions=kept, at=self._now())
        while len(reports) > MAX_USERS:
            del reports[next(iter(reports))]

    def news(self, uid: str) -> dict[str, ClusterStatus]:
        """Return the current reports for this user's runs, by cluster."""
        found = {
            c.name: self._report(c, uid)
            for c in (self._clusters.clusters if self._clusters is not None else ())
        }
        return {
            name: news
            for name, news in found.items()
            if news is not None and self._now() - news.at < STALE_SECS
        }

    def asked(self, spec: RunSpec) -> RunSpec:
        """Return the run with its complete request to the cluster. Raises Refusal.

        spec: has a driver name.
        """
        if spec.driver != DRIVER or self._clusters is None:
            batch_validation.check_none(spec, spec.driver)
            return spec
        return batch_validation.check(
            spec, self._clusters, self.news(spec.uid), usual_secs=self._usual_secs
        )

    def apart(self, key: AgentKey) -> bool:
        """Return whether the agent's user folders differ from the supervisor's."""
        cluster = (
            self._clusters.named(key.host)
            if self._clusters is not None and key.driver == DRIVER
            else None
        )
        return cluster is not None and cluster.user_root is None

    def elsewhere(self, run: Run) -> bool:
        """Return whether the supervisor cannot see the run's directory."""
        return any(self.apart(t.agent_key) for a in run.attempts for t in a.tasks)

    def listing(self, uid: str) -> list[dict[str, Any]]:
        """Return all clusters as this user may know them, the default cluster first."""
        return [
            self._row(c, uid)
            for c in (self._clusters.clusters if self._clusters is not None else ())
        ]

    def _report(self, cluster: Cluster, uid: str) -> ClusterStatus | None:
        return self._reports[cluster.name].get(_owner(cluster, uid))

    def _row(self, cluster: Cluster, uid: str) -> dict[str, Any]:
        """Return one cluster. state: up, down or unknown, for Slurm. partitions: None if they are
        unknown.
        """
        news = self._report(cluster, uid)
        report: dict[str, Any] = {} if news is None else msgspec.to_builtins(news)
        return {
            "cluster": cluster.name,
            "access": cluster.access,
            "state": report.get("scheduler", "unknown"),
            "detail": report.get("detail", ""),
            "at": report.get("at"),
            "version": report.get("version") or None,
            "partitions": report.get("partitions") or None,
            "accounts": report.get("accounts"),
            "qos": report.get("qos"),
            "defaults": _without_empty(cluster.defaults),
            "limits": _without_empty(cluster.limits),
            "directives": list(cluster.directives),
            "runs": cluster.runs,
            "runsPerUser": cluster.runs_per_user,
        }


def _owner(cluster: Cluster, uid: str) -> str:
    return _EVERYBODY if cluster.access == "account" else uid


def _without_empty(part: msgspec.Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(part)
    return {key: value for key, value in fields.items() if value not in (None, (), [], "")}
