"""A cache of run outcomes (exit code, signal, error), which the job index does not contain.

An outcome is read from the events of its job. It never changes, so entries need no invalidation.
"""

from collections import OrderedDict
from typing import NamedTuple

from ...db.events.events import job_stream
from ...db.events.job_fold import evolve
from ...db.events.state import Job
from ...db.store.contract import EventStore, IndexRow
from ...protocol.jobs.status import COMPLETED, ERROR

#: Number of outcomes in the cache, and of characters of each error.
KEPT, SENTENCE = 20_000, 200


class RunOutcome(NamedTuple):
    """Outcome of a run. code, signal: from the representative exit. error: a sentence for
    people.
    """

    code: int | None = None
    signal: int | None = None
    error: str | None = None


NOTHING = RunOutcome()


class OutcomeCache:
    """The outcomes of runs in `store`; least recently used entries are dropped first."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, int], RunOutcome] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, row: IndexRow) -> RunOutcome:
        """Return the outcome of the run in this row. It is empty unless the run completed or failed.

        Raises Refusal if the events cannot be read.
        """
        if row.status == COMPLETED:
            return RunOutcome(code=0)
        if row.status != ERROR:
            return NOTHING
        key = (row.jid, row.serial)
        ended = self._kept.pop(key, None) or self._read(row)
        self._kept[key] = ended
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return ended

    def _read(self, row: IndexRow) -> RunOutcome:
        job = Job(jid=row.jid)
        for stored in self._store.read(job_stream(row.jid)):
            job = evolve(job, stored.event)  # type: ignore[arg-type]
        run = job.run
        if run is not None and run.serial == row.serial:
            exit_ = run.exit
            error = None if run.error is None else run.error[:SENTENCE]
            return (
                RunOutcome(error=error)
                if exit_ is None
                else RunOutcome(exit_.code, exit_.signal, error)
            )
        # another run came after the row was read
        past = next((p for p in job.history if p.serial == row.serial), None)
        return NOTHING if past is None else RunOutcome(past.exit_code, past.exit_signal, past.error)


def exits_differ(status: str, reason: str | None) -> bool:
    """Return whether runs with this status and reason may have different exits."""
    return status == ERROR and reason in ("exit", "signal", None)
