"""Read access to the event log for notifications: pages by position, and the state of a job before
and after an event.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from ...db.events.events import CHECKPOINTS, Event, type_of
from ...db.events.job_fold import evolve
from ...db.events.state import Job
from ...db.store.contract import EventStore, Stored
from ...protocol.ids import parse

#: Events per read, and cache sizes for jobs and pages, which targets at the same position share.
PAGE, JOBS, PAGES = 100, 64, 4
_JOB = "job/"


class Moment(NamedTuple):
    """An event with the job before and after; None for events without a job."""

    at: Stored
    before: Job | None
    after: Job | None

    @property
    def event(self) -> Event:
        return self.at.event


class History:
    """Cached reads of the log. One per process: targets at the same position share a read."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._pages: OrderedDict[tuple[int, int], Sequence[Stored]] = OrderedDict()
        self._moments: OrderedDict[str, Moment] = OrderedDict()

    def head(self) -> int:
        return self._store.head()

    def page(self, after: int) -> Sequence[Stored]:
        """Return events after this position, oldest first; empty at the end."""
        head = self._store.head()
        if after >= head:
            return ()
        found = self._pages.get((after, head))
        if found is None:
            found = self._pages[after, head] = self._store.read_all(after, PAGE)
            if len(self._pages) > PAGES:
                self._pages.popitem(last=False)
        return found

    def moment(self, stream: str, version: int) -> Moment | None:
        """Return the event with this version, or None if it is not in the log any more."""
        known = self._moments.pop(stream, None)
        if known is not None and known.at.version > version:
            known = None
        moment = known
        if known is None or known.at.version < version:
            for stored in self._store.read(stream, 0 if known is None else known.at.version):
                if stored.version > version:
                    break
                moment = _next(moment, stored)
        if moment is not None:
            self._moments[stream] = moment
            if len(self._moments) > JOBS:
                self._moments.popitem(last=False)
        return moment if moment is not None and moment.at.version == version else None

    def checkpoint(self, stream: str) -> Stored | None:
        """Return the checkpoint that replaced the beginning of a stream after a compaction, or
        None.
        """
        first = next(iter(self._store.read(stream)), None)
        return first if first is not None and type_of(first.event) in CHECKPOINTS else None


def _next(last: Moment | None, stored: Stored) -> Moment:
    if not stored.stream.startswith(_JOB):
        return Moment(stored, None, None)
    before = last.after if last is not None else None
    if before is None:
        before = Job(jid=parse("computeJid", stored.stream.removeprefix(_JOB)))
    return Moment(stored, before, evolve(before, stored.event))  # type: ignore[arg-type]
