"""Arrays and groups: submit, count and cancel many runs of one simulation."""

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
    return await groups.submit_array(h.runs, request)


async def job_group(h: Handler) -> Any:
    return await groups.group(h.runs, h.parsed(JobGroup))


async def group_cancel(h: Handler) -> Any:
    request: GroupCancel = h.parsed(GroupCancel)
    h.log_request("groupCancel", request, f"{request.uid}-{request.simulation_id}")
    return await groups.cancel_group(h.runs, request)
