"""Task counts of live attempts, so that the end of one task does not require a loop over all
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


def apply(counts: CountsByRun, event: JobEvent) -> None:
    """Apply one event to the counts."""
    match event:
        case TaskPlaced(token=token):
            counts.setdefault((token.jid, token.serial), TaskCounts()).live += 1
        case TaskEnded(token=token, exit=exit_):
            entry = counts[token.jid, token.serial]
            entry.live -= 1
            entry.ends[token.role, exit_.succeeded] = (
                entry.ends.get((token.role, exit_.succeeded), 0) + 1
            )
            if not entry.live:
                del counts[token.jid, token.serial]


def count_tasks(tasks: Iterable[Task]) -> TaskCounts:
    """Return the counts of one attempt's tasks."""
    entry = TaskCounts()
    for task in tasks:
        if task.live:
            entry.live += 1
        elif task.exit is not None:
            outcome = (task.token.role, task.exit.succeeded)
            entry.ends[outcome] = entry.ends.get(outcome, 0) + 1
    return entry
