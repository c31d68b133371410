"""Arrays and groups: many runs of one simulation asked for, told about, canceled."""

from typing import Any

from ....protocol.api.requests import GroupCancel, JobGroup, RunArray
from ...runs import groups
from ..transport.request_handler import Handler


async def run_array(h: Handler) -> Any:
    request: RunArray = h.parsed(RunArray)
    h.log_request(
        "runArray",
        request,
        f"{request.run.uid}-{request.run.simulation_id}-{request.run.compute_model}",
    )
    return await groups.submit_array(h.desk, request)


async def job_group(h: Handler) -> Any:
    return await groups.group(h.desk, h.parsed(JobGroup))


async def group_cancel(h: Handler) -> Any:
    request: GroupCancel = h.parsed(GroupCancel)
    h.log_request("groupCancel", request, f"{request.uid}-{request.simulation_id}")
    return await groups.cancel_group(h.desk, request)
