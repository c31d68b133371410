"""The key `batch` of a job description: its request to a cluster (partition, account, sizes,
modules, set-up, further options).
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec

from ...protocol.clusters.batch import (
    BatchRequest,
    ClusterName,
    Directive,
    Expression,
    Module,
    SlurmName,
)
from ..fields import Bounds, Findings, Table, bounds, fits, shown
from .batch_rules import (
    DIRECTIVE_FORM,
    SETUP_FORM,
    contradictions,
    directive_problem,
    setup_problem,
)

#: Keys of `batch`, each with names used by other systems.
BATCH: dict[str, Sequence[str]] = {
    "cluster": ("clusters", "host"),
    "partition": ("queue",),
    "account": ("project", "charge"),
    "qos": ("qualityOfService",),
    "constraint": ("features",),
    "licenses": ("licences",),
    "nodes": ("nodeCount", "sbatchNodes"),
    "tasks": ("ntasks", "ranks", "processes"),
    "tasksPerNode": ("ntasksPerNode", "ppn"),
    "cores": ("cpusPerTask", "cpus", "sbatchCores"),
    "memory": ("mem", "memoryMb"),
    "gpus": ("gpu", "gpusPerNode"),
    "modules": ("module",),
    "setup": ("prolog", "init"),
    "directives": ("options", "extra"),
    "signalSecs": ("signal",),
}
_NAMES: Mapping[str, tuple[Any, str]] = {
    "cluster": (ClusterName, "the name of a cluster: letters, digits and -"),
    "partition": (SlurmName, "the name of a partition, without blanks"),
    "account": (SlurmName, "the name of an account, without blanks"),
    "qos": (SlurmName, "the name of a QOS, without blanks"),
    "constraint": (Expression, "features as sbatch takes them, without blanks, such as 'cpu&amd'"),
    "licenses": (Expression, "licences as sbatch takes them, such as matlab:2"),
}
_NUMBERS = {
    "nodes": "nodes",
    "tasks": "tasks",
    "tasksPerNode": "tasks_per_node",
    "cores": "cores",
    "gpus": "gpus",
    "signalSecs": "signal_secs",
}


def batch(holder: Table) -> BatchRequest | msgspec.UnsetType:
    """Return the value of `batch`; UNSET without that key."""
    if not holder.has("batch"):
        return msgspec.UNSET
    t = holder.table("batch", BATCH, "the request to the cluster")
    values: dict[str, Any] = {key: t.text(key, *shape) for key, shape in _NAMES.items()}
    values |= {
        field: t.whole(key, bounds(BatchRequest, field), 0) if t.has(key) else None
        for key, field in _NUMBERS.items()
    }
    values["memory_mb"] = t.megabytes("memory", _memory(), 1) if t.has("memory") else None
    before = t.findings.count
    wishes = BatchRequest(
        **values,
        modules=_words(t, "modules", Module, "the name of a module, such as gcc/12.2"),
        setup=_setup(t),
        directives=_directives(t),
    )
    if t.findings.count == before:
        for sentence in contradictions(wishes):
            t.findings.error(t.where, sentence, "sizes that fit together")
    return wishes


def _memory() -> Bounds:
    return bounds(BatchRequest, "memory_mb")


def _words(t: Table, key: str, shape: Any, right: str) -> tuple[str, ...]:
    elements = t.elements(key, f"a list of texts, each {right}")
    most = _most(key)
    if len(elements) > most:
        t.error(key, f"at most {most}", f"there are {len(elements)}")
    out = []
    for value, path in elements[:most]:
        if isinstance(value, str) and fits(value, shape):
            out.append(value)
        else:
            t.findings.error(path, f"it is {shown(value)}", right)
    return tuple(out)


def _most(key: str) -> int:
    """Return the maximum number of elements, from the field's type."""
    hint = next(f.type for f in msgspec.structs.fields(BatchRequest) if f.name == key)
    return next(int(m.max_length) for m in get_args(hint)[1:] if m.max_length is not None)


def _directives(t: Table) -> tuple[str, ...]:
    out = _words(t, "directives", Directive, DIRECTIVE_FORM)
    for directive in out:
        if problem := directive_problem(directive):
            t.error("directives", DIRECTIVE_FORM, problem)
    return out


def _setup(t: Table) -> str:
    value = t.raw("setup")
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > 8192:
        t.error(
            "setup", SETUP_FORM, f"it has {len(value)} characters" if isinstance(value, str) else ""
        )
        return ""
    if problem := setup_problem(value):
        t.error("setup", SETUP_FORM, problem)
        return ""
    return value


def parse_batch_options(options: Mapping[str, object]) -> tuple[BatchRequest, Findings]:
    """Parse command line options, given by the keys above, as a `batch` without a job around it."""
    findings = Findings()
    request = batch(Table({"batch": dict(options)}, "", findings, {"batch": ()}, ""))
    return request if isinstance(request, BatchRequest) else BatchRequest(), findings
