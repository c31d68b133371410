"""Purge of one run at the request of its user: its run directory and the evidence of its executions go.
The core decides (`core/runs/retention.py`), and `files/run_dir_reaper.py` removes the files.
"""

import asyncio
from typing import Any

from ....protocol.api.requests import RunPurge
from ....protocol.errors import Refusal
from ....protocol.jobs.status import PURGED
from ...core.interface.inputs import Purge
from ...runs.service import RunService

#: Time that a request waits for the decision, in seconds.
PURGE_SECS = 10.0


async def purge(runs: RunService, request: RunPurge) -> dict[str, Any]:
    """Purge a run that is over. Return the status, which names another run if there is no such run
    any more. Raises Refusal, and nothing changes then.
    """
    entry, serial = runs.job(request.uid, request.compute_jid), request.compute_job_serial
    run = entry.job.run
    if run is None or serial not in (0, run.serial):
        return runs.describe(entry, serial=serial)
    if run.busy:
        raise Refusal(
            "conflict",
            f"{request.compute_jid} is active: cancel it, or wait for its end, then purge it",
        )
    if run.spec.driver in runs.engine.policy.batch:
        raise Refusal(
            "badRequest",
            f"the files of {request.compute_jid} are on its cluster; remove them there",
        )
    if run.spec.active_plan in runs.engine.policy.kept_plans:
        raise Refusal(
            "forbidden", "runs with the plan of this job are never removed (purge.kept_plans)"
        )
    await purged(runs, request.compute_jid, run.serial)
    return runs.describe(runs.job(request.uid, request.compute_jid), serial=serial)


async def purged(runs: RunService, jid: str, serial: int) -> None:
    """Return when this run is purged, or is no longer the run of its job. Raises Refusal
    ("conflict") after PURGE_SECS, as when another request started the job again.
    """
    with runs.watching(jid) as changed:
        try:
            async with asyncio.timeout(PURGE_SECS):
                while _is_there(runs, jid, serial):
                    changed.clear()
                    runs.engine.tell(Purge(jid, serial, float("inf")))
                    await changed.wait()
        except TimeoutError:
            raise Refusal("conflict", f"{jid} was not purged; it may be active again") from None


def _is_there(runs: RunService, jid: str, serial: int) -> bool:
    entry = runs.engine.durable(jid)
    run = None if entry is None else entry.job.run
    return run is not None and run.serial == serial and run.status != PURGED
