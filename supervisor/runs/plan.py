"""The plan of a run: what it would be if it were started now and nothing else ran. Nothing is
stored or held; pure.

Where each task would be, its directory, command and environment, and by which rules the run would
end. Ports and hosts are examples: those of the run itself are chosen when it starts.
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
    """Raises Refusal("resourceExceeded") where `nodes` have no room for the run, even empty.
    places: of tasks that are on none of these.

    A task's command is its role's; its environment is `environment`, then its role's, then its own,
    the later winning. So the plan is not larger by a factor of the tasks, whatever their role says.
    """
    if spec.roles:
        return _of_roles(
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


def _of_roles(
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
    """Where the tasks would be on an empty site, by role and index."""
    if sentence := gang_allocator.too_much(nodes, roles, plan_):
        raise Refusal("resourceExceeded", sentence)
    room = NodePool(nodes=tuple(nodes))
    ticket = ("plan", 1)
    for _, places in gang_allocator.request(room, ticket, 1, roles, 0.0, plan_):
        return places
    lack = gang_allocator.wait_of(room, ticket)
    raise Refusal("resourceExceeded", lack.sentence if lack else "there is no room for its tasks")


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
    """All its words; None: an app makes them when it prepares the run."""
    return None if spec.data is not None else [*spec.wrap, *command]


def policies(spec: RunSpec) -> list[str]:
    """By which rules the run would start, end and be tried again: a sentence each."""
    out = [_waits(a) for a in spec.after]
    if spec.at_once is not None:
        out.append(
            f"Of the user's runs of this simulation, {spec.at_once} may run at the same time."
        )
    if spec.roles:
        out += [sentence for role in spec.roles for sentence in _completion(role)]
        out.append(
            "When all tasks have ended and no such condition was fulfilled, the attempt succeeds, also if some of them failed."
        )
    out += _retries(spec.retry)
    if spec.time_limit_secs is not None:
        out.append(_limit(spec, spec.time_limit_secs))
    if spec.queue_limit_secs is not None:
        out.append(
            f"The run is given up when it has not started {spec.queue_limit_secs:g} s after its submission."
        )
    if spec.debug_secs is not None:
        out.append(
            f"A task that fails by itself is kept for {spec.debug_secs:g} s, with all that it holds."
        )
    return out


def _limit(spec: RunSpec, secs: float) -> str:
    if isinstance(spec.batch, BatchRequest):
        return f"Slurm ends it {60 * math.ceil(secs / 60)} s after its start: it takes time limits in full minutes."
    return f"Each task is stopped {secs:g} s after its start, with {spec.grace_secs:g} s to end by itself."


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
        failure = f"The attempt fails when {_of(role.min_failed, n)} of role {name} failed."
    if role.min_succeeded is None:
        return [failure]
    return [
        failure,
        f"The attempt succeeds when {_of(role.min_succeeded, n)} of role {name} succeeded; what else runs is stopped.",
    ]


def _of(count: int, tasks: int) -> str:
    """`the only task`, `each of 3 tasks`, `1 of 3 tasks`."""
    if count == tasks:
        return "the only task" if tasks == 1 else f"each of {tasks} tasks"
    return f"{count} of {tasks} tasks"


def _retries(retry: Retry | None) -> list[str]:
    if retry is None:
        return ["Nothing is tried again."]
    return [
        f"After a failure of unknown kind, such as an ordinary exit code, it is tried again {_times(retry.count)}.",
        f"After what the platform did, or what could not be had in time, it is tried again {_times(retry.platform)}; "
        f"the latter after {retry.conflict_secs:g} s or more.",
        "After a failure that is permanent it is not tried again.",
    ]


def _times(count: int) -> str:
    match count:
        case -1:
            return "without end"
        case 0:
            return "never"
        case 1:
            return "once"
        case _:
            return f"{count} times at most"
