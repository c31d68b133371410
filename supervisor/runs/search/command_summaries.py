"""A cache of commands and names of runs for lists, which the job index does not contain.

A summary is read from the events of its job.
"""

import shlex
from collections import OrderedDict
from typing import NamedTuple

import msgspec

from ....db.events.events import job_stream
from ....db.events.job_fold import evolve
from ....db.events.state import Job
from ....db.store.contract import EventStore, IndexRow
from ....protocol.api.requests import RunSpec
from ....protocol.errors import Refusal
from ....protocol.jobs import debugging

#: Number of summaries in the cache, and of characters of each command.
KEPT, CHARS = 20_000, 200


class Summary(NamedTuple):
    """command: one line, shortened; for a run with roles the command of the first role; None for a
    run of an app. name: for people. queue: None for a run of a version without queues.
    """

    command: str | None = None
    name: str | None = None
    queue: str | None = None


class CommandSummaries:
    """The summaries of runs in `store`; least recently used entries are dropped first."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, int], Summary] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, row: IndexRow) -> Summary:
        """Return the summary of the run in this row.

        It is empty if the job has a newer run by now, or if its events cannot be read.
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
    """Return the shortened command and the name of a run."""
    command = spec.command or (spec.roles[0].command if spec.roles else ())
    queue = None if spec.queue is msgspec.UNSET else spec.queue
    if not command:
        return Summary(None, spec.sim_name, queue)
    # quote only the beginning: a command may have megabytes
    words = [word[: 2 * CHARS] for word in command[:CHARS]]
    text = " ".join(shlex.join(words).split())
    if debugging.of_envs((spec.env, *(r.env for r in spec.roles))) is not None:
        text = f"[debug] {text}"
    more = len(spec.roles) > 1 or len(text) > CHARS
    return Summary(
        text[: CHARS - 4] + " ..." if len(text) > CHARS else text + (" ..." if more else ""),
        spec.sim_name,
        queue,
    )
