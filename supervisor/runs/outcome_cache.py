"""How runs ended, as far as an index does not say it: read from their streams once, and kept for as
many as fit.

What is kept is a fact of one run of a job and never changes; what is dropped is read again.
"""

from collections import OrderedDict
from typing import NamedTuple

from ...db.events.events import job_stream
from ...db.events.job_fold import evolve
from ...db.events.state import Job
from ...db.store.contract import EventStore, IndexRow
from ...protocol.jobs.status import COMPLETED, ERROR

#: Ends of so many runs are kept, and of their sentences so many characters.
KEPT, SENTENCE = 20_000, 200


class RunOutcome(NamedTuple):
    """code, signal: of the exit that stands for the run. error: a sentence for a person."""

    code: int | None = None
    signal: int | None = None
    error: str | None = None


NOTHING = RunOutcome()


class OutcomeCache:
    """The ends of runs, read from `store`."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, int], RunOutcome] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, row: IndexRow) -> RunOutcome:
        """How the run in this row ended; nothing for one that has not, or was canceled. Raises
        Refusal.
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
    """Do runs with this status and reason have exits of their own? Of others, the two say it all."""
    return status == ERROR and reason in ("exit", "signal", None)
