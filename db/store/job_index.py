"""What lists show of a job: the one projection behind the table `jobs`. Pure."""

from ...protocol.ids import split_jid
from ..events.state import Job
from .contract import IndexRow


def index_row(job: Job) -> IndexRow:
    """The row for a job as it stands; its position is set by the store."""
    run = job.run
    if run is None:
        # a stream that does not begin with a request: not written by the core, but checked and
        # rebuilt like any other
        return IndexRow(
            jid=job.jid,
            uid=split_jid(job.jid)[0],
            status=job.status,
            serial=0,
            simulation_type="",
            kind="",
            driver="",
            busy=job.busy,
            queued_at=0.0,
            started_at=None,
            ended_at=None,
            reason=None,
        )
    return IndexRow(
        jid=job.jid,
        uid=run.spec.uid,
        status=run.status,
        serial=run.serial,
        simulation_type=run.spec.simulation_type,
        kind=run.spec.job_run_mode,
        driver=run.spec.driver,
        busy=job.busy,
        queued_at=run.queued_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        reason=run.reason,
    )
