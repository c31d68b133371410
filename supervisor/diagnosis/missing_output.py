"""Why there is nothing to read where somebody asked for a job's output: a word for programs, a
sentence for people. Never empty.
"""

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
        """As a header of HTTP has it: ASCII only."""
        return json.dumps({"word": self.word, "sentence": self.sentence})


def silence(job: Job, task: Task | None, stream: Stream) -> MissingOutput:
    """task: whose output was asked for, of which there is none; None where there is no such task."""
    run = job.run
    if run is None:
        return MissingOutput(
            "notStarted", "this job has had no run yet: once it is submitted it can have output"
        )
    if task is None:
        return _no_task(job, run)
    called, attempt = _CALLED[stream], f"attempt {task.token.attempt}"
    if task.exit is not None:
        return _ended(job, run, task, called, attempt)
    if not task.live:
        return MissingOutput(
            "unknown",
            f"{attempt} is over, how is not known, and there is no {called} of it; {_why(job)}",
        )
    if task.started_at is None:
        return MissingOutput(
            "notStarted",
            f"{attempt} has its place on {task.agent_key.host} and has not started yet; {_why(job)}",
        )
    return MissingOutput(
        "nothingYet",
        f"{attempt} runs and has written nothing to its {called} so far; -f waits for it",
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
            f"the run was purged: what {attempt} wrote to its {called} is not kept any more",
        )
    if wrote is None:
        return MissingOutput(
            "unknown",
            f"{attempt} is over; nobody saw what it wrote to its {called}, and there is no file of it; {_why(job)}",
        )
    return MissingOutput(
        "gone",
        f"{attempt} wrote {wrote} bytes to its {called}, which are not there any more: their file was removed",
    )


def _no_task(job: Job, run: Run) -> MissingOutput:
    if run.status == PURGED:
        return MissingOutput("purged", "the run was purged: its output is not kept any more")
    if run.active:
        return MissingOutput(
            "notStarted", f"nothing of this job has started yet, so there is no output; {_why(job)}"
        )
    if run.attempts:
        return MissingOutput(
            "gone",
            "the tasks of this attempt are not kept any more, and with them went their output",
        )
    said = f": {run.error}" if run.error else ""
    return MissingOutput(
        "neverStarted",
        f"the run ended before anything of it was started, so there is no output{said}",
    )


def _why(job: Job) -> str:
    return f"`jobscribe job why {job.jid}` says more"
