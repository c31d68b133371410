"""The name index: finds a job or an agent by opId, reqId, Slurm job id or container name, and jobs
by their tags. Table `names`.

A name belongs to a stream. The table has the names of all events in the log, each once, and no
others. For events that were folded into a checkpoint, it has the names that the checkpoint still
contains.
"""

from collections.abc import Iterator
from typing import Any

from ...protocol.clusters.batch import BatchState
from ...protocol.jobs.exit_info import ExitInfo
from ..events.events import (
    AgentFolded,
    AgentStarted,
    Event,
    JobFolded,
    LateStopRequested,
    RunRequested,
    StopRequested,
    TagsChanged,
    TaskEnded,
    TaskHeld,
    TaskPlaced,
    TaskSubmitted,
)
from ..events.state import Run, Task
from .contract import Name

#: Longest container name that is indexed; drivers never create longer names.
LONGEST = 256
NAMED_EVENTS = (
    "RunRequested",
    "StopRequested",
    "LateStopRequested",
    "TaskPlaced",
    "TaskSubmitted",
    "TaskHeld",
    "TaskEnded",
    "TagsChanged",
    "JobFolded",
    "AgentStarted",
    "AgentFolded",
)


def tag_name(tag: str) -> str:
    """Return the name of a tag. It begins with no other tag, and no other id equals it. A job may
    have lost the tag since.
    """
    return f"tag:{tag},"


def secondary_names(stream: str, event: Event) -> list[Name]:
    """Return the secondary names in this event. Only event types in `NAMED_EVENTS` have any."""
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
        case TagsChanged(added=added):
            return [("tag", tag_name(tag)) for tag in added]
        case JobFolded(job=job):
            earlier = [t for past in job.history for t in past.live_tasks]
            return [
                *(_of_run(job.run) if job.run is not None else ()),
                *(n for t in earlier for n in _of_task(t)),
                *(("tag", tag_name(tag)) for tag in job.tags),
            ]
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
