"""The plan (dry run) of a run, computed in a thread. Nothing is stored."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from .....protocol.api.requests import RunPlan, RunSpec
from .....protocol.errors import Refusal
from .....protocol.ids import compute_jid
from .....protocol.jobs.roles import TaskPlace
from ....core.state import cluster_assignment
from ....core.state.configuration import CoreConfig
from ....runs.plan import plan
from ....runs.service import RunService
from ...transport.request_handler import Handler


async def run_plan(h: Handler) -> Any:
    request: RunPlan = h.parsed(RunPlan)
    spec = h.runs.checked(request.run)
    h.owner = spec.uid
    planned = planner(h.runs, spec)
    return await asyncio.to_thread(lambda: msgspec.json.encode(planned()))


def planner(runs: RunService, spec: RunSpec) -> Callable[[], dict[str, Any]]:
    """Return a function that computes the plan of a checked run, in any thread. It and this raise
    Refusal.
    """
    jid = compute_jid(spec.uid, spec.simulation_id, spec.compute_model)
    entry, policy = runs.engine.durable(jid), runs.engine.policy
    run = None if entry is None else entry.job.run
    serial = max(1 if run is None else run.serial + 1, int(runs.now().wall), policy.serial_floor)
    run_dir, nodes = runs.run_dir(spec), policy.nodes.get(spec.driver, ())
    places = (
        _on_a_cluster(policy, spec, f"{jid}/{serial}/1")
        if spec.roles and spec.driver in policy.batch
        else None
    )
    return lambda: plan(nodes, spec, run_dir, jid, serial, places)


def _on_a_cluster(policy: CoreConfig, spec: RunSpec, seed: str) -> tuple[TaskPlace, ...]:
    """Return places with placeholder addresses, because Slurm chooses the nodes later.

    Raises Refusal (batchRefused, resourceExceeded).
    """
    host = cluster_assignment.cluster(policy, spec)
    if host is None:
        raise Refusal("batchRefused", cluster_assignment.unknown_cluster_error(policy, spec))
    if sentence := cluster_assignment.too_large(spec):
        raise Refusal("resourceExceeded", sentence)
    return cluster_assignment.places(policy, spec, host, seed)
