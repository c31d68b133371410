"""Why a requested output of a job is empty: a code for programs and a sentence for people. Pure."""

import json
from typing import NamedTuple

from ...db.events.state import Job, Run, Task
from ...protocol.jobs.status import PURGED
from ...protocol.wire.messages import Stream

_CALLED = {"stdout": "standard output", "stderr": "standard error"}


class MissingOutput(NamedTuple):
    """word: notStarted, neverStarted, nothingYet, empty, gone, purged, unknown."""

    word: str
    sentence: str

    def header(self) -> str:
        """Return the value of an HTTP header: JSON, ASCII only."""
        return json.dumps({"word": self.word, "sentence": self.sentence})


def missing_output(job: Job, task: Task | None, stream: Stream) -> MissingOutput:
    """Return why `stream` of `task` has no content. task: None if there is no such task."""
    run = job.run
    if run is None:
        return MissingOutput(
            "notStarted", "this job has no run yet, so there is no output; submit it first"
        )
    if task is None:
        return _no_task(job, run)
    called, attempt = _CALLED[stream], f"attempt {task.token.attempt}"
    if task.exit is not None:
        return _ended(job, run, task, called, attempt)
    if not task.live:
        return MissingOutput(
            "unknown",
            f"{attempt} is over with unknown exit status, and it has no {called}; {_see_why(job)}",
        )
    if task.started_at is None:
        return MissingOutput(
            "notStarted",
            f"{attempt} is placed on {task.agent_key.host} and has not started yet; {_see_why(job)}",
        )
    return MissingOutput(
        "nothingYet",
        f"{attempt} runs and has written nothing to its {called} so far; -f waits for output",
    )


def _ended(job: Job, run: Run, task: Task, called: str, attempt: str) -> MissingOutput:
    assert task.exit is not None
    wrote = task.exit.stdout_bytes if called == _CALLED["stdout"] else task.exit.stderr_bytes
    if task.exit.source == "start":
        detail = f": {task.exit.detail}" if task.exit.detail else ""
        return MissingOutput(
            "neverStarted", f"{attempt} never started, so it wrote nothing{detail}"
        )
    if wrote == 0:
        return MissingOutput("empty", f"{attempt} is over and wrote nothing to its {called}")
    if run.status == PURGED:
        return MissingOutput(
            "purged",
            f"the {called} of {attempt} was removed when the run was purged",
        )
    if wrote is None:
        return MissingOutput(
            "unknown",
            f"{attempt} is over; the size of its {called} is unknown, and the file is missing; {_see_why(job)}",
        )
    return MissingOutput(
        "gone",
        f"{attempt} wrote {wrote} bytes to its {called}, but the file was removed",
    )


def _no_task(job: Job, run: Run) -> MissingOutput:
    if run.status == PURGED:
        return MissingOutput("purged", "its output was removed when the run was purged")
    if run.active:
        return MissingOutput(
            "notStarted",
            f"no task of this job has started yet, so there is no output; {_see_why(job)}",
        )
    if run.attempts:
        return MissingOutput(
            "gone", "the tasks of this attempt were removed together with their output"
        )
    error = f": {run.error}" if run.error else ""
    return MissingOutput(
        "neverStarted", f"the run ended before any task started, so there is no output{error}"
    )


def _see_why(job: Job) -> str:
    return f"`jobscribe job why {job.jid}` shows more"
