"""Task counts of live attempts, so that the end of one of a thousand tasks need not look at all
others.
"""

from collections.abc import Iterable

import msgspec

from ....db.events.events import JobEvent, TaskEnded, TaskPlaced
from ....db.events.state import Task
from ..resources.concurrency_limits import RunKey


class TaskCounts(msgspec.Struct):
    """live: tasks that have not ended. ends: ended tasks by (role, succeeded)."""

    live: int = 0
    ends: dict[tuple[str, bool], int] = msgspec.field(default_factory=dict)


#: By run; only runs with live tasks have an entry.
CountsByRun = dict[RunKey, TaskCounts]


def count(tallies: CountsByRun, event: JobEvent) -> None:
    """Apply one event to the counts."""
    match event:
        case TaskPlaced(token=token):
            tallies.setdefault((token.jid, token.serial), TaskCounts()).live += 1
        case TaskEnded(token=token, exit=exit_):
            tally = tallies[token.jid, token.serial]
            tally.live -= 1
            tally.ends[token.role, exit_.succeeded] = (
                tally.ends.get((token.role, exit_.succeeded), 0) + 1
            )
            if not tally.live:
                del tallies[token.jid, token.serial]


def of(tasks: Iterable[Task]) -> TaskCounts:
    """Return the counts of one attempt's tasks."""
    tally = TaskCounts()
    for task in tasks:
        if task.live:
            tally.live += 1
        elif task.exit is not None:
            seat = (task.token.role, task.exit.succeeded)
            tally.ends[seat] = tally.ends.get(seat, 0) + 1
    return tally
