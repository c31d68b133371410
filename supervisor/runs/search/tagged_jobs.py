"""Lists of the jobs with certain tags. The name index finds candidates; a job may have lost a tag
since, so its state decides.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ....db.store.contract import EventStore, IndexRow
from ....db.store.name_index import tag_name
from ....protocol.api.requests import JobList
from ....protocol.jobs.status import ACTIVE
from ...engine.decision_loop import Engine
from ..groups import gently

#: Candidates of one tag that a list examines.
MOST_CANDIDATES = 50_000


class TaggedJob(NamedTuple):
    row: IndexRow
    tags: tuple[str, ...]


async def tagged_jobs(engine: Engine, request: JobList, tags: Sequence[str]) -> list[TaggedJob]:
    """Return one page of the jobs with at least one of these tags, newest change first."""
    rows = []
    async for jid in gently(await _candidates(engine.store, request.uid, tags)):
        rows += [r for r in engine.store.find_jobs(jid, 1) if r.jid == jid and _fits(r, request)]
    found: list[TaggedJob] = []
    async for row in gently(sorted(rows, key=lambda r: -r.position)):
        if len(found) == request.limit:
            break
        entry = engine.durable(row.jid)
        if entry is not None and not set(tags).isdisjoint(entry.job.tags):
            found.append(TaggedJob(row, entry.job.tags))
    return found


async def _candidates(store: EventStore, uid: str | None, tags: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for tag in dict.fromkeys(tags):
        found.update(dict.fromkeys(store.jobs_named(tag_name(tag), "tag", uid, MOST_CANDIDATES)))
        await asyncio.sleep(0)  # one tag alone may have many
    return list(found)


def _fits(row: IndexRow, request: JobList) -> bool:
    return (
        request.status in (None, row.status)
        and request.active in (None, row.status in ACTIVE)
        and (request.before is None or row.position < request.before)
    )
