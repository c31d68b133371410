"""Small routes: lists of jobs, ports of simulations, apps, tickets, counters and the health of the
supervisor.
"""

import time
from typing import Any

import msgspec

from ...client.api.requests import page_of
from ...protocol.api import cursors, requests
from ...protocol.errors import Refusal
from ...protocol.ids import split_jid
from ...service import tickets
from ..request import schemas
from ..request.context import RequestContext


def own_jobs(v: RequestContext) -> schemas.JobsReply:
    return _jobs(v, v.uid)


def adm_jobs(v: RequestContext) -> schemas.JobsReply:
    """List the jobs of all users, for administrators by the site's hook."""
    _administrator(v)
    return _jobs(v, None)


def adm_counters(v: RequestContext) -> dict[str, Any]:
    _administrator(v)
    return {"state": "ok", "counters": v.site.counts.all()}


def _administrator(v: RequestContext) -> None:
    if v.site.admin is None or not v.site.admin(v.uid):
        raise Refusal("forbidden", "this is only for administrators")


def _jobs(v: RequestContext, uid: str | None) -> schemas.JobsReply:
    body = v.body(schemas.Jobs)
    request = requests.JobList(
        uid=uid, active=body.active, before=body.before, limit=body.limit, cursor=body.cursor
    )
    page = page_of(v.upstream.post("job-list", request))
    cursor = page.cursor if page.cursor is not msgspec.UNSET else cursors.text(page.next)
    return schemas.JobsReply(jobs=[_row(r) for r in page.jobs], next=page.next, cursor=cursor)


def _row(row: dict[str, Any]) -> schemas.JobRow:
    uid, sid, model = split_jid(row["jid"])
    return schemas.JobRow(
        compute_jid=row["jid"],
        uid=uid,
        simulation_id=sid,
        simulation_type=row["simulationType"],
        compute_model=model,
        state=row["status"],
        compute_job_serial=row["serial"],
        compute_job_queued=row["queuedAt"],
        compute_job_start=row["startedAt"],
        compute_job_end=row["endedAt"],
        reason=row["reason"],
        compute_job_position=row.get("position"),
    )


def job_supervisor_ping(v: RequestContext) -> schemas.PingReply:
    """Return whether simulations are possible now; also for visitors."""
    body = v.body(schemas.Ping)
    v.upstream.ping()
    return schemas.PingReply(ping=body.ping)


def global_resources(v: RequestContext) -> bytes:
    body = v.body(schemas.Resources)
    v.authorize(body.simulation_type)
    v.site.simulations.app(body.simulation_type)
    return v.upstream.post(
        "global-resources",
        requests.GlobalResources(
            uid=v.uid,
            simulation_type=body.simulation_type,
            simulation_id=body.simulation_id,
            ports=body.ports,
            release=body.release,
        ),
    )


def live_ticket(v: RequestContext) -> schemas.TicketReply:
    """Return a short-lived ticket for this user's event stream. The secret is read again, because a
    ticket signed with an old one is invalid.
    """
    v.body(schemas.Body)
    now = time.time()
    admin = v.site.admin is not None and v.site.admin(v.uid)
    ticket = tickets.sign(v.upstream.address().token, v.uid, now, admin=admin)
    return schemas.TicketReply(ticket=ticket, header=tickets.HEADER, until=now + tickets.LIFE_SECS)


def apps(v: RequestContext) -> dict[str, Any]:
    """Return the apps that this user may use."""
    found = []
    for app in v.site.simulations.descriptions():
        try:
            v.authorize(app["name"])
        except Refusal:
            continue
        found.append(app)
    return {"apps": msgspec.to_builtins(found)}
