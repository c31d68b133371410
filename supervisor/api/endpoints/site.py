"""The queues for their users, and the site for its administrators: load, drains, users, API tokens, and
the effective configuration. Metrics and health are also for monitoring systems, which have their own
token.
"""

import asyncio
import itertools
from typing import Any

from ....db.events.state import Job
from ....protocol.api.requests import QueueReport
from ....protocol.api.site_requests import DrainChange, Handover, TokenFilter
from ....protocol.ids import DEFAULT_QUEUE
from ....protocol.jobs.status import PENDING
from ...core.status import queue_report
from ...core.status.queue_report import ActiveRuns
from ...metrics.exporter import CONTENT_TYPE
from ...process import handover as handovers
from ...runs import site_drains
from ..transport.request_handler import Handler
from . import site_acts
from .access import token_row

#: Rows of one answer.
MOST_ROWS = 1_000
#: Jobs that one iteration of the event loop counts, and runs whose wait it explains.
_COUNTED, _EXPLAINED = 1_000, 10


async def queues(h: Handler) -> Any:
    request: QueueReport = h.parsed(QueueReport)
    uid = request.uid
    found = ActiveRuns(about=None if uid is None else frozenset((uid,)))
    jobs = list(h.runs.engine.world.jobs.values())
    for begin in range(0, len(jobs), _COUNTED):
        found.add(h.runs.engine.world, jobs[begin : begin + _COUNTED])
        await asyncio.sleep(0)
    found.waiting.sort()
    waits = await _waits(h, found, request.limit)
    world = h.runs.engine.world
    accounts = queue_report.account_rows(world, found, uid, h.runs.now())[: request.limit]
    uids = {row["uid"] for row in (*accounts, *waits)}
    return {
        "state": "ok",
        "all": uid is None,
        "queues": queue_report.queue_rows(world, found, uid),
        "accounts": accounts,
        "slots": queue_report.slot_rows(world, h.runs.drivers),
        "limits": [] if uid is None else queue_report.limit_rows(world, found, uid, h.runs.now()),
        "waits": waits,
        "waiting": len(found.waiting),
        "names": {u: name for u in uids if (name := h.runs.name_of(u)) is not None},
        "halfLifeSecs": world.policy.queues.half_life,
    }


async def _waits(h: Handler, found: ActiveRuns, limit: int) -> list[dict[str, Any]]:
    """Return the first waiting runs with the sentences of their statuses."""
    rows: list[dict[str, Any]] = []
    for n, (_, _, jid) in enumerate(itertools.islice(found.waiting, limit), 1):
        entry = h.runs.engine.durable(jid)
        if entry is not None and entry.job.status == PENDING:
            rows.append(_wait(h.runs.describe(entry), entry.job))
        if n % _EXPLAINED == 0:
            await asyncio.sleep(0)
    return rows


def _wait(status: dict[str, Any], job: Job) -> dict[str, Any]:
    assert job.run is not None
    spec = job.run.spec
    return {
        "computeJid": job.jid,
        "uid": spec.uid,
        "title": queue_report.title_of(job),
        "queue": spec.queue or DEFAULT_QUEUE,
        "driver": spec.driver,
        "queuedAt": job.run.queued_at,
        "queueState": status["queueState"],
        "sentence": status["jobStatusMessage"],
    }


async def load(h: Handler) -> Any:
    """Return what the supervisor does now. Counters start with its process: two answers give rates."""
    monitoring, engine, now = h.services.monitoring, h.runs.engine, h.runs.now()
    sample = monitoring.sampler.newest
    measured = h.runs.counters.measured()
    agents = engine.world.agents.values()
    return {
        "state": "ok",
        "at": now.wall,
        "mono": now.mono,
        "events": engine.store.head(),
        "submitted": monitoring.instruments.total("submitted"),
        "finished": monitoring.instruments.total("finished"),
        "active": engine.world.active_runs.total(),
        "queued": sum(len(a.queued) + len(a.ahead) for a in agents)
        + len(engine.world.host_assignment.unassigned),
        "tasks": sum(len(a.placed) for a in agents),
        "agents": len(h.runs.outputs.hub.connections),
        "storeBytes": sample.store_bytes,
        "disks": [
            {"area": area, "freeBytes": disk.free, "sizeBytes": disk.size}
            for area, disk in sample.disks.items()
        ],
        "loop": measured.get("loop"),
        "process": measured.get("process"),
        "live": measured.get("live"),
    }


