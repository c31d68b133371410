"""Resource usage of jobs, and reports of accounted usage."""

from functools import cache
from typing import Any

from ....protocol.api.requests import DiskReport, JobMetrics, UsageReport
from ....protocol.errors import Refusal
from ....protocol.ids import Token
from ....service.site.users_file import Users
from ...files.disk_usage import reports
from ...runs.groups import gently
from ...usage import accounting
from ..transport.request_handler import Handler

#: Later than any usage.
_END = 2**53


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

    return h.services.metering.metrics_of(job, series, request.attempt)


async def usage(h: Handler) -> Any:
    request: UsageReport = h.parsed(UsageReport)
    since = 0 if request.since is None else accounting.span_of(request.since)[0]
    until = _END if request.until is None else accounting.span_of(request.until)[1]
    rows = h.runs.engine.store.usage(since, until, request.uid)
    principal, users = h.principal, h.services.access.users
    admin = principal.uid if principal.role == "groupAdmin" else None
    report = accounting.Report(request.by, cache(lambda uid: _groups(users, uid, admin)))
    async for row in gently(rows):
        if request.uid is not None or principal.may_act_for(row.uid):
            report.add(row)
    return {"state": "ok", **report.answer()}


async def disk_usage(h: Handler) -> Any:
    """Return the disk usage of users, the largest first. A report of many users is cut off: the
    total has them all.
    """
    request: DiskReport = h.parsed(DiskReport)
    disk, principal = h.services.disk, h.principal
    if disk is None:
        raise Refusal("notFound", "this supervisor does not measure the disk usage of users")
    uids = [request.uid] if request.uid is not None else []
    if request.uid is None:
        uids = [uid async for uid in gently(list(disk.users)) if principal.may_act_for(uid)]
    rows = reports(disk, uids)
    return {
        "state": "ok",
        "users": rows[: accounting.MAX_ROWS],
        "total": {
            "users": len(rows),
            **{name: sum(row[name] for row in rows) for name in ("usedBytes", "files")},
        },
    }


def _groups(users: Users, uid: str, admin: str | None) -> tuple[str, ...]:
    """Return the groups of a user. admin: a group admin, who sees other users' own groups only."""
    return users.groups_of(uid, None if uid == admin else admin)
