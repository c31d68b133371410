"""By what a job or an agent is found besides its own name: opIds, reqIds, jobs of Slurm, containers. The table `names`.

A name belongs to a stream. The table has the names of all events in the log, each once, and nothing else; where events were folded
into a checkpoint, those that the checkpoint still has.
"""

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..protocol.batch import BatchState
from ..protocol.errors import Refusal
from ..protocol.exits import ExitInfo
from .events import (
    AgentFolded,
    AgentStarted,
    Event,
    JobFolded,
    LateStopRequested,
    RunRequested,
    StopRequested,
    TaskEnded,
    TaskHeld,
    TaskPlaced,
    TaskSubmitted,
    decode,
)
from .schema import INSERT_NAMES, ROW_COLUMNS, insert
from .state import Run, Task
from .store import Name

#: Called with (what is being done, how much of it, how much there is) now and then.
Progress = Callable[[str, int, int], None]
BATCH = 5000
#: A container's name that is longer was given by nobody.
LONGEST = 256
_TYPES = (
    "RunRequested", "StopRequested", "LateStopRequested", "TaskPlaced", "TaskSubmitted", "TaskHeld", "TaskEnded", "JobFolded",
    "AgentStarted", "AgentFolded",
)
_THERE = "SELECT 1 FROM names WHERE name = ? AND what = ? AND stream = ?"
_AMONG = ", ".join(f"'{t}'" for t in _TYPES)


def names_of(stream: str, event: Event) -> list[Name]:
    """What this event of that stream can be found by. An event of another type than those in `_TYPES` has none."""
    return [Name(name, what, stream) for what, name in _named(event) if name is not None]


def _named(event: Event) -> list[tuple[str, str | None]]:
    match event:
        case RunRequested() | StopRequested() | LateStopRequested():
            return [("request", event.req_id)]
        case TaskPlaced():
            return [("op", event.op_id)]
        case TaskSubmitted(batch=batch):
            return [("slurm", batch.job_id)]
        case TaskHeld() | TaskEnded():
            return [("slurm", _job_id(event.exit))]
        case JobFolded(job=job):
            earlier = [t for past in job.history for t in past.live_tasks]
            return [*(_of_run(job.run) if job.run is not None else ()), *(n for t in earlier for n in _of_task(t))]
        case AgentStarted(handle=handle):
            return [("container", _container(handle))]
        case AgentFolded(agent=agent):
            return [("container", _container(agent.handle or {}))]
        case _:
            return []


def _of_run(run: Run) -> Iterator[tuple[str, str | None]]:
    yield "request", run.req_id
    for attempt in run.attempts:
        for task in attempt.tasks:
            yield from _of_task(task)


def _of_task(task: Task) -> Iterator[tuple[str, str | None]]:
    yield "op", task.op_id
    yield "slurm", None if task.batch is None else task.batch.job_id
    yield "slurm", None if task.exit is None else _job_id(task.exit)


def _job_id(exit_: ExitInfo) -> str | None:
    return exit_.batch.job_id if isinstance(exit_.batch, BatchState) else None


def _container(handle: dict[str, Any]) -> str | None:
    name = handle.get("name")
    return name if isinstance(name, str) and 0 < len(name) <= LONGEST else None


def write_names(connection: sqlite3.Connection, progress: Progress) -> None:
    """Fill the empty table from the log, within the caller's transaction. What cannot be read of the log, its check tells of."""
    (of,) = connection.execute(f"SELECT count(*) FROM events WHERE type IN ({_AMONG})").fetchone()
    made: list[tuple[str, str, str]] = []
    for count, (stream, event, _) in enumerate(_events(connection, "position", 2**62), 1):
        made += (msgspec.structs.astuple(n) for n in names_of(stream, event))
        if len(made) >= BATCH:
            insert(connection, INSERT_NAMES, made)
            made.clear()
        if count % BATCH == 0:
            progress("names", count, of)
    insert(connection, INSERT_NAMES, made)


def differences(connection: sqlite3.Connection, up_to: int) -> Iterator[tuple[str, int | None]]:
    """Where the table is not what the events up to there say: (a sentence, the position it is about)."""
    right = 0
    events = _events(connection, "stream, version", up_to)
    for stream, group in itertools.groupby(events, key=lambda e: e[0]):
        seen = {name: position for _, event, position in group for name in names_of(stream, event)}
        right += len(seen)
        for name, position in seen.items():
            if connection.execute(_THERE, msgspec.structs.astuple(name)).fetchone() is None:
                yield f"the {name.what} {name.name} of {stream} cannot be found by its name", position
                right -= 1
    (there,) = connection.execute("SELECT count(*) FROM names").fetchone()
    if there != right:
        yield f"{there - right} names lead to what no event says", None


def _events(connection: sqlite3.Connection, order: str, up_to: int) -> Iterator[tuple[str, Event, int]]:
    rows = connection.execute(
        f"SELECT {ROW_COLUMNS} FROM events WHERE position <= ? AND type IN ({_AMONG})"
        f" ORDER BY {', '.join('events.' + column for column in order.split(', '))}", (up_to,),
    )
    for position, stream, _, type_, schema, _, body, _ in rows:
        try:
            yield stream.decode(), decode(type_.decode(), schema, body), position
        except (Refusal, UnicodeDecodeError, AttributeError, TypeError):
            continue  # the log is damaged there
