"""A store in a folder for tests: append and wait, close, and open again."""

import queue
from collections.abc import Callable, Sequence
from pathlib import Path

from jobscribe.db.events.events import Event, JobEvent, job_stream
from jobscribe.db.events.job_fold import evolve
from jobscribe.db.events.state import Job
from jobscribe.db.events.usage import increment
from jobscribe.db.events.usage_row import UsageRow
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Appended, Batch, EventStore, Receipt, Write
from jobscribe.db.store.job_index import index_row
from jobscribe.protocol.errors import Refusal

DEADLINE = 20.0


class Disk:
    """A store in `root`, and the expected state of the appended jobs."""

    def __init__(self, root: Path, **options: object) -> None:
        self.root = root
        self.path = root / "db" / "events.sqlite"
        self.calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self.jobs: dict[str, Job] = {}
        self.versions: dict[str, int] = {}
        self.options = options
        self.store = self.open()

    def open(self) -> SqliteStore:
        self.store = SqliteStore(self.path, self.calls.put, **self.options)
        return self.store

    def append(self, stream: str, events: Sequence[Event], **rest: tuple) -> Appended:
        """Append events to a stream; return when they are durable."""
        result = append(
            self.store,
            self.calls,
            Batch(writes=(Write(stream, self.versions.get(stream, 0), tuple(events)),), **rest),
        )
        assert isinstance(result, Appended), result
        self.versions[stream] = self.versions.get(stream, 0) + len(events)
        return result

    def tell(self, jid: str, *events: JobEvent, receipts: tuple[Receipt, ...] = ()) -> Appended:
        """Append events of a job with its index row."""
        job, usage = evolved(self.jobs.get(jid, Job(jid=jid)), events)
        result = self.append(
            job_stream(jid), events, index=(index_row(job),), receipts=receipts, usage=usage
        )
        self.jobs[jid] = job
        return result

    def tell_all(self, events: dict[str, Sequence[JobEvent]]) -> None:
        """Append events of many jobs in one transaction."""
        events = {jid: own for jid, own in events.items() if own}
        usage: list[UsageRow] = []
        for jid, own in events.items():
            self.jobs[jid], used = evolved(self.jobs.get(jid, Job(jid=jid)), own)
            usage += used
        writes = tuple(
            Write(job_stream(jid), self.versions.get(job_stream(jid), 0), tuple(own))
            for jid, own in events.items()
        )
        result = append(
            self.store,
            self.calls,
            Batch(
                writes=writes,
                index=tuple(index_row(self.jobs[jid]) for jid in events),
                usage=tuple(usage),
            ),
        )
        assert isinstance(result, Appended), result
        self.versions |= {w.stream: w.expected_version + len(w.events) for w in writes}


def evolved(job: Job, events: Sequence[JobEvent]) -> tuple[Job, tuple[UsageRow, ...]]:
    """Return the job after these events, and the usage that they add."""
    usage = []
    for event in events:
        usage.append(increment(job, event))
        job = evolve(job, event)
    return job, tuple(row for row in usage if row is not None)


def append(
    store: EventStore, calls: "queue.Queue[Callable[[], None]]", batch: Batch
) -> Appended | Refusal:
    results: list[Appended | Refusal] = []
    store.append(batch, results.append)
    while not results:
        calls.get(timeout=DEADLINE)()
    return results[0]
