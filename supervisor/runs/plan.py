"""The plan (dry run) of a run: hosts, directories, commands, environments and policies. Pure.

It assumes that the run starts now on an empty site, and reserves nothing. Ports and hosts are
examples; a run gets its own when it starts.
"""

import math
from collections.abc import Sequence
from typing import Any

from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import BatchRequest
from ...protocol.errors import Refusal
from ...protocol.ids import Token
from ...protocol.jobs.roles import After, Retry, TaskPlace, TaskRole
from ...protocol.launch import task_environment
from ..core.resources import gang_allocator
from ..core.resources.gang_allocator import Node, NodePool
from ..core.scheduling.dispatch import task_dir

#: The role of the one task of a plain run.
_MAIN = "main"
_ENDS = {"ok": "has completed", "any": "has ended", "failed": "has ended without success"}


def plan(
    nodes: Sequence[Node],
    spec: RunSpec,
    run_dir: str,
    jid: str,
    serial: int,
    places: Sequence[TaskPlace] | None = None,
) -> dict[str, Any]:
    """Return the plan of a run. places: placements of tasks on a cluster, which has no `nodes`
    here.

    A task has the command of its role. Its environment combines the variables of run, role and
    task; later ones take precedence. Each part is listed once, to keep the plan small. Raises
    Refusal("resourceExceeded") if `nodes` are too small for the run, even if they are empty.
    """
    if spec.roles:
        return _plan_roles(
            spec,
            _places(nodes, spec.roles, spec.active_plan) if places is None else places,
            run_dir,
            jid,
            serial,
        )
    role = {"name": _MAIN, "tasks": 1, "command": _command(spec, spec.command), "environment": {}}
    task = {
        "role": _MAIN,
        "index": 0,
        "token": str(Token(jid, serial, 1, _MAIN, 0)),
        "directory": run_dir,
        "environment": {},
    }
    return _head(spec, jid, serial) | {
        "environment": spec.env,
        "jobJson": None,
        "roles": [role],
        "tasks": [task],
    }


def _plan_roles(
    spec: RunSpec, places: Sequence[TaskPlace], run_dir: str, jid: str, serial: int
) -> dict[str, Any]:
    shared = task_environment.shared(spec, jid, serial, 1, places)
    return _head(spec, jid, serial) | {
        "environment": shared.env | spec.env,
        "jobJson": shared.job,
        "roles": [_role(spec, role) for role in spec.roles],
        "tasks": [_task(spec, run_dir, jid, serial, place) for place in places],
    }


def _places(
    nodes: Sequence[Node], roles: Sequence[TaskRole], plan_: str | None
) -> tuple[TaskPlace, ...]:
    """Return the places of the tasks on an empty site, by role and index."""
    if sentence := gang_allocator.too_much(nodes, roles, plan_):
        raise Refusal("resourceExceeded", sentence)
    pool = NodePool(nodes=tuple(nodes))
    ticket = ("plan", 1)
    for _, places in gang_allocator.request(pool, ticket, 1, roles, 0.0, plan_):
        return places
    lack = gang_allocator.wait_of(pool, ticket)
    raise Refusal("resourceExceeded", lack.sentence if lack else "the hosts cannot fit its tasks")


def _head(spec: RunSpec, jid: str, serial: int) -> dict[str, Any]:
    return {
        "state": "ok",
        "computeJid": jid,
        "computeJobSerial": serial,
        "attempt": 1,
        "driver": spec.driver,
        "simulationType": spec.simulation_type,
        "policies": policies(spec),
    }


def _role(spec: RunSpec, role: TaskRole) -> dict[str, Any]:
    return {
        "name": role.name,
        "tasks": role.tasks,
        "command": _command(spec, role.command),
        "environment": role.env,
        "cpu": role.cpu,
        "memoryMb": role.memory_mb,
        "shmMb": role.shm_mb,
        "gpu": role.gpu,
        "ports": role.all_ports(),
        "image": role.image,
        "volumes": role.volumes,
        "minFailed": role.min_failed,
        "minSucceeded": role.min_succeeded,
    }


