"""Reasons for missing output: each case has its own code and sentence."""

import json
from typing import Any

import msgspec
import pytest

from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.status import PURGED
from jobscribe.supervisor.diagnosis.missing_output import missing_output


@pytest.fixture
def placed(kit: Any) -> Any:
    """A job with one task that is placed and has not started."""
    stage = kit.Stage(nodes={"local": (kit.node(cpu=4),)})
    stage.placed(kit.role("main"))
    return stage.job()


def shaped(
    job: Any, *, status: str | None = None, error: str | None = None, **task: Any
) -> tuple[Any, Any]:
    run = job.run
    changed = msgspec.structs.replace(run.attempts[0].tasks[0], **task)
    attempt = msgspec.structs.replace(run.attempts[0], tasks=(changed,))
    run = msgspec.structs.replace(
        run, attempts=(attempt,), status=status or run.status, error=error
    )
    return msgspec.structs.replace(job, run=run), changed


OVER = {"ended_at": 20.0, "started_at": 10.0}


@pytest.mark.parametrize(
    ("task", "status", "word", "says"),
    [
        ({}, None, "notStarted", "has not started yet"),
        (
            {"started_at": 10.0},
            None,
            "nothingYet",
            "has written nothing to its standard error so far; -f waits for output",
        ),
        (
            {**OVER, "exit": ExitInfo(code=0, stderr_bytes=0)},
            "completed",
            "empty",
            "attempt 1 is over and wrote nothing to its standard error",
        ),
        (
            {**OVER, "exit": ExitInfo(code=0, stderr_bytes=7)},
            "completed",
            "gone",
            "wrote 7 bytes to its standard error, but the file was removed",
        ),
        (
            {**OVER, "exit": ExitInfo(code=0, stderr_bytes=7)},
            PURGED,
            "purged",
            "when the run was purged",
        ),
        (
            {"ended_at": 20.0, "exit": ExitInfo(source="start", detail="no such image")},
            "error",
            "neverStarted",
            "never started, so it wrote nothing: no such",
        ),
        (
            {**OVER, "exit": ExitInfo(source="lost")},
            "error",
            "unknown",
            "the size of its standard error is unknown",
        ),
        (OVER, "error", "unknown", "is over with unknown exit status"),
    ],
)
def test_each_silence_of_a_task_has_its_sentence(
    placed: Any, task: dict[str, Any], status: str | None, word: str, says: str
) -> None:
    job, changed = shaped(placed, status=status, **task)
    found = missing_output(job, changed, "stderr")
    assert found.word == word and says in found.sentence
    assert (
        json.loads(found.header()) == {"word": word, "sentence": found.sentence}
        and found.header().isascii()
    )


def test_without_a_task_it_is_said_what_became_of_the_run(placed: Any) -> None:
    run = placed.run

    def said(**changes: Any) -> tuple[str, str]:
        changed = msgspec.structs.replace(run, **changes)
        return tuple(missing_output(msgspec.structs.replace(placed, run=changed), None, "stdout"))  # type: ignore[return-value]

    assert said(attempts=())[0] == "notStarted" and "job why" in said(attempts=())[1]
    assert said(attempts=(), status=PURGED)[0] == "purged"
    assert said(attempts=(), status="canceled") == (
        "neverStarted",
        "the run ended before any task started, so there is no output",
    )
    assert said(attempts=(), status="error", error="b\u00f6se")[1].endswith("no output: b\u00f6se")
    assert said(status="error")[0] == "gone"
    assert (
        missing_output(msgspec.structs.replace(placed, run=None), None, "stdout").word
        == "notStarted"
    )
