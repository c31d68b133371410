"""Runs with a batch scheduler: the cluster of each run, its batch request, and the placement of a
gang's tasks.

Pure functions on plain data. No bin packing here: the scheduler chooses the nodes. Until then, the
address of a task is a placeholder (`@worker-0@`), which the batch script replaces.
"""

import zlib
from collections.abc import Iterator
from itertools import count, islice

import msgspec

from ....db.events.state import Run
from ....protocol.api.requests import RunSpec
from ....protocol.clusters.batch import BatchRequest
from ....protocol.ids import AgentKind
from ....protocol.jobs.roles import TaskPlace, TaskRole
from ....protocol.jobs.status import PENDING
from ....protocol.launch import task_environment
from ....protocol.wire.codec import MAX_KEYS, MAX_MESSAGE
from .configuration import CoreConfig

#: The agent kind of all placements of these drivers.
KIND = AgentKind.PARALLEL
#: Names per task in the launch message besides those of its run, role and ports, and characters per
#: task. Generous upper bounds.
_NAMES, _CHARS, _ENVELOPE = 60, 8_000, 100


def named_cluster(spec: RunSpec) -> str | None:
    """Return the cluster that the run names."""
    return spec.batch.cluster if isinstance(spec.batch, BatchRequest) else None


def cluster(policy: CoreConfig, spec: RunSpec) -> str | None:
    """Return the run's cluster: the named one, or the first if it names none. None if there is no
    such cluster (any more).
    """
    wanted, places = named_cluster(spec), policy.hosts(spec.driver)
    if wanted is None:
        return places[0].host
    return wanted if any(p.host == wanted for p in places) else None


def unknown_cluster_error(policy: CoreConfig, spec: RunSpec) -> str:
    """Return the error sentence for an unknown cluster."""
    return f"there is no cluster {named_cluster(spec)} here (there are: {', '.join(p.host for p in policy.hosts(spec.driver))})"


def batch_request(spec: RunSpec, host: str) -> BatchRequest:
    """Return the batch request for this cluster."""
    requested = spec.batch if isinstance(spec.batch, BatchRequest) else BatchRequest()
    return msgspec.structs.replace(requested, cluster=host)


def too_large(spec: RunSpec) -> str | None:
    """Return why this gang does not fit into one launch message (one batch job), or None if it
    does.
    """
    names, chars = task_environment.max_variables(spec.roles), 0
    for role in spec.roles:
        env = len(spec.env) + len(role.env) + len(role.all_ports())
        names += role.tasks * (_NAMES + env)
        values = sum(len(k) + len(v) for e in (spec.env, role.env) for k, v in e.items())
        chars += role.tasks * (_CHARS + sum(map(len, role.command)) + values)
    if names <= MAX_KEYS - _ENVELOPE and chars <= MAX_MESSAGE // 2:
        return None
    return (
        f"its {sum(role.tasks for role in spec.roles)} tasks, with their commands and variables, are more than can be started as one"
        " batch job: ask for fewer, or have srun start them (`tasks` of the section for the cluster)"
    )


def in_scheduler_queue(policy: CoreConfig, run: Run) -> bool:
    """Return whether the run was submitted to its scheduler for the first time and has not begun."""
    if (
        run.spec.driver not in policy.batch
        or run.status != PENDING
        or len(run.attempts) != 1
        or run.started_at is not None
    ):
        return False
    return run.attempts[0].ended_at is None


def queue_limit_continues(policy: CoreConfig, run: Run) -> bool:
    """Return whether the run's own queue limit still counts in the scheduler's queue. The site's
    default limit does not.
    """
    return (
        run.spec.driver in policy.batch
        and run.spec.queue_limit_secs is not None
        and run.attempt <= 1
    )


def places(policy: CoreConfig, spec: RunSpec, host: str, seed: str) -> tuple[TaskPlace, ...]:
    """Return the placements of a gang. Ports are unique within the gang as far as the range allows.
    `seed` shifts the first port, because another gang may share the nodes.
    """
    first, last = policy.batch_ports
    fixed = {
        p.begin + n
        for role in spec.roles
        for p in role.all_ports()
        if p.begin
        for n in range(p.count)
    }
    free = [n for n in range(first, last + 1) if n not in fixed] or list(range(first, last + 1))
    start = zlib.crc32(seed.encode())
    return tuple(_places(spec.roles, host, (free[(start + k) % len(free)] for k in count())))


def _places(roles: tuple[TaskRole, ...], host: str, numbers: Iterator[int]) -> Iterator[TaskPlace]:
    for role in roles:
        for index in range(role.tasks):
            ports = {
                p.label: tuple(
                    range(p.begin, p.begin + p.count)
                    if p.begin
                    else sorted(islice(numbers, p.count))
                )
                for p in role.all_ports()
            }
            yield TaskPlace(
                role=role.name,
                index=index,
                host=host,
                address=f"@{role.name}-{index}@",
                ports=ports,
            )
