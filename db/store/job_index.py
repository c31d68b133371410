"""The projection of a job to its row in the table `jobs`, and conditions on such rows. Pure."""

from ...protocol.ids import split_jid
from ..events.state import Job
from .contract import IndexRow, RowFilter


def index_row(job: Job) -> IndexRow:
    """Return the index row of a job. The store sets its position."""
    run = job.run
    if run is None:
        # a stream without a request: the core does not write it, but check and rebuild handle it
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


def fits(row: IndexRow, wanted: RowFilter) -> bool:
    """Return whether a row meets the conditions, except `words` and `queues`, which are not in a row."""
    return (
        wanted.uid in (None, row.uid)
        and (not wanted.users or row.uid in wanted.users)
        and (not wanted.statuses or row.status in wanted.statuses)
        and (not wanted.drivers or row.driver in wanted.drivers)
        and (not wanted.types or row.simulation_type in wanted.types)
        and (not wanted.reasons or row.reason in wanted.reasons)
        and (wanted.since is None or row.queued_at >= wanted.since)
        and (wanted.until is None or row.queued_at < wanted.until)
    )
