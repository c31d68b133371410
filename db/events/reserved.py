"""The resources that a run reserves: for accounting, and for limits over all runs of a user. Pure."""

from typing import NamedTuple, Protocol

from ...protocol.clusters.batch import BatchRequest
from ...protocol.jobs.roles import TaskRole


class Reserved(NamedTuple):
    """The resources of an execution or of a run. mib: None if no memory is reserved."""

    cores: int = 1
    gpus: int = 0
    mib: int | None = None


class _Request(Protocol):
    """A run's request: `RunSpec` or `PastRun`."""

    @property
    def roles(self) -> tuple[TaskRole, ...]: ...

    @property
    def batch(self) -> object: ...


def by_task(request: _Request, role: str, gpus: int = 0) -> Reserved:
    """Return what one task reserves. gpus: of a task of a plain run."""
    found = next((r for r in request.roles if r.name == role), None)
    if found is not None:
        return Reserved(found.cpu, found.gpu, found.memory_mb)
    batch = request.batch
    if not isinstance(batch, BatchRequest):
        return Reserved(gpus=gpus)
    nodes = batch.nodes or 1
    ranks = batch.tasks or nodes * (batch.tasks_per_node or 1)
    return Reserved(
        ranks * (batch.cores or 1),
        nodes * (batch.gpus or 0),
        None if batch.memory_mb is None else nodes * batch.memory_mb,
    )


def by_run(request: _Request) -> Reserved:
    """Return what all tasks of a run reserve together."""
    if not request.roles:
        return by_task(request, "main")
    return Reserved(
        sum(r.tasks * r.cpu for r in request.roles),
        sum(r.tasks * r.gpu for r in request.roles),
        sum(r.tasks * r.memory_mb for r in request.roles),
    )
