"""Additions to the sentence of an ended run: its error line, and the task that it is about. Pure."""

from ...db.events.state import Run
from ...diagnosis.exit_table import Diagnosis
from ...diagnosis.kill_attribution import Classification
from ...protocol.jobs.exit_info import ExitInfo
from .phrases import several_tasks

#: Characters of output in a sentence.
_CHARS = 200
_QUOTED = "a line of its output: "
#: Causes whose meaning needs the line of output that shows it.
_BY_LINE = frozenset(
    {"notFound", "notExecutable", "libraryMissing", "setupFailed", "usage", "launcher"}
)


def task_prefix(run: Run) -> str:
    """Return the representative task as the start of a sentence; "" if the run has one task."""
    task = run.telling
    if task is None or not several_tasks(run):
        return ""
    return f"task {task.token.role}/{task.token.index}: "


def hint_and_line(
    exit_: ExitInfo, found: Classification, diagnosis: Diagnosis | None
) -> tuple[str, str | None]:
    """Return what follows the meaning of the exit in the sentence, without output of the job, and the
    line in which the program itself names the error.

    Statuses and notifications have the sentence, so it quotes no output.
    """
    if found.cause in _BY_LINE:
        line = next((e for e in found.evidence if e.startswith(_QUOTED)), "")
        return "", _short(line.removeprefix(_QUOTED))
    if found.cause != "exit" or found.confidence == "possible":
        return "", None
    said = (exit_.termination_message or "").strip()
    if said:
        return "", _short(said.splitlines()[-1])
    if diagnosis is not None and diagnosis.hint is not None and diagnosis.matched:
        return f"; perhaps {diagnosis.hint}", _short(diagnosis.matched)
    lines = [line for line in (exit_.last_lines or "").splitlines() if line.strip()]
    if lines:
        return "", _short(lines[-1])
    silent = exit_.stdout_bytes == exit_.stderr_bytes == 0
    return ("; it wrote no output" if silent else ""), None


def _short(text: str) -> str | None:
    text = "".join(c if c.isprintable() else " " for c in text).strip()
    return (text if len(text) <= _CHARS else f"{text[: _CHARS - 1]}…") or None
