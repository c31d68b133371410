"""Queues for people: totals and turns, the user's limits, and why each run waits."""

import asyncio
import itertools
from typing import Any

from ....db.events.state import Job
from ....protocol.api.requests import QueueReport
from ....protocol.ids import DEFAULT_QUEUE
from ....protocol.jobs.status import PENDING
from ...core.status import queue_report
from ...core.status.queue_report import ActiveRuns
from ..transport.request_handler import Handler

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
    accounts = queue_report.account_rows(world, found, uid)[: request.limit]
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
