"""What a run would be: the plan, computed beside the loop. Nothing is stored."""

import asyncio
from typing import Any

import msgspec

from ...protocol.ids import compute_jid
from ...protocol.requests import RunPlan
from ..planning import plan
from .handler import Handler


async def run_plan(h: Handler) -> Any:
    request: RunPlan = h.parsed(RunPlan)
    spec = h.desk.checked(request.run)
    h.owner = spec.uid
    jid = compute_jid(spec.uid, spec.simulation_id, spec.compute_model)
    entry, policy = h.desk.engine.durable(jid), h.desk.engine.policy
    run = None if entry is None else entry.job.run
    serial = max(1 if run is None else run.serial + 1, int(h.desk.now().wall), policy.serial_floor)
    run_dir, nodes = h.desk.run_dir(spec), policy.nodes.get(spec.driver, ())
    return await asyncio.to_thread(lambda: msgspec.json.encode(plan(nodes, spec, run_dir, jid, serial)))
