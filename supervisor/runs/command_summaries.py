"""What runs do, in a line for lists: read from their streams once, and kept for as many as fit. The
index does not have it.
"""

import shlex
from collections import OrderedDict
from typing import NamedTuple

from ...db.events.events import job_stream
from ...db.events.job_fold import evolve
from ...db.events.state import Job
from ...db.store.contract import EventStore, IndexRow
from ...protocol.api.requests import RunSpec
from ...protocol.errors import Refusal

#: Summaries that are kept, and characters of a command.
KEPT, CHARS = 20_000, 200


class Summary(NamedTuple):
    """command: on one line, shortened; of a run with roles that of the first role, of an app's run
    None. name: for people.
    """

    command: str | None = None
    name: str | None = None


class CommandSummaries:
    """Those of runs in `store`."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, int], Summary] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, row: IndexRow) -> Summary:
        """Of the run in this row; nothing where another run came after the row was read, or its
        events cannot be read.
        """
        key = (row.jid, row.serial)
        try:
            found = self._kept.pop(key, None) or self._read(row)
        except Refusal:
            return Summary()
        self._kept[key] = found
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found

    def _read(self, row: IndexRow) -> Summary:
        job = Job(jid=row.jid)
        for stored in self._store.read(job_stream(row.jid)):
            job = evolve(job, stored.event)  # type: ignore[arg-type]
        return (
            Summary() if job.run is None or job.run.serial != row.serial else summary(job.run.spec)
        )


def summary(spec: RunSpec) -> Summary:
    """What this run does."""
    command = spec.command or (spec.roles[0].command if spec.roles else ())
    if not command:
        return Summary(None, spec.sim_name)
    # a command may have megabytes: only its beginning is quoted
    words = [word[: 2 * CHARS] for word in command[:CHARS]]
    text = " ".join(shlex.join(words).split())
    more = len(spec.roles) > 1 or len(text) > CHARS
    return Summary(
        text[: CHARS - 4] + " ..." if len(text) > CHARS else text + (" ..." if more else ""),
        spec.sim_name,
    )