def _task(spec: RunSpec, run_dir: str, jid: str, serial: int, place: TaskPlace) -> dict[str, Any]:
    directory = task_dir(run_dir, place.role, place.index)
    own = task_environment.own(spec, jid, serial, 1, place) | {"PAI_WORK_DIR": directory}
    return {
        "role": place.role,
        "index": place.index,
        "token": str(Token(jid, serial, 1, place.role, place.index)),
        "host": place.host,
        "address": place.address,
        "ports": place.ports,
        "gpus": place.gpus,
        "directory": directory,
        "environment": own,
    }


def _command(spec: RunSpec, command: Sequence[str]) -> list[str] | None:
    """Return the command with its wrapper; None for an app, which makes it when it prepares the run."""
    return None if spec.data is not None else [*spec.wrap, *command]


def policies(spec: RunSpec) -> list[str]:
    """Return the rules by which the run starts, ends and is retried, one sentence each."""
    out = [_waits(a) for a in spec.after]
    if spec.at_once is not None:
        out.append(
            f"At most {spec.at_once} of the user's runs of this simulation run at the same time."
        )
    if spec.roles:
        out += [sentence for role in spec.roles for sentence in _completion(role)]
        out.append(
            "If all tasks have ended and none of these conditions was met, the attempt succeeds, even if some tasks failed."
        )
    out += _retries(spec.retry)
    if spec.time_limit_secs is not None:
        out.append(_limit(spec, spec.time_limit_secs))
    if spec.queue_limit_secs is not None:
        out.append(
            f"The run is canceled if it has not started {spec.queue_limit_secs:g} s after its submission."
        )
    if spec.ssh:
        out.append("Tasks in images with sshd reach each other by `ssh ROLE-INDEX`.")
    if spec.debug_secs is not None:
        out.append(
            f"A task that fails by itself is held for debugging for {spec.debug_secs:g} s, with all its resources."
        )
    return out


def _limit(spec: RunSpec, secs: float) -> str:
    if isinstance(spec.batch, BatchRequest):
        return f"Slurm ends it {60 * math.ceil(secs / 60)} s after its start; Slurm rounds time limits up to full minutes."
    return f"Each task is stopped {secs:g} s after its start, with a grace time of {spec.grace_secs:g} s."


def _waits(after: After) -> str:
    run = (
        f"run {after.compute_job_serial} of {after.compute_jid}"
        if after.compute_job_serial
        else f"the run of {after.compute_jid}"
    )
    return f"It starts after {run} {_ENDS[after.on]}."


def _completion(role: TaskRole) -> list[str]:
    name, n = role.name, role.tasks
    if role.min_failed is None:
        failure = f"Failed tasks of role {name} do not fail the attempt."
    else:
        failure = f"The attempt fails if {_count(role.min_failed, n)} of role {name} failed."
    if role.min_succeeded is None:
        return [failure]
    return [
        failure,
        f"The attempt succeeds if {_count(role.min_succeeded, n)} of role {name} succeeded; then the other tasks are stopped.",
    ]


def _count(count: int, tasks: int) -> str:
    """Return `the only task`, `each of 3 tasks` or `1 of 3 tasks`."""
    if count == tasks:
        return "the only task" if tasks == 1 else f"each of {tasks} tasks"
    return f"{count} of {tasks} tasks"


def _retries(retry: Retry | None) -> list[str]:
    if retry is None:
        return ["There are no retries."]
    return [
        f"After a failure of unknown kind, such as an ordinary exit code, {_retried(retry.count)}.",
        f"After a failure of the platform or a resource conflict, {_retried(retry.platform)}; "
        f"after a conflict, the pause is at least {retry.conflict_secs:g} s.",
        "After a permanent failure, the run is not retried.",
    ]


def _retried(count: int) -> str:
    match count:
        case -1:
            return "the run is retried without limit"
        case 0:
            return "the run is not retried"
        case 1:
            return "the run is retried once"
        case _:
            return f"the run is retried at most {count} times"