async def drain(h: Handler) -> Any:
    """Begin or end a drain, when it is durable and on record."""
    request, drains = h.parsed(DrainChange), h.services.drains
    assert drains is not None
    what = "begin" if request.drain else "end"
    site_drains.check(h.runs.engine.policy, h.runs.drivers, drains.drains, request)
    h.log("{} of a drain of {} {} requested", what, request.driver or "the site", request.host)
    await site_acts.record(h, f"site-drain {what}", request.host or "site")
    await drains.change(request, h.principal.name)
    return {"state": "ok", "drains": drains.rows()}


async def drained(h: Handler) -> Any:
    """Return the drains there are."""
    return {"state": "ok", "drains": [] if h.services.drains is None else h.services.drains.rows()}


async def supervisors(h: Handler) -> Any:
    """Return the supervisors of the site; none unless they stand by."""
    handover = h.services.handover or handovers.ALONE
    return {"state": "ok", "name": handover.name, "supervisors": await handover.rows()}


async def hand_over(h: Handler) -> Any:
    """Hand the site over to a standby, if this supervisor is meant. The answer is sent before."""
    request, handover = h.parsed(Handover), h.services.handover or handovers.ALONE
    mine = await handover.check(request.supervisor)
    if mine:
        h.log("handover to a standby requested")
        await site_acts.record(h, "site-handover")
        handover.begin()
    return {"state": "ok", "name": handover.name, "begun": mine}


async def users(h: Handler) -> Any:
    """Return the users with a role, an API token or an active run."""
    access, world = h.services.access, h.runs.engine.world
    roles, now = access.users, h.runs.now().wall
    tokens: dict[str, int] = {}
    for token in access.tokens.all():
        tokens[token.uid] = tokens.get(token.uid, 0) + token.live(now)
    named = {*roles.admins, *tokens, *(uid for uid, n in world.active_runs.items() if n)}
    for group in roles.groups.values():
        named.update(group.admins, group.members)
    rows = [
        {
            "uid": uid,
            "name": h.runs.name_of(uid),
            "role": roles.role(uid),
            "groups": list(roles.groups_of(uid)),
            "active": world.active_runs.get(uid, 0),
            "tokens": tokens.get(uid, 0),
        }
        for uid in sorted(named, key=lambda uid: (-world.active_runs.get(uid, 0), uid))
    ]
    return {"state": "ok", "users": rows[:MOST_ROWS], "total": len(rows)}


async def tokens(h: Handler) -> Any:
    """Return the API tokens of all users without secrets, the newest first."""
    request, now = h.parsed(TokenFilter), h.runs.now().wall
    found = [t for t in h.services.access.tokens.all() if t.live(now) or not request.live]
    found.sort(key=lambda t: (-t.created_at, t.id))
    rows = [{**token_row(h, t), "user": h.runs.name_of(t.uid)} for t in found[:MOST_ROWS]]
    return {"state": "ok", "tokens": rows, "total": len(found)}


async def configuration(h: Handler) -> Any:
    """Return each setting with its value and origin; and the queues with the limits of all users.
    Secrets are in files, which settings name; a value that contains one is redacted.
    """
    text = h.log.redactor.text
    queues = h.runs.engine.policy.queues
    return {
        "state": "ok",
        "settings": [
            {
                "setting": row.key,
                "value": text(row.value),
                "origin": text(row.origin),
                "about": row.about,
            }
            for row in h.services.settings_rows()
        ],
        "limits": [
            {"of": of, "name": name, **queue_report.given(limits)}
            for of, name, limits in (
                ("everybody", "", queues.limits),
                *(("plan", plan, limits) for plan, limits in queues.plans.items()),
                *(("user", uid, limits) for uid, limits in queues.users.items()),
            )
        ],
    }


async def metrics(h: Handler) -> Any:
    """Return the metrics in the format of Prometheus."""
    data = await h.services.monitoring.text()
    h.set_header("Content-Type", CONTENT_TYPE)
    h.end(data)


async def health(h: Handler) -> Any:
    """Return the faults of the system, with remedies."""
    return await h.services.monitoring.health.body(draining=h.runs.draining)


def record_request(handler: Any) -> None:
    """Record the duration of an answered request. Streams last as long as the client reads, so they
    are left out.
    """
    if isinstance(handler, Handler) and not handler.route.streams:
        handler.services.monitoring.instruments.http.labels(
            _method(handler.request.method),
            handler.route.path,
            str(handler.get_status()),
        ).observe(handler.request.request_time())


def _method(method: str | None) -> str:
    """Return the method as a metric label; `other` for any text that clients invent."""
    return method if method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS") else "other"
