"""The form of a run on this machine: without what only containers and clusters have. Pure."""

import msgspec

from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import BatchRequest
from ...protocol.jobs.roles import TaskRole

LOCAL = "local"
#: Fields that request nothing if they are 1.
_ONE = frozenset({"nodes", "tasks", "tasks_per_node"})


def localized(spec: RunSpec, gpus: int) -> tuple[RunSpec, list[str]]:
    """Return the run for the driver `local`, and a sentence for each request that is not honoured.

    gpus: number of GPUs of this machine.
    """
    lost = _batch(spec.batch) if isinstance(spec.batch, BatchRequest) else []
    roles = []
    for role in spec.roles:
        changed, missing = _role(role, gpus)
        roles.append(changed)
        lost += missing
    if isinstance(spec.registry_login, str):
        lost.append("the credentials for registries are not used: no image is pulled")
    changes = {
        "driver": LOCAL,
        "roles": tuple(roles),
        "batch": msgspec.UNSET,
        "queue": msgspec.UNSET,
        "registry_login": msgspec.UNSET,
    }
    return msgspec.structs.replace(spec, **changes), lost


def _batch(batch: BatchRequest) -> list[str]:
    """Return a sentence for each field that is set."""
    lost = []
    for field in msgspec.structs.fields(BatchRequest):
        value = getattr(batch, field.name)
        if value in (None, (), "", msgspec.UNSET) or (field.name in _ONE and value == 1):
            continue
        shown = f" ({value})" if isinstance(value, str | int) else ""
        lost.append(
            f"`{field.encode_name}`{shown} of the request to the cluster {_why(field.name)}"
        )
    return lost


def _why(name: str) -> str:
    match name:
        case "nodes":
            return "is not honoured: the job has one node, this machine"
        case "tasks" | "tasks_per_node":
            return "is not honoured: the command runs once, as on the first node"
        case "setup" | "modules":
            return "is not used: prepare this environment by hand"
        case _:
            return "has no effect here: there is no cluster"


def _role(role: TaskRole, gpus: int) -> tuple[TaskRole, list[str]]:
    defaults = TaskRole(name="x", command=("x",))
    lost, where = [], f"role {role.name}: "
    if role.image is not None:
        lost.append(f"{where}the image {role.image} is not used: the command runs on this machine")
    if role.volumes:
        lost.append(f"{where}the volumes {', '.join(role.volumes)} are not mounted")
    if role.shm_mb != defaults.shm_mb:
        lost.append(f"{where}shared memory ({role.shm_mb} MB) is not limited")
    changes: dict[str, object] = {"image": None, "volumes": (), "gpu_type": msgspec.UNSET}
    if isinstance(role.gpu_type, str):
        lost.append(f"{where}the type of GPUs ({role.gpu_type}) is not looked at")
    if role.gpu * role.tasks > gpus:
        lost.append(f"{where}it gets no GPU: this machine has {gpus} for {role.tasks} tasks")
        changes["gpu"] = 0
    return msgspec.structs.replace(role, **changes), lost
