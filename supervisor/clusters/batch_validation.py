"""A run of the driver sbatch before it is accepted: its cluster named, the defaults filled in, what
the cluster cannot give refused.

What is asked of Slurm is what is on record then. What its partitions have is known from agents
there (`clusters`); of a cluster that none has told of, Slurm itself has the word when the run is
submitted to it.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import BatchRequest, ClusterStatus, Partition
from ...protocol.clusters.cluster import Cluster, Clusters
from ...protocol.errors import Refusal
from ...schema.fields import quoted
from ...schema.jobs.batch_rules import (
    NodeLimits,
    contradictions,
    directive_name,
    directive_problem,
    gang_request,
    nodes_of,
    setup_problem,
    tasks_of,
    with_defaults,
)

_SHOWN = 12
_N = TypeVar("_N", int, float)
#: A partition of which nothing is known.
_UNKNOWN = Partition(name="")


class _Wrong:
    """All that is wrong with one run."""

    def __init__(self) -> None:
        self._said: list[tuple[str, str]] = []

    def refused(self, sentence: str) -> None:
        self._said.append(("batchRefused", sentence))

    def exceeded(self, sentence: str) -> None:
        self._said.append(("resourceExceeded", sentence))

    def check(self) -> None:
        """Raises Refusal."""
        if self._said:
            codes = {code for code, _ in self._said}
            code = "resourceExceeded" if codes == {"resourceExceeded"} else "batchRefused"
            raise Refusal(code, "; ".join(sentence for _, sentence in self._said))


def check(
    spec: RunSpec,
    clusters: Clusters,
    news: Mapping[str, ClusterStatus],
    *,
    usual_secs: float | None = None,
) -> RunSpec:
    """The run as it is asked of Slurm. Raises Refusal (batchRefused, resourceExceeded) with all
    that is wrong.

    news: of each cluster, as this user may know it. usual_secs: the time limit of this house for
    runs that have none of their own; what a cluster allows may be less, and counts then.
    """
    asked = spec.batch if isinstance(spec.batch, BatchRequest) else BatchRequest()
    cluster = _cluster(asked, clusters)
    wrong = _Wrong()
    _check_texts(asked, cluster, wrong)
    wishes = replace(
        with_defaults(asked, cluster.defaults, sizes=not spec.roles), cluster=cluster.name
    )
    told = news.get(cluster.name)
    partition = _partition(wishes, told, cluster, wrong)
    _check_names(wishes, told, partition, wrong)
    if spec.roles:
        wishes, not_so = gang_request(spec.roles, wishes, _room(cluster, partition))
        for sentence in not_so:
            wrong.refused(sentence)
    for sentence in contradictions(wishes):
        wrong.refused(sentence)
    _check_partition(
        wishes, partition, f"partition {partition.name!r} of cluster {cluster.name!r}", wrong
    )
    _check_limits(
        wishes, sum(r.tasks for r in spec.roles) or tasks_of(wishes), cluster, partition, wrong
    )
    if spec.debug_secs is not None:
        wrong.refused(
            f"`debug`: nothing can be kept on cluster {cluster.name!r}, since Slurm takes back what a task had as soon as it is "
            "over; leave this out (directory, output and evidence of what failed stay there)"
        )
    secs = _time_limit(spec, cluster, partition, usual_secs, wrong)
    wrong.check()
    return replace(spec, batch=wishes, time_limit_secs=secs)


def check_none(spec: RunSpec, driver: str) -> None:
    """Of a driver without clusters nothing can be asked. Raises Refusal."""
    if isinstance(spec.batch, BatchRequest):
        raise Refusal(
            "batchRefused",
            f"the driver {driver} knows no clusters, partitions and the like, as the run asks for in `batch`: "
            "leave this out, or choose the driver sbatch",
        )


def _cluster(asked: BatchRequest, clusters: Clusters) -> Cluster:
    found = clusters.named(asked.cluster)
    if found is None:
        there = _listed(c.name for c in clusters.clusters)
        raise Refusal(
            "batchRefused", f"there is no cluster {quoted(asked.cluster or '')}; there are: {there}"
        )
    return found


def _check_texts(asked: BatchRequest, cluster: Cluster, wrong: _Wrong) -> None:
    """What could be more than it says. Of the cluster's own defaults that was looked at when its
    file was read.
    """
    for directive in asked.directives:
        name = directive_name(directive)
        if problem := directive_problem(directive):
            wrong.refused(f"`directives`: {problem}")
        elif name not in cluster.directives:
            allowed = (
                f"allowed are: {_listed(cluster.directives)}" if cluster.directives else "none are"
            )
            wrong.refused(
                f"`directives`: cluster {cluster.name!r} does not allow {quoted(name)}; {allowed}"
            )
    if problem := setup_problem(asked.setup):
        wrong.refused(f"`setup`: {problem}")


# ---- names


def _partition(
    wishes: BatchRequest, told: ClusterStatus | None, cluster: Cluster, wrong: _Wrong
) -> Partition:
    """The one that it would go to, as far as that is known."""
    if told is None or not told.partitions:
        return _UNKNOWN
    if wishes.partition is None:
        return next((p for p in told.partitions if p.default), _UNKNOWN)
    found = next((p for p in told.partitions if p.name == wishes.partition), None)
    if found is None:
        there = _listed(p.name for p in told.partitions)
        wrong.refused(
            f"cluster {cluster.name!r} has no partition {quoted(wishes.partition)}; there are: {there}"
        )
    return found or _UNKNOWN


def _check_names(
    wishes: BatchRequest, told: ClusterStatus | None, partition: Partition, wrong: _Wrong
) -> None:
    """Account and QOS: those of this user, and those that the partition takes."""
    own = (told.accounts, told.qos) if told is not None else (None, None)
    for what, value, mine, taken in (
        ("account", wishes.account, own[0], partition.accounts),
        ("QOS", wishes.qos, own[1], partition.qos),
    ):
        if value is None:
            continue
        if mine and not _among(value, mine):
            wrong.refused(
                f"you may not use the {what} {quoted(value)} on cluster {wishes.cluster!r}; you may use: {_listed(mine)}"
            )
        if taken and not _among(value, taken):
            wrong.refused(
                f"partition {partition.name!r} does not take the {what} {quoted(value)}; it takes: {_listed(taken)}"
            )


def _among(value: str, names: Iterable[str]) -> bool:
    """Slurm keeps them in small letters, however they are written."""
    return bool({value.lower(), "all"} & {name.lower() for name in names})


# ---- sizes


def _room(cluster: Cluster, p: Partition) -> NodeLimits:
    """For the tasks of a run with roles: the tightest of what is known."""
    limits = cluster.limits
    return NodeLimits(
        cores=p.cores_per_node,
        memory_mb=_least(limits.memory_mb, p.memory_mb_per_node),
        gpus=_least(limits.gpus, p.gpus_per_node),
        nodes=_least(limits.nodes, p.nodes, p.max_nodes),
    )


def _check_partition(wishes: BatchRequest, p: Partition, its: str, wrong: _Wrong) -> None:
    cores, tasks, nodes = wishes.cores or 1, tasks_of(wishes), nodes_of(wishes, p.cores_per_node)
    most = _least(p.nodes, p.max_nodes)
    if p.cores_per_node is not None and cores * (wishes.tasks_per_node or 1) > p.cores_per_node:
        per = (
            f" by each of {wishes.tasks_per_node} tasks of a node"
            if (wishes.tasks_per_node or 1) > 1
            else ""
        )
        wrong.exceeded(
            f"`cores`: {cores} are asked for{per}; a node of {its} has {p.cores_per_node}"
        )
    elif most is not None and nodes > most:
        why = "" if wishes.nodes is not None else f" ({tasks} tasks with {cores} cores each)"
        has = f"gives a run {most} at most" if most == p.max_nodes else f"has {most}"
        wrong.exceeded(f"`nodes`: {nodes} are needed{why}; {its} {has}")
    elif p.cores_per_node is not None and tasks > (room := nodes * (p.cores_per_node // cores)):
        wrong.exceeded(
            f"`tasks`: {tasks} with {cores} cores each are asked for; {nodes} nodes of {its} have room for {room}"
        )
    if p.min_nodes is not None and (wishes.nodes or p.min_nodes) < p.min_nodes:
        wrong.refused(
            f"`nodes`: {wishes.nodes} are asked for; {its} takes no run with less than {p.min_nodes}"
        )
    for key, value, has_, what in (
        ("memory", wishes.memory_mb, p.memory_mb_per_node, "MB"),
        ("gpus", wishes.gpus, p.gpus_per_node, "GPUs"),
    ):
        if value is not None and has_ is not None and value > has_:
            wrong.exceeded(
                f"`{key}`: {value} {what} are asked for on each node; a node of {its} has {has_}"
            )


def _check_limits(
    wishes: BatchRequest, tasks: int, cluster: Cluster, p: Partition, wrong: _Wrong
) -> None:
    """Those that the operator has set."""
    limits = cluster.limits
    for key, value, limit, what in (
        ("nodes", nodes_of(wishes, p.cores_per_node), limits.nodes, "are needed"),
        ("tasks", tasks, limits.tasks, "are asked for"),
        (
            "cores",
            tasks_of(wishes) * (wishes.cores or 1),
            limits.cores,
            "are asked for, of all tasks together",
        ),
        ("memory", wishes.memory_mb, limits.memory_mb, "MB are asked for on each node"),
        ("gpus", wishes.gpus, limits.gpus, "are asked for on each node"),
    ):
        if value is not None and limit is not None and value > limit:
            wrong.exceeded(
                f"`{key}`: {value} {what}; the limit of cluster {cluster.name!r} for a run is {limit}"
            )


def _time_limit(
    spec: RunSpec, cluster: Cluster, p: Partition, usual_secs: float | None, wrong: _Wrong
) -> float | None:
    """Its own, or the usual one as far as the cluster gives that."""
    most = _least(p.time_limit_secs, cluster.limits.time_limit_secs)
    if spec.time_limit_secs is None:
        usual = _least(usual_secs, cluster.limits.time_limit_secs)
        return None if usual is None else _least(usual, most)
    if most is not None and spec.time_limit_secs > most:
        whose = f"partition {p.name!r} of cluster" if most == p.time_limit_secs else "cluster"
        wrong.exceeded(
            f"`timeLimit`: {spec.time_limit_secs:g} s are asked for; {whose} {cluster.name!r} gives a run {most:g} s"
        )
    return spec.time_limit_secs


def _least(*values: _N | None) -> _N | None:
    """The smallest that is known."""
    return min((v for v in values if v is not None), default=None)


def _listed(names: Iterable[str]) -> str:
    all_ = list(names)
    more = f" and {len(all_) - _SHOWN} more" if len(all_) > _SHOWN else ""
    return ", ".join(all_[:_SHOWN]) + more
