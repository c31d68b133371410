"""The usage of a list of stored events, by the definition: the sum of what each event adds."""

from collections.abc import Iterable

from jobscribe.db.events.job_fold import evolve
from jobscribe.db.events.state import Job
from jobscribe.db.events.usage import increment
from jobscribe.db.events.usage_row import UsageKey, UsageRow, summed
from jobscribe.db.store.contract import Stored


def usage_of(log: Iterable[Stored]) -> dict[UsageKey, UsageRow]:
    jobs: dict[str, Job] = {}
    rows = []
    for stored in log:
        kind, _, jid = stored.stream.partition("/")
        if kind == "job":
            job = jobs.get(jid) or Job(jid=jid)
            rows.append(increment(job, stored.event))
            jobs[jid] = evolve(job, stored.event)
    return summed(row for row in rows if row is not None)
