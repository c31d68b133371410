"""The run of a Snakemake job: its ids, and its options from the job's resources. Pure, and without
Snakemake.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

#: Drivers whose runs request resources from a cluster.
_SBATCH = "sbatch"
#: Memory of a job that requests none; Snakemake itself takes about 100 MiB in each job.
MEMORY_MB = 500
_MINUTE = 60.0
_NAME_CHARS = 40
#: Resources of a job, and the fields of the request to a cluster that they set.
_BATCH = {
    "jobscribe_cluster": "cluster",
    "slurm_partition": "partition",
    "slurm_account": "account",
    "constraint": "constraint",
    "qos": "qos",
    "nodes": "nodes",
    "tasks": "tasks",
}
_OWN = frozenset({"driver", "image", "queue", "volumes", "cluster"})
_PREFIX = "jobscribe_"


def simulation_id(folder: str) -> str:
    """Return the group of all runs of a workflow. folder: its absolute `.snakemake`."""
    return hashlib.sha256(folder.encode()).hexdigest()[:8]


def compute_model(name: str, words: Iterable[str]) -> str:
    """Return the stable id of a job in its workflow.

    name: of its rule or group. words: what distinguishes the job, in any order.
    """
    digest = hashlib.sha256("\0".join(sorted(words)).encode()).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9]+", "_", name)[:_NAME_CHARS].strip("_")
    return f"j_{readable}_{digest}"


def run_options(
    resources: Mapping[str, Any], threads: int, driver: str | None, image: str | None
) -> dict[str, Any]:
    """Return options of `Client.spec`. driver, image: for jobs that name none.

    Raises ValueError for an unknown resource of jobscribe, or an invalid value.
    """
    unknown = [n for n in resources if n.startswith(_PREFIX) and n[len(_PREFIX) :] not in _OWN]
    if unknown:
        known = ", ".join(_PREFIX + name for name in sorted(_OWN))
        raise ValueError(f"there is no resource {unknown[0]}; those of jobscribe are: {known}")
    driver = _text(resources, "jobscribe_driver") or driver
    image = _text(resources, "jobscribe_image") or image
    minutes = _number(resources, "runtime")
    options = {
        "driver": driver,
        "queue": _text(resources, "jobscribe_queue"),
        "time_limit_secs": None if minutes is None else minutes * _MINUTE,
    }
    gpus, memory_mb = _number(resources, "gpu"), _number(resources, "mem_mb")
    if driver == _SBATCH and image is None:
        batch = {field: resources.get(name) for name, field in _BATCH.items()}
        batch |= {"cores": threads, "memory_mb": memory_mb, "gpus": gpus}
        return {**options, "batch": {k: v for k, v in batch.items() if v is not None}}
    task = {
        "cpu": max(1, threads),
        "memory_mb": MEMORY_MB if memory_mb is None else memory_mb,
        "gpu": gpus,
        "gpu_type": _text(resources, "gpu_model"),
        "image": image,
        "volumes": _words(_text(resources, "jobscribe_volumes")),
    }
    return {**options, "task": {k: v for k, v in task.items() if v is not None}}


def _number(resources: Mapping[str, Any], name: str) -> int | None:
    value = resources.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"the resource {name} is {value!r}; right: a number, 0 or more")
    return int(value)


def _text(resources: Mapping[str, Any], name: str) -> str | None:
    value = resources.get(name)
    return None if value in (None, "") else str(value)


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(filter(None, text.split(",")))
