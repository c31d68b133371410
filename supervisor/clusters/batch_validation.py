"""Validation of runs for the driver sbatch: fill in cluster and defaults, refuse impossible
requests.

The result is stored and later sent to Slurm unchanged. The limits of partitions come from reports
of agents (`inventory`). Without a report, Slurm checks the run when it is submitted.
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
#: A partition without known limits.
_UNKNOWN = Partition(name="")


class _Problems:
    """All problems of one run."""

    def __init__(self) -> None:
        self._problems: list[tuple[str, str]] = []

    def refused(self, sentence: str) -> None:
        self._problems.append(("batchRefused", sentence))

    def exceeded(self, sentence: str) -> None:
        self._problems.append(("resourceExceeded", sentence))

    def check(self) -> None:
        """Raise Refusal if there are problems."""
        if self._problems:
            codes = {code for code, _ in self._problems}
            code = "resourceExceeded" if codes == {"resourceExceeded"} else "batchRefused"
            raise Refusal(code, "; ".join(sentence for _, sentence in self._problems))


def check(
    spec: RunSpec,
    clusters: Clusters,
    news: Mapping[str, ClusterStatus],
    *,
    usual_secs: float | None = None,
) -> RunSpec:
    """Return the run with its complete request to Slurm.

    news: the clusters' states that this user may see. usual_secs: time limit of the site for runs
    without one; a lower limit of the cluster wins. Raises Refusal (batchRefused, resourceExceeded)
    with all problems.
    """
    asked = spec.batch if isinstance(spec.batch, BatchRequest) else BatchRequest()
    cluster = _cluster(asked, clusters)
    problems = _Problems()
    _check_texts(asked, cluster, problems)
    request = replace(
        with_defaults(asked, cluster.defaults, sizes=not spec.roles), cluster=cluster.name
    )
    state = news.get(cluster.name)
    partition = _partition(request, state, cluster, problems)
    _check_names(request, state, partition, problems)
    if spec.roles:
        request, sentences = gang_request(spec.roles, request, _node_limits(cluster, partition))
        for sentence in sentences:
            problems.refused(sentence)
    for sentence in contradictions(request):
        problems.refused(sentence)
    _check_partition(
        request, partition, f"partition {partition.name!r} of cluster {cluster.name!r}", problems
    )
    _check_limits(
        request, sum(r.tasks for r in spec.roles) or tasks_of(request), cluster, partition, problems
    )
    for role in spec.roles:
        if role.gpu_type:
            problems.refused(
                f"role {role.name!r}: `gpuType`: Slurm chooses the hosts of cluster {cluster.name!r}; leave it out, "
                "and name a partition or `constraint` of `batch` with these GPUs"
            )
    secs = _time_limit(spec, cluster, partition, usual_secs, problems)
    problems.check()
    return replace(spec, batch=request, time_limit_secs=secs)


def check_none(spec: RunSpec, driver: str) -> None:
    """Check that a run for a driver without clusters has no batch request. Raises Refusal."""
    if isinstance(spec.batch, BatchRequest):
        raise Refusal(
            "batchRefused",
            f"the driver {driver} has no clusters, but the run has a `batch` request; "
            "leave it out, or choose the driver sbatch",
        )


def _cluster(asked: BatchRequest, clusters: Clusters) -> Cluster:
    found = clusters.named(asked.cluster)
    if found is None:
        names = _listed(c.name for c in clusters.clusters)
        raise Refusal(
            "batchRefused", f"there is no cluster {quoted(asked.cluster or '')}; there are: {names}"
        )
    return found


def _check_texts(asked: BatchRequest, cluster: Cluster, problems: _Problems) -> None:
    """Check directives and setup lines, which could contain other options or commands.

    Those of the cluster's defaults were checked when its file was read.
    """
    for directive in asked.directives:
        name = directive_name(directive)
        if problem := directive_problem(directive):
            problems.refused(f"`directives`: {problem}")
        elif name not in cluster.directives:
            allowed = (
                f"allowed are: {_listed(cluster.directives)}" if cluster.directives else "none are"
            )
            problems.refused(
                f"`directives`: cluster {cluster.name!r} does not allow {quoted(name)}; {allowed}"
            )
    if problem := setup_problem(asked.setup):
        problems.refused(f"`setup`: {problem}")


# ---- names


def _partition(
    request: BatchRequest, state: ClusterStatus | None, cluster: Cluster, problems: _Problems
) -> Partition:
    """Return the partition of the run, as far as it is known."""
    if state is None or not state.partitions:
        return _UNKNOWN
    if request.partition is None:
        return next((p for p in state.partitions if p.default), _UNKNOWN)
    found = next((p for p in state.partitions if p.name == request.partition), None)
    if found is None:
        names = _listed(p.name for p in state.partitions)
        problems.refused(
            f"cluster {cluster.name!r} has no partition {quoted(request.partition)}; there are: {names}"
        )
    return found or _UNKNOWN


def _check_names(
    request: BatchRequest, state: ClusterStatus | None, partition: Partition, problems: _Problems
) -> None:
    """Check that user and partition allow the account and the QOS."""
    own = (state.accounts, state.qos) if state is not None else (None, None)
    for noun, value, mine, accepted in (
        ("account", request.account, own[0], partition.accounts),
        ("QOS", request.qos, own[1], partition.qos),
    ):
        if value is None:
            continue
        if mine and not _among(value, mine):
            problems.refused(
                f"you may not use the {noun} {quoted(value)} on cluster {request.cluster!r}; you may use: {_listed(mine)}"
            )
        if accepted and not _among(value, accepted):
            problems.refused(
                f"partition {partition.name!r} does not accept the {noun} {quoted(value)}; it accepts: {_listed(accepted)}"
            )


def _among(value: str, names: Iterable[str]) -> bool:
    """Return whether `names` contain `value`, ignoring case as Slurm does, or "all"."""
    return bool({value.lower(), "all"} & {name.lower() for name in names})


# ---- sizes


def _node_limits(cluster: Cluster, p: Partition) -> NodeLimits:
    """Return the tightest known limits for the tasks of a run with roles."""
    limits = cluster.limits
    return NodeLimits(
        cores=p.cores_per_node,
        memory_mb=_least(limits.memory_mb, p.memory_mb_per_node),
        gpus=_least(limits.gpus, p.gpus_per_node),
        nodes=_least(limits.nodes, p.nodes, p.max_nodes),
    )


def _check_partition(request: BatchRequest, p: Partition, its: str, problems: _Problems) -> None:
    """Check the sizes against the partition. its: the name of the partition in sentences."""
    cores, tasks, nodes = request.cores or 1, tasks_of(request), nodes_of(request, p.cores_per_node)
    most = _least(p.nodes, p.max_nodes)
    if p.cores_per_node is not None and cores * (request.tasks_per_node or 1) > p.cores_per_node:
        per = (
            f" by each of {request.tasks_per_node} tasks of a node"
            if (request.tasks_per_node or 1) > 1
            else ""
        )
        problems.exceeded(
            f"`cores`: {cores} are requested{per}; a node of {its} has {p.cores_per_node}"
        )
    elif most is not None and nodes > most:
        why = "" if request.nodes is not None else f" ({tasks} tasks with {cores} cores each)"
        has = f"gives a run at most {most}" if most == p.max_nodes else f"has {most}"
        problems.exceeded(f"`nodes`: {nodes} are needed{why}; {its} {has}")
    elif p.cores_per_node is not None and tasks > (slots := nodes * (p.cores_per_node // cores)):
        problems.exceeded(
            f"`tasks`: {tasks} with {cores} cores each are requested; {nodes} nodes of {its} can run {slots}"
        )
    if p.min_nodes is not None and (request.nodes or p.min_nodes) < p.min_nodes:
        problems.refused(
            f"`nodes`: {request.nodes} are requested; {its} accepts no run with fewer than {p.min_nodes}"
        )
    for key, value, limit, unit in (
        ("memory", request.memory_mb, p.memory_mb_per_node, "MB"),
        ("gpus", request.gpus, p.gpus_per_node, "GPUs"),
    ):
        if value is not None and limit is not None and value > limit:
            problems.exceeded(
                f"`{key}`: {value} {unit} are requested on each node; a node of {its} has {limit}"
            )


def _check_limits(
    request: BatchRequest, tasks: int, cluster: Cluster, p: Partition, problems: _Problems
) -> None:
    """Check the sizes against the limits that the operator set for the cluster."""
    limits = cluster.limits
    for key, value, limit, predicate in (
        ("nodes", nodes_of(request, p.cores_per_node), limits.nodes, "are needed"),
        ("tasks", tasks, limits.tasks, "are requested"),
        (
            "cores",
            tasks_of(request) * (request.cores or 1),
            limits.cores,
            "are requested for all tasks together",
        ),
        ("memory", request.memory_mb, limits.memory_mb, "MB are requested on each node"),
        ("gpus", request.gpus, limits.gpus, "are requested on each node"),
    ):
        if value is not None and limit is not None and value > limit:
            problems.exceeded(
                f"`{key}`: {value} {predicate}; the limit of cluster {cluster.name!r} for a run is {limit}"
            )


def _time_limit(
    spec: RunSpec, cluster: Cluster, p: Partition, usual_secs: float | None, problems: _Problems
) -> float | None:
    """Return the run's own time limit, or the site's, lowered to the limit of the cluster."""
    most = _least(p.time_limit_secs, cluster.limits.time_limit_secs)
    if spec.time_limit_secs is None:
        usual = _least(usual_secs, cluster.limits.time_limit_secs)
        return None if usual is None else _least(usual, most)
    if most is not None and spec.time_limit_secs > most:
        whose = f"partition {p.name!r} of cluster" if most == p.time_limit_secs else "cluster"
        problems.exceeded(
            f"`timeLimit`: {spec.time_limit_secs:g} s are requested; {whose} {cluster.name!r} gives a run {most:g} s"
        )
    return spec.time_limit_secs


def _least(*values: _N | None) -> _N | None:
    """Return the smallest known value; None if none is known."""
    return min((v for v in values if v is not None), default=None)


def _listed(names: Iterable[str]) -> str:
    all_ = list(names)
    more = f" and {len(all_) - _SHOWN} more" if len(all_) > _SHOWN else ""
    return ", ".join(all_[:_SHOWN]) + more
