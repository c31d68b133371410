"""Resource usage of jobs."""

from typing import Any

from ....protocol.api.requests import JobMetrics
from ....protocol.errors import Refusal
from ....protocol.ids import Token
from ..transport.request_handler import Handler


async def job_metrics(h: Handler) -> Any:
    request: JobMetrics = h.parsed(JobMetrics)
    h.owner = request.uid
    job = h.runs.job(request.uid, request.compute_jid).job
    if job.run is not None and request.compute_job_serial not in (0, job.run.serial):
        raise Refusal(
            "staleSerial", f"run {request.compute_job_serial} of {job.jid} is not the current one"
        )

    def series(token: Token) -> bool:
        return (
            request.series
            and request.role in (None, token.role)
            and request.index in (None, token.index)
        )

    return h.services.metering.metrics_of(job, series)
